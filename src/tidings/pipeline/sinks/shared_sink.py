"""Spark's `format("tidings-shared-notifications")`: matches of many domains into the mailboxes of each.

A micro-batch is loaded domain by domain, each in one transaction of its own file, and noted as done when all have
it. A batch that is run again, in part or whole, changes nothing where it was loaded before.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from tidings.pipeline.job_errors import CheckpointError
from tidings.pipeline.runtime.data_sources import register
from tidings.pipeline.runtime.worker_garbage import keep_what_is_there
from tidings.pipeline.sinks.store_sink import Staged, Written, discard, prepare_staging, stage
from tidings.pipeline.streams.checkpoint import Checkpoint
from tidings.store.mailboxes.notifications import LOG, MAX_WAITING, Notifications
from tidings.store.mailboxes.shared_progress import SharedProgress

STORES_KEPT = 512  # open at a time, in the process that commits
AT_ONCE = 8  # that are written: what takes long is to have it on the disk


@dataclass(frozen=True)
class SharedSink:
    """The mailboxes of many domains."""

    folder: Path  # has one for each domain, by its key
    progress: Path

    def describe(self) -> str:
        return f"mailboxes:{self.folder.absolute()}"

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError where the checkpoint is of another time than what was loaded."""
        with SharedProgress(self.progress) as progress:
            loaded, done, planned = (
                progress.last_batch(checkpoint.query),
                checkpoint.last_committed,
                checkpoint.last_planned,
            )
        if loaded is not None and (planned is None or loaded > planned):
            problem = f"batch {loaded} was loaded, and the checkpoint has come to {planned}: it is an old copy"
        elif done is not None and (loaded is None or loaded < done):
            problem = f"batch {loaded} was loaded, and the checkpoint has come to {done}: the mailboxes are an old copy"
        else:
            prepare_staging(self.progress, checkpoint.query)
            return
        raise CheckpointError(f"sink: {self.progress} does not belong to {checkpoint.path}: {problem}")

    def stream(self, matched: DataFrame, checkpoint: Checkpoint) -> DataStreamWriter:
        options = {
            "path": str(self.folder.absolute()),
            "progress": str(self.progress.absolute()),
            "query": checkpoint.query,
        }
        register(matched.sparkSession, SharedNotificationsSink)
        return matched.writeStream.format(SharedNotificationsSink.name()).options(**options)


class SharedNotificationsSink(DataSource):
    """Options: `path` of the folder with one for each domain, `progress`, and the `query` that writes."""

    @classmethod
    def name(cls) -> str:
        return "tidings-shared-notifications"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        keep_what_is_there("make a writer")
        return _Writer(self.options["path"], self.options["progress"], self.options["query"])


class _Writer(DataSourceStreamArrowWriter):
    def __init__(self, folder: str, progress: str, query: str) -> None:
        self._folder = folder
        self._progress = progress
        self._query = query

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        return stage(iterator, self._progress, self._query, by="domain")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        load_shared(messages, Path(self._folder), Path(self._progress), self._query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        discard(messages)


def load_shared(
    messages: list[WriterCommitMessage | None], folder: Path, progress: Path, query: str, batch: int
) -> None:
    """On the driver: all that the tasks of a micro-batch wrote."""
    written = Written.of(messages, batch)
    by_domain: dict[str, list[pa.Table]] = {}
    for table in written.matches():
        domains: list[Any] = pc.unique(table["domain"]).to_pylist()
        for domain in domains:
            mine: Any = table.filter(pc.equal(table["domain"], pa.scalar(domain)))
            by_domain.setdefault(domain, []).append(mine.select(["position", "subscriptions"]))

    def load(domain: str) -> None:
        _opened(folder / domain / "mailboxes.sqlite").load(
            by_domain[domain], query=query, batch=batch, version=written.version, reached={LOG: written.reached[domain]}
        )

    list(_threads().map(load, by_domain))
    with SharedProgress(progress) as noted:
        noted.note(query, batch, max(written.reached.values(), default=None), written.work)
    discard(messages)
    _close_some()
    keep_what_is_there("load")


_stores: OrderedDict[Path, tuple[tuple[int, int], Notifications]] = OrderedDict()
_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    global _pool
    _pool = _pool or ThreadPoolExecutor(AT_ONCE, "tidings-load")
    return _pool


def _opened(path: Path) -> Notifications:
    """A domain's store; opened again where the file is another than before."""
    known = _stores.get(path)
    if known is not None:
        if path.exists() and known[0] == _inode(path):
            _stores.move_to_end(path)
            return known[1]
        known[1].close()
    path.parent.mkdir(parents=True, exist_ok=True)
    opened = Notifications(path, max_waiting=MAX_WAITING)
    _stores[path] = (_inode(path), opened)
    return opened


def _close_some() -> None:
    while len(_stores) > STORES_KEPT:
        _, (_, store) = _stores.popitem(last=False)
        store.close()


def _inode(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
