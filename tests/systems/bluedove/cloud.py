"""A small network of BlueDove, whose segments are cut by hand."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from tidings.filter.normal.value_sets import ordinal
from tidings.model.domain import Attribute, Domain
from tidings.model.types import DOUBLE
from tidings.simulator.world import Network, World
from tidings.systems.bluedove.dispatcher_node import BlueDoveSettings
from tidings.systems.bluedove.node import BlueDoveNode
from tidings.systems.bluedove.placement import undivided
from tidings.systems.bluedove.segment_node import MatcherSettings
from tidings.systems.bluedove.segment_table import BEGINNING, Dimensions, Edge
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Effects, Event, Send
from tidings.systems.protocols.gossip import GossipSettings

PLANE = Domain("plane", [Attribute(name, "double") for name in ("x", "y")])
A, B, C, D, E, F = range(1, 7)


def along(domain: Domain) -> Dimensions:
    return Dimensions(undivided(tuple((attribute.name,) for attribute in domain.attributes)), Content(domain))


def cut_at(dimensions: Dimensions, cuts: Sequence[Sequence[float]], owners: Sequence[int]) -> list[Edge]:
    lows = [[BEGINNING, *(int(ordinal(cut, DOUBLE)) for cut in line)] for line in cuts]
    return [
        Edge(d, low, 0, owners[number], True, False) for d, line in enumerate(lows) for number, low in enumerate(line)
    ]


class Cloud:
    def __init__(self, domain: Domain, cuts: Sequence[Sequence[float]], ids: Sequence[int], **options: Any) -> None:
        random = Random(1)
        self.world = World(random, Network(random), laws=options.pop("laws", ()))
        self.dimensions = along(domain)
        gossip = GossipSettings(period_ms=300)
        self.settings = BlueDoveSettings(MatcherSettings(gossip, **options.pop("matcher", {})), **options)
        self.nodes = {id: self.make(id) for id in ids}
        edges = cut_at(self.dimensions, cuts, ids)
        for node in self.nodes.values():
            node.seat(list(self.nodes.values()))
            node.seat_segments(edges)
            self.world.add(node)

    def make(self, id: int) -> BlueDoveNode:
        return BlueDoveNode(id, self.world.random, self.dimensions, self.settings)

    def join(self, id: int, contact: int) -> BlueDoveNode:
        self.nodes[id] = self.make(id)
        self.world.add(self.nodes[id], contact)
        return self.nodes[id]

    def subscribe(self, id: int, name: str, text: str) -> None:
        self.world.do(id, self.nodes[id].subscribe(name, text, self.world.now_ms))

    def publish(self, id: int, name: str, **values: float) -> None:
        self.world.do(id, self.nodes[id].publish(Event(name, json.dumps(values)), self.world.now_ms))

    def run(self, for_ms: int) -> None:
        self.world.run(self.world.now_ms + for_ms)

    def hand_on(self, id: int, effects: Effects) -> None:
        """Messages, in just this order, and the answers to them."""
        under_way = deque((id, effect) for effect in effects)
        while under_way:
            sender, effect = under_way.popleft()
            if isinstance(effect, Send):
                answers = self.nodes[effect.to].on_message(sender, effect.message, self.world.now_ms)
                under_way += [(effect.to, answer) for answer in answers]

    def told(self, subscription: str) -> list[str]:
        return sorted(d.event for d in self.world.deliveries if d.subscription == subscription)
