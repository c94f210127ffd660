"""Laws of digests: a node with a subscription in place is in the tree of each of its digests; without trees, the home
node of each digest keeps the filter.

    UnderEveryView   by whichever View a node routes events, all subscriptions in place are registered under it

The first and the last hold after every message. A home node may be another from one moment to the next, and learns what
it has to keep when subscribers repeat it: the lack lasts no longer than that. At rest, nobody keeps what was given up,
and all have the same View.
"""

from __future__ import annotations

from collections.abc import Hashable

from tidings.systems.digests.messages import IntervalView
from tidings.systems.digests.node import DigestNode
from tidings.systems.overlay import NEVER, AtRest, Conditions, Law, ObservedWorld, Repair, Violation
from tidings.systems.protocols.effects import Id
from tidings.systems.protocols.pastry_laws import (
    closest,
    leaf_sets_at_rest,
    members_of,
    pastry_laws,
    scribe_laws,
    trees_at_rest,
)

HOME_MS = 12_000  # subscribers tell home nodes every 5 s, and may find out at the second try that one is gone


def laws(conditions: Conditions) -> list[Law]:
    """Returns the laws of digests, by where the exact match is made."""
    if conditions.variant == "home":
        kept = KeptAtHome(HOME_MS if conditions.is_reliable else NEVER)
        found: list[Law] = [*pastry_laws(conditions), kept]
    else:
        found = [*scribe_laws(conditions), InTrees()]
    found += [AtRest(leaf_sets_at_rest), AtRest(one_view_at_rest)]
    return [*found, UnderEveryView(), AtRest(given_up_at_rest)] if conditions.is_reliable else found


class InTrees(Law):
    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, DigestNode)
        for name, own in node.own.items():
            for group in own.groups:
                known = node.groups.get(group)
                if known is None or not known.member:
                    raise Violation("InTrees", f"{name} of node {id} is not in the group {group}", world.now_ms)


class UnderEveryView(Law):
    """Looks again only when somebody routes by another View, or has other subscriptions in place, or other groups."""

    def __init__(self) -> None:
        self._routings: dict[DigestNode, IntervalView] = {}
        self._holdings: dict[DigestNode, tuple[tuple[str, tuple[Id, ...]], ...]] = {}

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, DigestNode)
        routing = node.routing(world.now_ms)
        holding = tuple((own.text, own.groups) for own in node.own.values() if own.is_active)
        others = [other for other in world.nodes.values() if isinstance(other, DigestNode)]
        if id in world.ready and self._routings.get(node) != routing:
            for other in others:
                _check_registered(world, node, other)
        if self._holdings.get(node) != holding:
            for other in others:
                if other.id in world.ready:
                    _check_registered(world, other, node)
        self._routings[node], self._holdings[node] = routing, holding


def _check_registered(world: ObservedWorld, publisher: DigestNode, subscriber: DigestNode) -> None:
    view = publisher.routing(world.now_ms)
    for name, own in subscriber.own.items():
        lacking = set(publisher.views.at(view).held(own.text)).difference(own.groups) if own.is_active else ()
        if lacking:
            what = f"node {publisher.id} routes by the View {view.age}, and {name} of {subscriber.id} is not under it"
            raise Violation("UnderEveryView", what, world.now_ms)


class KeptAtHome(Law):
    """Looks again only when the membership, or what somebody keeps or has in place, has changed."""

    def __init__(self, within_ms: int) -> None:
        self._repair = Repair("KeptAtHome", within_ms)
        self._members: list[Id] = []
        self._seen: dict[DigestNode, tuple[frozenset[tuple[Id, str, Id]], frozenset[str]]] = {}

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, DigestNode)
        members = {id: one for id, one in members_of(world).items() if isinstance(one, DigestNode)}
        state = (frozenset(node.home), frozenset(name for name in node.own if name in world.active))
        if self._seen.get(node) == state and list(members) == self._members:
            self._repair.unchanged(world)
            return
        self._seen[node], self._members = state, list(members)
        found: dict[Hashable, str] = {}
        for one in members.values():
            for name, own in one.own.items():
                for group in own.groups if name in world.active else ():
                    home = closest(members, group, node.pastry.bits)
                    if (group, name, one.id) not in members[home].home:
                        found[name, group] = f"{name} of node {one.id} is not kept at {home}, the home of {group}"
        self._repair.found(world, found)


def one_view_at_rest(world: ObservedWorld) -> None:
    """All have the same View, and trees are whole, unless it has just changed."""
    nodes = [node for id, node in world.nodes.items() if isinstance(node, DigestNode) and id in world.ready]
    if any(node.is_changing(world.now_ms) for node in nodes):
        return
    for node in nodes:
        if node.view != nodes[0].view:
            what = f"nodes {nodes[0].id} and {node.id} have the Views {nodes[0].view.age} and {node.view.age}"
            raise Violation("OneView", what, world.now_ms)
    trees_at_rest(world)


def given_up_at_rest(world: ObservedWorld) -> None:
    nodes = {id: node for id, node in world.nodes.items() if isinstance(node, DigestNode)}
    for id, node in nodes.items():
        for group, subscription, owner in node.home:
            if owner in nodes and subscription not in nodes[owner].own and node.next_hop(group) is None:
                what = f"node {id} keeps {subscription} of node {owner}, which gave it up"
                raise Violation("NothingLeft", what, world.now_ms)
