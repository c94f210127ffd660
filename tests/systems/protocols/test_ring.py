"""Chord among nodes that join, leave and crash. The invariant after every message is the simulator's to check."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tidings.simulator.world import Network, World
from tidings.systems.overlay import Violation
from tidings.systems.protocols.effects import Effects
from tidings.systems.protocols.ring import (
    ChordNode,
    ChordSettings,
    FindSuccessor,
    FoundSuccessor,
    Leaving,
    PublishedChordNode,
)
from tidings.systems.protocols.ring_laws import RingInvariant, ideal_ring, may_fail

SETTINGS = ChordSettings(bits=16, successors=3)


class Asking(ChordNode):
    """Remembers what its lookups found."""

    def __init__(self, id: int, settings: ChordSettings = SETTINGS) -> None:
        super().__init__(id, settings)
        self.answers: dict[int, tuple[int, int]] = {}  # key → successor, hops

    def found(self, message: FoundSuccessor, now_ms: int) -> Effects:
        self.answers[message.key] = (message.successor, message.hops)
        return []


def ring(ids: Sequence[int], random: Random, kind: type[ChordNode] = Asking, **network: float) -> World:
    world = World(random, Network(random, **network), laws=[RingInvariant()])  # type: ignore[arg-type]
    for id in ids:
        node = kind(id, SETTINGS)
        node.seat(sorted(ids))
        world.add(node)
    return world


def owner(members: Sequence[int], key: int) -> int:
    return min(members, key=lambda id: (id - key) % (1 << 16))


def look_up(world: World, start: int, key: int) -> tuple[int, int]:
    node = world.nodes[start]
    assert isinstance(node, Asking)
    world.do(start, node.on_message(start, FindSuccessor(key, start, "test", 0), world.now_ms))
    world.run(world.now_ms + 900)
    return node.answers[key]


def churned(seed: int, kind: type[ChordNode] = Asking, *, steps: int = 8, assumed: bool = True) -> World:
    random = Random(seed)
    world = ring(random.sample(range(1 << 16), 8), random, kind)
    at = 1_000
    for _ in range(steps):
        at += random.randint(200, 3_500 if assumed else 1_500)

        def happen() -> None:
            victim, newcomer = random.choice(sorted(world.ready)), random.randrange(1 << 16)
            if random.random() < 0.5 and len(world.nodes) > 5:
                if not assumed or may_fail(world, victim):
                    world.crash(victim)
            elif newcomer not in world.nodes:
                world.add(kind(newcomer, SETTINGS), victim)

        world.at(at, happen)
    world.run(at + 25_000)
    ideal_ring(world)
    return world


@pytest.mark.parametrize("nodes", [1, 2, 5, 60])
def test_every_lookup_reaches_the_owner_within_ring_bits_hops(nodes: int) -> None:
    random = Random(nodes)
    members = random.sample(range(1 << 16), nodes)
    world = ring(members, random)
    for key in [random.getrandbits(16) for _ in range(15)] + members[:3]:
        found, hops = look_up(world, random.choice(members), key)
        assert found == owner(members, key)
        assert hops <= SETTINGS.bits


def test_a_ring_grows_from_one_node() -> None:
    random = Random(3)
    world = World(random, Network(random))
    ids = random.sample(range(1 << 16), 9)
    world.add(Asking(ids[0]))
    for number, id in enumerate(ids[1:], 1):
        world.at(number * 300, lambda id=id: world.add(Asking(id), ids[0]))  # type: ignore[misc]
    world.run(40_000)
    assert set(world.ready) == set(ids)
    ideal_ring(world)
    assert look_up(world, ids[4], 77)[0] == owner(ids, 77)


@pytest.mark.parametrize("seed", range(12))
def test_the_invariant_survives_joins_and_crashes_and_the_ring_becomes_ideal(seed: int) -> None:
    world = churned(seed)
    members = sorted(world.nodes)
    for key in (0, 5_000, 40_000):
        assert look_up(world, members[0], key)[0] == owner(members, key)


def test_the_published_join_and_notify_break_the_invariant() -> None:
    broken = set()
    for seed in range(16):
        try:
            churned(seed, PublishedChordNode, steps=20, assumed=False)
        except Violation as violation:
            broken.add(violation.law)
    assert {"OneLiveSuccessor", "SufficientPrincipals"} & broken


def test_nodes_that_come_back_at_once_do_not_keep_each_other_out() -> None:
    random = Random(7)
    members = random.sample(range(1 << 16), 9)
    world = World(random, Network(random))
    for id in members:
        node = Asking(id)
        node.seat(sorted(members))
        world.add(node)
    world.run(3_000)
    back = members[:3]
    for id in back:
        world.crash(id)
    for id in back:
        world.add(Asking(id), members[5])  # each is still in the fingers that lead to the others
    world.run(9_000)
    assert set(world.ready) == set(members)
    world.run(16_000)
    ideal_ring(world)


def test_who_leaves_is_missed_by_nobody() -> None:
    random = Random(5)
    members = random.sample(range(1 << 16), 8)
    world = ring(members, random)
    world.run(3_000)
    for id in members[:3]:
        world.stop(id, world.nodes[id].leave(world.now_ms))  # type: ignore[attr-defined]
        world.run(world.now_ms + 100)
    assert look_up(world, members[5], members[0])[0] == owner(members[3:], members[0])
    world.run(world.now_ms + 5_000)
    ideal_ring(world)


def test_who_leaves_is_missed_neither_by_somebody_of_whom_it_has_not_heard() -> None:
    world = ring([10, 20, 40, 50, 60], Random(5))
    world.run(3_100)
    world.add(Asking(30, SETTINGS), 60)
    world.run(3_600)
    leaving = world.nodes[20]
    assert isinstance(leaving, Asking)
    assert leaving.successors[0] == 40
    world.stop(20, leaving.leave(world.now_ms))
    world.run(world.now_ms + 100)
    newcomer = world.nodes[30]
    assert isinstance(newcomer, Asking)
    assert newcomer.predecessor == 10


def test_who_leaves_does_not_have_others_pass_over_somebody_of_whom_it_has_not_heard() -> None:
    node = Asking(10)
    node.seat([10, 20, 30, 50, 60, 70])
    assert node.successors == (20, 30, 50)
    node.on_message(20, Leaving(20, 10, (30, 50, 70)), 0)
    assert node.successors == (30, 50)
    for left in (30, 50):
        node.on_message(left, Leaving(left, 10, (70, 10)), 0)
    assert node.successors == (70,)  # the last resort


def test_one_stabilization_finds_the_nearest_of_several_that_joined_in_one_gap() -> None:
    members = [10, 20, 30, 40, 50, 60, 70, 80]
    world = ring(members, Random(3))
    behind = world.nodes[10]
    assert isinstance(behind, Asking)
    behind.successors = (50, 60, 70)
    world.run(1_400)
    assert behind.successors == (20, 30, 40)


def test_two_halves_of_a_split_ring_become_one_again() -> None:
    random = Random(6)
    members = random.sample(range(1 << 16), 10)
    world = World(random, Network(random))
    for id in members:
        node = Asking(id)
        node.seat(sorted(members))
        world.add(node)
    world.network.split(members[:4], members[4:])
    world.run(8_000)
    with pytest.raises(Violation):
        ideal_ring(world)
    world.network.heal()
    world.run(40_000)
    ideal_ring(world)
