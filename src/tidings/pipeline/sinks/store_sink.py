"""Spark's `format("tidings-notifications")`: matches into stores of notifications, each exactly once.

Tasks write their matches as Arrow: small ones travel to the driver with the task's result, large ones are
staged as files beside the store, where tasks see that disk. The commit of a micro-batch loads all of
them in one transaction, together with how far the query has come; an abort removes what was staged.

The matches of many domains go to the store of each, one transaction a domain. The batch is noted as done when all have
it: one that is run again, in part or whole, changes nothing in the stores that have it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.runtime.spark_workarounds import freeze_garbage
from tidings.pipeline.sources.stream_sources import VERSION
from tidings.store.mailboxes.notifications import LOG, MAX_WAITING, SHARED, Notifications
from tidings.store.mailboxes.shared_progress import SharedProgress, Work

NO_VERSION = -1  # of a batch without events
INLINE_BYTES = 1 << 20  # of a task's matches that travel with its result
STORES_KEPT = 512  # open at a time, in the process that commits
AT_ONCE = 8  # that are written: what takes long is to have it on the disk
_MARK = ".staging"  # by its content a task knows that the directory is the driver's


@dataclass
class Staged(WriterCommitMessage):
    """What a task wrote."""

    data: bytes | None = None  # Arrow, if it is small
    file: str | None = None  # else
    versions: set[int] = field(default_factory=set)
    reached: dict[str, int] = field(default_factory=dict)  # the last position of each source, or domain
    work: dict[str, Work] = field(default_factory=dict)  # likewise


def staging_directory(store: str | os.PathLike[str]) -> Path:
    return Path(f"{Path(store).absolute()}.staged")


def prepare_staging(store: str | os.PathLike[str], query: str) -> None:
    """Make the directory that large results are staged in, empty of what a crash may have left."""
    folder = staging_directory(store)
    try:
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        (folder / _MARK).write_text(query)
    except OSError as error:
        raise PipelineError(f"sink: cannot write to {folder}: {error.strerror}; give a store elsewhere") from error


@dataclass(frozen=True)
class Target:
    """The store of a query, or the folder of many: `<domain>/mailboxes.sqlite`, with the query's progress beside."""

    path: str
    query: str
    progress: str | None = None  # given for a folder of many

    @property
    def by(self) -> str:
        """The column that divides positions."""
        return "source" if self.progress is None else "domain"

    @property
    def staging(self) -> Path:
        return staging_directory(self.progress or self.path)


class NotificationsSink(DataSource):
    """Options: those of a Target, and of a batch its number, `batch`."""

    @classmethod
    def name(cls) -> str:
        return "tidings-notifications"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        freeze_garbage("make a writer")
        return _StreamWriter(self._target())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _BatchWriter(self._target(), int(self.options["batch"]))

    def _target(self) -> Target:
        return Target(self.options["path"], self.options["query"], self.options.get("progress"))


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        return stage(iterator, self._target)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        load(messages, self._target, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        discard(messages)


class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, target: Target, batch: int) -> None:
        self._target = target
        self._batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        return stage(iterator, self._target)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        load(messages, self._target, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        discard(messages)


def stage(batches: Iterator[pa.RecordBatch], target: Target) -> Staged:
    """On an executor: keep what has matches, and note how far the events of each source or domain reach."""
    staged, kept, by = Staged(), list[Any](), target.by
    for batch in batches:
        table: Any = pa.Table.from_batches([batch])
        staged.versions.update(pc.unique(table[VERSION]).to_pylist())
        if by not in table.column_names:
            table = table.append_column(by, pa.nulls(len(table), pa.string()).fill_null(LOG))
        if "seconds" not in table.column_names:
            table = table.append_column("seconds", pa.array([0.0] * len(table), pa.float64()))
        found: Any = table.group_by(by).aggregate([("position", "max"), ("position", "count"), ("seconds", "sum")])
        columns = (found[column].to_pylist() for column in (by, "position_max", "position_count", "seconds_sum"))
        for name, position, count, seconds in zip(*columns, strict=True):
            staged.reached[name] = max(position, staged.reached.get(name, position))
            before = staged.work.get(name, Work())
            staged.work[name] = Work(before.events + count, before.seconds + seconds)
        matched = table.filter(pc.greater(pc.list_value_length(table["subscriptions"]), pa.scalar(0)))
        if len(matched):
            kept.append(matched.select([by, "position", "subscriptions"]))
    if kept:
        table = pa.concat_tables(kept)
        if table.nbytes > INLINE_BYTES and _is_drivers(target.staging, target.query):
            path = target.staging / f"{secrets.token_hex(8)}.arrow"
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table)
            staged.file = str(path)
        else:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            staged.data = sink.getvalue().to_pybytes()
    freeze_garbage("stage")
    return staged


def _is_drivers(folder: Path, query: str) -> bool:
    with contextlib.suppress(OSError):
        return (folder / _MARK).read_text() == query
    return False


def load(messages: list[WriterCommitMessage | None], target: Target, batch: int) -> None:
    """On the driver: load all that the tasks of a micro-batch wrote."""
    written = Written.of(messages, batch)
    if target.progress is None:
        # A batch without events is noted too: Spark counts it as done, and a restart compares the store with that.
        _load(Path(target.path), written.matches(), written, target.query, batch, written.reached)
    else:
        _load_each(written, target, batch)
        with SharedProgress(target.progress) as noted:
            noted.note(target.query, batch, max(written.reached.values(), default=None), written.work)
    discard(messages)
    _close_some()
    freeze_garbage("load")


def _load_each(written: Written, target: Target, batch: int) -> None:
    """Load the matches of each domain into its own store."""
    by_domain: dict[str, list[pa.Table]] = {}
    for table in written.matches():
        domains: list[Any] = pc.unique(table["domain"]).to_pylist()
        for domain in domains:
            mine: Any = table.filter(pc.equal(table["domain"], pa.scalar(domain)))
            by_domain.setdefault(domain, []).append(mine.select(["position", "subscriptions"]))

    def load_one(domain: str) -> None:
        path = Path(target.path) / domain / "mailboxes.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        reached = {LOG: written.reached[domain]}
        _load(path, by_domain[domain], written, f"{SHARED}{target.query}", batch, reached, max_waiting=MAX_WAITING)

    list(_threads().map(load_one, by_domain))


def _load(
    path: Path,
    matches: Iterable[pa.Table],
    written: Written,
    query: str,
    batch: int,
    reached: dict[str, int],
    max_waiting: int | None = None,
) -> None:
    store = _opened(path, max_waiting)
    store.load(matches, query=query, batch=batch, version=written.version, reached=reached)


@dataclass(frozen=True)
class Written:
    """What the tasks of a micro-batch wrote, together."""

    staged: list[Staged]
    version: int  # of the subscriptions; NO_VERSION if there was no event
    reached: dict[str, int]
    work: dict[str, Work]

    @staticmethod
    def of(messages: list[WriterCommitMessage | None], batch: int) -> Written:
        staged = [message for message in messages if isinstance(message, Staged)]
        versions = set[int]().union(*(message.versions for message in staged))
        if len(versions) > 1:
            raise PipelineError(
                f"sink: batch {batch} has events of several versions ({versions}); a batch is pinned to one"
            )
        reached: dict[str, int] = {}
        work: dict[str, Work] = {}
        for message in staged:
            for name, position in message.reached.items():
                reached[name] = max(position, reached.get(name, position))
                before, more = work.get(name, Work()), message.work[name]
                work[name] = Work(before.events + more.events, before.seconds + more.seconds)
        return Written(staged, versions.pop() if versions else NO_VERSION, reached, work)

    def matches(self) -> Iterator[pa.Table]:
        """The matches, task by task."""
        for message in self.staged:
            if message.data is not None:
                yield pa.ipc.open_stream(pa.py_buffer(message.data)).read_all()
            elif message.file is not None:
                with pa.memory_map(message.file) as file:
                    yield pa.ipc.open_file(file).read_all()


def discard(messages: list[WriterCommitMessage | None]) -> None:
    """Remove what tasks have staged."""
    for message in messages:
        if isinstance(message, Staged) and message.file is not None:
            Path(message.file).unlink(missing_ok=True)


_stores: OrderedDict[Path, tuple[tuple[int, int], Notifications]] = OrderedDict()  # the least recently used first
_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    global _pool
    _pool = _pool or ThreadPoolExecutor(AT_ONCE, "tidings-load")
    return _pool


def _opened(path: Path, max_waiting: int | None) -> Notifications:
    """A store, opened once in the process that commits, and again if the file is another than before."""
    known = _stores.get(path)
    if known is not None:
        with contextlib.suppress(OSError):
            if known[0] == _inode(path):
                _stores.move_to_end(path)
                return known[1]
        known[1].close()
    opened = Notifications(path, max_waiting=max_waiting)
    _stores[path] = (_inode(path), opened)
    return opened


def _close_some() -> None:
    while len(_stores) > STORES_KEPT:
        _, (_, store) = _stores.popitem(last=False)
        store.close()


def _inode(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
