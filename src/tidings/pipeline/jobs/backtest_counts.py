"""What is kept of events that are run past a draft filter: counts by kind and time, and a few events of each kind.

A tally takes as much memory after a billion events as after a thousand, and tallies of parts merge
into that of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.pipeline.jobs.time_buckets import Bucket, Timeline, Times

Event = dict[str, Any]

TIME = "_tidings_time"  # the column that says when an event was
NEITHER, ONLY_DRAFT, ONLY_EXISTING, BOTH = KINDS = range(4)  # of events: 1 is the draft, 2 the existing, 3 their sum

_YEARS_1_TO_9999 = (-62_135_596_800_000_000, 253_402_300_800_000_000)  # in microseconds: what a datetime can say


@dataclass(frozen=True)
class Task:
    """What a worker has to know."""

    filters: tuple[str, str | None]
    domain: str  # as JSON
    names: tuple[str, ...]  # of the columns that arrive, whatever they are called on the way, the time apart
    columns: tuple[str, ...]  # of those, what the filters read
    bucket: Bucket | None
    samples: int
    seed: int
    finest: Bucket  # that the times are worth
    scale: int  # of times in integers, to microseconds


@lru_cache(maxsize=8)  # the matchers of the last backtests: a worker's next task has the same
def _matcher(filters: tuple[str, str | None], domain: str) -> Matcher:
    draft, existing = filters
    subscriptions = [(ONLY_DRAFT, draft)] + ([] if existing is None else [(ONLY_EXISTING, existing)])
    return Matcher(subscriptions, Domain.from_json(domain), threads=1)  # Spark runs a task for each core already


class Tally:
    """What is kept of the events of one task, or of all."""

    def __init__(self, task: Task) -> None:
        self._samples = task.samples
        self.unfit = self.timeless = 0
        self.kinds = np.zeros(len(KINDS), np.int64)
        self.timeline = Timeline(len(KINDS), task.bucket, finest=task.finest)
        # Of each kind those with the least priorities, which are random: a fair sample, and so is that of two merged.
        self.chosen: dict[int, list[tuple[float, int, Event]]] = {kind: [] for kind in KINDS if kind != NEITHER}

    @property
    def events(self) -> int:
        return int(self.kinds.sum())

    def add(self, batch: pa.RecordBatch, task: Task, random: np.random.Generator) -> None:
        timed = TIME in batch.schema.names
        events = (batch.drop_columns([TIME]) if timed else batch).rename_columns(list(task.names))
        asked = events.select(list(task.columns)) if task.columns else _rows(batch.num_rows)
        matches = _matcher(task.filters, task.domain).match(asked, on_error="reject")
        kinds = np.zeros(batch.num_rows, np.int64)
        np.add.at(kinds, matches.events, np.asarray(matches.ids))
        self.kinds += np.bincount(kinds, minlength=len(KINDS))
        self.unfit += len({reject.row for reject in matches.rejects})
        times = np.zeros(batch.num_rows, np.int64)
        if timed:
            times, known = _times(batch.column(TIME), task.scale)
            self.timeless += int((~known).sum())
            self.timeline.add(times[known], kinds[known])
        for kind, kept in self.chosen.items():
            self._sample(kept, np.flatnonzero(kinds == kind), events, times, random)

    def _sample(
        self, kept: list[tuple[float, int, Event]], rows: Times, events: pa.RecordBatch, times: Times, random: Any
    ) -> None:
        priorities = random.random(len(rows))
        if self._samples and len(kept) == self._samples:
            good = priorities < kept[-1][0]
            rows, priorities = rows[good], priorities[good]
        best = np.argsort(priorities)[: self._samples]
        if len(best):
            found = zip(priorities[best], times[rows[best]], _records(events.take(rows[best])), strict=True)
            self._keep(kept, [(float(priority), int(time), event) for priority, time, event in found])

    def _keep(self, kept: list[tuple[float, int, Event]], more: list[tuple[float, int, Event]]) -> None:
        kept[:] = sorted([*kept, *more], key=lambda one: one[0])[: self._samples]

    def merge(self, other: Tally) -> None:
        self.kinds += other.kinds
        self.unfit += other.unfit
        self.timeless += other.timeless
        self.timeline.merge(other.timeline)
        for kind, kept in self.chosen.items():
            self._keep(kept, other.chosen[kind])


def _times(column: Any, scale: int) -> tuple[Times, npt.NDArray[np.bool_]]:
    """Microseconds since 1970, and which events have any that a calendar has."""
    if pa.types.is_date(column.type):
        days = column.cast(pa.int32())
        column, scale = days.cast(pa.int64()), 86_400_000_000
    elif pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("us", column.type.tz)).cast(pa.int64())
    known = np.asarray(column.is_valid())
    numbers = np.asarray(column.fill_null(0))
    low, high = (end // scale for end in _YEARS_1_TO_9999)
    known &= (numbers >= low) & (numbers < high)
    return np.where(known, numbers, 0) * scale, known


def _rows(count: int) -> pa.RecordBatch:
    """Events of which nothing is asked."""
    return pa.RecordBatch.from_pydict({"": pa.nulls(count)})


def _records(events: pa.RecordBatch) -> list[Event]:
    columns = {name: _values(events.column(name)) for name in events.schema.names}
    return [{name: values[row] for name, values in columns.items()} for row in range(events.num_rows)]


def _values(column: Any) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):  # a year that Python's dates do not have
        return list(column.cast(pa.string()).to_pylist())
