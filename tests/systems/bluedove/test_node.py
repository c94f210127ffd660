"""BlueDove's figures, its policies, and how it grows, shrinks and fails."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from tests.systems.bluedove.cloud import PLANE, A, B, C, Cloud, D, E, F, along, cut_at

from tidings.filter.normal.value_sets import ordinal
from tidings.model.domain import Attribute, Domain
from tidings.model.types import DOUBLE
from tidings.simulator.run import Run, RunOutcome, play
from tidings.simulator.scenario import Scenario
from tidings.simulator.world import Network, World
from tidings.systems.bluedove.dispatcher_node import BlueDoveSettings
from tidings.systems.bluedove.forwarding import Policy
from tidings.systems.bluedove.laws import OneOwner, Tiles, placed_at_rest
from tidings.systems.bluedove.messages import (
    Admit,
    Copy,
    CopyPlaced,
    DimensionLoad,
    Handover,
    LoadReport,
    Match,
    Split,
    TableNews,
)
from tidings.systems.bluedove.node import BlueDoveNode
from tidings.systems.bluedove.segment_node import MatcherSettings
from tidings.systems.bluedove.segment_table import BEGINNING, Edge
from tidings.systems.overlay import MemoryLog
from tidings.systems.protocols.effects import Event, Grow, Send
from tidings.systems.protocols.gossip import GossipSettings
from tidings.systems.system_settings import Given

TRAFFIC = Domain("traffic", [Attribute(name, "double") for name in ("longitude", "latitude", "speed")])


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
        node.on_message(matcher, LoadReport((DimensionLoad(x, 0, 0.0, 9.0), DimensionLoad(y, 0, 0.0, 9.0))), 0)
    event = Event("dot", '{"x": 90, "y": 10}')  # in X4 and Y1
    assert node.candidates(event) == [(0, D), (1, A)]
    assert sent_to(node.publish(event, 0)) == (0, D)


def test_figure_4_the_adaptive_policy_carries_queues_on_between_reports() -> None:
    for policy, wanted in (("adaptive", (1, A)), ("response time", (0, D))):
        cloud = Cloud(PLANE, [[25, 50, 75], [25, 50, 75]], [A, B, C, D], policy=policy)
        node = cloud.nodes[B]
        # D's queue was the shorter one, but grows: after five seconds it is not.
        node.on_message(D, LoadReport((DimensionLoad(9, 10, 30.0, 20.0), DimensionLoad(9, 0, 0.0, 20.0))), 0)
        node.on_message(A, LoadReport((DimensionLoad(9, 0, 0.0, 20.0), DimensionLoad(9, 40, 20.0, 20.0))), 0)
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
    newcomer = cloud.join(C, A)
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
            cloud.join(C, A)

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


@pytest.mark.parametrize("contact", [A, B])
def test_matchers_that_join_at_the_same_time_all_get_segments(contact: int) -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B])
    random = Random(5)
    for number in range(40):
        x, y = random.randint(0, 90), random.randint(0, 90)
        cloud.subscribe(A, f"s{number}", f"x >= {x} AND x < {x + 10} AND y >= {y} AND y < {y + 10}")
    cloud.run(3_000)
    newcomers = [cloud.join(id, contact) for id in (C, D, E)]
    cloud.run(60_000)
    placed_at_rest(cloud.world)
    for newcomer in newcomers:
        assert all(any(s.owner == newcomer.id for s in newcomer.table.segments(d)) for d in (0, 1)), newcomer.id


def test_the_owner_whose_queue_is_long_gives_though_another_has_more_subscriptions() -> None:
    cloud = Cloud(PLANE, [[25, 50, 75], [25, 50, 75]], [A, B, C, D])
    node = cloud.nodes[A]
    for matcher, subscriptions, queued in ((A, 5, 0), (B, 30, 0), (C, 20, 40), (D, 5, 10)):
        load = DimensionLoad(subscriptions, queued, 10.0, 20.0)
        node.on_message(matcher, LoadReport((load, load)), 0)
    effects = node.on_message(E, Admit(0, (0, 1)), 10)
    asked = [effect.to for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Split)]
    assert asked == [C, C]
    again = node.on_message(E, Admit(1, (0,)), 10)
    assert [e.to for e in again if isinstance(e, Send) and isinstance(e.message, Split)] == [D]


def test_saturation_that_all_dispatchers_see_is_decided_on_once() -> None:
    cloud = Cloud(PLANE, [[15, 30, 45, 60, 75], [15, 30, 45, 60, 75]], [A, B, C, D, E, F])
    asked = []
    for second in range(1, 9):
        load = DimensionLoad(20, 100 * second, 300.0, 200.0)
        for id, node in cloud.nodes.items():
            effects = node.on_message(C, LoadReport((load, load)), 1_000 * second)
            asked += [id for effect in effects if isinstance(effect, Grow)]
    assert asked == [A]


@pytest.mark.parametrize("policy", ["adaptive", "response time"])
def test_a_dispatcher_that_matches_knows_how_old_its_own_report_is(policy: Policy) -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B], matcher={"service_ms": lambda held: 200}, policy=policy)
    cloud.run(30_000)  # at rest: B's report is old
    node = cloud.nodes[A]
    busy = DimensionLoad(9, 100, 25.0, 5.0)  # for 20 s
    node.on_message(B, LoadReport((busy, busy)), cloud.world.now_ms)
    node.queues[1].extend([Match(Event(f"e{n}", '{"x": 60, "y": 10}'), 1, A) for n in range(2)])  # for 0.4 s
    node.on_timer("report", cloud.world.now_ms)
    assert sent_to_self_or(node.publish(Event("dot", '{"x": 60, "y": 10}'), cloud.world.now_ms), node) == A


def sent_to_self_or(effects: Sequence[Any], node: BlueDoveNode) -> int:
    """Who gets the event: another by a message, or the node itself."""
    sent = [effect.to for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Match)]
    return sent[0] if sent else node.id


def simulated(settings: Given, **sizes: Any) -> RunOutcome:
    return play(Scenario("bluedove", settings=settings, **sizes))


@pytest.mark.parametrize(
    "settings", [(("dimensions", "1"),), (("full_replication", "on"),)], ids=["p2p", "full replication"]
)
@pytest.mark.parametrize("seed", range(4))
def test_the_papers_baselines_deliver_the_same_while_nodes_come_and_go(settings: Given, seed: int) -> None:
    outcome = simulated(settings, seed=seed, churn=0.8)
    assert outcome.violation is None
    assert outcome.delivered == outcome.owed > 0


def test_with_full_replication_every_matcher_has_everything_and_any_gets_an_event() -> None:
    run = Run(Scenario("bluedove", settings=(("full_replication", "on"),), churn=0.0, repair_ms=1_000, events=40))
    assert run.play().violation is None
    nodes = [node for node in run.world.nodes.values() if isinstance(node, BlueDoveNode)]
    assert all(len(node.sets) == 1 and len(node.sets[0]) == 8 for node in nodes)
    asked = {nodes[0].candidates(Event(f"e{number}", "{}"))[0][1] for number in range(200)}
    assert asked == {node.id for node in nodes}


def test_with_one_dimension_an_event_has_one_candidate() -> None:
    run = Run(Scenario("bluedove", settings=(("dimensions", "1"),), churn=0.0, repair_ms=1_000))
    assert run.play().violation is None
    node = next(iter(run.world.nodes.values()))
    assert isinstance(node, BlueDoveNode)
    assert len(node.sets) == 1
    assert all(len(node.candidates(Event("e", body))) == 1 for body in run.workload.events)


def test_a_saturated_network_grows_in_a_simulation() -> None:
    busy = {"nodes": 3, "events": 80, "churn": 0.01, "repair_ms": 60_000}  # for 15 s, five events a second
    outcome = simulated((("service_ms", "900"),), **busy)
    assert outcome.nodes > 3
    assert simulated((), **busy).nodes == 3


def test_a_network_that_begins_with_dispatchers_gives_its_first_matcher_everything() -> None:
    random = Random(2)
    world, dimensions = World(random, Network(random)), along(PLANE)
    settings = BlueDoveSettings(MatcherSettings(GossipSettings(period_ms=300)))
    roles = {A: ("dispatcher",), B: ("dispatcher",), C: ("matcher",), D: ("matcher",)}
    for id, own in roles.items():
        world.add(BlueDoveNode(id, random, dimensions, settings, roles=own), A if id != A else None)
        world.run(world.now_ms + 2_000)
    world.run(15_000)
    nodes = {id: node for id, node in world.nodes.items() if isinstance(node, BlueDoveNode)}
    world.do(B, nodes[B].subscribe("s", "x > 30 AND y > 30", world.now_ms))
    world.run(25_000)
    world.do(A, nodes[A].publish(Event("e", '{"x": 40, "y": 40}'), world.now_ms))
    world.run(30_000)
    assert [d.event for d in world.deliveries] == ["e"]
    placed_at_rest(world)
