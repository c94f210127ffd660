"""Describes domains: adds one, or changes its attributes unless a filter needs them as they are.

Checking all filters of a domain takes long, and holds no lock. A filter that is added or changed meanwhile moves the
domain's revision; the new definition is written only at the revision that was checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Domain
from tidings.service.gateway.catalogue_cache import KnownDomains
from tidings.service.gateway.problems import Problem, busy
from tidings.service.gateway.tenant_use import TenantUse
from tidings.store.catalogue import Catalogue, CatalogueChangedError, DomainRow, FilterRow
from tidings.store.log.log_reader import LogReader

T = TypeVar("T")
_TRIES = 20  # the first checks all filters, the others only those that have changed since


class DomainChanges:
    """Adds and changes domains."""

    def __init__(
        self, catalogue: Catalogue, log: LogReader, domains: KnownDomains, use: TenantUse, storing: Executor,
        computing: Executor,
    ) -> None:  # fmt: skip
        self._catalogue = catalogue
        self._log = log
        self._domains = domains
        self._use = use
        self._storing = storing
        self._computing = computing

    async def describe(self, tenant: str, described: Domain) -> tuple[DomainRow, bool]:
        """Adds a domain or changes its definition; returns its row, and whether it is new.

        Raises a Problem (409) if a filter cannot be matched with the new definition.
        """
        checked = -1  # the revision up to which filters were checked
        for _ in range(_TRIES):
            before = await _run(self._storing, self._catalogue.domain, tenant, described.name)
            if before is not None and before.definition != described.to_json():
                await _run(self._computing, self._check_filters, before, described, checked)
                checked = before.revision
            try:
                return await self._write(tenant, described, before), before is None
            except CatalogueChangedError:
                continue
        raise busy(f"the filters of the domain '{described.name}' change too fast to be checked; try again")

    async def _write(self, tenant: str, described: Domain, before: DomainRow | None) -> DomainRow:
        revision = 0 if before is None else before.revision
        put = partial(self._catalogue.put_domain, inferred=False, at_revision=revision)
        async with self._domains.changing(tenant, described.name):
            try:
                with self._use.made(tenant, "domains") if before is None else nullcontext():
                    return await _run(self._storing, put, tenant, described.name, described.to_json())
            finally:
                self._domains.forget(tenant, described.name)

    def _check_filters(self, row: DomainRow, described: Domain, checked: int) -> None:
        """Refuses a definition that a filter, added or changed after the revision `checked`, cannot be matched with."""
        filters = self._filters(row, checked)
        rejects = compile_filters([one.filter for one in filters], described, on_error="reject").rejects
        if rejects:
            place, error = rejects[0]
            others = f", and {len(rejects) - 1} more" if len(rejects) > 1 else ""
            raise Problem(
                409,
                "conflict",
                f"the filter of subscription '{filters[place].subscription}'{others} cannot be had with these "
                f"attributes: {error}; change or delete it first",
                pointer="/attributes",
            )

    def _filters(self, row: DomainRow, checked: int) -> list[FilterRow]:
        end = self._log.end
        if checked < 0:
            return self._catalogue.filters_of(row.tenant, row.name, from_position=end)
        changed = self._catalogue.changed_filters(row.tenant, row.name, checked)
        return [one for one in changed if one.needed_from(end)]


async def _run(executor: Executor, work: Callable[..., T], *values: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work, *values)
