"""Subscriptions as the catalogue has them: looked up once, and remembered while they are asked for.

The gateway is the one process that changes subscriptions, so that it knows when to forget.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import Executor

from tidings.service.gateway.problems import Problem, missing
from tidings.store.catalogue import Catalogue, SubscriptionRow

_REMEMBERED = 20_000
MAX_ID = 255
DELIVERED = ("active", "suspended", "failed", "expired")  # states in which what waits may be had


class KnownSubscriptions:
    """Finds subscriptions by tenant and id."""

    def __init__(self, catalogue: Catalogue, executor: Executor) -> None:
        self._catalogue = catalogue
        self._executor = executor
        self._known: OrderedDict[tuple[str, str], SubscriptionRow] = OrderedDict()
        self._forgotten = 0  # how often: what was read before a change is not remembered after it

    async def find(self, tenant: str, id: str) -> SubscriptionRow | None:
        found = self._known.get((tenant, id))
        if found is not None or not 0 < len(id) <= MAX_ID or "\0" in id:
            return found
        before = self._forgotten
        loop = asyncio.get_running_loop()
        row = await loop.run_in_executor(self._executor, self._catalogue.get, tenant, id)
        if row is not None and before == self._forgotten:
            self._known[tenant, id] = row
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return row

    async def required(self, tenant: str, id: str, *, pointer: str | None = None) -> SubscriptionRow:
        """A subscription; 404 where it is not there, or is another tenant's."""
        row = await self.find(tenant, id)
        if row is None:
            raise missing("subscription", id, pointer=pointer)
        return row

    def forget(self, tenant: str, id: str) -> None:
        """It was changed: look it up again next time."""
        self._forgotten += 1
        self._known.pop((tenant, id), None)


def expect_read_by_subscriber(row: SubscriptionRow) -> None:
    """Refuse to hand over what is delivered otherwise."""
    if row.delivery == "webhook":
        raise Problem(409, "delivery", "this subscription is delivered by webhook; change its delivery to pull or sse")
