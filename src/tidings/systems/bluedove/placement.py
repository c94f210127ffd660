"""BlueDove: segments along several dimensions (Li et al., "A Scalable and Elastic Publish/Subscribe Service", 2011).

k dimensions are cut into *segments*. In each dimension a subscription is held by every segment
that it overlaps, so any one of the k segments that an event lies in, its *candidates*, holds all
subscriptions that the event may satisfy there: an event goes to one of them, the cheapest.

A subscription that overlaps many segments of a dimension would be copied to all of them. It is held
by groups of neighbouring segments instead, of the least size of which it overlaps few, or for the
whole dimension (the paper's future work: "hierarchical partitioning for wide ranges"); what is
that wide in every dimension is held once for all. An event consults its segment, the
groups around it and what is held for all, on the spot.

channels   for each dimension its segments, its groups of each size, the whole of it; then the catch-all's
positions  the number of a segment or a group
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tidings.filter.normal.filter_table import FilterTable, Intervals
from tidings.kernels.hashing import hash_numbers
from tidings.matching.batch_columns import Mask
from tidings.model.domain import Domain
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.bluedove.forwarding import Load, Policy, costs_of
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.geometry.line_positions import (
    Edges,
    edges_at_quantiles,
    edges_from_json,
    edges_to_json,
    event_segments,
    has_places,
    interval_segments,
    named_path,
    ranges,
)
from tidings.systems.interface import (
    EVERYWHERE,
    POSITION_BITS,
    REPLICATED,
    Counts,
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

DIMENSIONS_MAX = 4
FAN_OUT = 4  # segments in a group, and groups in a larger one, where there are segments enough
_LARGE_SHARE = 0.75  # of the subscriptions that an event meets, beyond which a dimension is not worth its copies


@dataclass(frozen=True, eq=False)
class View:
    """Where the segments are, who owns them, and what an event costs at each."""

    placement: ClassVar[str] = "bluedove"

    paths: tuple[Path, ...]
    edges: tuple[Edges, ...]  # of each dimension: the places at which segments begin, but for its first
    costs: Floats  # of each candidate: a snapshot of the load
    assignment: Numbers  # the partition of each candidate
    copies: int  # of a subscription in one dimension, at most: past that it is held by larger groups
    widths: tuple[int, ...] = ()  # of the groups, in segments, ascending
    policy: Policy = "subscriptions"
    epoch: int = 0
    load: Load | None = None  # that the costs follow from, if it was measured

    @cached_property
    def bases(self) -> Numbers:
        """The first candidate of each dimension, and how many there are."""
        return np.concatenate([[0], np.cumsum([len(edges) + 1 for edges in self.edges])]).astype(np.int64)

    @property
    def candidates(self) -> int:
        return int(self.bases[-1])

    @property
    def levels(self) -> int:
        """Of a dimension: its segments, groups, and the whole."""
        return len(self.widths) + 2

    @property
    def partitions(self) -> int:
        return int(self.assignment.max()) + 1

    @property
    def channels(self) -> int:
        return self.catch_all + 1

    @property
    def visits(self) -> int:
        return 1

    @property
    def catch_all(self) -> int:
        return len(self.paths) * self.levels

    def owners(self, keys: Numbers) -> Numbers:
        channels = channels_of(keys)
        dimension, level = np.divmod(channels, self.levels)
        in_segment = (level == 0) & (channels < self.catch_all)
        candidate = np.where(in_segment, self.bases[dimension] + positions_of(keys), 0)
        return np.where(in_segment, self.assignment[candidate], EVERYWHERE)

    # As `Elastic`

    def measured(self, counts: Counts, seconds: float) -> View:
        from tidings.systems.bluedove.measured_load import measured_load  # which looks at Views

        subscriptions = self.costs if self.load is None else self.load.subscriptions
        return with_load(self, measured_load(self, counts, seconds, subscriptions))

    def resized(self, partitions: int, filters: FilterTable, *, scale: float = 1.0) -> View:
        from tidings.systems.bluedove.segments import resized

        return resized(self, partitions, filters, scale=scale)

    def relieved(self, filters: FilterTable, *, scale: float = 1.0) -> View:
        from tidings.systems.bluedove.segments import relieved

        return relieved(self, filters, scale=scale)

    def described(self) -> str:
        return listed(self.paths)

    def to_dict(self) -> dict[str, Any]:
        return {
            "paths": [list(path) for path in self.paths],
            "edges": [edges_to_json(edges) for edges in self.edges],
            "costs": self.costs.tolist(),
            "assignment": self.assignment.tolist(),
            "copies": self.copies,
            "widths": list(self.widths),
            "policy": self.policy,
            "epoch": self.epoch,
            "load": None if self.load is None else self.load.to_dict(),
        }

    @staticmethod
    def from_dict(form: dict[str, Any]) -> View:
        return View(
            **form
            | {
                "paths": tuple(tuple(path) for path in form["paths"]),
                "edges": tuple(edges_from_json(edges) for edges in form["edges"]),
                "costs": np.array(form["costs"], np.float64),
                "assignment": np.array(form["assignment"], np.int64),
                "widths": tuple(form["widths"]),
                "load": None if form.get("load") is None else Load.from_dict(form["load"]),
            }
        )


# ---------------------------------------------------------------------- the law


def place(filters: FilterTable, view: View) -> Placed:
    parts: list[tuple[Numbers, Numbers]] = []
    whole = np.zeros((len(view.paths), filters.count), bool)
    for dimension, (path, edges) in enumerate(zip(view.paths, view.edges, strict=True)):
        held, rest = _segments_held(filters, path, edges, view, dimension)
        parts += held
        whole[dimension] = rest
    everywhere = whole.all(axis=0)
    for dimension, rest in enumerate(whole):
        parts.append(_at(np.flatnonzero(rest & ~everywhere), dimension * view.levels + view.levels - 1))
    parts.append(_at(np.flatnonzero(everywhere), view.catch_all))
    return placed_of(parts)


def _at(rows: Numbers, channel: int) -> tuple[Numbers, Numbers]:
    return rows, alike_keys(channel, len(rows))


Span = tuple[int, int]  # the first place and the last


def spans_of(filters: FilterTable, path: Path) -> tuple[tuple[Span, ...] | None, bool]:
    """Returns where filters of numbers lie along a dimension, and whether NULL satisfies one; None for anywhere."""
    intervals = filters.intervals.get(path)
    if intervals is None or _is_anywhere(filters, intervals).any():
        return None, True
    spans = sorted(set(zip(intervals.lows.tolist(), intervals.highs.tolist(), strict=True)))
    return tuple(spans), bool(len(intervals.null_boxes))


def _is_anywhere(filters: FilterTable, intervals: Intervals) -> Mask:
    """Returns which filters have a conjunction that may be anywhere in a dimension."""
    free = np.ones(filters.boxes, bool)
    free[intervals.constrained] = False
    found = np.zeros(filters.count, bool)
    found[filters.box_filter[free]] = True
    return found


def _segments_held(
    filters: FilterTable, path: Path, edges: Edges, view: View, dimension: int
) -> tuple[list[tuple[Numbers, Numbers]], np.typing.NDArray[np.bool_]]:
    """(subscription, key) for what is held by segments and groups, and who is left to the whole dimension."""
    satisfiable = np.zeros(filters.count, bool)
    satisfiable[filters.box_filter] = True
    intervals = filters.intervals.get(path)
    if intervals is None:
        return [], satisfiable
    waiting = satisfiable & ~_is_anywhere(filters, intervals)
    first, last = interval_segments(intervals, edges)
    nulls = np.zeros(len(intervals.null_boxes), np.int64)
    first, last = np.concatenate([first, nulls]), np.concatenate([last, nulls])
    rows = filters.box_filter[np.concatenate([intervals.boxes, intervals.null_boxes])].astype(np.int64)
    held = []
    left = satisfiable & ~waiting
    for level, width in enumerate((1, *view.widths)):
        begin, end = first // width, last // width
        counts = np.bincount(rows, end - begin + 1, filters.count)
        here = waiting & (counts <= view.copies)
        chosen = np.flatnonzero(here[rows])
        row, groups = ranges(begin[chosen], end[chosen] - begin[chosen] + 1)
        # Intervals of one subscription may share a group.
        owners, groups = distinct_pairs(rows[chosen[row]], groups)
        held.append((owners, keys_at(dimension * view.levels + level, groups)))
        waiting &= ~here
    return held, left | waiting


def route(events: EventBatch, view: View) -> Routed:
    """The cheapest candidate, the groups around it, and the catch-all."""
    if not view.paths:
        return routed_of(events.count, [_at(np.arange(events.count), view.catch_all)[1]])
    segments = np.stack(
        [event_segments(events, path, edges) for path, edges in zip(view.paths, view.edges, strict=True)]
    )
    dimension = chosen_dimensions(segments, view)
    held = segments[dimension, np.arange(events.count)]
    channel = dimension * view.levels
    keys = [_keys(channel + level, held // width) for level, width in enumerate((1, *view.widths))]
    keys.append(_keys(channel + view.levels - 1, np.zeros_like(held)))
    keys.append(_at(np.arange(events.count), view.catch_all)[1])
    return routed_of(events.count, keys)


def _keys(channels: Numbers, positions: Numbers) -> Numbers:
    return (channels << np.int64(POSITION_BITS)) | positions


def chosen_dimensions(segments: Numbers, view: View) -> Numbers:
    """The dimension in which each event is matched, from its segments (dimensions × events): the first of equals."""
    if view.policy == "random":
        mixed = np.zeros(segments.shape[1], np.int64)
        for held in segments:
            mixed = hash_numbers(mixed ^ held, view.epoch).view(np.int64)
        return np.asarray(mixed.view(np.uint64) % np.uint64(len(segments)), np.int64)
    return np.asarray(np.argmin(view.costs[view.bases[:-1, None] + segments], axis=0), np.int64)


# ---------------------------------------------------------------------- load


def sizes(placed: Placed, view: View) -> Floats:
    """How many subscriptions an event is compared with at each candidate."""
    channels, positions = channels_of(placed.keys), positions_of(placed.keys)
    everywhere = float((channels == view.catch_all).sum())
    found = []
    for dimension, edges in enumerate(view.edges):
        segments = np.arange(len(edges) + 1)
        total = np.full(len(segments), everywhere)
        for level, width in enumerate((1, *view.widths, len(segments))):
            here = positions[channels == dimension * view.levels + level]
            total += np.bincount(here, minlength=len(segments))[segments // width]
        found.append(total)
    return np.concatenate([np.empty(0), *found])


def with_load(view: View, load: Load, *, policy: Policy | None = None, epoch: int | None = None) -> View:
    """The same segments, with what matchers have reported since."""
    policy = policy or view.policy
    epoch = view.epoch + 1 if epoch is None else epoch
    return replace(view, costs=costs_of(policy, load), load=load, policy=policy, epoch=epoch)


def met(view: View, subscriptions: int, events: EventBatch | None) -> float:
    """The share of the subscriptions that an event is compared with; without events, if it may be in any segment."""
    if not view.paths or not subscriptions:
        return 1.0
    costs = [view.costs[view.bases[d] : view.bases[d + 1]] for d in range(len(view.paths))]
    if events is None or not events.count:
        rng = np.random.default_rng(0)
        drawn = np.stack([rng.choice(cost, 1_000) for cost in costs])
    else:
        pairs = zip(view.paths, view.edges, costs, strict=True)
        drawn = np.stack([cost[event_segments(events, path, edges)] for path, edges, cost in pairs])
    return float(drawn.min(axis=0).mean() / subscriptions)


# ---------------------------------------------------------------------- adapting


def adapt(
    statistics: Statistics,
    *,
    partitions: int,
    epoch: int = 0,
    dimensions: Sequence[str] | None = None,
    segments: int | None = None,
    matchers: int | None = None,
    fan_out: int | None = None,
    policy: Policy | None = None,
) -> View:
    """The dimensions in which an event meets the fewest subscriptions, cut at the quantiles of the filters' bounds.

    A dimension has as many segments as there are partitions, or `segments`. Partitions are the paper's matchers, and
    each has segments of every dimension; `matchers` gives another number of them. There are fewer where filters begin
    and end at so few places that there are fewer segments in all.
    """
    filters, policy = statistics.filters, policy or "subscriptions"
    count = segments or max(2, partitions)
    widths = _widths(count, fan_out)
    alone: dict[Path, View] = {}
    for path in _dimensions(statistics, dimensions):
        known = statistics.bounds.get(path, statistics.along(path)).quantiles
        alone[path] = _with_sizes(filters, _uncosted((path,), (edges_at_quantiles(known, count),), widths, policy))
    shares = {path: met(view, filters.count, statistics.events) for path, view in alone.items()}
    chosen = sorted(alone, key=lambda path: shares[path])
    if dimensions is None:
        useful = [path for path in chosen if shares[path] < _LARGE_SHARE]
        chosen = (useful or chosen[:1])[:DIMENSIONS_MAX]
    if not chosen:
        raise PlacementError(
            "placement 'bluedove' needs an attribute that filters compare with constants, and there is none; "
            f"use '{REPLICATED}'"
        )
    edges = tuple(alone[path].edges[0] for path in chosen)
    made = _with_sizes(filters, _uncosted(tuple(chosen), edges, widths, policy))
    made = replace(made, costs=made.costs * statistics.scale, epoch=epoch)
    return assigned(made, min(matchers or partitions, made.candidates), statistics.events)


def assigned(view: View, matchers: int, events: EventBatch | None = None) -> View:
    """The candidates divided among so many matchers: of each dimension each has as many, the hot with the cold."""
    work = view.costs * _visited(view, events)
    loads = np.zeros(matchers)
    assignment = np.zeros(view.candidates, np.int64)
    for dimension in range(len(view.paths)):
        mine = np.arange(view.bases[dimension], view.bases[dimension + 1])
        for start in range(0, len(mine), matchers):
            turn = mine[np.argsort(-work[mine], kind="stable")][start : start + matchers]
            free = np.argsort(loads, kind="stable")[: len(turn)]
            assignment[turn] = free
            loads[free] += work[turn]
    return replace(view, assignment=assignment)


def _visited(view: View, events: EventBatch | None) -> Floats:
    """How many of the events each candidate gets; without events, all alike."""
    if events is None or not events.count:
        return np.ones(view.candidates)
    pairs = zip(view.paths, view.edges, strict=True)
    segments = np.stack([event_segments(events, path, edges) for path, edges in pairs])
    dimension = chosen_dimensions(segments, view)
    candidates = view.bases[dimension] + segments[dimension, np.arange(events.count)]
    return np.bincount(candidates, minlength=view.candidates).astype(np.float64)


def undivided(paths: tuple[Path, ...]) -> View:
    """Returns the View with one segment in each dimension: what a network begins with."""
    return _uncosted(paths, tuple(np.empty(0, np.int64) for _ in paths), (), "adaptive")


def _uncosted(paths: tuple[Path, ...], edges: tuple[Edges, ...], widths: tuple[int, ...], policy: Policy) -> View:
    candidates = sum(len(part) + 1 for part in edges)
    most = max((len(part) + 1 for part in edges), default=1)
    copies = max(1, most // 2) if not widths else 2 * widths[0]
    return View(paths, edges, np.zeros(candidates), np.arange(candidates), copies, widths, policy)


def _with_sizes(filters: FilterTable, view: View) -> View:
    return replace(view, costs=sizes(place(filters, view), view))


def _widths(segments: int, fan_out: int | None) -> tuple[int, ...]:
    """Of groups: none where a dimension has few segments, for every size of group costs an event one look."""
    if fan_out is None:
        fan_out = FAN_OUT if segments >= FAN_OUT**2 else segments
    widths: list[int] = []
    width = fan_out
    while width > 1 and width * 2 <= segments:
        widths.append(width)
        width *= fan_out
    return tuple(widths)


def _dimensions(statistics: Statistics, names: Sequence[str] | None) -> list[Path]:
    filters = statistics.filters
    if names is None:
        return [path for path in filters.intervals if _is_dimension(filters.domain, path)]
    paths = [named_path(filters.domain, name, "a dimension") for name in names]
    return [path for path in paths if path in filters.intervals or statistics.source != "filters"]


def _is_dimension(domain: Domain, path: Path) -> bool:
    type_ = domain.leaves[path]
    return has_places(type_) and type_.name != "boolean"
