"""How many events a second does one core match, and how many do others?

From Arrow columns as a user has them to the matches in memory: encoding counts. Every engine is
checked against numpy brute force, on a sample of the events, before it is timed. Ours and a peer
take turns; what counts is the CPU time of the process, all its threads.

Expected, in events per core-second: bluedove at 40,000 subscriptions 30 times numpy and 250 times
DuckDB; alerts at 1,000,000 80,000, at 200,000 1,000 times DuckDB; strings at 1,000,000 200,000;
mixed at 200,000 100 times DuckDB; 1.6 times as much by the clock with two threads; 80 bytes a
subscription for bluedove and alerts; 1,000,000 built from columns in 3 s. The limit is writing the
numbers of the matches, 0.4 ns each, and the comparisons that find them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import tidings
from benchmarks.options import Options
from benchmarks.peers import Competitor, peers
from benchmarks.peers.prepared import prepare
from tidings.filter.compile.compiler import compile_filters
from tidings.matching.batch_columns import Columns
from tidings.matching.index import SAMPLE, build_index
from tidings.model.event import read_events
from tidings.testing import workloads
from tidings.testing.workloads import Workload

EVENTS = 20_000
MATCHES_MAX = 40_000_000  # of one batch: what memory holds with ease
REPEATS = 3
BATCH = 1_000  # events of a batch, where the time of a batch or of threads is measured

SHOWN = (
    "workload", "subscriptions", "engine", "events_per_core_second", "tidings_times_faster", "spread",
    "matches_per_event", "build_seconds",
)  # fmt: skip

PYTHON_RULES_MAX = 200_000  # subscriptions: beyond, one event takes most of a second


class Ours:
    """The matcher, seen as one of the competitors."""

    name = "tidings"
    workloads = tuple(workloads.WORKLOADS)
    events_max = EVENTS

    def __init__(self, workload: Workload) -> None:
        table = pa.table({"id": np.arange(len(workload.filters)), "filter": workload.filters})
        sample = workload.events.slice(0, SAMPLE)
        columns = Columns(read_events(sample, workload.domain))
        build_index(compile_filters(workload.filters[:2000], workload.domain), columns)  # compiles the kernels
        filters, self.compile_seconds = _cpu(lambda: compile_filters(workload.filters, workload.domain))
        _, self.build_seconds = _cpu(lambda: build_index(filters, columns))
        self.matcher = tidings.Matcher(table, workload.domain, threads=1)
        self.matcher.match(sample)

    def match(self, events: Any) -> tuple[Any, Any]:
        matches = self.matcher.match(events)
        return matches.offsets, matches.slots  # which are the matches in memory: no pairs are made of them


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A row for each engine, workload and size; those of one workload and size are measured together."""
    for name in options.workloads:
        for size in options.sizes:
            yield from _Contest(workloads.WORKLOADS[name](subscriptions=size, events=EVENTS), options).rows()


class _Contest:
    """Everything about one workload at one size."""

    def __init__(self, workload: Workload, options: Options) -> None:
        self._workload = workload
        self._size = len(workload.filters)
        self._seconds = 0.05 if options.quick else 0.7  # that one repeat is to take
        self._prepared = prepare(workload)
        self._peers = {
            name: peer
            for name, peer in peers().items()
            if workload.name in peer.workloads
            and (options.peers is None or name in options.peers)
            and not (name == "python rules" and self._size > PYTHON_RULES_MAX)
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        truth = self._truth()
        ours = Ours(self._workload)
        matches = ours.matcher.match(self._events(len(truth)))
        self._check(ours.name, _by_event(matches.events, matches.slots, len(truth)), truth)
        count, matches_per_event = self._events_for(ours.match, ours.events_max)
        costs: list[float] = []
        rows = []
        for name, peer in self._peers.items():
            row, turns = self._against(name, peer(), truth, ours, count)
            costs += turns
            rows.append(row)
            gc.collect()
        if not costs:
            costs = [self._cost(ours.match, count) for _ in range(REPEATS)]
        yield self._row("tidings", count, costs) | {
            "matches_per_event": round(matches_per_event, 2),
            "build_seconds": round(ours.build_seconds, 3),
            "compile_seconds": round(ours.compile_seconds, 3),
            **_stats(ours.matcher, self._size),
            **self._latencies(ours.matcher),
            **self._threads(ours.matcher, count),
        }
        yield from rows

    def _truth(self) -> list[Any]:
        """The matches of a sample of events, one array of subscriptions for each, found by brute force."""
        judge = peers()["numpy"]()
        judge.build(self._prepared)
        count = int(np.clip(20_000_000 // self._size, 4, 200))
        return _by_event(*judge.match(self._events(count)), count)

    def _against(
        self, name: str, peer: Competitor, truth: list[Any], ours: Ours, ours_count: int
    ) -> tuple[dict[str, Any], list[float]]:
        """A peer's row, and what ours cost in the turns between."""
        _, build_seconds = _cpu(lambda: peer.build(self._prepared))
        sample = truth[: 4 if name == "python rules" else None]
        self._check(name, _by_event(*peer.match(self._events(len(sample))), len(sample)), sample)
        count, matches = self._events_for(peer.match, peer.events_max)
        ours_costs, peer_costs = [], []
        for _ in range(REPEATS):
            ours_costs.append(self._cost(ours.match, ours_count))
            peer_costs.append(self._cost(peer.match, count))
        row = self._row(name, count, peer_costs) | {
            "matches_per_event": round(matches, 2),
            "tidings_times_faster": round(statistics.median(peer_costs) / statistics.median(ours_costs), 1),
            "build_seconds": round(build_seconds, 3),
        }
        return row, ours_costs

    def _check(self, name: str, found: list[Any], truth: list[Any]) -> None:
        for event, (subscriptions, expected) in enumerate(zip(found, truth, strict=True)):
            if not np.array_equal(subscriptions, expected):
                odd = np.setxor1d(subscriptions, expected)[0]
                raise AssertionError(
                    f"{name}, {self._workload.name} at {self._size:,}: event {event} and subscription {odd} are "
                    f"{'' if odd in expected else 'not '}a match: {self._workload.filters[odd].as_py()}"
                )

    def _events(self, count: int) -> Any:
        return self._workload.events.slice(0, count)

    def _events_for(self, match: Callable[[Any], tuple[Any, Any]], most: int) -> tuple[int, float]:
        """How many events to match in one repeat, and the matches of each of them.

        As many as take the time of a repeat, and more where that makes them cheaper: an engine
        with a high cost a batch, such as that of planning, gets the batch that it needs.
        """
        count, cost = 4, np.inf
        while True:
            (_, subscriptions), seconds = _cpu(partial(match, self._events(count)))
            matches = len(subscriptions) / count
            room = min(most, int(MATCHES_MAX / max(matches, 1)))
            cheaper = seconds / count < 0.6 * cost
            long_enough = seconds > self._seconds / 2 and not cheaper
            if count >= room or long_enough or seconds > 10 * self._seconds:
                return min(count, room), matches
            cost = seconds / count
            count = min(room, count * 5)

    def _cost(self, match: Callable[[Any], object], count: int) -> float:
        """CPU seconds an event."""
        return _cpu(lambda: match(self._events(count)))[1] / count

    def _row(self, engine: str, count: int, costs: list[float]) -> dict[str, Any]:
        cost = statistics.median(costs)
        return {
            "workload": self._workload.name,
            "subscriptions": self._size,
            "engine": engine,
            "events_per_core_second": round(1 / cost, 1),
            "cpu_us_per_event": round(cost * 1e6, 3),
            "spread": round((max(costs) - min(costs)) / cost, 2),
            "events": count,
            "seeds": f"{workloads.SUBSCRIPTION_SEED}, {workloads.EVENT_SEED}",
        }

    def _latencies(self, matcher: tidings.Matcher) -> dict[str, float]:
        """By the clock, in milliseconds."""
        result = {}
        for size in (1, BATCH):
            times: list[float] = []
            until = time.perf_counter() + self._seconds * 2
            while len(times) < 5 or (time.perf_counter() < until and len(times) < 1_000):
                batch = self._workload.events.slice(len(times) * size % (EVENTS - size), size)
                start = time.perf_counter()
                matcher.match(batch)
                times.append((time.perf_counter() - start) * 1e3)
            for percent in (50, 99):
                result[f"batch_of_{size}_p{percent}_ms"] = round(float(np.percentile(times, percent)), 3)
        return result

    def _threads(self, matcher: tidings.Matcher, count: int) -> dict[str, float]:
        """How many times as fast two threads are by the clock, each with batches of its own."""
        size = max(1, min(BATCH, count // 4))
        batches = [self._workload.events.slice(first, size) for first in range(0, count - size + 1, size)]
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(REPEATS):
            for threads, times in seconds.items():
                with ThreadPoolExecutor(threads) as pool:
                    start = time.perf_counter()
                    for _ in pool.map(lambda batch: len(matcher.match(batch).slots), batches):
                        pass
                    times.append(time.perf_counter() - start)
        return {"two_threads": round(statistics.median(seconds[1]) / statistics.median(seconds[2]), 2)}


def _stats(matcher: tidings.Matcher, size: int) -> dict[str, Any]:
    """What the matcher says of itself."""
    if not hasattr(matcher, "stats"):
        return {}
    stats = matcher.stats()
    said = stats if isinstance(stats, dict) else vars(stats)
    result: dict[str, Any] = {}
    if said.get("bytes"):
        result["bytes_per_subscription"] = round(said["bytes"] / size, 1)
    if said.get("candidates") and said.get("matched"):
        result["candidates_per_match"] = round(said["candidates"] / said["matched"], 2)
    return result


def _by_event(events: Any, subscriptions: Any, count: int) -> list[Any]:
    return [np.sort(subscriptions[events == event]) for event in range(count)]


def _cpu(work: Callable[[], Any]) -> tuple[Any, float]:
    """What some work answers, and its CPU seconds, those of all threads."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start
