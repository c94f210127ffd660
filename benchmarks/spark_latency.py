"""How long from an event's append to the log until the store of notifications has its matches?

Alerts with 100,000 subscriptions, 1,000 events a second for a while, on `local[2]`: the log, Spark's
Python data source, matching, and the Python writer into SQLite. Events are appended by a process of
their own, twenty times a second; another changes 1,000 subscriptions at a time, every ten seconds; a third
looks into the store every few milliseconds, as a reader of it would. An event's clock starts when its
append is called, so that the log's fsync is in it, and stops when a reader sees that the query has come
past it. The first seconds are not counted: Spark, its workers and the kernels warm up.

Expected: p50 at most 0.5 s, p99 at most 1 s, memory that does not grow, changes seen within 2 s.

    python -m benchmarks.spark_latency --seconds 600
    python -m benchmarks.spark_latency --variants        what lowers it, and what does not
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.options import Options
from benchmarks.processes import tree_mib
from benchmarks.record import write
from tidings import pipeline
from tidings.model.event import read_events
from tidings.pipeline.runtime.spark_session import STREAMING
from tidings.pipeline.sinks.stream_sinks import StoreSink
from tidings.pipeline.sources.stream_sources import LogEvents
from tidings.pipeline.streams.index_changes import IndexChanges
from tidings.pipeline.streams.stream_query import stream
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.notifications import LOG, Notifications
from tidings.testing import workloads

EVENTS_PER_SECOND = 1_000
APPENDS_PER_SECOND = 20
CHANGED = 1_000
CHANGE_SECONDS = 10.0
LOOK_SECONDS = 0.004
MEMORY_SECONDS = 5.0
_HADOOP_FILES = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "true",
}


@dataclass(frozen=True)
class Setting:
    seconds: float = 60.0
    warm_up: float = 20.0
    subscriptions: int = 100_000
    trigger: float = 0.0
    config: dict[str, str] = field(default_factory=dict)  # of the session
    options: dict[str, str] = field(default_factory=dict)  # of the query


# Each is one thing that may lower the latency, tried alone against the first.
VARIANTS: dict[str, Setting] = {
    "trigger 0": Setting(),
    "trigger 0.2 s": Setting(trigger=0.2),
    "trigger 0.5 s": Setting(trigger=0.5),
    "logs of offsets and commits as by default": Setting(config=_HADOOP_FILES),
    "async progress tracking": Setting(
        options={"asyncProgressTrackingEnabled": "true", "_asyncProgressTrackingOverrideSinkSupportCheck": "true"}
    ),
    "whole-stage code, adaptive": Setting(
        config={"spark.sql.codegen.wholeStage": "true", "spark.sql.adaptive.enabled": "true"}
    ),
}


def run(options: Options) -> Iterator[dict[str, Any]]:
    """One row."""
    yield measured(Setting(seconds=10, warm_up=10, subscriptions=4_000) if options.quick else Setting())


def measured(setting: Setting) -> dict[str, Any]:
    workload = workloads.alerts(subscriptions=setting.subscriptions, events=10_000)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="tidings-latency-") as name:
        folder = Path(name)
        Log(folder / "log").close()
        spark = pipeline.session("local[2]", name="latency", config=STREAMING | setting.config)
        try:
            frame = spark.createDataFrame(
                pa.table({"id": np.arange(setting.subscriptions), "filter": workload.filters})
            )
            compiled = {"domain": workload.domain, "placement": "replicated", "sample": workload.events}
            pipeline.compile(frame, folder / "index", **compiled)
            seconds = setting.warm_up + setting.seconds
            work = {"append": _append, "change": _change}
            answers: Any = spawn.Queue()
            others = [
                spawn.Process(target=_tell, args=(answers, name, given, folder, seconds, setting.subscriptions))
                for name, given in work.items()
            ]
            with stream(
                LogEvents(folder / "log", workload.domain),
                folder / "index",
                StoreSink(folder / "store"),
                checkpoint=folder / "query",
                trigger=setting.trigger,
                options=setting.options,
            ) as running:
                for process in others:
                    process.start()
                watched = _watch(folder, running, answers)
                for process in others:
                    process.join()
                status, parts = running.status(), _parts_ms(running.query.recentProgress)
            return _row(setting, watched, status) | parts
        finally:
            spark.stop()


@dataclass
class _Watched:
    reached: list[tuple[float, int]] = field(default_factory=list)  # when a reader saw which position
    versions: dict[int, float] = field(default_factory=dict)  # when it first saw a version in use
    memory: list[tuple[float, float]] = field(default_factory=list)  # MiB of driver, Java and workers
    appends: list[tuple[float, int]] = field(default_factory=list)  # when an append was called, and its last position
    changes: list[tuple[float, int]] = field(default_factory=list)  # when a change was called, and its version


def _watch(folder: Path, running: Any, answers: Any) -> _Watched:
    """Look into the store until all that the others told of is there."""
    watched, told = _Watched(), {}
    last, next_look = -1, 0.0
    with Notifications(folder / "store") as store:
        while "append" not in told or "change" not in told or last < told["append"][-1][1]:
            now = time.time()
            found = store.reached(running.query_id).get(LOG, -1)
            if found > last:
                last = found
                watched.reached.append((now, last))
                watched.versions.setdefault(store.batches(running.query_id)[-1].version, now)
            if now > next_look:
                assert not running.wait(0.001), "the query has ended"
                watched.memory.append((now, sum(tree_mib(os.getpid()).values())))
                next_look = now + MEMORY_SECONDS
            try:
                name, answer = answers.get_nowait()
                told[name] = answer
            except queue.Empty:
                time.sleep(LOOK_SECONDS)
    watched.appends, watched.changes = told["append"], told["change"]
    return watched


# ---------------------------------------------------------------------- other processes


def _tell(answers: Any, name: str, work: Any, folder: Path, seconds: float, subscriptions: int) -> None:
    answers.put((name, work(folder, seconds, subscriptions)))


def _append(folder: Path, seconds: float, subscriptions: int) -> list[tuple[float, int]]:
    workload = workloads.alerts(subscriptions=1, events=10_000)
    size = EVENTS_PER_SECOND // APPENDS_PER_SECOND
    parts = [read_events(workload.events.slice(at, size), workload.domain) for at in range(0, 10_000, size)]
    appended = []
    with Log(folder / "log") as log:
        started = time.monotonic()
        for number in range(round(seconds * APPENDS_PER_SECOND)):
            time.sleep(max(0.0, started + number / APPENDS_PER_SECOND - time.monotonic()))
            called = time.time()
            appended.append((called, log.append(parts[number % len(parts)])[-1]))
    return appended


def _change(folder: Path, seconds: float, subscriptions: int) -> list[tuple[float, int]]:
    """Filters of other subscriptions in the place of some, the same number of them always."""
    filters = workloads.alerts(subscriptions=subscriptions + CHANGED, events=1).filters
    changes, changed = IndexChanges(folder / "index"), []
    rng = np.random.default_rng(7)
    started = time.monotonic()
    for number in range(1, int(seconds / CHANGE_SECONDS)):
        time.sleep(max(0.0, started + number * CHANGE_SECONDS - time.monotonic()))
        ids = rng.choice(subscriptions, CHANGED, replace=False)
        table = pa.table({"id": ids, "filter": filters.take(pa.array(rng.permutation(len(filters))[:CHANGED]))})
        called = time.time()
        changed.append((called, changes.apply(upsert=table)))
    return changed


# ---------------------------------------------------------------------- figures


def _row(setting: Setting, watched: _Watched, status: Any) -> dict[str, Any]:
    begin = watched.appends[0][0] + setting.warm_up
    appended, last = (np.array(column) for column in zip(*watched.appends, strict=True))
    seen_at, seen = (np.array(column) for column in zip(*watched.reached, strict=True))
    latencies = (seen_at[np.searchsorted(seen, last)] - appended)[appended >= begin]
    versions = sorted(watched.versions.items())
    taken = [
        next(when for version, when in versions if version >= wanted) - called
        for called, wanted in watched.changes
        if called >= begin
    ]
    memory = [mib for when, mib in watched.memory if when >= begin]
    return {
        "subscriptions": setting.subscriptions,
        "events_per_second": EVENTS_PER_SECOND,
        "seconds": setting.seconds,
        "trigger": setting.trigger,
        "p50_s": round(float(np.percentile(latencies, 50)), 3),
        "p99_s": round(float(np.percentile(latencies, 99)), 3),
        "max_s": round(float(latencies.max()), 3),
        "batches_per_second": round(len(watched.reached) / (seen_at[-1] - seen_at[0]), 2),
        "matches": status.matches,
        "changes_seen_max_s": round(max(taken), 2) if taken else None,
        "memory_mib_first": round(memory[0]),
        "memory_mib_last": round(memory[-1]),
        "memory_mib_max": round(max(memory)),
    }


def _parts_ms(progress: list[Any]) -> dict[str, int]:
    """What Spark says that a micro-batch spends its time on, in the median."""
    parts = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")
    known = [one.durationMs for one in progress if one.numInputRows]
    return {f"{part}_ms": round(float(np.median([one.get(part, 0) for one in known]))) for part in parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--variants", action="store_true")
    given = parser.parse_args()
    rows = []
    for name, setting in VARIANTS.items() if given.variants else [("trigger 0", Setting())]:
        chosen = replace(setting, seconds=given.seconds, subscriptions=given.subscriptions)
        rows.append({"variant": name, **measured(chosen)})
        print(json.dumps(rows[-1]), f"load {os.getloadavg()[0]:.1f}", flush=True)
    write("spark_latency", (__doc__ or "").splitlines()[0], rows, same=("variant", "seconds", "subscriptions"))


if __name__ == "__main__":
    main()
