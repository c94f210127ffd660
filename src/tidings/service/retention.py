"""How long events are kept: as long as the operator wants, and beyond that as long as anybody needs them.

    position   0 …                                      end
               │ removed │ needed       │ wanted            │
                         ▲              ▲
                  the first that    the first that the
                  is needed         operator's limits keep

An event is needed as long as a stream has not matched it, a history or a backtest that was asked for has not
read it, or a notification of it waits to be acknowledged. A subscriber who stays away so holds the log; the
service says who it is. Dead letters hold nothing: their events are there for as long as others are.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import NamedTuple

from tidings.service.background import Background
from tidings.service.lag import Lag
from tidings.service.mailbox import Mailboxes, domain_key_of
from tidings.service.retention_limits import Limits
from tidings.store.catalogue import Catalogue
from tidings.store.deliveries import Deliveries
from tidings.store.log import Log

_logger = logging.getLogger(__name__)


class Need(NamedTuple):
    """The first position that somebody needs, and who."""

    position: int
    who: str


class Retention:
    """Removes from the log what is past its limits and needed by nobody."""

    def __init__(
        self, log: Log, catalogue: Catalogue, mailboxes: Mailboxes, deliveries: Deliveries, lag: Lag, limits: Limits,
        seconds: float, executor: Executor,
    ) -> None:  # fmt: skip
        self._log = log
        self._catalogue = catalogue
        self._mailboxes = mailboxes
        self._deliveries = deliveries
        self._lag = lag
        self._limits = limits
        self._executor = executor
        self._background = Background("retention", seconds, self._once)
        self._reached: dict[str, tuple[int, int]] = {}  # what was told the last time: the driver's process, a position
        # Who asks for history holds this: what they were told that there is stays until it is known what they need.
        self.lock = threading.Lock()
        self.held_by: Need | None = None  # who keeps the log from being shorter

    def start(self) -> None:
        if self._limits != Limits():
            self._background.start()

    async def stop(self) -> None:
        await self._background.stop()

    async def _once(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self.once)

    def once(self) -> int:
        """Remove what can be; answers the position that the log begins at now."""
        with self.lock:
            wanted = self._log.kept_from(max_age=self._limits.max_age, max_bytes=self._limits.max_bytes)
            start = self._log.start
            matched = self._matched()
            if wanted <= start:
                self.held_by = None
                return start
            needs = [matched, *self._asked_for(), *self._redriven(), *self._waiting(wanted)]
            first = min(needs, key=lambda need: need.position, default=Need(wanted, ""))
            self.held_by = first if first.position < wanted else None
            kept = self._log.retain(from_position=max(start, min(wanted, first.position)))
        if kept > start:
            _logger.info("the log begins at position %d now, and began at %d", kept, start)
        return kept

    def _matched(self) -> Need:
        """What every stream has done with.

        A query that is started again may read its last micro-batch once more, all of which lies before what
        it had told. So what counts is what it told the time before, if it has been running since.
        """
        process = self._lag.status.get("pid") if self._lag.driver == "running" else None
        first = Need(self._log.end, "")
        told: dict[str, tuple[int, int]] = {}
        for row in self._catalogue.domains():
            before = self._reached.get(row.key)
            if isinstance(process, int) and self._lag.domain(row.key).get("state") == "running":
                told[row.key] = (process, self._lag.reached(row.key))
            settled = before[1] if before is not None and row.key in told and before[0] == process else -1
            if settled < first.position:
                first = Need(settled, f"the stream of {row.key} has not told that it is further")
        self._reached = told
        return first

    def _asked_for(self) -> Iterator[Need]:
        """Histories that are being replayed or backtested."""
        for job in self._catalogue.open_jobs():
            start = job.request.get("from")
            if isinstance(start, int):
                yield Need(start, f"a {job.kind} of {job.tenant} is under way")
        for row in self._catalogue.unfinished():
            if row.replay_from is not None:
                yield Need(row.replay_from, f"the history of subscription {row.tenant}/{row.subscription}")

    def _redriven(self) -> Iterator[Need]:
        for key in self._deliveries.with_redriven():
            for position in self._deliveries.redriven(key, limit=1):
                yield Need(position, "a dead letter that is to be delivered once more")

    def _waiting(self, wanted: int) -> Iterator[Need]:
        """Notifications that nobody has acknowledged, of events that would be removed."""
        for domain in self._catalogue.domains():
            numbers = self._mailboxes.waiting_before(domain.key, wanted)
            rows = {row.key: row for row in self._catalogue.by_filter(numbers).values()} if numbers else {}
            for row in rows.values():
                assert domain_key_of(row) == domain.key
                for position in self._mailboxes.positions(row, self._deliveries.cursor(row.key), 1):
                    if position < wanted:
                        yield Need(position, f"subscription {row.tenant}/{row.id} has not acknowledged it")
