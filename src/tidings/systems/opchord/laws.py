"""Where lists are on a ring: the owner of a value on a subscription's arcs, or its substitute, has it in the list.

A node that comes in between is handed what it owns, and one that loses its predecessor has copies; where copies were
lost with several nodes at once, the owner's next walk brings the entry back. So a list may lack an entry for as long
as that takes, and no longer. What was given up is removed wherever the walk comes to, and runs out elsewhere.
"""

from __future__ import annotations

from collections.abc import Hashable

from tidings.systems.opchord.node import OPChordNode
from tidings.systems.overlay import AtRest, Conditions, Law, ObservedWorld, Repair, Violation
from tidings.systems.protocols.effects import Id
from tidings.systems.protocols.ring_laws import OperatingAssumption, RingInvariant, ideal_ring

State = tuple[tuple[Id, ...], frozenset[tuple[int, int]], tuple[tuple[str, bool], ...]]

HANDED_MS = 2_000  # the node that notices a newcomer hands it what it owns
LISTS_MS = 12_000  # where copies were lost in crashes: owners repeat their walks every 10 s
WALK_MS = 3_000  # for which the last walk of what is given up may still be under way


def laws(conditions: Conditions) -> list[Law]:
    """Returns the laws of lists on a ring. A node that is cut off is taken for dead, which most do not provide for."""
    always: list[Law] = [RunsOut(), OperatingAssumption(), AtRest(ideal_ring)]
    if not conditions.is_reliable:
        return always
    return [*always, RingInvariant(), ListsHeld(LISTS_MS if conditions.crashes else HANDED_MS)]


def _members_of(world: ObservedWorld) -> dict[Id, OPChordNode]:
    return {id: node for id, node in world.nodes.items() if isinstance(node, OPChordNode) and node.is_member}


class ListsHeld(Law):
    """Looks again only when the membership, somebody's subscriptions, or the keys of somebody's lists have changed."""

    def __init__(self, within_ms: int) -> None:
        self._repair = Repair("ListsHeld", within_ms)
        self._members: list[Id] = []
        self._seen: dict[OPChordNode, State] = {}

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, OPChordNode)
        members = _members_of(world)
        state = (
            () if node.is_settled else node.successors[:1],
            frozenset(node.entries),
            tuple((own.text, name in world.active) for name, own in node.own.items()),
        )
        if self._seen.get(node) == state and list(members) == self._members:
            self._repair.unchanged(world)
            return
        self._seen[node], self._members = state, list(members)
        self._repair.found(world, _lacking(world, members))


def _lacking(world: ObservedWorld, members: dict[Id, OPChordNode]) -> dict[Hashable, str]:
    ring = sorted(members)
    answering = {id: _answering(members, id) for id in ring}
    found: dict[Hashable, str] = {}
    for node in members.values():
        for name, own in node.own.items():
            if name not in world.active:
                continue  # nobody was told that it is in place
            for box, conjunction in enumerate(node.lists.conjunctions(own.text)):
                for channel, arcs in conjunction.arcs.items():
                    for at, id in enumerate(ring):
                        answers = answering[id]
                        lacks = (own.numbers[box], channel) not in members[answers].entries
                        if lacks and node.lists.owns_value(channel, arcs, ring[at - 1], id):
                            what = f"{name} is not in the list {channel} of node {answers}, which answers for {id}"
                            found[name, box, channel, id] = what
    return found


def _answering(members: dict[Id, OPChordNode], id: Id) -> Id:
    """Who is asked in the end what a node owns: one that has not been handed it yet asks its successor."""
    for _ in members:
        node = members[id]
        if node.is_settled or node.successors[0] not in members:
            break
        id = node.successors[0]
    return id


class RunsOut(Law):
    """What was given up runs out in time, wherever a copy of it is left."""

    def __init__(self) -> None:
        self._given: dict[OPChordNode, set[int]] = {}
        self._given_up_ms: dict[int, int] = {}

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, OPChordNode)
        numbers = {number for own in node.own.values() for number in own.numbers}
        for number in self._given.get(node, numbers) - numbers:
            self._given_up_ms[number] = world.now_ms
        self._given[node] = numbers
        if not self._given_up_ms:
            return
        for entry in node.entries.values():
            given_up_ms = self._given_up_ms.get(entry.subscription)
            if given_up_ms is None:
                continue
            if node.runs_out_ms(entry) > given_up_ms + 3 * node.options.refresh_ms + WALK_MS:
                what = f"node {id} keeps {entry.text}, given up at {given_up_ms} ms, until {node.runs_out_ms(entry)} ms"
                raise Violation("RunsOut", what, world.now_ms)
