"""Webhooks: every notification of a subscription, one after the other, until its receiver has confirmed it.

    woken, or due ─► a subscription's turn ─► attempt ─┬─ 2xx   ─► acknowledged, the next
                                                       ├─ 410   ─► the subscription is disabled
                                                       └─ other ─► noted; again after a pause, and a dead letter
                                                                   after the last

Order is kept by waiting: what failed holds back what comes after it until it is delivered or given up. Attempts and
when to try again are on disk, so a restart continues where it was. One subscription has one attempt under way; turns
are short, and shared fairly by tenants and their endpoints. An endpoint that keeps failing is suspended, and its
subscription says so: attempts are rare from then on, and the first that succeeds ends the suspension.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tidings.errors import TidingsError
from tidings.service.gateway.catalogue_cache import DELIVERED, KnownSubscriptions
from tidings.service.gateway.gateway_metrics import Metrics
from tidings.service.gateway.gateway_stores import Stores
from tidings.service.gateway.mailbox_reading import Mailboxes, Waiting, domain_key_of
from tidings.service.gateway.mailbox_watch import MailboxWatch
from tidings.service.gateway.scheduling import FairTurns, asking
from tidings.service.gateway.webhook_sending import Outcome, Sender
from tidings.store.catalogue import SubscriptionRow
from tidings.store.mailboxes.deliveries import Attempt

GONE = "the receiver answered 410 Gone"
_AT_ONCE = 64  # notifications that are read at a time
_AT_ONCE_BYTES = 256 << 10  # and their bytes, exceeded by one notification at most
_PAGE = 1_000
_LOOK_SECONDS = 30.0  # between looks at what is due, if nothing wakes us before
_logger = logging.getLogger(__name__)


class _Receiver(NamedTuple):
    """A subscription that is delivered by webhook."""

    tenant: str
    id: str
    endpoint: str  # the server that it goes to
    domain: str  # its key
    numbers: list[int]  # of its filters


class Webhooks:
    """Gives subscriptions their turns. All of it runs in the loop; stores are used in threads."""

    def __init__(
        self,
        stores: Stores,
        subscriptions: KnownSubscriptions,
        mailboxes: Mailboxes,
        watch: MailboxWatch,
        sender: Sender,
        metrics: Metrics,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._catalogue = stores.catalogue
        self._deliveries = stores.deliveries
        self._settings = settings = stores.settings.webhooks
        self._threads = stores.delivering
        self._subscriptions = subscriptions
        self._watch = watch
        self._sender = sender
        self._failure = asyncio.Event()  # there is something more to be tried again
        self._attempts = _Attempts(stores, subscriptions, mailboxes, sender, metrics, chance, self._failure)
        self._known: dict[int, _Receiver] = {}  # by the subscription's key
        self._numbers: dict[str, dict[int, int]] = {}  # domain's key → number of a filter → key
        self._turns = FairTurns(settings.at_once, lambda tenant: stores.settings.quotas.of(tenant).webhooks_at_once)
        self._again: set[int] = set()  # woken during their turn
        self._stumbled: set[int] = set()  # whose turn was cut short by a store
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self) -> None:
        """Delivers what waits, and what comes from now on."""
        after = 0
        while rows := await self._threads.run(self._page, after):
            for row in rows:
                self._add(row)
            after = rows[-1].key
        for key in await self._threads.run(self._deliveries.with_redriven):
            self._give_turn(key)
        self._watch.on_woken = self._woken  # before the first poll, which finds everything that waits
        for domain in self._numbers:
            self._watch.watch(domain)
        self._start(self._look(), "webhooks that are due")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _page(self, after: int) -> Sequence[SubscriptionRow]:
        return self._catalogue.webhooks(after=after, limit=_PAGE)

    async def stop(self) -> None:
        """Cancels attempts; what was not answered is sent again after the next start."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._sender.close()

    def changed(self, row: SubscriptionRow) -> None:
        """Takes up a subscription that was created or changed."""
        if row.delivery == "webhook":
            self._watch.watch(self._add(row))
            self._give_turn(row.key)
        else:
            self.removed(row.key)

    def removed(self, key: int) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            numbers = self._numbers.get(known.domain, {})
            for number in known.numbers:
                numbers.pop(number, None)
            if not numbers:
                self._numbers.pop(known.domain, None)
                self._watch.unwatch(known.domain)

    def _add(self, row: SubscriptionRow) -> str:
        """Remembers a subscription, and returns the key of its domain."""
        domain = domain_key_of(row)
        numbers = [filter.number for filter in row.filters]
        self._known[row.key] = _Receiver(row.tenant, row.id, _endpoint(row.url), domain, numbers)
        self._numbers.setdefault(domain, {}).update(dict.fromkeys(numbers, row.key))
        return domain

    def under_way(self, tenant: str) -> int:
        """Returns how many attempts of a tenant are under way."""
        return self._turns.running(tenant)

    # -- whose turn it is ----------------------------------------------------------------------------

    async def _woken(self, key: str, numbers: Sequence[int]) -> None:
        ours = self._numbers.get(key, {})
        for owner in {ours[number] for number in numbers if number in ours}:
            self._give_turn(owner)

    async def _look(self) -> None:
        """Gives turns to what is due, and to what a store has cut short."""
        while True:
            self._failure.clear()
            stumbled, self._stumbled = self._stumbled, set()
            pause = _LOOK_SECONDS
            try:
                now = _now()
                for key in await self._threads.run(self._deliveries.due, now):
                    self._give_turn(key)
                next_due = await self._threads.run(self._deliveries.next_due, now)
                if next_due is not None:
                    pause = min(max((next_due - _now()) / 1e6, 0.0), pause)
            except Exception as error:  # whatever it is, attempts go on
                _logger.warning("webhooks: %s", error, exc_info=not isinstance(error, TidingsError | OSError))
                pause = self._settings.stumbled_seconds
            if stumbled:
                await asyncio.sleep(self._settings.stumbled_seconds)
                for key in stumbled:
                    self._give_turn(key)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._failure.wait(), pause)

    def _give_turn(self, key: int) -> None:
        """Queues a subscription for a turn, unless it waits; after the turn that it has, if it has one."""
        if self._turns.has_turn(key):
            self._again.add(key)
        elif key in self._known and key not in self._turns:
            known = self._known[key]
            self._turns.wait(key, known.tenant, known.endpoint)
            self._begin_turns()

    def _begin_turns(self) -> None:
        while not self._stopping and (key := self._turns.next()) is not None:
            self._start(self._turn(key), f"webhook of the subscription with the key {key}")

    async def _turn(self, key: int) -> None:
        asking.set(self._known[key].tenant if key in self._known else None)
        more = False
        try:
            more = await self._attempts.make_some(key, self._deliverable)
        except Exception as error:
            ours = not isinstance(error, TidingsError | OSError)
            level = logging.ERROR if ours else logging.WARNING
            _logger.log(level, "webhook of the subscription with the key %d: %s", key, error, exc_info=ours)
            self._stumbled.add(key)
            self._failure.set()
        finally:
            self._turns.end(key)
        if more or key in self._again:
            self._again.discard(key)
            self._give_turn(key)
        self._begin_turns()

    async def _deliverable(self, key: int) -> SubscriptionRow | None:
        """Returns a subscription as it is now; None if nothing is to be sent for it."""
        known = self._known.get(key)
        row = None if known is None else await self._subscriptions.find(known.tenant, known.id)
        if row is None or row.key != key or row.delivery != "webhook" or row.url is None or row.secret is None:
            self.removed(key)
            return None
        return row if row.state in DELIVERED else None


class _Attempts:
    """Sends the notifications of subscriptions, and notes how each attempt ended."""

    def __init__(
        self,
        stores: Stores,
        subscriptions: KnownSubscriptions,
        mailboxes: Mailboxes,
        sender: Sender,
        metrics: Metrics,
        chance: Callable[[], float],
        failure: asyncio.Event,
    ) -> None:
        self._catalogue = stores.catalogue
        self._deliveries = stores.deliveries
        self._settings = stores.settings.webhooks
        self._threads = stores.delivering
        self._subscriptions = subscriptions
        self._mailboxes = mailboxes
        self._sender = sender
        self._metrics = metrics
        self._chance = chance
        self._failure = failure

    async def make_some(self, key: int, deliverable: Callable[[int], Awaitable[SubscriptionRow | None]]) -> bool:
        """Delivers the next few notifications of a subscription; returns whether to go on."""
        row = await deliverable(key)
        if row is None:
            return False
        again, waiting, attempts, after, cursor = await self._threads.run(self._next, row)
        ends = time.monotonic() + self._settings.turn_seconds
        moved = False
        for number, notification in enumerate([*again, *waiting]):
            redriven = number < len(again)  # they lie before the cursor: nothing waits for them
            done = await self._attempt(row, notification, attempts.get(notification.position), redriven=redriven)
            moved |= done
            if not done and not redriven:
                return moved
            row = await deliverable(key)
            if row is None:
                return False
            if time.monotonic() > ends:
                return True
        if not waiting and after > cursor:
            await self._threads.run(self._deliveries.acknowledge, key, after)
        return moved or after > cursor

    def _next(self, row: SubscriptionRow) -> tuple[list[Waiting], list[Waiting], dict[int, Attempt], int, int]:
        attempts = {attempt.position: attempt for attempt in self._deliveries.attempts(row.key)}
        again = self._mailboxes.redriven(row, _AT_ONCE, _AT_ONCE_BYTES)
        cursor = self._deliveries.cursor(row.key)
        taken = self._mailboxes.take(row, cursor, _AT_ONCE, _AT_ONCE_BYTES)
        return again, taken.waiting, attempts, taken.after, cursor

    async def _attempt(
        self, row: SubscriptionRow, notification: Waiting, attempt: Attempt | None, *, redriven: bool
    ) -> bool:
        """Sends one notification, unless its time has not come, and notes the outcome; returns whether it is done."""
        if attempt is not None and attempt.next_try > _now():
            return False
        assert row.url is not None
        assert row.secret is not None
        position = notification.position
        secrets = [row.secret]
        if row.old_secret is not None and (row.old_secret_until or 0) > _now():
            secrets.append(row.old_secret)
        message = f"{row.id}.{position}"
        outcome = await self._sender.send(row.url, secrets, message, _payload(row, notification), who=row.tenant)
        current = await self._subscriptions.find(row.tenant, row.id)
        if current is None or current.key != row.key:
            return False  # it was deleted meanwhile
        if outcome.delivered:
            self._metrics.attempted("delivered")
            self._metrics.delivered("webhook", f"{row.tenant}/{row.id}", 1)
            settle = self._deliveries.delivered if redriven else self._deliveries.acknowledge
            await self._threads.run(settle, row.key, position)
            if current.suspended is not None:
                await self._suspend(current, None)
            return True
        if outcome.gone:
            self._metrics.attempted("gone")
            await self._disable(row)
            return False
        self._metrics.attempted("failed")
        failures = 1 + (0 if attempt is None else attempt.attempts)
        if failures >= self._settings.suspended_after and current.suspended is None:
            current = await self._suspend(current, f"{outcome.reason}; {failures} attempts in a row have failed")
        given_up = await self._threads.run(self._failed, current, position, outcome, failures, redriven)
        self._failure.set()
        return given_up

    def _failed(self, row: SubscriptionRow, position: int, outcome: Outcome, failures: int, redriven: bool) -> bool:
        """Notes a failure; returns whether it was the last, so that the next notification has its turn."""
        settings = self._settings
        if failures > len(settings.backoff_seconds):
            self._deliveries.dead(row.key, position, outcome.reason, failures, acknowledge=not redriven)
            self._metrics.dead()
            _logger.warning("webhook of subscription %s: gave up position %d: %s", row.id, position, outcome.reason)
            return True
        pause = settings.backoff_seconds[failures - 1] * (1 + settings.jitter * (2 * self._chance() - 1))
        if outcome.retry_after is not None:
            pause = max(pause, min(outcome.retry_after, settings.max_retry_after_seconds))
        if row.suspended is not None:
            pause = max(pause, settings.probe_seconds)
        self._deliveries.failed(row.key, position, outcome.reason, _now() + round(pause * 1e6))
        return False

    async def _suspend(self, row: SubscriptionRow, reason: str | None) -> SubscriptionRow:
        """Suspends a subscription for a reason; with None, ends its suspension."""
        changed = await self._threads.run(lambda: self._catalogue.update(row.tenant, row.id, suspended=reason))
        self._subscriptions.forget(row.tenant, row.id)
        said = "is reached again" if reason is None else f"is suspended: {reason}"
        _logger.warning("webhook of subscription %s/%s %s", row.tenant, row.id, said)
        return changed

    async def _disable(self, row: SubscriptionRow) -> None:
        await self._threads.run(lambda: self._catalogue.update(row.tenant, row.id, disabled=GONE))
        self._subscriptions.forget(row.tenant, row.id)
        _logger.warning("webhook of subscription %s: %s, so it is disabled", row.id, GONE)


def _endpoint(url: str | None) -> str:
    """Returns the server of a URL, which its receivers share."""
    parts = urlsplit(url or "")
    return f"{parts.scheme}://{parts.netloc.lower()}"


def _payload(row: SubscriptionRow, notification: Waiting) -> str:
    """Returns type, timestamp and data, as Standard Webhooks has it. An event is as it was published."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    id_ = json.dumps(row.id, ensure_ascii=False)
    return (
        f'{{"type":"tidings.notification","timestamp":"{stamp}","data":{{"subscription":{id_},'
        f'"domain":"{row.domain}","position":{notification.position},{notification.member}}}}}'
    )


def _now() -> int:
    return time.time_ns() // 1000
