"""What nodes say to each other passes what is asked of a message from the wire; what is forged does not."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.systems.protocols.forging import bent, changed, played

from tidings.errors import TidingsError
from tidings.simulator.workload import DOMAIN
from tidings.systems.overlay import MemoryLog, overlay_named, overlays
from tidings.systems.protocols.effects import MAX_AHEAD_MS, Event
from tidings.systems.protocols.gossip import MAX_MEMBERS, Ack, GossipMember, GossipNode, Syn
from tidings.systems.protocols.many_domains import InDomain, node_of
from tidings.systems.protocols.message_codec import parts_of, plain
from tidings.systems.protocols.ring_ids import ADDRESS_BITS
from tidings.systems.sonnet.paths import RING_BITS

SYSTEMS = tuple(overlays())
OVER_RECORDS = [name for name, one in overlays().items() if one.system.needs == "records"]


@pytest.mark.parametrize(
    "trouble",
    [pytest.param({"churn": 0.8}, id="churn", marks=pytest.mark.long), pytest.param({"loss": 0.05}, id="loss")],
)
@pytest.mark.parametrize("system", SYSTEMS)
def test_whatever_a_node_says_passes_what_is_asked_of_the_wire(system: str, trouble: dict[str, float]) -> None:
    checker, _ = played(system, **trouble)
    assert len(checker.kinds) > 2


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_node_handles_without_an_error_any_change_of_a_message_that_passes(system: str) -> None:
    """Of the right types and sense, if nothing true: what is refused is refused before the node has changed."""
    checker, run = played(system, churn=0.3)
    random = Random(f"changed {system}")
    world, passed = run.world, 0
    nodes = list(world.nodes.values())
    for round_ in range(200):
        for message in checker.kinds.values():
            node: Any = random.choice(nodes)
            change = random.choice([changed, bent])
            try:
                forged = checker.codec.from_plain(change(random, plain(message)))
                for part in parts_of(forged):
                    node.check(part, world.now_ms)
            except (TidingsError, ValueError):
                continue
            passed += 1
            world.carry_out(node, node.on_message(random.choice(nodes).id, forged, world.now_ms))
        if round_ % 20 == 0:
            world.laws = ()
            world.run(world.now_ms + 2_000)
    assert passed > 250


def test_a_member_of_a_time_to_come_is_refused() -> None:
    node = GossipNode(1, Random(1))
    now = 1_000_000
    node.check(GossipMember(2, now, 5, False, ""), now)
    for age in ((now + MAX_AHEAD_MS + 1, 0), (now, now + MAX_AHEAD_MS + 1)):
        with pytest.raises(TidingsError, match="time to come"):
            node.check(GossipMember(2, *age, False, ""), now)


def test_a_node_that_others_take_for_gone_is_newer_than_that() -> None:
    node = GossipNode(1, Random(1))
    node.start(None, 1_000)
    node.on_message(2, Ack((GossipMember(1, 5_000, 7, True, ""),), (), None, False), 2_000)
    assert node.members[1].age > (5_000, 7)
    assert not node.members[1].gone
    node.leave(3_000)
    left = node.members[1]
    node.on_message(2, Ack((GossipMember(1, 6_000, 7, False, ""),), (), None, False), 4_000)
    assert node.members[1] == left


def test_members_are_bounded_and_those_that_are_gone_make_way() -> None:
    node = GossipNode(1, Random(1))
    node.start(None, 0)
    many = tuple(GossipMember(id, 1, 1, id % 2 == 0, "") for id in range(2, MAX_MEMBERS + 1))
    node.on_message(2, Ack(many, (), None, False), 10)
    assert len(node.members) == MAX_MEMBERS
    node.on_message(2, Ack((GossipMember(MAX_MEMBERS + 1, 1, 1, False, ""),), (), None, False), 20)
    assert len(node.members) == MAX_MEMBERS
    assert MAX_MEMBERS + 1 in node.members
    assert 2 not in node.members  # it was gone
    for id in range(MAX_MEMBERS + 2, 2 * MAX_MEMBERS):
        node.on_message(2, Ack((GossipMember(id, 1, 1, False, ""),), (), None, False), 30)
    assert len(node.members) == MAX_MEMBERS
    assert 3 in node.members  # it was not


@pytest.mark.parametrize("system", OVER_RECORDS)
def test_an_event_that_the_domain_cannot_read_is_refused(system: str) -> None:
    node = node_of(overlay_named(system), 1, [DOMAIN], Random(1), lambda _: MemoryLog())
    inner: Any = next(iter(node._nodes.values()))
    inner.check(Event("e", '{"price": 1.0}'), 0)
    for body in ("x", "[]", "{}{}", '{"price": "dear"}', '{"price": NaN}', '"text"', "{" * 5_000):
        with pytest.raises((TidingsError, ValueError)):
            inner.check(Event("e", body), 0)


def test_a_message_is_for_one_domain() -> None:
    node = node_of(overlay_named("bluedove"), 1, [DOMAIN], Random(1), lambda _: MemoryLog())
    network = node.networks["market"]
    node.check(InDomain(network, Syn((), 0)), 0)
    for message in (Syn((), 0), InDomain(network, InDomain(network, Syn((), 0)))):
        with pytest.raises(TidingsError, match="domain"):
            node.check(message, 0)
    assert ADDRESS_BITS < RING_BITS
