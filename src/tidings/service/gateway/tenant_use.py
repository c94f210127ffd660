"""Counts what each tenant uses, and refuses what exceeds its quota.

Some resources are shared: memory for bodies, and connections. They are divided so that a tenant that uses at most a
tenth of its quota is never refused, whatever the other tenants do:

    a tenant's use   |■■■■■■■■■■|■■■■■■■■■■■■■■■■                    |
                      its tenth   from what all share                quota

The first tenth of a quota is reserved for its tenant. Only use beyond it comes out of the shared part, and only the
shared part can run out. `take` refuses in two cases: the tenant would exceed its quota, or it would take from the
shared part and nothing is left there. A use that stays within the tenth is neither.

The price: all tenants together can use the shared part plus a tenth of each one's quota. The operator creates tenants,
so their number is known.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tidings.service.gateway.gateway_settings import Quota, Quotas
from tidings.service.gateway.problems import Problem, busy

OWN = 10  # a tenth of a quota is the tenant's own

NAMES = tuple(one.name for one in dataclasses.fields(Quota))


class _Refusal(NamedTuple):
    """How a refusal is written, by quota."""

    what: str
    advice: str  # what the tenant can do
    passes: bool = True  # whether waiting helps


_REFUSALS = {
    "domains": _Refusal("domains", "delete some", passes=False),
    "placements": _Refusal("domains with a placement of their own", "leave it to the service", passes=False),
    "subscriptions": _Refusal("subscriptions", "delete some", passes=False),
    "filter_cost": _Refusal(
        "units of filter cost", "delete some subscriptions, or write cheaper filters", passes=False
    ),
    "connections": _Refusal("open connections", "close some, or send several requests on one"),
    "streams": _Refusal("open streams", "close some"),
    "uploading_bytes": _Refusal("bytes of bodies under way", "send fewer bodies at once"),
    "waiting_bytes": _Refusal("bytes published and not yet matched", "publish again when some are matched"),
    "shared_waiting_bytes": _Refusal(
        "bytes published to small domains and not yet matched",
        "publish again when some are matched; a domain with many events gets its own stream",
    ),
    "backtests": _Refusal("backtests under way", "wait for one to end"),
}


_NONE: Counter[str] = Counter()


class TenantUse:
    """Counts what tenants use. Belongs to the event loop."""

    def __init__(self, quotas: Quotas, shared: Mapping[str, int]) -> None:
        self.quotas = quotas
        self._measured: dict[str, Callable[[str], int]] = {}  # what is counted elsewhere, by quota
        self._shared = dict(shared)  # what all tenants together may use beyond their own tenths
        self._taken: Counter[str] = Counter()  # of that
        self._used: dict[str, Counter[str]] = {}  # by tenant
        self.refusals: Counter[tuple[str, str]] = Counter()  # by tenant and quota

    def measure(self, name: str, use_of: Callable[[str], int]) -> None:
        """Takes what tenants use of a quota from a function."""
        self._measured[name] = use_of

    def limit(self, tenant: str, name: str) -> int:
        limit: int = getattr(self.quotas.of(tenant), name)
        return limit

    def used(self, tenant: str, name: str) -> int:
        measured = self._measured.get(name)
        return self._used.get(tenant, _NONE)[name] if measured is None else measured(tenant)

    def take(self, tenant: str, name: str, amount: int = 1) -> None:
        """Counts more for a tenant; raises a 429 beyond its quota, and a 503 if the shared part has run out."""
        used, limit = self.used(tenant, name), self.limit(tenant, name)
        if used + amount > limit:
            raise self.refused(tenant, name, used + amount)
        if name in self._shared and used + amount > limit // OWN:
            more = self._beyond(tenant, name, used + amount) - self._beyond(tenant, name, used)
            if more and self._taken[name] + more > self._shared[name]:
                self.refusals[tenant, name] += 1
                raise busy(
                    f"the service has no room for more {_REFUSALS[name].what} at the moment; try again in a second, or "
                    f"use at most {limit // OWN:,}, which are always there for you",
                    limit=name,
                    value=limit,
                )
            self._taken[name] += more
        self._used.setdefault(tenant, Counter())[name] = used + amount

    def give(self, tenant: str, name: str, amount: int = 1) -> None:
        """Counts less for a tenant."""
        used = self._used[tenant]
        before, used[name] = used[name], max(0, used[name] - amount)
        if name in self._shared and self._taken[name]:
            self._taken[name] -= self._beyond(tenant, name, before) - self._beyond(tenant, name, used[name])

    def note(self, tenant: str, name: str, amount: int) -> None:
        """Sets what a tenant uses, as it was just counted."""
        assert name not in self._shared
        self._used.setdefault(tenant, Counter())[name] = amount

    def expect_below(self, tenant: str, name: str, amount: int = 1) -> None:
        """Raises a 429 if a tenant would exceed a quota whose use is counted elsewhere."""
        wanted = self.used(tenant, name) + amount
        if wanted > self.limit(tenant, name):
            raise self.refused(tenant, name, wanted)

    @contextlib.contextmanager
    def made(self, tenant: str, name: str, amount: int = 1) -> Iterator[None]:
        """Counts something that a block creates, from then on, unless the block raises."""
        self.take(tenant, name, amount)
        try:
            yield
        except BaseException:
            self.give(tenant, name, amount)
            raise

    def refused(self, tenant: str, name: str, wanted: int) -> Problem:
        """Returns the 429 for a tenant at a limit: its name, its value, and what to do."""
        self.refusals[tenant, name] += 1
        what, advice, passes = _REFUSALS[name]
        limit = self.limit(tenant, name)
        return Problem(
            429,
            "quota",
            f"this would make {wanted:,} {what}, and this tenant may have {limit:,} (the quota '{name}'); "
            f"{advice}, or ask the operator for more",
            headers={"Retry-After": "1"} if passes else None,
            limit=name,
            value=limit,
        )

    def of(self, tenant: str) -> dict[str, dict[str, int]]:
        """Returns what a tenant uses of every quota, and its limit."""
        return {name: {"used": self.used(tenant, name), "limit": self.limit(tenant, name)} for name in NAMES}

    def tenants(self) -> list[str]:
        """Returns the tenants that have used anything."""
        return sorted(self._used)

    def _beyond(self, tenant: str, name: str, used: int) -> int:
        """Returns the part of a use that comes from the shared part."""
        return max(0, used - self.limit(tenant, name) // OWN)
