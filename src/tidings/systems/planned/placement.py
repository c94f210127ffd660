"""Several placements, each for the subscriptions that it serves best: what the planner makes.

Every subscription is in exactly one *part*: of those of the View the one in which the fewest events
are compared with it. An event is routed once for each part. As every part meets once, so does the whole.

channels   those of the parts, one after the other
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.interface import (
    EVERYWHERE,
    POSITION_BITS,
    REPLICATED,
    AnyView,
    CountsLists,
    Floats,
    Numbers,
    Placed,
    PlacementError,
    Routed,
    channels_of,
    placement_named,
    view_from_dict,
    view_to_dict,
)
from tidings.systems.interface import (
    place as place_in,
)
from tidings.systems.interface import (
    route as route_in,
)
from tidings.systems.statistics import Statistics

BY_DEFAULT = (REPLICATED, "digests")
SLACK = 0.02  # a later part has to spare more than this share of the events to be chosen before an earlier one


@dataclass(frozen=True, eq=False)
class Rates:
    """The share of the events that visit each of some keys; `rest`: that visit any other."""

    keys: Numbers  # ascending
    shares: Floats
    rest: float = 0.0

    def of(self, keys: Numbers) -> Floats:
        if not len(self.keys):
            return np.full(len(keys), self.rest)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.shares[at], self.rest)

    def to_dict(self) -> dict[str, Any]:
        return {"keys": self.keys.tolist(), "shares": self.shares.tolist(), "rest": self.rest}

    @staticmethod
    def from_dict(form: dict[str, Any]) -> Rates:
        return Rates(np.array(form["keys"], np.int64), np.array(form["shares"], np.float64), form["rest"])


@dataclass(frozen=True, eq=False)
class View:
    placement: ClassVar[str] = "planned"

    parts: tuple[AnyView, ...]
    rates: tuple[Rates, ...]
    epoch: int = 0

    @cached_property
    def bases(self) -> Numbers:
        """The first channel of each part, and how many there are."""
        return np.concatenate([[0], np.cumsum([part.channels for part in self.parts])]).astype(np.int64)

    @property
    def partitions(self) -> int:
        return max(part.partitions for part in self.parts)

    @property
    def channels(self) -> int:
        return int(self.bases[-1])

    @property
    def visits(self) -> int:
        return sum(part.visits for part in self.parts)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(path for part in self.parts for path in part.paths))

    def part_of(self, keys: Numbers) -> Numbers:
        """The number of the part that each key is of."""
        return np.searchsorted(self.bases, channels_of(keys), side="right") - 1

    def owners(self, keys: Numbers) -> Numbers:
        owners = np.full(len(keys), EVERYWHERE, np.int64)
        parts = self.part_of(keys)
        for number, part in enumerate(self.parts):
            mine = parts == number
            owners[mine] = part.owners(keys[mine] - self._shift(number))
        return owners

    def _shift(self, part: int) -> np.int64:
        return np.int64(int(self.bases[part]) << POSITION_BITS)

    def shifted(self, keys: Numbers, part: int) -> Numbers:
        """Keys of a part as keys of the whole."""
        return keys + self._shift(part)

    def described(self) -> str:
        return "; ".join(f"{part.placement} by {part.described()}" for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        return {
            "parts": [view_to_dict(part) for part in self.parts],
            "rates": [rates.to_dict() for rates in self.rates],
            "epoch": self.epoch,
        }

    @staticmethod
    def from_dict(form: dict[str, Any]) -> View:
        parts = tuple(view_from_dict(part) for part in form["parts"])
        return View(parts, tuple(Rates.from_dict(rates) for rates in form["rates"]), form["epoch"])


def place(filters: FilterTable, view: View) -> Placed:
    placed = [place_in(filters, part) for part in view.parts]
    served = classes(filters, placed, view)
    rows, keys = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, copies in enumerate(placed):
        mine = served[copies.subscriptions] == number
        rows.append(copies.subscriptions[mine])
        keys.append(view.shifted(copies.keys[mine], number))
    return Placed(np.concatenate(rows), np.concatenate(keys))


def classes(filters: FilterTable, placed: Sequence[Placed], view: View) -> Numbers:
    """The part of each subscription: where the fewest events are compared with it, the first of about equals."""
    best = np.full(filters.count, np.inf)
    served = np.zeros(filters.count, np.int64)
    for number, copies in enumerate(placed):
        shares = np.bincount(copies.subscriptions, view.rates[number].of(copies.keys), filters.count)
        better = shares + SLACK < best
        served[better], best[better] = number, shares[better]
    return served


def route(events: EventBatch, view: View) -> Routed:
    routed = [route_in(events, part) for part in view.parts]
    rows = np.concatenate([visits.events for visits in routed])
    keys = np.concatenate([view.shifted(visits.keys, number) for number, visits in enumerate(routed)])
    order = np.argsort(rows, kind="stable")
    return Routed(rows[order], keys[order])


def adapt(statistics: Statistics, *, partitions: int, epoch: int = 0, parts: Sequence[str] | None = None) -> View:
    """Returns the View of these placements, each adapted by itself; by default of two that fit any subscriptions.

    `tidings.systems.planner.planner` finds out which are worth it.
    """
    views = [placement_named(name).adapt(statistics, partitions=partitions) for name in parts or BY_DEFAULT]
    return combined(views, statistics, epoch)


def combined(views: Sequence[AnyView], statistics: Statistics, epoch: int = 0) -> View:
    """One View of several, with the rates at which the sampled events visit their keys."""
    for view in views:
        if isinstance(view, CountsLists):
            raise PlacementError(f"placement '{view.placement}' counts lists, and cannot be one of several")
    return View(tuple(views), tuple(_rates(view, statistics) for view in views), epoch)


def _rates(view: AnyView, statistics: Statistics) -> Rates:
    """By what the sampled events visit; without events, by how many copies a channel's keys share."""
    if statistics.events is None or not statistics.events.count:
        placed = place_in(statistics.filters, view)
        everywhere = np.unique(placed.keys[view.owners(placed.keys) == EVERYWHERE])
        return Rates(everywhere, np.ones(len(everywhere)), 1 / max(2, len(np.unique(placed.keys))))
    count = statistics.events.count
    routed = route_in(statistics.events, view)
    keys, visits = np.unique(routed.keys, return_counts=True)
    often = visits >= min(3, count)  # what is rarer is not told from what was not seen
    rest = float(visits[~often].mean()) / count if (~often).any() else 0.5 / count
    return Rates(keys[often], visits[often] / count, rest)
