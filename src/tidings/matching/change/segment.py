"""A part of a matcher's subscriptions that was indexed at one time, and which of them are still alive."""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import FilterError
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.tree import Expression
from tidings.kernels.decorator import kernel
from tidings.kernels.hashing import hash_bytes, string_buffers
from tidings.matching.batch_columns import Columns
from tidings.matching.change.removed import NEVER, NO_MARKS, NOBODY_DIED, mark, marks_for
from tidings.matching.engines.cells import Visit
from tidings.matching.engines.guests import Guests
from tidings.matching.index import Found, Index, build_index
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.subscription import SubscriptionTable


class IdLookup:
    """The rows of a column of ids, all texts or all integers and no two alike: about 8 bytes an id."""

    def __init__(self, ids: ArrowArray) -> None:
        self._type = ids.type
        self._keys = _keys(ids)
        places = 1 << max(3, int(np.ceil(np.log2(max(1, 2 * len(ids))))))
        self._table = np.full(places, -1, np.int32)
        _fill(*self._keys, self._table)

    @property
    def bytes(self) -> int:
        return self._table.nbytes

    def rows(self, ids: ArrowArray) -> npt.NDArray[np.int32]:
        """The row of each of these ids, -1 for one that is not there."""
        found = np.full(len(ids), -1, np.int32)
        if ids.type == self._type:
            _find(*_keys(ids), *self._keys, self._table, found)
        return found


def _keys(ids: ArrowArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Ids as bytes: where each begins, and the bytes; integers are eight bytes each."""
    if pa.types.is_integer(ids.type):
        values = np.ascontiguousarray(ids.to_numpy(), np.int64)
        return np.empty(0, np.int32), values.view(np.uint8)
    return string_buffers(ids)


@kernel(inline="always")
def _span(offsets: Any, row: Any) -> Any:
    if len(offsets) == 0:
        return np.int64(8 * row), np.int64(8 * row + 8)
    return np.int64(offsets[row]), np.int64(offsets[row + 1])


@kernel
def _fill(offsets: Any, data: Any, table: Any) -> None:
    mask = np.uint64(len(table) - 1)
    count = len(data) // 8 if len(offsets) == 0 else len(offsets) - 1
    for row in range(count):
        start, end = _span(offsets, row)
        place = hash_bytes(data, start, end) & mask
        while table[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table[place] = row


@kernel
def _find(offsets: Any, data: Any, key_offsets: Any, key_data: Any, table: Any, found: Any) -> None:
    mask = np.uint64(len(table) - 1)
    for row in range(len(found)):
        start, end = _span(offsets, row)
        place = hash_bytes(data, start, end) & mask
        while table[place] >= 0:
            key_start, key_end = _span(key_offsets, table[place])
            same = key_end - key_start == end - start
            for i in range(end - start):
                if not same:
                    break
                same = data[start + i] == key_data[key_start + i]
            if same:
                found[row] = table[place]
                break
            place = (place + np.uint64(1)) & mask


COLUMNS = ("ids", "filters", "subscribers", "domains", "valid_from", "valid_to")


@dataclass(frozen=True)
class Segment:
    """Subscriptions and their index, which never change."""

    table: SubscriptionTable
    index: Index
    recheck: Callable[[int], Expression]
    filters: FilterTable | None = None  # what the index was built from, where it is kept to be merged with others

    @cached_property
    def lookup(self) -> IdLookup:
        return IdLookup(self.table.ids)


@dataclass(frozen=True, eq=False)
class Living:
    """A segment less what was removed from it. Only the newest of those of one segment may be changed."""

    segment: Segment
    # Of each slot, with which change it died: those that came later see it.
    died: npt.NDArray[np.int32] = field(default_factory=lambda: NOBODY_DIED)
    marks: npt.NDArray[np.uint8] = field(default_factory=lambda: NO_MARKS)
    deaths: int = 0  # changes that removed some of these
    dead: int = 0

    def __len__(self) -> int:
        return len(self.segment.table)

    @property
    def alive(self) -> int:
        return len(self) - self.dead

    @property
    def bytes(self) -> int:
        """But for ids and texts."""
        kept = 0 if self.segment.filters is None else _bytes(self.segment.filters)
        return self.segment.index.bytes + self.died.nbytes + self.marks.nbytes + kept

    @property
    def tables(self) -> tuple[SubscriptionTable, ...]:
        return (self.segment.table,)

    def match(self, columns: Columns, visit: Visit | None = None) -> Found:
        return self.segment.index.match(columns, self.segment.recheck, visit)

    def hosts(self, guests: Guests) -> bool:
        return guests.host.given is self.segment.index.cells

    def without(self, slots: npt.NDArray[np.int64]) -> Living:
        died, marks = self.died, self.marks
        if not len(died):
            died, marks = np.full(len(self), NEVER, np.int32), marks_for(len(self))
        died[slots] = self.deaths + 1
        mark(marks, slots)
        return replace(self, died=died, marks=marks, deaths=self.deaths + 1, dead=self.dead + len(slots))

    def find(self, ids: ArrowArray) -> npt.NDArray[np.int64]:
        """The slots of those of these ids that are alive, -1 for the others."""
        found = self.segment.lookup.rows(ids).astype(np.int64)
        if len(self.died):
            found[(found >= 0) & (self.died[found] != NEVER)] = -1
        return found

    def text(self, slot: int) -> str:
        return str(self.segment.table.filters[slot].as_py())

    def living(self) -> npt.NDArray[np.int64]:
        """The slots that are alive."""
        return np.flatnonzero(self.died > self.deaths) if len(self.died) else np.arange(len(self))

    def at_rest(self) -> Living:
        """The same, sharing nothing with those that are changed later."""
        died = np.where(self.died > self.deaths, NEVER, self.died).astype(np.int32)
        return replace(self, died=died, marks=self.marks.copy())


def compile_table(table: SubscriptionTable, domain: Domain) -> FilterTable:
    """The normal forms of a table's filters; the first that cannot be read is named by its subscription."""
    filters = compile_filters(table.filters, domain, on_error="reject")
    if filters.rejects:
        row, error = filters.rejects[0]
        raise unreadable(table, row, error, len(filters.rejects)) from error
    return filters


def unreadable(table: SubscriptionTable, row: int, error: FilterError, count: int) -> FilterError:
    """What is wrong with the first of `count` filters of a table that cannot be read."""
    more = f" ({count:,} filters in all cannot be read)" if count > 1 else ""
    reason = f"subscription '{table.ids[row].as_py()}': {error.reason}"
    return FilterError(reason, column=error.column, hint=error.hint + more)


def segment_of(table: SubscriptionTable, filters: FilterTable, sample: Columns | None, *, keep: bool) -> Segment:
    """Index a table; `keep` what the index is built from, for a segment that is soon to be merged."""
    texts, domain = table.filters, filters.domain

    @lru_cache(maxsize=1024)
    def recheck(slot: int) -> Expression:
        return parse_filter(texts[slot].as_py(), domain)

    return Segment(table, build_index(filters, sample), recheck, filters if keep else None)


def taken(table: SubscriptionTable, rows: npt.NDArray[np.int64]) -> SubscriptionTable:
    """Some rows of a table."""
    if len(rows) == len(table):
        return table
    chosen = pa.array(rows)
    columns: dict[str, Any] = {
        name: None if (column := getattr(table, name)) is None else column.take(chosen) for name in COLUMNS
    }
    return SubscriptionTable(**columns)


def joined(tables: list[SubscriptionTable]) -> SubscriptionTable:
    """Tables one after the other; an empty one has no say in the type of ids."""
    tables = [table for table in tables if len(table)] or tables[:1]
    columns: dict[str, Any] = {}
    for name in COLUMNS:
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


def _bytes(filters: FilterTable) -> int:
    intervals = filters.intervals.values()
    codes = sum(one.boxes.nbytes + one.lows.nbytes + one.highs.nbytes + one.null_boxes.nbytes for one in intervals)
    return codes + filters.box_filter.nbytes + filters.residual_of.nbytes
