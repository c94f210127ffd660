"""How long does it take to analyse a million subscriptions on Spark, and what is found?

Subscriptions and events come from Parquet files; a made-up subscriber owns each subscription, few owning many. Every
part of the analysis is on: covering among all and within each subscriber, statistics, and the matching of 2,000
events. Before a row is reported, pairs of covered and covering subscriptions are drawn and matched against the events:
none may match the covered one alone.

Expected on two cores: a minute or two, of which reading the filters, and laying them out to find what covers what, take
the most, and the search itself seconds. `bluedove` boxes have equal widths but at the ends of a line, so that few cover
others; of `mixed`, whose logic is looser, a tenth and more are covered.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.record import write
from tidings import pipeline
from tidings.matching.matcher import Matcher
from tidings.pipeline.jobs.table_analysis import Analysis, analyse
from tidings.testing.workloads import WORKLOADS, Workload

QUESTION = __doc__.strip().splitlines()[0]
SIZES = (100_000, 1_000_000)
NAMES = ("alerts", "bluedove", "mixed")
SUBSCRIBERS = 10_000
CHECKED = 2_000  # pairs
SEED = 5


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analysis", description=QUESTION)
    parser.add_argument("--workloads", default=",".join(NAMES))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--quick", action="store_true", help="a look at few; nothing is written")
    parsed = parser.parse_args(arguments)
    sizes = [20_000] if parsed.quick else [int(size) for size in parsed.sizes.split(",")]
    rows: list[dict[str, Any]] = []
    spark = pipeline.session("local[2]", config={"spark.driver.memory": "4g"})
    try:
        _warm_up(spark)
        for name in parsed.workloads.split(","):
            for size in sizes:
                rows.append(_measured(spark, name, size))
                print("  " + ", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    finally:
        spark.stop()
        if rows and not parsed.quick:
            print(f"written to {write('analysis', QUESTION, rows, same=('workload', 'subscriptions'))}")
    return 0


def _warm_up(spark: Any) -> None:
    """Workers and kernels are there before anything is timed."""
    _measured(spark, "mixed", 2_000)


def _measured(spark: Any, name: str, size: int) -> dict[str, Any]:
    workload = WORKLOADS[name](size, 5_000)
    rng = np.random.default_rng(SEED)
    owners = [f"user {number}" for number in (rng.zipf(1.3, size) % SUBSCRIBERS).tolist()]
    with tempfile.TemporaryDirectory(prefix="tidings-analysis-") as folder:
        subscriptions, events = Path(folder) / "subscriptions.parquet", Path(folder) / "events.parquet"
        pq.write_table(
            pa.table({"id": np.arange(size), "filter": workload.filters, "subscriber": owners}), subscriptions
        )
        pq.write_table(workload.events, events)
        start = time.perf_counter()
        found = analyse(spark.read.parquet(str(subscriptions)), events=spark.read.parquet(str(events)))
        seconds = time.perf_counter() - start
        _check(found, workload)
    counts = found.counts
    return {
        "workload": name,
        "subscriptions": size,
        "seconds": round(seconds, 1),
        **{f"{step}_seconds": round(taken, 1) for step, taken in found.seconds.items()},
        **{key: counts[key] for key in ("never", "always", "equivalent", "covered", "redundant", "undecided")},
        "dimensions": [".".join(one.path) for one in found.dimensions if one.suggested],
        "indices": len(found.indices.chosen),
        "seed": SEED,
    }


def _check(found: Analysis, workload: Workload) -> None:
    """No event matches a covered subscription and not its coverer."""
    covered = found.covering.covered
    if not len(covered):
        return
    chosen = np.random.default_rng(1).choice(covered, min(CHECKED, len(covered)), replace=False)
    ids = np.asarray(found.table.ids)
    pairs = [(int(ids[a]), int(ids[found.covering.coverer[a]])) for a in chosen.tolist()]
    wanted = sorted({id_ for pair in pairs for id_ in pair})
    matcher = Matcher([(id_, workload.filters[id_].as_py()) for id_ in wanted], workload.domain, threads=1)
    matches: dict[int, set[int]] = {}
    for event, id_ in matcher.match(workload.events).pairs():
        matches.setdefault(id_, set()).add(event)
    assert all(matches.get(a, set()) <= matches.get(b, set()) for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
