"""When all is quiet, everybody knows everybody."""

from __future__ import annotations

from tidings.systems.flooding.node import FloodingNode
from tidings.systems.overlay import AtRest, Conditions, Law, ObservedWorld, Violation


def laws(conditions: Conditions) -> list[Law]:
    return [AtRest(acquainted)]


def acquainted(world: ObservedWorld) -> None:
    for id in world.ready:
        node = world.nodes[id]
        assert isinstance(node, FloodingNode)
        if missing := world.ready.keys() - {id, *node.others()}:
            raise Violation("Acquainted", f"node {id} does not know {sorted(missing)}", world.now_ms)
