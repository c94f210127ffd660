"""Creates, changes and ends subscriptions, so that each event falls on one side of every change.

A filter is written down first, and the end of the log is read after that: from there on it is promised. Every event at
that position or later was appended after the filter was in the catalogue, which the driver reads before it matches.

Subscriptions that are requested at the same time are written together: two syncs for all instead of two for each.

    request ─┐
    request ─┼─► written down, all ─► the end of the log is read ─► activated, all ─► each request answered
    request ─┘

A request that arrives meanwhile joins the next group. If a group is refused, for instance because an id is taken, each
of its requests is tried alone, so that no request fails because of another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from tidings.errors import TidingsError
from tidings.filter.cost import filter_cost
from tidings.filter.meaning.interpreter import selects_nodes
from tidings.filter.syntax.parser import parse_filter
from tidings.service.data.data_directory import DataDirectoryError, SetAside, read_json
from tidings.service.gateway.api_models import (
    Delivery,
    Start,
    StartAtPosition,
    StartAtTime,
    SubscriptionBody,
    SubscriptionPatch,
)
from tidings.service.gateway.catalogue_cache import KnownDomains, KnownSubscriptions
from tidings.service.gateway.driver_lag import Lag
from tidings.service.gateway.gateway_metrics import LogEnd
from tidings.service.gateway.gateway_stores import Stores
from tidings.service.gateway.mailbox_reading import Mailboxes
from tidings.service.gateway.mailbox_watch import MailboxWatch
from tidings.service.gateway.problems import invalid, missing
from tidings.service.gateway.retention import Retention
from tidings.service.gateway.scheduling import Background, FairThreads
from tidings.service.gateway.tenant_use import TenantUse
from tidings.service.gateway.webhook_sending import check_webhook_url, new_secret
from tidings.service.gateway.webhooks import Webhooks
from tidings.store.catalogue import Catalogue, FilterRow, JobRow, NewSubscription, SubscriptionChanges, SubscriptionRow
from tidings.store.catalogue.rows import NOT_REPLAYED
from tidings.store.log.log_reader import LogReader
from tidings.store.mailboxes.notifications import NotificationsError
from tidings.store.mailboxes.shared_progress import SharedProgressError

MOST = 500  # of one group
_PURGE_SECONDS = 30.0
_DOMAINS_SECONDS = 10.0  # between looks at which domains the driver has to have
_REPLAY_TRIES = 5  # of the driver at a history, before its subscription is disabled with the reason
MISFIT = "the event could not be matched: it does not fit its domain as it is now"
_logger = logging.getLogger(__name__)
_Asked: TypeAlias = "tuple[NewSubscription, asyncio.Future[SubscriptionRow]]"


class Creating:
    """Creates subscriptions, many at a time. Belongs to the loop; the stores are used in threads."""

    def __init__(self, catalogue: Catalogue, log: LogReader, threads: FairThreads) -> None:
        self._catalogue = catalogue
        self._log = log
        self._threads = threads
        self._asked: deque[_Asked] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def create(self, new: NewSubscription) -> SubscriptionRow:
        """Creates a subscription with the next group, and returns it when it is active."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[SubscriptionRow] = loop.create_future()
        self._asked.append((new, answer))
        if self._writing is None:
            self._writing = loop.create_task(self._write(), name="creating subscriptions")
        return await answer

    async def _write(self) -> None:
        group: list[_Asked] = []
        try:
            while self._asked:
                group = [self._asked.popleft() for _ in range(min(MOST, len(self._asked)))]
                made = await self._threads.run(self._made, [new for new, _ in group])
                for (_, answer), outcome in zip(group, made, strict=True):
                    if answer.done():
                        continue  # its request was cancelled
                    if isinstance(outcome, SubscriptionRow):
                        answer.set_result(outcome)
                    else:
                        answer.set_exception(outcome)
        finally:
            self._writing = None
            for _, answer in [*group, *self._asked]:  # of a gateway that stops: nobody waits forever
                answer.cancel()
            self._asked.clear()

    def _made(self, wanted: Sequence[NewSubscription]) -> Sequence[SubscriptionRow | Exception]:
        if len(wanted) > 1:
            try:
                return self.create_now(wanted)
            except TidingsError:
                pass  # one of them is refused: which one shows when each is tried alone
        outcomes: list[SubscriptionRow | Exception] = []
        for new in wanted:
            try:
                outcomes += self.create_now([new])
            except Exception as error:  # whatever it is, it is the answer to that request
                outcomes.append(error)
        return outcomes

    def create_now(self, wanted: Sequence[NewSubscription]) -> list[SubscriptionRow]:
        """Creates subscriptions, all or none, in this thread."""
        made = self._catalogue.create_many(wanted)
        # The end of the log is read after they were written down: see above.
        active = self._catalogue.activate_many([row.filters[-1].number for row in made], self._log.end)
        rows = {row.number: row for row in active}
        return [_begun(row, rows[row.filters[-1].number]) for row in made]


def _begun(row: SubscriptionRow, filter: FilterRow) -> SubscriptionRow:
    """Returns a subscription as the catalogue has it once its first filter is activated."""
    assert filter.valid_from is not None
    replaying = filter.replay_from is not None and filter.replay_from < filter.valid_from
    return dataclasses.replace(row, pending=False, replaying=replaying, filters=[filter])


class Subscribing:
    """Creates, changes and deletes subscriptions as their subscribers request."""

    def __init__(
        self,
        stores: Stores,
        subscriptions: KnownSubscriptions,
        domains: KnownDomains,
        watch: MailboxWatch,
        webhooks: Webhooks,
        retention: Retention,
        use: TenantUse,
    ) -> None:
        self._catalogue = stores.catalogue
        self._log = stores.reader
        self._deliveries = stores.deliveries
        self._settings = stores.settings
        self._threads = stores.storing
        self._subscriptions = subscriptions
        self._domains = domains
        self._watch = watch
        self._webhooks = webhooks
        self._retention = retention
        self._use = use
        self._creating = Creating(self._catalogue, self._log, self._threads)

    async def create(self, tenant: str, body: SubscriptionBody) -> SubscriptionRow:
        """Creates a subscription; when this returns, every event that is published reaches it."""
        delivery, changes = body.delivery_for(), body.changes()
        self._check_url(delivery)
        cost = await self.check_filter(tenant, body.domain, body.filter, changes["select"])
        new = NewSubscription(
            tenant=tenant,
            domain=body.domain,
            filter=body.filter,
            id=body.id,
            delivery=delivery.mode,
            url=delivery.url,
            secret=delivery.secret or (new_secret() if delivery.mode == "webhook" else None),
            select=changes["select"],
            labels=changes["labels"],
            expires=changes["expires"],
            paused=changes["paused"],
            cost=cost,
        )
        row: SubscriptionRow
        with self._use.made(tenant, "subscriptions"), self._use.made(tenant, "filter_cost", cost):
            if body.start == "latest":
                row = await self._creating.create(new)
            else:
                row = await self._threads.run(self._create_with_history, new, body.start)
        self.changed(row)
        return row

    def _create_with_history(self, new: NewSubscription, start: Start) -> SubscriptionRow:
        with self._retention.lock:
            return self._creating.create_now([dataclasses.replace(new, replay_from=self._replay_from(start))])[0]

    def _replay_from(self, start: Start) -> int:
        first, end = self._log.start, self._log.end
        match start:
            case StartAtPosition(position=position) if position > end:
                beyond = f"the position {position} is beyond the end of the log, which is at {end}"
                raise invalid(beyond, "/start/position")
            case StartAtPosition(position=position):
                return max(first, position)
            case StartAtTime(time=moment):
                return max(first, self._log.position_at(moment))
        return first

    def _check_url(self, delivery: Delivery | None) -> None:
        if delivery is not None and delivery.mode == "webhook":
            check_webhook_url(delivery.url, dev_webhooks=self._settings.dev_webhooks)

    async def change(self, row: SubscriptionRow, body: SubscriptionBody | SubscriptionPatch) -> SubscriptionRow:
        """Changes a subscription; when this returns, the change applies to every event that is published."""
        delivery, changes = body.delivery_for(row), body.changes(row)
        self._check_url(delivery)
        filter, select = body.filter or row.filter, changes.get("select", row.select)
        cost = row.cost
        if (filter, select) != (row.filter, row.select):
            cost = await self.check_filter(row.tenant, row.domain, filter, select)
        if delivery is not None:
            changes |= self._redirected(row, delivery)
        with self._use.made(row.tenant, "filter_cost", max(0, cost - row.cost)):
            changed: SubscriptionRow = await self._threads.run(self._change, row, body.filter, changes, cost)
        self._use.give(row.tenant, "filter_cost", max(0, row.cost - cost))
        self.changed(changed)
        return changed

    def _redirected(self, row: SubscriptionRow, delivery: Delivery) -> SubscriptionChanges:
        """Returns what changes with a delivery; a secret stays unless another is given."""
        secret = (delivery.secret or row.secret or new_secret()) if delivery.mode == "webhook" else None
        changes: SubscriptionChanges = {
            "delivery": delivery.mode,
            "url": delivery.url,
            "secret": secret,
            "disabled": None,
            "suspended": None,
        }
        if secret != row.secret:  # the one before signs too for a while, unless it is no webhook any more
            kept = row.secret if secret is not None else None
            until = _now() + round(self._settings.webhooks.overlap_seconds * 1e6)
            changes |= {"old_secret": kept, "old_secret_until": until if kept is not None else None}
        return changes

    def _change(self, row: SubscriptionRow, filter: str, changes: SubscriptionChanges, cost: int) -> SubscriptionRow:
        if row.not_replayed and not filter:
            changes.pop("disabled", None)  # another receiver does not mend the filter
        if filter and (filter != row.filter or row.failed is not None or row.not_replayed):
            with self._retention.lock:  # what a filter that fails has missed is matched with the new one
                missed = row.repaired_from
                replay_from = None if missed is None else max(missed, self._log.start)
                new = self._catalogue.change_filter(row.tenant, row.id, filter, cost, replay_from=replay_from)
                self._catalogue.activate(new.number, self._log.end)
            if row.not_replayed:
                changes["disabled"] = None
        if changes:
            self._catalogue.update(row.tenant, row.id, **changes)
        if "delivery" in changes:
            self._deliveries.try_now(row.key)  # the new receiver may be reachable
        now = self._catalogue.get(row.tenant, row.id)
        if now is None:
            raise missing("subscription", row.id)
        return now

    async def delete(self, row: SubscriptionRow) -> None:
        if await self._threads.run(lambda: self._catalogue.delete(row.tenant, row.id, self._log.end)):
            self._use.give(row.tenant, "subscriptions")
            self._use.give(row.tenant, "filter_cost", row.cost)
        self._subscriptions.forget(row.tenant, row.id)
        self._webhooks.removed(row.key)
        self._watch.nudge(row.key)

    async def check_filter(self, tenant: str, domain: str, filter: str, select: str) -> int:
        """Returns the cost of a filter; raises if it does not fit its domain, or selects nodes and has no paths."""
        known = await self._domains.required(tenant, domain, pointer="/domain")
        tree = await self._threads.run(parse_filter, filter, known.domain)
        if select == "nodes" and not selects_nodes(tree):
            raise invalid(
                "nodes are selected by paths, and the filter has none; write xpath_boolean(…, '/…')", "/select"
            )
        return filter_cost(tree)

    def changed(self, row: SubscriptionRow) -> None:
        """Passes a change on to those who deliver or wait."""
        self._subscriptions.forget(row.tenant, row.id)
        self._webhooks.changed(row)
        self._watch.nudge(row.key)


class SubscriptionUpkeep:
    """Does what time brings: expiry, failed filters, finished histories, and what a crash has left half done."""

    def __init__(
        self,
        stores: Stores,
        subscribing: Subscribing,
        mailboxes: Mailboxes,
        lag: Lag,
        log_end: LogEnd,
        use: TenantUse,
    ) -> None:
        self._data = stores.data
        self._catalogue = stores.catalogue
        self._log = stores.reader
        self._deliveries = stores.deliveries
        self._settings = stores.settings
        self._threads = stores.storing
        self._subscribing = subscribing
        self._mailboxes = mailboxes
        self._lag = lag
        self._log_end = log_end
        self._use = use
        self._sweeping = Background("upkeep of subscriptions", self._settings.sweep_seconds, self._sweep)
        self._purged = time.monotonic()
        self._domains_read = float("-inf")
        self._replays_failed = Counter[str]()  # how often the driver could not replay a history, by the job's id
        self._set_aside: dict[str, int] = {}  # by domain: how much of what the driver has set aside is noted here

    async def start(self) -> None:
        """Finishes what a crash has left half done, counts what tenants have, and starts the upkeep."""
        await self._threads.run(self._finish)
        for tenant, (count, named) in (await self._threads.run(self._catalogue.domains_by_tenant)).items():
            self._use.note(tenant, "domains", count)
            self._use.note(tenant, "placements", named)
        for tenant, (count, cost) in (await self._threads.run(self._catalogue.subscriptions_by_tenant)).items():
            self._use.note(tenant, "subscriptions", count)
            self._use.note(tenant, "filter_cost", cost)
        await self._threads.run(self._read_status)
        await self._threads.run(self._count_waiting)
        self._sweeping.start()

    async def stop(self) -> None:
        await self._sweeping.stop()

    def _finish(self) -> None:
        unfinished = [row.number for row in self._catalogue.unfinished()]
        if unfinished:
            self._catalogue.activate_many(unfinished, self._log.end)
            _logger.info("finished %d subscriptions that were being created or changed", len(unfinished))

    async def _sweep(self) -> None:
        await self._threads.run(self._read_status)
        for work in (self._note_failures, self._expire, self._close_replays):
            for row in await self._threads.run(work):
                self._subscribing.changed(row)
        if time.monotonic() - self._purged > _PURGE_SECONDS:
            self._purged = time.monotonic()
            await self._threads.run(self._purge)

    def _count_waiting(self) -> None:
        """Counts what was published before the gateway began and is not matched yet."""
        start, end = self._log.start, self._log.end
        for row in self._catalogue.domains():
            reached = max(self._lag.reached(row.key), self._matched(row.key), start)
            self._lag.found(row.key, reached, self._log.parts(reached, end, row.key))

    def _matched(self, key: str) -> int:
        """Returns the position up to which a domain's events were matched; -1 if its mailboxes cannot be read."""
        try:
            return self._mailboxes.reached(key)
        except (NotificationsError, SharedProgressError) as error:  # which concerns matching: publishing goes on
            _logger.warning("how far %s was matched is unknown: %s", key, error)
            return -1

    def _read_status(self) -> None:
        self._lag.read()
        if time.monotonic() - self._domains_read > _DOMAINS_SECONDS:
            self._domains_read = time.monotonic()
            self._lag.created = {row.key: row.created / 1e6 for row in self._catalogue.domains()}
        self._log_end.start, self._log_end.position = self._log.start, self._log.end

    def _note_failures(self) -> list[SubscriptionRow]:
        """Marks subscriptions as failed whose filters the driver has set aside; returns the new ones."""
        failed = []
        for key in self._lag.domains():
            count = self._lag.domain(key).get("set_aside") or 0
            if count == self._set_aside.get(key, 0):
                continue
            for one in SetAside.read(self._data.domains / key / "aside.json").filters.values():
                row = self._catalogue.fail_filter(one.number, one.position, one.reason)
                failed += [] if row is None else [row]
            self._set_aside[key] = count
        return failed

    def _expire(self) -> list[SubscriptionRow]:
        ended = [(row.tenant, row.id) for row in self._catalogue.expired(_now())]
        return self._current(name for name in ended if self._catalogue.expire(*name, self._log.end))

    def _close_replays(self) -> list[SubscriptionRow]:
        """Closes the replays that the driver has answered; returns their subscriptions, which have something now."""
        if not any(self._data.jobs.iterdir()):
            return []
        closed = []
        for job in self._catalogue.open_jobs():
            path = self._data.answer(job.id)
            if job.kind != "replay" or not path.exists():
                continue
            try:
                answer = read_json(path)
            except DataDirectoryError as error:
                _logger.warning("%s", error)
                continue
            subscription = str(job.request["subscription"])
            if answer is not None and not answer.get("done"):
                reason = str(answer.get("reason"))
                if answer.get("kind") != "request" and self._replays_failed[job.id] < _REPLAY_TRIES - 1:
                    if time.time() - path.stat().st_mtime > self._settings.replay_pause_seconds:
                        self._replays_failed[job.id] += 1
                        path.unlink(missing_ok=True)  # so that the driver tries again
                    continue
                _logger.error("the history of subscription %s/%s: %s", job.tenant, subscription, reason)
                self._catalogue.update(job.tenant, subscription, disabled=f"{NOT_REPLAYED}: {reason}")
            self._note_misfits(job, (answer or {}).pop("misfits", {}))
            self._catalogue.close_job(job.id, answer)
            path.unlink(missing_ok=True)
            self._replays_failed.pop(job.id, None)
            closed.append((job.tenant, subscription))
        return self._current(closed)

    def _current(self, names: Iterable[tuple[str, str]]) -> list[SubscriptionRow]:
        """Returns the subscriptions of these tenants and ids as they are now."""
        rows = [self._catalogue.get(tenant, id) for tenant, id in names]
        return [row for row in rows if row is not None]

    def _note_misfits(self, job: JobRow, misfits: Mapping[str, str]) -> None:
        """Make dead letters of the events of a history that do not fit the domain as it is now."""
        row = self._catalogue.get(job.tenant, str(job.request["subscription"]))
        if row is not None and misfits:
            dead = {int(position): f"{MISFIT}: {reason}" for position, reason in misfits.items()}
            self._deliveries.dead_many(row.key, dead, cursors={})

    def _purge(self) -> None:
        """Removes deleted subscriptions that the driver is done with, and old jobs."""
        for domain in self._catalogue.domains():
            status = self._lag.domain(domain.key)
            reached, covers = status.get("reached"), status.get("covers")
            if isinstance(reached, int) and isinstance(covers, int):
                for key in self._catalogue.purge(domain.tenant, domain.name, reached=reached, revision=covers):
                    self._deliveries.forget(key)
        self._catalogue.forget_jobs(_now() - round(self._settings.job_kept_seconds * 1e6))


def _now() -> int:
    return time.time_ns() // 1000
