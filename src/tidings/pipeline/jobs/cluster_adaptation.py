"""Clusters of a million subscriptions, in steps and approximately: jobs on Spark.

Tasks lay a grid over the centres of boxes
and count, cell by cell (*micro-clusters*, at most MICRO_MAX); the driver joins cells that touch, finds the minimum
spanning tree of that graph by Borůvka's rounds, and cuts its longest edges. Centres of one cell are taken for one, and
cells that do not touch for neighbours only along an axis.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

from tidings.model.domain import Domain
from tidings.model.event import EventBatch
from tidings.pipeline.build.build_tasks import read_table
from tidings.pipeline.job_errors import told_briefly
from tidings.pipeline.jobs.adaptation import divided, packed
from tidings.systems.clusters import placement as clusters
from tidings.systems.clusters.clustering import boruvka, components, kmeans, neighbours
from tidings.systems.clusters.groups import Quality, quality
from tidings.systems.statistics import Statistics

MICRO_MAX = 100_000
FINENESS = 64  # cells of an axis that centres are counted in, at first

_WIDE = 0.5  # of an axis: past which on every axis a subscription has no part in the making of clusters
_MOST_MEANS = 4_000  # micro-clusters that k-means is run over
_JUDGING = 2_000  # events that tell which way is the best: each is compared with every sampled subscription


@dataclass(frozen=True, eq=False)
class MicroClusters:
    """Cells of a grid over the centres of boxes: how many boxes each has, the sum of their ends, their hull."""

    cells: npt.NDArray[np.int64]  # cells × axes
    counts: npt.NDArray[np.int64]
    sums: npt.NDArray[np.float64]  # of first and last cells of the axes: cells × 2 axes
    lows: npt.NDArray[np.int64]
    highs: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def means(self) -> npt.NDArray[np.float64]:
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


def cut_by_boruvka(micro: MicroClusters, ends: Any, wanted: int) -> npt.NDArray[np.int64]:
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


def clustered_over(
    subscriptions: DataFrame, statistics: Statistics, view: clusters.View, wanted: int | None = None
) -> tuple[clusters.View, dict[str, Quality]]:
    """The clusters of all subscriptions on the axes of a View made from a sample: the best of the ways there are.

    By the spanning tree, by k-means over the micro-clusters, and those of the sample itself: the one whose events meet
    the fewest subscriptions in vain.
    """
    domain = statistics.filters.domain
    ends = np.array([len(edges) + 1 for edges in view.edges], np.int64)
    with told_briefly():
        task = partial(_count_boxes, domain, view)
        rows = divided(subscriptions, statistics.subscriptions)
        parts = [pickle.loads(row.part) for row in rows.mapInArrow(task, "part binary").collect()]
    micro = joined_micro(parts)
    if not len(micro):
        return view, {}
    count = wanted or view.count
    ways = {"sample": view}
    for way, label in (("boruvka", cut_by_boruvka(micro, ends, count)), ("kmeans", _by_means(micro, ends, count))):
        order = np.argsort(label, kind="stable")
        starts = np.searchsorted(label[order], np.arange(label.max() + 1))
        lows = np.minimum.reduceat(micro.lows[order], starts, axis=0)
        highs = np.maximum.reduceat(micro.highs[order], starts, axis=0)
        blank = replace(
            view, lows=lows, highs=highs, sizes=np.zeros(len(lows)), assignment=np.zeros(len(lows), np.int64)
        )
        ways[way] = clusters.sized(blank, statistics, view.partitions)
    if statistics.events is None or not statistics.events.count:
        return ways["kmeans"], {}
    judging = _some(statistics.events, _JUDGING)
    found = {way: quality(statistics.filters, judging, made) for way, made in ways.items()}
    best = min(ways, key=lambda way: (found[way].false_negatives, found[way].delivered))
    return ways[best], found


def _some(events: EventBatch, wanted: int) -> EventBatch:
    """About so many of the events, at equal distances."""
    chosen = np.arange(0, events.count, max(1, events.count // wanted))
    columns = {path: column.take(chosen) for path, column in events.columns.items()}
    return EventBatch(events.domain, len(chosen), columns, events.rows[chosen], [], None)


def _by_means(micro: MicroClusters, ends: Any, wanted: int) -> npt.NDArray[np.int64]:
    """k-means over a grid so coarse that it has few cells; each micro-cluster is in the cluster of its coarse cell."""
    coarse, label = micro.cells, np.arange(len(micro))
    while len(np.unique(label)) > _MOST_MEANS:
        coarse = coarse // 2
        label = np.unique(coarse, axis=0, return_inverse=True)[1].reshape(-1)
    label = np.unique(label, return_inverse=True)[1].reshape(-1)
    mass = np.bincount(label, micro.counts).astype(np.float64)
    points = np.stack([np.bincount(label, axis) / mass for axis in micro.sums.T], axis=1) / np.concatenate([ends, ends])
    if len(points) <= wanted:
        return np.asarray(label, np.int64)
    return kmeans(points, mass, wanted)[label]


def _count_boxes(domain: Domain, view: clusters.View, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    given = list(batches)
    if not given:
        return
    filters = read_table(pa.Table.from_batches(given), domain).filters
    lows, highs = clusters.boxes_in(filters, view.paths, view.edges)
    yield packed(micro_clusters_of(lows, highs, np.array([len(edges) + 1 for edges in view.edges], np.int64)))
