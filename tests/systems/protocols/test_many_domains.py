"""Several domains in one node: networks that share nodes, and nothing else."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from tidings.errors import TidingsError
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.simulator.world import Network, World
from tidings.systems.overlay import MemoryLog, overlay_named, overlays
from tidings.systems.protocols.effects import Event
from tidings.systems.protocols.many_domains import DomainsNode, node_of
from tidings.systems.protocols.ring_ids import ADDRESS_BITS

SYSTEMS = [name for name, one in overlays().items() if one.system.needs == "records" and not one.variant]
STOCKS = Domain("stocks", [Attribute("price", "double", min=0.0, max=100.0, precision=1.0)])
WINES = Domain("wines", [Attribute("price", "double", min=0.0, max=10.0, precision=0.5), Attribute("year", "int")])


class Nodes:
    def __init__(self, system: str, *domains: list[Domain]) -> None:
        random = Random(3)
        self.world = World(random, Network(random))
        ids = random.sample(range(1 << ADDRESS_BITS), len(domains))
        self.nodes = [
            node_of(overlay_named(system), id, own, random, lambda _: MemoryLog())
            for id, own in zip(ids, domains, strict=True)
        ]
        for node in self.nodes:
            self.world.add(node, None if node is self.nodes[0] else ids[0])
            self.run(3_000)

    def run(self, for_ms: int) -> None:
        self.world.run(self.world.now_ms + for_ms)

    def subscribe(self, at: int, name: str, text: str, domain: str | None = None) -> None:
        node = self.nodes[at]
        self.world.do(node.id, node.subscribe(name, text, self.world.now_ms, domain))

    def publish(self, at: int, name: str, domain: str | None = None, **values: Any) -> None:
        node = self.nodes[at]
        self.world.do(node.id, node.publish(Event(name, json.dumps(values)), self.world.now_ms, domain))

    def told(self) -> list[tuple[str, str]]:
        return sorted((d.subscription, d.event) for d in self.world.deliveries)


@pytest.mark.parametrize("system", SYSTEMS)
def test_an_event_meets_the_subscriptions_of_its_own_domain(system: str) -> None:
    both = [STOCKS, WINES]
    nodes = Nodes(system, both, both, [WINES])  # the third was given only one of them
    assert len(nodes.world.ready) == 3
    nodes.subscribe(0, "s", "price > 5", "stocks")
    nodes.subscribe(1, "w", "price > 5", "wines")
    nodes.subscribe(2, "old", "price > 5 AND year < 1990")
    nodes.run(9_000)
    assert set(nodes.world.active) == {"s", "w", "old"}
    nodes.publish(1, "share", "stocks", price=7.0)
    nodes.publish(0, "bottle", "wines", price=7.0, year=1982)
    nodes.publish(2, "cheap", price=2.0, year=1982)
    nodes.run(4_000)
    assert nodes.told() == [("old", "bottle"), ("s", "share"), ("w", "bottle")]


def test_a_subscription_can_move_to_another_domain_and_be_given_up_there() -> None:
    nodes = Nodes("opchord", [STOCKS, WINES], [STOCKS, WINES])
    nodes.subscribe(0, "s", "price > 5", "stocks")
    nodes.run(3_000)
    nodes.subscribe(0, "s", "price > 5", "wines")
    nodes.run(3_000)
    nodes.publish(1, "share", "stocks", price=7.0)
    nodes.publish(1, "bottle", "wines", price=7.0)
    nodes.run(3_000)
    assert nodes.told() == [("s", "bottle")]
    nodes.world.do(nodes.nodes[0].id, nodes.nodes[0].unsubscribe("s", nodes.world.now_ms))
    nodes.run(3_000)
    nodes.publish(1, "another", "wines", price=7.0)
    nodes.run(3_000)
    assert nodes.told() == [("s", "bottle")]


def test_who_was_given_another_declaration_is_in_another_network() -> None:
    dearer = Domain("stocks", [Attribute("price", "double", min=0.0, max=1000.0, precision=1.0)])
    nodes = Nodes("opchord", [STOCKS], [dearer])
    assert list(nodes.world.ready) == [nodes.nodes[0].id]


@pytest.mark.parametrize(
    ("domain", "complaint"),
    [(None, 'stocks, wines; say which: "domain"'), ("vines", "did you mean 'wines'")],
)
def test_a_domain_has_to_be_named_where_there_are_several(domain: str | None, complaint: str) -> None:
    node: DomainsNode = node_of(overlay_named("chord"), 1, [STOCKS, WINES], Random(1), lambda _: MemoryLog())
    with pytest.raises(TidingsError, match=complaint):
        node.subscribe("s", "price > 5", 0, domain)
    with pytest.raises(TidingsError, match=complaint):
        node.publish(Event("e", "{}"), 0, domain)


def test_nodes_with_different_samples_are_in_different_networks() -> None:
    def network(values: list[float]) -> str:
        sample = read_events([{"price": value} for value in values], STOCKS)
        made = node_of(
            overlay_named("opchord"), 1, [STOCKS], Random(0), lambda _: MemoryLog(), samples={"stocks": sample}
        )
        return made.networks["stocks"]

    assert network([1.0, 2.0, 3.0]) == network([1.0, 2.0, 3.0]) != network([1.0, 2.0, 4.0])


def test_nodes_whose_shared_settings_differ_are_in_different_networks() -> None:
    def network(*given: tuple[str, str]) -> str:
        named = overlay_named("digests").with_settings(given)
        return node_of(named, 1, [STOCKS], Random(0), lambda _: MemoryLog()).networks["stocks"]

    assert network() == network(("leaves", "8")) == network(("matching", "leaf"))
    assert network() != network(("matching", "home"))
