"""Laws of Pastry and Scribe.

After every message: a hop lengthens the prefix shared with the key, or shrinks the distance to it. At rest: leaf sets
are symmetric and hold the closest nodes, so that a key has one closest node for all; trees have one root,
the closest node, no cycle, and every member hangs below the root.
"""

from __future__ import annotations

from tidings.overlay.core import Id
from tidings.overlay.pastry import PastryNode, shared_digits
from tidings.overlay.ring import ring_distance
from tidings.overlay.scribe import ScribeNode
from tidings.simulator.world import Violation, World


class HopsApproach:
    """Of every group that a node has a parent in: the parent is closer to the group's key, or shares more with it."""

    def after(self, world: World, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, ScribeNode)
        bits, digit = node.pastry.bits, node.pastry.digit_bits
        for group, known in node.groups.items():
            parent = known.parent
            if parent is None:
                continue
            longer = shared_digits(parent, group, bits, digit) > shared_digits(id, group, bits, digit)
            ours, theirs = ring_distance(id, group, bits), ring_distance(parent, group, bits)
            if not longer and (theirs, parent) >= (ours, id):
                raise Violation(
                    "HopsApproach", f"node {id} sends for {group} to {parent}, which is no closer", world.now_ms
                )


def leaf_sets_at_rest(world: World) -> None:
    members = {id: node for id, node in world.nodes.items() if isinstance(node, PastryNode) and node.is_member}
    ring = sorted(members)
    for at, id in enumerate(ring):
        node = members[id]
        half = min(node.pastry.leaves // 2, len(ring) - 1)
        larger = tuple(ring[(at + k) % len(ring)] for k in range(1, half + 1))
        smaller = tuple(ring[at - k] for k in range(1, half + 1))
        if (node.larger, node.smaller) != (larger, smaller):
            what = f"node {id} has the leaves {node.smaller} and {node.larger}, not {smaller} and {larger}"
            raise Violation("LeafSets", what, world.now_ms)


def trees_at_rest(world: World) -> None:
    # Members only: a node whose contact crashed before it had joined is nobody's root.
    nodes = {id: node for id, node in world.nodes.items() if isinstance(node, ScribeNode) and node.is_member}
    groups = sorted({group for node in nodes.values() for group in node.groups})
    for group in groups:
        bits = next(iter(nodes.values())).pastry.bits
        root = min(nodes, key=lambda id: (ring_distance(id, group, bits), id))
        for id, node in nodes.items():
            known = node.groups.get(group)
            if known is None:
                continue
            above, seen = id, list[Id]()
            while above != root:
                seen.append(above)
                here = nodes[above].groups.get(group) if above in nodes else None
                if here is None or here.parent is None or here.parent in seen:
                    raise Violation(
                        "Trees", f"group {group}: {id} does not reach the root {root}: {seen}", world.now_ms
                    )
                grafting = here.previous is not None  # the parent before is kept until the new one has answered
                if here.parent in nodes and not grafting and not _knows_child(nodes[here.parent], group, above):
                    raise Violation(
                        "Trees", f"group {group}: {here.parent} does not know its child {above}", world.now_ms
                    )
                above = here.parent


def _knows_child(parent: ScribeNode, group: Id, child: Id) -> bool:
    known = parent.groups.get(group)
    return known is not None and child in known.children
