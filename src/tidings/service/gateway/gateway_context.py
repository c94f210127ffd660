"""Everything that a gateway has open: stores, what is remembered of them, and what runs in the background."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from starlette.requests import Request

from tidings.service.data.data_directory import DEFAULT_TENANT, DataDirectory
from tidings.service.gateway.api_models import Body, read_body
from tidings.service.gateway.catalogue_cache import KnownDomains, KnownSubscriptions
from tidings.service.gateway.connections import Connections
from tidings.service.gateway.domain_changes import DomainChanges
from tidings.service.gateway.driver_lag import Lag
from tidings.service.gateway.fetching import Fetching
from tidings.service.gateway.filter_evaluation import CurrentMatches, NodeSelection
from tidings.service.gateway.gateway_metrics import LogEnd, Metrics
from tidings.service.gateway.gateway_settings import Settings
from tidings.service.gateway.gateway_stores import open_stores
from tidings.service.gateway.mailbox_reading import EventTexts, Mailboxes
from tidings.service.gateway.mailbox_watch import MailboxWatch
from tidings.service.gateway.publishing import Publisher
from tidings.service.gateway.request_bodies import Bodies, expect_json, object_of
from tidings.service.gateway.retention import Retention
from tidings.service.gateway.security import Tokens
from tidings.service.gateway.subscription_changes import Subscribing, SubscriptionUpkeep
from tidings.service.gateway.tenant_use import TenantUse
from tidings.service.gateway.webhook_sending import Sender
from tidings.service.gateway.webhooks import Webhooks

T = TypeVar("T")
AnyBody = TypeVar("AnyBody", bound=Body)


class Context:
    """What every route needs; one per gateway, open as long as it serves."""

    def __init__(self, data: DataDirectory, settings: Settings, opened: contextlib.ExitStack) -> None:
        self.began = time.time()
        self.data = data
        self.settings = settings
        self.stores = stores = open_stores(data, settings, opened)
        self.log = stores.log
        self.reader = stores.reader
        self.catalogue = stores.catalogue
        self.deliveries = stores.deliveries
        self.lag = Lag(data, self.log.end)
        limits = settings.quotas.service
        shared = {"uploading_bytes": limits.max_bodies_bytes, "connections": limits.max_connections // 2}
        self.use = TenantUse(settings.quotas, shared)
        self.connections = Connections(limits, self.use)
        self.bodies = Bodies(self.use, stores.reading)
        self.log_end = LogEnd()
        self.metrics = Metrics(self.use, self.connections, self.lag, self.log_end)
        self.tokens = Tokens(self.catalogue, stores.storing, settings.token_cache_seconds)
        self.domains = KnownDomains(self.catalogue, self.use, stores.storing)
        self.domain_changes = DomainChanges(stores, self.lag, self.domains, self.use)
        self.subscriptions = KnownSubscriptions(self.catalogue, stores.storing)
        self.matches = CurrentMatches(self.catalogue)
        self.publisher = Publisher(stores, self.domains, self.bodies, self.lag, self.use, self.metrics)
        self.mailboxes = Mailboxes(stores, EventTexts(self.reader), NodeSelection(self.catalogue, self.domains))
        opened.callback(self.mailboxes.close)
        self.watch = MailboxWatch(data, self.mailboxes, settings.poll_seconds, stores.delivering)
        self.fetching = Fetching(stores, self.subscriptions, self.mailboxes, self.watch, self.metrics)
        sender = Sender(settings.webhooks, dev_webhooks=settings.dev_webhooks)
        self.webhooks = Webhooks(stores, self.subscriptions, self.mailboxes, self.watch, sender, self.metrics)
        self.retention = Retention(stores, self.mailboxes, self.lag)
        self.subscribing = Subscribing(
            stores, self.subscriptions, self.domains, self.watch, self.webhooks, self.retention, self.use
        )
        self.upkeep = SubscriptionUpkeep(stores, self.subscribing, self.mailboxes, self.lag, self.log_end, self.use)
        self._adding_jobs: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by tenant
        self.use.measure("waiting_bytes", self.lag.waiting_bytes)
        self.use.measure("shared_waiting_bytes", self.lag.shared_waiting_bytes)
        self.use.measure("webhooks_at_once", self.webhooks.under_way)
        self.use.measure("held_log_bytes", lambda tenant: self.retention.held_bytes.get(tenant, 0))
        for threads in (stores.storing, stores.delivering, stores.reading, stores.computing):
            opened.callback(threads.shutdown)  # before the stores that they use are closed

    async def ask(self, work: Callable[..., T], *values: Any) -> T:
        """Calls a function that uses a store, in a thread."""
        return await self.stores.storing.run(work, *values)

    def adding_jobs(self, tenant: str) -> asyncio.Lock:
        """A lock to hold while a job of a tenant is counted and added, so that it gets no more than its quota."""
        return self._adding_jobs.setdefault(tenant, asyncio.Lock())

    async def compute(self, work: Callable[..., T], *values: Any) -> T:
        """Calls a function that may take long, in a thread; one of a tenant at a time."""
        return await self.stores.computing.run(work, *values)

    async def read(
        self, request: Request, tenant: str, model: type[AnyBody], *media_types: str, **defaults: Any
    ) -> AnyBody:
        """Returns the body of a request, strictly read; `defaults` are fields that the address has."""
        expect_json(request, *media_types)
        with self.bodies.held(tenant) as held:
            body = await self.bodies.read(request, self.settings.max_event_bytes, held)
            if len(body) <= self.settings.threaded_bytes:
                value = object_of(body)
            else:
                value = await self.stores.reading.run(object_of, body)
        return read_body(model, {**defaults, **value})

    def close(self) -> None:
        """Ends requests that wait: the service is about to stop."""
        self.fetching.close()


async def caller(request: Request) -> tuple[Context, str]:
    """Returns the gateway's context, and the tenant whose token a request has."""
    context: Context = request.app.state.context
    return context, await context.tokens.tenant(request)


@contextlib.asynccontextmanager
async def opened_context(data: DataDirectory, settings: Settings) -> AsyncIterator[Context]:
    """Opens a context, and finishes what was half done when the last one ended."""
    with contextlib.ExitStack() as opened:
        loop = asyncio.get_running_loop()
        context = await loop.run_in_executor(None, Context, data, settings, opened)
        if data.read_token() is None:
            secret = await context.ask(context.catalogue.create_token, DEFAULT_TENANT, "first")
            data.write_token(secret)
        await context.upkeep.start()
        await context.webhooks.start()
        context.retention.start()
        try:
            yield context
        finally:
            context.close()
            await context.retention.stop()
            await context.webhooks.stop()
            await context.upkeep.stop()
            await context.watch.stop()
