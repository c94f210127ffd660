"""The space that clusters lie in: boxes and points in cells, by the axes of the clusters' placement.

A cluster is a box; a *division* is all clusters of one generation. Divisions are merged like any shared state: the
newer generation counts, and of one generation the union of what is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tidings.filter.compile.compiler import compile_filters
from tidings.model.event import read_events
from tidings.model.event_json import parse_events
from tidings.systems.clusters import placement as law
from tidings.systems.clusters.clustering import Method
from tidings.systems.protocols.content import REMEMBERED, Content
from tidings.systems.protocols.effects import Event, Id
from tidings.systems.protocols.ring_ids import hashed


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


class Cluster(NamedTuple):
    box: CellBox
    size: int  # subscriptions when it was made: MGM prefers small groups


class ClusterDivision(NamedTuple):
    generation: int
    proposer: Id
    clusters: tuple[Cluster, ...]  # ascending

    @property
    def age(self) -> tuple[int, Id]:
        return self.generation, self.proposer

    def with_clusters(self, more: Iterable[Cluster]) -> ClusterDivision:
        known = {cluster.box: cluster for cluster in (*self.clusters, *more)}
        return self._replace(clusters=tuple(sorted(known.values())))


class Space:
    """The axes, and where filters and events lie on them."""

    def __init__(self, axes: law.View, content: Content) -> None:
        self.axes = self.view = axes
        self.content = content
        self.boxes = lru_cache(REMEMBERED)(self._boxes)
        self._point_of = lru_cache(REMEMBERED)(self._point)

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

    def group(self, division: ClusterDivision, box: CellBox, bits: int) -> Id:
        """Where a cluster's tree is rooted: the hash of domain, generation and centroid (and of its extent)."""
        centroid = tuple(low + high for low, high in zip(*box, strict=True))
        name = f"{self.content.domain.name} {division.generation} {division.proposer} {centroid} {box.lows}"
        return hashed(name, bits)

    def clustered(self, boxes: Iterable[CellBox], clusters: int, method: Method) -> tuple[Cluster, ...]:
        """Bounding boxes of at most so many clusters, and of what has no part in clustering, for all to be covered."""
        given = list(dict.fromkeys(boxes))
        if not given:
            return ()
        lows = np.array([box.lows for box in given], np.int64)
        highs = np.array([box.highs for box in given], np.int64)
        made_lows, made_highs = law.clustered(lows, highs, self.axes.edges, clusters, method)
        made = [CellBox(tuple(a), tuple(b)) for a, b in zip(made_lows.tolist(), made_highs.tolist(), strict=True)]
        for box in sorted(given, key=lambda box: -box.volume):  # too wide to be clustered
            if not any(cluster.contains(box) for cluster in made):
                made.append(box)
        return tuple(Cluster(box, sum(box.meets(other) for other in given)) for box in sorted(set(made)))
