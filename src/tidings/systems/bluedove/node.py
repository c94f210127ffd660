"""BlueDove (Li et al., "A Scalable and Elastic Publish/Subscribe Service", 2011): dispatchers in front of matchers.

A dispatcher sends a subscription to every matcher that it overlaps, once along each dimension, and an event to one
of the matchers that own its values: the one that should be done first, by one of four policies. Everybody is one
hop from everybody (`tidings.systems.protocols.gossip`). A node can be a dispatcher, a matcher, or both.

An event stays in its dispatcher's log until it is matched and every subscriber has been told; if a matcher fails,
the next candidate gets it. So nothing is lost by a crash, which is the paper's future work; what comes twice the
subscriber's dispatcher delivers once.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar, NamedTuple

import numpy as np

from tidings.errors import DomainError, SubscriptionError
from tidings.systems.bluedove.dispatcher_node import AGAIN, REFRESH, BlueDoveSettings, DispatcherNode
from tidings.systems.bluedove.load_watch import LoadWatch
from tidings.systems.bluedove.messages import (
    MESSAGES,
    Admit,
    LoadReport,
    Match,
    MatchDone,
    MatchedEvent,
    MatchRefused,
    Noted,
    Split,
    TableNews,
)
from tidings.systems.bluedove.placement import undivided
from tidings.systems.bluedove.segment_node import MatcherSettings
from tidings.systems.bluedove.segment_table import BEGINNING, Dimensions, Edge, HashedLine
from tidings.systems.overlay import MemoryLog, Overlay, PublicationLog, Start
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import (
    Deliver,
    Effects,
    Event,
    Grow,
    Handlers,
    Id,
    Message,
    Send,
    SetTimer,
    Tag,
)
from tidings.systems.protocols.gossip import GossipSettings
from tidings.systems.protocols.message_codec import MessageError
from tidings.systems.protocols.ring_ids import hashed

MAX_PATIENCE_MS = 600_000  # with an event that waits in a long queue
ADMIT_DOUBLED = 5  # times that the pause between two requests for segments grows


class _Sending:
    __slots__ = ("event", "tried", "waiting_for")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.tried: set[tuple[int, Id]] = set()
        self.waiting_for: Id | None = None


class _SendAgain(NamedTuple):
    event: str


class BlueDoveNode(DispatcherNode):
    """A dispatcher, a matcher, or both."""

    def __init__(
        self,
        id: Id,
        random: Random,
        dimensions: Dimensions,
        settings: BlueDoveSettings = BlueDoveSettings(),  # noqa: B008
        *,
        roles: tuple[str, ...] = ("dispatcher", "matcher"),
        log: PublicationLog | None = None,
    ) -> None:
        super().__init__(id, random, dimensions, settings, ",".join(roles))
        self.roles = roles
        self.log: PublicationLog = log if log is not None else MemoryLog()
        self._sending: dict[str, _Sending] = {}
        self._suspects: dict[Id, int] = {}
        self.watch = LoadWatch(
            saturated_queue=settings.saturated_queue,
            pause_ms=settings.grow_pause_ms,
            patience_ms=settings.grow_patience_ms,
        )
        self._admit_attempts, self._admit_after_ms = 0, 0
        self._delivered: dict[tuple[str, str], int] = {}
        self.mailboxes: dict[str, list[Event]] = {}

    # Beginning and end

    def seat_segments(self, edges: Sequence[Edge]) -> None:
        self.table.merge(edges)

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        if contact is None and not self.table.edges and self.is_matcher:
            self.table.merge(Edge(d, BEGINNING, 0, self.id, True, False) for d in range(self.dimensions.count))
        if contact is None:
            self._complete |= {key for key, edge in self.table.edges.items() if edge.owner == self.id}
        for event in self.log.pending():  # published before a crash, and not done
            self._sending[event.id] = _Sending(event)
        return [*super().start(contact, now_ms), *self.dispatcher_timers(), *self.matcher_timers()]

    def admitted(self, by: Id, now_ms: int) -> Effects:
        return self._ask_for_segments([by], now_ms)

    def _ask_for_segments(self, dispatchers: list[Id], now_ms: int) -> Effects:
        """Along the dimensions in which this matcher has none; again until it has: who gives may be busy."""
        count = self.dimensions.count
        lacking = [d for d in range(count) if all(s.owner != self.id for s in self.table.segments(d))]
        if not lacking or not self.is_matcher or not self.is_member:
            self._admit_attempts = 0
            return []
        if now_ms < self._admit_after_ms or not dispatchers:
            return []
        attempt = self._admit_attempts
        self._admit_attempts += 1
        self._admit_after_ms = now_ms + self.options.admit_ms * 2 ** min(attempt, ADMIT_DOUBLED)
        asked = dispatchers[int(self._random.random() * len(dispatchers))]
        return [Send(asked, Admit(attempt, tuple(lacking)))]

    def leave(self, now_ms: int) -> Effects:
        effects: Effects = []
        for subscription in list(self.own):
            effects += self.unsubscribe(subscription, now_ms)
        return [*effects, *self.hand_all_over(), *super().leave(now_ms)]

    def _on_admit(self, sender: Id, message: Admit, now_ms: int) -> Effects:
        """Of each dimension the most loaded segment's owner gives the newcomer a part (section IV-E)."""
        if not self.table.edges and self.id < min(self.dispatchers(), default=self.id + 1):
            # There was no matcher yet: the first one begins with all, and is ready once it has asked for what there is.
            count = self.dimensions.count
            return self._announce(tuple(Edge(d, BEGINNING, 0, sender, False, False) for d in range(count)), now_ms)
        effects: Effects = [Send(sender, TableNews(self.table.state()))]
        for dimension in message.dimensions:
            owners = {s.owner for s in self.table.segments(dimension) if s.ready and s.owner != sender}
            if owners:
                most_loaded = self.watch.most_loaded(owners, dimension)
                giver = most_loaded[message.attempt % len(most_loaded)]  # the next, if that one could not
                effects += self._answer(giver, Split(dimension, sender), now_ms)
        return effects

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        if isinstance(part, Admit) and max(part.dimensions, default=0) >= self.dimensions.count:
            raise MessageError("message: Admit names a dimension which there is not")

    # Events

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects:
        effects = super().unsubscribe(subscription, now_ms)
        self.mailboxes.pop(subscription, None)
        return effects

    def publish(self, event: Event, now_ms: int) -> Effects:
        self.dimensions.content.record(event)  # refuse what is no event before it is in the log
        self.log.append(event)
        self._sending[event.id] = _Sending(event)
        return self._forward(self._sending[event.id], now_ms)

    def candidates(self, event: Event) -> list[tuple[int, Id]]:
        """(dimension, matcher) for each dimension: any of them holds all that the event satisfies."""
        found = []
        for dimension in range(self.dimensions.count):
            segment = self.table.at(dimension, self.dimensions.place(event, dimension))
            if segment is not None and segment.ready:
                found.append((dimension, segment.owner))
        return found

    def _forward(self, sending: _Sending, now_ms: int) -> Effects:
        """To the best candidate that was not tried, is not suspected; else nothing, until it is tried again."""
        live = {self.id, *self.others()}
        open_ = [
            pair for pair in self.candidates(sending.event)
            if pair not in sending.tried and pair[1] in live and self._suspects.get(pair[1], 0) <= now_ms
        ]  # fmt: skip
        if not open_:
            sending.waiting_for = None
            return []
        dimension, matcher = self._best(sending.event, open_, now_ms)
        sending.tried.add((dimension, matcher))
        sending.waiting_for = matcher
        expected_ms = 1_000 * float(self.watch.costs("adaptive", [(dimension, matcher)], now_ms)[0])
        patience_ms = self.options.patience_ms + round(min(2 * expected_ms, MAX_PATIENCE_MS))
        again = SetTimer(patience_ms, _SendAgain(sending.event.id))
        return [again, *self._answer(matcher, Match(sending.event, dimension, self.id), now_ms)]

    def _best(self, event: Event, pairs: list[tuple[int, Id]], now_ms: int) -> tuple[int, Id]:
        if self.options.policy == "random":
            return pairs[hashed(event.id, 32) % len(pairs)]
        return pairs[int(np.argmin(self.watch.costs(self.options.policy, pairs, now_ms)))]

    def _on_refused(self, sender: Id, message: MatchRefused, now_ms: int) -> Effects:
        effects = self.merge_part(message.edges, now_ms)
        sending = self._sending.get(message.event)
        return [*effects, *self._forward(sending, now_ms)] if sending is not None else effects

    def _on_done(self, sender: Id, message: MatchDone, now_ms: int) -> Effects:
        self._sending.pop(message.event, None)
        self.log.settle(message.event)
        return []

    def _on_notification(self, sender: Id, message: MatchedEvent, now_ms: int) -> Effects:
        subscription, event = message
        effects = self._answer(sender, Noted(subscription, event.id), now_ms)
        key = (subscription, event.id)
        own = self.own.get(subscription)
        content = self.dimensions.content
        if own is None or key in self._delivered or not content.interest(own.text).holds(content.record(event)):
            return effects
        self._delivered[key] = now_ms
        if self.options.queued:
            self.mailboxes.setdefault(subscription, []).append(event)
            return effects
        return [*effects, Deliver(subscription, event)]

    def poll(self, subscription: str, limit: int = 100) -> Effects:
        """What waits for a subscriber who cannot be called (section II-B)."""
        if not self.options.queued:
            raise SubscriptionError("nothing waits to be polled: this node delivers at once; start it with --queued")
        waiting = self.mailboxes.get(subscription, [])
        taken, self.mailboxes[subscription] = waiting[:limit], waiting[limit:]
        return [Deliver(subscription, event) for event in taken]

    # Load

    def _on_load(self, sender: Id, message: LoadReport, now_ms: int) -> Effects:
        """Of all dispatchers, who see the same, the first one asks for another matcher."""
        is_saturated = self.watch.take(sender, message, now_ms)
        if not is_saturated or "dispatcher" not in self.roles or self.id > min(self.dispatchers(), default=self.id):
            return []
        matchers = sum("matcher" in self.members[id].about for id in (self.id, *self.others()))
        return [Grow()] if self.watch.decide_to_grow(matchers, now_ms) else []

    def load_reported(self, report: LoadReport, now_ms: int) -> Effects:
        return self._on_load(self.id, report, now_ms)

    # Time

    def parted(self, id: Id, now_ms: int) -> Effects:
        self.watch.forget(id)
        return super().parted(id, now_ms)

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if isinstance(tag, _SendAgain):
            sending = self._sending.get(tag.event)
            if sending is None:
                return []
            return self._forward(sending, now_ms) if sending.waiting_for is not None else []
        effects = super().on_timer(tag, now_ms)
        if tag == AGAIN:
            asked = self._ask_for_segments(self.dispatchers(), now_ms)
            return [*effects, *self._forward_again(now_ms), *asked]
        if tag == REFRESH:
            horizon = now_ms - self.options.remembered_ms
            self._delivered = {key: at for key, at in self._delivered.items() if at >= horizon}
        return effects

    def _forward_again(self, now_ms: int) -> Effects:
        """Events that no candidate could take."""
        effects: Effects = []
        for sending in list(self._sending.values()):
            if sending.waiting_for is None:
                sending.tried.clear()
                effects += self._forward(sending, now_ms)
        return effects

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        self._suspects[to] = now_ms + self.options.suspect_ms
        if isinstance(message, Match) and message.dispatcher == self.id:
            sending = self._sending.get(message.event.id)
            return self._forward(sending, now_ms) if sending is not None else []
        return super().on_undelivered(to, message, now_ms)

    handlers: ClassVar[Handlers] = {
        MatchRefused: _on_refused,
        MatchDone: _on_done,
        MatchedEvent: _on_notification,
        LoadReport: _on_load,
        Admit: _on_admit,
    }


def _ground(content: Content, settings: BlueDoveSettings) -> Dimensions:
    if settings.full_replication:
        return HashedLine(content)
    statistics = content.statistics
    able = [path for path in statistics.paths if content.domain.leaves[path].name not in ("string", "boolean")]
    paths = tuple(sorted(able, key=lambda path: not statistics.along(path).is_known))
    if not paths:
        raise DomainError(f"domain '{content.domain.name}': BlueDove needs an attribute of numbers or times")
    return Dimensions(undivided(paths[: settings.dimensions]), content)


def _make(kind: type[BlueDoveNode], start: Start[Dimensions, BlueDoveSettings]) -> BlueDoveNode:
    settings = start.settings._replace(matcher=start.settings.matcher._replace(clock=start.clock))
    roles = ("dispatcher", "matcher") if settings.role == "both" else (settings.role,)
    log = start.log if settings.log else None
    return kind(start.id, start.random, start.ground, settings, roles=roles, log=log)


def seat(nodes: Sequence[BlueDoveNode]) -> None:
    """Seats nodes that know each other, with the segments of a View for as many matchers."""
    dimensions = nodes[0].dimensions
    owners = sorted(node.id for node in nodes if node.is_matcher)
    edges = dimensions.divided(len(owners))
    for node in nodes:
        node.seat(nodes)
        node.seat_segments([edge._replace(owner=owners[edge.owner]) for edge in edges])


OVERLAY = Overlay(
    BlueDoveNode,
    _make,
    _ground,
    seat,
    MESSAGES,
    BlueDoveSettings(),
    simulated=BlueDoveSettings(MatcherSettings(GossipSettings(period_ms=300)), id_bits=24),
)
