"""Subscriptions that were indexed at one time: a segment of the base, and what was removed from it since."""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import FilterError
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.kernels.decorator import kernel
from tidings.kernels.hashing import hash_bytes, string_buffers
from tidings.matching.batch_columns import Columns
from tidings.matching.change.removed import Removed, Slots
from tidings.matching.engines.cells import Visit
from tidings.matching.engines.guests import Guests
from tidings.matching.index import FilterIndex, Found, build_index
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.subscription import SubscriptionTable


@dataclass(frozen=True)
class IndexSegment:
    """Subscriptions and their index, which never change."""

    table: SubscriptionTable
    index: FilterIndex
    filters: FilterTable | None = None  # the normal forms, if they are kept for merging

    @cached_property
    def lookup(self) -> IdLookup:
        return IdLookup(self.table.ids)


@dataclass(frozen=True, eq=False)
class LiveSegment:
    """A segment less what was removed from it."""

    segment: IndexSegment
    removed: Removed = field(default_factory=Removed)

    def __len__(self) -> int:
        return len(self.segment.table)

    @property
    def alive(self) -> int:
        return len(self) - self.removed.count

    @property
    def bytes(self) -> int:
        """Of everything but ids and texts."""
        kept = 0 if self.segment.filters is None else self.segment.filters.bytes
        return self.segment.index.bytes + self.removed.bytes + kept

    @property
    def tables(self) -> tuple[SubscriptionTable, ...]:
        return (self.segment.table,)

    def match(self, columns: Columns, visit: Visit | None = None) -> Found:
        return self.segment.index.match(columns, self.segment.table.filters, visit)

    def hosts(self, guests: Guests) -> bool:
        return guests.host.given is self.segment.index.cells

    def without(self, slots: Slots) -> LiveSegment:
        return replace(self, removed=self.removed.with_more(slots, len(self)))

    def find(self, ids: ArrowArray) -> Slots:
        """The slots of these ids, -1 for an id that is not there or was removed."""
        return self.removed.without_removed(self.segment.lookup.rows(ids).astype(np.int64))

    def text(self, slot: int) -> str:
        return str(self.segment.table.filters[slot].as_py())

    def living(self) -> Slots:
        """The slots that are not removed."""
        return self.removed.left(len(self))

    def at_rest(self) -> LiveSegment:
        """The same, sharing nothing with those that are changed later."""
        return replace(self, removed=self.removed.at_rest())


def compile_table(table: SubscriptionTable, domain: Domain) -> FilterTable:
    """The normal forms of a table's filters; raises FilterError, which names the first subscription at fault."""
    filters = compile_filters(table.filters, domain, on_error="reject")
    if filters.rejects:
        row, error = filters.rejects[0]
        raise unreadable(table, row, error, len(filters.rejects)) from error
    return filters


def unreadable(table: SubscriptionTable, row: int, error: FilterError, count: int) -> FilterError:
    """The error for the first of `count` filters of a table that cannot be read."""
    more = f" ({count:,} filters in all cannot be read)" if count > 1 else ""
    reason = f"subscription '{table.ids[row].as_py()}': {error.reason}"
    return FilterError(reason, column=error.column, hint=error.hint + more)


def segment_of(table: SubscriptionTable, filters: FilterTable, sample: Columns | None, *, keep: bool) -> IndexSegment:
    """Index a table; `keep` the normal forms for a segment that is soon to be merged."""
    return IndexSegment(table, build_index(filters, sample), filters if keep else None)


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
