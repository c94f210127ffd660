"""One domain's stream: its index followed, its query kept running, its mailboxes pruned, in a thread of its own.

    opening ─► running ─► (the domain was redefined) ─► opening
       │          │
       └──────────┴─► failed ─► (after a while) ─► opening

What goes wrong in one domain stays there: it is told in the driver's status, and tried again with back-off.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidings import pipeline
from tidings.errors import TidingsError
from tidings.model.attribute import RESERVED_PREFIX
from tidings.pipeline.errors import CheckpointError
from tidings.pipeline.gate import Gate
from tidings.pipeline.sinks import StoreSink
from tidings.pipeline.sources import LogEvents
from tidings.pipeline.view_change import REPLICATED
from tidings.service.data_directory import DataDirectory
from tidings.service.driver_adapting import Adapter, Adapting, Pace
from tidings.service.driver_index import DomainIndex, domain_of
from tidings.store.catalogue import Catalogue, CatalogueBusyError, DomainRow
from tidings.store.deliveries import Deliveries, DeliveriesError
from tidings.store.notifications import LOG, MAX_WAITING, Notifications, NotificationsError
from tidings.store.reader import LogReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.pipeline.streaming import Stream

PREFIX = RESERVED_PREFIX  # of the columns that are not attributes: no attribute's name begins so
EVENTS_A_BATCH = 20_000  # at most: a backlog is worked off in micro-batches that end soon
WAIT_SECONDS = 0.25  # that the source looks for events by itself
LOOK_SECONDS = 0.25  # between looks at whether the query runs
REACHED_SECONDS = 0.5
PRUNE_SECONDS = 2.0
PRUNED_TOGETHER = 2_000  # rows, in one transaction
PRUNE_ALL_SECONDS = 300.0
FORGET_SECONDS = 10.0  # after a row has left the index: a micro-batch may still be at it
SETTLED_SECONDS = 2.0  # after which what made the query before fail is over
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.5, 30.0
HEALTHY_SECONDS = 60.0  # after which a failure counts as a first one

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


class DomainStream:
    """Matches the events of one domain from `start` until `stop`."""

    def __init__(self, context: Context, row: DomainRow) -> None:
        self.key = row.key
        self._context = context
        self._files = context.data.domain(row.tenant, row.name)
        self._row = row
        self._index = DomainIndex(self._files, context.catalogue, context.spark)
        self._adapter = None if context.adapting is None else Adapter(context.adapting, self._files)
        self._told = threading.Event()
        self._stopped = threading.Event()
        self._problem: str | None = None
        self._state = "opening"
        self._reached = 0  # all events of the domain before this position are in the mailboxes
        self._stuck = False  # the last query ended, or did not begin, without a micro-batch
        self._recovered = False
        self._running: Stream | None = None
        self._before = (0, 0, 0)  # events, matches and candidates of queries that have ended
        self._batches_before = 0  # and their micro-batches
        self._gone: list[tuple[float, list[int]]] = []  # rows of subscriptions that were deleted, and since when
        self._pruned = 0  # the last change of a cursor that mailboxes were pruned by
        self._pruned_all = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"tidings-{row.key}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, row: DomainRow) -> None:
        """Of a change of the domain or of its filters."""
        self._row = row
        self._told.set()

    def stop(self) -> None:
        """End; what the query was at is matched again when it is started again, with the same outcome."""
        self._stopped.set()
        self._told.set()

    def join(self) -> None:
        self._thread.join()

    @property
    def has_matched(self) -> bool:
        """Whether this driver has matched any event of it."""
        return bool(self.status()["events"])

    def status(self) -> dict[str, Any]:
        running, status = self._running, None
        with contextlib.suppress(Exception):  # of a query that ends in this moment
            status = None if running is None else running.status()
        events, matches, candidates = self._before
        problem = self._problem or (None if status is None else status.problem)
        return {
            "state": self._state,
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

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                self._serve()
                failures = 0
                continue
            except TidingsError as error:
                self._problem = str(error)
                _log.error("%s: %s", self.key, error)
            except Exception as error:  # a bug, or Spark itself: the other domains go on
                self._problem = f"{type(error).__name__}: {error}"
                _log.exception("%s: the stream failed", self.key)
            self._state = "failed"
            failures = 1 if time.monotonic() - started > HEALTHY_SECONDS else failures + 1
            self._stopped.wait(min(RETRY_SECONDS_MAX, RETRY_SECONDS * 2 ** (failures - 1)))
        self._state = "stopped"

    def _serve(self) -> None:
        """Until told to stop, or until the domain is another."""
        self._state = "opening"
        row = self._row
        with contextlib.ExitStack() as opened:
            self._files.folder.mkdir(parents=True, exist_ok=True)
            log = opened.enter_context(LogReader(self._context.data.log))
            mailboxes = opened.enter_context(Notifications(self._files.mailboxes, max_waiting=MAX_WAITING))
            self._reached = max(self._reached, _resume(mailboxes))
            self._index.open(row, self._reached)
            if self._adapter is not None:
                self._adapter.opened(self._index, mailboxes)
            while not self._stopped.is_set() and self._row.definition == row.definition:
                self._query(row, log, mailboxes)

    def _query(self, row: DomainRow, log: LogReader, mailboxes: Notifications) -> None:
        """Until told to stop, or until the query has to be another."""
        running = self._started(row)
        try:
            self._running, self._state = running, "running"
            self._follow(row, running, log, mailboxes)
        finally:
            self._ended(running)

    def _started(self, row: DomainRow) -> Stream:
        """The query, where it was; or, if that cannot be and somebody has asked for it, without its checkpoint.

        Nobody is told otherwise then: every row that is valid for an event is in every later version.
        """
        if self._stuck and self._problem is not None and self._context.recover and not self._recovered:
            _log.warning("%s: recovering: %s", self.key, self._problem)
            self._recovered = True
            return self._stream(row, recover=True)
        try:
            return self._stream(row)
        except CheckpointError as error:
            self._stuck = True
            raise CheckpointError(f"{error} (tidings serve --recover does)") from error

    def _stream(self, row: DomainRow, *, recover: bool = False) -> Stream:
        context = self._context
        gate = Gate(context.catalogue_place, row.tenant, row.name, str(self._files.index))
        events = LogEvents(
            context.data.log,
            domain_of(row),
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
        )

    @property
    def _partitions(self) -> int | None:
        """That events are routed to; None: they stay where they are read."""
        return None if self._adapter is None else self._adapter.partitions

    def _ended(self, running: Stream) -> None:
        running.stop()
        status = running.status()
        self._running = None
        self._stuck = status.batches == 0  # as where it needs a version that cannot be read any more
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
        reached = max(self._reached, _resume(mailboxes))
        end = log.end
        if reached < end and log.advance(reached, domain=self.key, events=1, end=end) == reached:
            reached = end
        self._reached = reached
        left = self._index.retire(reached)
        if left:
            kept = self._context.catalogue.by_filter(left)
            self._gone.append((time.monotonic(), [number for number in left if number not in kept]))
        while self._gone and self._gone[0][0] < time.monotonic() - FORGET_SECONDS:
            _, numbers = self._gone.pop(0)
            mailboxes.forget(numbers)
            self._index.forget(numbers)

    def _prune(self, mailboxes: Notifications) -> None:
        """Remove what subscribers have acknowledged, a part of them at a time: the query waits meanwhile."""
        place = self._context.data.deliveries
        if not place.exists():
            return
        with Deliveries(place, read_only=True) as deliveries:
            if time.monotonic() - self._pruned_all > PRUNE_ALL_SECONDS:  # what a failure may have left
                self._pruned, self._pruned_all = 0, time.monotonic()
            change, cursors = deliveries.changed_cursors(self._pruned)
        if not cursors:
            return
        rows = self._index.numbers_of(cursors)
        marks = [(number, cursors[key]) for key, numbers in rows.items() for number in numbers]
        for start in range(0, len(marks), PRUNED_TOGETHER):
            mailboxes.prune(dict(marks[start : start + PRUNED_TOGETHER]))
        self._pruned = change


def _resume(mailboxes: Notifications) -> int:
    """The position after the last one that any query has loaded."""
    return 1 + max((mailboxes.reached(query).get(LOG, -1) for query in mailboxes.queries()), default=-1)
