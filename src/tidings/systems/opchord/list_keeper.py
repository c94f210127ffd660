"""A member of a Chord ring that keeps lists of subscriptions, and looks events up in them.

What the paper leaves open is settled so: a node's list holds many values, so each entry is checked against the event's
own value there; a node copies its lists to its successors, and hands over what belongs to one that joins, which passes
questions on until it has it; an entry that its owner does not repeat runs out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from tidings.model.subscription import SubscriptionIdCodec
from tidings.systems.geometry.node_ring import Arc
from tidings.systems.opchord.lists import Lists, touches
from tidings.systems.opchord.messages import (
    Collect,
    Collected,
    CollectFor,
    Copies,
    Entry,
    LastCopies,
    Matched,
    Store,
    Stored,
    SubscriberTold,
    Uncopy,
    Walk,
)
from tidings.systems.protocols.content import Record
from tidings.systems.protocols.effects import Effects, Event, Handlers, Id, Message, Send, SetTimer, Tag
from tidings.systems.protocols.message_codec import MessageError
from tidings.systems.protocols.ring import STABILIZE, ChordNode, ChordSettings, Route

NUMBER_BITS = 20
MAX_SUBSCRIPTIONS = 1 << NUMBER_BITS  # of one node: c2 of the paper

EXPIRE = "expire"


class OPChordSettings(NamedTuple):
    chord: ChordSettings = ChordSettings()
    retry_ms: int = 1_500
    retries: int = 6
    refresh_ms: int = 10_000
    copies: int = 2  # of every list, at the successors
    jump: float = 2.0  # nodes to a value, beyond which a walk goes by lookups from value to value

    @property
    def id_bits(self) -> int:
        return self.chord.bits


class ListKeeper(ChordNode):
    """A member of the ring that keeps lists. What it does for clients is a subclass's."""

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

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        match part:
            case Event():
                self.lists.content.record(part)
            case Entry(subscription, channel, text, box, _):
                self.codec.decode(subscription)
                conjunctions = self.lists.conjunctions(text)
                if box >= len(conjunctions) or channel not in conjunctions[box].arcs:
                    raise MessageError(f"message: Entry names box {box}, channel {channel}, which its filter lacks")
            case Arc(_, length) if length > self._mask:
                raise MessageError("message: Arc is longer than the ring")
            case Collect(_, channel) | Collected(_, channel, _) if channel >= self.lists.channels:
                raise MessageError(f"message: there is no channel {channel}")
            case Collected(_, _, subscriptions):
                for subscription in subscriptions:
                    self.codec.decode(subscription)
            case Matched(subscription) | SubscriberTold(subscription):
                self.codec.decode(subscription)
            case Copies(entries, left_ms):
                if len(entries) != len(left_ms) or any(left > 3 * self.options.refresh_ms for left in left_ms):
                    raise MessageError("message: Copies says wrongly how long its entries are kept")

    def arrived(self, message: Route, now_ms: int) -> Effects:
        payload = message.payload
        match payload:
            case Store():
                return self._walk(payload._replace(hops=message.hops), message.origin, now_ms)
            case Collect():
                return self._on_collect(payload, message.origin, now_ms)
        return []

    # Walks, copies, handing over, questions

    def _on_walk(self, sender: Id, message: Walk, now_ms: int) -> Effects:
        """Somebody who came in between, and whom the last node does not know yet, has its turn first."""
        store, origin, last = message
        if not self.is_member:
            return self.send_back(sender, message)
        nearer = self.came_between(last)
        return self._walk(store, origin, now_ms) if nearer is None else [Send(nearer, message)]

    def _walk(self, store: Store, origin: Id, now_ms: int) -> Effects:
        effects = self._take(store, now_ms)
        start, length = store.arc
        covered = (self.id - start) & self._mask
        head = self.successors[0]
        if covered >= length or (head - start) & self._mask <= covered:  # at its end, or once around
            return [*effects, *self._reply(origin, Stored(store.request, store.hops), now_ms)]
        jump = self._jump(store, covered)
        if jump is not None:
            rest = Arc(jump, length - ((jump - start) & self._mask))
            again = Route(jump, origin, store.hops, False, store._replace(arc=rest))
            return [*effects, *self._on_route(self.id, again, now_ms)]
        return [*effects, Send(head, Walk(store._replace(hops=store.hops + 1), origin, self.id))]

    def _jump(self, store: Store, covered: int) -> Id | None:
        """The next value's position, where so many nodes lie before it that a lookup is shorter (section 4.3)."""
        step = self.lists.position_step(store.entry.channel)
        if not step:
            return None
        count = len(self.successors)
        spacing = ((self.successors[-1] - self.id) & self._mask) / count
        if step <= self.options.jump * spacing:
            return None
        ahead = int(-(-covered // step) * step)
        while ahead <= covered:
            ahead += max(1, int(step))
        ahead = min(ahead, store.arc.length)
        nodes_between = (ahead - covered) / spacing
        return (store.arc.start + ahead) & self._mask if nodes_between > self.options.jump else None

    def _take(self, store: Store, now_ms: int) -> Effects:
        """Keep the entry, if its filter has a value here; else forget what was kept of its subscription."""
        entry = store.entry
        key = (entry.subscription, entry.channel)
        known = self.entries.get(key)
        if (known is not None and known.version > entry.version) or (not store.remove and self._is_removed(entry)):
            return []
        if store.remove:
            self._removed[key] = (entry.version, now_ms + self.options.refresh_ms)
        if store.remove or not self._has_value(entry):
            if known is None:
                return []
            del self.entries[key]
            return [Send(id, Uncopy(entry)) for id in self._copy_holders()]
        self.entries[key] = entry
        self._until[key] = now_ms + 3 * self.options.refresh_ms
        return [Send(id, self._copies([entry], False, now_ms)) for id in self._copy_holders()]

    def _is_removed(self, entry: Entry) -> bool:
        """Whether this is news of something that is over: a copy that was under way, a walk that was repeated."""
        version, _ = self._removed.get((entry.subscription, entry.channel), (-1, 0))
        return entry.version <= version

    def _has_value(self, entry: Entry) -> bool:
        """Whether one of the entry's arcs reaches into what this node owns."""
        if self.predecessor is None or self.predecessor == self.id:
            return True
        return touches(self._arcs(entry), self.predecessor, self.id, self._mask)

    def _arcs(self, entry: Entry) -> tuple[Arc, ...]:
        return self.lists.conjunctions(entry.text)[entry.box].arcs[entry.channel]

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
        if known is not None and known.version <= message.entry.version and not self._is_mine(known):
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
        handed = [e for e in self.entries.values() if touches(self._arcs(e), self.id, mine, self._mask)]
        return [Send(mine, self._copies(handed, True, now_ms))]

    def _copy_afresh(self, now_ms: int) -> Effects:
        """Every list that is owned here, to the successors that do not have it."""
        holders = self._copy_holders()
        lacking = [id for id in holders if id not in self._copied_to]
        self._copied_to = holders
        owned = [entry for entry in self.entries.values() if self._has_value(entry)] if lacking else []
        return [Send(id, self._copies(owned, False, now_ms)) for id in lacking] if owned else []

    def _on_collect(self, message: Collect, origin: Id, now_ms: int) -> Effects:
        if not self._settled and self.successors[0] != self.id:
            return [Send(self.successors[0], CollectFor(message, origin))]
        return self._answer(message, origin, now_ms)

    def _on_collect_for(self, sender: Id, message: CollectFor, now_ms: int) -> Effects:
        if not self.is_member:
            return self.send_back(sender, message)
        if not self._settled and self.successors[0] != self.id:
            return [Send(self.successors[0], message)]
        return self._answer(message.collect, message.origin, now_ms)

    def _answer(self, message: Collect, origin: Id, now_ms: int) -> Effects:
        event, channel = message
        record = self.lists.content.record(event)
        named = tuple(
            entry.subscription
            for entry in self.entries.values()
            if entry.channel == channel and self.admits(record, entry)
        )
        return self._reply(origin, Collected(event.id, channel, named), now_ms)

    def admits(self, record: Record, entry: Entry) -> bool:
        """Returns whether an event's value is one that an entry asks for; the paper counts whatever is in the list."""
        return self.lists.admits(record, entry.text, entry.box, entry.channel)

    def _reply(self, origin: Id, answer: Message, now_ms: int) -> Effects:
        return self.on_message(self.id, answer, now_ms) if origin == self.id else [Send(origin, answer)]

    # Time, leaving, and what came back

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

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        effects = super().on_undelivered(to, message, now_ms)
        if isinstance(message, Walk) and self.is_member:
            return [*effects, *self._on_walk(self.id, message, now_ms)]
        if isinstance(message, CollectFor) and self.is_member:
            return [*effects, *self._on_collect_for(self.id, message, now_ms)]
        return effects

    handlers: ClassVar[Handlers] = {
        Walk: _on_walk,
        CollectFor: _on_collect_for,
        Copies: _on_copies,
        LastCopies: _on_last_copies,
        Uncopy: _on_uncopy,
    }
