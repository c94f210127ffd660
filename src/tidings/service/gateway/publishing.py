"""Publishing: from a request's body to positions in the log, which are returned when they are on disk.

    body ─► strict JSON ─► CloudEvents or records ─► fit their domain ─► Log.submit ─► positions

What exceeds a limit is refused before more of it is read. There are limits on bodies in memory, on bytes of the log
that wait for the disk, and on events that wait for the driver.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidings.errors import EventError
from tidings.model.domain import parse_path
from tidings.model.event import read_events, read_record
from tidings.service.gateway.catalogue_cache import KnownDomain, KnownDomains
from tidings.service.gateway.driver_lag import Lag
from tidings.service.gateway.event_formats import FEEDS, read_published
from tidings.service.gateway.gateway_metrics import Metrics
from tidings.service.gateway.gateway_stores import Stores
from tidings.service.gateway.problems import Problem, busy, pointer_to
from tidings.service.gateway.request_bodies import Bodies, Events, media_type
from tidings.service.gateway.tenant_use import TenantUse
from tidings.store.log.log_errors import LogConflictError, LogError
from tidings.store.log.page import MIN_COLUMNS_EVENTS


class Publisher:
    """Appends what is published."""

    def __init__(
        self, stores: Stores, domains: KnownDomains, bodies: Bodies, lag: Lag, use: TenantUse, metrics: Metrics
    ) -> None:
        self._log = stores.log
        self._settings = stores.settings
        self._threads = stores.reading
        self._domains = domains
        self._bodies = bodies
        self._lag = lag
        self._use = use
        self._metrics = metrics
        self.broken: LogError | None = None  # after it nothing more is written

    async def publish(self, request: Request, tenant: str, name: str) -> Response:
        """Appends the events of a request, all or none, and returns their positions."""
        began = time.perf_counter()
        settings = self._settings
        kind = media_type(request)
        with self._bodies.held(tenant) as held, self._domains.appending() as appending:
            body = await self._bodies.read(request, settings.max_batch_bytes, held)
            domain = await appending.find(tenant, name)
            self._refuse_if_behind(tenant, domain, len(body))
            # A large body is read in a thread, so that other requests do not wait for it.
            apart = len(body) > settings.threaded_bytes or kind in FEEDS
            exact = None if domain is None else domain.exact
            read = await self._do(apart, read_published, kind, request.headers, body, settings.body_limits, exact)
            if not read.objects:
                return _answer([])
            size = sum(map(_size, read.texts))
            if size > len(body):  # of a feed, whose items repeat its head
                held.grow(size - len(body))
                self._refuse_if_behind(tenant, domain, size)
            if domain is None:
                domain = await appending.infer(tenant, name, read.objects)
            many = len(read.objects) > 1 or _is_many(kind, body)
            try:
                future = await self._do(apart, self._submit, read, domain, many)
                positions: list[int] = await asyncio.wrap_future(future)
            except LogError as error:
                if type(error) is LogError:  # permanent: the log has to be opened again
                    self.broken = error
                    raise busy(str(error), retry_after=5) from None
                if not isinstance(error, LogConflictError):
                    self._metrics.refused("log")
                    raise
                pointer = pointer_to(error.row) if many else None
                raise Problem(409, "conflict", str(error), pointer=pointer, position=error.position) from None
        self._lag.appended(domain.key, max(positions) + 1, len(positions), size)
        self._metrics.published(len(positions), len(body), time.perf_counter() - began)
        return _answer(positions)

    async def _do(self, apart: bool, work: Any, *values: Any) -> Any:
        if not apart:
            return work(*values)
        return await self._threads.run(work, *values)

    def _submit(self, events: Events, domain: KnownDomain, many: bool) -> Future[list[int]]:
        """Checks events against their domain, and submits them to the log."""
        objects = events.objects
        try:
            if len(objects) >= MIN_COLUMNS_EVENTS:
                return self._log.submit(read_events(objects, domain.domain), texts=events.texts)
            # For a few events columns cost more than they save, and such a small page keeps none.
            for row, event in enumerate(objects):
                try:
                    read_record(event, domain.domain)
                except EventError as error:
                    raise EventError(error.reason, row=row, attribute=error.attribute) from None
            if not domain.domain.has_cloud_events:  # what looks like an identity to the log is an attribute here
                return self._log.submit(read_events(objects, domain.domain), texts=events.texts)
            return self._log.submit(objects, domain=domain.key, texts=events.texts)
        except EventError as error:
            raise misfit(error, objects, many, in_data=domain.domain.has_cloud_events) from None

    def _refuse_if_behind(self, tenant: str, domain: KnownDomain | None, size: int) -> None:
        self._use.expect_below(tenant, "waiting_bytes", size)
        if domain is None or self._lag.is_before_others(domain.key):
            self._use.expect_below(tenant, "shared_waiting_bytes", size)
        lag = 0 if domain is None else self._lag.of(domain.key)
        if lag > self._settings.max_lag_events:
            self._metrics.refused("lag")
            raise busy(
                f"{lag:,} events of this domain wait to be matched, and the bound is "
                f"{self._settings.max_lag_events:,}; publish again later",
                status=429,
                retry_after=5,
                limit="max_lag_events",
                value=self._settings.max_lag_events,
            )


def misfit(error: EventError, objects: list[dict[str, Any]], many: bool, *, in_data: bool = True) -> Problem:
    """Returns the problem for an event that does not fit its domain, with a pointer to the value."""
    row = error.row or 0
    event = objects[row]
    parts: list[str | int] = [row] if many else []
    if error.attribute is not None:
        of_envelope = error.reason.startswith("a CloudEvent")  # which `record_of` found, before the record
        parts += ["data"] if "specversion" in event and not of_envelope and in_data else []
        parts += parse_path(error.attribute)
    return Problem(400, "event", str(error), pointer=pointer_to(*parts) if parts else None)


def _size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _is_many(kind: str, body: bytes) -> bool:
    return "batch" in kind or kind in FEEDS or "ndjson" in kind or "jsonl" in kind or body.lstrip()[:1] == b"["


def _answer(positions: list[int]) -> Response:
    return Response(f'{{"positions":[{",".join(map(str, positions))}]}}', media_type="application/json")
