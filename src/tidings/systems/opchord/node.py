"""Publish/subscribe on a Chord ring (Triantafillou and Aekaterinidis, "Content-based Publish-Subscribe Over Structured
P2P Networks"), for Chord's hash and for OPChord's order-preserving one alike: `Lists` says which.

    subscribe   for each attribute: a walk along its arc, from the owner of its first position to that of its last
    publish     ask the owner of each value's position for its list; a conjunction that is in c3 lists matches
    deliver     through the owner of the subscription (c1 of its id), which knows whose it is

What the paper leaves open is settled so: a node's list holds many values, so each entry is checked against
the event's own value there; a node copies its lists to its successors, and hands over what belongs to one that joins,
which passes questions on until it has it; owners repeat their walks now and then, and entries that nobody
repeats run out, so that nothing is left of an owner that crashed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

from tidings.errors import SubscriptionError
from tidings.model.subscription import SubscriptionId, SubscriptionIdCodec
from tidings.systems.geometry.node_ring import Arc, Ring, RingView
from tidings.systems.opchord import placement
from tidings.systems.opchord.lists import Lists, touches
from tidings.systems.opchord.messages import (
    MESSAGES,
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
from tidings.systems.overlay import Overlay, Start, seat_members
from tidings.systems.protocols.content import Content, Record
from tidings.systems.protocols.effects import (
    Active,
    Deliver,
    Effects,
    Event,
    Handlers,
    Id,
    Message,
    Send,
    SetTimer,
    Tag,
)
from tidings.systems.protocols.message_codec import MessageError
from tidings.systems.protocols.ring import STABILIZE, ChordNode, ChordSettings, Route
from tidings.systems.protocols.ring_ids import ADDRESS_BITS, hashed

NUMBER_BITS = 20
MAX_SUBSCRIPTIONS = 1 << NUMBER_BITS  # of one node: c2 of the paper


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


class _StoreAgain(NamedTuple):
    request: int
    left: int


class _AskAgain(NamedTuple):
    event: str
    left: int


class _TellAgain(NamedTuple):
    subscription: int
    event: str
    left: int


REFRESH, EXPIRE = "refresh", "expire"


class _Own:
    """A subscription of a client of this node."""

    __slots__ = ("numbers", "text", "version", "waiting")

    def __init__(self, text: str, numbers: list[int]) -> None:
        self.text = text
        self.numbers = numbers  # packed, one a conjunction
        self.version = 0
        self.waiting: set[int] = set()  # requests not answered yet


class _Query:
    __slots__ = ("counts", "event", "waiting")

    def __init__(self, event: Event, channels: int) -> None:
        self.event = event
        self.waiting = set(range(channels))
        self.counts: dict[int, int] = {}


class OPChordNode(ChordNode):
    """A member of the ring that keeps lists, and has clients of its own."""

    def __init__(self, id: Id, lists: Lists, settings: OPChordSettings = OPChordSettings()) -> None:  # noqa: B008
        assert settings.chord.bits == lists.bits, "the ring and the placement have ids of one size"
        super().__init__(id, settings.chord)
        self.lists = lists
        self.options = settings
        self.codec = SubscriptionIdCodec(lists.bits, MAX_SUBSCRIPTIONS, lists.channels)
        self.entries: dict[tuple[int, int], Entry] = {}  # by subscription and channel; own arcs, and copies
        self._until: dict[tuple[int, int], int] = {}
        self._removed: dict[tuple[int, int], tuple[int, int]] = {}  # up to which version, and how long to remember it
        self.own: dict[str, _Own] = {}
        self._owner_of: dict[int, tuple[str, int]] = {}  # packed number → subscription and box
        self._first_number = self._next_number = 0
        self._requests: dict[int, tuple[str, Store]] = {}
        self._next_request = 0
        self._queries: dict[str, _Query] = {}
        self._untold: dict[tuple[int, str], Event] = {}
        self._delivered: dict[tuple[str, str], int] = {}  # (subscription, event) → when
        self._settled = False  # whether what belongs here has been handed over
        self._copied_to: tuple[Id, ...] = ()
        self.store_hops = 0  # of the last walk that was answered

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        self._settled = self.is_member or contact is None
        # A node that was here before under the same id may still be in lists, and be sent replies.
        self._first_number = self._next_number = hashed(f"{self.id} {now_ms}", NUMBER_BITS)
        self._next_request = hashed(f"{now_ms} {self.id}", NUMBER_BITS) << NUMBER_BITS
        timers: Effects = [SetTimer(self.options.refresh_ms, REFRESH), SetTimer(self.options.refresh_ms, EXPIRE)]
        return [*super().start(contact, now_ms), *timers]

    # Subscriptions

    def subscribe(self, subscription: str, text: str, now_ms: int) -> Effects:
        conjunctions = self.lists.conjunctions(text)  # a filter that cannot be read is refused before anything changes
        if subscription in self.own:
            return self._update(subscription, text, now_ms)
        own = self.own[subscription] = _Own(text, [])
        for box, conjunction in enumerate(conjunctions):
            own.numbers.append(self._number(subscription, box, conjunction.lists))
        return self._store_all(subscription, now_ms) or [Active(subscription)]

    def _number(self, subscription: str, box: int, lists: int) -> int:
        if self._next_number == self._first_number + MAX_SUBSCRIPTIONS:
            raise SubscriptionError(f"node {self.id}: it has had {MAX_SUBSCRIPTIONS:,} subscriptions; use another node")
        packed = self.codec.encode(SubscriptionId(self.id, self._next_number % MAX_SUBSCRIPTIONS, lists))
        self._next_number += 1
        self._owner_of[packed] = (subscription, box)
        return packed

    def _store_all(self, subscription: str, now_ms: int) -> Effects:
        """Walk every arc of every conjunction."""
        own = self.own[subscription]
        effects: Effects = []
        for box, conjunction in enumerate(self.lists.conjunctions(own.text)):
            for channel, arcs in conjunction.arcs.items():
                entry = Entry(own.numbers[box], channel, own.text, box, own.version)
                for arc in arcs:
                    effects += self._request(subscription, entry, arc, False, now_ms)
        return effects

    def _request(self, subscription: str, entry: Entry, arc: Arc, remove: bool, now_ms: int) -> Effects:
        request = self._next_request
        self._next_request += 1
        store = Store(entry, arc, request, remove, 0)
        self._requests[request] = (subscription, store)
        if subscription in self.own:
            self.own[subscription].waiting.add(request)
        again = SetTimer(self.options.retry_ms, _StoreAgain(request, self.options.retries))
        return [again, *self.route(arc.start, store, now_ms)]

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects:
        own = self.own.pop(subscription, None)
        if own is None:
            raise SubscriptionError(f"node {self.id}: there is no subscription {subscription!r} here")
        return self._remove(subscription, own, now_ms)

    def _remove(self, subscription: str, own: _Own, now_ms: int) -> Effects:
        effects: Effects = []
        for number in own.numbers:
            self._owner_of.pop(number, None)
        for request in own.waiting:
            self._requests.pop(request, None)
        for box, conjunction in enumerate(self.lists.conjunctions(own.text)):
            for channel, arcs in conjunction.arcs.items():
                entry = Entry(own.numbers[box], channel, own.text, box, own.version + 1)
                for arc in arcs:
                    effects += self._request(subscription, entry, arc, True, now_ms)
        return effects

    def _update(self, subscription: str, text: str, now_ms: int) -> Effects:
        """Only the difference of the old arcs and the new is walked (section 3.1.2), if the lists stay the same."""
        own = self.own[subscription]
        before, after = self.lists.conjunctions(own.text), self.lists.conjunctions(text)
        alike = len(before) == len(after) and all(
            set(old.arcs) == set(new.arcs)
            and all(len(arcs) == len(new.arcs[channel]) == 1 for channel, arcs in old.arcs.items())
            for old, new in zip(before, after, strict=True)
        )
        if not alike or own.waiting:
            effects = self._remove(subscription, self.own.pop(subscription), now_ms)
            return [*effects, *self.subscribe(subscription, text, now_ms)]
        known, own.version, own.text = own.text, own.version + 1, text
        effects = []
        for box, (old, new) in enumerate(zip(before, after, strict=True)):
            for channel, (old_arc,) in old.arcs.items():
                entry = Entry(own.numbers[box], channel, text, box, own.version)
                arcs = self.lists.changed(channel, old_arc, new.arcs[channel][0])
                for arc, moved in zip(arcs, self._moved(known, text, box, channel), strict=True):
                    if arc.length or moved:
                        effects += self._request(subscription, entry, arc, False, now_ms)
        return effects or [Active(subscription)]

    def _moved(self, old: str, new: str, box: int, channel: int) -> tuple[bool, bool]:
        """Whether the lower, and whether the upper end of what is asked for is another one."""
        interest = self.lists.content.interest
        before, after = (self.lists.values(interest(text), box, channel) for text in (old, new))
        if before == after or before is None or after is None:
            return False, False
        if not before.intervals or not after.intervals:  # NULL alone
            return True, True
        return before.intervals[0][0] != after.intervals[0][0], before.intervals[-1][1] != after.intervals[-1][1]

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

    # Walks: at the nodes that own the arc

    def arrived(self, message: Route, now_ms: int) -> Effects:
        payload = message.payload
        match payload:
            case Store():
                return self._walk(payload._replace(hops=message.hops), message.origin, now_ms)
            case Collect():
                return self._on_collect(payload, message.origin, now_ms)
            case Matched():
                return self._on_matched(payload, message.origin, now_ms)
        return []

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

    def _on_stored(self, sender: Id, message: Stored, now_ms: int) -> Effects:
        subscription, _ = self._requests.pop(message.request, (None, None))
        self.store_hops = message.hops
        own = self.own.get(subscription) if subscription is not None else None
        if own is None or message.request not in own.waiting:
            return []
        own.waiting.discard(message.request)
        assert subscription is not None
        return [] if own.waiting else [Active(subscription)]

    # Copies, handing over

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

    def leave(self, now_ms: int) -> Effects:
        """The successor has copies already; what changed last is handed over all the same."""
        effects: Effects = []
        for subscription in list(self.own):
            effects += self.unsubscribe(subscription, now_ms)
        head = self.successors[0] if self.successors else self.id
        if head != self.id:
            effects.append(Send(head, LastCopies(self._copies(self.entries.values(), False, now_ms), self.id)))
        return [*effects, *super().leave(now_ms)]

    def _copy_afresh(self, now_ms: int) -> Effects:
        """Every list that is owned here, to the successors that do not have it."""
        holders = self._copy_holders()
        lacking = [id for id in holders if id not in self._copied_to]
        self._copied_to = holders
        owned = [entry for entry in self.entries.values() if self._has_value(entry)] if lacking else []
        return [Send(id, self._copies(owned, False, now_ms)) for id in lacking] if owned else []

    # Events

    def publish(self, event: Event, now_ms: int) -> Effects:
        self.lists.positions(event)  # what is no event is refused before anything changes
        query = self._queries[event.id] = _Query(event, self.lists.channels)
        return [*self._ask(query, now_ms), SetTimer(self.options.retry_ms, _AskAgain(event.id, self.options.retries))]

    def _ask(self, query: _Query, now_ms: int) -> Effects:
        positions = self.lists.positions(query.event)
        effects: Effects = []
        for channel in sorted(query.waiting):
            effects += self.route(positions[channel], Collect(query.event, channel), now_ms)
        return effects

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

    def _on_collected(self, sender: Id, message: Collected, now_ms: int) -> Effects:
        query = self._queries.get(message.event)
        if query is None or message.channel not in query.waiting:
            return []
        query.waiting.discard(message.channel)
        for subscription in message.subscriptions:
            query.counts[subscription] = query.counts.get(subscription, 0) + 1
        if query.waiting:
            return []
        del self._queries[message.event]
        effects: Effects = []
        for subscription, count in query.counts.items():
            if count == self.codec.decode(subscription).constrained:  # in exactly c3 lists (Figure 5)
                effects += self._tell(subscription, query.event, now_ms)
        return effects

    def _tell(self, subscription: int, event: Event, now_ms: int) -> Effects:
        self._untold[subscription, event.id] = event
        again = SetTimer(self.options.retry_ms, _TellAgain(subscription, event.id, self.options.retries))
        owner = self.codec.decode(subscription).owner
        return [again, *self.route(owner, Matched(subscription, event), now_ms)]

    def _on_matched(self, message: Matched, origin: Id, now_ms: int) -> Effects:
        effects = self._reply(origin, SubscriberTold(message.subscription, message.event.id), now_ms)
        known = self._owner_of.get(message.subscription)
        if known is None:  # unsubscribed, or its owner is gone and this is the next node on the ring
            return effects
        subscription, box = known
        record = self.lists.content.record(message.event)
        key = (subscription, message.event.id)
        if key in self._delivered or not self.lists.rest_holds(record, self.own[subscription].text, box):
            return effects
        self._delivered[key] = now_ms
        return [*effects, Deliver(subscription, message.event)]

    def _reply(self, origin: Id, answer: Message, now_ms: int) -> Effects:
        return self.on_message(self.id, answer, now_ms) if origin == self.id else [Send(origin, answer)]

    def _on_told(self, sender: Id, message: SubscriberTold, now_ms: int) -> Effects:
        self._untold.pop((message.subscription, message.event), None)
        return []

    # Time

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        match tag:
            case _StoreAgain(request, left):
                return self._store_again(request, left, now_ms)
            case _AskAgain(event, left):
                query = self._queries.get(event)
                if query is None or not left:
                    self._queries.pop(event, None)
                    return []
                again = SetTimer(self.options.retry_ms, _AskAgain(event, left - 1))
                return [*self._ask(query, now_ms), again]
            case _TellAgain(subscription, event, left):
                if (subscription, event) not in self._untold or not left:
                    self._untold.pop((subscription, event), None)
                    return []
                again = SetTimer(self.options.retry_ms, _TellAgain(subscription, event, left - 1))
                matched = Matched(subscription, self._untold[subscription, event])
                return [again, *self.route(self.codec.decode(subscription).owner, matched, now_ms)]
        if tag == REFRESH:
            effects: Effects = [SetTimer(self.options.refresh_ms, REFRESH)]
            for name, own in self.own.items():
                if self.is_member and not own.waiting:
                    effects += self._store_all(name, now_ms)
            return effects
        if tag == EXPIRE:
            return [*self._expire(now_ms), SetTimer(self.options.refresh_ms, EXPIRE)]
        effects = super().on_timer(tag, now_ms)
        return [*effects, *self._copy_afresh(now_ms)] if tag == STABILIZE else effects

    def _store_again(self, request: int, left: int, now_ms: int) -> Effects:
        known = self._requests.get(request)
        if known is None:
            return []
        if not left:
            subscription, _ = self._requests.pop(request)
            if subscription in self.own:
                self.own[subscription].waiting.discard(request)  # the next refresh tries again
            return []
        again = SetTimer(self.options.retry_ms, _StoreAgain(request, left - 1))
        return [again, *self.route(known[1].arc.start, known[1], now_ms)] if self.is_member else [again]

    def _expire(self, now_ms: int) -> Effects:
        for key in [key for key, until in self._until.items() if until < now_ms or key not in self.entries]:
            del self._until[key]
            self.entries.pop(key, None)
        for key in [key for key, (_, until) in self._removed.items() if until < now_ms]:
            del self._removed[key]
        horizon = now_ms - 3 * self.options.refresh_ms
        for pair in [pair for pair, at in self._delivered.items() if at < horizon]:
            del self._delivered[pair]
        return []

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        effects = super().on_undelivered(to, message, now_ms)
        if isinstance(message, Walk) and self.is_member:
            return [*effects, *self._on_walk(self.id, message, now_ms)]
        if isinstance(message, CollectFor) and self.is_member:
            return [*effects, *self._on_collect_for(self.id, message, now_ms)]
        return effects

    handlers: ClassVar[Handlers] = {
        Walk: _on_walk,
        Stored: _on_stored,
        Collected: _on_collected,
        CollectFor: _on_collect_for,
        SubscriberTold: _on_told,
        Copies: _on_copies,
        LastCopies: _on_last_copies,
        Uncopy: _on_uncopy,
    }


def ring_overlay(adapt: Callable[..., RingView]) -> Overlay[OPChordNode, Lists, OPChordSettings]:
    """Returns the overlay of lists on a ring, where a placement says which lists there are."""

    def ground(content: Content, settings: OPChordSettings) -> Lists:
        return Lists(adapt(content.statistics, partitions=1, ring=Ring(settings.id_bits, (0,))), content)

    def make(kind: type[OPChordNode], start: Start[Lists, OPChordSettings]) -> OPChordNode:
        return kind(start.id, start.ground, start.settings)

    return Overlay(
        OPChordNode,
        make,
        ground,
        seat_members,
        MESSAGES,
        OPChordSettings(ChordSettings(bits=ADDRESS_BITS)),
        simulated=OPChordSettings(ChordSettings(bits=24, successors=3)),
        least=4,  # one more than the successors that a node knows: what Zave's proof begins with
    )


OVERLAY = ring_overlay(placement.adapt)
