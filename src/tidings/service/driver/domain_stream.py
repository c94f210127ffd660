"""The stream of one large domain, with an index of files that may be routed by a View."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from tidings import pipeline
from tidings.model.domain import RESERVED_PREFIX
from tidings.pipeline.sinks.stream_sinks import StoreSink
from tidings.pipeline.sources.stream_sources import LogEvents
from tidings.pipeline.sources.version_gate import Gate
from tidings.pipeline.streams.checkpoint import IDENTITY
from tidings.service.driver.domain_adaptation import Adapter, BatchCount, Routing, carries_pages
from tidings.service.driver.domain_index import DomainIndex
from tidings.service.driver.followed_filters import domain_of
from tidings.service.driver.mailbox_upkeep import MailboxUpkeep
from tidings.service.driver.stream_thread import WAIT_SECONDS, DriverContext, StreamThread, left_out
from tidings.store.catalogue import DomainRow
from tidings.store.log.log_reader import LogReader
from tidings.store.mailboxes.notifications import MAX_WAITING, Notifications
from tidings.systems.interface import REPLICATED

if TYPE_CHECKING:
    from tidings.pipeline.streams.stream_query import Status, Stream

EVENTS_A_BATCH = 20_000  # at most: a backlog is matched in micro-batches that end soon


class DomainStream(StreamThread):
    """Matches the events of one domain from `start` until `stop`."""

    _mailboxes: Notifications  # while the thread serves
    _opened: DomainRow  # the domain as it was when the index was opened

    def __init__(self, context: DriverContext, row: DomainRow, *, begin: int = 0) -> None:
        """`begin` is a position before which another stream has matched all events of the domain."""
        self._files = context.data.domain(row.tenant, row.name)
        super().__init__(row.key, context, self._files.query)
        self.key = row.key
        self._begin = begin
        self._row = row
        self._index = DomainIndex(self._files, context.catalogue, context.spark)
        self._adapter = (
            None if context.adapting is None else Adapter(context.adapting, self._files, lambda: self._row.placement)
        )
        self._mailbox_upkeep = MailboxUpkeep(
            self._index, context.catalogue, lambda: contextlib.nullcontext(self._mailboxes)
        )
        self._is_routed_otherwise = False  # than the query that runs
        self._started_with: Routing | None = None  # of the query that runs
        self._before: tuple[int, ...] = (0, 0, 0, 0)  # counts of queries that have ended

    # ------------------------------------------------------------------ called by the driver

    def tell(self, row: DomainRow) -> None:
        """Notifies the stream of a change of the domain or of its filters."""
        self._row = row
        self._told.set()

    def has_at_most(self, filters: int) -> bool:
        """Whether at most this many filters are in force."""
        return len(self._index.known) < 20 * filters + 1_000 and self._index.in_force() <= filters

    @property
    def has_matched(self) -> bool:
        return bool(self._counts()[0])

    def status(self) -> dict[str, Any]:
        events, matches, candidates, _ = self._counts()
        status = super().status()
        return {
            **status,
            "version": status["version"] or self._index.version,
            "events": events,
            "matches": matches,
            "candidates": candidates,
            **self._adapted(),
            **self._index.status(),
        }

    def _counts(self) -> tuple[int, ...]:
        """Events, matches, candidates and micro-batches of all queries of this driver."""
        query = self._query_status()
        return self._before if query is None else self._counted(query)

    def _counted(self, query: Status) -> tuple[int, ...]:
        counts = query.events, query.matches, query.candidates, query.batches
        return tuple(before + more for before, more in zip(self._before, counts, strict=True))

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
        self._enter("opening")
        row = self._opened = self._row
        with contextlib.ExitStack() as opened:
            self._files.folder.mkdir(parents=True, exist_ok=True)
            log = opened.enter_context(LogReader(self._context.data.log))
            mailboxes = opened.enter_context(Notifications(self._files.mailboxes, max_waiting=MAX_WAITING))
            self._mailboxes = mailboxes
            self._reached = max(self._reached, self._resume())
            self._index.open(row, self._reached)
            if self._adapter is not None:
                self._adapter.opened(self._index, mailboxes)
            while not self._stopped.is_set() and self._row.definition == row.definition:
                self._run_query(log)

    def _start_query(self, *, recover: bool) -> Stream:
        routing = self._routing
        self._is_routed_otherwise, self._started_with = False, routing
        context, row = self._context, self._opened
        events = LogEvents(
            context.data.log,
            domain_of(row),
            start=self._begin,
            max_events_per_trigger=EVENTS_A_BATCH,
            carry=carries_pages(context.spark),
            prefix=RESERVED_PREFIX,
            gate=Gate(context.catalogue_place, row.tenant, row.name, str(self._files.index)),
            wait_seconds=WAIT_SECONDS,
        )
        with context.starting:
            return pipeline.stream(
                events,
                self._files.index,
                StoreSink(self._files.mailboxes),
                checkpoint=self._files.query,
                trigger=0,
                recover=recover,
                partitions=None if routing is None else routing.partitions,
                lists=routing is not None and routing.lists,
                aside=left_out([self._index]),
            )

    def _rows_followed(self) -> Collection[DomainRow]:
        return [self._row]

    def _keys_matched(self) -> Collection[str]:
        return [self.key]

    def _resume(self) -> int:
        return max(self._begin, self._mailboxes.resume())

    def _is_new(self, resume: int) -> bool:
        return resume > 0 and not (self._files.query / IDENTITY).exists()

    def _has_to_change(self) -> bool:
        """Whether the domain has another schema, or its events are routed otherwise."""
        return self._row.definition != self._opened.definition or self._is_routed_otherwise

    def _follow_catalogue(self, running: Stream) -> None:
        row = self._row
        if row.definition == self._opened.definition and self._index.follow(row):
            running.take_up()

    def _upkeep(self) -> Iterable[MailboxUpkeep]:
        return [self._mailbox_upkeep]

    def _after_look(self, running: Stream) -> None:
        running.take_up()
        events, _, _, batches = self._counts()
        count = BatchCount(events, batches, running.counts)
        if self._adapter is not None and self._adapter.look(self._index, self._mailboxes, count):
            running.take_up()  # from its next micro-batch on; the one that runs keeps its version
            self._index.forget_views()
            self._is_routed_otherwise = self._routing != self._started_with

    def _set_aside(self, key: str) -> None:
        """The index is opened again whenever the stream is."""

    def _after_query(self, ended: Stream) -> None:
        self._before = self._counted(ended.status())

    @property
    def _routing(self) -> Routing | None:
        return None if self._adapter is None else self._adapter.routing
