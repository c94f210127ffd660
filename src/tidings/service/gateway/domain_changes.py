"""Describes domains: adds one, or changes its attributes unless a filter or a waiting event needs them as they are.

An event that was acknowledged is matched with the domain as it is then. So a definition that an event which waits to
be matched does not fit is refused: the event would be lost. What is published meanwhile waits for the change, which
in turn waits for what is being appended (`KnownDomains`):

    publishing ── appended ──┐                                                 ┌── checked, appended
    changing ────────────────┴── log's end read ── events before it checked ── written

Checking all filters of a domain takes long, and holds no lock. A filter that is added or changed meanwhile moves the
domain's revision; the new definition is written only at the revision that was checked.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Domain
from tidings.service.gateway.catalogue_cache import KnownDomains
from tidings.service.gateway.driver_lag import Lag
from tidings.service.gateway.gateway_stores import Stores
from tidings.service.gateway.problems import Problem, busy
from tidings.service.gateway.tenant_use import TenantUse
from tidings.store.catalogue import CatalogueChangedError, DomainRow, FilterRow
from tidings.store.log.page import attribute_columns

_TRIES = 20  # the first checks all filters, the others only those that have changed since
MAX_CHECKED_EVENTS = 20_000  # that wait to be matched
MAX_CHECKED_BYTES = 64 << 20


class _Checked(NamedTuple):
    """The filters up to a revision were checked, and the events of positions [first, end)."""

    revision: int
    first: int  # nobody waits for what is before it: no filter is valid there
    end: int


class DomainChanges:
    """Adds and changes domains."""

    def __init__(self, stores: Stores, lag: Lag, domains: KnownDomains, use: TenantUse) -> None:
        self._catalogue = stores.catalogue
        self._log = stores.reader
        self._storing = stores.storing
        self._computing = stores.computing
        self._lag = lag
        self._domains = domains
        self._use = use

    async def describe(self, tenant: str, described: Domain, placement: str | None) -> tuple[DomainRow, bool]:
        """Adds a domain or changes its definition and placement; returns its row, and whether it is new.

        Raises a Problem (409) if a filter cannot be matched with the new definition, or if an event that waits to be
        matched does not fit it.
        """
        checked: _Checked | None = None
        for _ in range(_TRIES):
            before = await self._storing.run(self._catalogue.domain, tenant, described.name)
            change = before if before is not None and before.definition != described.to_json() else None
            if change is not None:
                checked = await self._computing.run(self._check, change, described, checked)
            try:
                async with self._domains.changing(tenant, described.name):
                    if change is not None and checked is not None:
                        await self._computing.run(self._check_events, change, described, checked.end)
                    return await self._write(tenant, described, placement, before), before is None
            except CatalogueChangedError:
                continue
        raise busy(f"the filters of the domain '{described.name}' change too fast to be checked; try again")

    async def _write(
        self, tenant: str, described: Domain, placement: str | None, before: DomainRow | None
    ) -> DomainRow:
        revision = 0 if before is None else before.revision
        put = partial(self._catalogue.put_domain, inferred=False, placement=placement, at_revision=revision)
        had_placement = before is not None and before.placement is not None
        try:
            with (
                self._use.made(tenant, "domains") if before is None else nullcontext(),
                self._use.made(tenant, "placements") if placement is not None and not had_placement else nullcontext(),
            ):
                row = await self._storing.run(put, tenant, described.name, described.to_json())
        finally:
            self._domains.forget(tenant, described.name)
        if placement is None and had_placement:
            self._use.give(tenant, "placements")
        return row

    def _check(self, row: DomainRow, described: Domain, before: _Checked | None) -> _Checked:
        """Refuses a definition that a filter cannot be matched with, or that a waiting event does not fit."""
        end = self._log.end
        waiting, *_ = next(self._log.parts(self._reached(row), end, row.key), (end,))
        if before is None:
            filters = self._catalogue.filters_of(row.tenant, row.name, from_position=waiting)
        else:
            changed = self._catalogue.changed_filters(row.tenant, row.name, before.revision)
            filters = [one for one in changed if one.needed_from(waiting)]
        _check_filters(filters, described)
        begun = [one.valid_from for one in filters if one.valid_from is not None]
        first = min([*begun, end if before is None else before.first])
        return _Checked(row.revision, first, self._check_events(row, described, first))

    def _check_events(self, row: DomainRow, described: Domain, start: int) -> int:
        """Refuses a definition that waiting events from `start` on do not fit; returns the position up to which."""
        end = self._log.end
        start = max(start, self._reached(row))
        domain = Domain(row.key, described.attributes, described.indices)
        count = size = 0
        for page in self._log.pages(start, end, domain=row.key):
            count += page.count
            size += page.length
            if count > MAX_CHECKED_EVENTS or size > MAX_CHECKED_BYTES:
                raise _refused(
                    f"{self._lag.of(row.key):,} events of the domain '{row.name}' wait to be matched, too many to be "
                    "checked against these attributes; wait until fewer wait"
                )
            for read in attribute_columns([page], domain, start, end, on_error="reject"):
                for position, reason in zip(read.position.to_pylist(), read.rejected.to_pylist(), strict=True):
                    if reason is not None:
                        raise _refused(
                            f"{self._lag.of(row.key):,} events of the domain '{row.name}' wait to be matched, and the "
                            f"one at position {position} does not fit these attributes: {reason}; wait until it is "
                            "matched"
                        )
        return end

    def _reached(self, row: DomainRow) -> int:
        """Returns the position before which all events of a domain are matched."""
        return max(self._lag.reached(row.key), self._log.start)


def _check_filters(filters: list[FilterRow], described: Domain) -> None:
    rejects = compile_filters([one.filter for one in filters], described, on_error="reject").rejects
    if rejects:
        place, error = rejects[0]
        others = f", and {len(rejects) - 1} more" if len(rejects) > 1 else ""
        raise _refused(
            f"the filter of subscription '{filters[place].subscription}'{others} does not fit these attributes: "
            f"{error}; change or delete it first"
        )


def _refused(detail: str) -> Problem:
    return Problem(409, "conflict", detail, pointer="/attributes")
