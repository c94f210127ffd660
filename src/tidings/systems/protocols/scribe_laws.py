"""Laws of Scribe.

    ParentsApproach   a node's parent in a group is closer to the group's key, or shares more of it
    Trees             no cycle, one root, and the node closest to the key reaches every member by way of children

The first holds after every message. A tree is in pieces for a while when nodes come and go, and is put together again
within some periods of grafting; who changes its parent keeps the one before no longer than that. At rest, parents and
children agree as well, but no moment is so quiet that nobody changes its parent: until the new one has answered it is
the one before that leads to the root.
"""

from __future__ import annotations

from collections.abc import Hashable

from tidings.systems.overlay import NEVER, Conditions, Law, ObservedWorld, Repair, Violation
from tidings.systems.protocols.effects import Id
from tidings.systems.protocols.pastry_laws import approaches, closest, members_of, pastry_laws
from tidings.systems.protocols.scribe import ScribeNode, TreeGroup

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
