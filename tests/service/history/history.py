"""Records put in order for the questions that invariants ask: which events, which filters, where in the log.

Nothing is taken from the service on trust that real time can contradict. If a request was answered before another
was sent, it happened before it; what a subscription's filter was at a position follows from that and from the
positions that were answered, and where neither says, every filter that may have held is possible.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .judge import Predicate, holds
from .records import (
    Ack,
    Change,
    ClockBehind,
    Dead,
    DeadFor,
    Delivery,
    Fault,
    Limit,
    LogEnds,
    Logged,
    Opened,
    Outcome,
    Phase,
    Publish,
    Record,
    Sample,
    Unserved,
)

UNNOTICED_SECONDS = 5.0  # in which a service may still write to a stream that its reader has closed
Key = tuple[str, str, str, str]  # tenant, domain, source and id of an event


@dataclass
class Event:
    """An event, over all attempts to publish it."""

    key: Key
    attempts: list[Publish] = field(default_factory=list)

    @property
    def first(self) -> Publish:
        return self.attempts[0]

    @property
    def data(self) -> dict[str, Any]:
        return self.first.event

    @cached_property
    def acked(self) -> Publish | None:
        return next((attempt for attempt in self.attempts if attempt.outcome == "acked"), None)

    @property
    def position(self) -> int | None:
        return None if self.acked is None else self.acked.position

    @cached_property
    def outcome(self) -> Outcome:
        outcomes = {attempt.outcome for attempt in self.attempts}
        return "acked" if "acked" in outcomes else "unknown" if "unknown" in outcomes else "refused"

    def __str__(self) -> str:
        first = self.first
        return f"{first.publisher}#{first.sequence} ({first.tenant}.{first.domain} {first.source} {first.id})"


@dataclass(frozen=True)
class Stage:
    """A filter of a subscription (None: it is inactive), from a position between two bounds on."""

    predicate: Predicate | None
    text: str
    lowest: float
    highest: float  # infinite where it may never have begun


@dataclass
class Subscription:
    id: str
    tenant: str
    domain: str
    changes: list[Change] = field(default_factory=list)  # as they were sent
    stages: list[Stage] = field(default_factory=list)

    def at(self, position: int) -> list[Stage]:
        """The stages that it may have been in at a position."""
        possible: list[Stage] = []
        for stage in self.stages:
            if stage.highest <= position:
                possible = []
            if stage.lowest <= position:
                possible.append(stage)
        return possible

    def must_get(self, position: int, data: dict[str, Any]) -> bool:
        return all(stage.predicate is not None and holds(stage.predicate, data) for stage in self.at(position))

    def may_get(self, position: int, data: dict[str, Any]) -> bool:
        return any(stage.predicate is not None and holds(stage.predicate, data) for stage in self.at(position))

    @cached_property
    def is_read_to_the_end(self) -> bool:
        """Whether its subscriber can have got all: it is neither gone nor paused."""
        last: dict[str, Change] = {}
        for change in self.changes:
            if change.outcome != "refused":
                last[change.action] = change
        paused = "pause" in last and ("resume" not in last or last["resume"].sent < last["pause"].sent)
        created = any(change.action == "create" and change.outcome == "acked" for change in self.changes)
        return created and not paused and "delete" not in last and "disable" not in last

    # Positions between two streams that acknowledge what their socket takes: what the first of them was sent and
    # its reader did not get is lost. Set when deliveries are known.
    between_streams: list[tuple[int, float]] = field(default_factory=list)

    def may_be_lost(self, position: int) -> bool:
        return any(last < position < first for last, first in self.between_streams)

    @cached_property
    def pauses(self) -> list[tuple[float, float]]:
        """From when to when it was surely paused."""
        found: list[tuple[float, float]] = []
        began: float | None = None
        for change in self.changes:
            if change.action == "pause" and change.outcome == "acked" and began is None:
                began = change.answered
            elif change.action == "resume" and change.outcome != "refused" and began is not None:
                found.append((began, change.sent))
                began = None
        return found if began is None else [*found, (began, math.inf)]

    @cached_property
    def deleted(self) -> float:
        """When it was surely gone."""
        gone = [change.answered for change in self.changes if change.action == "delete" and change.outcome == "acked"]
        return min((answered for answered in gone if answered is not None), default=math.inf)


class History:
    """Everything that was written down about one run."""

    def __init__(self, records: Iterable[Record]) -> None:
        by_kind: dict[type, list[Any]] = defaultdict(list)
        for record in records:
            by_kind[type(record)].append(record)
        self.deliveries: list[Delivery] = sorted(by_kind[Delivery], key=lambda one: one.received)
        self.opened: list[Opened] = sorted(by_kind[Opened], key=lambda one: one.asked)
        self.acks: list[Ack] = by_kind[Ack]
        self.dead: list[Dead] = by_kind[Dead]
        self.dead_for: list[DeadFor] = by_kind[DeadFor]
        self.logged: list[Logged] = sorted(by_kind[Logged], key=lambda one: one.position)
        self.log_ends: list[LogEnds] = by_kind[LogEnds]
        self.faults: list[Fault] = by_kind[Fault]
        self.clock_behind: list[ClockBehind] = by_kind[ClockBehind]
        self.phases: list[Phase] = by_kind[Phase]
        self.unserved: list[Unserved] = by_kind[Unserved]
        self.samples: list[Sample] = by_kind[Sample]
        self.limits: list[Limit] = by_kind[Limit]
        self.events = self._events(by_kind[Publish])
        self.acked = [event for event in self.events.values() if event.position is not None]
        self.moments = Moments(self.acked, self.clock_behind)
        self.subscriptions = self._subscriptions(by_kind[Change])
        self._find_gaps_between_streams()

    @staticmethod
    def _events(attempts: Iterable[Publish]) -> dict[Key, Event]:
        events: dict[Key, Event] = {}
        for attempt in sorted(attempts, key=lambda one: one.sent):
            key = (attempt.tenant, attempt.domain, attempt.source, attempt.id)
            events.setdefault(key, Event(key)).attempts.append(attempt)
        return events

    def _subscriptions(self, changes: Iterable[Change]) -> dict[str, Subscription]:
        found: dict[str, Subscription] = {}
        for change in sorted(changes, key=lambda one: one.sent):
            known = found.setdefault(
                change.subscription, Subscription(change.subscription, change.tenant, change.domain)
            )
            known.changes.append(change)
        for subscription in found.values():
            subscription.stages = [Stage(None, "inactive", -math.inf, -math.inf)]
            subscription.stages += filter(None, map(self._stage, subscription.changes))
        return found

    def _find_gaps_between_streams(self) -> None:
        """What was published before a stream was opened may have been written to the one before it."""
        got: dict[str, list[int]] = defaultdict(list)  # by request
        for one in self.deliveries:
            if one.channel == "auto":
                got[one.request].append(one.position)
        last: dict[str, int] = {}
        for stream in self.opened:
            positions = got[stream.request]
            if stream.subscription in last and stream.subscription in self.subscriptions:
                asked = stream.asked + UNNOTICED_SECONDS
                first = positions[0] if positions else self.moments.bounds(asked, asked)[1]
                self.subscriptions[stream.subscription].between_streams.append((last[stream.subscription], first))
            last[stream.subscription] = positions[-1] if positions else last.get(stream.subscription, -1)

    def _stage(self, change: Change) -> Stage | None:
        if change.outcome == "refused" or change.action not in ("create", "change", "delete", "expire"):
            return None
        if change.action in ("delete", "expire"):
            predicate, text = None, "inactive"
        else:
            assert change.predicate is not None, f"{change.subscription}: the workload wrote no predicate down"
            predicate, text = change.predicate, change.filter or ""
        if change.replay_from is not None and change.outcome == "acked":
            return Stage(predicate, text, change.replay_from, change.replay_from)
        if change.outcome == "acked" and change.filter_from is not None:
            return Stage(predicate, text, change.filter_from, change.filter_from)
        lowest, highest = self.moments.bounds(change.sent, change.answered)
        return Stage(predicate, text, lowest, math.inf if change.outcome == "unknown" else highest)


class Moments:
    """Where in the log something that lies between two moments can be."""

    def __init__(self, acked: Sequence[Event], clock_behind: Sequence[ClockBehind] = ()) -> None:
        self._clock_behind = clock_behind
        done = sorted((one.acked.answered, one.position) for one in acked if one.acked and one.acked.answered)
        begun = sorted((one.first.sent, one.position) for one in acked)
        self._answered = [moment for moment, _ in done]
        self._sent = [moment for moment, _ in begun]
        self._highest_before = _running(max, [position for _, position in done if position is not None])
        lowest_after = _running(min, [position for _, position in reversed(begun) if position is not None])
        self._lowest_from = lowest_after[::-1]

    def bounds(self, sent: float, answered: float | None) -> tuple[float, float]:
        """The least and the greatest end of the log that a request can have seen."""
        before = bisect.bisect_left(self._answered, sent)
        lowest = self._highest_before[before - 1] + 1 if before else 0
        if answered is None:
            return lowest, math.inf
        after = bisect.bisect_right(self._sent, answered)
        return lowest, self._lowest_from[after] if after < len(self._lowest_from) else math.inf

    def begins(self, since: float) -> float:
        """The least position at which a history since a moment may begin."""
        for behind in self._clock_behind:
            following = bisect.bisect_left(self._sent, behind.ended)
            if following == len(self._sent) or self._sent[following] >= since:
                since = min(since, behind.began)
        return self.bounds(since, None)[0]


def _running(choose: Any, values: Sequence[int]) -> list[int]:
    found: list[int] = []
    for value in values:
        found.append(value if not found else choose(found[-1], value))
    return found
