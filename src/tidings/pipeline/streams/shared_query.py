"""One stream for many small domains: pages of the log → decode and match → the mailboxes of each domain.

A stream of Spark's costs a process, a thread and a look at the log every moment, whether events come or not. Domains
with few subscriptions and few events share one. Which they are is part of the version of the subscriptions that a
micro-batch is pinned to, so that a batch that is run again is of the same domains.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tidings.pipeline.runtime.worker_garbage import keep_what_is_there
from tidings.pipeline.sinks.shared_sink import SharedSink
from tidings.pipeline.sources.shared_source import stream_pages
from tidings.pipeline.sources.version_gate import Gate
from tidings.pipeline.streams.checkpoint import Checkpoint, Identity
from tidings.pipeline.streams.left_out import NOTHING, Aside
from tidings.pipeline.streams.shared_tasks import MATCHED, SharedTask, match_pages
from tidings.pipeline.streams.shared_versions import SharedVersions
from tidings.pipeline.streams.stream_query import Counted, Stream, activated, counted_in, started
from tidings.store.mailboxes.shared_progress import SharedProgress

EVENTS_A_BATCH = 20_000


class SharedQuery:
    """A checkpoint opened for a shared stream: publish a version, then `start`. `release` it if it is not started."""

    def __init__(
        self, spark: SparkSession, log: Path, sink: SharedSink, *, checkpoint: Path, recover: bool = False
    ) -> None:
        self._spark = spark
        self._log = log
        self._sink = sink
        identity = Identity(f"log:{log.absolute()} (shared)", "members", sink.describe(), "ids")
        self._undo = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            self._checkpoint = Checkpoint(checkpoint, identity, recover=recover)
            undo.callback(self._checkpoint.release)
            self._checkpoint.check()
            sink.prepare(self._checkpoint)
            self.versions = SharedVersions(spark, self._checkpoint)
            self.versions.close_gate()
            self._undo = undo.pop_all()

    @property
    def checkpoint(self) -> Checkpoint:
        return self._checkpoint

    def release(self) -> None:
        self._undo.close()

    def start(self, catalogue: str, *, begin: int, wait_seconds: float, aside: Aside = NOTHING) -> Stream:
        """Start matching where the checkpoint says, or after the last event that is in all mailboxes.

        Without a checkpoint no event before `begin` is read.
        """
        with SharedProgress(self._sink.progress) as progress:
            begin = max(begin, progress.resume)
        spark = activated(self._spark)
        pages = stream_pages(
            spark,
            str(self._log.absolute()),
            start=begin,
            versions=self.versions.folder,
            gate=Gate(catalogue, None, None, str(self.versions.folder)),
            max_events_per_trigger=EVENTS_A_BATCH,
            wait_seconds=wait_seconds,
            carry=not (spark.sparkContext.master or "").startswith("local["),
        )
        counted = counted_in(spark)
        task = SharedTask(str(self.versions.folder), self._checkpoint.query, aside)
        matched = pages.mapInArrow(partial(_match_counting, task, counted), MATCHED)
        running = Stream(self._checkpoint, self.versions, None, counted)
        writer = self._sink.stream(matched, self._checkpoint)
        started(running, writer, 0, self._undo)
        self._undo = contextlib.ExitStack()
        return running


def _match_counting(task: SharedTask, counted: Counted, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in match_pages(task, batches):
        lists: Any = batch.column("subscriptions")
        counted.events.add(len(batch))
        counted.matches.add(len(lists.flatten()))
        yield batch
    keep_what_is_there("match a stream")
