"""BlueDove's rendezvous (Li et al., "A Scalable and Elastic Publish/Subscribe Service", 2011), as a pure law.

k dimensions are cut into *segments*. In each dimension a subscription is held by every segment
that it overlaps, so any one of the k segments that an event lies in, its *candidates*, holds all
subscriptions that the event may satisfy there: an event goes to one of them, the cheapest.

A subscription that overlaps most of a dimension would be copied to most of its segments. Such
wide ones are held once for the whole dimension instead, and those that are wide in every
dimension once for all: whoever matches an event at a candidate consults all three.

    candidates        dimension 0: segments 0 … n0 − 1, dimension 1: n0 … n0 + n1 − 1, …
    sets              the candidates', then one for each dimension's wide ones, then the catch-all

NULL lies in a dimension's first segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Edges = npt.NDArray[Any]  # of places: ordinals, or the bytes of strings


@dataclass(frozen=True, eq=False)
class View:
    """Where the segments are, and what an event costs at each: all that placing and routing look at.

    `edges[d]` are the places at which the segments of dimension d begin, but for its first.
    `costs[d]` is a snapshot of the load, so that an event is routed alike however often it is.
    """

    edges: tuple[Edges, ...]
    costs: tuple[npt.NDArray[np.float64], ...]

    @cached_property
    def bases(self) -> Numbers:
        """The first candidate of each dimension, and how many there are."""
        return np.concatenate([[0], np.cumsum([len(edges) + 1 for edges in self.edges])]).astype(np.int64)

    @property
    def candidates(self) -> int:
        return int(self.bases[-1])

    @property
    def catch_all(self) -> int:
        return self.candidates + len(self.edges)

    def consulted(self, candidate: int) -> tuple[int, int, int]:
        """The sets that together hold all that an event at this candidate may satisfy."""
        dimension = int(np.searchsorted(self.bases, candidate, side="right")) - 1
        return candidate, self.candidates + dimension, self.catch_all


@dataclass(frozen=True, eq=False)
class Spans:
    """What subscriptions overlap in one dimension: each row a range of segments, both ends included.

    A subscription has any number of rows; one that is in `everywhere` overlaps all segments.
    """

    subscriptions: Numbers
    first: Numbers
    last: Numbers
    everywhere: npt.NDArray[np.bool_]  # by subscription


def edges_at_quantiles(places: Edges, segments: int) -> Edges:
    """At most segments − 1 edges, such that about as many of the places lie between any two."""
    if not len(places):
        return places
    ordered = np.sort(places)
    return np.unique(ordered[np.arange(1, segments) * len(ordered) // segments])


def segments_of(places: Edges, edges: Edges) -> Numbers:
    """The segment that each place lies in."""
    return np.searchsorted(edges, places, side="right").astype(np.int64)


def place(dimensions: Sequence[Spans], view: View, *, widest: float = 0.5) -> tuple[Numbers, Numbers]:
    """(subscription, set) for every copy. Who overlaps more than this share of a dimension's segments is wide in it."""
    count = len(dimensions[0].everywhere)
    subscriptions, sets = [], []
    wide_in_all = np.ones(count, bool)
    wides = []
    for dimension, spans in enumerate(dimensions):
        segments = len(view.edges[dimension]) + 1
        rows, held = _copies(spans, segments)
        overlaps = np.bincount(rows, minlength=count)
        wide = spans.everywhere | (overlaps > max(1, widest * segments))
        kept = ~wide[rows]
        subscriptions.append(rows[kept])
        sets.append(view.bases[dimension] + held[kept])
        wides.append(wide)
        wide_in_all &= wide
    for dimension, wide in enumerate(wides):
        rows = np.flatnonzero(wide & ~wide_in_all)
        subscriptions.append(rows)
        sets.append(np.full(len(rows), view.candidates + dimension))
    rows = np.flatnonzero(wide_in_all)
    subscriptions.append(rows)
    sets.append(np.full(len(rows), view.catch_all))
    return np.concatenate(subscriptions), np.concatenate(sets)


def _copies(spans: Spans, segments: int) -> tuple[Numbers, Numbers]:
    """(subscription, segment) for every segment that a subscription overlaps, once each."""
    lengths = spans.last - spans.first + 1
    starts = np.repeat(spans.first - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    held = starts + np.arange(lengths.sum())
    keys = np.unique(np.repeat(spans.subscriptions, lengths) * segments + held)
    return keys // segments, keys % segments


def route(segments: Sequence[Numbers], view: View) -> Numbers:
    """The candidate of each event, from its segment in each dimension: the cheapest, the first of equals."""
    costs = np.stack([cost[held] for cost, held in zip(view.costs, segments, strict=True)])
    cheapest = np.argmin(costs, axis=0)
    held = np.stack(list(segments))[cheapest, np.arange(len(cheapest))]
    return np.asarray(view.bases[cheapest] + held)


def loads(sets: Numbers, view: View) -> tuple[npt.NDArray[np.float64], ...]:
    """What an event costs at each candidate, by the subscriptions that it would be compared with there."""
    sizes = np.bincount(sets, minlength=view.catch_all + 1).astype(np.float64)
    everywhere = sizes[view.catch_all]
    return tuple(
        sizes[view.bases[d] : view.bases[d + 1]] + sizes[view.candidates + d] + everywhere
        for d in range(len(view.edges))
    )
