"""Publish/subscribe on a Chord ring (Triantafillou and Aekaterinidis, "Content-based Publish-Subscribe Over Structured
P2P Networks"), for Chord's hash and for OPChord's order-preserving one alike: the View says which.

    subscribe   for each attribute: a walk along its arc, from the owner of its first position to that of its last
    publish     ask the owner of each value's position for its list; a conjunction that is in c3 lists matches
    deliver     through the owner of the subscription (c1 of its id), which knows whose it is

Owners of subscriptions repeat their walks now and then, and entries that nobody repeats run out, so that nothing is
left of an owner that crashed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from tidings.errors import SubscriptionError
from tidings.model.subscription import SubscriptionId
from tidings.systems.geometry.node_ring import Arc, Ring, RingView
from tidings.systems.opchord import placement
from tidings.systems.opchord.list_holder import MAX_SUBSCRIPTIONS, NUMBER_BITS, OPChordSettings
from tidings.systems.opchord.list_keeper import ListKeeper
from tidings.systems.opchord.lists import Lists
from tidings.systems.opchord.messages import (
    MESSAGES,
    Collect,
    Collected,
    Entry,
    Matched,
    Store,
    Stored,
    SubscriberTold,
)
from tidings.systems.opchord.walk_request import WalkRequest
from tidings.systems.overlay import Overlay, Promise, Start, seat_members
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import (
    Active,
    Deliver,
    Effects,
    Event,
    Handlers,
    Id,
    SetTimer,
    Tag,
)
from tidings.systems.protocols.ring import ChordSettings, Route
from tidings.systems.protocols.ring_ids import ADDRESS_BITS, hashed
from tidings.systems.statistics import Statistics


class _StoreAgain(NamedTuple):
    request: int
    left: int
    reports: int  # that had come when the timer was set


class _AskAgain(NamedTuple):
    event: str
    left: int


class _TellAgain(NamedTuple):
    subscription: int
    event: str
    left: int


REFRESH = "refresh"


class _Own:
    """A subscription of a client of this node."""

    __slots__ = ("active", "lacking", "numbers", "text", "version", "waiting")

    def __init__(self, text: str, numbers: list[int]) -> None:
        self.text = text
        self.numbers = numbers  # packed, one a conjunction
        self.version = 0
        self.waiting: set[int] = set()  # requests not answered yet
        self.lacking = False  # whether one of them was given up
        self.active = False  # whether it has been in place


class _Query:
    __slots__ = ("counts", "event", "waiting")

    def __init__(self, event: Event, channels: int) -> None:
        self.event = event
        self.waiting = set(range(channels))
        self.counts: dict[int, int] = {}


class OPChordNode(ListKeeper):
    """A member of the ring that keeps lists, and has clients of its own."""

    def __init__(self, id: Id, lists: Lists, settings: OPChordSettings = OPChordSettings()) -> None:  # noqa: B008
        super().__init__(id, lists, settings)
        self.own: dict[str, _Own] = {}
        self._owner_of: dict[int, tuple[str, int]] = {}  # packed number → subscription and box
        self._first_number = self._next_number = 0
        self._requests: dict[int, WalkRequest] = {}
        self._next_request = 0
        self._queries: dict[str, _Query] = {}
        self._untold: dict[tuple[int, str], Event] = {}
        self._delivered: dict[tuple[str, str], int] = {}  # (subscription, event) → when
        self.store_hops = 0  # of the last walk that ended, with all its parts

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        # A node that was here before under the same id may still be in lists, and be sent replies.
        self._first_number = self._next_number = hashed(f"{self.id} {now_ms}", NUMBER_BITS)
        self._next_request = hashed(f"{now_ms} {self.id}", NUMBER_BITS) << NUMBER_BITS
        return [*super().start(contact, now_ms), SetTimer(self.options.refresh_ms, REFRESH)]

    # Subscriptions

    def subscribe(self, subscription: str, text: str, now_ms: int) -> Effects:
        conjunctions = self.lists.conjunctions(text)  # a filter that cannot be read is refused before anything changes
        if subscription in self.own:
            return self._update(subscription, text, now_ms)
        own = self.own[subscription] = _Own(text, [])
        for box, conjunction in enumerate(conjunctions):
            own.numbers.append(self._number(subscription, box, conjunction.lists))
        return self._store_all(subscription, now_ms) or self._in_place(subscription)

    def _in_place(self, subscription: str) -> Effects:
        """Reports the subscription once, when all of its requests are answered: not again when they are repeated."""
        own = self.own[subscription]
        if own.waiting or own.lacking or own.active:
            return []
        own.active = True
        return [Active(subscription)]

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
        return self._walks(subscription, self._listed(own, own.version), False, now_ms)

    def _listed(self, own: _Own, version: int) -> list[tuple[Entry, Arc]]:
        """Returns every entry of a subscription, with every arc that it lies on."""
        return [
            (Entry(own.numbers[box], channel, own.text, box, version), arc)
            for box, conjunction in enumerate(self.lists.conjunctions(own.text))
            for channel, arcs in conjunction.arcs.items()
            for arc in arcs
        ]

    def _walks(self, subscription: str, asked: list[tuple[Entry, Arc]], remove: bool, now_ms: int) -> Effects:
        """Asks for walks. All of them are waited for before the first is begun, which may end at this node, at once."""
        first, self._next_request = self._next_request, self._next_request + len(asked)
        stores = [Store(entry, arc, first + at, remove, 0, 0) for at, (entry, arc) in enumerate(asked)]
        self._requests |= {store.request: WalkRequest(subscription, store) for store in stores}
        if subscription in self.own:
            self.own[subscription].waiting |= {store.request for store in stores}
        effects: Effects = []
        for store in stores:
            effects.append(SetTimer(self.options.retry_ms, _StoreAgain(store.request, self.options.retries, 0)))
            effects += self.route(store.arc.start, store, now_ms)
        return effects

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects:
        own = self.own.pop(subscription, None)
        if own is None:
            raise SubscriptionError(f"node {self.id}: there is no subscription {subscription!r} here")
        return self._remove(subscription, own, now_ms)

    def _remove(self, subscription: str, own: _Own, now_ms: int) -> Effects:
        for number in own.numbers:
            self._owner_of.pop(number, None)
        for request in own.waiting:
            self._requests.pop(request, None)
        return self._walks(subscription, self._listed(own, own.version + 1), True, now_ms)

    def _update(self, subscription: str, text: str, now_ms: int) -> Effects:
        """Only the difference of the old arcs and the new is walked (section 3.1.2), if the lists stay the same."""
        own = self.own[subscription]
        told = self._differing(own, text)
        if told is None:
            effects = self._remove(subscription, self.own.pop(subscription), now_ms)
            return [*effects, *self.subscribe(subscription, text, now_ms)]
        own.version, own.text, own.active = own.version + 1, text, False
        asked = [(Entry(own.numbers[box], channel, text, box, own.version), arc) for box, channel, arc in told]
        return self._walks(subscription, asked, False, now_ms) or self._in_place(subscription)

    def _differing(self, own: _Own, text: str) -> list[tuple[int, int, Arc]] | None:
        """Returns (box, channel, arc) for all that an update changes; None if it cannot be told apart."""
        before, after = self.lists.conjunctions(own.text), self.lists.conjunctions(text)
        if own.waiting or own.lacking or [set(box.arcs) for box in before] != [set(box.arcs) for box in after]:
            return None
        found: list[tuple[int, int, Arc]] = []
        for box, conjunction in enumerate(after):
            for channel in conjunction.arcs:
                arcs = self.lists.differing(own.text, text, box, channel)
                if arcs is None:
                    return None
                found += [(box, channel, arc) for arc in arcs]
        return found

    def arrived(self, message: Route, now_ms: int) -> Effects:
        payload = message.payload
        if isinstance(payload, Matched):
            return self._on_matched(payload, message.origin, now_ms)
        return super().arrived(message, now_ms)

    def _on_stored(self, sender: Id, message: Stored, now_ms: int) -> Effects:
        request = self._requests.get(message.request)
        if request is None or not request.report(message, self._mask):
            return []
        del self._requests[message.request]
        self.store_hops = request.hops
        own = self.own.get(request.subscription)
        if own is None or message.request not in own.waiting:
            return []
        own.waiting.discard(message.request)
        return self._in_place(request.subscription)

    def leave(self, now_ms: int) -> Effects:
        effects: Effects = []
        for subscription in list(self.own):
            effects += self.unsubscribe(subscription, now_ms)
        return [*effects, *super().leave(now_ms)]

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

    def _on_told(self, sender: Id, message: SubscriberTold, now_ms: int) -> Effects:
        self._untold.pop((message.subscription, message.event), None)
        return []

    # Time

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        match tag:
            case _StoreAgain():
                return self._store_again(tag, now_ms)
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
                    own.lacking = False
                    effects += self._store_all(name, now_ms)
            return effects
        return super().on_timer(tag, now_ms)

    def _store_again(self, tag: _StoreAgain, now_ms: int) -> Effects:
        """Repeats what has not been reported, if nothing has been for a while; after some times, the next refresh."""
        request = self._requests.get(tag.request)
        if request is None:
            return []
        if request.reports > tag.reports:
            again = tag._replace(left=self.options.retries, reports=request.reports)
            return [SetTimer(self.options.retry_ms, again)]
        if not tag.left:
            del self._requests[tag.request]
            if request.subscription in self.own:
                self.own[request.subscription].waiting.discard(tag.request)
                self.own[request.subscription].lacking = True  # the next refresh tries again
            return []
        effects: Effects = [SetTimer(self.options.retry_ms, tag._replace(left=tag.left - 1))]
        for arc in request.gaps(self._mask) if self.is_member else ():
            effects += self.route(arc.start, request.store._replace(arc=arc), now_ms)
        return effects

    def expire(self, now_ms: int) -> None:
        super().expire(now_ms)
        horizon = now_ms - 3 * self.options.refresh_ms
        self._delivered = {pair: at for pair, at in self._delivered.items() if at >= horizon}

    handlers: ClassVar[Handlers] = {Stored: _on_stored, Collected: _on_collected, SubscriberTold: _on_told}


Adapt = Callable[[Statistics, Ring, OPChordSettings], RingView]


def ring_overlay(adapt: Adapt) -> Overlay[OPChordNode, Lists, OPChordSettings]:
    """Returns the overlay of lists on a ring, where a placement says which lists there are."""

    def ground(content: Content, settings: OPChordSettings) -> Lists:
        return Lists(adapt(content.statistics, Ring(settings.id_bits, (0,)), settings), content)

    def make(kind: type[OPChordNode], start: Start[Lists, OPChordSettings]) -> OPChordNode:
        return kind(start.id, start.ground, start.settings)

    return Overlay(
        OPChordNode,
        make,
        ground,
        seat_members,
        MESSAGES,
        OPChordSettings(ChordSettings(bits=ADDRESS_BITS, all_fingers=False)),
        simulated=OPChordSettings(ChordSettings(bits=24, successors=3, all_fingers=False)),
        least=lambda settings: settings.chord.successors + 1,  # what Zave's proof begins with
        promise=lambda settings: Promise(join_ms=0, leave_ms=0, crashes=1 + settings.copies),
    )


def _adapt(statistics: Statistics, ring: Ring, settings: OPChordSettings) -> RingView:
    return placement.adapt(statistics, partitions=1, ring=ring, jump=settings.jump, empirical=settings.empirical)


OVERLAY = ring_overlay(_adapt)
