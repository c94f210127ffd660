"""A part of a matcher's subscriptions that was indexed at one time, and which of them are still alive."""

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
from tidings.matching.batch_columns import Columns
from tidings.matching.change.id_lookup import IdLookup
from tidings.matching.change.literal_scanner import LiteralScanner
from tidings.matching.change.removed import NEVER, NO_MARKS, NOBODY_DIED, mark, marks_for
from tidings.matching.engines.cells import Visit
from tidings.matching.engines.guests import Guests
from tidings.matching.index import Found, Index, build_index
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.subscription import SubscriptionTable

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
    filters = compile_filters(table.filters, domain, on_error="reject", scan=LiteralScanner)
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
