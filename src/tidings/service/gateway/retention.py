"""How long events are kept: as long as the operator wants, and beyond that as long as anybody needs them, up to a cap.

    position   0 …                                                  end
               │ removed │ given up │ needed       │ wanted            │
                                    ▲              ▲
                             the cap, or the    the first that the
                             first needed       operator's limits keep

An event is needed until every stream has matched it, every requested history and backtest has read it, and its
notifications are acknowledged. So a subscriber that stays away holds the log, and the service reports which one. Nobody
holds it forever: beyond some bytes of a tenant's own or of all tenants, or beyond an age, the oldest notifications of
absent subscribers become dead letters, and a stream that does not come further is no longer waited for. Dead letters
hold nothing: their events are kept as long as others.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from tidings.service.gateway.driver_lag import Lag
from tidings.service.gateway.gateway_settings import Limits
from tidings.service.gateway.gateway_stores import Stores
from tidings.service.gateway.mailbox_reading import Mailboxes, domain_key_of
from tidings.service.gateway.scheduling import Background
from tidings.store.catalogue import SubscriptionRow

_SAID = 20  # of those that are not waited for are logged
_AT_ONCE = 10_000  # notifications that are given up in one transaction
_logger = logging.getLogger(__name__)


HELD = "the event was removed from the log: too much of it, or for too long, was kept for notifications of this tenant \
that nobody acknowledged"


class Need(NamedTuple):
    """The first position that is needed, and by whom."""

    position: int
    who: str
    tenant: str
    give_up: Callable[[int], None] | None = None  # gives up all before a position; None: nothing is noted
    insists: bool = False  # it is always met: a stream that comes further


class Retention:
    """Removes from the log what exceeds its limits and nobody needs."""

    def __init__(self, stores: Stores, mailboxes: Mailboxes, lag: Lag) -> None:
        self._log = stores.log
        self._catalogue = stores.catalogue
        self._deliveries = stores.deliveries
        self._threads = stores.storing
        self._limits = stores.settings.retain
        self._held = stores.settings.held
        self._quotas = stores.settings.quotas
        self._mailboxes = mailboxes
        self._lag = lag
        self._background = Background("retention", stores.settings.retain_seconds, self._once)
        self._began = time.monotonic()
        self._moved: dict[str, tuple[int, float]] = {}  # by domain: how far its stream was, and since when
        self._reached: dict[str, tuple[int, int]] = {}  # what was last reported: the driver's process, a position
        # Held by requests for history: what they were promised stays until it is known what they need.
        self.lock = threading.Lock()
        self.held_by: Need | None = None  # what keeps the log from being shorter
        self.held_bytes: dict[str, int] = {}  # by tenant: of its own events, what the log keeps for its needs
        self.given_up: list[Need] = []  # those that are no longer waited for

    def start(self) -> None:
        if self._limits != Limits():
            self._background.start()

    async def stop(self) -> None:
        await self._background.stop()

    async def _once(self) -> None:
        await self._threads.run(self.once)

    def once(self) -> int:
        """Removes what can be removed; returns the position at which the log begins now."""
        wanted = self._log.kept_from(max_age=self._limits.max_age, max_bytes=self._limits.max_bytes)
        start = self._log.start
        matched = list(self._matched())
        if wanted <= start:
            self.held_by, self.held_bytes, self.given_up = None, {}, []
            return start
        asked = list(self._asked_for())
        needs = [*matched, *asked, *self._redriven(), *self._waiting(wanted)]
        needs = self._within_bounds([need for need in needs if need.position < wanted], wanted)
        self.held_by = min(needs, key=lambda need: need.position, default=None)
        first = wanted if self.held_by is None else self.held_by.position
        with self.lock:  # for this alone: what is above takes long where many stay away
            since = [need.position for need in self._asked_for() if need not in asked]
            kept = self._log.retain(from_position=max(start, min([first, *since])))
        if kept > start:
            _logger.info("the log begins at position %d now, and began at %d", kept, start)
        return kept

    def _within_bounds(self, needs: list[Need], wanted: int) -> list[Need]:
        """Returns the needs that are met, each from the first position that it may hold; the rest is given up."""
        age = (self._limits.max_age or dt.timedelta()) + self._held.max_age
        oldest = self._log.position_at(dt.datetime.now(dt.UTC) - age)
        first: dict[str, int] = {}  # that each tenant needs
        for need in needs:
            first[need.tenant] = min(need.position, first.get(need.tenant, need.position))
        self.held_bytes = {
            tenant: self._log.bytes_between(place, wanted, prefix=f"{tenant}.")
            for tenant, place in sorted(first.items())
        }
        oldest = max(oldest, self._log.position_of_newest(self._quotas.service.max_held_log_bytes, before=wanted))
        floors = dict.fromkeys(first, oldest)
        for tenant, size in self.held_bytes.items():
            most = self._quotas.of(tenant).held_log_bytes
            if size > most:
                own = self._log.position_of_newest(most, before=wanted, prefix=f"{tenant}.")
                floors[tenant] = max(oldest, own)
        if time.monotonic() - self._began < self._held.grace_seconds:
            floors = dict.fromkeys(first, 0)  # nobody has had time to come back yet
        met: list[Need] = []
        excess: list[Need] = []
        for need in needs:
            (met if need.insists or need.position >= floors[need.tenant] else excess).append(need)
        first_met = min((need.position for need in met), default=wanted)  # giving up what lies after it gains nothing
        self.given_up = [need for need in excess if need.position < first_met]
        for need in self.given_up[:_SAID]:
            _logger.error(
                "log: the events from position %d on are not kept any longer though %s: too much of the log, or for "
                "too long, was held for the tenant %s, one of %d that are not waited for",
                need.position,
                need.who,
                need.tenant,
                len(self.given_up),
            )
        for need in self.given_up:
            if need.give_up is not None:
                need.give_up(min(floors[need.tenant], first_met))
        return met + [need._replace(position=max(need.position, floors[need.tenant])) for need in excess]

    def _matched(self) -> Iterator[Need]:
        """Yields what every stream has finished.

        A query that is restarted may read its last micro-batch again, all of which lies before what it had reported. So
        what counts is the report before the last, if it has been running since.
        """
        process = self._lag.status.get("pid") if self._lag.driver == "running" else None
        reported: dict[str, tuple[int, int]] = {}
        for row in self._catalogue.domains():
            before = self._reached.get(row.key)
            if isinstance(process, int) and self._lag.domain(row.key).get("state") == "running":
                reported[row.key] = (process, self._lag.reached(row.key))
            if before is not None and row.key in reported and before[0] == process:
                settled = before[1]
            else:  # all that there is; what was removed before it had come so far, it misses
                reached = self._lag.reached(row.key)
                settled = self._log.start if reached < 0 else min(reached, self._log.start)
            said = f"the stream of {row.key} has not reported that it has passed it"
            yield Need(settled, said, row.tenant, insists=self._gets_on(row.key, is_running=row.key in reported))
        self._reached = reported

    def _gets_on(self, key: str, *, is_running: bool) -> bool:
        """Whether a stream has come further within the grace, or runs and has nothing to match."""
        reached, now = self._lag.reached(key), time.monotonic()
        last, since = self._moved.get(key, (-2, now))
        if reached > last or (is_running and not self._lag.of(key)):
            self._moved[key] = (reached, now)
            return True
        return now - since < self._held.grace_seconds

    def _asked_for(self) -> Iterator[Need]:
        """Yields histories that are being replayed or backtested."""
        for job in self._catalogue.open_jobs():
            start = job.request.get("from")
            if isinstance(start, int):
                yield Need(start, f"a {job.kind} of {job.tenant} is under way", job.tenant)
        for row in self._catalogue.unfinished():
            if row.replay_from is not None:
                said = f"the history of subscription {row.tenant}/{row.subscription} is requested"
                yield Need(row.replay_from, said, row.tenant)

    def _redriven(self) -> Iterator[Need]:
        keys = self._deliveries.with_redriven()
        owners = self._catalogue.by_key(keys)
        for key in keys:
            for position in self._deliveries.redriven(key, limit=1):
                tenant = owners[key].tenant if key in owners else ""
                said = "a dead letter is to be delivered again"
                yield Need(position, said, tenant, partial(self._give_redriven_up, key))

    def _give_redriven_up(self, key: int, before: int) -> None:
        while found := [position for position in self._deliveries.redriven(key, limit=_AT_ONCE) if position < before]:
            for position in found:
                self._deliveries.dead(key, position, HELD)

    def _waiting(self, wanted: int) -> Iterator[Need]:
        """Yields notifications of events that would be removed and are not acknowledged."""
        for domain in self._catalogue.domains():
            numbers = self._mailboxes.waiting_before(domain.key, wanted)
            rows = {row.key: row for row in self._catalogue.by_filter(numbers).values()} if numbers else {}
            for row in rows.values():
                assert domain_key_of(row) == domain.key
                for position in self._mailboxes.positions(row, self._deliveries.cursor(row.key), 1):
                    if position < wanted:
                        said = f"subscription {row.tenant}/{row.id} has not acknowledged it"
                        yield Need(position, said, row.tenant, partial(self._give_notifications_up, row))

    def _give_notifications_up(self, row: SubscriptionRow, before: int) -> None:
        while True:
            waiting = self._mailboxes.positions(row, self._deliveries.cursor(row.key), _AT_ONCE)
            given_up = [position for position in waiting if position < before]
            if not given_up:
                return
            self._deliveries.dead_many(row.key, dict.fromkeys(given_up, HELD), cursors={row.key: given_up[-1]})
