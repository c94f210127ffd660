"""All that a gateway has open: stores, what is remembered of them, and what runs in the background."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from starlette.requests import Request

from tidings.service.data.data_directory import DEFAULT_TENANT, DataDirectory
from tidings.service.gateway.api_models import Body, read_body
from tidings.service.gateway.catalogue_cache import KnownDomains, KnownSubscriptions
from tidings.service.gateway.connections import Connections
from tidings.service.gateway.domain_changes import DomainChanges
from tidings.service.gateway.driver_lag import Lag
from tidings.service.gateway.fetching import Pulling, Streaming
from tidings.service.gateway.filter_evaluation import CurrentMatches, NodeSelection
from tidings.service.gateway.gateway_metrics import LogEnd, Metrics
from tidings.service.gateway.gateway_settings import Settings
from tidings.service.gateway.mailbox_reading import EventTexts, Mailboxes
from tidings.service.gateway.publishing import Publisher
from tidings.service.gateway.request_bodies import Bodies, expect_json, object_of
from tidings.service.gateway.retention import Retention
from tidings.service.gateway.scheduling import FairThreads
from tidings.service.gateway.security import Tokens
from tidings.service.gateway.subscription_changes import Subscribing
from tidings.service.gateway.tenant_use import TenantUse
from tidings.service.gateway.webhook_sending import Sender
from tidings.service.gateway.webhooks import Webhooks
from tidings.store.catalogue import Catalogue
from tidings.store.log.log_in_topic import open_log
from tidings.store.log.log_reader import LogReader
from tidings.store.mailboxes.deliveries import Deliveries

T = TypeVar("T")
AnyBody = TypeVar("AnyBody", bound=Body)


class Context:
    """What every route needs. One to a gateway, open as long as it serves."""

    def __init__(self, data: DataDirectory, settings: Settings, opened: contextlib.ExitStack) -> None:
        self.data = data
        self.settings = settings
        data.make()
        self.log = open_log(data.log, settings.log)
        opened.callback(self.log.close)
        self.reader = LogReader(data.log)  # apart from the writer's, so that neither waits for the other
        opened.callback(self.reader.close)
        self.catalogue = Catalogue(settings.catalogue or data.catalogue)
        opened.callback(self.catalogue.close)
        self.deliveries = Deliveries(data.deliveries)
        opened.callback(self.deliveries.close)
        # Four kinds of work that must not wait for each other: a locked catalogue is not to stop deliveries.
        self.storing = FairThreads(8, "tidings-store")
        self.delivering = FairThreads(4, "tidings-deliver")
        self.reading = FairThreads(3, "tidings-read")
        self.computing = FairThreads(4, "tidings-compute", of_one=1)  # for work that takes long
        self.lag = Lag(data, self.log.end)
        limits = settings.quotas.service
        shared = {"uploading_bytes": limits.max_bodies_bytes, "connections": limits.max_connections // 2}
        self.use = TenantUse(settings.quotas, shared)
        self.connections = Connections(limits, self.use)
        self.bodies = Bodies(self.use, self.reading)
        self.metrics = Metrics(self.use, self.connections)
        self.log_end = LogEnd()
        self.metrics.watch(self.lag, self.log_end)
        self.tokens = Tokens(self.catalogue, self.storing, settings.token_cache_seconds)
        self.domains = KnownDomains(self.catalogue, self.use, self.storing)
        self.domain_changes = DomainChanges(
            self.catalogue, self.reader, self.lag, self.domains, self.use, self.storing, self.computing
        )
        self.subscriptions = KnownSubscriptions(self.catalogue, self.storing)
        self.matching = CurrentMatches(self.catalogue)
        self.mailboxes = Mailboxes(
            data, self.deliveries, EventTexts(self.reader), NodeSelection(self.catalogue, self.domains), settings,
            self.delivering,
        )  # fmt: skip
        opened.callback(self.mailboxes.close)
        self.publisher = Publisher(
            self.log, self.domains, self.bodies, self.lag, self.use, self.metrics, settings, self.reading
        )  # fmt: skip
        self.pulling = Pulling(
            self.subscriptions, self.mailboxes, self.deliveries, self.metrics, settings, self.delivering
        )
        self.streaming = Streaming(
            self.subscriptions, self.mailboxes, self.deliveries, self.metrics, settings, self.delivering
        )
        sender = Sender(settings.webhooks, dev_webhooks=settings.dev_webhooks)
        self.webhooks = Webhooks(
            self.catalogue, self.subscriptions, self.mailboxes, self.deliveries, sender, self.metrics,
            settings.webhooks, settings.quotas, self.delivering,
        )  # fmt: skip
        self.retention = Retention(
            self.log, self.catalogue, self.mailboxes, self.deliveries, self.lag, settings.retain, settings.held,
            settings.quotas, settings.retain_seconds, self.storing,
        )  # fmt: skip
        self.subscribing = Subscribing(
            data, self.catalogue, self.reader, self.deliveries, self.subscriptions, self.domains, self.mailboxes,
            self.webhooks, self.lag, self.log_end, self.retention, self.use, settings, self.storing,
        )  # fmt: skip
        self.use.measure("waiting_bytes", self.lag.waiting_bytes)
        self.use.measure("webhooks_at_once", self.webhooks.under_way)
        self.use.measure("held_log_bytes", lambda tenant: self.retention.held_bytes.get(tenant, 0))
        for pool in (self.storing, self.delivering, self.reading, self.computing):
            opened.callback(pool.shutdown)  # before the stores are closed that they ask

    async def ask(self, work: Callable[..., T], *values: Any) -> T:
        """Have a store asked in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.storing, work, *values)

    async def compute(self, work: Callable[..., T], *values: Any) -> T:
        """Runs work that may take long in a thread, one of a tenant at a time."""
        return await asyncio.get_running_loop().run_in_executor(self.computing, work, *values)

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
                value = await asyncio.get_running_loop().run_in_executor(self.reading, object_of, body)
        return read_body(model, {**defaults, **value})

    def close(self) -> None:
        """Let who waits go: the service is about to stop."""
        self.pulling.close()
        self.streaming.close()


@contextlib.asynccontextmanager
async def opened_context(data: DataDirectory, settings: Settings) -> AsyncIterator[Context]:
    """A context, open; what was half done when the last one ended is finished."""
    with contextlib.ExitStack() as opened:
        loop = asyncio.get_running_loop()
        context = await loop.run_in_executor(None, Context, data, settings, opened)
        if data.read_token() is None:
            secret = await context.ask(context.catalogue.create_token, DEFAULT_TENANT, "first")
            data.write_token(secret)
        await context.subscribing.start()
        await context.webhooks.start()
        context.retention.start()
        try:
            yield context
        finally:
            context.close()
            await context.retention.stop()
            await context.webhooks.stop()
            await context.subscribing.stop()
            await context.mailboxes.stop()
