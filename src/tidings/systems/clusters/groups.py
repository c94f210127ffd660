"""Making clusters again, where that pays (Casalicchio et al., section 4.2): MGC.

    γI · ΔFN(I) + K · γR + γW · waste < c

ΔFN is the change in false negatives, the events of a window that lie in a subscription and in no
cluster; γR what it costs to reorganise a group; γW, which is ours, what it costs that an event reaches a
subscription it does not satisfy. New clusters cover all that they are made of, so that FN
falls to 0, or to what sticks out of sampled ones.

Every change is another View with the next epoch. The caller registers the subscriptions that intersect a new cluster
before events are routed to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidings.filter.normal.filter_table import FilterTable, Rows
from tidings.model.event import EventBatch
from tidings.systems.clusters.clustering import Method
from tidings.systems.clusters.placement import View, adapt, boxes_in, place, points_of, smallest
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.interface import Numbers, PlacementError, channels_of, positions_of
from tidings.systems.statistics import Statistics

TRIES = 5  # values of K


@dataclass(frozen=True)
class Prices:
    """The paper's constants; `gain` is c: below 0, a reorganisation has to earn more than it costs."""

    inefficiency: float = 1.0  # γI, of a false negative
    reorganising: float = 1.0  # γR, of a group
    waste: float = 0.0  # γW, of an event that reaches a subscription that it does not match
    gain: float = 0.0  # c


@dataclass(frozen=True)
class Quality:
    """How a View serves the events of a window."""

    false_negatives: int  # (event, conjunction) pairs that lie within and do not meet
    delivered: int  # (event, subscription) pairs that meet
    wanted: int  # of those, and of the false negatives, the ones whose boxes hold the event

    @property
    def precision(self) -> float:
        return (self.wanted - self.false_negatives) / max(1, self.delivered)

    @property
    def waste(self) -> int:
        return self.delivered - (self.wanted - self.false_negatives)


def quality(filters: FilterTable, events: EventBatch, view: View) -> Quality:
    """Judged by cells: an event lies in a subscription where it does on every axis, as the paper's boxes have it."""
    points = points_of(events, view)
    lows, highs = boxes_in(filters, view.paths, view.edges)
    placed = place(filters, view)
    everywhere = channels_of(placed.keys) == 1
    common = np.zeros(filters.count, bool)
    common[placed.subscriptions[everywhere]] = True
    event, cluster = smallest(points, view)
    routed = np.zeros(events.count, bool)
    routed[event] = True
    sizes = np.bincount(positions_of(placed.keys[~everywhere]), minlength=view.count)
    delivered = int(sizes[cluster].sum()) + int(common.sum()) * events.count
    inside, held = distinct_pairs(*_held(points, lows, highs, filters.box_filter))
    lost = ~routed[inside] & ~common[held]
    return Quality(int(lost.sum()), delivered, len(inside))


def _held(points: Numbers, lows: Numbers, highs: Numbers, box_filter: Rows) -> tuple[Numbers, Numbers]:
    """(event, subscription) for every event in a subscription's box."""
    events, boxes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start in range(0, len(points), 256):
        part = points[start : start + 256]
        inside = np.ones((len(part), len(lows)), bool)
        for axis in range(points.shape[1]):
            inside &= (part[:, axis, None] >= lows[None, :, axis]) & (part[:, axis, None] <= highs[None, :, axis])
        event, box = np.nonzero(inside)
        events.append(event + start)
        boxes.append(box_filter[box].astype(np.int64))
    return np.concatenate(events), np.concatenate(boxes)


def reorganised(
    view: View,
    statistics: Statistics,
    *,
    clusters: int,
    prices: Prices = Prices(),  # noqa: B008 - it is immutable
    method: Method = "kmeans",
    tries: int = TRIES,
) -> View | None:
    """Makes clusters again (MGC), with fewer of them each time that the test fails; None if none of them pays."""
    if statistics.events is None:
        raise PlacementError("clusters are made again by what became of the last events; give statistics with events")
    events, filters = statistics.events, statistics.filters
    lost = quality(filters, events, view).false_negatives
    names = [".".join(path) for path in view.paths]
    for number in range(tries):
        count = max(1, clusters * (tries - number) // tries)
        made = adapt(
            statistics, partitions=view.partitions, epoch=view.epoch + 1, clusters=count, method=method,
            mode=view.mode, dimensions=names,
        )  # fmt: skip
        found = quality(filters, events, made)
        cost = prices.inefficiency * (found.false_negatives - lost) + made.count * prices.reorganising
        if cost + prices.waste * found.waste < prices.gain:
            return made
    return None
