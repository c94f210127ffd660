"""How many events a second does the pipeline match on Spark, and how many does SQL?

Events come from Parquet files and go, with their matches, to Spark's `noop` sink. What others would
write in SQL takes the same events, on fewer of them: a broadcast nested-loop join, an equi-join on
bins of one dimension, and one on a grid of two; each gives pairs, which is less than our arrays cost
them. CPU seconds are of the whole process tree: driver, JVM and Python workers.

Expected on two cores: bluedove at 40,000 subscriptions 100 times the best SQL in events per CPU
second, 150,000 events a second with ids and 300,000 with counts; alerts at 1,000,000 40,000 events a
second, all processes within 4 GB.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.processes import Peaks, cpu_seconds_of, tree_mib
from benchmarks.record import write
from tidings import pipeline
from tidings.pipeline.build.placement_choice import WORKER_ADDRESSES
from tidings.pipeline.job_errors import brief
from tidings.testing.workloads import WORKLOADS, Workload

QUESTION = __doc__.strip().splitlines()[0]
PARTS = ("sql", "bars", "sizes", "cores", "beyond", "ten-million")
SIZES = (10_000, 40_000, 200_000, 1_000_000, 3_000_000)
EVENTS_MADE = 200_000  # different ones; more are made of them by reading their file again
DIMENSIONS = "abcd"
MATCHES_MAX = 200_000_000  # of one run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_matching", description=QUESTION)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all but the last without")
    parser.add_argument("--quick", action="store_true", help="a look on few events; nothing is written")
    parsed = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for part in parsed.parts or PARTS[:-1]:
        if part not in PARTS:
            parser.error(f"no part '{part}'; there are {', '.join(PARTS)}")
        for row in _PARTS[part](parsed.quick):
            rows.append({"part": part} | row)
            print("  " + ", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if parsed.quick:
        print("too quick for figures: nothing is written")
    else:
        same = ("part", "workload", "subscriptions", "way", "cores")
        print(f"written to {write('spark_matching', QUESTION, rows, same=same)}")
    return 0


# ---------------------------------------------------------------------- parts


def bars(quick: bool) -> Iterator[dict[str, Any]]:
    """The two workloads that have bars."""
    with Bench(cores=2, quick=quick) as bench:
        for output, events in (("ids", 2_000_000), ("counts", 4_000_000)):
            yield bench.ours("bluedove", 40_000, events, output=output)
        yield bench.ours("alerts", 1_000_000, 1_000_000)


def sql(quick: bool) -> Iterator[dict[str, Any]]:
    """Ours and what one would write in SQL, in turn."""
    with Bench(cores=2, quick=quick) as bench:
        ours = bench.ours("bluedove", 40_000, 1_000_000)
        rows = [bench.sql(way, 40_000, 6_000) for way in _SQL]
        best = max(row["events_per_cpu_second"] for row in rows)
        yield ours | {"times_best_sql": round(ours["events_per_cpu_second"] / best, 1)}
        yield from rows


def sizes(quick: bool) -> Iterator[dict[str, Any]]:
    """Both placements, by subscriptions."""
    with Bench(cores=2, quick=quick) as bench:
        for workload in ("bluedove", "alerts"):
            for size in SIZES[:2] if quick else SIZES:
                for placement in ("replicated", "bluedove"):
                    yield bench.ours(workload, size, 400_000, placement=placement, output="counts")


def cores(quick: bool) -> Iterator[dict[str, Any]]:
    """One core and two."""
    for count in (1, 2):
        with Bench(cores=count, quick=quick) as bench:
            yield bench.ours("bluedove", 40_000, 1_000_000)
            yield bench.ours("alerts", 200_000, 500_000)


def beyond(quick: bool) -> Iterator[dict[str, Any]]:
    """An index that is more than a worker may have in memory: whole it is refused, divided it is served.

    Two executors, each with an address space of its own, bounded by Spark. The shards are built beforehand, by workers
    with room for it, and found again by their table. Ranges are a tenth as wide as elsewhere: of those that are a
    quarter of a dimension, a partition would hold a quarter and more, however many there are.
    """
    size = 100_000 if quick else 3_000_000
    given: dict[str, Any] = {
        "name": "bluedove",
        "subscriptions": size,
        "output": "counts",
        "shape": {"width": 25},
    }
    few, many = {"events": 20_000, **given}, {"events": 400_000, **given}
    with tempfile.TemporaryDirectory(prefix="tidings-bench-") as folder:
        with Bench(cores=2, quick=quick, folder=folder) as bench:
            room = bench.ours(placement="replicated", **few)["index_mib"] / 4
            # The plan is made here, where one executor has both cores, and so the memory of both.
            interests = {"memory": f"{2 * room:.0f}m", "dimensions": ["a"], "segments": 16}
            for placement in ("bluedove", "auto"):
                bench.ours(placement=placement, interests=interests, **few)
        limit = round(WORKER_ADDRESSES / 2**20 + room)
        config = {"spark.executor.pyspark.memory": f"{limit}m"}
        with Bench(cores=2, quick=quick, master="local-cluster[2,1,1024]", config=config, folder=folder) as bench:
            for placement, asked in (("replicated", {}), ("bluedove", interests), ("auto", interests)):
                yield {"worker_mib": limit} | bench.ours(placement=placement, interests=asked, **many)


def ten_million(quick: bool) -> Iterator[dict[str, Any]]:
    """An index of ten million, once."""
    with Bench(cores=2, quick=quick) as bench:
        yield bench.ours("alerts", 100_000 if quick else 10_000_000, 100_000, placement="bluedove")


_PARTS: dict[str, Callable[[bool], Iterator[dict[str, Any]]]] = {
    "sql": sql, "bars": bars, "sizes": sizes, "cores": cores, "beyond": beyond, "ten-million": ten_million,
}  # fmt: skip


class Bench:
    """A session of its own, with workloads in files."""

    def __init__(
        self,
        *,
        cores: int,
        quick: bool,
        master: str | None = None,
        config: dict[str, str] | None = None,
        folder: str | None = None,  # where workloads and indices are, and stay
    ) -> None:
        self._cores, self._quick = cores, quick
        self._master = master or f"local[{cores}]"
        self._config = {"spark.driver.memory": "2g"} | (config or {})
        self._given = folder

    def __enter__(self) -> Bench:
        self._own = tempfile.TemporaryDirectory(prefix="tidings-bench-")
        self._folder = self._given or self._own.name
        self.spark = pipeline.session(self._master, config=self._config)
        return self

    def __exit__(self, *_: object) -> None:
        self.spark.stop()
        self._own.cleanup()

    def ours(
        self,
        name: str,
        subscriptions: int,
        events: int,
        *,
        placement: Any = "replicated",
        output: Any = "ids",
        interests: dict[str, Any] | None = None,
        shape: dict[str, Any] | None = None,  # of the workload
    ) -> dict[str, Any]:
        workload = WORKLOADS[name](subscriptions, EVENTS_MADE, **(shape or {}))
        table = self._table(workload, subscriptions)
        start, cpu = time.perf_counter(), cpu_seconds_of(os.getpid(), ended=True)
        directory = Path(self._folder, f"{name}-{subscriptions}-{placement}")
        index = pipeline.compile(
            table, directory, domain=workload.domain, sample=workload.events, placement=placement, **(interests or {})
        )
        named = {"workload": name, "subscriptions": subscriptions, "way": f"{placement} {output}", "cores": self._cores}
        named |= shape or {}
        counted = pipeline.match(self._events(workload, 20_000), index, placement=placement, output="counts")
        try:
            matches = counted.agg(F.avg("matches")).first()
        except PySparkException as error:
            told = re.sub(r"/\S*/", "", brief(str(error)))  # without the places of files on this machine
            return named | {"failed": told}
        compiled = time.perf_counter() - start, cpu_seconds_of(os.getpid(), ended=True) - cpu
        assert matches is not None
        count = int(min(events // (50 if self._quick else 1), MATCHES_MAX / max(1, matches[0])))

        def run(some: int) -> None:
            frame = self._events(workload, some)
            _consume(pipeline.match(frame, index, placement=placement, output=output))

        run(max(1, count // 3))  # so that the JVM has compiled what it does often
        row = self._timed(lambda: run(count), count)
        return {
            **named,
            **({"chosen": index.placement} if placement == "auto" else {}),
            **row,
            "matches_per_event": round(matches[0], 1),
            "compile_seconds": round(compiled[0], 1),
            "compile_cpu_seconds": round(compiled[1], 1),
            "index_mib": round(_bytes_in(index.directory) / 2**20, 1),
        }

    def sql(self, way: str, subscriptions: int, events: int) -> dict[str, Any]:
        workload = WORKLOADS["bluedove"](subscriptions, EVENTS_MADE)
        boxes = self.spark.createDataFrame(_boxes(workload)).cache()
        boxes.count()
        count = events // (20 if self._quick else 1)
        _consume(_SQL[way](self._events(workload, max(1, count // 3)), boxes))
        row = self._timed(lambda: _consume(_SQL[way](self._events(workload, count), boxes)), count)
        boxes.unpersist()
        return {"workload": "bluedove", "subscriptions": subscriptions, "way": way, "cores": self._cores} | row

    def _timed(self, work: Callable[[], object], events: int) -> dict[str, Any]:
        start, cpu = time.perf_counter(), cpu_seconds_of(os.getpid(), ended=True)
        with Peaks(lambda: (sum(tree_mib(os.getpid()).values()),)) as memory:
            work()
        seconds, cpu_seconds = time.perf_counter() - start, cpu_seconds_of(os.getpid(), ended=True) - cpu
        return {
            "events": events,
            "events_per_second": round(events / seconds),
            "events_per_cpu_second": round(events / cpu_seconds, 1),
            "cpu_share": round(cpu_seconds / seconds / self._cores, 2),  # less than 1: others had the machine
            "peak_mib": round(memory.found[0]),
        }

    def _table(self, workload: Workload, subscriptions: int) -> DataFrame:
        path = Path(self._folder, f"{workload.name}-{subscriptions}-subscriptions.parquet")
        if not path.exists():
            table = pa.table({"id": np.arange(subscriptions), "filter": workload.filters})
            pq.write_table(table, path, row_group_size=max(1, subscriptions // 8))
        return self.spark.read.parquet(str(path))

    def _events(self, workload: Workload, count: int) -> DataFrame:
        path = Path(self._folder, f"{workload.name}-events.parquet")
        if not path.exists():
            pq.write_table(workload.events, path, row_group_size=EVENTS_MADE // 8)
        whole, rest = divmod(count, EVENTS_MADE)
        frame = self.spark.read.parquet(*[str(path)] * whole) if whole else None
        if rest:
            part = Path(self._folder, f"{workload.name}-events-{rest}.parquet")
            if not part.exists():
                pq.write_table(workload.events.slice(0, rest), part, row_group_size=max(1, rest // 8))
            some = self.spark.read.parquet(str(part))
            frame = some if frame is None else frame.union(some)
        assert frame is not None
        return frame


def _consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


# ---------------------------------------------------------------------- SQL


def _boxes(workload: Workload) -> pa.Table:
    pattern = " AND ".join(rf"{d} >= (?P<{d}_low>[\d.]+) AND {d} < (?P<{d}_high>[\d.]+)" for d in DIMENSIONS)
    found: Any = pc.extract_regex(workload.filters, pattern)
    columns = {field.name: found.field(i).cast(pa.float64()) for i, field in enumerate(found.type)}
    return pa.table({"subscription": np.arange(len(workload.filters))} | columns)


def _within(dimensions: str = DIMENSIONS) -> Any:
    condition = F.lit(True)
    for d in dimensions:
        condition &= (F.col(d) >= F.col(f"{d}_low")) & (F.col(d) < F.col(f"{d}_high"))
    return condition


def _nested_loop(events: DataFrame, boxes: DataFrame) -> DataFrame:
    return events.join(F.broadcast(boxes), _within()).select(*DIMENSIONS, "subscription")


def _binned(events: DataFrame, boxes: DataFrame, widths: dict[str, float]) -> DataFrame:
    """Boxes copied to every bin that they overlap, joined with events on their own bin."""
    for d, width in widths.items():
        first, last = F.floor(F.col(f"{d}_low") / width), F.floor(F.col(f"{d}_high") / width)
        boxes = boxes.withColumn(f"{d}_bin", F.explode(F.sequence(first, last)))
        events = events.withColumn(f"{d}_bin", F.floor(F.col(d) / width))
    joined = events.join(F.broadcast(boxes), [f"{d}_bin" for d in widths])
    return joined.where(_within()).select(*DIMENSIONS, "subscription")


_SQL: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "SQL nested loop": _nested_loop,
    "SQL bins": lambda events, boxes: _binned(events, boxes, {"b": 25.0}),
    "SQL grid": lambda events, boxes: _binned(events, boxes, {"b": 50.0, "c": 50.0}),
}


def _bytes_in(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*.tidings"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
