"""Laws of clusters, at rest: all know the same division, it covers every subscription, and each is registered in
every cluster that it meets."""

from __future__ import annotations

from tidings.overlay.clusters import ClusterNode
from tidings.simulator.world import Violation, World


def registered_at_rest(world: World) -> None:
    nodes = [node for node in world.nodes.values() if isinstance(node, ClusterNode)]
    division = nodes[0].division
    if any(node.is_changing(world.now_ms) for node in nodes):
        return  # somebody has just proposed another
    for node in nodes:
        if node.division != division:
            what = f"nodes {nodes[0].id} and {node.id}: {division} and {node.division}"
            raise Violation("OneDivision", what, world.now_ms)
        for name, own in node.own.items():
            for box in own.boxes:
                if node.options.mode == "strict" and not any(c.box.contains(box) for c in division.clusters):
                    raise Violation("Covered", f"{name} lies within no cluster", world.now_ms)
                for cluster in division.clusters:
                    group = node.space.group(division, cluster.box, node.pastry.bits)
                    if cluster.box.meets(box) and not node.is_rooted(group):
                        what = f"{name} is not registered in the cluster {cluster.box} that it meets"
                        raise Violation("Registered", what, world.now_ms)
