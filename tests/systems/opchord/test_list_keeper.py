"""Walks along arcs: divided over large rings, repeated where a part was lost, and where an update changes something."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from tests.systems.opchord.test_node import Ringed

from tidings.model.domain import Attribute, Domain
from tidings.systems.chord import placement as chord
from tidings.systems.geometry.line_positions import LineCells
from tidings.systems.geometry.node_ring import Arc, Ring
from tidings.systems.opchord import placement as opchord
from tidings.systems.opchord.lists import Lists
from tidings.systems.opchord.messages import Store
from tidings.systems.opchord.node import REFRESH
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Effects, Event, Send
from tidings.systems.protocols.ring import Route

BITS = 32
A = ("a",)


def lists(values: int, kind: Any = opchord, *, step: int = 1) -> Lists:
    """The lists of one attribute with so many values."""
    domain = Domain("one", [Attribute("a", "int", min=0, max=values - 1, precision=1)])
    cells = LineCells(0, step, False, -(-values // step))
    ring = Ring(BITS, (0,))
    if kind is chord:
        return Lists(chord.View((A,), ring, {A: cells}, 0), Content(domain))
    return Lists(opchord.View((A,), ring, {A: opchord.Order(12_345, -(-values // step), cells=cells)}), Content(domain))


def ringed(nodes: int, made: Lists, **options: Any) -> Ringed:
    ids = Random(nodes).sample(range(1 << BITS), nodes)
    ring = Ringed(ids, made, successors=4, **{"copies": 0, "refresh_ms": 10**9, **options})
    ring.world._heap.clear()  # stabilizing is left out: messages are those of walks
    return ring


def owners(ring: Ringed, values: Iterable[int]) -> set[int]:
    """The nodes that events with these values ask."""
    ids = sorted(ring.world.nodes)
    positions = (ring.lists.positions(Event("e", json.dumps({"a": value})))[0] for value in values)
    return {min(ids, key=lambda id: (id - at) % (1 << BITS)) for at in positions}


def holders(ring: Ringed) -> set[int]:
    return {id for id in ring.world.nodes if ring.node(id).entries}


def test_a_range_over_a_thousand_nodes_is_in_place_soon_by_a_message_for_each() -> None:
    ring = ringed(1_000, lists(100_000))
    owner = next(iter(ring.world.nodes))
    ring.subscribe(owner, "s", "a >= 0", 3_000)
    assert ring.world.active["s"] < 2_500  # a thousand hops, one after the other, take 27 s
    assert holders(ring) >= owners(ring, range(0, 100_000, 20))
    assert len(holders(ring)) > 950  # some nodes own no value
    assert 1_000 <= ring.node(owner).store_hops < 1_250
    assert ring.world.messages < 1_500  # with reports


def test_a_walk_without_division_goes_from_node_to_node_as_in_the_paper() -> None:
    ring = ringed(300, lists(100_000), stretch=10**9)
    owner = next(iter(ring.world.nodes))
    ring.subscribe(owner, "s", "a >= 0", 20_000)
    assert ring.world.active["s"] > 5_000
    assert 299 <= ring.node(owner).store_hops < 315


def test_a_part_that_is_lost_is_repeated_and_nothing_else() -> None:
    ring = ringed(300, lists(100_000), retry_ms=3_000)
    owner = next(iter(ring.world.nodes))
    lost: list[Arc] = []
    carry_out = ring.world.carry_out

    def losing(node: Any, effects: Effects) -> None:
        """The first part that is handed to a finger does not arrive."""
        for effect in list(effects):
            handed = isinstance(effect, Send) and isinstance(effect.message, Route) and effect.message.hops == 1
            if handed and not lost and isinstance(effect.message.payload, Store) and effect.message.last:  # type: ignore[union-attr]
                lost.append(effect.message.payload.arc)  # type: ignore[union-attr]
                effects = [other for other in effects if other is not effect]
        carry_out(node, effects)

    ring.world.carry_out = losing  # type: ignore[method-assign, assignment]
    ring.subscribe(owner, "s", "a >= 0", 2_900)
    assert "s" not in ring.world.active
    before = ring.world.messages
    ring.world.run(ring.world.now_ms + 7_000)
    assert "s" in ring.world.active
    share = lost[0].length / (1 << BITS)
    assert ring.world.messages - before < 300 * share * 1.4 + 20


@pytest.mark.parametrize(("kind", "messages"), [(chord, 40), (opchord, 20)])
def test_a_range_that_is_shifted_by_one_value_is_told_at_its_two_ends(kind: Any, messages: int) -> None:
    ring = ringed(256, lists(1_000, kind))
    owner = next(iter(ring.world.nodes))
    ring.subscribe(owner, "s", "a >= 100 AND a < 120", 3_000)
    before = ring.world.messages
    ring.world.do(owner, ring.node(owner).subscribe("s", "a >= 101 AND a < 121", ring.world.now_ms))
    assert len(ring.node(owner).own["s"].waiting) == 2
    assert "s" in ring.world.active
    ring.world.run(ring.world.now_ms + 3_000)
    assert ring.world.messages - before <= messages
    assert holders(ring) >= owners(ring, range(101, 121))
    assert ring.publish(owner, {"a": 100}, "e1") == []
    assert ring.publish(owner, {"a": 120}, "e2") == ["s"]
    assert ring.publish(owner, {"a": 110}, "e3") == ["s"]


UPDATES = [
    ("a >= 12 AND a < 20", "a >= 14 AND a < 20"),  # within a cell
    ("a >= 12 AND a < 20", "a >= 10 AND a < 27"),
    ("a >= 10 AND a < 20", "a IS NULL"),
    ("a = 5 OR a = 50", "a = 7 OR a = 50"),
    ("a != 30", "a != 31"),
    ("a IN (1, 21, 41)", "a IN (1, 22, 61)"),
    ("a IN (1, 21, 41)", "a IN (1, 22)"),
    ("a < 3 OR a IS NULL", "a < 5"),
    ("a > 95", "a > 95"),
]


@pytest.mark.parametrize(("old", "new"), UPDATES)
@pytest.mark.parametrize("step", [1, 10])  # with 10, ends cut through cells
@pytest.mark.parametrize("kind", [chord, opchord])
def test_an_update_by_difference_is_exact_whatever_changes(kind: Any, step: int, old: str, new: str) -> None:
    ring = ringed(12, lists(100, kind, step=step))
    owner, other = list(ring.world.nodes)[:2]
    ring.subscribe(owner, "s", old, 2_000)
    ring.subscribe(owner, "s", new, 2_000)
    content = ring.lists.content
    for value in [*range(0, 100), None]:
        event = Event(f"e{value}", json.dumps({"a": value}))
        ring.world.do(other, ring.node(other).publish(event, ring.world.now_ms))
    ring.world.run(ring.world.now_ms + 3_000)
    told = {delivery.event for delivery in ring.world.deliveries}
    wanted = [value for value in [*range(0, 100), None] if content.interest(new).holds({A: value})]
    assert told == {f"e{value}" for value in wanted}


def test_with_few_values_only_the_nodes_of_values_hold_a_range_and_their_copies() -> None:
    ring = ringed(400, lists(10), copies=2, refresh_ms=10**9)
    owner = next(iter(ring.world.nodes))
    ring.subscribe(owner, "s", "a >= 2 AND a < 9", 3_000)
    owning = owners(ring, range(2, 9))
    assert owning <= holders(ring)
    assert len(holders(ring)) == 3 * len(owning)  # and two copies of each
    assert ring.node(owner).store_hops < 60
    ids = sorted(ring.world.nodes)
    for id in owning:  # whoever owns a value next has a copy
        assert ring.node(ids[(ids.index(id) + 1) % len(ids)]).entries


@pytest.mark.parametrize("repeats", [0, 2])
def test_a_walk_over_nodes_without_a_value_leaves_them_their_copies(repeats: int) -> None:
    ring = ringed(100, lists(10), copies=2, jump=1e9)
    owner = next(iter(ring.world.nodes))
    ring.subscribe(owner, "s", "a >= 2 AND a < 9", 3_000)
    for _ in range(repeats):
        ring.world.do(owner, ring.node(owner).on_timer(REFRESH, ring.world.now_ms))
        ring.world.run(ring.world.now_ms + 3_000)
    ids = sorted(ring.world.nodes)
    for id in owners(ring, range(2, 9)):
        assert all(ring.node(ids[(ids.index(id) + next) % len(ids)]).entries for next in (0, 1, 2))


def test_a_copy_of_a_new_version_stays_where_the_old_one_is_forgotten() -> None:
    ring = ringed(100, lists(10), copies=2, jump=1e9)
    owner = next(iter(ring.world.nodes))
    ring.subscribe(owner, "s", "a >= 2 AND a < 6", 3_000)
    ring.subscribe(owner, "s", "a >= 3 AND a < 9", 3_000)
    ids = sorted(ring.world.nodes)
    for id in owners(ring, range(6, 9)):
        assert all(ring.node(ids[(ids.index(id) + next) % len(ids)]).entries for next in (0, 1, 2))
    assert not any(ring.node(id).entries for id in owners(ring, [2]))


def test_a_node_that_is_on_the_walk_is_sent_no_copy() -> None:
    ring = ringed(40, lists(100_000), copies=2)
    ring.world.count_kinds = True
    ring.subscribe(next(iter(ring.world.nodes)), "s", "a >= 0", 3_000)
    assert len(holders(ring)) == 40
    assert ring.world.kinds.get("Copies", 0) <= 6


def test_a_subscription_is_in_place_when_the_last_of_its_walks_has_ended() -> None:
    ring = ringed(50, lists(1_000, chord))
    owner = next(iter(owners(ring, [7])))  # its own list is stored at once
    ring.world.do(owner, ring.node(owner).subscribe("s", "a IN (7, 8, 9, 10)", 0))
    assert "s" not in ring.world.active
    elsewhere = [value for value in (7, 8, 9, 10) if owners(ring, [value]) != {owner}]
    assert len(ring.node(owner).own["s"].waiting) == len(elsewhere) > 0
    ring.world.run(3_000)
    assert "s" in ring.world.active
