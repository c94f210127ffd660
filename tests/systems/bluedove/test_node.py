"""BlueDove's figures, its policies, and how it grows, shrinks and fails."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from tidings.filter.normal.value_sets import ordinal
from tidings.model.domain import Attribute, Domain
from tidings.model.types import DOUBLE
from tidings.simulator.world import Network, World
from tidings.systems.bluedove.laws import OneOwner, Tiles, placed_at_rest
from tidings.systems.bluedove.messages import Copy, CopyPlaced, Handover, LoadReport, Match, TableNews
from tidings.systems.bluedove.node import BlueDoveNode, BlueDoveSettings
from tidings.systems.bluedove.placement import undivided
from tidings.systems.bluedove.segment_node import MatcherSettings
from tidings.systems.bluedove.segment_table import BEGINNING, Dimensions, Edge
from tidings.systems.overlay import MemoryLog
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Effects, Event, Send
from tidings.systems.protocols.gossip import GossipSettings

TRAFFIC = Domain("traffic", [Attribute(name, "double") for name in ("longitude", "latitude", "speed")])
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
        matcher = MatcherSettings(GossipSettings(period_ms=300), **options.pop("matcher", {}))
        self.settings = BlueDoveSettings(matcher, **options)
        self.nodes = {id: BlueDoveNode(id, random, self.dimensions, self.settings) for id in ids}
        edges = cut_at(self.dimensions, cuts, ids)
        for node in self.nodes.values():
            node.seat(list(self.nodes.values()))
            node.seat_segments(edges)
            self.world.add(node)

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


def test_figure_2_a_subscription_lands_on_every_matcher_that_it_overlaps() -> None:
    cuts = [[-120, -60, 0, 60, 120], [-60, -30, 0, 30, 60], [20, 40, 60, 80, 100]]
    cloud = Cloud(TRAFFIC, cuts, [A, B, C, D, E, F])
    # The paper prints the longitude's bounds the other way around.
    place = "longitude >= -42 AND longitude < -41 AND latitude >= 70 AND latitude < 74"
    text = f"{place} AND speed >= 0 AND speed < 25"
    cloud.subscribe(D, "driver", text)
    cloud.run(500)
    held = [(id, d) for id, node in cloud.nodes.items() for d in range(3) if node.sets[d]]
    assert sorted(held) == [(A, 2), (B, 2), (C, 0), (F, 1)]
    assert "driver" in cloud.world.active


def sent_to(effects: Sequence[Any]) -> tuple[int, int]:
    (match,) = [e for e in effects if isinstance(e, Send) and isinstance(e.message, Match)]
    return match.message.dimension, match.to


def test_figure_3_the_event_goes_where_the_fewest_subscriptions_are() -> None:
    cloud = Cloud(PLANE, [[25, 50, 75], [25, 50, 75]], [A, B, C, D], policy="subscriptions")
    node = cloud.nodes[B]
    for matcher, x, y in ((A, 5, 13), (B, 12, 6), (C, 6, 5), (D, 4, 4)):
        node.on_message(matcher, LoadReport(((x, 0, 0.0, 0.0), (y, 0, 0.0, 0.0))), 0)
    event = Event("dot", '{"x": 90, "y": 10}')  # in X4 and Y1
    assert node.candidates(event) == [(0, D), (1, A)]
    assert sent_to(node.publish(event, 0)) == (0, D)


def test_figure_4_the_adaptive_policy_carries_queues_on_between_reports() -> None:
    for policy, wanted in (("adaptive", (1, A)), ("response time", (0, D))):
        cloud = Cloud(PLANE, [[25, 50, 75], [25, 50, 75]], [A, B, C, D], policy=policy)
        node = cloud.nodes[B]
        # D's queue was the shorter one, but grows: after five seconds it is not.
        node.on_message(D, LoadReport(((9, 10, 30.0, 20.0), (9, 0, 0.0, 20.0))), 0)
        node.on_message(A, LoadReport(((9, 0, 0.0, 20.0), (9, 40, 20.0, 20.0))), 0)
        assert sent_to(node.publish(Event("dot", '{"x": 90, "y": 10}'), 5_000)) == wanted


def test_the_random_policy_sends_an_event_alike_however_often() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B], policy="random")
    events = [Event(f"e{n}", '{"x": 90, "y": 10}') for n in range(40)]
    chosen = [cloud.nodes[A]._best(e, cloud.nodes[A].candidates(e), 0) for e in events]
    again = [cloud.nodes[A]._best(e, cloud.nodes[A].candidates(e), 0) for e in events]
    assert chosen == again
    assert set(chosen) == {(0, B), (1, A)}


def test_what_is_queued_waits_until_it_is_polled() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B], queued=True)
    cloud.subscribe(A, "s", "x > 10")
    cloud.run(500)
    for number in range(3):
        cloud.publish(B, f"e{number}", x=20.0 + number, y=1.0)
    cloud.run(1_000)
    assert cloud.told("s") == []
    cloud.world.do(A, cloud.nodes[A].poll("s", limit=2))
    assert len(cloud.told("s")) == 2
    cloud.world.do(A, cloud.nodes[A].poll("s"))
    assert cloud.told("s") == ["e0", "e1", "e2"]


def test_a_matcher_that_joins_takes_over_parts_and_no_event_is_lost_meanwhile() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B])
    random = Random(3)
    for number in range(12):
        low = random.randint(0, 80)
        cloud.subscribe(A, f"s{number}", f"x >= {low} AND x < {low + 15} AND y > {random.randint(0, 60)}")
    cloud.run(3_000)
    newcomer = BlueDoveNode(C, cloud.world.random, cloud.dimensions, cloud.settings)
    cloud.world.add(newcomer, A)
    for number in range(60):
        cloud.publish(random.choice([A, B]), f"e{number}", x=random.uniform(0, 100), y=random.uniform(0, 100))
        cloud.run(50)
    cloud.run(8_000)
    placed_at_rest(cloud.world)
    assert any(segment.owner == C for d in (0, 1) for segment in newcomer.table.segments(d))
    check_exact(cloud, 60)


def test_a_removal_that_is_there_before_the_copy_leaves_nothing() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B])
    placing = cloud.nodes[A].subscribe("s", "x > 10", 0)
    removing = cloud.nodes[A].unsubscribe("s", 1)
    cloud.hand_on(A, [*removing, *placing])
    assert not any(held for node in cloud.nodes.values() for held in node.sets)


def test_a_copy_that_is_handed_over_while_it_is_given_up_does_not_stay() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B, C])
    cloud.hand_on(A, cloud.nodes[A].subscribe("s", "x > 10 AND x < 20", 0))
    (copy,) = cloud.nodes[A].sets[0].values()
    handover = Send(C, Handover(0, int(ordinal(15.0, DOUBLE)), (copy,), None))
    cloud.hand_on(A, cloud.nodes[A].unsubscribe("s", 1))
    cloud.hand_on(B, [handover])
    assert not any(held for node in cloud.nodes.values() for held in node.sets)


def test_whoever_was_handed_a_copy_is_told_when_it_is_given_up() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B, C])
    copy = Copy("s", A, "x > 10 AND x < 20", 1)
    cloud.hand_on(A, cloud.nodes[A].subscribe(copy.subscription, copy.text, 0))
    assert cloud.nodes[A].own["s"].version == copy.version
    cloud.hand_on(B, [Send(C, Handover(0, int(ordinal(15.0, DOUBLE)), (copy,), None))])  # and the table is not switched
    assert cloud.nodes[C].sets[0]
    cloud.hand_on(A, cloud.nodes[A].unsubscribe("s", 1))
    assert not any(held for node in cloud.nodes.values() for held in node.sets)


def check_exact(cloud: Cloud, events: int) -> None:
    content = cloud.dimensions.content
    for id, node in cloud.nodes.items():
        if id not in cloud.world.nodes:
            continue
        for name, own in node.own.items():
            wanted = [e for e in PUBLISHED if content.interest(own.text).holds(content.record(e))]
            assert cloud.told(name) == sorted(e.id for e in wanted), name
    assert len(PUBLISHED) == events


PUBLISHED: list[Event] = []


@pytest.fixture(autouse=True)
def _remember(monkeypatch: pytest.MonkeyPatch) -> None:
    PUBLISHED.clear()
    plain = BlueDoveNode.publish

    def publish(self: BlueDoveNode, event: Event, now_ms: int) -> Any:
        PUBLISHED.append(event)
        return plain(self, event, now_ms)

    monkeypatch.setattr(BlueDoveNode, "publish", publish)


def test_a_crash_loses_no_event_that_a_live_dispatcher_has_logged() -> None:
    cloud = Cloud(PLANE, [[25, 50, 75], [25, 50, 75]], [A, B, C, D])
    cloud.subscribe(A, "all", "x >= 0 AND x < 1000")
    cloud.subscribe(B, "half", "y < 50")
    cloud.run(3_000)
    random = Random(8)
    for number in range(80):
        if number == 20:
            cloud.world.crash(D)
        cloud.publish(random.choice([A, B, C]), f"e{number}", x=random.uniform(0, 100), y=random.uniform(0, 100))
        cloud.run(40)
    cloud.run(30_000)
    placed_at_rest(cloud.world)
    check_exact(cloud, 80)
    assert not any(cloud.nodes[id].log.pending() for id in (A, B, C))


def test_a_dispatcher_that_crashes_sends_what_is_in_its_log_when_it_is_back() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B, C])
    cloud.subscribe(A, "all", "x >= 0")
    cloud.run(2_000)
    cloud.publish(C, "e", x=60.0, y=60.0)
    log = cloud.nodes[C].log
    cloud.world.crash(C)  # before anything was sent on
    cloud.world._heap.clear()
    cloud.run(100)
    back = BlueDoveNode(C, cloud.world.random, cloud.dimensions, cloud.settings, log=log)
    cloud.world.add(back, A)
    cloud.run(8_000)
    assert cloud.told("all") == ["e"]
    assert isinstance(log, MemoryLog)
    assert not log.pending()


def test_a_matcher_that_comes_back_unnoticed_matches_nothing_until_it_is_complete() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B, C])
    cloud.subscribe(A, "all", "x >= 0")
    cloud.run(2_000)
    cloud.world.crash(B)
    cloud.world.add(BlueDoveNode(B, cloud.world.random, cloud.dimensions, cloud.settings), A)
    for number in range(40):
        cloud.publish(C, f"e{number}", x=60.0, y=60.0)  # B is the owner in both dimensions
        cloud.run(25)
    cloud.run(10_000)
    placed_at_rest(cloud.world)
    check_exact(cloud, 40)


@pytest.mark.parametrize("after_ms", range(5_000, 9_000, 250))
def test_a_matcher_that_is_back_while_others_give_it_up_shares_no_part_with_its_heir(after_ms: int) -> None:
    cloud = Cloud(PLANE, [[25, 50, 75], [25, 50, 75]], [A, B, C, D], laws=[OneOwner(), Tiles()])
    cloud.subscribe(A, "all", "x >= 0")
    cloud.run(2_000)
    cloud.world.crash(B)
    cloud.run(after_ms)
    cloud.world.add(BlueDoveNode(B, cloud.world.random, cloud.dimensions, cloud.settings), C)
    cloud.run(8_000)
    assert cloud.world.nodes.keys() == {A, B, C, D}
    placed_at_rest(cloud.world)


def test_a_newcomer_whose_contact_crashes_at_once_owns_nothing_and_the_others_go_on() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B, C])
    cloud.world.add(BlueDoveNode(D, cloud.world.random, cloud.dimensions, cloud.settings), B)
    cloud.world.crash(B)
    cloud.run(15_000)
    assert D not in cloud.world.ready
    placed_at_rest(cloud.world)


def test_a_part_of_the_table_is_nothing_to_a_node_that_has_none() -> None:
    newcomer = BlueDoveNode(C, Random(1), along(PLANE))
    newcomer.start(A, 0)
    newcomer.on_message(B, TableNews((Edge(0, 5, 1, B, True, False),)), 10)
    newcomer.on_message(
        B, CopyPlaced(0, "s", 1, (Edge(0, BEGINNING, 1, B, True, False),)), 10
    )  # it asked before a crash
    assert not newcomer.table.edges


def test_queues_that_keep_growing_ask_for_another_matcher_and_fall_when_it_comes() -> None:
    cloud = Cloud(
        PLANE, [[50], [50]], [A, B], matcher={"service_ms": lambda held: 20 + 2 * held}, patience_ms=600_000
    )  # fmt: skip
    random = Random(4)
    for number in range(20):
        low = random.randint(0, 90)
        cloud.subscribe(A, f"s{number}", f"x >= {low} AND x < {low + 10} AND y >= {low} AND y < {low + 10}")
    asked: list[int] = []

    def grow() -> None:
        asked.append(cloud.world.now_ms)
        if len(asked) == 1:
            cloud.world.add(BlueDoveNode(C, random, cloud.dimensions, cloud.settings), A)

    cloud.world.grow = grow
    cloud.run(2_000)
    for number in range(800):
        cloud.publish(random.choice([A, B]), f"e{number}", x=random.uniform(0, 100), y=random.uniform(0, 100))
        cloud.run(10)
    assert asked
    cloud.run(40_000)
    newcomer = cloud.world.nodes[C]
    assert isinstance(newcomer, BlueDoveNode)
    assert any(newcomer.sets)
    check_exact(cloud, 800)


def test_a_matcher_that_leaves_hands_its_segments_over_and_they_are_merged() -> None:
    cloud = Cloud(PLANE, [[25, 50, 75], [25, 50, 75]], [A, B, C, D])
    cloud.subscribe(A, "all", "x >= 0")
    cloud.subscribe(B, "some", "x > 40 AND y < 60")
    cloud.run(3_000)
    random = Random(6)
    for number in range(60):
        if number == 20:
            cloud.world.stop(C, cloud.nodes[C].leave(cloud.world.now_ms))
        cloud.publish(random.choice([A, B, D]), f"e{number}", x=random.uniform(0, 100), y=random.uniform(0, 100))
        cloud.run(50)
    cloud.run(8_000)
    placed_at_rest(cloud.world)
    assert [segment.owner for segment in cloud.nodes[A].table.segments(0)] == [A, B, D]
    check_exact(cloud, 60)


def test_dispatchers_and_matchers_can_be_apart() -> None:
    random = Random(2)
    world, dimensions = World(random, Network(random)), along(PLANE)
    settings = BlueDoveSettings(MatcherSettings(GossipSettings(period_ms=300)))
    roles = {A: ("dispatcher",), B: ("dispatcher",), C: ("matcher",), D: ("matcher",)}
    nodes = {id: BlueDoveNode(id, random, dimensions, settings, roles=own) for id, own in roles.items()}
    for node in nodes.values():
        node.seat(list(nodes.values()))
        node.seat_segments(cut_at(dimensions, [[50], [50]], [C, D]))
        world.add(node)
    world.do(A, nodes[A].subscribe("s", "x > 30 AND y > 30", 0))
    world.run(2_000)
    world.crash(C)
    world.run(25_000)
    world.do(B, nodes[B].publish(Event("e", '{"x": 40, "y": 40}'), world.now_ms))
    world.run(27_000)
    assert [d.event for d in world.deliveries] == ["e"]
    assert {segment.owner for segment in nodes[A].table.segments(0)} == {D}
    assert not any(nodes[A].sets)
    assert not any(nodes[B].sets)


def test_a_subscription_whose_candidates_are_one_machine_is_still_rebuilt() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B])
    cloud.subscribe(A, "s", "x > 60 AND y > 60")  # B owns both
    cloud.run(2_000)
    assert any(cloud.nodes[A].sets)  # so the neighbour has a copy: one failure is survived whatever happens
    cloud.world.crash(B)
    cloud.run(25_000)
    cloud.publish(A, "e", x=70.0, y=70.0)
    cloud.run(2_000)
    assert cloud.told("s") == ["e"]
