"""A whole network of Sonnet seated at once, for simulations too large to join in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from tidings.systems.protocols.effects import Id
from tidings.systems.sonnet.group_rows import FEW_MEMBERS
from tidings.systems.sonnet.node import SonnetNode
from tidings.systems.sonnet.paths import Lineage
from tidings.systems.sonnet.virtual_node import VirtualNode


def seat_at_rest(
    hosts: Sequence[SonnetNode], subscriptions: Mapping[str, tuple[SonnetNode, str]], random: Random
) -> None:
    """Seats a whole network at once, as thousands of joins would leave it: for simulations too large to join in.

    Every subscription is seated at its host, every group that another hangs below has a member, and every virtual node
    has its place on the ring, its up-stream and its rows. An empty group is held by the host of one that hangs below
    it.
    """
    nodes = [host.zero for host in hosts]
    nodes += [host.seat(name, text) for name, (host, text) in subscriptions.items()]
    at = {host.id: host for host in hosts}
    groups: dict[int, list[VirtualNode]] = {}
    for node in nodes:
        groups.setdefault(node.group, []).append(node)
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.parent is not None and node.parent.group not in groups:
            placeholder = at[node.host].seat_placeholder(node.parent)
            groups[placeholder.group] = [placeholder]
            nodes.append(placeholder)
            waiting.append(placeholder)
    ring: list[Id] = sorted(node.id for node in nodes)
    for node in nodes:
        node.seat(ring)
    for members in groups.values():
        _link(members, _parents(groups, members[0].parent), random)


def _parents(groups: Mapping[int, list[VirtualNode]], parent: Lineage | None) -> list[VirtualNode]:
    return groups[parent.group] if parent is not None else []


def _link(members: list[VirtualNode], above: list[VirtualNode], random: Random) -> None:
    """Each member has an up-stream; each node above knows some of the group."""
    first = min(node.id for node in members)
    for node in members:
        node.first = first
        if above:
            node.seat_below(random.choice(above), len(members))
    for node in above:
        node.seat_row(members[0].group, random.sample(members, min(FEW_MEMBERS, len(members))), len(members))
