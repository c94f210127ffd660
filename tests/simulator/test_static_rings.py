"""The static ring takes the hops that real nodes take, and scales to a million."""

from __future__ import annotations

from random import Random

import numpy as np

from tidings.simulator.static_rings import StaticRing
from tidings.simulator.world import Network, World
from tidings.systems.protocols.ring import ChordNode, ChordSettings, FindSuccessor, FoundSuccessor


def lookups(ring: StaticRing, starts: list[int], keys: list[int]) -> list[int]:
    """The hops of the same lookups among nodes that exchange messages."""
    random = Random(0)
    world = World(random, Network(random))
    found: dict[str, int] = {}

    class Asking(ChordNode):
        def found(self, message: FoundSuccessor, now_ms: int) -> list:  # type: ignore[type-arg]
            found[message.request] = message.hops
            return []

    members = [int(id) for id in ring.ids]
    for id in members:
        node = Asking(id, ChordSettings(bits=ring.bits, successors=ring.successors))
        node.seat(members)
        world.nodes[id] = node
    for number, (start, key) in enumerate(zip(starts, keys, strict=True)):
        node = world.nodes[members[start]]
        world.do(node.id, node.on_message(node.id, FindSuccessor(key, node.id, str(number), 0), 0))
    world.run(1 << 40)
    return [found[str(number)] for number in range(len(keys))]


def test_hops_are_those_of_the_nodes() -> None:
    random = Random(7)
    for nodes in (2, 3, 17, 200):
        ring = StaticRing.of(nodes, bits=20, successors=3, seed=nodes)
        starts = [random.randrange(nodes) for _ in range(120)]
        keys = [random.getrandbits(20) for _ in range(100)] + [int(ring.ids[k % nodes]) for k in range(20)]
        assert ring.hops(np.array(starts), np.array(keys)).tolist() == lookups(ring, starts, keys)


def test_a_lookup_takes_half_the_logarithm_and_at_most_one_hop_more_on_average() -> None:
    random = np.random.default_rng(1)
    for exponent in (6, 10, 14):
        ring = StaticRing.of(1 << exponent, successors=1)
        keys, starts = random.integers(0, ring.size, 4_000), random.integers(0, len(ring.ids), 4_000)
        mean = ring.hops(starts, keys).mean()
        assert exponent / 2 <= mean <= exponent / 2 + 1


def test_a_million_nodes_are_counted_exactly() -> None:
    ring = StaticRing.of(1_000_000)
    random = np.random.default_rng(2)
    keys, starts = random.integers(0, ring.size, 2_000), random.integers(0, len(ring.ids), 2_000)
    hops = ring.hops(starts, keys)
    assert 8 <= hops.mean() <= 11
    assert hops.max() <= 40
