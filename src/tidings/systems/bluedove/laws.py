"""Laws of gossip and of BlueDove, which hold after every message, also while segments change hands.

    Tiles          a node's segments tile each dimension, without a gap
    OneOwner       no two nodes match the same part of a dimension
    HeldByOwners   the node that matches a part holds every subscription in place that overlaps it
    VersionsGrow   what a node knows of another never becomes older
    Tombstones     who is marked gone does not come back without a new generation

A node matches a part while its own table says that it owns it and is ready. Nobody may, for a while: then events wait.
At rest all tables are alike and name only nodes that are there and ready, and nothing is held of what was given up.
"""

from __future__ import annotations

from itertools import pairwise

from tidings.systems.bluedove.node import BlueDoveNode
from tidings.systems.bluedove.segment_table import BEGINNING, END, Segment, spans_touch
from tidings.systems.overlay import AtRest, Conditions, Law, ObservedWorld, Violation
from tidings.systems.protocols.effects import Id
from tidings.systems.protocols.gossip import GossipMember, GossipNode

Owed = tuple[int, tuple[str, Id], int]  # dimension, subscription with its dispatcher, version


def laws(conditions: Conditions) -> list[Law]:
    """Returns the laws of gossip and of segments."""
    always: list[Law] = [Tiles(), VersionsGrow(), AtRest(placed_at_rest)]
    if not conditions.is_reliable:
        return always
    return [*always, OneOwner(), HeldByOwners(), AtRest(given_up_at_rest)]


class Tiles(Law):
    def __init__(self) -> None:
        self._seen: dict[Id, int] = {}  # changes of a node's table that were looked at

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, BlueDoveNode)
        if not node.table.edges or self._seen.get(id) == node.table.changes:
            return  # it has not joined yet, or nothing is new
        self._seen[id] = node.table.changes
        for dimension in range(node.dimensions.count):
            segments = node.table.segments(dimension)
            whole = segments and segments[0].low == BEGINNING and segments[-1].high == END
            if not whole or any(one.high != other.low for one, other in pairwise(segments)):
                raise Violation("Tiles", f"node {id}: dimension {dimension} has a gap: {segments}", world.now_ms)


class OneOwner(Law):
    """Of a network that is not split: a node that is only cut off is convicted all the same."""

    def __init__(self) -> None:
        self._seen: dict[BlueDoveNode, int] = {}

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, BlueDoveNode)
        if self._seen.get(node) == node.table.changes:
            return
        self._seen[node] = node.table.changes
        others = [one for one in world.nodes.values() if isinstance(one, BlueDoveNode) and one is not node]
        for dimension in range(node.dimensions.count):
            mine = _matched_by(node, dimension)
            for other in others:
                for theirs in _matched_by(other, dimension):
                    if any(theirs.low < one.high and one.low < theirs.high for one in mine):
                        what = f"nodes {id} and {other.id} match dimension {dimension} from {theirs.low} on"
                        raise Violation("OneOwner", what, world.now_ms)


def _matched_by(node: BlueDoveNode, dimension: int) -> list[Segment]:
    return [one for one in node.table.segments(dimension) if one.owner == node.id and one.ready]


class HeldByOwners(Law):
    """What a matcher has to hold is worked out again when its table has changed, or what is in place; and looked for
    after whatever it does."""

    def __init__(self) -> None:
        self._nodes: list[Id] = []
        self._in_place: dict[Id, list[tuple[str, int, str]]] = {}  # by dispatcher: name, version, filter
        self._changes = 0
        self._owed: dict[BlueDoveNode, tuple[tuple[int, int], list[Owed]]] = {}

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, BlueDoveNode)
        in_place = [(name, own.version, own.text) for name, own in node.own.items() if own.active]
        nodes = list(world.nodes)
        if self._in_place.get(id) != in_place or nodes != self._nodes:
            self._nodes, self._changes = nodes, self._changes + 1
            self._in_place = {other: known for other, known in self._in_place.items() if other in world.nodes}
            self._in_place[id] = in_place
        seen = (self._changes, node.table.changes)
        known = self._owed.get(node)
        if known is None or known[0] != seen:
            known = self._owed[node] = (seen, self._owed_by(node))
        for dimension, key, version in known[1]:
            held = node.sets[dimension].get(key)
            if held is None or held.version < version:
                what = f"{key[0]} of node {key[1]} is not held by {id}, which matches its part of dimension {dimension}"
                raise Violation("HeldByOwners", what, world.now_ms)

    def _owed_by(self, node: BlueDoveNode) -> list[Owed]:
        parts = [_matched_by(node, dimension) for dimension in range(node.dimensions.count)]
        return [
            (dimension, (name, dispatcher), version)
            for dispatcher, in_place in self._in_place.items()
            for name, version, text in in_place
            for dimension, spans in enumerate(node.dimensions.spans(text))
            if any(spans_touch(spans, part.low, part.high) for part in parts[dimension])
        ]


class VersionsGrow(Law):
    def __init__(self) -> None:
        self._seen: dict[Id, tuple[GossipNode, dict[Id, GossipMember]]] = {}

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, GossipNode)
        before, known = self._seen.get(id, (node, {}))
        if before is node:  # not another that came back with the same id
            for other, member in known.items():
                now = node.members.get(other)
                if now is member:
                    continue
                if now is None or now.age < member.age:
                    what = f"node {id} knew {member} and now {now}"
                    raise Violation("VersionsGrow", what, world.now_ms)
                if member.gone and not now.gone and now.generation == member.generation:
                    raise Violation("Tombstones", f"node {id}: {other} was gone and is back", world.now_ms)
        if before is not node or known != node.members:
            self._seen[id] = (node, dict(node.members))


def placed_at_rest(world: ObservedWorld) -> None:
    nodes = _joined(world)
    table = nodes[0].table
    for node in nodes:
        if node.table.state() != table.state():
            raise Violation("OneTable", f"nodes {nodes[0].id} and {node.id} have different segments", world.now_ms)
    by_id = {node.id: node for node in nodes}
    for dimension in range(table.dimensions):
        for segment in table.segments(dimension):
            if segment.owner not in by_id or not segment.ready:
                what = f"dimension {dimension} from {segment.low} on has no owner that is ready: {segment}"
                raise Violation("Owned", what, world.now_ms)
    for node in nodes:
        for name, own in node.own.items():
            for dimension, spans in enumerate(node.dimensions.spans(own.text)):
                for segment in table.overlapping(dimension, spans):
                    held = by_id[segment.owner].sets[dimension].get((name, node.id))
                    if held is None or held.text != own.text:
                        what = f"{name} is not held by {segment.owner} along dimension {dimension}"
                        raise Violation("HeldByOwners", what, world.now_ms)


def _joined(world: ObservedWorld) -> list[BlueDoveNode]:
    """Everybody but a node whose contact went before it had joined: it knows nothing, and promises nothing."""
    nodes = [node for node in world.nodes.values() if isinstance(node, BlueDoveNode)]
    return [node for node in nodes if node.is_member or node.contact in world.nodes]


def given_up_at_rest(world: ObservedWorld) -> None:
    nodes = [node for node in world.nodes.values() if isinstance(node, BlueDoveNode)]
    by_id = {node.id: node for node in nodes}
    for node in nodes:
        for copy in (copy for held in node.sets for copy in held.values()):
            dispatcher = by_id.get(copy.dispatcher)
            # What a node had before it crashed is not given up by anybody, and runs out.
            began = 0 if dispatcher is None else dispatcher.members[dispatcher.id].generation
            if dispatcher is not None and copy.subscription not in dispatcher.own and copy.version >= began * 1_000:
                what = f"node {node.id} holds {copy.subscription} of node {dispatcher.id}, which gave it up"
                raise Violation("NothingLeft", what, world.now_ms)
