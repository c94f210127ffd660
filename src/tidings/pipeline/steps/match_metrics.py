"""What matching takes, counted where it runs and summed by Spark, to compare with what the planner expected.

For every shard: lookups of events in it, candidates that were verified, nanoseconds; and for all together, events and
matches. Tasks that Spark runs again count again: a measure is of work done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from tidings.matching.matcher import Matcher
from tidings.pipeline.build.index_directory import Layout
from tidings.systems.interface import CombinesViews, view_from_dict
from tidings.systems.sharding import channel_of_shard

Count = tuple[int, int, int]  # lookups, candidates, nanoseconds
Counts = dict[int, Count]  # by shard

EVENTS = -1  # in place of a shard: the events that were matched, and their matches
DELTA = -2  # in place of a shard: the files of what was put in since the base was compiled


def measured_lines(placement: str, layout: Layout, counts: Counts) -> list[str]:
    """Returns what was counted under a placement, a line for each of its classes."""
    view = None if layout.view is None else view_from_dict(layout.view)
    parts = view.parts if isinstance(view, CombinesViews) else (view,)
    bases = view.bases if isinstance(view, CombinesViews) else np.array([0, 1 << 30])
    events = max(1, counts.get(EVENTS, (0, 0, 0))[0])
    lines = []
    for number, part in enumerate(parts):
        mine = [c for shard, c in counts.items() if bases[number] <= channel_of_shard(shard) < bases[number + 1]]
        if mine:
            looks, candidates, nanoseconds = (sum(column) for column in zip(*mine, strict=True))
            name = placement if part is None else part.placement
            lines.append(
                f"measured: {name}: {events:,} events looked into {looks / events:.1f} shards each, "
                f"{candidates / events:,.1f} candidates and {nanoseconds / events / 1e3:,.1f} µs an event"
            )
    return lines


def counts_since(now: Mapping[int, Count], before: Mapping[int, Count]) -> Counts:
    """Returns what was counted in between; all of it, if the counters began again."""
    none = (0, 0, 0)
    if any(now.get(shard, none) < counts for shard, counts in before.items()):
        before = {}
    found: Counts = {}
    for shard, (lookups, candidates, nanoseconds) in now.items():
        known = before.get(shard, none)
        if lookups > known[0]:
            found[shard] = (lookups - known[0], candidates - known[1], nanoseconds - known[2])
    return found


class _Sums(AccumulatorParam[Counts]):
    def zero(self, value: Counts) -> Counts:
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:
        for shard, counts in value2.items():
            known = value1.get(shard, (0, 0, 0))
            value1[shard] = (known[0] + counts[0], known[1] + counts[1], known[2] + counts[2])
        return value1


@dataclass(frozen=True)
class Measures:
    """Counters of one layout or stream; without a sum, nothing is counted."""

    sum: Accumulator[Counts] | None = None

    @staticmethod
    def on(context: SparkContext) -> Measures:
        counts: Any = context.accumulator({}, _Sums())
        return Measures(counts)

    @property
    def counts(self) -> Counts:
        return {} if self.sum is None else dict(self.sum.value)

    @property
    def events(self) -> int:
        return self.counts.get(EVENTS, (0, 0, 0))[0]

    @property
    def matches(self) -> int:
        return self.counts.get(EVENTS, (0, 0, 0))[1]

    @property
    def candidates(self) -> int:
        return sum(counts[1] for shard, counts in self.counts.items() if shard != EVENTS)

    def saw(self, events: int, matches: int = 0) -> None:
        """Count events, each once, however many shards it consults, and matches."""
        if self.sum is not None:
            self.sum.add({EVENTS: (events, matches, 0)})

    @contextmanager
    def matching(self, shard: int, matcher: Matcher, events: int) -> Iterator[None]:
        """Count what is done within."""
        if self.sum is None:
            yield
            return
        before, began = matcher.stats().candidates, time.perf_counter_ns()
        yield
        took = time.perf_counter_ns() - began
        self.sum.add({shard: (events, matcher.stats().candidates - before, took)})
