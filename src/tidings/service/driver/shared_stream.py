"""The stream that small domains share: their filters followed, one query kept running, their mailboxes pruned.

A domain is a member from the version of the subscriptions that first has it. It leaves, for a stream of its own, when
it has grown; both may match some of its events then, which the mailboxes take once. It comes back when the shared
stream is paused and the domain's own has matched all that the shared one has passed: see `driver`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tidings.errors import TidingsError
from tidings.pipeline.job_errors import CheckpointError
from tidings.pipeline.sinks.stream_sinks import SharedSink
from tidings.pipeline.streams.checkpoint import unfinished_batch
from tidings.pipeline.streams.shared_query import SharedQuery
from tidings.service.data.set_aside import SetAside
from tidings.service.driver.domain_stream import (
    LOOK_SECONDS,
    PRUNE_SECONDS,
    REACHED_SECONDS,
    SETTLED_SECONDS,
    STUCK_TRIES,
    WAIT_SECONDS,
    Context,
)
from tidings.service.driver.failure_isolation import MEND_AFTER, left_out, set_aside_culprits
from tidings.service.driver.followed_filters import domain_of
from tidings.service.driver.mailbox_upkeep import Cursors, Departed, marks_of, prune
from tidings.service.driver.shared_members import MemberFilters
from tidings.service.driver.stream_thread import StreamThread
from tidings.store.catalogue import CatalogueBusyError, DomainRow
from tidings.store.log.log_reader import LogReader
from tidings.store.mailboxes.deliveries import DeliveriesError
from tidings.store.mailboxes.notifications import MAX_WAITING, Notifications, NotificationsError
from tidings.store.mailboxes.shared_progress import Pace, SharedProgress, SharedProgressError, Work

if TYPE_CHECKING:
    from tidings.pipeline.streams.stream_query import Stream

PACE_SECONDS = 10.0  # over which the events of a domain are counted

_log = logging.getLogger("tidings.service")


class SharedStream(StreamThread):
    """Matches the events of all its members from `start` until `stop`."""

    def __init__(self, context: Context) -> None:
        super().__init__("shared")
        self._context = context
        self._files = context.data.shared
        self._sink = SharedSink(context.data.domains, self._files.progress)
        self._changing = threading.Lock()  # over the next two
        self._rows: dict[str, DomainRow] = {}  # of the domains that are to be members
        self._revision = -1  # of the catalogue that these rows are of
        self._members: dict[str, MemberFilters] = {}
        self._published: frozenset[str] = frozenset()  # the members of the current version
        self._departed: dict[str, Departed] = {}
        self._cursors = Cursors(context.data.deliveries)
        self._begin = 0  # the first position of a query without a checkpoint, at least
        self._set_aside: dict[str, int] = {}  # how much, by domain
        self._reached = 0
        self._stuck = 0
        self._running: Stream | None = None
        self._paused = threading.Event()
        self._resting = threading.Event()  # no query runs
        self._planned = 0  # the position up to which the query has planned batches, once it rests
        self._counted = (0.0, dict[str, Work]())  # when, and what was done by then for each domain
        self._paces: dict[str, Pace] = {}
        self._matched = False
        self._said = (0, -1)  # the version and the revision that it covers, as was last said

    # ------------------------------------------------------------------ called by the driver

    def tell(self, rows: Mapping[str, DomainRow], revision: int) -> None:
        """Have these domains as members, as they are at a revision of the catalogue."""
        with self._changing:
            self._rows, self._revision = dict(rows), revision
        self._told.set()

    def has(self, key: str) -> bool:
        """Whether the current version has a domain: the batches after this one do."""
        return key in self._published

    def pause(self) -> int | None:
        """Have no query run; returns the position up to which batches are planned once there is none, None before."""
        self._paused.set()
        self._told.set()
        return self._planned if self._resting.is_set() else None

    def resume(self) -> None:
        self._paused.clear()
        self._told.set()

    def subscriptions(self, key: str) -> int:
        """How many filters of a member have not ended."""
        member = self._members.get(key)
        return 0 if member is None else member.in_force()

    @property
    def reached(self) -> int:
        """All events of members before this position are in their mailboxes."""
        return self._reached

    def pace(self, key: str) -> Pace:
        """What a member takes."""
        return self._paces.get(key, Pace(0.0, 0.0))

    @property
    def has_matched(self) -> bool:
        return self._matched

    def status(self) -> dict[str, Any]:
        """Of the query itself."""
        running, status = self._running, None
        with contextlib.suppress(Exception):  # of a query that ends in this moment
            status = None if running is None else running.status()
        return {
            "state": self._state,
            "since": self._since,
            "problem": self._problem,
            "domains": len(self._members),
            "reached": self._reached,
            "version": 0 if status is None else status.version,
            "batch_seconds": 0.0 if status is None else round(status.batch_seconds, 3),
            "events_per_second": 0.0 if status is None else round(status.events_per_second, 1),
        }

    def statuses(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Of each domain that is a member or about to be, with its key."""
        state, problem = self._state, self._problem
        for key in list(self._rows):
            member = self._members.get(key)
            is_in = key in self._published or state != "running"
            status: dict[str, Any] = {
                "state": state if is_in else "opening",
                "since": self._since,
                "problem": problem,
                "reached": self._reached,
                "covers": -1 if member is None else member.covers,
                "events": self._counted[1].get(key, Work()).events,
                "events_per_second": round(self.pace(key).events, 1),
                "set_aside": self._set_aside.get(key, 0),
                "shared": True,
            }
            if member is not None and member.rejected:
                rejects = list(member.rejected.items())[:100]
                status |= {"rejected": len(member.rejected), "rejects": {str(k): v for k, v in rejects}}
            yield key, status

    # ------------------------------------------------------------------ the thread

    def _mend(self) -> None:
        """Try the events of each member: what breaks the batch is one domain's."""
        batch = unfinished_batch(self._files.query) if self._failures >= MEND_AFTER else None
        if batch is None:
            return
        self._enter("isolating")
        data = self._context.data
        for key, row in list(self._rows.items()):
            with LogReader(data.log) as log:
                is_in = log.advance(batch.start, domain=key, events=1, end=min(batch.end, log.end)) > batch.start
            if is_in and set_aside_culprits(
                data.domains / key / "aside.json", self._files.query, data.log, domain_of(row)
            ):
                self._members.pop(key, None)  # it is opened again, without what was set aside
                return

    def _serve(self) -> None:
        self._enter("opening")
        self._files.folder.mkdir(parents=True, exist_ok=True)
        self._wait_while_paused()
        if self._stopped.is_set():
            return
        with contextlib.ExitStack() as opened:
            log = opened.enter_context(LogReader(self._context.data.log))
            query = self._opened(log)
            opened.callback(query.release)
            self._reached = max(self._reached, self._resume())
            self._published, self._said = frozenset(), (0, -1)
            self._take_in(query)
            aside = left_out(*map(self._aside_of, self._members.values()))
            place = self._context.catalogue_place
            running = query.start(place, begin=self._begin, wait_seconds=WAIT_SECONDS, aside=aside)
            try:
                self._running = running
                self._enter("running")
                self._resting.clear()
                self._follow(query, running, log)
                self._stuck = 0
            except Exception:
                self._stuck = 0 if running.status().batches else self._stuck + 1
                raise
            finally:
                running.stop()
                self._running = None
                self._planned = self._planned_to(query)

    def _aside_of(self, member: MemberFilters) -> SetAside:
        return SetAside.read(member.files.aside) if member.files.aside.exists() else SetAside()

    def _wait_while_paused(self) -> None:
        while self._paused.is_set() and not self._stopped.is_set():
            self._enter("paused")
            self._resting.set()
            self._told.wait(LOOK_SECONDS)
            self._told.clear()
        self._enter("opening")

    def _opened(self, log: LogReader) -> SharedQuery:
        """The query, where it was; else without its checkpoint, after the last event that is in all mailboxes."""
        if self._stuck < STUCK_TRIES:
            try:
                return self._query()
            except CheckpointError as error:
                self._problem = str(error)
        resume = self._resume()
        gone = log.removed_to(list(self._rows))
        if gone > resume and not self._context.recover:
            raise CheckpointError(
                f"{self._problem or 'the checkpoint is missing'}; all events before position {resume} are in the "
                "mailboxes, and the log has none "
                f"before {gone}: what lies between was not matched, and is gone. tidings serve --recover goes on "
                "without it"
            )
        _log.warning("shared: goes on from position %d with a new checkpoint: %s", resume, self._problem)
        self._stuck = 0
        self._begin = gone
        return self._query(recover=True)

    def _query(self, *, recover: bool = False) -> SharedQuery:
        context = self._context
        return SharedQuery(context.spark, context.data.log, self._sink, checkpoint=self._files.query, recover=recover)

    def _resume(self) -> int:
        with SharedProgress(self._files.progress) as progress:
            return progress.resume

    def _planned_to(self, query: SharedQuery) -> int:
        """The position up to which batches are planned: one that was not finished is run again."""
        return max(self._reached, query.checkpoint.planned_position() or 0)

    def _take_in(self, query: SharedQuery) -> None:
        """Follow the catalogue, and publish a version where anything has changed."""
        with self._changing:
            rows, revision = self._rows, self._revision
        for key in self._members.keys() - rows.keys():
            del self._members[key]
        for key, row in rows.items():
            member = self._members.get(key)
            if member is None:
                member = MemberFilters(self._context.data.domain(row.tenant, row.name), self._context.catalogue)
                if not member.files.mailboxes.exists():  # rather here than in the first batch
                    self._mailboxes(member).close()
                aside = self._aside_of(member)
                member.aside = {one.number: one.reason for one in aside.filters.values()}
                self._set_aside[key] = len(aside.filters) + len(aside.events)
                member.open(row, self._reached)
                self._members[key] = member
            elif row.revision > member.covers:
                if member.domain != domain_of(row):
                    member.open(row, self._reached)
                else:
                    member.follow(row)
        self._publish(query)
        if self._said != (said := (query.versions.current, revision)):
            query.versions.covers(revision)
            self._said = said

    def _publish(self, query: SharedQuery) -> None:
        changed = {key for key, member in self._members.items() if member.take_changed()}
        if changed or self._members.keys() != self._published or not query.versions.current:
            query.versions.publish({key: member.member() for key, member in self._members.items()}, changed)
            self._published = frozenset(self._members)

    def _follow(self, query: SharedQuery, running: Stream, log: LogReader) -> None:
        looked = pruned = counted = 0.0
        began = time.monotonic()
        while not self._stopped.is_set() and not self._paused.is_set():
            self._told.wait(LOOK_SECONDS)
            self._told.clear()
            now = time.monotonic()
            if now - looked >= REACHED_SECONDS:
                if running.wait(0):
                    raise TidingsError("the query ended by itself")
                if now - began > SETTLED_SECONDS:
                    self._problem = None
            try:
                self._take_in(query)
                if now - looked >= REACHED_SECONDS:
                    looked = now
                    self._look(query, log)
                if now - pruned >= PRUNE_SECONDS:
                    pruned = now
                    self._prune()
                if now - counted >= PACE_SECONDS:
                    counted = now
                    self._count()
            except (CatalogueBusyError, DeliveriesError, NotificationsError, SharedProgressError) as error:
                # Others keep a file locked: the query has what it needs, and the gate holds back what it must not have.
                self._problem = str(error)
                _log.warning("shared: %s", error)

    def _look(self, query: SharedQuery, log: LogReader) -> None:
        """How far the query has come: past the last event that it has loaded, and past others' events after that."""
        reached = max(self._reached, self._resume())
        end = log.end
        # After the end was read: where no domain has come since, every event before it is of one that is known.
        is_known = self._context.catalogue.revision() == self._said[1]
        if is_known and reached < end and log.advance(reached, domain=self._published, events=1, end=end) == reached:
            reached = end
        self._reached = reached
        for key, member in self._members.items():
            departed = self._departed.setdefault(key, Departed())
            departed.note(member.retire(reached), self._context.catalogue)
            if numbers := departed.due():
                with self._mailboxes(member) as mailboxes:
                    mailboxes.forget(numbers)
                member.forget(numbers)
        self._publish(query)

    def _prune(self) -> None:
        if cursors := self._cursors.changed():
            for member in list(self._members.values()):
                if (marks := marks_of(member, cursors)) and member.files.mailboxes.exists():
                    with self._mailboxes(member) as mailboxes:
                        prune(mailboxes, marks)
        self._cursors.pruned()

    def _count(self) -> None:
        with SharedProgress(self._files.progress) as progress:
            work = progress.work()
        now, (then, before) = time.monotonic(), self._counted
        if then:
            self._matched = self._matched or work != before
            for key, done in work.items():
                earlier = before.get(key, Work())
                events, seconds = done.events - earlier.events, done.seconds - earlier.seconds
                self._paces[key] = Work(events, seconds).over(now - then)
        self._counted = (now, work)

    def _mailboxes(self, member: MemberFilters) -> Notifications:
        member.files.folder.mkdir(parents=True, exist_ok=True)
        return Notifications(member.files.mailboxes, max_waiting=MAX_WAITING)
