"""The space that clusters lie in: boxes and points in cells, by the axes of the clusters' placement.

A cluster is a box; a *division* is all clusters of one generation. Divisions are merged like any shared state: the
newer generation counts, and of one generation the union of what is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tidings.filter.compile.compiler import compile_filters
from tidings.model.event import read_events
from tidings.model.event_json import parse_events
from tidings.systems.clusters import placement as law
from tidings.systems.clusters.clustering import Method
from tidings.systems.geometry.rtree import RTree, rtree_of
from tidings.systems.interface import Numbers
from tidings.systems.protocols.content import REMEMBERED, Content
from tidings.systems.protocols.effects import Event, Id
from tidings.systems.protocols.ring_ids import hashed

TREES = 256  # divisions whose R-trees are remembered


class CellBox(NamedTuple):
    """A box: the first and the last cell on each axis."""

    lows: tuple[int, ...]
    highs: tuple[int, ...]

    def meets(self, other: CellBox) -> bool:
        return all(a <= d and c <= b for a, b, c, d in zip(*self, *other, strict=True))

    def contains(self, other: CellBox) -> bool:
        return all(a <= c and d <= b for a, b, c, d in zip(*self, *other, strict=True))

    @property
    def volume(self) -> int:
        volume = 1
        for low, high in zip(*self, strict=True):
            volume *= high - low + 1
        return volume


class ClusterDivision(NamedTuple):
    generation: int
    proposer: Id
    clusters: tuple[CellBox, ...]  # ascending

    @property
    def age(self) -> tuple[int, Id]:
        return self.generation, self.proposer

    def with_clusters(self, more: Iterable[CellBox]) -> ClusterDivision:
        return self._replace(clusters=tuple(sorted({*self.clusters, *more})))


class Preference(NamedTuple):
    """Subscriptions that are alike in the space: the boxes whose union each of them is."""

    boxes: tuple[CellBox, ...]
    subscriptions: int  # that are alike

    def meets(self, cluster: CellBox) -> bool:
        return any(cluster.meets(box) for box in self.boxes)


class Drop(NamedTuple):
    """Events of one point that a publisher dropped, for no cluster contained them."""

    point: CellBox
    events: int


class Space:
    """The axes, and where filters and events lie on them."""

    def __init__(self, axes: law.View, content: Content) -> None:
        self.axes = self.view = axes
        self.content = content
        self.boxes = lru_cache(REMEMBERED)(self._boxes)
        self._point_of = lru_cache(REMEMBERED)(self._point)
        self.tree = lru_cache(TREES)(self._tree)

    def has(self, box: CellBox) -> bool:
        """Whether this is a box of the space: as many axes, and cells that there are."""
        counts = [len(edges) + 1 for edges in self.axes.edges]
        return len(box.lows) == len(box.highs) == len(counts) and all(
            low <= high <= count for low, high, count in zip(*box, counts, strict=True)
        )

    def point(self, event: Event) -> CellBox:
        return self._point_of(event.body)

    def _boxes(self, text: str) -> tuple[CellBox, ...]:
        filters = compile_filters([text], self.content.domain, plans=False)
        lows, highs = law.boxes_in(filters, self.axes.paths, self.axes.edges)
        return tuple(CellBox(tuple(low), tuple(high)) for low, high in zip(lows.tolist(), highs.tolist(), strict=True))

    def _point(self, body: str) -> CellBox:
        batch = read_events(parse_events(body), self.content.domain)
        at = tuple(law.points_of(batch, self.axes)[0].tolist())
        return CellBox(at, at)

    # The R-tree of a division's clusters (Casalicchio et al., section 4.2)

    def _tree(self, clusters: tuple[CellBox, ...]) -> RTree:
        return rtree_of(*self._corners(clusters))

    def _corners(self, boxes: Sequence[CellBox]) -> tuple[Numbers, Numbers]:
        """The first and the last cells of boxes (boxes × axes)."""
        shape = (len(boxes), len(self.axes.paths))
        lows, highs = ([corner for box in boxes for corner in box[end]] for end in (0, 1))
        return np.array(lows, np.int64).reshape(shape), np.array(highs, np.int64).reshape(shape)

    def meeting(self, clusters: tuple[CellBox, ...], boxes: Sequence[CellBox]) -> list[CellBox]:
        """Returns the clusters that meet one of the boxes."""
        _, found = self.tree(clusters).intersecting(*self._corners(boxes))
        return [clusters[number] for number in np.unique(found).tolist()]

    def holding(self, clusters: tuple[CellBox, ...], box: CellBox) -> list[CellBox]:
        """Returns the clusters that a box, or a point, lies within."""
        _, found = self.tree(clusters).holding(*self._corners([box]))
        return [clusters[number] for number in sorted(found.tolist())]

    def false_negatives(
        self, preferences: Sequence[Preference], drops: Sequence[Drop], clusters: tuple[CellBox, ...]
    ) -> int:
        """Returns FN(I): of the dropped events of a window, (event, subscription) pairs such that the event lies in the
        subscription and in no cluster."""
        outside = [drop for drop in drops if not self.holding(clusters, drop.point)]
        boxes = [box for preference in preferences for box in preference.boxes]
        if not outside or not boxes:
            return 0
        points, _ = self._corners([drop.point for drop in outside])
        number = np.repeat(np.arange(len(preferences)), [len(preference.boxes) for preference in preferences])
        event, held = law.held_pairs(points, *self._corners(boxes), number)
        events = np.array([drop.events for drop in outside])
        subscriptions = np.array([preference.subscriptions for preference in preferences])
        return int((events[event] * subscriptions[held]).sum())

    def group(self, division: ClusterDivision, box: CellBox, bits: int) -> Id:
        """Where a cluster's tree is rooted: the hash of domain, generation and centroid (and of its extent)."""
        centroid = tuple(low + high for low, high in zip(*box, strict=True))
        name = f"{self.content.domain.name} {division.generation} {division.proposer} {centroid} {box.lows}"
        return hashed(name, bits)

    def clustered(self, boxes: Iterable[CellBox], clusters: int, method: Method) -> tuple[CellBox, ...]:
        """Bounding boxes of at most so many clusters, and of what has no part in clustering, for all to be covered."""
        given = list(dict.fromkeys(boxes))
        if not given:
            return ()
        lows, highs = law.clustered(*self._corners(given), self.axes.edges, clusters, method)
        made = [CellBox(tuple(a), tuple(b)) for a, b in zip(lows.tolist(), highs.tolist(), strict=True)]
        for box in sorted(given, key=lambda box: -box.volume):  # too wide to be clustered
            if not any(cluster.contains(box) for cluster in made):
                made.append(box)
        return tuple(sorted(set(made)))
