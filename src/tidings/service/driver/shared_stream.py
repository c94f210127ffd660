"""The stream that small domains share: one query over the events of all of them.

A domain is a member from the first version of the subscriptions that has it. It leaves, for a stream of its own, when
it has grown, and comes back when it is small again; both streams may match some of its events then, which the
mailboxes take once: see `stream_assignment`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.pipeline.sinks.stream_sinks import SharedSink
from tidings.pipeline.streams.shared_query import SharedQuery
from tidings.service.driver.followed_filters import MemberFilters, domain_of
from tidings.service.driver.mailbox_upkeep import MailboxUpkeep
from tidings.service.driver.stream_thread import (
    WAIT_SECONDS,
    DriverContext,
    StreamThread,
    Timer,
    left_out,
)
from tidings.store.catalogue import DomainRow
from tidings.store.log.log_reader import LogReader
from tidings.store.mailboxes.notifications import MAX_WAITING, Notifications
from tidings.store.mailboxes.shared_progress import Pace, SharedProgress, Work

if TYPE_CHECKING:
    from tidings.pipeline.streams.stream_query import Stream

PACE_SECONDS = 10.0  # over which the events of a domain are counted


class SharedStream(StreamThread):
    """Matches the events of all its members from `start` until `stop`."""

    _query: SharedQuery  # while the thread serves

    def __init__(self, context: DriverContext) -> None:
        self._files = context.data.shared
        super().__init__("shared", context, self._files.query)
        self._changing = threading.Lock()  # over what the driver tells and the thread takes up
        self._rows: dict[str, DomainRow] = {}  # of the domains that are to be members
        self._revision = -1  # of the catalogue that these rows are of
        self._members: dict[str, MemberFilters] = {}
        self._mailbox_upkeep: dict[str, MailboxUpkeep] = {}
        self._published: frozenset[str] = frozenset()  # the members of the current version
        self._covered = (0, -1)  # the current version, and the revision that it was last said to cover
        self._paces = Paces()

    # ------------------------------------------------------------------ called by the driver

    def tell(self, rows: Mapping[str, DomainRow], revision: int) -> None:
        """Have these domains as members, as they are at a revision of the catalogue."""
        with self._changing:
            self._rows, self._revision = dict(rows), revision
        self._told.set()

    def has(self, key: str) -> bool:
        """Whether the current version has a domain: the batches after this one do."""
        return key in self._published

    def subscriptions(self, key: str) -> int:
        """How many filters of a member have not ended."""
        member = self._members.get(key)
        return 0 if member is None else member.in_force()

    def pace(self, key: str) -> Pace:
        """How many events and how much time a member takes each second."""
        return self._paces.of(key)

    @property
    def has_matched(self) -> bool:
        return self._paces.has_any

    def status(self) -> dict[str, Any]:
        return {**super().status(), "domains": len(self._members)}

    def statuses(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the status of each domain that is a member or about to be, with its key."""
        state = self._state
        for key in list(self._rows):
            member = self._members.get(key)
            status = {
                "state": state if key in self._published or state != "running" else "opening",
                "since": self._since,
                "problem": self._problem,
                "reached": self._reached,
                "covers": -1,
                "events": self._paces.done(key).events,
                "events_per_second": round(self.pace(key).events, 1),
                "shared": True,
            }
            yield key, status if member is None else status | member.status()

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        self._files.folder.mkdir(parents=True, exist_ok=True)
        self._enter("opening")
        with LogReader(self._context.data.log) as log:
            self._run_query(log)

    def _start_query(self, *, recover: bool) -> Stream:
        context = self._context
        sink = SharedSink(context.data.domains, self._files.progress)
        query = SharedQuery(context.spark, context.data.log, sink, checkpoint=self._files.query, recover=recover)
        with contextlib.ExitStack() as undo:
            undo.callback(query.release)
            self._query = query
            self._reached = max(self._reached, self._resume())
            self._published, self._covered = frozenset(), (0, -1)
            self._follow_members()
            aside = left_out(self._members.values())
            running = query.start(context.catalogue_place, begin=self._begin, wait_seconds=WAIT_SECONDS, aside=aside)
            undo.pop_all()
        return running

    def _rows_followed(self) -> Collection[DomainRow]:
        return list(self._rows.values())

    def _keys_matched(self) -> Collection[str]:
        return self._published

    def _resume(self) -> int:
        with SharedProgress(self._files.progress) as progress:
            return progress.resume

    def _set_aside(self, key: str) -> None:
        if key in self._members:
            self._members[key].close()

    def _has_to_change(self) -> bool:
        return False  # its members do

    def _knows_all_domains(self) -> bool:
        return self._context.catalogue.revision() == self._covered[1]

    def _upkeep(self) -> Iterable[MailboxUpkeep]:
        return list(self._mailbox_upkeep.values())

    def _after_look(self, running: Stream) -> None:
        self._publish()
        self._paces.look(self._files.progress)

    def _after_query(self, ended: Stream) -> None:
        pass

    # ------------------------------------------------------------------ members

    def _follow_catalogue(self, running: Stream) -> None:
        self._follow_members()

    def _follow_members(self) -> None:
        """Follows the filters of all members, and publishes a version if anything has changed."""
        with self._changing:
            rows, revision = self._rows, self._revision
        for key in self._members.keys() - rows.keys():
            del self._members[key], self._mailbox_upkeep[key]
        for key, row in rows.items():
            member = self._members.get(key) or self._joined(row)
            if row.revision > member.covers:
                if member.domain == domain_of(row):
                    member.follow(row)
                else:
                    member.open(row, self._reached)
        self._publish()
        covered = self._query.versions.current, revision
        if self._covered != covered:
            self._query.versions.covers(revision)
            self._covered = covered

    def _joined(self, row: DomainRow) -> MemberFilters:
        files = self._context.data.domain(row.tenant, row.name)
        member = MemberFilters(files, self._context.catalogue)

        def mailboxes() -> Notifications:
            files.folder.mkdir(parents=True, exist_ok=True)
            return Notifications(files.mailboxes, max_waiting=MAX_WAITING)

        if not files.mailboxes.exists():  # made here, so that the first batch does not wait for it
            mailboxes().close()
        member.open(row, self._reached)
        self._members[row.key] = member
        self._mailbox_upkeep[row.key] = MailboxUpkeep(member, self._context.catalogue, mailboxes)
        return member

    def _publish(self) -> None:
        versions = self._query.versions
        changed = {key for key, member in self._members.items() if member.take_changed()}
        if changed or self._members.keys() != self._published or not versions.current:
            versions.publish({key: member.member() for key, member in self._members.items()}, changed)
            self._published = frozenset(self._members)


class Paces:
    """How much each member of the shared stream takes, by what the stream's progress counts."""

    def __init__(self) -> None:
        self.has_any = False  # events were matched since the first look
        self._timer = Timer(PACE_SECONDS)
        self._counted: tuple[float, dict[str, Work]] | None = None  # when, and what was done by then for each domain
        self._paces: dict[str, Pace] = {}

    def of(self, key: str) -> Pace:
        return self._paces.get(key, Pace(0.0, 0.0))

    def done(self, key: str) -> Work:
        """What was done for a domain by the last look."""
        return Work() if self._counted is None else self._counted[1].get(key, Work())

    def look(self, path: Path) -> None:
        """Compares the work that was done with that at the last look, if it is time."""
        if not self._timer.is_due():
            return
        with SharedProgress(path) as progress:
            work = progress.work()
        now = time.monotonic()
        if self._counted is not None:
            then, before = self._counted
            self.has_any = self.has_any or work != before
            for key, done in work.items():
                earlier = before.get(key, Work())
                events, seconds = done.events - earlier.events, done.seconds - earlier.seconds
                self._paces[key] = Work(events, seconds).over(now - then)
        self._counted = (now, work)
