"""Adapts the View and the mailbox groups of one domain to its subscriptions and events, while its stream runs.

    waiting ─► deciding ─► building ─► waiting
                  │  ▲ a View pays        │ the base was rebuilt meanwhile: build again
                  │  └────────────────────┘
                  └─► grouping ─► waiting

Deciding, building and grouping are Spark jobs and the driver's own arithmetic, one after the other in a thread that
all domains share. The domain's own thread puts the result into force, as it is the one that changes the index: a View
becomes a version of the index, groups a transaction of the mailboxes. After a crash at any point, either the old View
or the new one is in force, whole; unfinished work starts again when it is due.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tidings.errors import TidingsError
from tidings.model.domain import RESERVED_PREFIX, Domain
from tidings.pipeline.build.index_directory import IndexDirectory
from tidings.pipeline.build.placement_choice import (
    PlacementOptions,
    executor_cores,
    executor_memory,
    partitions_for,
)
from tidings.pipeline.sinks.mailbox_groups import Regrouping, SimilarGroups, regroup
from tidings.pipeline.sources.log_source import read_log
from tidings.pipeline.steps.match_metrics import counts_since
from tidings.pipeline.streams.index_changes import Base, IndexSnapshot
from tidings.pipeline.streams.view_change import Question, ViewDecision, decide, lay_out, made_for
from tidings.service.data.data_directory import DomainFiles
from tidings.service.driver.domain_index import DomainIndex
from tidings.store.log.log_reader import LogReader
from tidings.store.mailboxes.notifications import MAX_WAITING, Notifications
from tidings.systems.interface import AUTO, REPLICATED, Counts, CountsLists, View
from tidings.systems.planner.planner import Room

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY_SECONDS = 600.0
NAMED_SECONDS = 5.0  # after which a placement that is named is tried again
LEAST = 5_000  # subscriptions: fewer are matched faster than an event is sent anywhere, and fill few mailboxes at once
HISTORY_BYTES = 64 << 20  # of the log's newest events
SAMPLE = 2_000  # events by which groups are judged and files are made
BYTES_A_SUBSCRIPTION = 400.0  # of an index that has no file yet
BATCHES_MIN = 3  # from which the number of events in a micro-batch is known

_log = logging.getLogger("tidings.service")


@dataclass(frozen=True, eq=False)
class Adapting:
    """How the domains of a driver adapt; they share one thread for it."""

    spark: SparkSession
    log: Path  # the directory of the log
    every_seconds: float = EVERY_SECONDS
    placement: str = AUTO  # of domains that name none; a named one is used whatever it costs, however small they are
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="tidings-adapt"))
    stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        self.stopped.set()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def room(self) -> Room:
        spark = self.spark
        partitions = partitions_for(PlacementOptions(), spark.sparkContext.defaultParallelism)
        return Room(executor_memory(spark), executor_cores(spark), partitions)


@dataclass(frozen=True, eq=False)
class Built:
    """The files of a View, laid out for a base."""

    base: Base
    view: View
    layout: str


@dataclass(frozen=True)
class BatchCount:
    """How many events were matched in how many micro-batches."""

    events: int = 0
    batches: int = 0
    shards: Counts = field(default_factory=dict)  # what was counted in each, since the query began
    at: float = field(default_factory=time.monotonic)

    def since(self, before: BatchCount) -> float:
        """Events in a micro-batch; 1 if there were too few batches to know."""
        batches = self.batches - before.batches
        return 1.0 if batches < BATCHES_MIN else max(1.0, (self.events - before.events) / batches)


class Routing(NamedTuple):
    """How a stream routes events: to so many partitions, and whether lists are counted there."""

    partitions: int
    lists: bool


class Adapter:
    """Adapts one domain. The domain's thread calls it; only the steps run in `Adapting.pool`."""

    def __init__(self, adapting: Adapting, files: DomainFiles, named: Callable[[], str | None] = lambda: None) -> None:
        """`named` returns the placement that the domain names, if any."""
        self._adapting = adapting
        self._files = files
        self._named = named
        self._tries = 0  # to have a placement that is named
        self._next_try = 0.0
        self._directory = IndexDirectory(files.index)
        self._due = time.monotonic() + adapting.every_seconds
        self._under_way: Future[Any] | None = None
        self._view: View | None = None  # in force
        self._made_for: int | None = None  # partitions that were asked for when it was made
        self._counted = BatchCount()  # at the last decision
        self._measured: BatchCount | None = None  # when the View in force was first seen to be
        self._events_a_batch = 1.0
        self.changes = 0  # of the View, since the driver began
        self.groups = 0  # of mailboxes, as they were last made
        self.expected_ns = 0.0  # of an event, as estimated for the View in force

    def opened(self, index: DomainIndex, mailboxes: Notifications) -> None:
        """Take over what is in force when the domain is opened."""
        self._view, self.groups, self._under_way = index.view(), mailboxes.groups, None
        self._made_for = made_for(index.placed)

    @property
    def placement(self) -> str:
        return self._named() or self._adapting.placement

    @property
    def routing(self) -> Routing | None:
        """How the stream routes events; None: they stay where they are read."""
        return None if self._view is None else Routing(self._view.partitions, isinstance(self._view, CountsLists))

    @property
    def view(self) -> View | None:
        return self._view

    def look(self, index: DomainIndex, mailboxes: Notifications, count: BatchCount) -> bool:
        """Continue what is under way, or begin if it is due; returns whether a version was published."""
        if self._under_way is None:
            if self._view is not None and index.placed is None:  # so much has changed that there is a new base
                self._begin(self._build, index.base(), self._view, self._made_for)
            elif time.monotonic() >= self._due or self._is_named_anew():
                self._decide(index, count)
            return False
        if not self._under_way.done():
            return False
        step, self._under_way = self._under_way, None
        try:
            found = step.result()
        except Exception as error:
            if not self._adapting.stopped.is_set():  # else Spark is shutting down
                if isinstance(error, TidingsError):
                    _log.warning("%s: cannot adapt: %s", self._files.key, error)
                else:
                    _log.exception("%s: cannot adapt", self._files.key)
            self._view, self._made_for = index.view(), made_for(index.placed)
            return False
        return self._found(found, index, mailboxes)

    def _found(self, found: Any, index: DomainIndex, mailboxes: Notifications) -> bool:
        match found:
            case ViewDecision(pays=True, view=None):
                _log.info("%s: its View is dropped: %s", self._files.key, found.why)
                self._view = self._made_for = None
                self.expected_ns = found.cost.event_ns
                self.changes += 1
                return index.adopt(index.base(), None)
            case ViewDecision(pays=True, view=view) if view is not None:
                self.expected_ns = found.cost.event_ns
                _log.info("%s: a View by %s, epoch %d: %s", self._files.key, view.placement, view.epoch, found.why)
                self._begin(self._build, index.base_for_a_view(), view, found.made_for)
            case ViewDecision():
                self.expected_ns = found.in_force.event_ns
                _log.info("%s: the View stays: %s", self._files.key, found.why)
                self._begin(self._group, index.snapshot(), self._events_a_batch)
            case Built() if index.adopt(found.base, found.layout):
                self._view, self._made_for = found.view, made_for(found.layout)
                self._measured = None
                _log.info("%s: epoch %d is in force", self._files.key, found.view.epoch)
                self.changes += 1
                return True
            case Built():  # the base was replaced meanwhile
                self._begin(self._build, index.base(), found.view, made_for(found.layout))
            case Regrouping(pays=True):
                self.groups = mailboxes.group(found.groups)
                _log.info("%s: mailboxes: %s", self._files.key, found)
            case _:
                pass
        return False

    def _decide(self, index: DomainIndex, count: BatchCount) -> None:
        self._due = time.monotonic() + self._adapting.every_seconds
        named = self.placement != AUTO
        has_events = count.events > self._counted.events
        if not has_events or not index.known or (len(index.known) < LEAST and not named):
            return  # nothing to adapt to, or nothing that could pay
        counts, seconds = self._load(count)
        self._events_a_batch, self._counted = count.since(self._counted), count
        if self.placement == REPLICATED and self._view is None:
            self._begin(self._group, index.snapshot(), self._events_a_batch)
        else:
            epoch = index.version + 1  # versions only grow, over restarts too
            given = self._view, self._made_for, self._events_a_batch, epoch, self.placement, counts, seconds
            self._begin(self._decided, index.snapshot(), *given)

    def _is_named_anew(self) -> bool:
        """Whether the domain names a placement that is not in force; after a try that fails, less and less often."""
        named, in_force = self._named(), REPLICATED if self._view is None else self._view.placement
        if named in (None, in_force):
            self._tries = 0
            return False
        if time.monotonic() < self._next_try:
            return False
        self._next_try = time.monotonic() + min(EVERY_SECONDS, NAMED_SECONDS * 2**self._tries)
        self._tries += 1
        return True

    def _load(self, count: BatchCount) -> tuple[Counts, float]:
        """What tasks have counted under the View in force since the last decision, and in how many seconds."""
        before, self._measured = self._measured, count
        if before is None or self._view is None:
            return {}, 1.0
        return counts_since(count.shards, before.shards), max(count.at - before.at, 1e-3)

    def _begin(self, step: Callable[..., Any], *given: Any) -> None:
        self._under_way = self._adapting.pool.submit(self._run, step, *given)

    # ------------------------------------------------------------------ in the pool

    def _run(self, step: Callable[..., Any], *given: Any) -> Any:
        # A scheduler pool of its own: the jobs of streams do not queue behind these.
        self._adapting.spark.sparkContext.setLocalProperty("spark.scheduler.pool", "adapting")
        return step(*given)

    def _decided(
        self,
        snapshot: IndexSnapshot,
        in_force: View | None,
        made_for: int | None,
        events_a_batch: float,
        epoch: int,
        placement: str,
        counts: Counts,
        seconds: float,
    ) -> ViewDecision | None:
        events = self._history(snapshot)
        if events is None:
            return None
        size = snapshot.bytes or BYTES_A_SUBSCRIPTION
        asked = Question(self._adapting.room(), events_a_batch, size, placement, epoch, made_for, counts, seconds)
        return decide(self._table(snapshot.rows), events, snapshot.domain, in_force, asked)

    def _build(self, base: Base, view: View, made_for: int) -> Built:
        events = self._history(base)
        sample = None if events is None else _sample(events)
        return Built(base, view, lay_out(self._adapting.spark, base, view, self._directory, made_for, sample))

    def _group(self, snapshot: IndexSnapshot, events_a_batch: float) -> Regrouping | None:
        events = self._history(snapshot)
        if events is None or snapshot.rows.num_rows < LEAST:
            return None
        sample = _sample(events)
        at, ids = snapshot.match(sample)
        made = SimilarGroups.of(self._table(snapshot.rows), snapshot.domain)
        with Notifications(self._files.mailboxes, max_waiting=MAX_WAITING) as mailboxes:
            return regroup(made, mailboxes, at, ids, events_a_load=round(events_a_batch))

    def _table(self, rows: pa.Table) -> DataFrame:
        return self._adapting.spark.createDataFrame(rows)

    def _history(self, of: IndexSnapshot | Base) -> DataFrame | None:
        """Returns the newest events of the domain; None if there are none."""
        adapting = self._adapting
        with LogReader(adapting.log) as log:
            start, end = log.kept_from(max_bytes=HISTORY_BYTES), log.end
        events = past_events(adapting.spark, adapting.log, of.domain, start, end)
        if events is None:
            return None
        own = [name for name in events.columns if name.startswith(RESERVED_PREFIX)]
        return events.where(f"{RESERVED_PREFIX}rejected IS NULL").drop(*own)


def past_events(spark: SparkSession, log: Path, domain: Domain, start: int, end: int) -> DataFrame | None:
    """Returns the events of a domain at positions [start, end) that retention has left; None if there are none."""
    with LogReader(log) as reader:
        start, end = max(start, reader.start), min(end, reader.end)
        if start >= end or reader.advance(start, domain=domain.name, events=1, end=end) == start:
            return None
    return read_log(
        spark,
        log,
        domain=domain,
        start=start,
        end=end,
        on_error="reject",
        prefix=RESERVED_PREFIX,
        carry=carries_pages(spark),
    )


def carries_pages(spark: SparkSession) -> bool:
    """Whether pages of the log are sent to the workers, as those of other machines cannot read its files."""
    return not (spark.sparkContext.master or "").startswith("local[")


def _sample(events: DataFrame) -> pa.Table:
    return events.limit(SAMPLE).toArrow()
