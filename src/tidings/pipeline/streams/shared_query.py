"""One stream for many small domains: pages of the log → decode and match → the mailboxes of each domain.

A stream of Spark's costs a process, a thread and a look at the log every moment, whether events come or not. Domains
with few subscriptions and few events share one. Which they are is part of the version of the subscriptions that a
micro-batch is pinned to, so that a batch that is run again is of the same domains.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.runtime.spark_workarounds import activate, freeze_garbage, is_local
from tidings.pipeline.sinks.stream_sinks import SharedSink
from tidings.pipeline.sources.log_source import PAGE_FIELDS, read_members, stream_log
from tidings.pipeline.sources.version_gate import Gate
from tidings.pipeline.steps.index_version import NOTHING, Aside, find_file, shipped_name
from tidings.pipeline.steps.match_metrics import Measures
from tidings.pipeline.streams.checkpoint import Checkpoint, QueryIdentity
from tidings.pipeline.streams.stream_query import Stream, started
from tidings.pipeline.streams.version_files import SharedMember, SharedVersions
from tidings.store.log.page import EventColumns, Page, attribute_columns
from tidings.store.mailboxes.shared_progress import SharedProgress

EVENTS_A_BATCH = 20_000
IDS_A_BATCH = 2_000_000  # about: the JVM holds a batch whole
MATCHERS_KEPT = 4_000
VERSIONS_KEPT = 4

MATCHED = T.StructType(
    [
        T.StructField("domain", T.StringType(), False),
        T.StructField("position", T.LongType(), False),
        T.StructField("subscriptions_version", T.LongType(), False),
        T.StructField("seconds", T.DoubleType(), False),  # that matching it took: its share of its domain's
        T.StructField("subscriptions", T.ArrayType(T.LongType(), False)),
    ]
)
_FIELDS: Any = [
    pa.field("domain", pa.string()),
    pa.field("position", pa.int64()),
    pa.field("subscriptions_version", pa.int64()),
    pa.field("seconds", pa.float64()),
    pa.field("subscriptions", pa.list_(pa.int64())),
]
_SCHEMA = pa.schema(_FIELDS)


class SharedQuery:
    """A checkpoint opened for a shared stream: publish a version, then `start`. `release` it if it is not started."""

    def __init__(
        self, spark: SparkSession, log: Path, sink: SharedSink, *, checkpoint: Path, recover: bool = False
    ) -> None:
        self._spark = spark
        self._log = log
        self._sink = sink
        identity = QueryIdentity(f"log:{log.absolute()} (shared)", "members", sink.describe(), "ids")
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
        spark = activate(self._spark)
        pages = stream_log(
            spark,
            self._log,
            start=begin,
            subscriptions=self.versions.folder,
            gate=Gate(catalogue, None, None, str(self.versions.folder)),
            max_events_per_trigger=EVENTS_A_BATCH,
            wait_seconds=wait_seconds,
            carry=not is_local(spark),
            pages=True,
        )
        measures = Measures.on(spark.sparkContext)
        task = SharedTask(str(self.versions.folder), self._checkpoint.query, aside)
        matched = pages.mapInArrow(partial(match_pages, task, measures), MATCHED)
        running = Stream(self._checkpoint, self.versions, None, measures)
        writer = self._sink.stream(matched, self._checkpoint)
        started(running, writer, 0, self._undo)
        self._undo = contextlib.ExitStack()
        return running


# ---------------------------------------------------------------------- tasks


@dataclass(frozen=True)
class SharedTask:
    """What a worker has to know: small, since it travels with every task."""

    folder: str  # of the query's versions, on the driver's disk
    key: str  # of the query: before the names of files that Spark brings to other disks
    aside: Aside = NOTHING


@dataclass(frozen=True, eq=False)
class _Compiled:
    """A domain, and its filters."""

    domain: Domain
    matcher: Matcher


_versions: OrderedDict[tuple[str, int], dict[str, str]] = OrderedDict()
_compiled: OrderedDict[tuple[str, frozenset[int]], _Compiled] = OrderedDict()


def match_pages(task: SharedTask, measures: Measures, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The events of the log's pages, each with the subscriptions that it satisfies.

    An event that does not fit its domain, or that is left out, has NULL.
    """
    for batch in batches:
        found: list[pa.RecordBatch] = []
        ids = 0
        for group in _by_domain(batch):
            for one in _matched(task, *group):
                found.append(one)
                matches = len(_lists(one).values)
                measures.saw(len(one), matches)
                ids += matches
                if ids > IDS_A_BATCH:
                    yield from _joined(found, ids)
                    found, ids = [], 0
        if found:
            yield from _joined(found, ids)
    freeze_garbage("match")


def _joined(found: list[pa.RecordBatch], ids: int) -> list[pa.RecordBatch]:
    """Small batches as one, and one with very many matches as several."""
    table = pa.Table.from_batches(found).combine_chunks()
    return table.to_batches(max_chunksize=max(1, len(table) * IDS_A_BATCH // max(ids, IDS_A_BATCH)))


def _lists(batch: pa.RecordBatch) -> Any:
    return batch.column(batch.num_columns - 1)


def _by_domain(batch: pa.RecordBatch) -> list[tuple[int, int, int, list[Page]]]:
    """The pages of each domain together: its version, the positions [start, end) that count, and the pages."""
    groups: dict[tuple[int, int, int, str], list[Page]] = {}
    columns: Any = [column.to_pylist() for column in batch.columns]
    domain = PAGE_FIELDS.index("domain")
    for version, start, end, *fields in zip(*columns, strict=True):
        groups.setdefault((version, start, end, fields[domain]), []).append(Page(*fields))
    return [(version, start, end, pages) for (version, start, end, _), pages in groups.items()]


def domain_named(key: str) -> str:
    """Returns how an error of a shared stream names the domain that it is of."""
    return f"domain '{key}'"


def _matched(task: SharedTask, version: int, start: int, end: int, pages: list[Page]) -> Iterator[pa.RecordBatch]:
    key = pages[0].domain
    began = time.perf_counter()
    compiled = _member(task, version, key)
    for events in attribute_columns(pages, compiled.domain, start, end, on_error="reject"):
        count = len(events.position)
        try:
            subscriptions = _subscriptions(task, compiled, events)
        except Exception as error:  # says whose it is, so that it is looked for there
            raise PipelineError(f"{domain_named(key)}: {type(error).__name__}: {error}") from error
        took, began = time.perf_counter() - began, time.perf_counter()
        columns: list[Any] = [
            pa.array([key] * count, pa.string()),
            events.position,
            pa.array([version] * count, pa.int64()),
            pa.array([took / max(count, 1)] * count, pa.float64()),
            subscriptions,
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _subscriptions(task: SharedTask, compiled: _Compiled, events: EventColumns) -> Any:
    """A list of numbers for each event."""
    fits = np.asarray(events.rejected.is_null())
    if task.aside.events:
        fits = fits & ~np.asarray(task.aside.among(events.position))
    rows = np.flatnonzero(fits)
    counts = np.zeros(len(fits), np.int64)
    ids: Any = pa.array([], pa.int64())
    if len(rows) and len(compiled.matcher):
        attributes = events.attributes if len(rows) == len(fits) else events.attributes.take(rows)
        matches = compiled.matcher.match(attributes, on_error="reject")
        counts[rows] = np.diff(matches.offsets)
        ids = matches.ids
    offsets: Any = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    lists: Any = pa.ListArray.from_arrays(offsets, ids, mask=None if fits.all() else pa.array(~fits))
    return lists


def _member(task: SharedTask, version: int, key: str) -> _Compiled:
    place = (task.folder, version)
    if place not in _versions:
        name = f"{version}.json"
        _versions[place] = read_members(find_file(Path(task.folder), name, shipped_name(task.key, name)))
        while len(_versions) > VERSIONS_KEPT:
            _versions.popitem(last=False)
    name = _versions[place][key]
    held = (name, task.aside.filters)
    if held not in _compiled:
        member = SharedMember.from_text(find_file(Path(task.folder), name).read_text())
        rows = [(number, text) for number, text in member.rows.items() if number not in task.aside.filters]
        _compiled[held] = _Compiled(member.domain, Matcher(_table(rows), member.domain, threads=1))
        while len(_compiled) > MATCHERS_KEPT:
            _compiled.popitem(last=False)
    _compiled.move_to_end(held)
    return _compiled[held]


def _table(rows: list[tuple[int, str]]) -> pa.Table:
    numbers, texts = [number for number, _ in rows], [text for _, text in rows]
    columns: dict[str, Any] = {"id": pa.array(numbers, pa.int64()), "filter": pa.array(texts, pa.string())}
    return pa.table(columns)
