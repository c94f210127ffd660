"""What simulated subscribers ask for and publishers publish: one domain, a pool of filters, a pool of events.

Systems for XML have documents and paths instead (`feeds`).

The pools are the same for every seed, so that thousands of simulations read each text once; a seed chooses
from them. Values are few and ranges wide, so that most events match something.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property, lru_cache
from random import Random
from typing import Any, Protocol

from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.model.domain import Attribute, Domain
from tidings.model.event import EventBatch, read_events
from tidings.simulator.feed_workload import feeds
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Event
from tidings.systems.statistics import Statistics, statistics_of

SYMBOLS = ("ALPHA", "BETA", "DELTA", "GAMMA", "OMEGA", "SIGMA")
FILTERS, EVENTS = 160, 120

DOMAIN = Domain(
    "market",
    [
        Attribute("symbol", "string", allowed=SYMBOLS),
        Attribute("price", "double", min=0.0, max=100.0, precision=0.5),
        Attribute("volume", "bigint", min=0, max=1000, precision=10),
        Attribute("rating", "int", min=0, max=9, precision=1),
    ],
    indices=[("symbol",), ("symbol", "rating"), ("rating",)],
)


class Pool(Protocol):
    """What a schedule is made of, and whoever judges its deliveries asks."""

    @property
    def filters(self) -> tuple[str, ...]: ...

    @property
    def events(self) -> tuple[str, ...]: ...

    def matches(self, text: str, body: str) -> bool: ...


class Workload:
    """A domain with filters and events over it, and what is known of them beforehand."""

    def __init__(self, domain: Domain, filters: Iterable[str], events: Iterable[dict[str, Any]]) -> None:
        self.content = Content(domain)
        self.filters = tuple(filters)
        self.events = tuple(json.dumps(event) for event in events)
        self._matches: dict[tuple[str, str], bool] = {}

    @property
    def domain(self) -> Domain:
        return self.content.domain

    @cached_property
    def table(self) -> FilterTable:
        return compile_filters(self.filters, self.domain)

    @cached_property
    def batch(self) -> EventBatch:
        return read_events([json.loads(event) for event in self.events], self.domain)

    @cached_property
    def statistics(self) -> Statistics:
        return statistics_of(self.table, self.batch)

    def matches(self, text: str, body: str) -> bool:
        """The oracle: the meaning of the filter, over the event's record."""
        key = (text, body)
        known = self._matches.get(key)
        if known is None:
            record = self.content.record(Event("", body))
            known = self._matches[key] = self.content.interest(text).holds(record)
        return known


@lru_cache(maxsize=1)
def market() -> Workload:
    random = Random("market")
    return Workload(DOMAIN, [_filter(random) for _ in range(FILTERS)], [_event(random) for _ in range(EVENTS)])


def workload_of(system: str) -> Pool:
    """What a system is tried with."""
    return feeds() if system.startswith("sonnet") else market()


def _event(random: Random) -> dict[str, Any]:
    event = {
        "symbol": random.choice(SYMBOLS),
        "price": random.randint(-10, 210) / 2,  # past both ends, too
        "volume": random.randint(0, 1000),
        "rating": random.randint(0, 9),
    }
    if random.random() < 0.15:
        event[random.choice(list(event))] = None
    return event


def _filter(random: Random) -> str:
    low, width = random.randint(0, 150) / 2, random.randint(5, 100) / 2
    at, volume = random.randint(0, 9), random.randint(0, 900)
    symbol, other = random.sample(SYMBOLS, 2)
    return random.choice(
        [
            f"symbol = '{symbol}'",
            f"symbol = '{symbol}' AND rating = {at}",
            f"symbol IN ('{symbol}', '{other}') AND price >= {low} AND price < {low + width}",
            f"price > {low} AND price < {low + width}",
            f"price BETWEEN {low} AND {low + width} AND volume < {volume}",
            f"volume > {volume} AND rating != {at}",
            f"rating IN ({at}, {(at + 3) % 10}) OR price > {low + width}",
            f"symbol = '{symbol}' AND price * 2 > {2 * low} AND volume >= {volume}",
            f"rating IS NULL OR (rating = {at} AND symbol > '{other}')",
            f"volume > price * {random.randint(5, 20)}",
        ]
    )
