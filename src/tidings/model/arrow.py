"""Arrow's side of the model: its types for ours, ours for its, and tables from data frames."""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import DomainError
from tidings.model import types
from tidings.model.types import DataType, array, decimal, mapping, struct

ArrowArray: TypeAlias = Any  # pyarrow's stubs lose an array's type in its compute functions
Column: TypeAlias = "pa.Array[Any]"  # one contiguous array of Arrow

_TO_ARROW: dict[DataType, pa.DataType] = {
    types.BOOLEAN: pa.bool_(),
    types.TINYINT: pa.int8(),
    types.SMALLINT: pa.int16(),
    types.INT: pa.int32(),
    types.BIGINT: pa.int64(),
    types.FLOAT: pa.float32(),
    types.DOUBLE: pa.float64(),
    types.STRING: pa.string(),
    types.DATE: pa.date32(),
    types.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    types.TIMESTAMP_NTZ: pa.timestamp("us"),
    types.BINARY: pa.binary(),
    types.VOID: pa.null(),
}

# Only types that hold every value of Arrow's; where Spark's is wider, the next wider one.
_FROM_ARROW: dict[pa.DataType, DataType] = {arrow: type_ for type_, arrow in _TO_ARROW.items()} | {
    pa.null(): types.STRING,  # what Spark reads where a sample has only NULLs
    pa.uint8(): types.SMALLINT,
    pa.uint16(): types.INT,
    pa.uint32(): types.BIGINT,
    pa.uint64(): decimal(20, 0),
    pa.float16(): types.FLOAT,
    pa.large_string(): types.STRING,
    pa.string_view(): types.STRING,
    pa.large_binary(): types.BINARY,
    pa.binary_view(): types.BINARY,
    pa.date64(): types.DATE,
}


def arrow_type(type_: DataType) -> pa.DataType:
    """The one Arrow type that columns of `type_` have in Tidings."""
    match type_.name:
        case "decimal":
            return pa.decimal128(type_.precision, type_.scale)
        case "array":
            assert type_.element is not None
            return pa.list_(arrow_type(type_.element))
        case "struct":
            return pa.struct([(name, arrow_type(field)) for name, field in type_.fields])
        case "map":
            return pa.map_(arrow_type(type_.fields[0][1]), arrow_type(type_.fields[1][1]))
    return _TO_ARROW[type_]


def from_arrow(type_: Any) -> DataType:
    """The type that holds every value of an Arrow type exactly; raises `DomainError` if there is no such type.

    A timestamp with a zone is an instant (`timestamp`), one without is `timestamp_ntz`, whatever
    its unit: nanoseconds that do not fit microseconds are refused when events are read.
    """
    is_ = pa.types
    if type_ in _FROM_ARROW:
        return _FROM_ARROW[type_]
    if isinstance(type_, pa.BaseExtensionType):
        return from_arrow(type_.storage_type)
    if is_.is_timestamp(type_):
        return types.TIMESTAMP if type_.tz is not None else types.TIMESTAMP_NTZ
    if is_.is_decimal(type_):
        return _from_arrow_decimal(type_)
    if is_.is_dictionary(type_) or is_.is_run_end_encoded(type_):
        return from_arrow(type_.value_type)
    if is_.is_fixed_size_binary(type_):
        return types.BINARY
    if is_list_like(type_):
        return array(from_arrow(type_.value_type))
    if is_.is_map(type_):
        return mapping(from_arrow(type_.key_type), from_arrow(type_.item_type))
    if is_.is_struct(type_) and type_.num_fields:
        return struct(*((field.name, from_arrow(field.type)) for field in type_))
    hint = "leave the column out, or cast it to a type of Spark SQL"
    if is_.is_duration(type_) or is_.is_time(type_):
        hint = "cast the column to bigint (and declare the unit) or to string"
    raise DomainError(f"type: Arrow's {type_} has no counterpart in Spark SQL; {hint}")


def _from_arrow_decimal(type_: Any) -> DataType:
    # A negative scale counts zeros before the point.
    precision, scale = type_.precision - min(type_.scale, 0), max(type_.scale, 0)
    if scale > precision:
        precision = scale
    if precision > types.MAX_PRECISION:
        raise DomainError(
            f"type: Arrow's {type_} has more than {types.MAX_PRECISION} digits; cast the column to a narrower decimal"
        )
    return decimal(precision, scale)


def is_list_like(type_: pa.DataType) -> bool:
    is_ = pa.types
    return bool(
        is_.is_list(type_)
        or is_.is_large_list(type_)
        or is_.is_fixed_size_list(type_)
        or is_.is_list_view(type_)
        or is_.is_large_list_view(type_)
    )


def is_pandas(data: object) -> bool:
    """Whether this is a pandas frame, without importing pandas."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def is_lazy_polars(data: object) -> bool:
    return (
        type(data).__module__.partition(".")[0] == "polars"
        and hasattr(data, "collect_schema")
        and hasattr(data, "collect")
    )


def arrow_table(data: Any) -> pa.Table | None:
    """An Arrow table of an Arrow table, batch or reader, or a Polars frame; None of anything else.

    A Spark frame would offer itself as Arrow too, but by running a job: nobody asked for that.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if is_pandas(data) or hasattr(data, "sparkSession") or isinstance(data, pa.Array | pa.ChunkedArray):
        return None
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    return None


def pandas_columns(frame: Any) -> list[tuple[str, Column | list[Any]]]:
    """The columns of a pandas frame, with pandas' missing values (NaN, NaT, NA, None) as NULLs.

    A column of Python objects other than texts stays a list, because Arrow would join kinds that
    differ (a time with a zone and one without) and our rules would never see it.
    """
    import pandas as pd

    columns: list[tuple[str, Column | list[Any]]] = []
    for position, name in enumerate(frame.columns):
        series = frame.iloc[:, position]
        if series.dtype == object and pd.api.types.infer_dtype(series, skipna=True) not in ("string", "empty"):
            missing = pd.isna(series)
            columns.append((str(name), [None if gone else value for value, gone in zip(series, missing, strict=True)]))
            continue
        column = one_array(pa.array(series, from_pandas=True))
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        columns.append((str(name), column))
    return columns


def one_array(column: Any) -> Column:
    """The column as one contiguous array, without a copy where it already is one."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    assert isinstance(column, pa.Array)
    return column
