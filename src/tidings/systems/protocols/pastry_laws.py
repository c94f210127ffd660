"""Laws of Pastry, and of Scribe's trees on it.

    HopsApproach      every hop lengthens the prefix shared with the key, or shrinks the distance to it
    ClosestDelivers   a message ends at the live node that is closest to its key, newcomers aside
    LeafSets          leaf sets are symmetric, hold the neighbours and nobody who is gone; flaws are repaired in time
    ParentsApproach   a node's parent in a group is closer to the group's key, or shares more of it
    Trees             no cycle, one root, and the node closest to the key reaches every member by way of children

Approaching holds after every message as it stands. The others hold but for the time that nodes need to hear of those
who came and went: some exchanges for leaf sets, some periods of grafting for trees; a node that changes its parent
keeps the one before no longer than that. At rest, leaf sets are exactly the closest nodes, and parents and children
agree. But no moment is so quiet that nobody changes its parent: until the new one has replied, the one before leads to
the root.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from tidings.systems.overlay import NEVER, Conditions, Law, ObservedWorld, Repair, Violation
from tidings.systems.protocols.effects import Id
from tidings.systems.protocols.pastry import PastryNode, PastryRoute, PastrySettings, shared_digits
from tidings.systems.protocols.ring_ids import ring_distance
from tidings.systems.protocols.scribe import ScribeNode, TreeGroup

# How long a flaw may take to be repaired, when nodes come, go and crash but messages arrive: some periods of what
# repairs it. Measured over hundreds of seeds, the longest takes three quarters of it.
KNOWN_MS = 3_000  # until the closest nodes to a key are known
LEAVES_MS = 4_000  # newcomers ask those around them at once, and both neighbours every second
GONE_MS = 12_000  # of 8 leaves one is asked every second


def pastry_laws(conditions: Conditions) -> list[Law]:
    """Returns the laws that hold for what is built on Pastry."""
    if not conditions.is_reliable:
        return [HopsApproach()]
    return [HopsApproach(), ClosestDelivers(KNOWN_MS), LeafSets(LEAVES_MS, GONE_MS)]


def members_of(world: ObservedWorld) -> dict[Id, PastryNode]:
    """Returns the nodes that can be routed through: not one whose contact crashed before it had joined."""
    return {id: node for id, node in world.nodes.items() if isinstance(node, PastryNode) and node.is_member}


def closest(ids: Iterable[Id], key: Id, bits: int) -> Id:
    return min(ids, key=lambda id: (ring_distance(id, key, bits), id))


def approaches(here: Id, there: Id, key: Id, settings: PastrySettings) -> bool:
    bits, digit = settings.bits, settings.digit_bits
    if shared_digits(there, key, bits, digit) > shared_digits(here, key, bits, digit):
        return True
    return (ring_distance(there, key, bits), there) < (ring_distance(here, key, bits), here)


class HopsApproach(Law):
    def after(self, world: ObservedWorld, id: Id) -> None:
        if world.handled is None or not isinstance(world.handled[1], PastryRoute):
            return
        (sender, message), node = world.handled, world.nodes[id]
        assert isinstance(node, PastryNode)
        if not approaches(sender, id, message.key, node.pastry):
            what = f"a message for {message.key} went from {sender} to {id}, which is no closer"
            raise Violation("HopsApproach", what, world.now_ms)


class ClosestDelivers(Law):
    """`known_ms`: from when on a member has to be known to those around it."""

    def __init__(self, known_ms: int) -> None:
        self._known_ms = known_ms
        self._since: dict[PastryNode, int] = {}

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, PastryNode)
        if node.is_member:
            self._since.setdefault(node, world.now_ms)
        if world.handled is None or not isinstance(world.handled[1], PastryRoute) or not node.is_member:
            return
        key = world.handled[1].key
        if node.next_hop(key) is not None:
            return
        before = world.now_ms - self._known_ms
        members = members_of(world)
        known = [id, *(other for other, one in members.items() if self._since.get(one, before) < before)]
        best = closest(known, key, node.pastry.bits)
        if best != id:
            since = self._since[members[best]]
            what = f"a message for {key} ended at {id}, and {best} is closer, a member since {since} ms"
            raise Violation("ClosestDelivers", what, world.now_ms)


class LeafSets(Law):
    """Looks again only when somebody's leaves or the membership have changed.

    Neighbours speak every period; the others are asked in turn, so that it takes longer to miss one that is gone.
    """

    def __init__(self, within_ms: int, gone_within_ms: int) -> None:
        self._one_way = Repair("LeafSets", within_ms)
        self._gone = Repair("LeafSets", gone_within_ms)
        self._seen: dict[PastryNode, tuple[tuple[Id, ...], tuple[Id, ...]]] = {}
        self._members: list[Id] = []

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, PastryNode)
        members = members_of(world)
        leaves = (node.smaller, node.larger)
        if self._seen.get(node) == leaves and list(members) == self._members:
            self._one_way.unchanged(world)
            self._gone.unchanged(world)
            return
        self._seen[node], self._members = leaves, list(members)
        self._one_way.found(world, _one_way(members))
        self._gone.found(world, _gone(members))


def _one_way(members: dict[Id, PastryNode]) -> dict[Hashable, str]:
    found: dict[Hashable, str] = {}
    for own, node in members.items():
        for leaf in node.leaves:
            other = members.get(leaf)
            if other is not None and own not in other.leaves and _belongs(own, other):
                found[own, leaf] = f"node {own} has the leaf {leaf}, which does not have it"
        following = _following(own, members, (1 << node.pastry.bits) - 1)
        if len(members) > 1 and node.larger[:1] != (following,):
            found[own] = f"node {own} is followed by {following}, and has the leaves {node.larger}"
    return found


def _following(own: Id, members: Iterable[Id], mask: int) -> Id:
    return min(members, key=lambda id: (id - own) & mask or mask + 1)


def _gone(members: dict[Id, PastryNode]) -> dict[Hashable, str]:
    """Returns flaws by the node that is gone, not by who has it: it must not go around from one to the next."""
    return {
        leaf: f"node {id} has the leaf {leaf}, which is gone"
        for id, node in members.items()
        for leaf in node.leaves
        if leaf not in members
    }


def _belongs(id: Id, node: PastryNode) -> bool:
    """Whether a node would be a leaf of another, by what the other knows."""
    half, mask, own = node.pastry.leaves // 2, (1 << node.pastry.bits) - 1, node.id
    if len(node.larger) < half or len(node.smaller) < half:
        return True
    ahead, behind = (id - own) & mask, (own - id) & mask
    return ahead < (node.larger[-1] - own) & mask or behind < (own - node.smaller[-1]) & mask


def leaf_sets_at_rest(world: ObservedWorld) -> None:
    members = members_of(world)
    ring = sorted(members)
    for at, id in enumerate(ring):
        node = members[id]
        half = min(node.pastry.leaves // 2, len(ring) - 1)
        larger = tuple(ring[(at + k) % len(ring)] for k in range(1, half + 1))
        smaller = tuple(ring[at - k] for k in range(1, half + 1))
        if (node.larger, node.smaller) != (larger, smaller):
            what = f"node {id} has the leaves {node.smaller} and {node.larger}, not {smaller} and {larger}"
            raise Violation("LeafSets", what, world.now_ms)


Part = tuple[Id | None, Id | None, bool, bool, tuple[Id, ...]]
Flaws = dict[Hashable, str]

TREES_MS = 8_000  # for a tree to be repaired: everybody grafts every 2 s, and a tree is three or four nodes high


def scribe_laws(conditions: Conditions) -> list[Law]:
    """Returns the laws that hold for what is built on Scribe."""
    return [*pastry_laws(conditions), Trees(TREES_MS if conditions.is_reliable else NEVER)]


def _parts(node: ScribeNode) -> dict[Id, Part]:
    """What a node has to do with each group."""
    return {
        group: (known.parent, known.previous, known.rooted, known.member, tuple(known.children))
        for group, known in node.groups.items()
    }


def _members_of(world: ObservedWorld) -> dict[Id, ScribeNode]:
    return {id: node for id, node in members_of(world).items() if isinstance(node, ScribeNode)}


class Trees(Law):
    """Looks again only at groups in which something has changed, or at all when the membership has."""

    def __init__(self, within_ms: int) -> None:
        self._repair = Repair("Trees", within_ms)
        self._seen: dict[ScribeNode, dict[Id, Part]] = {}
        self._members: list[Id] = []
        self._flaws: dict[Id, Flaws] = {}  # by group

    def after(self, world: ObservedWorld, id: Id) -> None:
        node = world.nodes[id]
        assert isinstance(node, ScribeNode)
        before, parts = self._seen.get(node, {}), _parts(node)
        members = _members_of(world)
        changed = {group for group, part in parts.items() if before.get(group) != part} | (before.keys() - parts.keys())
        self._check_parents(world, node, changed)
        if list(members) != self._members:
            self._members = list(members)
            changed |= {group for one in members.values() for group in one.groups} | self._flaws.keys()
        elif not changed:
            self._repair.unchanged(world)
            return
        self._seen[node] = parts
        for group in sorted(changed):
            self._flaws[group] = _flaws(members, group)
        self._flaws = {group: flaws for group, flaws in self._flaws.items() if flaws}
        self._repair.found(world, {flaw: what for flaws in self._flaws.values() for flaw, what in flaws.items()})

    def _check_parents(self, world: ObservedWorld, node: ScribeNode, groups: set[Id]) -> None:
        for group in sorted(groups & node.groups.keys()):
            parent = node.groups[group].parent
            if parent is not None and not approaches(node.id, parent, group, node.pastry):
                what = f"group {group}: node {node.id} has the parent {parent}, which is no closer"
                raise Violation("ParentsApproach", what, world.now_ms)


def _flaws(members: dict[Id, ScribeNode], group: Id) -> Flaws:
    parts = {id: node.groups[group] for id, node in members.items() if group in node.groups}
    if not parts:
        return {}
    found: Flaws = {}
    roots = [id for id, known in parts.items() if known.parent is None and known.rooted]
    if len(roots) > 1:
        found["roots", group] = f"group {group} has the roots {roots}"
    cycle = _cycle(parts)
    if cycle:
        found["cycle", group] = f"group {group}: {cycle} are each other's parents"
    bits = next(iter(members.values())).pastry.bits
    reached = _below(parts, closest(members, group, bits))
    for id, known in parts.items():
        if known.member and id not in reached:
            found["unreached", group, id] = f"group {group}: the root does not reach the member {id}"
        if known.previous is not None:
            found["changing", group, id] = f"group {group}: {id} still has the parent {known.previous} of before"
    return found


def _cycle(parts: dict[Id, TreeGroup]) -> list[Id]:
    """Nodes each of whom has the next as its parent, around."""
    done: set[Id] = set()
    for start in parts:
        way: dict[Id, None] = {}
        above: Id | None = start
        while above is not None and above in parts and above not in done:
            if above in way:
                return list(way)[list(way).index(above) :]
            way[above] = None
            above = parts[above].parent
        done |= way.keys()
    return []


def _below(parts: dict[Id, TreeGroup], root: Id) -> set[Id]:
    """Whom an event comes to that is spread from a node: children, where they know the group as well."""
    reached: set[Id] = set()
    open_ = [root]
    while open_:
        id = open_.pop()
        if id in parts and id not in reached:
            reached.add(id)
            open_ += parts[id].children
    return reached


def trees_at_rest(world: ObservedWorld) -> None:
    nodes = _members_of(world)
    groups = sorted({group for node in nodes.values() for group in node.groups})
    for group in groups:
        root = closest(nodes, group, next(iter(nodes.values())).pastry.bits)
        for id, node in nodes.items():
            if group not in node.groups:
                continue
            above, seen = id, list[Id]()
            while above != root:
                seen.append(above)
                here = nodes[above].groups.get(group) if above in nodes else None
                higher = None if here is None else _leading_up(here)
                if higher is None or higher in seen:
                    raise Violation(
                        "Trees", f"group {group}: {id} does not reach the root {root}: {seen}", world.now_ms
                    )
                if higher in nodes and not _knows_child(nodes[higher], group, above):
                    raise Violation("Trees", f"group {group}: {higher} does not know its child {above}", world.now_ms)
                above = higher


def _leading_up(known: TreeGroup) -> Id | None:
    """Whom events come from: the parent, or the one before while the parent has not answered."""
    changing = known.parent is not None and known.previous is not None
    return known.previous if changing else known.parent


def _knows_child(parent: ScribeNode, group: Id, child: Id) -> bool:
    known = parent.groups.get(group)
    return known is not None and child in known.children
