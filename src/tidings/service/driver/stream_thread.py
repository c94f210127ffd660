"""A thread that keeps one query running: what the stream of one domain and the shared stream have in common.

    opening ─► running ─► (the query has to change) ─► opening
       │          │
       └──────────┴─► failed ─► (after a pause) ─► isolating ─► opening

While the query runs, the thread follows the catalogue, notes how far the query has come, and prunes mailboxes. After
two failures in a row it searches the batch that fails for the filters and events that break it, and sets them aside.
A failure stays within its stream: the driver's status reports it.

A checkpoint that is lost or damaged, or that does not fit the mailboxes, is put aside, and the query continues after
the last position that the mailboxes have: no match is lost or made twice. Only if the log has lost events after that
position, an operator has to ask for it (`recover`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.errors import TidingsError
from tidings.pipeline.job_errors import CheckpointError, PipelineError
from tidings.pipeline.steps.index_version import Aside
from tidings.pipeline.streams.checkpoint import UnfinishedBatch, unfinished_batch
from tidings.pipeline.streams.failure_search import Suspect, culprits_of
from tidings.pipeline.streams.shared_query import domain_named
from tidings.service.data.data_directory import DataDirectory, SetAside
from tidings.service.driver.domain_adaptation import Adapting
from tidings.service.driver.followed_filters import FollowedFilters, domain_of
from tidings.service.driver.mailbox_upkeep import Cursors, MailboxUpkeep
from tidings.store.catalogue import Catalogue, CatalogueBusyError, DomainRow
from tidings.store.log.log_reader import LogReader
from tidings.store.mailboxes.deliveries import DeliveriesError
from tidings.store.mailboxes.notifications import NotificationsError
from tidings.store.mailboxes.shared_progress import SharedProgressError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.pipeline.streams.stream_query import Status, Stream

RETRY_SECONDS, RETRY_SECONDS_MAX = 0.5, 30.0
HEALTHY_SECONDS = 60.0  # after which a failure counts as a first one
ISOLATE_AFTER = 2  # failures in a row: a single one is usually temporary
WAIT_SECONDS = 0.25  # that the source looks for events by itself
LOOK_SECONDS = 0.25  # between looks at whether the query runs
REACHED_SECONDS = 0.5
PRUNE_SECONDS = 2.0
SETTLED_SECONDS = 2.0  # after which the problem of the query before is over
STUCK_TRIES = 2  # queries without a micro-batch, after which the checkpoint is given up
LOCKED = (CatalogueBusyError, DeliveriesError, NotificationsError, SharedProgressError)

_log = logging.getLogger("tidings.service")


@dataclass(frozen=True)
class DriverContext:
    """What all streams of a driver share."""

    spark: SparkSession
    data: DataDirectory
    catalogue: Catalogue
    catalogue_place: str  # a URL, or the path of a file
    recover: bool = False
    adapting: Adapting | None = None  # None: Views and groups stay as they are
    # One stream at a time is started: that takes a core for some seconds, and the streams that run need one too.
    starting: threading.Lock = field(default_factory=threading.Lock)


class Timer:
    """Says when something is due that is done every so many seconds, the first time at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: float | None = None

    def is_due(self) -> bool:
        """Whether it is due now; if so, the time begins again."""
        now = time.monotonic()
        if self._last is not None and now - self._last < self._seconds:
            return False
        self._last = now
        return True


class StreamThread(ABC):
    """Keeps a query running from `start` until `stop`. Subclasses define what it follows and how it is started."""

    def __init__(self, name: str, context: DriverContext, checkpoint: Path) -> None:
        self.name = name
        self._context = context
        self._checkpoint = checkpoint
        self._cursors = Cursors(context.data.deliveries)
        self._running: Stream | None = None
        self._begin = 0  # a query without a checkpoint reads no event before this position
        self._reached = 0
        self._stuck = 0  # queries in a row that ended without a micro-batch
        self._failures = 0  # in a row
        self._problem: str | None = None
        self._state, self._since = "opening", time.time()
        self._told = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tidings-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the unfinished batch is matched again at the next start, with the same result."""
        self._stopped.set()
        self._told.set()

    def join(self) -> None:
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def reached(self) -> int:
        """All events before this position are in the mailboxes of their domains."""
        return self._reached

    @property
    @abstractmethod
    def has_matched(self) -> bool:
        """Whether this driver has matched any event in this stream."""

    def status(self) -> dict[str, Any]:
        """Returns what the driver's status file says of this stream."""
        query = self._query_status()
        return {
            "state": self._state,
            "since": self._since,
            "problem": self._problem or (None if query is None else query.problem),
            "reached": self._reached,
            "version": 0 if query is None else query.version,
            "batch_seconds": 0.0 if query is None else query.batch_seconds,
            "events_per_second": 0.0 if query is None else query.events_per_second,
        }

    def _query_status(self) -> Status | None:
        running = self._running
        with contextlib.suppress(Exception):  # of a query that ends at this moment
            return None if running is None else running.status()
        return None

    def _enter(self, state: str) -> None:
        if state != self._state:
            self._state, self._since = state, time.time()

    # ------------------------------------------------------------------ for subclasses

    @abstractmethod
    def _serve(self) -> None:
        """Opens what is needed and runs queries, until told to stop or until something has to be opened again."""

    @abstractmethod
    def _start_query(self, *, recover: bool) -> Stream:
        """Starts the query at its checkpoint, or with a new one; raises CheckpointError if that does not fit."""

    @abstractmethod
    def _rows_followed(self) -> Collection[DomainRow]:
        """The domains that the stream is to match, as the catalogue has them."""

    @abstractmethod
    def _keys_matched(self) -> Collection[str]:
        """The keys of the domains that the running query matches."""

    @abstractmethod
    def _resume(self) -> int:
        """The position after the last event that the mailboxes have."""

    @abstractmethod
    def _has_to_change(self) -> bool:
        """Whether the query has to end, and another to take its place."""

    @abstractmethod
    def _follow_catalogue(self, running: Stream) -> None:
        """Makes a version of the index with what has changed, if anything has."""

    @abstractmethod
    def _upkeep(self) -> Iterable[MailboxUpkeep]:
        """The mailboxes that this stream fills."""

    def _is_new(self, resume: int) -> bool:
        """Whether the stream continues, without a checkpoint yet, what another stream has matched."""
        return False

    def _knows_all_domains(self) -> bool:
        """Whether no event in the log can be of a domain that the query does not know yet."""
        return True

    @abstractmethod
    def _after_look(self, running: Stream) -> None:
        """Called every REACHED_SECONDS, after the mailboxes were looked after."""

    @abstractmethod
    def _after_query(self, ended: Stream) -> None:
        """Called when a query has ended."""

    @abstractmethod
    def _set_aside(self, key: str) -> None:
        """Called when something of a domain was set aside: its filters have to be opened again."""

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                if self._failures >= ISOLATE_AFTER:
                    self._isolate()
                self._serve()
                self._failures = 0
                continue
            except TidingsError as error:
                self._problem = str(error)
                _log.error("%s: %s", self.name, error)
            except Exception as error:  # a bug, or Spark itself: the other streams continue
                self._problem = f"{type(error).__name__}: {error}"
                _log.exception("%s: the stream failed", self.name)
            self._enter("failed")
            self._failures = 1 if time.monotonic() - began > HEALTHY_SECONDS else self._failures + 1
            self._stopped.wait(min(RETRY_SECONDS_MAX, RETRY_SECONDS * 2 ** (self._failures - 1)))
        self._enter("stopped")

    def _isolate(self) -> None:
        """Sets aside what breaks the unfinished batch: that is of one domain."""
        batch = unfinished_batch(self._checkpoint)
        if batch is None:
            return
        self._enter("isolating")
        data = self._context.data
        problem = self._problem or ""  # says which domain it is of, unless a process died
        for row in sorted(self._rows_followed(), key=lambda row: domain_named(row.key) not in problem):
            with LogReader(data.log) as log:
                end = min(batch.end, log.end)
                has_events = log.advance(batch.start, domain=row.key, events=1, end=end) > batch.start
            if has_events and set_aside_culprits(data, row, self._checkpoint, batch):
                self._set_aside(row.key)
                return

    def _run_query(self, log: LogReader) -> None:
        """Runs one query until told to stop, or until it has to change."""
        running = self._opened_query(log)
        try:
            self._running = running
            self._enter("running")
            self._follow(running, log)
            self._stuck = 0
        except Exception:  # it may need a version that cannot be read any more
            self._stuck = 0 if running.status().batches else self._stuck + 1
            raise
        finally:
            running.stop()
            self._running = None
            self._after_query(running)

    def _opened_query(self, log: LogReader) -> Stream:
        """Starts the query at its checkpoint; without a usable one, after the last position of the mailboxes.

        That changes no match: every row that is valid for an event is in every later version.
        """
        resume = self._resume()
        is_new = self._is_new(resume)
        if not is_new and self._stuck < STUCK_TRIES:
            try:
                return self._start_query(recover=False)
            except CheckpointError as error:
                self._problem = str(error)
        removed = log.removed_to([row.key for row in self._rows_followed()])
        if removed > resume and not self._context.recover:
            raise CheckpointError(
                f"{self._problem or 'the checkpoint is missing'}; the mailboxes have all events before position "
                f"{resume}, and the log has none before {removed}: the events between were removed before they were "
                "matched. tidings serve --recover continues without them"
            )
        if not is_new:
            _log.warning("%s: continues at position %d with a new checkpoint: %s", self.name, resume, self._problem)
        self._stuck = 0
        self._begin = max(self._begin, removed)
        return self._start_query(recover=True)

    def _follow(self, running: Stream, log: LogReader) -> None:
        look, prune = Timer(REACHED_SECONDS), Timer(PRUNE_SECONDS)
        began = time.monotonic()
        while not self._stopped.is_set() and not self._has_to_change():
            self._told.wait(LOOK_SECONDS)
            self._told.clear()
            if self._has_to_change():
                return
            is_due = look.is_due()
            if is_due and running.wait(0):
                raise TidingsError("the query ended by itself")
            if is_due and time.monotonic() - began > SETTLED_SECONDS:
                self._problem = None
            try:
                self._follow_catalogue(running)
                if is_due:
                    self._note_reached(log)
                    self._after_look(running)
                if prune.is_due():
                    self._prune(log)
            except LOCKED as error:
                # By other processes: the query has what it needs, and the gate holds back what it must not match yet.
                self._problem = str(error)
                _log.warning("%s: %s", self.name, error)

    def _note_reached(self, log: LogReader) -> None:
        """How far the query has come: past the last event that it has loaded, and past others' events after that."""
        reached = max(self._reached, self._resume())
        end = log.end  # read before it is asked whether all domains are known
        if reached < end and self._knows_all_domains():
            is_over = log.advance(reached, domain=self._keys_matched(), events=1, end=end) == reached
            reached = end if is_over else reached
        self._reached = reached
        for upkeep in self._upkeep():
            upkeep.retire(reached)

    def _prune(self, log: LogReader) -> None:
        if cursors := self._cursors.changed():
            for upkeep in self._upkeep():
                upkeep.prune(cursors, log.start)
        self._cursors.pruned()


def left_out(followed: Iterable[FollowedFilters]) -> Aside:
    """Returns what a stream leaves out; numbers and positions are unique across domains."""
    asides = [filters.set_aside for filters in followed]
    filters = frozenset[int]().union(*(aside.filters for aside in asides))
    return Aside(filters, frozenset[int]().union(*(aside.events for aside in asides)))


def set_aside_culprits(data: DataDirectory, row: DomainRow, checkpoint: Path, batch: UnfinishedBatch) -> bool:
    """Searches a domain for what breaks an unfinished batch, and writes it down; returns whether anything was found."""
    domain = domain_of(row)
    path = data.domain(row.tenant, row.name).aside
    before = SetAside.read(path)
    suspect = Suspect(
        str(checkpoint / "subscriptions"),
        batch.version,
        domain.to_dict(),
        str(data.log),
        batch.start,
        batch.end,
        tuple(before.filters),
        tuple(before.events),
    )
    try:
        found = culprits_of(suspect)
    except PipelineError as error:
        _log.warning("%s: %s", row.key, error)
        return False
    if found:
        for number, reason in found.filters.items():
            _log.error("%s: filter %d is set aside from position %d: %s", row.key, number, batch.start, reason)
        for position, reason in found.events.items():
            _log.error("%s: the event at position %d is set aside: %s", row.key, position, reason)
        before.with_culprits(found.filters, found.events, batch.start).write(path)
    return bool(found)
