"""A member of a Chord ring that holds entries of lists: those that it owns, and copies of what its predecessors own.

A node copies its lists to its successors, and hands over what belongs to one that joins; an entry that its owner does
not repeat runs out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from tidings.model.subscription import SubscriptionIdCodec
from tidings.systems.geometry.node_ring import Arc
from tidings.systems.opchord.lists import Lists
from tidings.systems.opchord.messages import Copies, Entry, LastCopies, Store, Uncopy
from tidings.systems.protocols.effects import Effects, Handlers, Id, Send, SetTimer, Tag
from tidings.systems.protocols.ring import STABILIZE, ChordNode, ChordSettings

NUMBER_BITS = 20
MAX_SUBSCRIPTIONS = 1 << NUMBER_BITS  # of one node: c2 of the paper

EXPIRE = "expire"


class OPChordSettings(NamedTuple):
    chord: ChordSettings = ChordSettings(all_fingers=False)
    retry_ms: int = 1_500
    retries: int = 6
    refresh_ms: int = 10_000
    copies: int = 2  # of every list, at the successors
    jump: float = 2.0  # nodes to a value, beyond which a walk goes by lookups from value to value
    stretch: int = 16  # nodes that a walk goes before it reports; one over more than twice as many is divided
    empirical: bool = True  # in order: whether values are spread as in a sample, if there is one, and not evenly
    values_max: int = 64  # by hash: values that a conjunction is held at for an attribute; 0: all that are declared

    @property
    def id_bits(self) -> int:
        return self.chord.bits


class ListHolder(ChordNode):
    """A member of the ring that holds entries. How they come to it, and who asks for them, is a subclass's."""

    def __init__(self, id: Id, lists: Lists, settings: OPChordSettings) -> None:
        assert settings.chord.bits == lists.bits, "the ring and the placement have ids of one size"
        super().__init__(id, settings.chord)
        self.lists = lists
        self.options = settings
        self.codec = SubscriptionIdCodec(lists.bits, MAX_SUBSCRIPTIONS, lists.channels)
        self.entries: dict[tuple[int, int], Entry] = {}  # by subscription and channel; own arcs, and copies
        self._until: dict[tuple[int, int], int] = {}
        self._removed: dict[tuple[int, int], tuple[int, int]] = {}  # up to which version, and how long to remember it
        self._settled = False  # whether what belongs here has been handed over
        self._copied_to: tuple[Id, ...] = ()

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        self._settled = self.is_member or contact is None
        return [*super().start(contact, now_ms), SetTimer(self.options.refresh_ms, EXPIRE)]

    # Entries

    def _take(self, store: Store, now_ms: int) -> Effects:
        """Keep the entry, if its filter has a value here; else forget what was kept of its subscription before.

        What is kept of this version is a copy then, for a node before this one.
        """
        entry = store.entry
        key = (entry.subscription, entry.channel)
        known = self.entries.get(key)
        if (known is not None and known.version > entry.version) or (not store.remove and self._is_removed(entry)):
            return []
        if store.remove:
            self._removed[key] = (entry.version, now_ms + self.options.refresh_ms)
        if store.remove or not self._has_value(entry):
            if known is None or known.version == entry.version:
                return []
            del self.entries[key]
            return [Send(id, Uncopy(entry)) for id in self._copy_holders()]
        self.entries[key] = entry
        self._until[key] = now_ms + 3 * self.options.refresh_ms
        return [Send(id, self._copies([entry], False, now_ms)) for id in self._lacking_holders(entry)]

    def _lacking_holders(self, entry: Entry) -> list[Id]:
        """Returns the holders of copies that own no part of the entry: the others are on its walk, or on another."""
        arcs, found, before = self._arcs(entry), [], self.id
        for id in self._copy_holders():
            if not self.lists.owns_value(entry.channel, arcs, before, id):
                found.append(id)
            before = id
        return found

    def _is_removed(self, entry: Entry) -> bool:
        """Whether this is news of something that is over: a copy that was under way, a walk that was repeated."""
        version, _ = self._removed.get((entry.subscription, entry.channel), (-1, 0))
        return entry.version <= version

    def _has_value(self, entry: Entry) -> bool:
        """Whether a value of the entry lies in what this node owns."""
        if self.predecessor is None or self.predecessor == self.id:
            return True
        return self.lists.owns_value(entry.channel, self._arcs(entry), self.predecessor, self.id)

    def _arcs(self, entry: Entry) -> tuple[Arc, ...]:
        return self.lists.conjunctions(entry.text)[entry.box].arcs[entry.channel]

    # Copies, and handing over

    def _copy_holders(self) -> tuple[Id, ...]:
        return tuple(id for id in self.successors[: self.options.copies] if id != self.id)

    @property
    def is_settled(self) -> bool:
        """Whether this node has been handed what it owns; else its successor replies for it."""
        return self._settled

    def _copies(self, entries: Iterable[Entry], handover: bool, now_ms: int) -> Copies:
        copied = tuple(entries)
        left_ms = tuple(self.runs_out_ms(entry) - now_ms for entry in copied)
        return Copies(copied, left_ms, handover)

    def runs_out_ms(self, entry: Entry) -> int:
        """Until when an entry is kept, if its owner does not repeat it."""
        return self._until[entry.subscription, entry.channel]

    def _on_copies(self, sender: Id, message: Copies, now_ms: int) -> Effects:
        for entry, left_ms in zip(message.entries, message.left_ms, strict=True):
            key = (entry.subscription, entry.channel)
            known = self.entries.get(key)
            if (known is None or known.version <= entry.version) and not self._is_removed(entry):
                self.entries[key] = entry
                self._until[key] = max(self._until.get(key, 0), now_ms + left_ms)
        if not message.handover or not self.is_member or self._settled:
            return []  # as long as it is no member, it was meant for who was here before
        self._settled = True
        return self._hand_over(now_ms)  # what those need who came in between meanwhile

    def _on_last_copies(self, sender: Id, message: LastCopies, now_ms: int) -> Effects:
        """Somebody who came in between, and of whom the node that left had not heard, owns now what that one owned."""
        effects = self._on_copies(sender, message.copies, now_ms)
        nearer = self.came_between(message.of)
        return effects if nearer is None else [*effects, Send(nearer, message)]

    def _on_uncopy(self, sender: Id, message: Uncopy, now_ms: int) -> Effects:
        key = (message.entry.subscription, message.entry.channel)
        self._removed.setdefault(key, (message.entry.version - 1, now_ms + self.options.refresh_ms))
        known = self.entries.get(key)
        if known is not None and known.version < message.entry.version and not self._is_mine(known):
            del self.entries[key]
        return []

    def _is_mine(self, entry: Entry) -> bool:
        return self.predecessor not in (None, self.id) and self._has_value(entry)

    def predecessor_changed(self, now_ms: int) -> Effects:
        """A node that comes in between is handed what it owns, by one that has been handed everything itself."""
        self._copied_to = ()  # what is owned here is another part now: the successors need it all
        return self._hand_over(now_ms) if self._settled else []

    def _hand_over(self, now_ms: int) -> Effects:
        """All that the predecessor owns or should have copies of; a copy is kept here, as a successor does.

        Not only what lies behind the predecessor before: nodes that join at once next to each other do not know
        each other yet, and each takes the same node for its predecessor, so that one may be asked for, or may have to
        hand on, what the other owns.
        """
        mine = self.predecessor
        if mine is None or mine == self.id:
            return []
        owns = self.lists.owns_value
        handed = [e for e in self.entries.values() if owns(e.channel, self._arcs(e), self.id, mine)]
        return [Send(mine, self._copies(handed, True, now_ms))]

    def _copy_afresh(self, now_ms: int) -> Effects:
        """Every list that is owned here, to the successors that do not have it."""
        holders = self._copy_holders()
        lacking = [id for id in holders if id not in self._copied_to]
        self._copied_to = holders
        owned = [entry for entry in self.entries.values() if self._has_value(entry)] if lacking else []
        return [Send(id, self._copies(owned, False, now_ms)) for id in lacking] if owned else []

    # Time, and leaving

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag == EXPIRE:
            self.expire(now_ms)
            return [SetTimer(self.options.refresh_ms, EXPIRE)]
        effects = super().on_timer(tag, now_ms)
        return [*effects, *self._copy_afresh(now_ms)] if tag == STABILIZE else effects

    def expire(self, now_ms: int) -> None:
        """Forgets entries that were not repeated, and removals of long ago."""
        for key in [key for key, until in self._until.items() if until < now_ms or key not in self.entries]:
            del self._until[key]
            self.entries.pop(key, None)
        for key in [key for key, (_, until) in self._removed.items() if until < now_ms]:
            del self._removed[key]

    def leave(self, now_ms: int) -> Effects:
        """The successor has copies already; what changed last is handed over all the same."""
        head = self.successors[0] if self.successors else self.id
        copies = LastCopies(self._copies(self.entries.values(), False, now_ms), self.id)
        handed: Effects = [Send(head, copies)] if head != self.id else []
        return [*handed, *super().leave(now_ms)]

    handlers: ClassVar[Handlers] = {Copies: _on_copies, LastCopies: _on_last_copies, Uncopy: _on_uncopy}
