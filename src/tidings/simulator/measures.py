"""What a run costs: its messages by what caused them, their bytes, hops and latency, and how nodes share the load.

A message is *own work* if what a client did led to it, through any number of messages and timers; *upkeep* if a node's
joining or leaving did, or a timer that sets itself again and again; a *repeat* if it is own work that the same node has
sent to the same node before, but for what counts attempts and hops.

A *cause* is passed from one to the next: UPKEEP, or 1 and the number of messages since a client's call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from tidings.systems.protocols.effects import Id, Message
from tidings.systems.protocols.message_codec import plain

UPKEEP, CALL = 0, 1

VOLATILE = frozenset(["hops", "request", "attempt", "number", "left"])  # fields that differ in what is sent again
MEASURED_FIRST, MEASURED_EVERY = 16, 64  # of a kind's messages those whose bytes are counted


@dataclass
class KindOfMessage:
    """How many messages of one kind there were, and how long those were that were measured."""

    count: int = 0
    measured: int = 0
    measured_bytes: int = 0

    @property
    def bytes(self) -> float:
        """Of all of them, estimated from those that were measured."""
        return self.count * self.measured_bytes / max(1, self.measured)

    def add(self, message: Message) -> None:
        self.count += 1
        if self.count <= MEASURED_FIRST or self.count % MEASURED_EVERY == 0:
            self.measured += 1
            self.measured_bytes += len(json.dumps(plain(message), separators=(",", ":")))

    def merge(self, other: KindOfMessage) -> None:
        self.count += other.count
        self.measured += other.measured
        self.measured_bytes += other.measured_bytes


@dataclass
class RunMeasures:
    """Of one run, or of several that were merged."""

    work: int = 0
    upkeep: int = 0
    repeats: int = 0
    kinds: dict[str, KindOfMessage] = field(default_factory=dict)
    hops: list[int] = field(default_factory=list)  # of every delivery whose cause is known
    latencies_ms: list[int] = field(default_factory=list)  # of every delivery
    loads: list[Sequence[int]] = field(default_factory=list)  # of each run: own work and repeats, by node
    checks: int = 0  # of an event against a filter, exactly
    rejected: int = 0  # of those, the ones that found no match: false positives
    _handled: Counter[Id] = field(default_factory=Counter)
    _sent: set[Hashable] = field(default_factory=set)

    @property
    def messages(self) -> int:
        return self.work + self.upkeep + self.repeats

    @property
    def bytes(self) -> float:
        return sum(kind.bytes for kind in self.kinds.values())

    def handled(self, sender: Id, to: Id, message: Message, cause: int) -> None:
        """Counts a message that a node has been handed."""
        name = kind_of(message)
        kind = self.kinds.get(name)
        if kind is None:
            kind = self.kinds[name] = KindOfMessage()
        kind.add(message)
        if cause == UPKEEP:
            self.upkeep += 1
            return
        self._handled[to] += 1
        identity = hash((sender, to, identity_of(message)))
        if identity in self._sent:
            self.repeats += 1
        else:
            self._sent.add(identity)
            self.work += 1

    def finish(self, nodes: Sequence[Id]) -> None:
        """Takes the nodes that are there at the end for those that share the load."""
        self.loads.append([self._handled[node] for node in nodes])
        self._handled, self._sent = Counter(), set()

    def merge(self, other: RunMeasures) -> None:
        """Adds those of another run."""
        self.work += other.work
        self.upkeep += other.upkeep
        self.repeats += other.repeats
        for name, kind in other.kinds.items():
            self.kinds.setdefault(name, KindOfMessage()).merge(kind)
        self.hops += other.hops
        self.latencies_ms += other.latencies_ms
        self.loads += other.loads
        self.checks += other.checks
        self.rejected += other.rejected

    def load_ratios(self) -> tuple[float, float] | None:
        """Returns the most loaded node's by the mean, and σ by the mean, both the mean of all runs."""
        ratios = [_ratios(load) for load in self.loads if sum(load)]
        if not ratios:
            return None
        return sum(most for most, _ in ratios) / len(ratios), sum(sigma for _, sigma in ratios) / len(ratios)


def _ratios(load: Sequence[int]) -> tuple[float, float]:
    mean = sum(load) / len(load)
    return max(load) / mean, sqrt(sum((one - mean) ** 2 for one in load) / len(load)) / mean


def quantile(values: Sequence[int], share: float) -> int:
    """Returns the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def kind_of(message: Message) -> str:
    """Returns the name of a message, or of the innermost that it carries."""
    while (inner := getattr(message, "payload", None)) is not None:
        message = inner
    return type(message).__name__


def identity_of(message: Any) -> Any:
    """Returns what is the same of a message when it is sent again: something that has a hash."""
    fields = getattr(message, "_fields", None)
    if fields is None:  # what a message has many of says the same every time
        return message
    kept = (identity_of(item) for name, item in zip(fields, message, strict=True) if name not in VOLATILE)
    return type(message).__name__, *kept
