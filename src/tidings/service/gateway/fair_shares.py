"""Slots that many share, so that nobody who is slow takes those of the others.

Somebody may take a slot while they have fewer than are free (Choudhury and Hahne 1998, "dynamic queue length
thresholds", with a factor of 1): one alone has half of them, two have a third each, n have 1/(n + 1). There is
always a slot for who comes new.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable


class Shares:
    """So many slots, and who has how many of them."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._taken: Counter[str] = Counter()
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def taken(self, name: str) -> int:
        return self._taken[name]

    def has_room(self, name: str) -> bool:
        return self._taken[name] < self._slots - self._total

    def take(self, name: str) -> None:
        self._taken[name] += 1
        self._total += 1

    def give_back(self, name: str) -> None:
        self._taken[name] -= 1
        self._total -= 1
        if not self._taken[name]:
            del self._taken[name]


class FairTurns:
    """Whose turn it is: tenants in turn, then the tenant's endpoints, then those who wait for one endpoint.

    Tenants share the slots, and the endpoints of a tenant share half of them, which is what the tenant can have. A
    tenant may have a limit of its own.
    """

    def __init__(self, slots: int, limit: Callable[[str], int] | None = None) -> None:
        self._slots = slots
        self._limit = limit
        self._tenants = Shares(slots)
        self._endpoints: dict[str, Shares] = {}  # by tenant
        self._waiting: OrderedDict[str, OrderedDict[str, deque[int]]] = OrderedDict()  # the next in turn first
        self._places: dict[int, tuple[str, str]] = {}  # tenant and endpoint of those that wait or run
        self._running: set[int] = set()

    def __contains__(self, key: int) -> bool:
        """Whether somebody waits for a turn, or has one."""
        return key in self._places

    def has_turn(self, key: int) -> bool:
        return key in self._running

    def wait(self, key: int, tenant: str, endpoint: str) -> None:
        """Have somebody wait for a turn; not one who does already."""
        assert key not in self._places
        self._places[key] = (tenant, endpoint)
        self._waiting.setdefault(tenant, OrderedDict()).setdefault(endpoint, deque()).append(key)

    def next(self) -> int | None:
        """Give a turn to the next who can have one."""
        for tenant, endpoints in self._waiting.items():
            if not self._tenants.has_room(tenant) or self._is_at_limit(tenant):
                continue
            shares = self._endpoints.get(tenant) or Shares(max(2, self._slots // 2))
            for endpoint, keys in endpoints.items():
                if shares.has_room(endpoint):
                    key = keys.popleft()
                    self._tenants.take(tenant)
                    shares.take(endpoint)
                    self._endpoints[tenant] = shares
                    self._running.add(key)
                    self._rotate(tenant, endpoint)
                    return key
        return None

    def running(self, tenant: str) -> int:
        """How many turns a tenant has."""
        return self._tenants.taken(tenant)

    def _is_at_limit(self, tenant: str) -> bool:
        return self._limit is not None and self.running(tenant) >= self._limit(tenant)

    def end(self, key: int) -> None:
        """Take a turn back."""
        self._running.remove(key)
        tenant, endpoint = self._places.pop(key)
        self._tenants.give_back(tenant)
        shares = self._endpoints[tenant]
        shares.give_back(endpoint)
        if not shares.total:
            del self._endpoints[tenant]

    def _rotate(self, tenant: str, endpoint: str) -> None:
        endpoints = self._waiting[tenant]
        endpoints.move_to_end(endpoint)
        if not endpoints[endpoint]:
            del endpoints[endpoint]
        self._waiting.move_to_end(tenant)
        if not endpoints:
            del self._waiting[tenant]
