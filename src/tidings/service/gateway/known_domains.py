"""The domains that events are published to, as the catalogue has them: looked up once, and then remembered.

The gateway is the catalogue's one writer of domains, so that it knows when to forget.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from tidings.errors import DomainError
from tidings.model.domain import Domain
from tidings.model.infer import infer_domain
from tidings.service.data.data_directory import NAME, domain_key
from tidings.service.gateway.problems import Problem, missing
from tidings.service.gateway.quick_json import Exact, exact_paths
from tidings.service.gateway.tenant_use import TenantUse
from tidings.store.catalogue import Catalogue, DomainRow

T = TypeVar("T")
_REMEMBERED = 10_000


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
        """Whose numbers are to be read digit by digit."""
        return exact_paths(self.domain)


def known(row: DomainRow) -> KnownDomain:
    written = Domain.from_json(row.definition)
    return KnownDomain(row, Domain(row.key, written.attributes, written.indices))


class KnownDomains:
    """Finds domains by tenant and name."""

    def __init__(self, catalogue: Catalogue, use: TenantUse, executor: Executor) -> None:
        self._catalogue = catalogue
        self._use = use
        self._executor = executor
        self._known: OrderedDict[tuple[str, str], KnownDomain] = OrderedDict()
        self._changing = asyncio.Lock()  # so that each domain is counted once

    def remembered(self, tenant: str, name: str) -> KnownDomain | None:
        return self._known.get((tenant, name))

    async def find(self, tenant: str, name: str) -> KnownDomain | None:
        found = self._known.get((tenant, name))
        if found is not None:
            return found
        if not NAME.fullmatch(name):
            return None
        row = await self._do(self._catalogue.domain, tenant, name)
        return None if row is None else self._remember(known(row))

    async def required(self, tenant: str, name: object, *, pointer: str | None = None) -> KnownDomain:
        """A domain; 404 where it is not there."""
        found = await self.find(tenant, name) if isinstance(name, str) else None
        if found is None:
            hint = "describe it with PUT /v1/domains/…, or publish its first events"
            raise missing("domain", name, pointer=pointer, hint=hint)
        return found

    async def inferred(self, tenant: str, name: str, events: Sequence[dict[str, Any]]) -> KnownDomain:
        """A domain that was not there, as the first events have it; the first who comes decides."""
        domain_key(tenant, name)
        async with self._changing:
            found = await self.find(tenant, name)
            if found is not None:
                return found
            with self._use.made(tenant, "domains"):
                return self._remember(await self._do(self._infer, tenant, name, events))

    async def describing(self, tenant: str, name: str, work: Callable[[], T]) -> T:
        """Do what describes a domain, or describes it again; one that is new counts."""
        async with self._changing:
            new = await self.find(tenant, name) is None
            try:
                with self._use.made(tenant, "domains") if new else nullcontext():
                    return await self._do(work)
            finally:
                self.forget(tenant, name)

    def removed(self, tenant: str, name: str) -> None:
        self._use.give(tenant, "domains")
        self.forget(tenant, name)

    async def _do(self, work: Callable[..., T], *values: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *values)

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
        """Look it up again next time: it was changed, or is gone."""
        self._known.pop((tenant, name), None)

    def _remember(self, found: KnownDomain) -> KnownDomain:
        self._known[found.row.tenant, found.row.name] = found
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return found
