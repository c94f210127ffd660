"""The matches of many filters and events, found the plain way: every filter on every event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from tidings.filter.meaning.interpreter import holds
from tidings.filter.syntax.parser import parse_filter
from tidings.model.domain import Domain
from tidings.model.event import read_events

SubscriptionId = TypeVar("SubscriptionId", int, str)


def brute_force(
    subscriptions: Mapping[SubscriptionId, str] | Iterable[tuple[SubscriptionId, str]], events: Any, domain: Domain
) -> list[tuple[int, SubscriptionId]]:
    """(number of the event, id of the subscription) for every match, in the order of events, then of subscriptions.

    Subscriptions are ids with the text of their filters; events are in any form that events have.
    """
    pairs = subscriptions.items() if isinstance(subscriptions, Mapping) else subscriptions
    filters = [(id_, parse_filter(text, domain)) for id_, text in pairs]
    batch = read_events(events, domain)
    records = [batch.record(i) for i in range(batch.count)]
    return [(i, id_) for i, record in enumerate(records) for id_, tree in filters if holds(tree, record)]
