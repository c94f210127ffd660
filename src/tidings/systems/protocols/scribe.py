"""Scribe (Castro et al., 2002): multicast trees on Pastry.

A group's tree is the union of its members' routes to the group's key: a node's parent is its next hop, the root
the node closest to the key. A node that is asked to graft a child is in the tree from then on, and asks its own
next hop if it was not before. Everybody grafts again now and then: so a parent that died, and a root that is
no longer the closest, are replaced by the next hop of then, and children that went are forgotten.

    create, join, leave, multicast    what the layer above calls
    wants                             what a subtree asks for, where matching is done in the tree; None: everything
"""

from __future__ import annotations

from random import Random
from typing import ClassVar, NamedTuple

from tidings.systems.protocols.effects import Effects, Event, Handlers, Id, Message, Send, SetTimer, Tag
from tidings.systems.protocols.pastry import PASTRY_MESSAGES, PastryNode, PastryRoute, PastrySettings

MAX_WANTED = 32  # texts that a subtree asks for: more are "everything"


class Graft(NamedTuple):
    """The sender's subtree belongs to the group."""

    group: Id
    wants: tuple[str, ...] | None


class Grafted(NamedTuple):
    group: Id
    rooted: bool  # whether the way up is complete


class Create(NamedTuple):
    group: Id


class Prune(NamedTuple):
    group: Id


class Multicast(NamedTuple):
    """For the root of a group, to be spread."""

    group: Id
    event: Event


class Spread(NamedTuple):
    group: Id
    event: Event


SCRIBE_MESSAGES: tuple[type, ...] = (*PASTRY_MESSAGES, Create, Graft, Grafted, Prune, Multicast, Spread)

TREES = "trees"


class ScribeSettings(NamedTuple):
    pastry: PastrySettings = PastrySettings()
    tree_ms: int = 2_000
    periods: int = 3  # without a word, after which a child is forgotten
    remembered_ms: int = 20_000  # for how long an event that was spread is known again


class TreeGroup:
    """What a node knows of a group that it has a part in."""

    __slots__ = ("children", "member", "parent", "previous", "rooted", "sent", "wants")

    def __init__(self) -> None:
        self.member = False
        self.parent: Id | None = None
        self.previous: Id | None = None  # the parent before, kept until the new one has answered
        self.rooted = False
        self.children: dict[Id, int] = {}  # when they last grafted
        self.wants: dict[Id, tuple[str, ...] | None] = {}  # what each child's subtree asks for
        self.sent: tuple[str, ...] | bool | None = False  # what the parent was last told; False: nothing yet


class ScribeNode(PastryNode):
    """A node with a part in trees. Events for the groups that it is a member of go to `received`."""

    def __init__(self, id: Id, random: Random, settings: ScribeSettings = ScribeSettings()) -> None:  # noqa: B008
        super().__init__(id, random, settings.pastry)
        self.scribe = settings
        self.groups: dict[Id, TreeGroup] = {}
        self._spread: dict[tuple[Id, str], int] = {}  # (group, event) → when

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        return [*super().start(contact, now_ms), SetTimer(self.scribe.tree_ms, TREES)]

    # The layer's primitives

    def create(self, group: Id, now_ms: int) -> Effects:
        """Have the root know the group before anybody joins it. Who joins a group that is not there creates it too."""
        return self.route(group, Create(group), now_ms)

    def join(self, group: Id, now_ms: int) -> Effects:
        known = self.groups.setdefault(group, TreeGroup())
        known.member = True
        return self._attach(group, known, now_ms)

    def leave_group(self, group: Id, now_ms: int) -> Effects:
        known = self.groups.get(group)
        if known is None:
            return []
        known.member = False
        return self._prune_if_idle(group, known) or self._attach(group, known, now_ms)

    def multicast(self, group: Id, event: Event, now_ms: int) -> Effects:
        return self.route(group, Multicast(group, event), now_ms)

    def is_rooted(self, group: Id) -> bool:
        return group in self.groups and self.groups[group].rooted

    # Trees

    def wanted(self, group: Id) -> tuple[str, ...] | None:
        """What this node's own members ask of a group; None: everything."""
        return None

    def _subtree(self, group: Id, known: TreeGroup) -> tuple[str, ...] | None:
        parts = [*known.wants.values(), *([self.wanted(group)] if known.member else [])]
        texts: dict[str, None] = {}
        for part in parts:
            if part is None:
                return None
            texts |= dict.fromkeys(part)
        return tuple(texts) if len(texts) <= MAX_WANTED else None

    def _attach(self, group: Id, known: TreeGroup, now_ms: int) -> Effects:
        """Grafts this node to the next hop of now; without one, it is the root."""
        if not self.is_member:
            return []
        hop = self.next_hop(group)
        effects: Effects = []
        if known.parent is not None and known.parent != hop:
            if known.previous != hop:  # a way back is no leave: it would overtake the graft, or be overtaken
                effects += self._let_go(group, known)
            known.previous = known.parent
        if hop is None:
            known.parent = None
            return [*effects, *self._set_rooted(group, known, True, now_ms)]
        if known.parent != hop:
            known.parent, known.rooted = hop, known.rooted and known.previous is not None
        known.sent = self._subtree(group, known)
        return [*effects, Send(hop, Graft(group, known.sent))]

    def _let_go(self, group: Id, known: TreeGroup) -> Effects:
        """Take leave of the parent before the present one."""
        before, known.previous = known.previous, None
        return [Send(before, Prune(group))] if before not in (None, known.parent) else []

    def _on_graft(self, sender: Id, message: Graft, now_ms: int) -> Effects:
        group, wants = message
        if not self.is_member:
            return self.send_back(sender, message)
        new = group not in self.groups
        known = self.groups.setdefault(group, TreeGroup())
        known.children[sender] = now_ms
        known.wants[sender] = wants
        effects: Effects = []
        if known.parent == sender:  # each takes the other for closer: look again
            known.parent, known.rooted = None, False
            new = True
        if new or known.sent != self._subtree(group, known):
            effects += self._attach(group, known, now_ms)
        return [*effects, Send(sender, Grafted(group, known.rooted))]

    def _on_grafted(self, sender: Id, message: Grafted, now_ms: int) -> Effects:
        known = self.groups.get(message.group)
        if known is None or known.parent != sender:
            return []
        if not message.rooted and known.previous is not None:
            return []  # the way through the parent before is still there
        effects = self._let_go(message.group, known)
        return [*effects, *self._set_rooted(message.group, known, message.rooted, now_ms)]

    def _set_rooted(self, group: Id, known: TreeGroup, rooted: bool, now_ms: int) -> Effects:
        if known.rooted == rooted:
            return []
        known.rooted = rooted
        effects: Effects = [Send(child, Grafted(group, rooted)) for child in known.children]
        return [*effects, *self.rooted(group, now_ms)] if rooted and known.member else effects

    def _on_prune(self, sender: Id, message: Prune, now_ms: int) -> Effects:
        known = self.groups.get(message.group)
        if known is None:
            return []
        known.children.pop(sender, None)
        known.wants.pop(sender, None)
        return self._prune_if_idle(message.group, known)

    def _prune_if_idle(self, group: Id, known: TreeGroup) -> Effects:
        if known.member or known.children:
            return []
        del self.groups[group]
        above = [known.parent] if known.parent is not None else []
        return [*(Send(id, Prune(group)) for id in above), *self._let_go(group, known)]

    def neighbours_changed(self, now_ms: int) -> Effects:
        """A group may have another root now, or another way to it."""
        effects: Effects = []
        for group, known in list(self.groups.items()):
            if self.next_hop(group) != known.parent:
                effects += self._attach(group, known, now_ms)
        return effects

    def leave(self, now_ms: int) -> Effects:
        effects: Effects = []
        for group, known in self.groups.items():
            if known.parent is not None:
                effects.append(Send(known.parent, Prune(group)))
        return [*effects, *super().leave(now_ms)]

    # Multicast

    def arrived(self, message: PastryRoute, now_ms: int) -> Effects:
        match message.payload:
            case Multicast(group, event):
                return self._on_spread(self._id, Spread(group, event), now_ms)
            case Create(group):
                self.groups.setdefault(group, TreeGroup()).rooted = True
        return []

    def _on_spread(self, sender: Id, message: Spread, now_ms: int) -> Effects:
        group, event = message
        known = self.groups.get(group)
        if known is None or (group, event.id) in self._spread:
            return []
        self._spread[group, event.id] = now_ms
        effects: Effects = [
            Send(child, message)
            for child in known.children
            if child != sender and self.passes(event, known.wants.get(child))
        ]
        return [*effects, *self.received(group, event, now_ms)] if known.member else effects

    # Time

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag != TREES:
            return super().on_timer(tag, now_ms)
        oldest = now_ms - self.scribe.periods * self.scribe.tree_ms
        effects: Effects = []
        for group, known in list(self.groups.items()):
            for child in [child for child, at in known.children.items() if at < oldest]:
                del known.children[child]
                known.wants.pop(child, None)
            effects += self._prune_if_idle(group, known) if not (known.member or known.children) else []
            if group in self.groups:
                effects += self._let_go(group, known) if known.parent is None else []
                effects += self._attach(group, known, now_ms)
        forgotten = now_ms - self.scribe.remembered_ms
        self._spread = {key: at for key, at in self._spread.items() if at >= forgotten}
        return [*effects, SetTimer(self.scribe.tree_ms, TREES)]

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        effects = super().on_undelivered(to, message, now_ms)
        for known in self.groups.values():
            known.children.pop(to, None)
            known.wants.pop(to, None)
            if known.previous == to:
                known.previous = None
            if known.parent == to:
                known.parent, known.rooted = None, False
        if isinstance(message, Graft) and message.group in self.groups:
            effects += self._attach(message.group, self.groups[message.group], now_ms)
        return effects

    # What is built on it

    def received(self, group: Id, event: Event, now_ms: int) -> Effects:
        """An event was multicast in a group that this node has joined."""
        return []

    def rooted(self, group: Id, now_ms: int) -> Effects:
        """The way from this member to the root of a group is complete."""
        return []

    def passes(self, event: Event, wants: tuple[str, ...] | None) -> bool:
        """Whether a subtree that asks for this wants the event."""
        return True

    handlers: ClassVar[Handlers] = {
        Graft: _on_graft,
        Grafted: _on_grafted,
        Prune: _on_prune,
        Spread: _on_spread,
    }
