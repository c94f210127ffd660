"""Subscriptions for tests of the catalogue."""

from __future__ import annotations

from typing import Any

from tidings.store.catalogue import Catalogue, NewSubscription, SubscriptionRow


def new(id: str | None = None, filter: str = "price < 100", tenant: str = "ada", **more: Any) -> NewSubscription:
    return NewSubscription(tenant, "flights", filter, id=id, **more)


def active(catalogue: Catalogue, subscription: NewSubscription, position: int = 0) -> SubscriptionRow:
    made = catalogue.create(subscription)
    catalogue.activate(made.filters[0].number, position)
    found = catalogue.get(made.tenant, made.id)
    assert found is not None
    return found


def ids(catalogue: Catalogue, tenant: str = "ada", **asked: Any) -> list[str]:
    return [row.id for row in catalogue.list(tenant, **asked).subscriptions]
