"""Events: read into columns that fit their domain, or refused by row and attribute.

An event is a record (a dict, or a row of a table or data frame) or a CloudEvent, whose `data` is the
record. Attributes that the domain does not know are carried along in `EventBatch.source`; those that
an event lacks are NULL; a value that does not fit its type is refused, never converted
(`tidings.model.event_values` has the rules). Keys are matched exactly; a nested attribute is a nested
object, so that the key "a.b" is the attribute `a.b` in back-quotes.

Missing values of pandas (NaN, NaT, NA, None) are NULL; a NaN in Arrow, Polars or a dict is NaN.

A column that has the type's own Arrow type is passed through without a copy. A cast of Arrow is used where it follows
our rule; elsewhere distinct values are judged one by one, so that every value that does not fit is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import EventError
from tidings.model.arrow import Column, arrow_table, arrow_type, is_list_like, is_pandas, one_array, pandas_columns
from tidings.model.domain import Domain, path_text
from tidings.model.event_values import (
    FIRST_DAY,
    FIRST_MICROSECOND,
    HAS_OFFSET,
    LAST_DAY,
    LAST_MICROSECOND,
    NEEDS_OFFSET,
    OUT_OF_YEARS,
    FieldValue,
    Misfit,
    fit,
    kind_of,
    python_value,
    shown,
)
from tidings.model.types import DataType, Path

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


_Tree: TypeAlias = "dict[str, _Tree | DataType]"  # the leaves of a domain by the parts of their paths
_Given: TypeAlias = "Column | list[Any]"


@dataclass(frozen=True)
class Reject:
    """A value that kept its event out of the batch; the attribute is None where the whole event is meant."""

    row: int
    attribute: str | None
    reason: str


@dataclass(frozen=True, eq=False)
class EventBatch:
    """Events that fit their domain, as columns."""

    domain: Domain
    count: int
    columns: dict[Path, Column]  # of every leaf of the domain, of exactly its arrow_type
    rows: npt.NDArray[np.int64]  # the row in `source` of each event
    rejects: list[Reject]  # in order of rows, then of attributes
    source: Any  # the events as given

    def part(self, start: int, end: int) -> EventBatch:
        """Some of the events, without a copy."""
        columns = {path: column.slice(start, end - start) for path, column in self.columns.items()}
        return EventBatch(self.domain, end - start, columns, self.rows[start:end], [], self.source)

    def record(self, i: int) -> dict[Path, FieldValue]:
        """The values of the i-th event in the one Python form of each type."""
        if not 0 <= i < self.count:
            raise IndexError(f"event {i} of a batch of {self.count}")
        return {path: python_value(self.columns[path][i], type_) for path, type_ in self.domain.leaves.items()}


def read_events(events: Any, domain: Domain, *, on_error: Literal["raise", "reject"] = "raise") -> EventBatch:
    """The events as columns of the domain.

    `events` is a list of dicts, an Arrow table or record batch, or a pandas or Polars frame. An event
    that does not fit raises `EventError`, or with `on_error="reject"` is left out and listed.
    """
    if on_error not in ("raise", "reject"):
        raise ValueError(f"on_error is 'raise' or 'reject', not {on_error!r}")
    reader = _Reader()
    tree = _tree_of(domain)
    if (table := arrow_table(events)) is not None:
        count = table.num_rows
        reader.read_table(
            [(name, one_array(table.column(i))) for i, name in enumerate(table.column_names)], tree, count
        )
    elif is_pandas(events):
        count = len(events)
        reader.read_table(pandas_columns(events), tree, count)
    else:
        events = _listed(events)
        count = len(events)
        reader.read(reader.unwrap(events, domain), tree, ())
    rejects = reader.rejects(domain)
    if rejects and on_error == "raise":
        first = rejects[0]
        raise EventError(first.reason, row=first.row, attribute=first.attribute)
    columns = {path: reader.columns[path] for path in domain.leaves}
    rows = np.arange(count, dtype=np.int64)
    if rejects:
        rows = np.setdiff1d(rows, [reject.row for reject in rejects])
        columns = {path: column.take(rows) for path, column in columns.items()}
    return EventBatch(domain, len(rows), columns, rows, rejects, events)


def read_record(event: Mapping[str, Any], domain: Domain) -> dict[Path, FieldValue]:
    """The values of one event, without columns: what `read_events` does, said plainly."""
    record = record_of(event, domain)
    values: dict[Path, FieldValue] = {}
    for path, type_ in domain.leaves.items():
        value: Any = record
        for depth, part in enumerate(path):
            if value is not None and not isinstance(value, Mapping):
                raise EventError(_no_object(value), attribute=path_text(path[:depth]))
            value = None if value is None else value.get(part)
        try:
            values[path] = fit(value, type_)
        except Misfit as misfit:
            raise EventError(str(misfit), attribute=path_text(path)) from None
    return values


def record_of(event: Any, domain: Domain | None = None) -> Mapping[str, Any]:
    """The record of an event: its `data` where it is a CloudEvent, else itself.

    A CloudEvent is known by its `specversion`, unless the domain has an attribute of that name.
    """
    if not isinstance(event, Mapping):
        raise EventError(f"an event is an object, and this is {kind_of(event)}: {shown(event)}")
    if "specversion" not in event or (domain is not None and not domain.has_cloud_events):
        return event
    if event["specversion"] != "1.0":
        raise EventError(
            f"a CloudEvent has specversion '1.0', not {shown(event['specversion'])}", attribute="specversion"
        )
    for key in ("id", "source", "type"):
        if not isinstance(event.get(key), str) or not event[key]:
            raise EventError(f"a CloudEvent needs '{key}', a text that is not empty", attribute=key)
    if "data_base64" in event:
        raise EventError("a CloudEvent's record is the object in 'data', not bytes", attribute="data_base64")
    data = event.get("data")
    if data is None:
        return {}  # CloudEvents may come without data: every attribute is NULL
    if not isinstance(data, Mapping):
        raise EventError(f"a CloudEvent's data is an object, and this is {kind_of(data)}", attribute="data")
    return data


def _no_object(value: object) -> str:
    return f"{shown(value)} is {kind_of(value)}, and its fields need an object"


def _listed(events: Any) -> list[Any]:
    if isinstance(events, Mapping):
        raise EventError("events come as a list; put the one event in brackets")
    if isinstance(events, str | bytes):
        raise EventError("events come as a list of dicts; read JSON text with parse_events")
    if not isinstance(events, Iterable) or hasattr(events, "collect"):
        first = "toArrow" if hasattr(events, "toArrow") else "collect"
        raise EventError(
            f"events come as a list of dicts, an Arrow table, or a pandas or Polars frame, not {type(events).__name__}"
            + (f"; call its {first}() first" if hasattr(events, first) else "")
        )
    return events if isinstance(events, list) else list(events)


def _tree_of(domain: Domain) -> _Tree:
    tree: _Tree = {}
    for path, type_ in domain.leaves.items():
        node = tree
        for part in path[:-1]:
            inner = node.setdefault(part, {})
            assert isinstance(inner, dict)
            node = inner
        node[path[-1]] = type_
    return tree


class _Reader:
    """Walks the domain's tree down the given columns and keeps what it finds."""

    def __init__(self) -> None:
        self.columns: dict[Path, Column] = {}
        self.misfits: dict[Path, dict[int, tuple[str | None, str]]] = {}  # row → attribute and reason

    def unwrap(self, events: list[Any], domain: Domain) -> list[Any]:
        """The records; None for an event that is none."""
        records: list[Any] = []
        for row, event in enumerate(events):
            try:
                records.append(record_of(event, domain))
            except EventError as error:
                records.append(None)
                self.misfits.setdefault((), {})[row] = (error.attribute, error.reason)
        return records

    def read_table(self, given: list[tuple[str, _Given]], tree: _Tree, count: int) -> None:
        columns = dict(given)
        if len(columns) < len(given):
            names = [name for name, _ in given]
            twice = next(name for name in names if names.count(name) > 1)
            raise EventError("two columns have this name; rename one", attribute=path_text((twice,)))
        for name, node in tree.items():
            self.read(columns.get(name, pa.nulls(count)), node, (name,))

    def read(self, given: _Given, node: _Tree | DataType, path: Path) -> None:
        if isinstance(node, DataType):
            self._keep(fit_values(given, node) if isinstance(given, list) else fit_column(given, node), path)
        elif isinstance(given, list):
            self._read_objects(given, node, path)
        else:
            self._read_struct(given, node, path)

    def _keep(self, fitted: Fitted, path: Path) -> None:
        self.columns[path] = fitted.column
        self._refuse(path, fitted.misfits)

    def _refuse(self, path: Path, reasons: dict[int, str]) -> None:
        if reasons:
            self.misfits[path] = {row: (path_text(path), reason) for row, reason in reasons.items()}

    def _read_objects(self, given: list[Any], tree: _Tree, path: Path) -> None:
        if not all(issubclass(kind, dict) for kind in set(map(type, given))):
            self._refuse(
                path,
                {
                    row: _no_object(value)
                    for row, value in enumerate(given)
                    if value is not None and not isinstance(value, Mapping)
                },
            )
            given = [value if isinstance(value, Mapping) else {} for value in given]
        for name, node in tree.items():
            self.read([value.get(name) for value in given], node, (*path, name))

    def _read_struct(self, given: Any, tree: _Tree, path: Path) -> None:
        fields: dict[str, Column] = {}
        if pa.types.is_struct(given.type):
            # flatten() makes a field NULL where the struct is.
            fields = dict(zip((field.name for field in given.type), given.flatten(), strict=True))
            if len(fields) < given.type.num_fields:
                raise EventError("two fields of this struct have one name; rename one", attribute=path_text(path))
        elif not pa.types.is_null(given.type):
            rows = np.flatnonzero(np.asarray(given.is_valid()))
            self._refuse(path, {int(row): f"a column of {given.type}, and its fields need a struct" for row in rows})
        for name, node in tree.items():
            self.read(fields.get(name, pa.nulls(len(given))), node, (*path, name))

    def rejects(self, domain: Domain) -> list[Reject]:
        order = {path: i for i, path in enumerate(domain.leaves)}
        # A struct's misfit comes where its first leaf would.
        places = {
            path: next(i for leaf, i in order.items() if leaf[: len(path)] == path) if path else -1
            for path in self.misfits
        }
        found = [
            (row, places[path], Reject(row, attribute, reason))
            for path, rows in self.misfits.items()
            for row, (attribute, reason) in rows.items()
        ]
        return [reject for _, _, reject in sorted(found, key=lambda item: item[:2])]
