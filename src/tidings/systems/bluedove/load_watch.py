"""What a dispatcher knows of the matchers' load: where an event is done first, who gives a newcomer a part, and
whether there are too few of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tidings.systems.bluedove.forwarding import Load, Policy, costs_of
from tidings.systems.bluedove.messages import RATE_MAX, DimensionLoad, LoadReport
from tidings.systems.interface import Floats
from tidings.systems.protocols.effects import Id

SATURATED = 4  # reports in a row of a queue that grows and never becomes shorter

_IDLE = DimensionLoad(0, 0, 0.0, RATE_MAX)  # of a matcher that has reported nothing yet


class LoadWatch:
    """The last report of each matcher with the time at which it came, and how long queues have been growing."""

    def __init__(self, *, saturated_queue: int, pause_ms: int, patience_ms: int) -> None:
        self._reports: dict[Id, tuple[LoadReport, int]] = {}
        # A matcher's queue when it last began to grow, its queue now, and the reports from one to the other.
        self._growing: dict[Id, tuple[int, int, int]] = {}
        self._saturated_queue = saturated_queue
        self._pause_ms = pause_ms  # in which a matcher that has come takes its share of the load
        self._patience_ms = patience_ms  # in which a matcher that was asked for may come
        self._wanted = 0  # matchers, once the one that was asked for is there
        self._since_ms: int | None = None

    def take(self, matcher: Id, report: LoadReport, now_ms: int) -> bool:
        """Take a report; returns whether the matcher is saturated: its queues grow, and do not stop growing."""
        self._reports[matcher] = (report, now_ms)
        queue = sum(load.queued for load in report.dimensions)
        least, last, reports = self._growing.get(matcher, (queue, queue, 0))
        least, reports = (least, reports + 1) if queue >= last else (queue, 1)
        self._growing[matcher] = (least, queue, reports)
        return reports >= SATURATED and queue > least and queue >= self._saturated_queue

    def forget(self, matcher: Id) -> None:
        self._reports.pop(matcher, None)
        self._growing.pop(matcher, None)

    def costs(self, policy: Policy, pairs: Sequence[tuple[int, Id]], now_ms: int) -> Floats:
        """Returns what an event costs at each (dimension, matcher); each report is as old as it is."""
        loads, ages = [], []
        for dimension, matcher in pairs:
            load, at = self._load(matcher, dimension, now_ms)
            loads.append(load)
            ages.append((now_ms - at) / 1_000)
        sizes, queued, arrivals, rates = (np.array(column, np.float64) for column in zip(*loads, strict=True))
        return costs_of(policy, Load(sizes, queued, arrivals, rates, np.array(ages)))

    def most_loaded(self, matchers: Iterable[Id], dimension: int) -> list[Id]:
        """Returns matchers, the one with the most to do first: subscriptions times events that wait, and the next."""
        return sorted(matchers, key=lambda matcher: (-self._work(matcher, dimension), matcher))

    def _work(self, matcher: Id, dimension: int) -> int:
        load, _ = self._load(matcher, dimension, 0)
        return (load.queued + 1) * (load.subscriptions + 1)

    def _load(self, matcher: Id, dimension: int, now_ms: int) -> tuple[DimensionLoad, int]:
        report, at = self._reports.get(matcher, (None, now_ms))
        return (report.dimensions[dimension], at) if report is not None else (_IDLE, at)

    def decide_to_grow(self, matchers: int, now_ms: int) -> bool:
        """Whether to ask for one more matcher, as there is a saturated one: not while another is on its way."""
        if self._wanted and matchers >= self._wanted:
            self._wanted, self._since_ms = 0, now_ms
        pause_ms = self._patience_ms if self._wanted else self._pause_ms
        if self._since_ms is not None and now_ms - self._since_ms < pause_ms:
            return False
        self._wanted, self._since_ms = matchers + 1, now_ms
        return True
