"""Zave's inductive invariant of Chord ("Reasoning about identifier spaces: How to make Chord correct", 2017).

    OneLiveSuccessor       every member has a live node in its successor list
    SufficientPrincipals   at least r + 1 members are principals: no member's successor list passes over them

where r is the length of the lists. While both hold, whatever else is wrong with the ring is repaired in the end.
They hold as long as the operating assumption does: no failure leaves a member without a live successor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from tidings.systems.overlay import Law, ObservedWorld, Violation
from tidings.systems.protocols.effects import Id
from tidings.systems.protocols.ring import ChordNode
from tidings.systems.protocols.ring_ids import between


class RingInvariant(Law):
    """Looks again only when a successor list or the membership has changed."""

    def __init__(self) -> None:
        self._seen: dict[Id, tuple[Id, ...]] = {}

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, ChordNode)
        if self._seen.get(id) == node.successors and self._seen.keys() <= world.nodes.keys():
            return
        self._seen = {id: known for id, known in self._seen.items() if id in world.nodes}
        self._seen[id] = node.successors
        members = members_of(world)
        for member in members.values():
            if not any(successor in members for successor in member.successors):
                what = f"node {member.id} has no live successor in {list(member.successors)}"
                raise Violation("OneLiveSuccessor", what, world.now_ms)
        if len(members) > (needed := min(len(members) - 1, node.settings.successors)):
            principals = principals_of(members.values())
            if len(principals) < needed + 1 and len(members) > node.settings.successors:
                what = f"{len(principals)} principals {sorted(principals)}, and {needed + 1} are needed"
                raise Violation("SufficientPrincipals", what, world.now_ms)


def members_of(world: ObservedWorld) -> dict[Id, ChordNode]:
    return {id: node for id, node in world.nodes.items() if isinstance(node, ChordNode) and node.is_member}


def principals_of(members: Iterable[ChordNode]) -> set[Id]:
    """The members that no member's list, itself in front, passes over."""
    nodes = list(members)
    ring = sorted(node.id for node in nodes)
    passed_over: set[Id] = set()
    for node in nodes:
        for low, high in pairwise((node.id, *node.successors)):
            at = bisect_right(ring, low)
            for place in range(at, at + len(ring)):
                if not between(low, ring[place % len(ring)], high):
                    break
                passed_over.add(ring[place % len(ring)])
    return set(ring) - passed_over


def ideal_ring(world: ObservedWorld) -> None:
    """What repair has to come to: every pointer names the node that it should."""
    members = members_of(world)
    ring = sorted(members)
    for at, id in enumerate(ring):
        node = members[id]
        after = [ring[(at + k) % len(ring)] for k in range(1, len(node.successors) + 1)]
        if list(node.successors) != after:
            raise Violation("IdealRing", f"node {id} is followed by {after}, not {list(node.successors)}", world.now_ms)
        if node.predecessor != ring[at - 1]:
            raise Violation(
                "IdealRing", f"node {id} is preceded by {ring[at - 1]}, not {node.predecessor}", world.now_ms
            )


def may_fail(world: ObservedWorld, id: Id) -> bool:
    """Zave's operating assumption: the failure leaves every member a live successor, and principals enough."""
    left = {other: node for other, node in members_of(world).items() if other != id}
    if not left:
        return False
    enough = min(len(left), next(iter(left.values())).settings.successors + 1)
    return len(principals_of(left.values())) >= enough and all(
        any(successor in left for successor in node.successors) for node in left.values()
    )


class OperatingAssumption(Law):
    """What Zave's proof assumes: no failure leaves a member without a live successor."""

    def may_fail(self, world: ObservedWorld, id: Id) -> bool:
        return may_fail(world, id)
