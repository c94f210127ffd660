"""BlueDove's matcher: on top of its segments, a queue of events for each dimension, and what it reports of its load."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import ClassVar

from tidings.systems.bluedove.messages import (
    RATE_MAX,
    DimensionLoad,
    LoadReport,
    Match,
    MatchDone,
    MatchedEvent,
    MatchRefused,
    Noted,
)
from tidings.systems.bluedove.segment_node import REPORT, MatcherSettings, SegmentNode
from tidings.systems.bluedove.segment_table import Dimensions
from tidings.systems.protocols.effects import Effects, Event, Handlers, Id, Message, Send, SetTimer, Tag

SERVE = "serve"
MOVED = 0.1  # by which a load has to have changed to be reported
REPEATED = 30  # reports that are left out in a row, at most: a dispatcher may be new, or a report lost
SMOOTHED = 0.1  # the share of the last event in the time that one takes


class MatcherNode(SegmentNode):
    """A node that matches events of its segments, one after the other."""

    def __init__(self, id: Id, random: Random, dimensions: Dimensions, settings: MatcherSettings, about: str) -> None:
        super().__init__(id, random, dimensions, settings, about)
        self.queues: list[deque[Match]] = [deque() for _ in range(dimensions.count)]
        self._busy = False
        self._arrived = [0] * dimensions.count
        self._copy_s = 0.0  # that it takes to match an event with one subscription, as measured
        self._reported: tuple[DimensionLoad, ...] = ()
        self._left_out = 0  # reports since then
        self._untold: dict[str, tuple[Id, set[tuple[str, Id]]]] = {}  # event → its dispatcher, and who was not told yet

    def _on_match(self, sender: Id, message: Match, now_ms: int) -> Effects:
        if not self._holds_all_for(message):
            return self._send_on(sender, message, now_ms)
        self.queues[message.dimension].append(message)
        self._arrived[message.dimension] += 1
        return self._serve_next(now_ms)

    def _holds_all_for(self, message: Match) -> bool:
        segment = self.table.at(message.dimension, self.dimensions.place(message.event, message.dimension))
        return segment is not None and segment.owner == self.id and segment.ready

    def _send_on(self, sender: Id, message: Match, now_ms: int) -> Effects:
        event, dimension, dispatcher = message
        segment = self.table.at(dimension, self.dimensions.place(event, dimension))
        if segment is not None and segment.owner != self.id and segment.ready and segment.owner != sender:
            return [Send(segment.owner, message)]  # it has another owner since
        return self._answer(dispatcher, MatchRefused(event.id, dimension, self.table.along(dimension)), now_ms)

    def _serve_next(self, now_ms: int) -> Effects:
        """Begin with the next event: the longest queue first."""
        if self._busy:
            return []
        dimension = max(range(self.dimensions.count), key=lambda d: len(self.queues[d]))
        if not self.queues[dimension]:
            return []
        is_measured = self.matching.clock is not None  # then messages come in between, and wait
        takes_ms = round(self.matching.service_ms(len(self.sets[dimension])))
        if takes_ms > 0 or is_measured:
            self._busy = True
            return [SetTimer(takes_ms, (SERVE, dimension))]
        return self._serve(dimension, now_ms)

    def _serve(self, dimension: int, now_ms: int) -> Effects:
        self._busy = False
        message = self.queues[dimension].popleft()
        if not self._holds_all_for(message):  # the segment changed hands while the event was waiting
            return [*self._send_on(self.id, message, now_ms), *self._serve_next(now_ms)]
        event, _, dispatcher = message
        told = self._matches(event, dimension)
        effects: Effects = []
        if told:
            self._untold[event.id] = (dispatcher, told)
            for subscription, owner in sorted(told):
                effects += self._answer(owner, MatchedEvent(subscription, event), now_ms)
        else:
            effects += self._answer(dispatcher, MatchDone(event.id), now_ms)
        return [*effects, *self._serve_next(now_ms)]

    def _matches(self, event: Event, dimension: int) -> set[tuple[str, Id]]:
        clock, held, content = self.matching.clock, self.sets[dimension], self.dimensions.content
        began_s = clock() if clock is not None else 0.0
        record = content.record(event)
        present = {self.id, *self.others()}
        found = {
            key for key, copy in held.items() if key[1] in present and content.interest(copy.text).holds(record)
        }  # fmt: skip
        if clock is not None:
            taken_s = (clock() - began_s) / (len(held) + 1)
            self._copy_s = self._copy_s + SMOOTHED * (taken_s - self._copy_s) if self._copy_s else taken_s
        return found

    def rate(self, dimension: int) -> float:
        """μ: how many events it could match in a second along a dimension, with what it holds there now."""
        held = len(self.sets[dimension])
        takes_s = self.matching.service_ms(held) / 1_000 + self._copy_s * (held + 1)
        return min(RATE_MAX, 1 / takes_s) if takes_s > 0 else RATE_MAX

    def _on_noted(self, sender: Id, message: Noted, now_ms: int) -> Effects:
        return self._tick_off(message.event, (message.subscription, sender), now_ms)

    def _tick_off(self, event: str, key: tuple[str, Id], now_ms: int) -> Effects:
        dispatcher, waiting = self._untold.get(event, (self.id, {key}))
        waiting.discard(key)
        if waiting or event not in self._untold:
            return []
        del self._untold[event]
        return self._answer(dispatcher, MatchDone(event), now_ms)

    def dispatchers(self) -> list[Id]:
        """Other nodes that are dispatchers."""
        return [id for id in self.others() if "dispatcher" in self.members[id].about]

    @property
    def is_matcher(self) -> bool:
        return "matcher" in self.members[self.id].about

    def _report(self, now_ms: int) -> Effects:
        """λ, μ, q and the sizes of the sets, to the dispatchers, if they have moved (section IV-C)."""
        if not self.is_matcher:
            return []
        seconds = self.matching.report_ms / 1_000
        load = tuple(
            DimensionLoad(len(self.sets[d]), len(self.queues[d]), self._arrived[d] / seconds, self.rate(d))
            for d in range(self.dimensions.count)
        )
        self._arrived = [0] * self.dimensions.count
        report = LoadReport(load)
        effects = self.load_reported(report, now_ms)
        self._left_out += 1
        if not _moved(self._reported, load) and self._left_out < REPEATED:
            return effects
        self._reported, self._left_out = load, 0
        return [*effects, *(Send(id, report) for id in self.dispatchers())]

    def load_reported(self, report: LoadReport, now_ms: int) -> Effects:
        """This node's own load: it needs no message."""
        return []

    def met(self, id: Id, now_ms: int) -> Effects:
        effects = super().met(id, now_ms)
        if self._reported and "dispatcher" in self.members[id].about:
            effects.append(Send(id, LoadReport(self._reported)))
        return effects

    def parted(self, id: Id, now_ms: int) -> Effects:
        effects: Effects = []
        for event, (_, waiting) in list(self._untold.items()):
            for key in [key for key in waiting if key[1] == id]:
                effects += self._tick_off(event, key, now_ms)
        return [*super().parted(id, now_ms), *effects]

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        match tag:
            case (str(kind), int(dimension)) if kind == SERVE:
                return self._serve(dimension, now_ms)
        effects = super().on_timer(tag, now_ms)
        return [*self._report(now_ms), *effects] if tag == REPORT else effects

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        match message:
            case MatchedEvent():  # its node is gone, which will turn out, or cut off: then the event comes again
                return []
            case Match(event, dimension, dispatcher):
                return self._answer(dispatcher, MatchRefused(event.id, dimension, ()), now_ms)
        return super().on_undelivered(to, message, now_ms)

    handlers: ClassVar[Handlers] = {Match: _on_match, Noted: _on_noted}


def _moved(before: tuple[tuple[float, ...], ...], now: tuple[tuple[float, ...], ...]) -> bool:
    if not before:
        return True
    pairs = ((a, b) for old, new in zip(before, now, strict=True) for a, b in zip(old, new, strict=True))
    return any(abs(a - b) > MOVED * max(abs(a), 1e-9) for a, b in pairs)
