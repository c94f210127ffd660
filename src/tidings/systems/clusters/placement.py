"""Clusters of similar subscriptions (Casalicchio et al., "Clustering mechanism for content-based system in DHT-based
overlay networks").

Subscriptions are boxes in the space of the events, events points, clusters boxes around similar
subscriptions. Here a coordinate is a cell: each axis is cut at quantiles, or evenly, and NULL is the
cell before all others; an attribute that a filter leaves open is its whole axis. So texts have
coordinates too, and what overlaps in truth overlaps in cells.

    MGI   a subscription is held in every cluster that it intersects
    MGM   an event goes to one of the clusters that contain it: the one with the fewest subscriptions
    MGC   clusters are made again from the subscriptions, where that pays (`reorganised`)

Any one containing cluster holds all that the event satisfies, if what is held lies within the
clusters. `strict` sees to that: a subscription that sticks out of every cluster is held everywhere until a
cluster is made of it. `paper` holds it where it intersects, as the paper does, and loses the events
that lie in it and in no cluster: its false negatives, which MGC counts.

channels   the clusters', and the catch-all's
positions  the number of a cluster
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from tidings.filter.compile.plan_execution import double_ordinals
from tidings.filter.normal.filter_table import FilterTable
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.clusters.clustering import Method, labels_of, micro_clusters
from tidings.systems.geometry.key_pairs import balanced, distinct_pairs, starts_of
from tidings.systems.geometry.line_positions import (
    Edges,
    double_values,
    edges_at_quantiles,
    edges_from_json,
    edges_to_json,
    event_segments,
    has_places,
    interval_segments,
    named_path,
)
from tidings.systems.geometry.rtree import RTree, rtree_of
from tidings.systems.interface import (
    EVERYWHERE,
    REPLICATED,
    Floats,
    Numbers,
    Placed,
    PlacementError,
    Routed,
    alike_keys,
    channels_of,
    keys_at,
    listed,
    placed_of,
    positions_of,
    routed_of,
)
from tidings.systems.statistics import Statistics

Mode = Literal["strict", "paper"]

CELLS = 128  # that an axis is cut into
AXES_MAX = 6
CLUSTERED_MAX = 4_000  # points that are compared with each other: more are brought together in a grid first
_OFTEN = 0.25  # of the subscriptions constrain an attribute that is an axis
TRIES = 5  # values of K, when clusters are made again
_WIDE = 0.5  # of the whole space, past which a subscription has no part in the making of clusters


@dataclass(frozen=True, eq=False)
class View:
    """The axes, the clusters on them, how many subscriptions each has, and who owns it."""

    placement: ClassVar[str] = "clusters"

    paths: tuple[Path, ...]
    edges: tuple[Edges, ...]
    lows: Numbers  # clusters × axes: the first cell, …
    highs: Numbers  # … and the last, included
    sizes: Floats  # subscriptions of each cluster: a snapshot
    assignment: Numbers
    mode: Mode = "strict"
    epoch: int = 0

    @property
    def count(self) -> int:
        return len(self.lows)

    @property
    def partitions(self) -> int:
        return int(self.assignment.max()) + 1 if len(self.assignment) else 1

    @property
    def channels(self) -> int:
        return 2

    @property
    def visits(self) -> int:
        return 1

    def described_parts(self, path: Path) -> str:
        return f"{len(self.edges[self.paths.index(path)]) + 1} cells"

    @property
    def ends(self) -> Numbers:
        """The last cell of each axis."""
        return np.array([len(edges) + 1 for edges in self.edges], np.int64)

    @cached_property
    def tree(self) -> RTree:
        return rtree_of(self.lows, self.highs)

    @property
    def centroids(self) -> Floats:
        """Of the clusters, on axes from 0 to 1: a cluster's tree is rooted at the hash of its own."""
        return np.asarray((self.lows + self.highs) / 2 / np.maximum(self.ends, 1))

    def owners(self, keys: Numbers) -> Numbers:
        at = np.where(channels_of(keys) == 0, positions_of(keys), 0)
        owners = self.assignment[at] if self.count else np.zeros(len(keys), np.int64)
        return np.where(channels_of(keys) == 0, owners, EVERYWHERE)

    def described(self) -> str:
        return f"{self.count} clusters on {listed(self.paths)}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "paths": [list(path) for path in self.paths],
            "edges": [edges_to_json(edges) for edges in self.edges],
            "lows": self.lows.tolist(),
            "highs": self.highs.tolist(),
            "sizes": self.sizes.tolist(),
            "assignment": self.assignment.tolist(),
            "mode": self.mode,
            "epoch": self.epoch,
        }

    @staticmethod
    def from_dict(form: dict[str, Any]) -> View:
        paths = tuple(tuple(path) for path in form["paths"])
        boxes = {name: np.array(form[name], np.int64).reshape(-1, len(paths)) for name in ("lows", "highs")}
        arrays = {"sizes": np.array(form["sizes"], np.float64), "assignment": np.array(form["assignment"], np.int64)}
        edges = tuple(edges_from_json(part) for part in form["edges"])
        return View(**form | boxes | arrays | {"paths": paths, "edges": edges})


# ---------------------------------------------------------------------- coordinates


def boxes_in(filters: FilterTable, paths: Sequence[Path], edges: Sequence[Edges]) -> tuple[Numbers, Numbers]:
    """The first and the last cell of each conjunction on each axis (boxes × axes)."""
    lows = np.zeros((filters.boxes, len(paths)), np.int64)
    highs = np.tile(np.array([len(part) + 1 for part in edges], np.int64), (filters.boxes, 1))
    for axis, (path, cuts) in enumerate(zip(paths, edges, strict=True)):
        intervals = filters.intervals.get(path)
        if intervals is None:
            continue
        first, last = interval_segments(intervals, cuts)
        least, most = np.full(filters.boxes, len(cuts) + 2), np.full(filters.boxes, -1)
        if len(first):
            starts = starts_of(intervals.boxes)
            held = intervals.boxes[starts]
            least[held] = np.minimum.reduceat(first + 1, starts)
            most[held] = np.maximum.reduceat(last + 1, starts)
        least[intervals.null_boxes] = 0
        most[intervals.null_boxes] = np.maximum(most[intervals.null_boxes], 0)
        rows = intervals.constrained
        lows[rows, axis], highs[rows, axis] = least[rows], most[rows]
    return lows, highs


def points_of(events: EventBatch, view: View) -> Numbers:
    """The cell of each event on each axis (events × axes)."""
    cells = np.zeros((events.count, len(view.paths)), np.int64)
    for axis, (path, edges) in enumerate(zip(view.paths, view.edges, strict=True)):
        valid = events.columns[path].is_valid().to_numpy(zero_copy_only=False)
        cells[:, axis] = np.where(valid, event_segments(events, path, edges) + 1, 0)
    return cells


# ---------------------------------------------------------------------- the law: MGI and MGM


def place(filters: FilterTable, view: View) -> Placed:
    lows, highs = boxes_in(filters, view.paths, view.edges)
    served = np.zeros(filters.boxes, bool)
    served[(view.tree.holding if view.mode == "strict" else view.tree.intersecting)(lows, highs)[0]] = True
    outside = np.zeros(filters.count, bool)
    outside[filters.box_filter[~served]] = True  # in one place or the other: so an event finds it once
    inside = np.flatnonzero(~outside[filters.box_filter])
    box, cluster = view.tree.intersecting(lows[inside], highs[inside])
    rows, cluster = distinct_pairs(filters.box_filter[inside].astype(np.int64)[box], cluster)
    alone = np.flatnonzero(outside)
    everywhere = alike_keys(1, len(alone))
    return placed_of([(rows, keys_at(0, cluster)), (alone, everywhere)])


def route(events: EventBatch, view: View) -> Routed:
    event, cluster = smallest(points_of(events, view), view)
    everywhere = routed_of(events.count, [alike_keys(1, events.count)])
    rows = np.concatenate([event, everywhere.events])
    keys = np.concatenate([keys_at(0, cluster), everywhere.keys])
    order = np.argsort(rows, kind="stable")
    return Routed(rows[order], keys[order])


def smallest(points: Numbers, view: View) -> tuple[Numbers, Numbers]:
    """(event, cluster): of the clusters that contain an event the one with the fewest subscriptions, if any."""
    event, cluster = view.tree.containing(points)
    if not len(event):
        return event, cluster
    smaller = np.argsort(view.sizes, kind="stable")
    rank = np.empty(view.count, np.int64)
    rank[smaller] = np.arange(view.count)
    starts = starts_of(event)
    return event[starts], smaller[np.minimum.reduceat(rank[cluster], starts)]


# ---------------------------------------------------------------------- adapting


def adapt(
    statistics: Statistics,
    *,
    partitions: int,
    epoch: int = 0,
    clusters: int | None = None,
    method: Method = "kmeans",
    mode: Mode = "strict",
    dimensions: Sequence[str] | None = None,
    cells: int = CELLS,
    axes: Literal["quantiles", "even"] = "quantiles",
) -> View:
    """Clusters of the sampled subscriptions, and their owners by the events that they get."""
    filters = statistics.filters
    paths = _axes(statistics, dimensions)
    if not paths:
        raise PlacementError(
            "placement 'clusters' needs an attribute that many filters compare with constants, and there is none; "
            f"use '{REPLICATED}'"
        )
    edges = tuple(_cut(statistics, path, cells, axes) for path in paths)
    lows, highs = clustered(*boxes_in(filters, paths, edges), edges, clusters or max(8, 4 * partitions), method)
    unsized = View(paths, edges, lows, highs, np.zeros(len(lows)), np.zeros(len(lows), np.int64), mode, epoch)
    return sized(unsized, statistics, partitions)


def clustered(
    lows: Numbers, highs: Numbers, edges: Sequence[Edges], clusters: int, method: Method
) -> tuple[Numbers, Numbers]:
    """The bounding boxes of clusters of boxes; those that are most of the space have no part in it."""
    ends = np.array([len(part) + 1 for part in edges], np.float64)
    narrow = ((highs - lows + 1) / (ends + 1)).min(axis=1) <= _WIDE
    lows, highs = lows[narrow], highs[narrow]
    if not len(lows):
        return lows, highs
    points = np.concatenate([lows / ends, highs / ends], axis=1)
    centroids = (lows + highs) / 2 / ends
    label = np.arange(len(points))
    weights = np.ones(len(points))
    fineness = 64
    while len(weights) > CLUSTERED_MAX and fineness:
        label, _ = micro_clusters(points, fineness)
        weights = np.bincount(label).astype(np.float64)
        fineness //= 2
    if len(weights) < len(points):
        points, centroids = (_means(given, label, weights) for given in (points, centroids))
    label = labels_of(method, points, weights, clusters, centroids=centroids)[label]
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[order], np.arange(label.max() + 1))
    return np.minimum.reduceat(lows[order], starts, axis=0), np.maximum.reduceat(highs[order], starts, axis=0)


def sized(view: View, statistics: Statistics, partitions: int) -> View:
    """With the number of each cluster's subscriptions, and owners that have about as much to do."""
    placed = place(statistics.filters, view)
    held = positions_of(placed.keys[channels_of(placed.keys) == 0])
    sizes = np.asarray(np.bincount(held, minlength=view.count) * statistics.scale, np.float64)
    made = replace(view, sizes=sizes)
    visits = np.ones(view.count)
    if statistics.events is not None and statistics.events.count:
        visits += np.bincount(smallest(points_of(statistics.events, made), made)[1], minlength=view.count)
    return replace(made, assignment=balanced(sizes * visits + visits, max(1, partitions)))


def _means(values: Floats, label: Numbers, weights: Floats) -> Floats:
    return np.stack([np.bincount(label, axis) / weights for axis in values.T], axis=1)


def _axes(statistics: Statistics, names: Sequence[str] | None) -> tuple[Path, ...]:
    """The attributes that filters constrain most often; if no filter is known, the first whose values are."""
    filters = statistics.filters
    if names is not None:
        return tuple(named_path(filters.domain, name, "an axis") for name in names)
    if statistics.source != "filters":
        return tuple(path for path in statistics.paths if statistics.along(path).distinct > 1)[:AXES_MAX]
    often = {
        path: len(intervals.constrained) / max(1, filters.boxes)
        for path, intervals in filters.intervals.items()
        if has_places(intervals.type)
    }
    ranked = sorted(often, key=lambda path: -often[path])
    return tuple([path for path in ranked if often[path] >= _OFTEN] or ranked[:1])[:AXES_MAX]


def _cut(statistics: Statistics, path: Path, cells: int, axes: str) -> Edges:
    """The edges of an axis: at the quantiles of the filters' bounds, or at equal distances; of texts, at quantiles."""
    bounds = statistics.bounds.get(path, statistics.along(path)).quantiles
    if axes == "quantiles" or bounds.dtype == object or len(bounds) < 2:
        return edges_at_quantiles(bounds, cells)
    floating = statistics.filters.domain.leaves[path].name in ("float", "double")
    values = double_values(bounds) if floating else bounds.astype(np.float64)
    steps = np.linspace(values.min(), values.max(), cells + 1)[1:-1]
    return np.unique(double_ordinals(steps) if floating else np.ceil(steps).astype(np.int64))


# ---------------------------------------------------------------------- making clusters again, where that pays


class Prices(NamedTuple):
    """The constants of section 4.2: clusters are made again where γI · ΔFN + K · γR + γW · waste < c.

    ΔFN is the change in false negatives, pairs of an event of a window and a subscription that it lies in, such that it
    lies in no cluster; γR what
    it costs to reorganise a group; γW, which is ours, what it costs that an event reaches a subscription that it does
    not satisfy. New clusters cover all that they are made of, so that FN falls to 0, or to what sticks out of sampled
    ones. `gain` is c: below 0, a reorganisation has to earn more than it costs.
    """

    inefficiency: float = 1.0  # γI, of a false negative
    reorganising: float = 1.0  # γR, of a group
    waste: float = 0.0  # γW, of an event that reaches a subscription that it does not match
    gain: float = 0.0  # c

    def accept(self, change: int, groups: int, waste: float = 0.0) -> bool:
        """Returns whether new clusters are distributed, by the change in false negatives and the number of groups."""
        return self.inefficiency * change + groups * self.reorganising + self.waste * waste < self.gain


def decreasing(clusters: int, tries: int = TRIES) -> list[int]:
    """Returns the values of K that are tried one after the other while the cost test fails."""
    return list(dict.fromkeys(max(1, clusters * (tries - number) // tries) for number in range(tries)))


@dataclass(frozen=True)
class Quality:
    """How a View serves the events of a window."""

    false_negatives: int  # (event, subscription) pairs that lie within and do not meet
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
    inside, held = held_pairs(points, lows, highs, filters.box_filter.astype(np.int64))
    lost = ~routed[inside] & ~common[held]
    return Quality(int(lost.sum()), delivered, len(inside))


def held_pairs(points: Numbers, lows: Numbers, highs: Numbers, box_filter: Numbers) -> tuple[Numbers, Numbers]:
    """(event, subscription), once each, for every event in a box of a subscription."""
    events, boxes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start in range(0, len(points), 256):
        part = points[start : start + 256]
        inside = np.ones((len(part), len(lows)), bool)
        for axis in range(points.shape[1]):
            inside &= (part[:, axis, None] >= lows[None, :, axis]) & (part[:, axis, None] <= highs[None, :, axis])
        event, box = np.nonzero(inside)
        events.append(event + start)
        boxes.append(box_filter[box])
    return distinct_pairs(np.concatenate(events), np.concatenate(boxes))


def reorganised(
    view: View,
    statistics: Statistics,
    *,
    clusters: int,
    prices: Prices = Prices(),  # noqa: B008 - it is immutable
    method: Method = "kmeans",
    tries: int = TRIES,
) -> View | None:
    """Makes clusters again (MGC), with fewer of them each time that the test fails; None if none of them pays.

    The result is another View with the next epoch. The caller registers the subscriptions that intersect a new cluster
    before events are routed to it.
    """
    if statistics.events is None:
        raise PlacementError("clusters are made again by what became of the last events; give statistics with events")
    events, filters = statistics.events, statistics.filters
    lost = quality(filters, events, view).false_negatives
    names = [".".join(path) for path in view.paths]
    for count in decreasing(clusters, tries):
        made = adapt(
            statistics, partitions=view.partitions, epoch=view.epoch + 1, clusters=count, method=method,
            mode=view.mode, dimensions=names,
        )  # fmt: skip
        found = quality(filters, events, made)
        if prices.accept(found.false_negatives - lost, made.count, found.waste):
            return made
    return None
