"""Laws of gossip and of BlueDove.

After every message: a node's segments tile each dimension; what it knows of another never becomes older, and who
is marked gone does not come back without a new generation. At rest: all tables are alike and name only nodes that are
there, and every subscription is held by every owner that it overlaps.
"""

from __future__ import annotations

from itertools import pairwise

from tidings.overlay.bluedove import BlueDoveNode
from tidings.overlay.core import Id
from tidings.overlay.gossip import GossipNode, Member
from tidings.overlay.segments import BEGINNING, END
from tidings.simulator.world import Violation, World


class Tiles:
    def __init__(self) -> None:
        self._seen: dict[Id, int] = {}  # changes of a node's table that were looked at

    def after(self, world: World, id: Id) -> None:
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


class VersionsGrow:
    def __init__(self) -> None:
        self._seen: dict[Id, tuple[GossipNode, dict[Id, Member]]] = {}

    def after(self, world: World, id: Id) -> None:
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
        self._seen[id] = (node, dict(node.members))


def placed_at_rest(world: World) -> None:
    nodes = [node for node in world.nodes.values() if isinstance(node, BlueDoveNode)]
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
