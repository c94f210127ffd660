"""Intervals that follow the events, and nodes that change over to them without losing one."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from tidings.errors import TidingsError
from tidings.model.domain import Attribute, Domain
from tidings.simulator.world import Network, World
from tidings.systems.digests.interval_views import AdaptSettings, IntervalViews
from tidings.systems.digests.laws import UnderEveryView, one_view_at_rest
from tidings.systems.digests.messages import IntervalEdges, IntervalView, KnownView, ViewHandout
from tidings.systems.digests.node import DigestNode, DigestSettings, Matching
from tidings.systems.digests.placement import adapt
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Event
from tidings.systems.protocols.pastry import PastrySettings
from tidings.systems.protocols.scribe import ScribeSettings

LOTS = Domain("lots", [Attribute("weight", "int", min=0, max=1600)], indices=[("weight",)])
CONTENT = Content(LOTS)
VIEWS = IntervalViews(adapt(CONTENT.statistics, partitions=1), CONTENT, 32)
OFTEN = AdaptSettings(adapt_ms=3_000, check_ms=1_000, sample_min=100, settle_ms=3_000, overlap_ms=8_000)


class Lots:
    """Ten nodes, subscriptions to light and heavy lots, and events of lots that are light at first."""

    def __init__(self, matching: Matching = "leaf", settings: AdaptSettings = OFTEN) -> None:
        self.random = Random(3)
        self.world = World(self.random, Network(self.random), laws=[UnderEveryView()])
        self.settings = DigestSettings(ScribeSettings(PastrySettings(leaves=8)), matching, settings)
        self.nodes = [self.made() for _ in range(10)]
        for node in self.nodes:
            node.seat(sorted(other.id for other in self.nodes))
            self.world.add(node)
        self.texts = {f"s{number}": f"weight BETWEEN {60 * number} AND {60 * number + 90}" for number in range(20)}
        for number, (name, text) in enumerate(self.texts.items()):
            node = self.nodes[number % 10]
            self.world.do(node.id, node.subscribe(name, text, 0))
        self.world.run(3_000)
        self.events: dict[str, int] = {}

    def made(self) -> DigestNode:
        return DigestNode(self.random.getrandbits(32), self.random, VIEWS, self.settings)

    def publish(self, count: int, weights: tuple[int, int], pause_ms: int = 40) -> None:
        for _ in range(count):
            weight = self.random.randint(*weights)
            name = f"e{len(self.events)}"
            self.events[name] = weight
            node = self.random.choice(self.nodes)
            event = Event(name, json.dumps({"weight": weight}))
            self.world.do(node.id, node.publish(event, self.world.now_ms))
            self.world.run(self.world.now_ms + pause_ms)

    def run(self, for_ms: int) -> None:
        self.world.run(self.world.now_ms + for_ms)

    def wanted(self) -> list[tuple[str, str]]:
        bounds = {name: (60 * number, 60 * number + 90) for number, name in enumerate(self.texts)}
        return sorted(
            (name, event)
            for name, (low, high) in bounds.items()
            for event, weight in self.events.items()
            if low <= weight <= high
        )

    def told(self) -> list[tuple[str, str]]:
        return sorted((delivery.subscription, delivery.event) for delivery in self.world.deliveries)


@pytest.mark.parametrize("matching", ["leaf", "tree", "home"])
def test_intervals_follow_the_events_at_every_node_and_no_event_is_lost_or_told_twice(matching: Matching) -> None:
    lots = Lots(matching)
    lots.publish(500, (0, 99))
    lots.publish(500, (1400, 1500))
    lots.run(12_000)
    (view,) = {node.view for node in lots.nodes}
    assert view.epoch >= 2
    late = list(lots.events.values())[-300:]
    counts = np.bincount(np.searchsorted(view.divisions[0].edges, late, side="right"))
    assert counts.max() < 0.3 * 300  # of equal widths, one has them all
    assert lots.told() == lots.wanted()
    one_view_at_rest(lots.world)


def test_nothing_is_left_of_a_view_that_all_have_left() -> None:
    lots = Lots()
    lots.publish(300, (0, 99))
    lots.run(20_000)
    (view,) = {node.view for node in lots.nodes}
    assert view.epoch == 1
    assert all(list(node.known) == [view] for node in lots.nodes)
    held = {group for text in lots.texts.values() for group in VIEWS.at(view).held(text)}
    assert {group for node in lots.nodes for group in node.groups} == held


def test_without_adapting_the_first_view_stays() -> None:
    lots = Lots(settings=OFTEN._replace(adapt_ms=0))
    lots.publish(300, (0, 99))
    lots.run(10_000)
    assert {node.view for node in lots.nodes} == {VIEWS.first}
    assert lots.told() == lots.wanted()


def test_a_newcomer_is_handed_the_views_in_use_and_changes_over_with_the_others() -> None:
    lots = Lots()
    lots.publish(200, (0, 99))
    while len(lots.nodes[0].known) == 1:
        lots.run(20)
    newcomer = lots.made()
    lots.world.add(newcomer, lots.nodes[0].id)
    while newcomer.id not in lots.world.ready:
        lots.run(20)
    assert list(newcomer.known) == list(lots.nodes[0].known)
    assert newcomer.routing(lots.world.now_ms) == VIEWS.first
    lots.nodes.append(newcomer)
    lots.publish(300, (0, 99))
    lots.run(5_000)
    assert newcomer.routing(lots.world.now_ms).epoch == 1
    assert lots.told() == lots.wanted()


def test_whoever_missed_the_news_is_told_by_the_root() -> None:
    lots = Lots()
    lots.publish(200, (0, 99))
    while len(lots.nodes[0].known) == 1:
        lots.run(20)
    lots.run(500)
    newer = lots.nodes[0].view
    behind = next(node for node in lots.nodes if node.next_hop(node._root_key) is not None)
    behind.known = {VIEWS.first: 0}
    lots.run(2 * OFTEN.check_ms)
    assert behind.view == newer


def test_a_root_that_is_behind_asks_for_the_newer_view() -> None:
    lots = Lots(settings=OFTEN._replace(adapt_ms=0))
    newer = IntervalView(1, 7, (IntervalEdges("weight", (10, 20)),))
    node = lots.nodes[4]
    node.known[newer] = lots.world.now_ms
    lots.world.do(node.id, node.view_changed(lots.world.now_ms))
    lots.run(3 * OFTEN.check_ms)
    assert {other.view for other in lots.nodes} == {newer}


@pytest.mark.parametrize(
    "part",
    [
        IntervalView(1 << 60, 1, VIEWS.first.divisions),
        IntervalView(1, 1, ()),
        ViewHandout(()),
        ViewHandout((KnownView(IntervalView(2, 1, ()), 0), KnownView(IntervalView(1, 1, ()), 0))),
    ],
)
def test_a_view_that_cannot_be_is_refused(part: object) -> None:
    node = Lots().nodes[0]
    with pytest.raises(TidingsError, match="message: "):
        node.check(part, 1_000)
    node.check(IntervalView(1, 1, VIEWS.first.divisions), 1_000)
