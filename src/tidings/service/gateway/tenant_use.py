"""Counts what each tenant uses, and refuses what is beyond its quota.

Some resources are shared: memory for bodies, and connections. They are divided so that a tenant that uses at most a
tenth of its quota is never refused, whatever the other tenants do:

    a tenant's use   |■■■■■■■■■■|■■■■■■■■■■■■■■■■                    |
                      its tenth   from what all share                quota

The first tenth of a quota is reserved for its tenant. Only use beyond it comes out of the shared part, and only the
shared part can run out. `take` refuses in two cases: the tenant would exceed its quota, or it would take from the
shared part and nothing is left there. A use that stays within the tenth is neither.

The price: all tenants together can use the shared part plus a tenth of each one's quota. Tenants are made by the
operator, so that their number is known.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from tidings.service.gateway.gateway_settings import Quota, Quotas
from tidings.service.gateway.problems import Problem, busy

OWN = 10  # the part of a quota that is a tenant's own: one in so many

NAMES = tuple(one.name for one in dataclasses.fields(Quota))

# What a tenant can do about it, by the quota; and whether waiting helps.
_ADVICE = {
    "domains": ("delete some", False),
    "subscriptions": ("delete some", False),
    "filter_cost": ("delete some subscriptions, or write cheaper filters", False),
    "connections": ("close some, or send several requests on one", True),
    "streams": ("close some", True),
    "uploading_bytes": ("send fewer bodies at once", True),
    "waiting_bytes": ("publish again when some are matched", True),
    "shared_waiting_bytes": (
        "publish again when some are matched; a domain with many events gets its own stream",
        True,
    ),
    "backtests": ("wait for one to end", True),
}
_WHAT = {
    "domains": "domains",
    "subscriptions": "subscriptions",
    "filter_cost": "units of filter cost",
    "connections": "open connections",
    "streams": "open streams",
    "uploading_bytes": "bytes of bodies under way",
    "waiting_bytes": "bytes published and not yet matched",
    "shared_waiting_bytes": "bytes published to small domains and not yet matched",
    "backtests": "backtests under way",
}


_NONE: Counter[str] = Counter()


class TenantUse:
    """Counts what tenants have. For the event loop, like all that asks it."""

    def __init__(self, quotas: Quotas, shared: Mapping[str, int]) -> None:
        self.quotas = quotas
        self._measured: dict[str, Callable[[str], int]] = {}  # what is counted elsewhere, by quota
        self._shared = dict(shared)  # of what is divided: what all tenants have beyond their own tenths
        self._taken: Counter[str] = Counter()  # of that
        self._used: dict[str, Counter[str]] = {}  # by tenant
        self.refusals: Counter[tuple[str, str]] = Counter()  # by tenant and quota

    def measure(self, name: str, use_of: Callable[[str], int]) -> None:
        """Have what tenants use of something be counted elsewhere."""
        self._measured[name] = use_of

    def limit(self, tenant: str, name: str) -> int:
        limit: int = getattr(self.quotas.of(tenant), name)
        return limit

    def used(self, tenant: str, name: str) -> int:
        measured = self._measured.get(name)
        return self._used.get(tenant, _NONE)[name] if measured is None else measured(tenant)

    def take(self, tenant: str, name: str, amount: int = 1) -> None:
        """Count that a tenant has more of something; 429 beyond its quota, 503 where what is shared has run out."""
        used, limit = self.used(tenant, name), self.limit(tenant, name)
        if used + amount > limit:
            raise self.refused(tenant, name, used + amount)
        if name in self._shared and used + amount > limit // OWN:
            more = self._beyond(tenant, name, used + amount) - self._beyond(tenant, name, used)
            if more and self._taken[name] + more > self._shared[name]:
                self.refusals[tenant, name] += 1
                raise busy(
                    f"the service has no room for more {_WHAT[name]} at the moment; try again in a second, or "
                    f"use at most {limit // OWN:,}, which are always there for you",
                    limit=name, value=limit,
                )  # fmt: skip
            self._taken[name] += more
        self._used.setdefault(tenant, Counter())[name] = used + amount

    def give(self, tenant: str, name: str, amount: int = 1) -> None:
        """Count that a tenant has less."""
        used = self._used[tenant]
        before, used[name] = used[name], max(0, used[name] - amount)
        if name in self._shared and self._taken[name]:
            self._taken[name] -= self._beyond(tenant, name, before) - self._beyond(tenant, name, used[name])

    def note(self, tenant: str, name: str, amount: int) -> None:
        """Set what a tenant has, as it was just counted."""
        assert name not in self._shared
        self._used.setdefault(tenant, Counter())[name] = amount

    def expect_below(self, tenant: str, name: str, amount: int = 1) -> None:
        """Refuse a tenant more of something that is counted elsewhere, where it would be beyond the quota."""
        wanted = self.used(tenant, name) + amount
        if wanted > self.limit(tenant, name):
            raise self.refused(tenant, name, wanted)

    @contextlib.contextmanager
    def taken(self, tenant: str, name: str, amount: int = 1) -> Iterator[None]:
        """Something that a tenant has as long as a block runs."""
        self.take(tenant, name, amount)
        try:
            yield
        finally:
            self.give(tenant, name, amount)

    @contextlib.contextmanager
    def made(self, tenant: str, name: str, amount: int = 1) -> Iterator[None]:
        """Something that a block makes: the tenant has it from then on, unless the block raises."""
        self.take(tenant, name, amount)
        try:
            yield
        except BaseException:
            self.give(tenant, name, amount)
            raise

    def refused(self, tenant: str, name: str, wanted: int) -> Problem:
        """What a tenant is told that is at a limit; names it, its value, and what to do."""
        self.refusals[tenant, name] += 1
        advice, passes = _ADVICE[name]
        limit = self.limit(tenant, name)
        return Problem(
            429,
            "quota",
            f"this would make {wanted:,} {_WHAT[name]}, and this tenant may have {limit:,} (the quota '{name}'); "
            f"{advice}, or ask the operator for more",
            headers={"Retry-After": "1"} if passes else None,
            limit=name,
            value=limit,
        )

    def of(self, tenant: str) -> dict[str, dict[str, int]]:
        """What a tenant has and may have of everything that is counted here."""
        return {name: {"used": self.used(tenant, name), "limit": self.limit(tenant, name)} for name in NAMES}

    def tenants(self) -> list[str]:
        """Those that have had anything."""
        return sorted(self._used)

    def _beyond(self, tenant: str, name: str, used: int) -> int:
        """What of a use comes from what all share."""
        return max(0, used - self.limit(tenant, name) // OWN)
