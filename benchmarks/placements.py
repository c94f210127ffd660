"""What does each placement cost on Spark, and does the planner choose well?

Two executors of one core each. Every placement matches the same events, which go with the ids of their matches to
Spark's `noop` sink, in a session of its own; in SQL fewer of them, as pairs, which is less than our arrays cost. A
placement that is slow gets as many events as ten seconds allow: the row says how many. Before anything is timed, what
each finds on a few hundred events is compared with a matcher in this process.

    keys stored      copies of subscriptions, and keys routed: of an event, both by the View's law
    rows shuffled    an event, by Spark's own metrics; skew: rows of the busiest partition in units of the mean
    met              subscriptions that are in the shards that an event consults, for each match
    verified         candidates that the matchers verified, for each match, and the time that matching took of an event:
                     what would be left if sending events cost nothing; not where lists are counted
    placed           subscriptions a second for which `place` finds the keys, in one process

The part `planner` runs every placement and `auto` in turn in one session, again and again, and takes the least time of
each: that is what its bar is about. The part `free` asks what could be gained at best: it divides the subscriptions in
every way that the planner weighs and matches events in their shards, in this process, as if to send them cost nothing.

Expected on one machine: `replicated` needs no shuffle and is the fastest while an executor's memory holds the index;
`auto` takes it, and costs nothing beside it. Of those that route, the ones that visit one partition come next, then
those that put visits together; `chord` and `opchord`, which send every list that names a subscription, are the slowest
and may lose to SQL.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks.meeting import met
from benchmarks.placements_sql import Formulations
from benchmarks.processes import Peaks, command_of, cpu_seconds_of, tree_mib
from benchmarks.record import write
from tidings import pipeline
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.matching.matcher import Matcher
from tidings.model.event import read_events
from tidings.pipeline.build.compiled_index import EVENTS_SAMPLE, Index
from tidings.pipeline.build.placement_choice import PARTITIONS_MIN, SAMPLE
from tidings.systems import View, place, route, statistics_of, view_from_dict
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.planner.planner import Room, weighed
from tidings.systems.sharding import consulted, shards_of
from tidings.testing.workloads import WORKLOADS, Workload

QUESTION = __doc__.strip().splitlines()[0]
PARTS = ("runs", "planner", "free")
NAMES = {"runs": ("bluedove", "alerts", "mixed"), "planner": tuple(WORKLOADS), "free": ("mixed",)}  # of each part
PLACEMENTS = ("replicated", "bluedove", "digests", "clusters", "chord", "opchord", "auto")
IN_TURN = ("replicated", "bluedove", "clusters", "auto")  # others are out of the question by what they send
TURN_EVENTS = 100_000
MASTER = "local-cluster[2,1,2048]"
CORES = 2
EVENTS_MADE = 100_000  # different ones; more are made of them by reading their file again
CHECKED = 300  # events whose matches are compared before anything is timed
SQL_SECONDS = 8.0
SAMPLED = 5_000  # events by which routing is described
FREE_EVENTS = 10_000


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    subscriptions: int
    events: int
    seconds: float  # that one placement may take
    repeats: int  # in turn


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placements", description=QUESTION)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without")
    parser.add_argument("--workloads", default=None, help=f"of {', '.join(WORKLOADS)}; without, what the part is about")
    parser.add_argument("--placements", default=",".join([*PLACEMENTS, "sql"]), help="of the part `runs`")
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="that one placement may be timed for")
    parser.add_argument("--repeats", type=int, default=4, help="of the part `planner`")
    parser.add_argument("--quick", action="store_true", help="a look at few; nothing is written")
    parsed = parser.parse_args(arguments)
    size = Size(parsed.subscriptions, parsed.events, parsed.seconds, parsed.repeats)
    if parsed.quick:
        size = Size(min(5_000, size.subscriptions), min(20_000, size.events), 3.0, 2)
    rows: list[dict[str, Any]] = []
    try:
        for part in parsed.parts or PARTS:
            if part not in PARTS:
                parser.error(f"no part '{part}'; there are {', '.join(PARTS)}")
            for name in parsed.workloads.split(",") if parsed.workloads else NAMES[part]:
                wanted = parsed.placements.split(",")
                for row in _PARTS[part](name, size, wanted):
                    rows.append({"part": part} | row)
                    print("  " + ", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    finally:  # what was measured before a failure holds
        if parsed.quick:
            print("too quick for figures: nothing is written")
        elif rows:
            same = ("part", "workload", "subscriptions", "way")
            print(f"written to {write('placements', QUESTION, rows, same=same)}")
    return 0


# ---------------------------------------------------------------------- parts


def runs(name: str, size: Size, wanted: list[str]) -> Iterator[dict[str, Any]]:
    """Each placement in a session of its own, and SQL."""
    for way in wanted:
        with Bench(name, size) as bench:
            rows = bench.sql() if way == "sql" else [bench.run(way)]
        yield from rows


def planner(name: str, size: Size, wanted: list[str]) -> Iterator[dict[str, Any]]:
    """In turn, in one session: the least time of each."""
    with Bench(name, size) as bench:
        count = min(size.events, TURN_EVENTS)
        frame = bench.events(count)
        matched: dict[str, DataFrame] = {}
        for placement in [one for one in IN_TURN if one in wanted]:
            matched[placement] = pipeline.match(frame, bench.index(placement), placement=placement)
            consume(matched[placement])  # warmed up
        seconds: dict[str, list[float]] = {placement: [] for placement in matched}
        for _ in range(size.repeats):
            for placement, answer in matched.items():
                start = time.perf_counter()
                consume(answer)
                seconds[placement].append(time.perf_counter() - start)
        least = {placement: min(taken) for placement, taken in seconds.items()}
        singles = [taken for placement, taken in least.items() if placement != "auto"]
        for placement, taken in least.items():
            row = bench.named(placement) | {
                "events": count,
                "events_per_second": round(count / taken),
                "seconds": round(taken, 2),
                "spread": round((max(seconds[placement]) - taken) / taken, 2),
            }
            if placement == "auto":
                row["times_best_single"] = round(taken / min(singles), 3) if singles else None
                row["plan"] = bench.index("auto").explain().splitlines()[1:]
            yield row


def free(name: str, size: Size, wanted: list[str]) -> Iterator[dict[str, Any]]:
    """Matching alone, under every division that the planner weighs, beside what it expects of matching."""
    workload = WORKLOADS[name](size.subscriptions, FREE_EVENTS)
    filters = compile_filters(workload.filters, workload.domain)
    sample = compile_filters(workload.filters.slice(0, SAMPLE), workload.domain)
    known = read_events(workload.events.slice(0, EVENTS_SAMPLE), workload.domain)
    statistics = statistics_of(sample, known, subscriptions=size.subscriptions)
    whole = None
    for division in weighed(statistics, Room(np.inf, partitions=PARTITIONS_MIN), subscription_bytes=100.0):
        view = view_from_dict(division.view)
        taken, found = _matched_in_shards(workload, filters, view)
        whole = found if whole is None else whole
        assert found == whole, f"{division.name} found {found:,} matches, and {whole:,} are right"
        yield {
            "workload": name,
            "subscriptions": size.subscriptions,
            "way": division.name,
            "events": FREE_EVENTS,
            "matching_us_an_event": round(taken / FREE_EVENTS * 1e6, 2),
            "expected_matching_us": round(sum(one.match_ns for one in division.classes) / 1e3, 2),
            "expected_sending_us": round(division.sending_ns / 1e3, 2),
        }


def _matched_in_shards(workload: Workload, filters: FilterTable, view: View) -> tuple[float, int]:
    """Seconds that matching every event in every shard that it consults takes, the least of three, and the matches."""
    placed = place(filters, view)
    shards, rows = distinct_pairs(shards_of(placed.keys, view), placed.subscriptions)
    batch = read_events(workload.events, workload.domain)
    events, looked = consulted(route(batch, view), view)
    seconds, found = 0.0, 0
    for shard in np.unique(shards).tolist():
        members, mine = rows[shards == shard], events[looked == shard]
        if not len(mine):
            continue
        table = pa.table({"id": members, "filter": workload.filters.take(pa.array(members))})
        matcher, given = Matcher(table, workload.domain, threads=1), workload.events.take(pa.array(mine))
        found += len(matcher.match(given))
        seconds += min(_taken(lambda _, m=matcher, g=given: m.match(g), 0) for _ in range(3))
    return seconds, found


_PARTS: dict[str, Callable[[str, Size, list[str]], Iterator[dict[str, Any]]]] = {
    "runs": runs,
    "planner": planner,
    "free": free,
}


# ---------------------------------------------------------------------- one session


class Bench:
    """A session, with one workload in files and an index for each placement."""

    def __init__(self, name: str, size: Size) -> None:
        self._size = size
        self._workload = WORKLOADS[name](size.subscriptions, min(EVENTS_MADE, size.events))
        self._indices: dict[str, Index] = {}

    def __enter__(self) -> Bench:
        self._temporary = tempfile.TemporaryDirectory(prefix="tidings-placements-")
        self._folder = Path(self._temporary.name)
        config = {
            "spark.driver.memory": "2g",
            "spark.executor.memory": "2g",
            "spark.executor.cores": "1",
            "spark.executor.memoryOverhead": "2g",
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
        }
        self.spark = pipeline.session(MASTER, config=config)
        table = pa.table({"id": np.arange(self._size.subscriptions), "filter": self._workload.filters})
        pq.write_table(table, self._folder / "subscriptions.parquet", row_group_size=max(1, len(table) // 8))
        self._table = self.spark.read.parquet(str(self._folder / "subscriptions.parquet"))
        return self

    def __exit__(self, *_: object) -> None:
        self.spark.stop()
        self._temporary.cleanup()

    def named(self, way: str) -> dict[str, Any]:
        return {"workload": self._workload.name, "subscriptions": self._size.subscriptions, "way": way}

    def index(self, placement: str) -> Index:
        if placement not in self._indices:
            self._indices[placement] = pipeline.compile(
                self._table, domain=self._workload.domain, sample=self._workload.events, placement=placement
            )
        return self._indices[placement]

    def events(self, count: int) -> DataFrame:
        made = len(self._workload.events)
        whole, rest = divmod(count, made)
        paths = [str(self._written(made))] * whole + ([str(self._written(rest))] if rest else [])
        return self.spark.read.parquet(*paths)

    def _written(self, count: int) -> Path:
        path = self._folder / f"events-{count}.parquet"
        if not path.exists():
            pq.write_table(self._workload.events.slice(0, count), path, row_group_size=max(1, count // 8))
        return path

    def run(self, placement: str) -> dict[str, Any]:
        """One placement: checked, then timed on as many events as there is time for."""
        start, cpu = time.perf_counter(), cpu_seconds_of(os.getpid(), ended=True)
        index = self.index(placement)
        pipeline.match(self.events(1), index, placement=placement)  # has the layout built
        compiled = time.perf_counter() - start, cpu_seconds_of(os.getpid(), ended=True) - cpu
        answer = self._checked(index, placement)

        def work(count: int) -> None:
            consume(pipeline.match(self.events(count), index, placement=placement))

        count = self._affordable(work)
        stage, before = self._last_stage(), self._counted(index, placement)
        row = self._timed(lambda: work(count), count)
        verified, matching_ns = (now - then for now, then in zip(self._counted(index, placement), before, strict=True))
        return {
            **self.named(placement),
            **row,
            **self._traffic(stage, count),
            **self._law(index, placement, answer),
            "verified_a_match": round(verified / count / max(answer, 1e-9), 2) if verified else None,
            "matching_us_an_event": round(matching_ns / count / 1e3, 1) if matching_ns else None,
            "compile_seconds": round(compiled[0], 1),
            "compile_cpu_seconds": round(compiled[1], 1),
            "index_mib": round(
                sum(path.stat().st_size for path in Path(index.directory).rglob("*.tidings")) / 2**20, 1
            ),
            "files": len(list(Path(index.directory).rglob("*.tidings"))),
        }

    def sql(self) -> list[dict[str, Any]]:
        """What one would write in SQL, each as long as SQL_SECONDS."""
        formulations = Formulations(self.spark, self._workload)
        expected = self._expected()
        rows = []
        for way, join in formulations.ways.items():
            found = join(self.events(CHECKED)).count()
            assert found == len(expected), f"{way}: {found:,} pairs, and {len(expected):,} expected"

            def work(count: int, join: Callable[[DataFrame], DataFrame] = join) -> None:
                consume(join(self.events(count)))

            count = self._affordable(work, SQL_SECONDS)
            rows.append(self.named(way) | self._timed(lambda: work(count), count))  # noqa: B023 - run at once
        formulations.close()
        return rows

    # ------------------------------------------------------------------ measuring

    def _expected(self) -> list[tuple[int, Any]]:
        table = pa.table({"id": np.arange(self._size.subscriptions), "filter": self._workload.filters})
        matches = Matcher(table, self._workload.domain, threads=1).match(self._workload.events.slice(0, CHECKED))
        return list(matches.pairs())

    def _checked(self, index: Index, placement: str) -> float:
        """The matches of an event, once they are known to be the right ones."""
        found = pipeline.match(self.events(CHECKED), index, placement=placement).toArrow().to_pylist()
        named = [(tuple(v for k, v in row.items() if k != "subscriptions"), row["subscriptions"]) for row in found]
        events = [tuple(row.values()) for row in self._workload.events.slice(0, CHECKED).to_pylist()]
        expected: dict[Any, list[int]] = {event: [] for event in events}
        for row, id_ in self._expected():
            expected[events[row]].append(id_)
        assert {event: sorted(ids) for event, ids in named} == {event: sorted(ids) for event, ids in expected.items()}
        return sum(map(len, expected.values())) / len(events)

    def _affordable(self, work: Callable[[int], None], seconds: float | None = None) -> int:
        """As many events as there are, or as fit into the time; found by growing runs, which also warm up."""
        seconds = seconds or self._size.seconds
        count = min(CHECKED, self._size.events)
        if _taken(work, count) > seconds:
            return count
        overhead = _taken(work, count)  # of any query, however few its events
        while True:
            count = min(count * 8, max(1, self._size.events // 4))
            taken = max(_taken(work, count) - overhead, 1e-3)
            if count >= self._size.events // 4 or taken > seconds / 8:
                return max(1, min(self._size.events, int(count / taken * seconds)))

    def _timed(self, work: Callable[[], object], events: int) -> dict[str, Any]:
        start, cpu = time.perf_counter(), cpu_seconds_of(os.getpid(), ended=True)
        with Peaks(self._memory) as memory:
            work()
        seconds, cpu_seconds = time.perf_counter() - start, cpu_seconds_of(os.getpid(), ended=True) - cpu
        return {
            "events": events,
            "events_per_second": round(events / seconds, 1),
            "cpu_us_an_event": round(cpu_seconds / events * 1e6, 1),
            "cpu_share": round(
                cpu_seconds / seconds / CORES, 2
            ),  # less than 1: others had the machine, or a core waited
            "executors_mib": round(memory.found[0]),
            "workers_mib": round(memory.found[1]),
        }

    def _memory(self) -> tuple[float, float]:
        """MiB of both executors, and of that of their Python workers."""
        driver = self.spark.sparkContext._gateway.proc.pid  # the JVM that executors are started by
        found = {process: mib for process, mib in tree_mib(driver).items() if process != driver}
        workers = [mib for process, mib in found.items() if "pyspark" in command_of(process).split("java")[0]]
        return sum(found.values()), sum(workers)

    def _counted(self, index: Index, placement: str) -> tuple[int, int]:
        """Candidates that matchers have verified so far, and the nanoseconds that they took."""
        chosen = index.placement if placement == "auto" else placement
        counts = index.measures(chosen).counts.values()
        return sum(candidates for _, candidates, _ in counts), sum(nanoseconds for _, _, nanoseconds in counts)

    def _last_stage(self) -> int:
        return max((stage["stageId"] for stage in self._told("stages")), default=-1)

    def _traffic(self, before: int, events: int) -> dict[str, Any]:
        """What Spark shuffled since, and how evenly its busiest shuffle was read."""
        stages = [
            stage for stage in self._told("stages") if stage["stageId"] > before and stage["status"] == "COMPLETE"
        ]
        rows = sum(stage["shuffleWriteRecords"] for stage in stages)
        written = sum(stage["shuffleWriteBytes"] for stage in stages)
        skew = None
        read = [stage for stage in stages if stage["shuffleReadRecords"]]
        if read:
            first = min(read, key=lambda stage: stage["stageId"])
            tasks = self._told(f"stages/{first['stageId']}/{first['attemptId']}/taskList?length=1000")
            loads = [
                task["taskMetrics"]["shuffleReadMetrics"]["recordsRead"] for task in tasks if "taskMetrics" in task
            ]
            skew = round(max(loads) / (sum(loads) / len(loads)), 2)
        return {
            "rows_shuffled_an_event": round(rows / events, 2),
            "bytes_shuffled_an_event": round(written / events),
            "skew": skew,
        }

    def _told(self, what: str) -> Any:
        context = self.spark.sparkContext
        with urllib.request.urlopen(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{what}") as answer:
            return json.load(answer)

    def _law(self, index: Index, placement: str, matches: float) -> dict[str, Any]:
        """Keys, and what an event meets, by the View's law."""
        chosen = index.placement if placement == "auto" else placement
        _, layout = index.compiled_for(self.events(1).schema, None, placement)
        view = view_from_dict(layout.view) if layout.view is not None else view_from_dict(_EVERYWHERE)
        filters = compile_filters(self._workload.filters, self._workload.domain)
        events = read_events(self._workload.events.slice(0, SAMPLED), self._workload.domain)
        place(filters, view)
        start = time.perf_counter()
        placed = place(filters, view)
        seconds = time.perf_counter() - start
        found, busiest = met(view, placed, events)
        return {
            "serves": chosen,
            "matches_an_event": round(matches, 1),
            "keys_stored": len(placed),
            "keys_a_subscription": round(len(placed) / filters.count, 2),
            "keys_routed_an_event": round(len(route(events, view)) / events.count, 2),
            "met_a_match": round(found / max(matches, 1e-9), 2),
            "work_skew": busiest,
            "placed_a_second": round(filters.count / seconds),
        }


_EVERYWHERE = {"placement": "replicated", "partitions": CORES, "epoch": 0}


def _taken(work: Callable[[int], None], count: int) -> float:
    start = time.perf_counter()
    work(count)
    return time.perf_counter() - start


def consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
