"""The stream of one large domain: its index followed, its query kept running, its mailboxes pruned.

A checkpoint that is lost or damaged, or that does not fit the mailboxes, is put aside, and the query goes on after the
last position that the mailboxes have: no match is lost or made twice by it. Only where the log has lost events after
that position an operator has to ask for it (`recover`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidings import pipeline
from tidings.errors import TidingsError
from tidings.model.domain import RESERVED_PREFIX
from tidings.pipeline.job_errors import CheckpointError
from tidings.pipeline.sinks.stream_sinks import StoreSink
from tidings.pipeline.sources.stream_sources import LogEvents
from tidings.pipeline.sources.version_gate import Gate
from tidings.pipeline.steps.index_version import NOTHING
from tidings.pipeline.streams.checkpoint import IDENTITY
from tidings.service.data.data_directory import DataDirectory
from tidings.service.data.set_aside import SetAside
from tidings.service.driver.domain_adaptation import Adapter, Adapting, Pace
from tidings.service.driver.domain_index import DomainIndex
from tidings.service.driver.failure_isolation import MEND_AFTER, left_out, set_aside_culprits
from tidings.service.driver.followed_filters import domain_of
from tidings.service.driver.mailbox_upkeep import Cursors, Departed, marks_of, prune
from tidings.service.driver.stream_thread import StreamThread
from tidings.store.catalogue import Catalogue, CatalogueBusyError, DomainRow
from tidings.store.log.log_reader import LogReader
from tidings.store.mailboxes.deliveries import DeliveriesError
from tidings.store.mailboxes.notifications import MAX_WAITING, Notifications, NotificationsError
from tidings.systems.interface import REPLICATED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.pipeline.streams.stream_query import Stream

PREFIX = RESERVED_PREFIX  # of the columns that are not attributes: no attribute's name begins so
EVENTS_A_BATCH = 20_000  # at most: a backlog is worked off in micro-batches that end soon
WAIT_SECONDS = 0.25  # that the source looks for events by itself
LOOK_SECONDS = 0.25  # between looks at whether the query runs
REACHED_SECONDS = 0.5
PRUNE_SECONDS = 2.0
SETTLED_SECONDS = 2.0  # after which what made the query before fail is over
STUCK_TRIES = 2  # without a micro-batch, after which the checkpoint is given up

_log = logging.getLogger("tidings.service")


@dataclass(frozen=True)
class Context:
    """What all streams of a driver share."""

    spark: SparkSession
    data: DataDirectory
    catalogue: Catalogue
    catalogue_place: str  # a URL, or the path of a file
    recover: bool = False
    adapting: Adapting | None = None  # None: Views and groups stay as they are


class DomainStream(StreamThread):
    """Matches the events of one domain from `start` until `stop`."""

    def __init__(self, context: Context, row: DomainRow, *, begin: int = 0) -> None:
        """`begin` is a position before which another stream has matched all events of the domain."""
        super().__init__(row.key)
        self._begin = begin
        self.key = row.key
        self._context = context
        self._files = context.data.domain(row.tenant, row.name)
        self._row = row
        self._index = DomainIndex(self._files, context.catalogue, context.spark)
        self._adapter = None if context.adapting is None else Adapter(context.adapting, self._files)
        self._reached = 0  # all events of the domain before this position are in the mailboxes
        self._stuck = 0  # queries, one after the other, that ended or did not begin without a micro-batch
        self._left_out = NOTHING
        self._running: Stream | None = None
        self._before = (0, 0, 0)  # events, matches and candidates of queries that have ended
        self._batches_before = 0  # and their micro-batches
        self._departed = Departed()
        self._cursors = Cursors(context.data.deliveries)

    def tell(self, row: DomainRow) -> None:
        """Of a change of the domain or of its filters."""
        self._row = row
        self._told.set()

    def has_at_most(self, filters: int) -> bool:
        """Whether no more filters than these are in force."""
        return len(self._index.known) < 20 * filters + 1_000 and self._index.in_force() <= filters

    @property
    def has_matched(self) -> bool:
        return bool(self.status()["events"])

    def status(self) -> dict[str, Any]:
        running, status = self._running, None
        with contextlib.suppress(Exception):  # of a query that ends in this moment
            status = None if running is None else running.status()
        events, matches, candidates = self._before
        problem = self._problem or (None if status is None else status.problem)
        return {
            "state": self._state,
            "since": self._since,
            "problem": problem,
            "reached": self._reached,
            "version": self._index.version if status is None else status.version,
            "covers": self._index.covers,
            "events": events + (0 if status is None else status.events),
            "matches": matches + (0 if status is None else status.matches),
            "candidates": candidates + (0 if status is None else status.candidates),
            "batch_seconds": 0.0 if status is None else status.batch_seconds,
            "events_per_second": 0.0 if status is None else status.events_per_second,
            **self._adapted(),
            "set_aside": len(self._left_out.filters) + len(self._left_out.events),
            "rejected": len(self._index.rejected),
            "rejects": {str(number): reason for number, reason in list(self._index.rejected.items())[:100]},
        }

    def _adapted(self) -> dict[str, Any]:
        adapter = self._adapter
        if adapter is None:
            return {}
        view = adapter.view
        return {
            "view": REPLICATED if view is None else view.placement,
            "view_epoch": 0 if view is None else view.epoch,
            "view_partitions": 1 if view is None else view.partitions,
            "view_changes": adapter.changes,
            "view_expected_seconds": adapter.expected_ns / 1e9,
            "groups": adapter.groups,
        }

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        """Until told to stop, or until the domain is another."""
        self._enter("opening")
        row = self._row
        with contextlib.ExitStack() as opened:
            self._files.folder.mkdir(parents=True, exist_ok=True)
            log = opened.enter_context(LogReader(self._context.data.log))
            mailboxes = opened.enter_context(Notifications(self._files.mailboxes, max_waiting=MAX_WAITING))
            self._reached = max(self._reached, self._begin, mailboxes.resume())
            aside = SetAside.read(self._files.aside)
            self._left_out = left_out(aside)
            self._index.aside = {one.number: one.reason for one in aside.filters.values()}
            self._index.open(row, self._reached)
            if self._adapter is not None:
                self._adapter.opened(self._index, mailboxes)
            while not self._stopped.is_set() and self._row.definition == row.definition:
                self._query(row, log, mailboxes)

    def _query(self, row: DomainRow, log: LogReader, mailboxes: Notifications) -> None:
        """Until told to stop, or until the query has to be another."""
        running = self._started(row, log, mailboxes)
        try:
            self._running = running
            self._enter("running")
            self._follow(row, running, log, mailboxes)
            self._stuck = 0
        except Exception:
            # As where it needs a version that cannot be read any more.
            self._stuck = 0 if running.status().batches else self._stuck + 1
            raise
        finally:
            self._ended(running)

    def _mend(self) -> None:
        if self._failures >= MEND_AFTER:
            self._enter("isolating")
            files = self._files
            set_aside_culprits(files.aside, files.query, self._context.data.log, domain_of(self._row))

    def _started(self, row: DomainRow, log: LogReader, mailboxes: Notifications) -> Stream:
        """The query, where it was; else without its checkpoint, after the last position that the mailboxes have.

        That changes no match: every row that is valid for an event is in every later version.
        """
        resume = max(self._begin, mailboxes.resume())
        is_new = not (self._files.query / IDENTITY).exists() and resume > 0  # another query has come so far
        if not is_new and self._stuck < STUCK_TRIES:
            try:
                return self._stream(row)
            except CheckpointError as error:
                self._problem = str(error)
        gone = log.removed_to(row.key)
        if gone > resume and not self._context.recover:
            raise CheckpointError(
                f"{self._problem or 'its checkpoint is missing'}; the mailboxes know of events before position "
                f"{resume}, and the log has none before "
                f"{gone}: what lies between was not matched, and is gone. tidings serve --recover goes on without it"
            )
        if not is_new:
            _log.warning("%s: goes on from position %d with a new checkpoint: %s", self.key, resume, self._problem)
        self._stuck = 0
        self._begin = max(self._begin, gone)
        return self._stream(row, recover=True)

    def _stream(self, row: DomainRow, *, recover: bool = False) -> Stream:
        context = self._context
        gate = Gate(context.catalogue_place, row.tenant, row.name, str(self._files.index))
        events = LogEvents(
            context.data.log,
            domain_of(row),
            start=self._begin,
            max_events_per_trigger=EVENTS_A_BATCH,
            carry=not (context.spark.sparkContext.master or "").startswith("local["),
            prefix=PREFIX,
            gate=gate,
            wait_seconds=WAIT_SECONDS,
        )
        sink = StoreSink(self._files.mailboxes)
        return pipeline.stream(
            events,
            self._files.index,
            sink,
            checkpoint=self._files.query,
            trigger=0,
            recover=recover,
            partitions=self._partitions,
            aside=self._left_out,
        )

    @property
    def _partitions(self) -> int | None:
        """That events are routed to; None: they stay where they are read."""
        return None if self._adapter is None else self._adapter.partitions

    def _ended(self, running: Stream) -> None:
        running.stop()
        status = running.status()
        self._running = None
        events, matches, candidates = self._before
        self._before = (events + status.events, matches + status.matches, candidates + status.candidates)
        self._batches_before += status.batches

    def _follow(self, row: DomainRow, running: Stream, log: LogReader, mailboxes: Notifications) -> None:
        looked = pruned = 0.0
        began = time.monotonic()
        partitions = self._partitions
        while not self._stopped.is_set():
            self._told.wait(LOOK_SECONDS)
            self._told.clear()
            latest = self._row
            if latest.definition != row.definition:
                return  # which needs another schema: the query starts again, where it is
            now = time.monotonic()
            if now - looked >= REACHED_SECONDS:
                if running.wait(0):
                    raise TidingsError("the query ended by itself")
                if now - began > SETTLED_SECONDS:
                    self._problem = None
            try:
                if self._index.follow(latest):
                    running.take_up()
                if now - looked >= REACHED_SECONDS:
                    looked = now
                    self._look(log, mailboxes)
                    running.take_up()
                    if self._adapt(running, mailboxes) and self._partitions != partitions:
                        return  # to be routed otherwise: the query starts again, where it is
                if now - pruned >= PRUNE_SECONDS:
                    pruned = now
                    self._prune(mailboxes)
            except (CatalogueBusyError, DeliveriesError, NotificationsError) as error:
                # Others keep a file locked: the query has what it needs, and the gate holds back what it must not have.
                self._problem = str(error)
                _log.warning("%s: %s", self.key, error)

    def _adapt(self, running: Stream, mailboxes: Notifications) -> bool:
        """Have the View and the groups follow; answers whether another View is in force."""
        if self._adapter is None:
            return False
        status = running.status()
        pace = Pace(self._before[0] + status.events, self._batches_before + status.batches)
        if not self._adapter.look(self._index, mailboxes, pace):
            return False
        running.take_up()  # from its next micro-batch on; the one that runs keeps to the version that it has
        self._index.forget_views()
        return True

    def _look(self, log: LogReader, mailboxes: Notifications) -> None:
        """How far the query has come: past the last event that it has loaded, and past others' events after that."""
        reached = max(self._reached, mailboxes.resume())
        end = log.end
        if reached < end and log.advance(reached, domain=self.key, events=1, end=end) == reached:
            reached = end
        self._reached = reached
        self._departed.note(self._index.retire(reached), self._context.catalogue)
        if numbers := self._departed.due():
            mailboxes.forget(numbers)
            self._index.forget(numbers)

    def _prune(self, mailboxes: Notifications) -> None:
        prune(mailboxes, marks_of(self._index, self._cursors.changed()))
        self._cursors.pruned()
