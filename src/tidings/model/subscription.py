"""Subscriptions: who wants which events, and from which position to which.

One is a `Subscription`; a million are a `SubscriptionTable`, in columns. Ids are texts or 64-bit
integers, one kind in a table, unique and never NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import SubscriptionError, did_you_mean
from tidings.model.arrow import Column, arrow_table, from_arrow, is_pandas, one_array, pandas_columns
from tidings.model.event import fit_column, fit_values
from tidings.model.event_values import Misfit, fit, shown
from tidings.model.types import BIGINT, STRING, DataType


@dataclass(frozen=True, slots=True)
class SubscriptionId:
    """The subscription id of a peer-to-peer ring, which says by itself how many lists must name it.

    P. Triantafillou and I. Aekaterinidis, "Content-based Publish-Subscribe Over Structured P2P Networks", section 3,
    "The Subscription Identifier" and Figure 3. An event matches a subscription of a conjunction that is found in
    exactly c3 of the lists to which the event's values lead.
    """

    owner: int  # c1: the node where the subscription belongs, m bits in a ring of m-bit identifiers
    number: int  # c2: the subscription's number at that node, ⌈log2 of how many a node can have⌉ bits
    constrained: int  # c3: how many attributes it constrains, as many bits as the count of attributes needs


@dataclass(frozen=True, slots=True)
class SubscriptionIdCodec:
    """Packs ids into integers of `bits` bits, c1 uppermost, for one size of ring, node and schema."""

    owner_bits: int
    max_subscriptions: int  # outstanding at one node: numbers are 0 to this less 1
    attributes: int  # of the schema: from 0 to this many can be constrained

    def __post_init__(self) -> None:
        for what in ("owner_bits", "max_subscriptions", "attributes"):
            value = getattr(self, what)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SubscriptionError(f"subscription id: {what} is a whole number from 1, not {value!r}")

    @property
    def number_bits(self) -> int:
        return (self.max_subscriptions - 1).bit_length()  # ⌈log2(max_subscriptions)⌉, exactly

    @property
    def constrained_bits(self) -> int:
        return self.attributes.bit_length()

    @property
    def bits(self) -> int:
        return self.owner_bits + self.number_bits + self.constrained_bits

    def encode(self, id: SubscriptionId) -> int:
        self._check(id)
        return (id.owner << self.number_bits | id.number) << self.constrained_bits | id.constrained

    def decode(self, packed: int) -> SubscriptionId:
        if not isinstance(packed, int) or isinstance(packed, bool) or packed < 0 or packed >> self.bits:
            raise SubscriptionError(f"subscription id: {packed!r} is no number of {self.bits} bits")
        rest, constrained = packed >> self.constrained_bits, packed & ((1 << self.constrained_bits) - 1)
        id = SubscriptionId(rest >> self.number_bits, rest & ((1 << self.number_bits) - 1), constrained)
        self._check(id)
        return id

    def _check(self, id: SubscriptionId) -> None:
        ends = {"owner": 1 << self.owner_bits, "number": self.max_subscriptions, "constrained": self.attributes + 1}
        for part, end in ends.items():
            value = getattr(id, part)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < end:
                raise SubscriptionError(f"subscription id: {part} {value!r} is out of range (0 to {end - 1})")


__all__ = [
    "Subscription",
    "SubscriptionId",
    "SubscriptionIdCodec",
    "SubscriptionTable",
    "check_id",
    "joined_tables",
    "read_subscriptions",
]

_COLUMNS = ("ids", "filters", "subscribers", "domains", "valid_from", "valid_to")
_TEXT_COLUMNS = ("filter", "subscriber", "domain")
_FEW = 1_000  # ids: a set of them is made sooner than Arrow makes a dictionary
_POSITION_COLUMNS = ("valid_from", "valid_to")
_DEFAULTS = {"id": None, "filter": None, "subscriber": None, "domain": None, "valid_from": 0, "valid_to": None}


@dataclass(frozen=True, slots=True)
class Subscription:
    """A filter under an id, valid for events at the positions [valid_from, valid_to)."""

    id: str | int
    filter: str
    subscriber: str | None = None
    domain: str | None = None
    valid_from: int = 0
    valid_to: int | None = None  # None: without end

    def __post_init__(self) -> None:
        check_id(self.id)
        if self.filter is None:
            raise SubscriptionError(f"subscription {self.id!r}: there is no filter; write TRUE to have every event")
        for what in _TEXT_COLUMNS:
            try:
                fit(getattr(self, what), STRING)
            except Misfit as misfit:
                raise SubscriptionError(f"subscription {self.id!r}: {what}: {misfit}") from None
        for position in (self.valid_from, 0 if self.valid_to is None else self.valid_to):
            if not isinstance(position, int) or isinstance(position, bool) or not 0 <= position < 2**63:
                raise SubscriptionError(
                    f"subscription {self.id!r}: {shown(position)} is no position; positions are integers from 0"
                )
        if self.valid_to is not None and self.valid_to < self.valid_from:
            raise SubscriptionError(
                f"subscription {self.id!r}: valid_to {self.valid_to} is before valid_from {self.valid_from}"
            )


def check_id(value: object) -> None:
    """Refuse what is no id: not a text or 64-bit integer, or an empty text."""
    kind = STRING if isinstance(value, str) else BIGINT
    if value == "" or isinstance(value, bool) or not isinstance(value, str | int):
        raise SubscriptionError(f"subscription: {shown(value)} is no id; ids are texts that are not empty, or integers")
    try:
        fit(value, kind)
    except Misfit as misfit:
        raise SubscriptionError(f"subscription: the id {misfit}") from None


@dataclass(frozen=True, eq=False)
class SubscriptionTable:
    """Subscriptions as columns of one length; a column that nobody gave is None."""

    ids: Column  # all string, or all int64
    filters: Column
    subscribers: Column | None = None
    domains: Column | None = None
    valid_from: Column | None = None  # without NULLs; None: all from 0
    valid_to: Column | None = None  # NULL: without end

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> Subscription:
        def at(column: Column | None) -> Any:
            return None if column is None else column[i].as_py()

        return Subscription(
            at(self.ids),
            at(self.filters),
            at(self.subscribers),
            at(self.domains),
            at(self.valid_from) or 0,
            at(self.valid_to),
        )

    def __iter__(self) -> Iterator[Subscription]:
        return (self[i] for i in range(len(self)))

    def take(self, rows: npt.NDArray[np.int64]) -> SubscriptionTable:
        """Some rows of the table."""
        if len(rows) == len(self):
            return self
        chosen = pa.array(rows)
        columns: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else column.take(chosen) for name in _COLUMNS
        }
        return SubscriptionTable(**columns)


def joined_tables(tables: Sequence[SubscriptionTable]) -> SubscriptionTable:
    """Tables one after the other; an empty table does not decide the type of ids."""
    tables = [table for table in tables if len(table)] or list(tables[:1])
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        given = [getattr(table, name) for table in tables]
        present = next((column for column in given if column is not None), None)
        if present is None:
            columns[name] = None
            continue
        filled = []
        for table, column in zip(tables, given, strict=True):
            missing = 0 if name == "valid_from" else None  # a table that lacks it is valid from the start
            filled.append(column if column is not None else pa.array([missing] * len(table), present.type))
        columns[name] = pa.concat_arrays(filled)
    return SubscriptionTable(**columns)


def read_subscriptions(source: Any) -> SubscriptionTable:
    """The subscriptions of a source, checked and in columns.

    `source` is a list of (id, filter) pairs or of `Subscription`s, a dict from id to filter, or an Arrow
    table or data frame with the columns id and filter, and where wanted subscriber, domain, valid_from
    and valid_to; its other columns are ignored.
    """
    if isinstance(source, SubscriptionTable):
        return source
    if (table := arrow_table(source)) is not None:
        given = [(name, one_array(table.column(i))) for i, name in enumerate(table.column_names)]
        return _from_columns(given)
    if is_pandas(source):
        return _from_columns(pandas_columns(source))
    if isinstance(source, Mapping):
        return _from_columns([("id", list(source)), ("filter", list(source.values()))])
    if isinstance(source, str | bytes) or not isinstance(source, Iterable):
        raise SubscriptionError(
            "subscriptions come as (id, filter) pairs, a dict from id to filter, an Arrow table, or a data frame, "
            f"not as {type(source).__name__}"
        )
    return _from_items(list(source))


def _from_items(items: list[Any]) -> SubscriptionTable:
    if items and isinstance(items[0], Subscription):
        for row, item in enumerate(items):
            if not isinstance(item, Subscription):
                raise SubscriptionError(f"subscription: row {row}: {shown(item)} is no Subscription, as row 0 is")
        columns: list[tuple[str, Any]] = []
        for field, default in _DEFAULTS.items():
            values = [getattr(item, field) for item in items]
            if field in ("id", "filter") or any(value != default for value in values):
                columns.append((field, values))
        return _from_columns(columns)
    for row, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise SubscriptionError(f"subscription: row {row}: {shown(item)} is no pair (id, filter)")
    return _from_columns([("id", [item[0] for item in items]), ("filter", [item[1] for item in items])])


def _from_columns(given: list[tuple[str, Any]]) -> SubscriptionTable:
    columns = dict(given)
    for name in ("id", "filter"):
        if name not in columns:
            raise SubscriptionError(f"subscription: there is no column '{name}'; {did_you_mean(name, columns)}")
    if len(columns) < len(given):
        raise SubscriptionError("subscription: two columns have one name; rename one")
    ids = _id_column(columns["id"])
    texts = {name: _text_column(name, columns[name], ids) for name in _TEXT_COLUMNS if name in columns}
    positions = {name: _position_column(name, columns[name], ids) for name in _POSITION_COLUMNS if name in columns}
    valid_from, valid_to = positions.get("valid_from"), positions.get("valid_to")
    if valid_from is not None:
        valid_from = valid_from.fill_null(0)
    if valid_to is not None:
        backwards = pc.less(valid_to, pa.scalar(0, pa.int64()) if valid_from is None else valid_from)
        _refuse_where(backwards, ids, "valid_to is before valid_from")
    return SubscriptionTable(ids, texts["filter"], texts.get("subscriber"), texts.get("domain"), valid_from, valid_to)


def _id_column(given: Any) -> Column:
    if isinstance(given, list):
        given = _ids_of_values(given)
    found = from_arrow(given.type)
    if found != STRING and not found.is_integral and given.type != pa.uint64():
        raise SubscriptionError(
            f"subscription: ids are texts or integers, and the column 'id' is {given.type}; cast it, and see that "
            "none is missing"
        )
    fitted = fit_column(given, STRING if found == STRING else BIGINT)
    for row, reason in sorted(fitted.misfits.items())[:1]:
        raise SubscriptionError(f"subscription: row {row}: the id {reason}")
    ids = fitted.column
    if ids.null_count:
        row = np.flatnonzero(np.asarray(ids.is_null()))[0]
        raise SubscriptionError(f"subscription: row {row} has no id; every subscription needs one")
    if found == STRING:
        for row in np.flatnonzero(np.asarray(pc.equal(ids, pa.scalar(""))))[:1]:
            raise SubscriptionError(f"subscription: row {row} has an empty id; every subscription needs one")
    _refuse_duplicates(ids)
    return ids


def _ids_of_values(values: list[Any]) -> Column:
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    kinds = set(map(type, values))
    try:
        if kinds <= {str} or kinds == {int}:
            return pa.array(values, pa.int64() if kinds == {int} else pa.string())
    except (OverflowError, UnicodeEncodeError):
        pass  # one of them is no id: find out which
    for row, value in enumerate(values):
        try:
            check_id(value)
        except SubscriptionError as error:
            raise SubscriptionError(f"subscription: row {row}: {str(error).removeprefix('subscription: ')}") from None
        if isinstance(value, str) != isinstance(values[0], str):
            raise SubscriptionError(
                f"subscription: the id in row 0 is {shown(values[0])}, and in row {row} {shown(value)}; "
                "ids are all texts, or all integers"
            )
    return pa.array(values, pa.string() if isinstance(values[0], str) else pa.int64())


def _refuse_duplicates(ids: Any) -> None:
    if len(ids) < _FEW and len(set(ids.to_pylist())) == len(ids):
        return
    encoded = ids.dictionary_encode()
    if len(encoded.dictionary) == len(ids):
        return
    codes = np.asarray(encoded.indices)
    twice = int(np.flatnonzero(np.bincount(codes) > 1)[0])
    first, second = np.flatnonzero(codes == twice)[:2]
    raise SubscriptionError(
        f"subscription: the id {encoded.dictionary[twice].as_py()!r} is there twice, in rows {first} and {second}; "
        "ids are unique"
    )


def _text_column(name: str, given: Any, ids: Column) -> Column:
    column = _fitted(name, given, STRING, ids)
    if name == "filter" and column.null_count:
        _refuse_where(column.is_null(), ids, "there is no filter; write TRUE to have every event")
    return column


def _position_column(name: str, given: Any, ids: Column) -> Column:
    column = _fitted(name, given, BIGINT, ids)
    _refuse_where(
        pc.less(column, pa.scalar(0, pa.int64())), ids, f"{name} is no position; positions are integers from 0"
    )
    return column


def _fitted(name: str, given: Any, type_: DataType, ids: Column) -> Column:
    fitted = fit_values(given, type_) if isinstance(given, list) else fit_column(given, type_)
    for row, reason in sorted(fitted.misfits.items())[:1]:
        raise SubscriptionError(f"subscription {ids[row].as_py()!r} (row {row}): {name}: {reason}")
    return fitted.column


def _refuse_where(refused: Any, ids: Column, reason: str) -> None:
    for row in np.flatnonzero(np.asarray(refused.fill_null(False)))[:1]:
        raise SubscriptionError(f"subscription {ids[int(row)].as_py()!r} (row {row}): {reason}")
