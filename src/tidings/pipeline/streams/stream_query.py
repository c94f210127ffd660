"""Match events as they come, against subscriptions that change meanwhile: source → match → sink.

    with pipeline.stream(
        LogEvents("data/log", flights), "data/index", StoreSink("data/notifications.sqlite"), checkpoint="data/query"
    ) as running:
        IndexChanges("data/index").apply(upsert=[("ada/commute", "dest = 'BOS' AND arr_delay > 30")])
        running.wait(60)

Every micro-batch is pinned to one version of the subscriptions, durably, before it runs. So one that is run
again after a crash meets the same subscriptions, and gives the same matches. The log's offsets carry the
version. Spark's own sources have no room for it in theirs; their micro-batches are run by `foreachBatch`, the
one place where a driver can act before a batch runs, and the version is written beside the checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidings.errors import EventError
from tidings.model.domain import Domain
from tidings.pipeline.build.compiled_index import Index, compile
from tidings.pipeline.build.event_schema import check_events, domain_of
from tidings.pipeline.build.index_directory import IndexDirectory, Manifest
from tidings.pipeline.job_errors import PipelineError, brief, brief_errors
from tidings.pipeline.runtime.spark_session import session
from tidings.pipeline.runtime.spark_workarounds import activate, numbered
from tidings.pipeline.sinks.stream_sinks import Sink, StoreSink, as_sink
from tidings.pipeline.sources.stream_sources import REJECTED, VERSION, LogEvents, Source, as_source
from tidings.pipeline.steps.counted_stream import match_by_lists
from tidings.pipeline.steps.index_version import NOTHING, Aside, PinnedVersions
from tidings.pipeline.steps.match_metrics import Counts, Measures
from tidings.pipeline.steps.match_step import pairs
from tidings.pipeline.steps.match_tasks import MatchTask, match_rows, match_visits
from tidings.pipeline.steps.route_step import RouteTask, routed_to_each
from tidings.pipeline.streams.checkpoint import Checkpoint, QueryIdentity
from tidings.pipeline.streams.version_files import VersionFeed
from tidings.systems.interface import REPLICATED

Trigger = float | Literal["now"]
TRIGGER_SECONDS = 0.5


def stream(
    events: Source | DataFrame,
    subscriptions: Index | DataFrame | str | os.PathLike[str],
    sink: Sink | str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str],
    trigger: Trigger = TRIGGER_SECONDS,
    output: Literal["ids", "pairs"] = "ids",
    domain: Any = None,
    recover: bool = False,
    partitions: int | None = None,
    lists: bool = False,
    aside: Aside = NOTHING,
    options: Mapping[str, str] | None = None,
) -> Stream:
    """Start matching events as they come, and go on where the checkpoint says if there is one.

    `events` are LogEvents, FileEvents, KafkaEvents or a streaming DataFrame; `subscriptions` an index, its
    directory, or a table, which is compiled into the checkpoint; `sink` a StoreSink, ParquetSink,
    KafkaSink, ConsoleSink, or the path of a ParquetSink. Versions that are published in the index's
    directory while the query runs are taken up with the next micro-batch.

    `trigger` is the time between micro-batches in seconds, 0 for no wait, or "now" to match what is
    there and end. `recover` puts a checkpoint that does not fit its store aside, and goes on after
    the last position of the log that the store knows. With `partitions`, events are routed to so many by
    the Views that versions of the index have (see `changes`); without, every task has all subscriptions,
    whatever the versions say. Views with lists (Chord, OPChord) are used only with `lists`, which costs another
    shuffle; ids are integers then. What is in `aside` is left out. `options` go to Spark's query as they are.
    """
    source, target = as_source(events), as_sink(sink)
    if partitions is not None and not (isinstance(source, LogEvents) and isinstance(target, StoreSink)):
        raise PipelineError(
            "stream: to route events, the log has to be the source and a store of notifications the sink"
        )
    if recover:
        source = _recovered(source, target)
    own = isinstance(subscriptions, DataFrame)
    place = "a table" if own else str(Path(_directory_of(subscriptions)).absolute())
    identity = QueryIdentity(source.describe(), place, target.describe(), output)
    opened = Checkpoint(checkpoint, identity, recover=recover)
    with contextlib.ExitStack() as undo:
        undo.callback(opened.release)
        opened.check()
        spark = activate(_session_of(events, subscriptions))
        frame = source.open(spark, opened.versions)
        if not source.pins and VERSION in frame.columns:
            raise EventError(f"the events have a column '{VERSION}' already, where the version goes; rename it")
        index = compile(subscriptions, opened.path / "index") if isinstance(subscriptions, DataFrame) else subscriptions
        directory = _compiled(index, source, frame, domain)
        checked = _Checked(frame.schema)
        feed = VersionFeed(spark, directory, opened, checked)
        undo.callback(feed.stop)
        measures = Measures.on(spark.sparkContext)
        task = _task(frame, opened, checked, source, aside, lists)
        step = partial(_match, task=task, measures=measures, output=output, partitions=partitions, lists=lists)
        shown = step(frame if source.pins else frame.withColumn(VERSION, F.lit(0).cast("bigint")))
        target.prepare(shown, opened)
        running = Stream(opened, feed, directory, measures)
        writer = target.stream(shown, opened) if source.pins else _by_batches(frame, step, target, running)
        started(running, writer.options(**(options or {})), trigger, undo)
        feed.start()
    return running


def started(running: Stream, writer: DataStreamWriter, trigger: Trigger, undo: contextlib.ExitStack) -> None:
    """Start the query of a stream, which does at its end what `undo` has to."""
    writer = writer.option("checkpointLocation", str(running.checkpoint.path))
    with _stream_errors():
        query = _triggered(writer.queryName(f"tidings-{running.query_id[:8]}"), trigger).start()
    running.runs(query, undo.pop_all())


@dataclass(frozen=True)
class Status:
    """How a stream does."""

    version: int  # of the subscriptions, of the next micro-batch
    batches: int
    events: int
    matches: int  # those of a task that was run again count again
    candidates: int  # that were verified for them
    events_per_second: float  # of the last micro-batch
    batch_seconds: float  # that it took
    problem: str | None  # why the newest version is not in use


class Feed(Protocol):
    """Brings versions of the subscriptions to a query."""

    current: int
    problem: str | None

    def look(self) -> None: ...


class Stream:
    """A query that runs. Ends with `stop`, or at the end of a `with` block."""

    def __init__(self, checkpoint: Checkpoint, feed: Feed, index: IndexDirectory | None, measures: Measures) -> None:
        self.checkpoint = checkpoint
        self._feed = feed
        self._index = index  # None where the versions are published by the caller that runs the query
        self._measures = measures
        self._undo = contextlib.ExitStack()
        self._query: StreamingQuery | None = None
        self._first = _batches(checkpoint)
        self._pace = (0.0, 0.0)  # events a second in the last micro-batch, and its seconds

    @property
    def query(self) -> StreamingQuery:
        """Spark's own handle."""
        assert self._query is not None
        return self._query

    @property
    def query_id(self) -> str:
        """What the store of notifications calls this query; it stays over restarts."""
        return self.checkpoint.query

    @property
    def version(self) -> int:
        """The version of the subscriptions that the next micro-batch meets."""
        return self._feed.current

    @property
    def index(self) -> str:
        """The directory whose versions the query follows."""
        return str(self._versions_in.path)

    @property
    def rejected(self) -> int:
        """How many subscriptions of the current version cannot be matched."""
        return self._versions_in.manifest(self._feed.current).rejected

    @property
    def _versions_in(self) -> IndexDirectory:
        assert self._index is not None
        return self._index

    def replace(self, subscriptions: DataFrame) -> int:
        """Have another table of subscriptions from the next micro-batch on; returns its version."""
        index = self._versions_in
        domain = Domain.from_json(index.manifest(self._feed.current).domain)
        with brief_errors():
            version = compile(subscriptions, index.path, domain=domain, placement=REPLICATED).version
        self.take_up()
        return version

    def take_up(self) -> int:
        """Look for a new version at once, after one was published; returns the one in use."""
        self._feed.look()
        return self._feed.current

    @property
    def counts(self) -> Counts:
        """What tasks have counted, by shard."""
        return self._measures.counts

    @property
    def is_running(self) -> bool:
        return bool(self.query.isActive)

    def status(self) -> Status:
        # Spark would tell of every micro-batch by itself, for a fifth of the time that a small one takes.
        progress = None if self._query is None else self._query.lastProgress
        seconds = 0.0 if progress is None else progress.durationMs.get("triggerExecution", 0) / 1000
        if progress is not None and progress.numInputRows and seconds:
            self._pace = (progress.numInputRows / seconds, seconds)
        return Status(
            version=self._feed.current,
            batches=_batches(self.checkpoint) - self._first,
            events=self._measures.events,
            matches=self._measures.matches,
            candidates=self._measures.candidates,
            events_per_second=self._pace[0],
            batch_seconds=self._pace[1],
            problem=self._feed.problem,
        )

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the query has ended, at most so long; whether it has. Raises what made it fail."""
        end = None if seconds is None else time.monotonic() + seconds
        while self.query.isActive and (end is None or time.monotonic() < end):
            # In slices, so that a signal to this process is heard between them.
            left = 0.2 if end is None else min(0.2, max(0.0, end - time.monotonic()))
            with _stream_errors():
                self.query.awaitTermination(max(left, 0.001))  # type: ignore[arg-type]
        failed = self.query.exception()
        if failed is not None:
            raise PipelineError(_failure(str(failed))) from failed
        return not self.query.isActive

    def finish(self) -> None:
        """Match all that the source has now, then go on."""
        with _stream_errors():
            self.query.processAllAvailable()

    def stop(self) -> None:
        """End the query. What it was at is matched again when it is started again, with the same outcome."""
        if self._query is not None and self._query.isActive:
            self._query.stop()
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def runs(self, query: StreamingQuery, undo: contextlib.ExitStack) -> None:
        """The query was started; at its end, `undo`."""
        self._query, self._undo = query, undo


def _batches(checkpoint: Checkpoint) -> int:
    """How many micro-batches of a query are done."""
    return 0 if checkpoint.last_committed is None else checkpoint.last_committed + 1


# ---------------------------------------------------------------------- steps


def _match(
    frame: DataFrame, *, task: MatchTask, measures: Measures, output: str, partitions: int | None, lists: bool
) -> DataFrame:
    """Rows with a version, each with its matches; if they are routed, with those of each visit."""
    ids = T.StringType() if task.string_ids else T.LongType()
    added = T.StructField("subscriptions", T.ArrayType(ids, containsNull=False))
    schema = T.StructType([*([frame.schema[name] for name in task.keeps] or frame.schema.fields), added])
    if partitions is None:
        matched = numbered(frame).mapInArrow(partial(match_rows, task, measures), schema)
    elif lists:
        matched = match_by_lists(frame, task, measures, partitions, schema)
    else:
        routed = routed_to_each(frame, RouteTask(task.names, task.versions, partitions, position=task.position))
        matched = routed.mapInArrow(partial(match_visits, task, measures), schema)
    if task.keeps:  # the place of an event only, without the prefix
        matched = matched.toDF("position", VERSION, "subscriptions")
    return pairs(matched) if output == "pairs" else matched


def _by_batches(frame: DataFrame, step: Callable[[DataFrame], DataFrame], sink: Sink, running: Stream) -> Any:
    """Micro-batches run one by one, each with the version that it is pinned to."""

    def run(batch: DataFrame, number: int) -> None:
        version = running.checkpoint.pin(number, running.version)
        sink.batch(step(batch.withColumn(VERSION, F.lit(version).cast("bigint"))), number, running.checkpoint)

    return frame.writeStream.foreachBatch(run)


def _triggered(writer: Any, trigger: Trigger) -> Any:
    if trigger == "now":
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{round(trigger * 1000)} milliseconds")


# ---------------------------------------------------------------------- what is given


def _session_of(*given: Any) -> SparkSession:
    for one in given:
        if isinstance(one, DataFrame):
            return one.sparkSession
        if isinstance(one, Index):
            return one.spark
    return SparkSession.getActiveSession() or session()


def _directory_of(subscriptions: Any) -> str | os.PathLike[str]:
    if isinstance(subscriptions, Index):
        return subscriptions.directory
    if isinstance(subscriptions, str | os.PathLike):
        return subscriptions
    return ""


def _compiled(
    subscriptions: Index | str | os.PathLike[str], source: Source, frame: DataFrame, domain: Any
) -> IndexDirectory:
    """The directory of an index that has been compiled for these events."""
    if isinstance(subscriptions, Index):
        given = getattr(source, "domain", None) if domain is None else domain
        subscriptions.compiled_for(frame.schema, None if given is None else domain_of(given), REPLICATED)
    return IndexDirectory(_directory_of(subscriptions))


class _Checked:
    """Refuses a version of the subscriptions that the running query cannot serve."""

    def __init__(self, schema: T.StructType) -> None:
        self._schema = schema
        self.id_type: str | None = None

    def __call__(self, manifest: Manifest) -> None:
        check_events(self._schema, Domain.from_json(manifest.domain), [tuple(path) for path in manifest.reads])
        if self.id_type is not None and manifest.id_type != self.id_type:
            raise PipelineError(
                f"its ids are {manifest.id_type}, and the query was started with {self.id_type}; restart it, with a "
                "new checkpoint"
            )
        self.id_type = manifest.id_type


def _task(
    frame: DataFrame, checkpoint: Checkpoint, checked: _Checked, source: Source, aside: Aside, lists: bool
) -> MatchTask:
    if lists and checked.id_type == "string":
        raise PipelineError("stream: lists are counted of subscriptions whose ids are integers, and these have texts")
    prefix = getattr(source, "prefix", "")
    version, rejected = f"{prefix}{VERSION}", f"{prefix}{REJECTED}"
    return MatchTask(
        names=tuple(frame.columns) if version in frame.columns else (*frame.columns, version),
        versions=PinnedVersions(str(checkpoint.versions), checkpoint.query, version, aside, lists),
        string_ids=checked.id_type == "string",
        keeps=(f"{prefix}position", version) if prefix else (),
        rejected=rejected if rejected in frame.columns else None,
        position=f"{prefix}position",
        aside=aside,
    )


def _recovered(source: Source, sink: Sink) -> Source:
    if not isinstance(source, LogEvents) or not isinstance(sink, StoreSink):
        raise PipelineError("recover needs the log as the source and a store of notifications as the sink")
    return replace(source, start=max(sink.resume(), source.start if isinstance(source.start, int) else 0))


# ---------------------------------------------------------------------- failures


@contextlib.contextmanager
def _stream_errors() -> Iterator[None]:
    try:
        with brief_errors():
            yield
    except PipelineError as error:
        raise PipelineError(_failure(str(error.__cause__ or error))) from error


def _failure(message: str) -> str:
    return f"stream: {brief(message).removeprefix('stream: ')}"
