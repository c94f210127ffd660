"""Judges a run by the oracle: nothing is delivered that should not be, and nothing is missing that a system owes.

sound      a subscription that is notified asked for the event, at the node that delivers it, and is notified once
complete   what a system owes is delivered

Events and subscriptions that satisfy each other are *matches*. *Owed* are those whose subscription was in place when
the event was published, stayed, and whom the system promises the event: probes, which are published when all is quiet,
and of the events before them as many as the system's `Promise` covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tidings.simulator.workload import Pool
from tidings.simulator.world import World
from tidings.systems.overlay import Promise, Violation
from tidings.systems.protocols.effects import Id


@dataclass
class Interested:
    """A subscription's history, as its client knows it."""

    node: Id
    texts: list[tuple[int, str]]  # since when which filter
    until_ms: int | None = None  # when it was given up, or its node went

    @property
    def text(self) -> str:
        return self.texts[-1][1]

    def text_at(self, at_ms: int) -> str | None:
        """Returns the filter at this time; None before the first and after the last."""
        if self.until_ms is not None and self.until_ms <= at_ms:
            return None
        return next((text for since, text in reversed(self.texts) if since <= at_ms), None)


class Publication(NamedTuple):
    at_ms: int
    body: str
    is_probe: bool
    node: Id


class TroubleSpan(NamedTuple):
    """What a run did to its nodes, and from when to when: a join, a leave and a crash take no time."""

    kind: str  # join, leave, crash; cut: messages are lost, or the network is split
    begin_ms: int
    end_ms: int
    node: Id | None = None


class DeliveryCount(NamedTuple):
    matches: int
    owed: int
    delivered: int  # of those owed


class Judge:
    """Knows what clients did, and what a run did to the nodes."""

    def __init__(self, world: World, workload: Pool, promise: Promise) -> None:
        self._world = world
        self._workload = workload
        self._promise = promise
        self.interested: dict[str, Interested] = {}
        self.published: dict[str, Publication] = {}
        self.troubles: list[TroubleSpan] = []

    def trouble(self, kind: str, node: Id | None = None, *, until_ms: int | None = None) -> None:
        """Records what the run does to its nodes now."""
        now = self._world.now_ms
        self.troubles.append(TroubleSpan(kind, now, now if until_ms is None else until_ms, node))

    def is_live(self, subscription: str) -> bool:
        known = self.interested.get(subscription)
        return known is not None and known.until_ms is None and known.node in self._world.nodes

    def judge(self) -> None:
        """Raises `Violation` for what is wrong with the deliveries of a run that is over."""
        self._check_sound()
        told = self._told
        for event, (at, body, _, _) in self.published.items():
            missing = sorted(name for name in self._owed(event) if (name, event) not in told)
            if missing:
                lost = missing[0]
                what = f"event {event} {body}, published at {at} ms, did not reach {lost}: {self.interested[lost].text}"
                raise Violation("Complete", what, self._world.now_ms)
        for name, known in self.interested.items():
            if self.is_live(name) and not self._was_active(name, self._world.now_ms):
                raise Violation("Active", f"{name} never came into place: {known.text}", self._world.now_ms)
        self._check_owed()

    def count(self) -> DeliveryCount:
        owed = {(name, event) for event in self.published for name in self._owed(event)}
        matches = sum(len(self._matches(event)) for event in self.published)
        return DeliveryCount(matches, len(owed), len(owed & self._told))

    @property
    def _told(self) -> set[tuple[str, str]]:
        return {(delivery.subscription, delivery.event) for delivery in self._world.deliveries}

    def _check_sound(self) -> None:
        told: set[tuple[str, str]] = set()
        for at, node, subscription, event in self._world.deliveries:
            known, body = self.interested[subscription], self.published[event].body
            where = f"{subscription} was told of event {event} {body}"
            if (subscription, event) in told:
                raise Violation("Once", f"{where} twice", at)
            told.add((subscription, event))
            if node != known.node:
                raise Violation("Sound", f"{where} by node {node}, and is at {known.node}", at)
            if not any(self._workload.matches(text, body) for _, text in known.texts):
                raise Violation("Sound", f"{where}, and asked for {known.text}", at)
            if known.until_ms is not None and at > known.until_ms:
                raise Violation("Sound", f"{where} after it was given up", at)

    def _check_owed(self) -> None:
        """A run in which probes match and none of them is owed says nothing about the system."""
        probes = [event for event, published in self.published.items() if published.is_probe]
        matching = [(event, name) for event in probes for name in self._matches(event) if self.is_live(name)]
        if matching and not any(self._owed(event) for event in self.published):
            event, name = matching[0]
            what = f"nothing had to be delivered, though {len(matching)} probes match, as {event} {name}"
            raise Violation("Owed", what, self._world.now_ms)

    def _matches(self, event: str) -> list[str]:
        """Returns the subscriptions that ask for the event when it is published."""
        at, body, _, _ = self.published[event]
        asked = ((name, known.text_at(at)) for name, known in self.interested.items())
        return [name for name, text in asked if text is not None and self._workload.matches(text, body)]

    def _owed(self, event: str) -> list[str]:
        """Returns the subscriptions that have to be notified of the event."""
        if not self._is_promised(self.published[event]):
            return []
        at = self.published[event].at_ms
        return [name for name in self._matches(event) if self.is_live(name) and self._was_active(name, at)]

    def _is_promised(self, event: Publication) -> bool:
        if event.is_probe:
            return True
        if not self._promise.outlives_publishers and self._went(event):
            return False
        return event.node in self._world.nodes and self._promise.covers(
            event.at_ms, [(kind, begin, end) for kind, begin, end, _ in self.troubles]
        )

    def _went(self, event: Publication) -> bool:
        """Whether the node that published the event left or crashed, and may be back."""
        gone = (trouble for trouble in self.troubles if trouble.kind in ("leave", "crash"))
        return any(trouble.node == event.node and trouble.begin_ms >= event.at_ms for trouble in gone)

    def _was_active(self, subscription: str, at_ms: int) -> bool:
        """Returns whether the subscription as it is now was in place at this time."""
        since = self._world.active.get(subscription)
        return since is not None and since < at_ms and self.interested[subscription].texts[-1][0] <= since
