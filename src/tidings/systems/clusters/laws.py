"""Laws of clusters.

    Registered   whichever cluster a node may choose for an event, all whom the event could concern are registered in it
    Dropped      no event is dropped that a cluster in use contains

That is what makes delivery to one cluster complete. It holds after every message, also while clusters are made and made
again: a subscription is in place only when everybody has had time to hear of its clusters, and a new cluster is used
only when everybody has had time to register in it. At rest, all know the same division.
"""

from __future__ import annotations

from tidings.systems.clusters.node import ClusterNode
from tidings.systems.clusters.space import CellBox, ClusterDivision
from tidings.systems.overlay import AtRest, Conditions, Law, ObservedWorld, Violation
from tidings.systems.protocols.effects import Id
from tidings.systems.protocols.pastry_laws import leaf_sets_at_rest, scribe_laws

Routing = tuple[ClusterDivision, tuple[CellBox, ...]]
Holding = tuple[tuple[tuple[CellBox, ...], ...], frozenset[Id]]


def laws(conditions: Conditions) -> list[Law]:
    """Returns the laws of clusters."""
    found = [*scribe_laws(conditions), DroppedOutside(), AtRest(leaf_sets_at_rest), AtRest(registered_at_rest)]
    return [*found, RegisteredInClusters()] if conditions.is_reliable else found


class RegisteredInClusters(Law):
    """Looks again only when somebody routes by other clusters, or is registered otherwise."""

    def __init__(self) -> None:
        self._routings: dict[ClusterNode, Routing] = {}
        self._holdings: dict[ClusterNode, Holding] = {}

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, ClusterNode)
        routing, holding = node.routing(world.now_ms), _holding(node)
        holds_as_before = self._holdings.get(node) == holding
        if id in world.ready and self._routings.get(node) != routing:
            for other in world.nodes.values():
                assert isinstance(other, ClusterNode)
                _check(world, node, routing, other)
        if not holds_as_before:
            for other in world.nodes.values():
                assert isinstance(other, ClusterNode)
                if other.id in world.ready:
                    _check(world, other, other.routing(world.now_ms), node)
        self._routings[node], self._holdings[node] = routing, holding


class DroppedOutside(Law):
    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, ClusterNode)
        if not node.drops or node.drops[-1][0] != world.now_ms:
            return
        point = node.drops[-1][1]
        for cluster in node.routing(world.now_ms)[1]:
            if cluster.contains(point):
                raise Violation("Dropped", f"node {id} dropped {point}, which lies in {cluster}", world.now_ms)


def _holding(node: ClusterNode) -> Holding:
    """What is in place at a node, and the groups that it is in."""
    active = tuple(own.boxes for own in node.own.values() if own.active)
    return active, frozenset(group for group, known in node.groups.items() if known.member)


def _check(world: ObservedWorld, publisher: ClusterNode, routing: Routing, subscriber: ClusterNode) -> None:
    division, mature = routing
    strict = publisher.options.mode == "strict"
    for name, own in subscriber.own.items():
        for box in own.boxes if own.active else ():
            if strict and not any(cluster.contains(box) for cluster in division.clusters):
                what = f"node {publisher.id} knows no cluster that {name} of node {subscriber.id} lies within"
                raise Violation("Registered", what, world.now_ms)
            covered = any(cluster.contains(box) for cluster in mature)  # then no other is chosen
            for cluster in mature if covered or not strict else division.clusters:
                group = publisher.space.group(division, cluster, publisher.pastry.bits)
                known = subscriber.groups.get(group)
                if cluster.meets(box) and (known is None or not known.member):
                    what = f"node {publisher.id} may choose {cluster}, and {name} of {subscriber.id} is not in it"
                    raise Violation("Registered", what, world.now_ms)


def registered_at_rest(world: ObservedWorld) -> None:
    # A node whose contact crashed before it had joined knows nothing, and promises nothing.
    nodes = [node for id, node in world.nodes.items() if isinstance(node, ClusterNode) and id in world.ready]
    division = nodes[0].division
    if any(node.is_changing(world.now_ms) for node in nodes):
        return  # somebody has just proposed another
    for node in nodes:
        if node.division != division:
            what = f"nodes {nodes[0].id} and {node.id}: {division} and {node.division}"
            raise Violation("OneDivision", what, world.now_ms)
        for name, own in node.own.items():
            for box in own.boxes:
                if node.options.mode == "strict" and not any(c.contains(box) for c in division.clusters):
                    raise Violation("Covered", f"{name} lies within no cluster", world.now_ms)
                for cluster in division.clusters:
                    group = node.space.group(division, cluster, node.pastry.bits)
                    if cluster.meets(box) and not node.is_rooted(group):
                        what = f"{name} is not registered in the cluster {cluster} that it meets"
                        raise Violation("Registered", what, world.now_ms)
