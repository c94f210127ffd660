"""A member of a Chord ring that keeps lists of subscriptions, and looks events up in them.

A node's list holds many values, which the paper passes over: so each entry is checked against the event's own value
there. A node that has just joined passes questions on until it has been handed its lists.

A walk over many nodes is divided: a node hands what lies beyond one of its fingers to that finger, and goes on with
what is before it. So the parts are walked at the same time, by one message a node as before, and each is reported to
the node that asked for it, which repeats only what has not been reported.

    asked for       [──────────────────────────────────────────]
    at its start     ●→●→●→●→●┊        ┌─────────┬──────────── handed to fingers
    reported        [────────]┊        ●→●→●→●→●→●→●   ●→●→●→●→●
"""

from __future__ import annotations

from typing import ClassVar

from tidings.systems.geometry.node_ring import Arc
from tidings.systems.opchord.list_holder import ListHolder
from tidings.systems.opchord.messages import (
    Collect,
    Collected,
    CollectFor,
    Copies,
    Entry,
    Matched,
    Store,
    Stored,
    SubscriberTold,
    Walk,
)
from tidings.systems.protocols.content import Record
from tidings.systems.protocols.effects import Effects, Event, Handlers, Id, Message, Send
from tidings.systems.protocols.message_codec import MessageError
from tidings.systems.protocols.ring import Route


class ListKeeper(ListHolder):
    """A member of the ring that keeps lists. What it does for clients is a subclass's."""

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
                return self._walk(payload._replace(hops=payload.hops + message.hops), message.origin, now_ms)
            case Collect():
                return self._on_collect(payload, message.origin, now_ms)
        return []

    # Walks

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
            return [*effects, *self._reply(origin, Stored(store.request, store.arc, store.hops), now_ms)]
        if store.steps >= self.options.stretch:
            done = Stored(store.request, Arc(start, covered), store.hops)
            effects += self._reply(origin, done, now_ms)
            store = store._replace(arc=Arc(self.id, length - covered), hops=0, steps=0)
        for part in self._divided(store):
            if part.arc.start == store.arc.start:
                store = part
            else:  # a finger's, which is asked directly; if it is gone, the message finds who owns its place
                effects.append(Send(part.arc.start, Route(part.arc.start, origin, 1, True, part)))
        jump = self._jump(store)
        store = store._replace(steps=store.steps + 1)
        if jump is not None:
            return [*effects, *self._on_route(self.id, Route(jump, origin, 0, False, store), now_ms)]
        return [*effects, Send(head, Walk(store._replace(hops=store.hops + 1), origin, self.id))]

    def _divided(self, store: Store) -> list[Store]:
        """Returns the parts of a walk: that of each finger which is asked to begin one there, and one's own."""
        start, length = store.arc
        parts: list[Store] = []
        while True:
            covered = (self.id - start) & self._mask
            left = length - covered
            finger = self._finger_about(left // 2, left)
            if finger is None or self._steps(store.entry.channel, left) <= 2 * self.options.stretch:
                return [*parts, store._replace(arc=Arc(start, length))]
            near = covered + ((finger - self.id) & self._mask)
            parts.append(store._replace(arc=Arc(finger, length - near), hops=0, steps=0))
            length = near

    def _finger_about(self, ahead: int, most: int) -> Id | None:
        """Returns the known node next to this distance; None if it is in the successor list, or too far."""
        nearest = (self.successors[-1] - self.id) & self._mask
        known = [far for far in self._distances if nearest < far < most]
        return (self.id + min(known, key=lambda far: abs(far - ahead))) & self._mask if known else None

    def _steps(self, channel: int, ahead: int) -> float:
        """Returns how far it is to what lies so far ahead: in nodes, or in values where those are fewer."""
        nodes = ahead / self._spacing
        values = self.lists.values_between(channel, self.id, (self.id + ahead) & self._mask)
        return nodes if values is None else min(nodes, values)

    @property
    def _spacing(self) -> float:
        """From a node to the next one, as the successor list lets expect."""
        return max(1, (self.successors[-1] - self.id) & self._mask) / len(self.successors)

    def _jump(self, store: Store) -> Id | None:
        """The next value's position, where so many nodes lie before it that a lookup is shorter (section 4.3)."""
        start, length = store.arc
        position = self.lists.next_value(store.entry.channel, self.id)
        if position is None:
            return None
        covered = (self.id - start) & self._mask
        ahead = min((position - self.id) & self._mask, length - covered)
        return (self.id + ahead) & self._mask if ahead > self.options.jump * self._spacing else None

    # Questions

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

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        effects = super().on_undelivered(to, message, now_ms)
        if isinstance(message, Walk) and self.is_member:
            return [*effects, *self._on_walk(self.id, message, now_ms)]
        if isinstance(message, CollectFor) and self.is_member:
            return [*effects, *self._on_collect_for(self.id, message, now_ms)]
        return effects

    handlers: ClassVar[Handlers] = {Walk: _on_walk, CollectFor: _on_collect_for}
