"""Events: read into columns that fit their domain, or refused by row and attribute.

An event is a record (a dict, or a row of a table or data frame) or a CloudEvent, whose `data` is the
record. Attributes that the domain does not know are carried along in `EventBatch.source`; those that
an event lacks are NULL; a value that does not fit its type is refused, never converted
(`tidings.model.event_values` has the rules). Keys are matched exactly; a nested attribute is a nested
object, so that the key "a.b" is the attribute `a.b` in back-quotes.

Missing values of pandas (NaN, NaT, NA, None) are NULL; a NaN in Arrow, Polars or a dict is NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import EventError
from tidings.model.arrow import Column, arrow_table, is_pandas, one_array, pandas_columns
from tidings.model.domain import Domain, path_text
from tidings.model.event_columns import Fitted, fit_column, fit_values
from tidings.model.event_values import FieldValue, Misfit, fit, kind_of, python_value, shown
from tidings.model.types import DataType, Path

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
