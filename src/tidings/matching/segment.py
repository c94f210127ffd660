"""A part of a matcher's subscriptions that was indexed at one time, and which of them are still alive."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import FilterError
from tidings.matching.columns import Columns, Mask
from tidings.matching.index import Found, Index, build_index
from tidings.model.domain import Domain
from tidings.model.event import EventBatch
from tidings.model.filter.columnar import FilterTable
from tidings.model.filter.compile import compile_filters
from tidings.model.filter.parse import parse_filter
from tidings.model.filter.tree import Expression
from tidings.model.subscription import SubscriptionTable

MIN_EVENTS_A_THREAD = 1024


@dataclass(frozen=True)
class Segment:
    """Immutable: a change makes another segment, so that a match goes on with what it began with."""

    table: SubscriptionTable
    index: Index
    recheck: Callable[[int], Expression]
    dead: Mask | None = None  # removed since; None: none

    def __len__(self) -> int:
        return len(self.table)

    @property
    def alive(self) -> int:
        return len(self) if self.dead is None else len(self) - int(self.dead.sum())

    def without(self, slots: npt.NDArray[np.int64]) -> Segment:
        dead = np.zeros(len(self), bool) if self.dead is None else self.dead.copy()
        dead[slots] = True
        return replace(self, dead=dead)

    def match(self, batch: EventBatch, threads: int, pool: ThreadPoolExecutor | None) -> list[tuple[int, Found]]:
        """What each part of the batch matched, and where in the batch the part begins."""
        parts = max(1, min(threads, batch.count // MIN_EVENTS_A_THREAD))
        starts = [batch.count * i // parts for i in range(parts + 1)]

        def match_part(number: int) -> tuple[int, Found]:
            part = _part(batch, starts[number], starts[number + 1])
            return starts[number], self.index.match(Columns(part), self.recheck)

        if parts == 1 or pool is None:
            return [match_part(number) for number in range(parts)]
        return list(pool.map(match_part, range(parts)))

    def living_table(self) -> SubscriptionTable:
        """The subscriptions that are still alive."""
        if self.dead is None:
            return self.table
        rows = pa.array(np.flatnonzero(~self.dead))
        columns: dict[str, Any] = {
            name: None if (column := getattr(self.table, name)) is None else column.take(rows) for name in COLUMNS
        }
        return SubscriptionTable(**columns)


COLUMNS = ("ids", "filters", "subscribers", "domains", "valid_from", "valid_to")


def compile_table(table: SubscriptionTable, domain: Domain) -> FilterTable:
    """The normal forms of a table's filters; the first that cannot be read is named by its subscription."""
    filters = compile_filters(table.filters, domain, on_error="reject")
    if filters.rejects:
        row, error = filters.rejects[0]
        more = f" ({len(filters.rejects):,} filters in all cannot be read)" if len(filters.rejects) > 1 else ""
        reason = f"subscription '{table.ids[row].as_py()}': {error.reason}"
        raise FilterError(reason, column=error.column, hint=error.hint + more) from error
    return filters


def segment_of(table: SubscriptionTable, filters: FilterTable, sample: Columns | None) -> Segment:
    texts, domain = table.filters, filters.domain

    @lru_cache(maxsize=1024)
    def recheck(slot: int) -> Expression:
        return parse_filter(texts[slot].as_py(), domain)

    return Segment(table, build_index(filters, sample), recheck)


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


def _part(batch: EventBatch, start: int, end: int) -> EventBatch:
    if (start, end) == (0, batch.count):
        return batch
    columns = {path: column.slice(start, end - start) for path, column in batch.columns.items()}
    return EventBatch(batch.domain, end - start, columns, batch.rows[start:end], [], batch.source)
