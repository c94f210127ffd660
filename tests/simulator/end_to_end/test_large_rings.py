"""Large rings in the simulator; most take minutes on a busy machine, so are not part of every run."""

from __future__ import annotations

from random import Random

import pytest

from tidings.simulator.run import play
from tidings.simulator.scenario import Scenario
from tidings.simulator.world import Network, World
from tidings.systems.protocols.ring import ChordNode, ChordSettings, FindSuccessor


def ring(nodes: int, *, started: bool) -> tuple[World, list[int]]:
    random = Random(nodes)
    world = World(random, Network(random))
    ids = sorted(random.sample(range(1 << 32), nodes))
    for id in ids:
        node = ChordNode(id, ChordSettings())
        node.seat(ids)
        if started:
            world.add(node)
        else:
            world.nodes[id] = node
    return world, ids


@pytest.mark.long
def test_a_ring_of_100_000_nodes_is_built_and_asked_10_000_times() -> None:
    world, ids = ring(100_000, started=False)
    for _ in range(10_000):
        start = world.random.choice(ids)
        lookup = FindSuccessor(world.random.getrandbits(32), start, "test", 0)
        world.do(start, world.nodes[start].on_message(start, lookup, 0))
    world.run(1 << 30)
    assert world.messages > 80_000


@pytest.mark.long
def test_a_ring_of_1_000_nodes_keeps_itself_up_for_20_seconds_of_its_time() -> None:
    world, _ = ring(1_000, started=True)
    world.run(20_000)
    assert world.messages > 50_000


@pytest.mark.parametrize(
    ("system", "nodes"),
    [
        ("opchord", 1_000),
        ("chord", 1_000),
        pytest.param("opchord", 10_000, marks=pytest.mark.long),
        pytest.param("chord", 10_000, marks=pytest.mark.long),
    ],
)
def test_subscriptions_come_into_place_on_large_rings_and_events_reach_them(system: str, nodes: int) -> None:
    outcome = play(Scenario(system, nodes=nodes, churn=0.0, repair_ms=4_000, laws=False))
    assert outcome.violation is None
    assert outcome.matches == outcome.owed == outcome.delivered > 0
