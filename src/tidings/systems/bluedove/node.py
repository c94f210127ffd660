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
from functools import lru_cache
from random import Random
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from tidings.errors import DomainError, SubscriptionError
from tidings.model.domain import path_text
from tidings.systems.bluedove import placement
from tidings.systems.bluedove.matcher_node import MatcherNode
from tidings.systems.bluedove.messages import (
    MESSAGES,
    Admit,
    CopiesTaken,
    Copy,
    CopyPlaced,
    CopyRemoved,
    LoadReport,
    Match,
    MatchDone,
    MatchedEvent,
    MatchRefused,
    Noted,
    PlaceCopy,
    RemoveCopy,
    Split,
    TableNews,
)
from tidings.systems.bluedove.placement import Load, Policy, costs_of
from tidings.systems.bluedove.segment_node import MatcherSettings
from tidings.systems.bluedove.segment_table import BEGINNING, Dimensions, Edge
from tidings.systems.overlay import MemoryLog, Overlay, PublicationLog, Start
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import (
    MAX_AHEAD_MS,
    Active,
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
from tidings.systems.protocols.ring_ids import ADDRESS_BITS, hashed

REFRESH, AGAIN = "refresh", "again"
SATURATED = 4  # reports in a row in which a queue has grown


class BlueDoveSettings(NamedTuple):
    matcher: MatcherSettings = MatcherSettings()
    policy: Policy = "adaptive"
    role: Literal["dispatcher", "matcher", "both"] = "both"
    log: bool = True  # False: what a dispatcher has published is gone with it
    retry_ms: int = 1_000
    patience_ms: int = 3_000  # until an event that a matcher has not done is sent to another
    refresh_ms: int = 8_000
    suspect_ms: int = 3_000  # for how long a matcher that could not be reached is passed over
    remembered_ms: int = 60_000
    queued: bool = False  # keep notifications until the subscriber polls
    saturated_queue: int = 20
    grow_pause_ms: int = 10_000
    id_bits: int = ADDRESS_BITS


class _Own:
    __slots__ = ("active", "holders", "placed", "text", "version")

    def __init__(self, text: str, version: int) -> None:
        self.text = text
        self.version = version
        self.placed: set[tuple[int, Id]] = set()  # (dimension, matcher) that have answered
        self.holders: set[Id] = set()  # everybody who may have a copy
        self.active = False


class _Sending:
    __slots__ = ("event", "tried", "waiting_for")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.tried: set[tuple[int, Id]] = set()
        self.waiting_for: Id | None = None


class _SendAgain(NamedTuple):
    event: str


class BlueDoveNode(MatcherNode):
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
        super().__init__(id, random, dimensions, settings.matcher, ",".join(roles))
        self.options = settings
        self.roles = roles
        self.log: PublicationLog = log if log is not None else MemoryLog()
        self.own: dict[str, _Own] = {}
        self._removing: dict[tuple[str, int], set[Id]] = {}  # subscription, version → who has not answered
        self._sending: dict[str, _Sending] = {}
        self._suspects: dict[Id, int] = {}
        self.loads: dict[Id, tuple[LoadReport, int]] = {}  # and when it came
        self._growing: dict[Id, tuple[int, int]] = {}  # a matcher's queue, and how often in a row it has grown
        self._grown_ms = -(1 << 30)
        self._delivered: dict[tuple[str, str], int] = {}
        self.mailboxes: dict[str, list[Event]] = {}
        self._versions = 0
        self._wanted_by: dict[str, tuple[int, set[tuple[int, Id]]]] = {}  # filter → changes of the table, owners

    @property
    def is_matcher(self) -> bool:
        return "matcher" in self.roles

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
        timers: Effects = [SetTimer(self.options.refresh_ms, REFRESH), SetTimer(self.options.retry_ms, AGAIN)]
        return [*super().start(contact, now_ms), *timers, *self.matcher_timers()]

    def admitted(self, by: Id, now_ms: int) -> Effects:
        return [Send(by, Admit())] if self.is_matcher else []

    def leave(self, now_ms: int) -> Effects:
        effects: Effects = []
        for subscription in list(self.own):
            effects += self.unsubscribe(subscription, now_ms)
        return [*effects, *self.hand_all_over(), *super().leave(now_ms)]

    def _on_admit(self, sender: Id, message: Admit, now_ms: int) -> Effects:
        """Of each dimension the most loaded segment's owner gives the newcomer a part (section IV-E)."""
        effects: Effects = [Send(sender, TableNews(self.table.state()))]
        for dimension in range(self.dimensions.count):
            owners = {s.owner for s in self.table.segments(dimension) if s.ready and s.owner != sender}
            if owners:
                most = max(sorted(owners), key=lambda owner: self._size(owner, dimension))
                effects += self._answer(most, Split(dimension, sender), now_ms)
        return effects

    def _size(self, matcher: Id, dimension: int) -> int:
        if matcher == self.id:
            return len(self.sets[dimension])
        known = self.loads.get(matcher)
        return known[0].dimensions[dimension][0] if known is not None else 0

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        if isinstance(part, Copy) and part.version > (now_ms + MAX_AHEAD_MS) * 1_000:
            raise MessageError("message: Copy is of a time to come")

    # Subscriptions

    def catalogue(self) -> dict[tuple[str, Id], Copy]:
        return {(name, self.id): self._copy(name, own) for name, own in self.own.items()}

    def _copy(self, name: str, own: _Own) -> Copy:
        return Copy(name, self.id, own.text, own.version)

    def subscribe(self, subscription: str, text: str, now_ms: int) -> Effects:
        self.dimensions.spans(text)  # a filter that cannot be read is refused before anything changes
        effects = self.unsubscribe(subscription, now_ms) if subscription in self.own else []
        self._versions += 1
        own = self.own[subscription] = _Own(text, now_ms * 1_000 + self._versions % 1_000)
        return [*effects, *self._place(subscription, own, now_ms)]

    def _wanted(self, text: str) -> set[tuple[int, Id]]:
        """(dimension, matcher) for every owner of a segment that the filter overlaps, and more than one matcher."""
        changes, wanted = self._wanted_by.get(text, (-1, set()))
        if changes != self.table.changes:
            wanted = {
                (dimension, segment.owner)
                for dimension, spans in enumerate(self.dimensions.spans(text))
                for segment in self.table.overlapping(dimension, spans)
            }
            if len({matcher for _, matcher in wanted}) == 1:
                wanted |= self._neighbours_of(next(iter(wanted))[1])
            self._wanted_by[text] = (self.table.changes, wanted)
        return wanted

    def _neighbours_of(self, matcher: Id) -> set[tuple[int, Id]]:
        """Along each dimension the clockwise neighbour of a matcher: for what would have no copy elsewhere (III-A)."""
        found = set()
        for dimension in range(self.dimensions.count):
            owners = [segment.owner for segment in self.table.segments(dimension)]
            at = len(owners) - 1 - owners[::-1].index(matcher) if matcher in owners else -1
            neighbour = owners[(at + 1) % len(owners)]
            if neighbour != matcher:
                found.add((dimension, neighbour))
        return found

    def _place(self, subscription: str, own: _Own, now_ms: int) -> Effects:
        effects: Effects = []
        copy = self._copy(subscription, own)
        for dimension, matcher in sorted(self._wanted(own.text) - own.placed):
            own.holders.add(matcher)
            effects += self._answer(matcher, PlaceCopy(dimension, copy), now_ms)
        return effects

    def _on_placed(self, sender: Id, message: CopyPlaced, now_ms: int) -> Effects:
        effects = self.merge_part(message.edges, now_ms)
        own = self.own.get(message.subscription)
        if own is None or own.version != message.version:  # the removal may have been there before the copy
            return [*effects, *self._remove(message.subscription, message.version, {sender}, now_ms)]
        own.placed.add((message.dimension, sender))
        lacking = self._wanted(own.text) - own.placed
        if not lacking and not own.active:
            own.active = True
            effects.append(Active(message.subscription))
        return effects

    def _on_taken(self, sender: Id, message: CopiesTaken, now_ms: int) -> Effects:
        effects: Effects = []
        for subscription, version in message.copies:
            own = self.own.get(subscription)
            if own is not None and own.version == version:
                own.holders.add(sender)
            else:
                effects += self._remove(subscription, version, {sender}, now_ms)
        return effects

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects:
        own = self.own.pop(subscription, None)
        if own is None:
            raise SubscriptionError(f"node {self.id}: there is no subscription {subscription!r} here")
        self.mailboxes.pop(subscription, None)
        return self._remove(subscription, own.version, own.holders, now_ms)

    def _remove(self, subscription: str, version: int, holders: set[Id], now_ms: int) -> Effects:
        self._removing.setdefault((subscription, version), set()).update(holders)
        effects: Effects = []
        for matcher in sorted(holders):
            effects += self._answer(matcher, RemoveCopy(subscription, version), now_ms)
        return effects

    def _on_removed(self, sender: Id, message: CopyRemoved, now_ms: int) -> Effects:
        waiting = self._removing.get((message.subscription, message.version), set())
        waiting.discard(sender)
        if not waiting:
            self._removing.pop((message.subscription, message.version), None)
        return []

    def table_changed(self, now_ms: int) -> Effects:
        """Sends our subscriptions to owners of a part that have not said that they hold them."""
        effects: Effects = []
        for subscription, own in self.own.items():
            effects += self._place(subscription, own, now_ms)
        return effects

    # Events

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
        again = SetTimer(self.options.patience_ms, _SendAgain(sending.event.id))
        return [again, *self._answer(matcher, Match(sending.event, dimension, self.id), now_ms)]

    def _best(self, event: Event, pairs: list[tuple[int, Id]], now_ms: int) -> tuple[int, Id]:
        if self.options.policy == "random":
            return pairs[hashed(event.id, 32) % len(pairs)]
        figures, ages = [], []
        for dimension, matcher in pairs:
            report, at = self.loads.get(matcher, (None, now_ms))
            figures.append(report.dimensions[dimension] if report is not None else (0, 0, 0.0, 1.0))
            ages.append((now_ms - at) / 1_000)
        sizes, queued, arrivals, served = (np.array(column, np.float64) for column in zip(*figures, strict=True))
        busy = np.where(served > 0, served, np.where(queued > 0, 0.1, 1_000.0))  # who had nothing to do is quick
        load = Load(sizes, queued, arrivals, busy, float(np.mean(ages)))
        return pairs[int(np.argmin(costs_of(self.options.policy, load)))]

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
        self.loads[sender] = (message, now_ms)
        queue = sum(figures[1] for figures in message.dimensions)
        before, grown = self._growing.get(sender, (0, 0))
        grown = grown + 1 if queue > before else 0
        self._growing[sender] = (queue, grown)
        saturated = grown >= SATURATED and queue >= self.options.saturated_queue
        if not saturated or now_ms - self._grown_ms < self.options.grow_pause_ms:
            return []
        self._grown_ms = now_ms
        return [Grow()]

    def load_reported(self, sender: Id, report: LoadReport) -> Effects:
        self.loads[sender] = (report, self.loads[sender][1] if sender in self.loads else 0)
        return []

    # Time

    def parted(self, id: Id, now_ms: int) -> Effects:
        self.loads.pop(id, None)
        for own in self.own.values():
            own.placed = {pair for pair in own.placed if pair[1] != id}
            own.holders.discard(id)
        return super().parted(id, now_ms)

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if isinstance(tag, _SendAgain):
            sending = self._sending.get(tag.event)
            if sending is None:
                return []
            return self._forward(sending, now_ms) if sending.waiting_for is not None else []
        if tag == AGAIN:
            return [*self._again(now_ms), SetTimer(self.options.retry_ms, AGAIN)]
        if tag == REFRESH:
            effects: Effects = [SetTimer(self.options.refresh_ms, REFRESH)]
            for subscription, own in self.own.items():
                own.placed = set()
                effects += self._place(subscription, own, now_ms)
            self._wanted_by.clear()
            horizon = now_ms - self.options.remembered_ms
            self._delivered = {key: at for key, at in self._delivered.items() if at >= horizon}
            return effects
        return super().on_timer(tag, now_ms)

    def _again(self, now_ms: int) -> Effects:
        """What was not answered: placements, removals, and events that no candidate could take."""
        effects = self.table_changed(now_ms)
        present = set(self.others())
        self._removing = {key: waiting & present for key, waiting in self._removing.items() if waiting & present}
        for (subscription, version), waiting in self._removing.items():
            effects += [Send(matcher, RemoveCopy(subscription, version)) for matcher in sorted(waiting)]
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
        CopyPlaced: _on_placed,
        CopiesTaken: _on_taken,
        CopyRemoved: _on_removed,
        MatchRefused: _on_refused,
        MatchDone: _on_done,
        MatchedEvent: _on_notification,
        LoadReport: _on_load,
        Admit: _on_admit,
    }


def _ground(content: Content, settings: BlueDoveSettings) -> Dimensions:
    statistics = content.statistics
    able = [path for path in statistics.paths if content.domain.leaves[path].name not in ("string", "boolean")]
    paths = tuple(sorted(able, key=lambda path: not statistics.along(path).is_known))
    if not paths:
        raise DomainError(f"domain '{content.domain.name}': BlueDove needs an attribute of numbers or times")
    return Dimensions(placement.undivided(paths[: placement.DIMENSIONS_MAX]), content)


def _make(kind: type[BlueDoveNode], start: Start[Dimensions, BlueDoveSettings]) -> BlueDoveNode:
    settings = start.settings
    roles = ("dispatcher", "matcher") if settings.role == "both" else (settings.role,)
    log = start.log if settings.log else None
    return kind(start.id, start.random, start.ground, settings, roles=roles, log=log)


def seat(nodes: Sequence[BlueDoveNode]) -> None:
    """Seats nodes that know each other, with the segments of a View for as many matchers."""
    dimensions = nodes[0].dimensions
    owners = sorted(node.id for node in nodes if node.is_matcher)
    edges = _edges(dimensions, len(owners))
    for node in nodes:
        node.seat(nodes)
        node.seat_segments([edge._replace(owner=owners[edge.owner]) for edge in edges])


@lru_cache
def _edges(dimensions: Dimensions, matchers: int) -> list[Edge]:
    """Returns the segments of a View as nodes know them, each owned by a number."""
    names = [path_text(path) for path in dimensions.paths]
    statistics = dimensions.content.statistics
    view = placement.adapt(
        statistics, partitions=matchers, dimensions=names, segments=max(2, matchers), matchers=matchers
    )
    found = []
    for dimension, path in enumerate(dimensions.paths):
        at = view.paths.index(path)
        assigned = view.assignment[view.bases[at] : view.bases[at + 1]].tolist()
        lows = (BEGINNING, *view.edges[at].tolist())
        found += [Edge(dimension, low, 0, owner, True, False) for low, owner in zip(lows, assigned, strict=True)]
    return found


OVERLAY = Overlay(
    BlueDoveNode,
    _make,
    _ground,
    seat,
    MESSAGES,
    BlueDoveSettings(),
    simulated=BlueDoveSettings(MatcherSettings(GossipSettings(period_ms=300)), id_bits=24),
)
