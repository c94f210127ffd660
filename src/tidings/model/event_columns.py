"""Whether a whole column fits a type: the rule of `event_values`, for many values at a time.

A column that has the type's own Arrow type is passed through without a copy. Where a cast of
Arrow follows our rule it is taken; where it would refuse, or would do something else, distinct
values are judged one by one, so that every value that does not fit is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.model.arrow import Column, arrow_type, is_list_like
from tidings.model.event_values import (
    FIRST_DAY,
    FIRST_MICROSECOND,
    HAS_OFFSET,
    LAST_DAY,
    LAST_MICROSECOND,
    NEEDS_OFFSET,
    OUT_OF_YEARS,
    Misfit,
    fit,
)
from tidings.model.types import DataType

_PER_MICROSECOND = {"s": 1_000_000, "ms": 1_000, "us": 1}
_NANOSECONDS = 1_000


class Fitted(NamedTuple):
    """A column of exactly the wanted Arrow type, NULL where a value does not fit, and why, by position."""

    column: Column
    misfits: dict[int, str]


def fit_values(values: list[Any], type_: DataType) -> Fitted:
    """The column of Python values."""
    kinds = set(map(type, values)) - {type(None)}
    try:
        if kinds == {int}:
            return fit_column(pa.array(values, pa.int64()), type_)
        if kinds == {float}:
            return fit_column(pa.array(values, pa.float64()), type_)
        if kinds == {Decimal} and type_.name == "double":  # as JSON's numbers come
            numbers = [None if value is None else float(value) for value in values]
            if all(map(math.isfinite, filter(None, numbers))):
                return Fitted(pa.array(numbers, pa.float64()), {})
        if (kinds == {str} and type_.name == "string") or (kinds == {bool} and type_.name == "boolean"):
            return Fitted(pa.array(values, arrow_type(type_)), {})
    except (OverflowError, UnicodeEncodeError, ValueError):
        pass  # one of them does not fit: find out which
    return _one_by_one(values, type_)


def fit_column(column: Column, type_: DataType) -> Fitted:
    """The column of an Arrow array."""
    target: Any = arrow_type(type_)
    column = _decoded(column)
    if pa.types.is_null(column.type):
        return Fitted(pa.nulls(len(column), target), {})
    if pa.types.is_temporal(column.type):
        return _fit_times(column, type_)
    if is_list_like(column.type) and type_.name == "array":
        return _fit_lists(column, type_)
    if pa.types.is_struct(column.type) and type_.name == "struct":
        return _fit_structs(column, type_)
    if column.type == target:
        return Fitted(column, {})
    cast = _cast(column, type_)
    return Fitted(cast, {}) if cast is not None else _fit_distinct(column, type_)


def _decoded(column: Any) -> Column:
    """The same values without the encodings that Arrow may wrap them in."""
    if isinstance(column, pa.ExtensionArray):
        return _decoded(column.storage)
    if pa.types.is_dictionary(column.type):
        return _decoded(column.dictionary_decode())
    if pa.types.is_run_end_encoded(column.type):
        return _decoded(pc.call_function("run_end_decode", [column]))
    for wide, plain in _PLAIN:
        if wide(column.type):
            return _cast_to(column, plain)
    return _as_column(column)


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_float16, pa.float32()),
)


def _as_column(column: Any) -> Column:
    assert isinstance(column, pa.Array)
    return column


def _cast_to(column: Any, target: Any, *, safe: bool = True) -> Column:
    return _as_column(column.cast(target, safe=safe))


def _cast(column: Column, type_: DataType) -> Column | None:
    """The column by a cast that is exact; None where no cast is, or a value does not fit."""
    is_, source, target = pa.types, column.type, arrow_type(type_)
    try:
        if is_.is_integer(source):
            if type_.name == "decimal":
                return _cast_to(_cast_to(column, pa.decimal128(20, 0)), target)
            return _cast_to(column, target) if type_.is_numeric else None
        if is_.is_floating(source):
            if type_.name == "double":
                return _cast_to(column, target)
            if type_.name == "float":
                return _narrowed(column)
            return _whole(column, type_) if type_.is_integral else None
        if is_.is_decimal(source):
            if type_.name in ("float", "double"):
                # Through text, because text is read to the nearest double and a decimal is not.
                numbers = fit_column(_cast_to(_cast_to(column, pa.string()), pa.float64()), type_)
                return None if numbers.misfits else numbers.column
            return _cast_to(column, target) if type_.is_numeric else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return None


def _narrowed(column: Column) -> Column | None:
    narrow = _cast_to(column, pa.float32())
    overflown = pc.and_not(pc.is_inf(narrow), pc.is_inf(column))
    return None if pc.any(overflown).as_py() else narrow


def _whole(column: Column, type_: DataType) -> Column | None:
    # Beyond the range a machine's conversion may saturate, which Arrow's own check can miss.
    bounds: Any = pc.min_max(column).as_py()
    least, greatest = type_.integer_range
    if bounds["min"] is not None and not (least <= bounds["min"] and bounds["max"] <= greatest):
        return None
    return _cast_to(column, arrow_type(type_))


def _fit_times(column: Any, type_: DataType) -> Fitted:
    source = column.type
    if pa.types.is_timestamp(source) and type_.name in ("timestamp", "timestamp_ntz"):
        if (source.tz is None) != (type_.name == "timestamp_ntz"):
            return _all_misfit(column, type_, NEEDS_OFFSET if type_.name == "timestamp" else HAS_OFFSET)
        raw = column.cast(pa.int64())
        if source.unit == "ns":
            return _fit_raw(column, raw, type_, divide=_NANOSECONDS, bounds=(FIRST_MICROSECOND, LAST_MICROSECOND))
        factor = _PER_MICROSECOND[source.unit]
        return _fit_raw(column, raw, type_, multiply=factor, bounds=(FIRST_MICROSECOND, LAST_MICROSECOND))
    if type_.name == "date" and pa.types.is_date32(source):
        return _fit_raw(column, column.cast(pa.int32()).cast(pa.int64()), type_, bounds=(FIRST_DAY, LAST_DAY))
    if type_.name == "date" and pa.types.is_date64(source):
        raw = column.view(pa.int64())
        return _fit_raw(column, raw, type_, divide=86_400_000, bounds=(FIRST_DAY, LAST_DAY), rest_is="a time of day")
    return _all_misfit(column, type_, f"a column of {source} does not fit {type_}")


def _fit_raw(
    column: Any, raw: Any, type_: DataType, *, bounds: tuple[int, int], multiply: int = 1, divide: int = 1,
    rest_is: str = "digits beyond microseconds",
) -> Fitted:  # fmt: skip
    """The column of times whose count of units is `raw`, where each is whole and in bounds."""
    target = arrow_type(type_)
    first, last = bounds[0] * divide // multiply, bounds[1] * divide // multiply
    limits: Any = pc.min_max(raw).as_py()
    in_range = limits["min"] is None or (first <= limits["min"] and limits["max"] <= last)
    if in_range and divide == 1:
        # Same unit: Arrow only changes the type's label, without a copy.
        return Fitted(column if column.type == target else _cast_to(column, target), {})
    valid = np.asarray(column.is_valid())
    units = np.asarray(raw.fill_null(0))
    whole, rest = np.divmod(units, divide)
    out = valid & ((units < max(first, -(2**63))) | (units > min(last, 2**63 - 1)))
    fine = valid & ~out & (rest != 0)
    counts = np.where(out, 0, whole) * multiply
    width = np.int32 if type_.name == "date" else np.int64
    fitted = pa.array(counts.astype(width), mask=~valid | out | fine).view(target)
    reasons = {int(row): OUT_OF_YEARS for row in np.flatnonzero(out)}
    reasons |= {int(row): f"the time has {rest_is}" for row in np.flatnonzero(fine)}
    return Fitted(fitted, reasons)


def _fit_lists(column: Any, type_: DataType) -> Fitted:
    """Of lists of any layout: the elements as one column, put back into lists."""
    assert type_.element is not None
    given = column.flatten()  # without what lies under NULL lists
    elements, misfits = fit_column(given, type_.element)
    if elements is given and column.type == arrow_type(type_):
        return Fitted(column, {})
    valid = np.asarray(column.is_valid())
    lengths = np.where(valid, np.asarray(pc.list_value_length(column).fill_null(0)), 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows: dict[int, str] = {}
    for at, reason in sorted(misfits.items()):
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        rows.setdefault(row, f"element {at - offsets[row]}: {reason}")
    valid[list(rows)] = False
    starts: Any = pa.array(offsets, pa.int32())
    target: Any = arrow_type(type_)
    return Fitted(pa.ListArray.from_arrays(starts, elements, type=target, mask=pa.array(~valid)), rows)


def _fit_structs(column: Any, type_: DataType) -> Fitted:
    """Of structs inside arrays and maps; those at the top of an event are attributes of their own."""
    given = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    if len(given) < column.type.num_fields:
        return _all_misfit(column, type_, "two fields of the struct have one name")
    fields: list[Column] = []
    rows: dict[int, str] = {}
    for name, field in type_.fields:
        fitted = fit_column(given.get(name, pa.nulls(len(column))), field)
        fields.append(fitted.column)
        for row, reason in fitted.misfits.items():
            rows.setdefault(row, f"field '{name}': {reason}")
    mask = ~np.asarray(column.is_valid())
    mask[list(rows)] = True
    names = [name for name, _ in type_.fields]
    return Fitted(pa.StructArray.from_arrays(fields, names=names, mask=pa.array(mask)), rows)


def _all_misfit(column: Column, type_: DataType, reason: str) -> Fitted:
    target: Any = arrow_type(type_)
    valid = np.asarray(column.is_valid())
    return Fitted(pa.nulls(len(column), target), {int(row): reason for row in np.flatnonzero(valid)})


def _fit_distinct(column: Any, type_: DataType) -> Fitted:
    """Judge every distinct value once."""
    if not (pa.types.is_primitive(column.type) or pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        try:
            return _one_by_one(column.to_pylist(), type_)
        except (ValueError, OverflowError, NotImplementedError):  # Python has no such values: times, inside maps
            return _all_misfit(column, type_, f"a column of {column.type} does not fit {type_}")
    encoded = column.dictionary_encode()
    distinct, misfits = _one_by_one(encoded.dictionary.to_pylist(), type_)
    rows: dict[int, str] = {}
    if misfits:
        indices = np.asarray(encoded.indices.fill_null(-1))
        for row in np.flatnonzero(np.isin(indices, list(misfits))):
            rows[int(row)] = misfits[int(indices[row])]
    return Fitted(distinct.take(encoded.indices), rows)


def _one_by_one(values: list[Any], type_: DataType) -> Fitted:
    fitted: list[Any] = []
    misfits: dict[int, str] = {}
    for position, value in enumerate(values):
        try:
            fitted.append(fit(value, type_))
        except Misfit as misfit:
            fitted.append(None)
            misfits[position] = str(misfit)
    return Fitted(pa.array(fitted, arrow_type(type_)), misfits)
