"""Laws of Sonnet's prefix ring.

After every message:

    Digests           a virtual node's id is its digest and its host; the group above has one token less, or is that of
                      the tokens that are kept in order
    Downwards         what hangs below a node goes on where its query ends (rule 4): so no packet can go in a circle
    UpStream          a node's up-stream is of its parent group
    OnceTold          a subscriber is notified of an event once
    OneLiveSuccessor  every virtual node knows one after it that is there (Zave), where no message is lost

Repaired within a limit, and within a shorter one at rest:

    IdealRing         the ring is the ring
    Linked            no group that another hangs below is empty, and each of its members knows the other
    Placeholders      they know when nobody hangs below them any more
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import TypeAlias

from tidings.systems.overlay import Conditions, Law, ObservedWorld, Repair, Violation
from tidings.systems.protocols.effects import Id
from tidings.systems.sonnet.node import SonnetNode
from tidings.systems.sonnet.path_digest import Digest, digest_of, from_bits
from tidings.systems.sonnet.paths import group_of, host_of
from tidings.systems.sonnet.virtual_node import VirtualNode

LOOK_MS = 250
LINKED_MS = 15_000  # some registrations, and a few seconds for each group above that has to be made again
FORGOTTEN_MS = 16_000  # a row that nobody registers again runs out after 12 s, and what is old goes every 2 s
MOVED_MS = 4_000  # two registrations: a node that has lost its up-stream finds out by the next one

Flaws: TypeAlias = dict[Hashable, str]


def laws(conditions: Conditions) -> list[Law]:
    """Returns the laws of Sonnet's prefix ring."""
    from_ms = 0 if conditions.is_reliable else conditions.calm_ms
    always: list[Law] = [
        Digests(),
        Downwards(),
        UpStream(),
        OnceTold(),
        Mended("IdealRing", ring_flaws, LINKED_MS, at_rest_ms=MOVED_MS, from_ms=from_ms),
        Mended("Linked", link_flaws, LINKED_MS, at_rest_ms=MOVED_MS, from_ms=from_ms),
        Mended("Placeholders", placeholder_flaws, FORGOTTEN_MS, at_rest_ms=FORGOTTEN_MS, from_ms=from_ms),
    ]
    return [*always, OneLiveSuccessor()] if conditions.is_reliable else always


class Digests(Law):
    """Of each virtual node once: its id does not change."""

    def __init__(self) -> None:
        self._seen: set[tuple[Id, int]] = set()

    def after(self, world: ObservedWorld, id: Id) -> None:
        host = world.nodes[id]
        assert isinstance(host, SonnetNode)
        for node_id, node in host.virtual.items():
            if (node_id, node.born_ms) in self._seen:
                continue
            self._seen.add((node_id, node.born_ms))
            digest, tokens = from_bits(node_id >> 48, node.variant), node.lineage.tokens
            wrong = host_of(node_id) != id or digest.order != digest_of(tokens, node.variant).order
            wrong |= bool(digest_of(tokens, node.variant).content & ~digest.content)
            parent = node.lineage.parent
            if parent is not None:
                expected = tokens if digest.truncated else tokens[:-1]
                wrong |= parent.tokens != expected or parent.digest.truncated
            if wrong:
                raise Violation("Digests", f"virtual node {node_id:x} of {id} is not of {tokens}", world.now_ms)


class Downwards(Law):
    """Of each row once: neither side of it changes."""

    def __init__(self) -> None:
        self._seen: set[tuple[Id, int]] = set()

    def after(self, world: ObservedWorld, id: Id) -> None:
        host = world.nodes[id]
        assert isinstance(host, SonnetNode)
        for node in host.virtual.values():
            for group in node.down:
                if (node.id, group) in self._seen:
                    continue
                self._seen.add((node.id, group))
                if not _follows(node.digest, from_bits(group, node.variant)):
                    what = f"{group:x} hangs below virtual node {node.id:x}, and does not go on where it ends"
                    raise Violation("Downwards", what, world.now_ms)


def _follows(above: Digest, below: Digest) -> bool:
    longer = below.length == above.length + 1 or (below.truncated and below.length == above.length)
    return longer and not above.truncated and below.order[: above.length] == above.order


class UpStream(Law):
    """Of each pair once."""

    def __init__(self) -> None:
        self._seen: set[tuple[Id, Id]] = set()

    def after(self, world: ObservedWorld, id: Id) -> None:
        host = world.nodes[id]
        assert isinstance(host, SonnetNode)
        for node in host.virtual.values():
            if node.upstream is None or (node.id, node.upstream) in self._seen:
                continue
            self._seen.add((node.id, node.upstream))
            parent = node.lineage.parent
            if parent is None or group_of(node.upstream, node.variant) != parent.group:
                what = f"virtual node {node.id:x} is served by {node.upstream:x}, which is not of the group above"
                raise Violation("UpStream", what, world.now_ms)


class OnceTold(Law):
    """Of deliveries since the last look."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()
        self._looked_at = 0

    def after(self, world: ObservedWorld, id: Id) -> None:
        while self._looked_at < len(world.deliveries):
            at, _, subscription, event = world.deliveries[self._looked_at]
            self._looked_at += 1
            if (subscription, event) in self._told:
                raise Violation("OnceTold", f"{subscription} was told of event {event} twice", at)
            self._told.add((subscription, event))


class OneLiveSuccessor(Law):
    def __init__(self) -> None:
        self._seen: dict[Id, tuple[Id, ...]] = {}
        self._present: set[Id] = set()

    def after(self, world: ObservedWorld, id: Id) -> None:
        changed = self._present != world.nodes.keys()
        self._present = set(world.nodes)
        for other in world.nodes if changed else (id,):
            host = world.nodes[other]
            assert isinstance(host, SonnetNode)
            for node in host.virtual.values():
                if node.is_member and not node.is_leaving and (changed or self._seen.get(node.id) != node.successors):
                    self._seen[node.id] = node.successors
                    if not any(host_of(successor) in world.nodes for successor in node.successors):
                        what = f"virtual node {node.id:x} knows nobody after it that is there"
                        raise Violation("OneLiveSuccessor", what, world.now_ms)

    def may_fail(self, world: ObservedWorld, id: Id) -> bool:
        """Zave's operating assumption: the failure leaves every virtual node one after it, which has not left."""
        members = members_of(world)
        return all(
            any(successor in members and host_of(successor) != id for successor in node.successors)
            for node in members.values()
            if node.host != id
        )


def members_of(world: ObservedWorld) -> dict[Id, VirtualNode]:
    """The virtual nodes on the ring."""
    hosts = [host for host in world.nodes.values() if isinstance(host, SonnetNode)]
    return {id: node for host in hosts for id, node in host.virtual.items() if node.is_member and not node.is_leaving}


def ring_flaws(world: ObservedWorld) -> Flaws:
    """Virtual nodes that have another after them, or before them, than the one that is there."""
    members = members_of(world)
    ring = sorted(members)
    flaws: Flaws = {}
    for id, after in pairwise((*ring, ring[0])):
        follows, before = members[id].successors[0], members[after].predecessor
        if follows != after:
            flaws[id, "after"] = f"virtual node {id:x} is followed by {after:x}, not {follows:x}"
        if before != id:
            flaws[after, "before"] = f"virtual node {after:x} is preceded by {id:x}, not {before}"
    return flaws


def link_flaws(world: ObservedWorld) -> Flaws:
    """Groups that are missing, and groups that a member of the group above them does not know."""
    members = members_of(world)
    groups: dict[int, list[VirtualNode]] = {}
    for node in members.values():
        if node.is_linked:
            groups.setdefault(node.group, []).append(node)
    flaws: Flaws = {}
    for group, nodes in groups.items():
        parent = nodes[0].lineage.parent
        if parent is None:
            continue
        above = groups.get(parent.group)
        if above is None:
            flaws[group] = f"nobody is in the group above virtual node {nodes[0].id:x}"
        for one in above or ():
            if group not in one.down:
                flaws[one.id, group] = f"virtual node {one.id:x} does not know of {group:x}, which hangs below it"
    return flaws


def placeholder_flaws(world: ObservedWorld) -> Flaws:
    """Placeholders that nobody hangs below, and that do not know it: they would stay for ever."""
    needed = {node.parent_group for node in members_of(world).values()}
    return {
        id: f"virtual node {id:x} stands for a group that nobody hangs below, and does not know it"
        for host in world.nodes.values()
        if isinstance(host, SonnetNode)
        for group, id in host.placeholders.items()
        if group not in needed and host.virtual[id].down
    }


class Mended(Law):
    """A law that is broken for a while whenever nodes come, go or move, and is repaired within a limit.

    Nodes move when all is quiet as well, and may when a run ends; but then messages arrive and nobody crashes, and
    what a move leaves to be repaired is repaired sooner (`at_rest_ms`). Where messages are lost, or the network is
    split, clocks begin when that is over (`from_ms`). Looked at a few times a second: what it takes seconds to repair
    does not come and go in between.
    """

    def __init__(
        self, law: str, flaws: Callable[[ObservedWorld], Flaws], within_ms: int, *, at_rest_ms: int, from_ms: int = 0
    ) -> None:
        self._repair = Repair(law, within_ms)
        self._flaws = flaws
        self._at_rest_ms = at_rest_ms
        self._look_ms = from_ms

    def after(self, world: ObservedWorld, id: Id) -> None:
        if world.now_ms >= self._look_ms:
            self._look_ms = world.now_ms + LOOK_MS
            self._repair.found(world, self._flaws(world))

    def at_rest(self, world: ObservedWorld) -> None:
        self._repair.found(world, self._flaws(world))
        self._repair.judge(world, self._at_rest_ms)
