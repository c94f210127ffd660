"""Domains and subscriptions as the catalogue has them: looked up once, then remembered.

The gateway is the only process that changes them, so it knows when to forget.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from tidings.errors import DomainError
from tidings.model.domain import Domain
from tidings.model.infer import infer_domain
from tidings.service.data.data_directory import NAME, domain_key
from tidings.service.gateway.problems import Problem, missing
from tidings.service.gateway.request_bodies import Exact, exact_paths
from tidings.service.gateway.scheduling import FairThreads
from tidings.service.gateway.tenant_use import TenantUse
from tidings.store.catalogue import Catalogue, DomainRow, SubscriptionRow

T = TypeVar("T")
_REMEMBERED_DOMAINS = 10_000
_REMEMBERED_SUBSCRIPTIONS = 20_000
MAX_ID = 255
DELIVERED = ("active", "suspended", "failed", "expired")  # states in which what waits may be delivered


@dataclass(frozen=True)
class KnownDomain:
    """A domain of a tenant, by the name that it has in the log."""

    row: DomainRow
    domain: Domain  # whose name is the key

    @property
    def key(self) -> str:
        return self.domain.name

    @cached_property
    def exact(self) -> Exact:
        """The attributes whose numbers are read digit by digit."""
        return exact_paths(self.domain)


def known(row: DomainRow) -> KnownDomain:
    written = Domain.from_json(row.definition)
    return KnownDomain(row, Domain(row.key, written.attributes, written.indices))


class KnownDomains:
    """Finds domains by tenant and name."""

    def __init__(self, catalogue: Catalogue, use: TenantUse, threads: FairThreads) -> None:
        self._catalogue = catalogue
        self._use = use
        self._threads = threads
        self._known: OrderedDict[tuple[str, str], KnownDomain] = OrderedDict()
        self._forgotten = 0  # a count: what was read before a change is not remembered after it
        # One lock for each domain that is being created or changed, so that it is counted once.
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._appending: Counter[tuple[str, str]] = Counter()  # requests under way, which nobody may change it under
        self._drained: dict[tuple[str, str], asyncio.Event] = {}  # set when there are none

    def remembered(self, tenant: str, name: str) -> KnownDomain | None:
        return self._known.get((tenant, name))

    async def find(self, tenant: str, name: str) -> KnownDomain | None:
        found = self._known.get((tenant, name))
        if found is not None:
            return found
        if not NAME.fullmatch(name):
            return None
        before = self._forgotten
        row = await self._threads.run(self._catalogue.domain, tenant, name)
        if row is None:
            return None
        return self._remember(known(row)) if before == self._forgotten else known(row)

    async def required(self, tenant: str, name: object, *, pointer: str | None = None) -> KnownDomain:
        """Returns a domain; raises a 404 if it does not exist."""
        found = await self.find(tenant, name) if isinstance(name, str) else None
        if found is None:
            hint = "describe it with PUT /v1/domains/…, or publish its first events"
            raise missing("domain", name, pointer=pointer, hint=hint)
        return found

    async def inferred(self, tenant: str, name: str, events: Sequence[dict[str, Any]]) -> KnownDomain:
        """Returns a new domain, inferred from its first events; of several publishers the first decides."""
        domain_key(tenant, name)
        async with self.changing(tenant, name):
            found = await self.find(tenant, name)
            if found is not None:
                return found
            with self._use.made(tenant, "domains"):
                return self._remember(await self._threads.run(self._infer, tenant, name, events))

    @contextlib.asynccontextmanager
    async def changing(self, tenant: str, name: str) -> AsyncIterator[None]:
        """A block that creates or changes a domain, while no event is appended; no tenant waits for another's."""
        async with self._locks.setdefault((tenant, name), asyncio.Lock()):
            while (tenant, name) in self._appending:
                self._drained[tenant, name] = asyncio.Event()
                await self._drained[tenant, name].wait()
            yield

    @contextlib.contextmanager
    def appending(self) -> Iterator[Appending]:
        """A block that appends events to a domain, which is not changed meanwhile."""
        block = Appending(self)
        try:
            yield block
        finally:
            if (key := block.key) is not None:
                self._appending[key] -= 1
                if not self._appending[key]:
                    del self._appending[key]
                    if (waiting := self._drained.pop(key, None)) is not None:
                        waiting.set()

    async def begin_appending(self, tenant: str, name: str) -> KnownDomain | None:
        """Returns a domain, which stays as it is from now on; waits while it is being changed."""
        while True:
            found = self._known.get((tenant, name)) or await self.find(tenant, name)
            lock = self._locks.get((tenant, name))
            if lock is not None and lock.locked():
                async with lock:
                    continue
            if found is None:
                return None
            if self._known.get((tenant, name)) is found:
                self._appending[tenant, name] += 1
                return found

    def removed(self, row: DomainRow) -> None:
        self._use.give(row.tenant, "domains")
        if row.placement is not None:
            self._use.give(row.tenant, "placements")
        self.forget(row.tenant, row.name)

    def _infer(self, tenant: str, name: str, events: Sequence[dict[str, Any]]) -> KnownDomain:
        try:
            domain = infer_domain(list(events), name)
        except DomainError as error:
            raise Problem(
                422, "domain", f"{error}; or describe the domain first, with PUT /v1/domains/{name}"
            ) from None
        if not domain.leaves:
            raise Problem(
                422, "domain", f"domain '{name}': these events have no attributes to infer it from; describe it first"
            )
        return known(self._catalogue.put_domain(tenant, name, domain.to_json(), inferred=True, replace=False))

    def forget(self, tenant: str, name: str) -> None:
        """Has a domain looked up again next time: it was changed, or removed."""
        self._forgotten += 1
        self._known.pop((tenant, name), None)

    def _remember(self, found: KnownDomain) -> KnownDomain:
        self._known[found.row.tenant, found.row.name] = found
        while len(self._known) > _REMEMBERED_DOMAINS:
            self._known.popitem(last=False)
        return found


class Appending:
    """Has one domain stay as it is: from when it is found to the end of the block."""

    def __init__(self, domains: KnownDomains) -> None:
        self._domains = domains
        self.key: tuple[str, str] | None = None

    async def find(self, tenant: str, name: str) -> KnownDomain | None:
        found = await self._domains.begin_appending(tenant, name)
        if found is not None:
            self.key = tenant, name
        return found

    async def infer(self, tenant: str, name: str, events: Sequence[dict[str, Any]]) -> KnownDomain:
        inferred = await self._domains.inferred(tenant, name, events)
        return await self.find(tenant, name) or inferred  # which was removed at once


class KnownSubscriptions:
    """Finds subscriptions by tenant and id."""

    def __init__(self, catalogue: Catalogue, threads: FairThreads) -> None:
        self._catalogue = catalogue
        self._threads = threads
        self._known: OrderedDict[tuple[str, str], SubscriptionRow] = OrderedDict()
        self._forgotten = 0  # a count: what was read before a change is not remembered after it

    async def find(self, tenant: str, id: str) -> SubscriptionRow | None:
        found = self._known.get((tenant, id))
        if found is not None or not 0 < len(id) <= MAX_ID or "\0" in id:
            return found
        before = self._forgotten
        row = await self._threads.run(self._catalogue.get, tenant, id)
        if row is not None and before == self._forgotten:
            self._known[tenant, id] = row
            while len(self._known) > _REMEMBERED_SUBSCRIPTIONS:
                self._known.popitem(last=False)
        return row

    async def required(self, tenant: str, id: str, *, pointer: str | None = None) -> SubscriptionRow:
        """Returns a subscription; raises a 404 if it does not exist, or is another tenant's."""
        row = await self.find(tenant, id)
        if row is None:
            raise missing("subscription", id, pointer=pointer)
        return row

    def forget(self, tenant: str, id: str) -> None:
        """Has a subscription looked up again next time: it was changed."""
        self._forgotten += 1
        self._known.pop((tenant, id), None)


def expect_read_by_subscriber(row: SubscriptionRow) -> None:
    """Raises a 409 if a subscription is delivered by webhook."""
    if row.delivery == "webhook":
        raise Problem(409, "delivery", "this subscription is delivered by webhook; change its delivery to pull or sse")
