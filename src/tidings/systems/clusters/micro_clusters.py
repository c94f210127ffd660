"""Clusters of millions of boxes, approximately: cells of a grid over their centres, counted in parts, then clustered.

Parts of a table are counted cell by cell (*micro-clusters*, at most MICRO_MAX) and joined. Cells that touch make a
graph, whose minimum spanning tree Borůvka's rounds find and whose longest edges are cut: single linkage. Centres of one
cell are taken for one, and cells that do not touch for neighbours only along an axis. Beside that, cells of a coarser
grid are merged two by two, and k-means is run over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidings.systems.clusters.clustering import boruvka, components, labels_of, neighbours
from tidings.systems.interface import Floats, Numbers

MICRO_MAX = 100_000
FINENESS = 64  # cells of an axis that centres are counted in, at first
MEANS_MAX = 4_000  # cells that k-means is run over
MERGED_MAX = 2_000  # cells that are merged two by two: each pair is compared

_WIDE = 0.5  # of an axis: past which on every axis a subscription has no part in the making of clusters


@dataclass(frozen=True, eq=False)
class MicroClusters:
    """Cells of a grid over the centres of boxes: how many boxes each has, the sum of their ends, their hull."""

    cells: Numbers  # cells × axes
    counts: Numbers
    sums: Floats  # of first and last cells of the axes: cells × 2 axes
    lows: Numbers
    highs: Numbers

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def means(self) -> Floats:
        return np.asarray(self.sums / self.counts[:, None])


def micro_clusters_of(lows: Any, highs: Any, ends: Any, fineness: int = FINENESS) -> MicroClusters:
    """Of boxes given by their first and last cells on each axis; those that are wide on every axis are left out."""
    narrow = ((highs - lows + 1) / (ends + 1)).min(axis=1, initial=1.0) <= _WIDE
    lows, highs = lows[narrow], highs[narrow]
    cells = np.clip(((lows + highs) / 2 / ends * fineness).astype(np.int64), 0, fineness - 1)
    sums = np.concatenate([lows, highs], axis=1).astype(np.float64)
    return _gathered(cells, np.ones(len(lows), np.int64), sums, lows, highs)


def joined_micro(parts: Sequence[MicroClusters], most: int = MICRO_MAX) -> MicroClusters:
    """One grid of several; twice as coarse, again and again, while it has too many cells."""
    cells, counts, sums, lows, highs = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("cells", "counts", "sums", "lows", "highs")
    )
    whole = _gathered(cells, counts, sums, lows, highs)
    while len(whole) > most:
        whole = _gathered(whole.cells // 2, whole.counts, whole.sums, whole.lows, whole.highs)
    return whole


def _gathered(cells: Any, counts: Any, sums: Any, lows: Any, highs: Any) -> MicroClusters:
    if not len(cells):
        return MicroClusters(cells, counts, sums, lows, highs)
    distinct, label = np.unique(cells, axis=0, return_inverse=True)
    order = np.argsort(label.reshape(-1), kind="stable")
    starts = np.searchsorted(label.reshape(-1)[order], np.arange(len(distinct)))
    return MicroClusters(
        distinct,
        np.add.reduceat(counts[order], starts),
        np.add.reduceat(sums[order], starts, axis=0),
        np.minimum.reduceat(lows[order], starts, axis=0),
        np.maximum.reduceat(highs[order], starts, axis=0),
    )


def cut_by_boruvka(micro: MicroClusters, ends: Any, wanted: int) -> Numbers:
    """The cluster of each micro-cluster: the spanning tree of those that touch, without its longest edges."""
    axes = micro.cells.shape[1]
    means = micro.means
    centres = (means[:, :axes] + means[:, axes:]) / 2 / ends
    if len(micro) <= wanted:
        return np.arange(len(micro))
    edges, lengths = neighbours(centres, micro.cells)
    tree = boruvka(len(micro), edges, lengths)
    kept = tree[np.argsort(lengths[tree], kind="stable")][: max(0, len(micro) - wanted)]
    return components(len(micro), edges[kept])


def labels_of_ways(micro: MicroClusters, ends: Any, wanted: int) -> dict[str, Numbers]:
    """Returns the cluster of each micro-cluster, by each way: both readings of MST, and k-means.

    Merging and k-means compare everything with everything, so they look at a grid so coarse that it has few cells.
    """
    axes = len(ends)
    coarse, mass, points = _coarsened(micro, ends, MEANS_MAX)
    fewer, fewer_mass, fewer_points = _coarsened(micro, ends, MERGED_MAX)
    centroids = (fewer_points[:, :axes] + fewer_points[:, axes:]) / 2
    return {
        "boruvka": cut_by_boruvka(micro, ends, wanted),
        "kmeans": labels_of("kmeans", points, mass, wanted)[coarse],
        "merged": labels_of("merged", centroids, fewer_mass, wanted)[fewer],
    }


def _coarsened(micro: MicroClusters, ends: Any, most: int) -> tuple[Any, Any, Any]:
    """The cell of each micro-cluster in a grid with at most so many, how many boxes each has, and their mean ends."""
    coarse, label = micro.cells, np.arange(len(micro))
    while len(np.unique(label)) > most:
        coarse = coarse // 2
        label = np.unique(coarse, axis=0, return_inverse=True)[1].reshape(-1)
    mass = np.bincount(label, micro.counts).astype(np.float64)
    points = np.stack([np.bincount(label, axis) / mass for axis in micro.sums.T], axis=1)
    return label, mass, points / np.concatenate([ends, ends])
