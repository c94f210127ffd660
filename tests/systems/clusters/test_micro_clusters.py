"""Micro-clusters: counted in parts, and clustered in every way that adapting tries."""

from __future__ import annotations

import numpy as np

from tidings.systems.clusters.clustering import merged
from tidings.systems.clusters.micro_clusters import MERGED_MAX, joined_micro, labels_of_ways, micro_clusters_of

ENDS = np.array([129, 129])


def test_every_way_finds_groups_that_lie_apart() -> None:
    rng = np.random.default_rng(2)
    centres = np.repeat([[20, 20], [60, 90], [110, 30]], 500, axis=0) + rng.integers(-8, 9, (1500, 2))
    micro = micro_clusters_of(centres - 2, centres + 2, ENDS)
    ways = labels_of_ways(micro, ENDS, 3)
    assert set(ways) == {"boruvka", "kmeans", "merged"}
    for way, label in ways.items():
        assert sorted(np.bincount(label, micro.counts).tolist()) == [500, 500, 500], way


def test_merging_gives_what_merging_the_cells_by_their_weights_gives() -> None:
    rng = np.random.default_rng(3)
    lows = rng.integers(0, 120, (800, 2))
    micro = micro_clusters_of(lows, lows + 8, ENDS)
    assert len(micro) <= MERGED_MAX
    centroids = (micro.means[:, :2] + micro.means[:, 2:]) / 2 / ENDS
    expected = merged(centroids, micro.counts.astype(np.float64), 12)
    assert (labels_of_ways(micro, ENDS, 12)["merged"] == expected).all()


def test_more_cells_than_can_be_compared_are_brought_together_first() -> None:
    lows = np.random.default_rng(4).integers(0, 120, (20_000, 2))
    micro = micro_clusters_of(lows, lows + 8, ENDS)
    assert len(micro) > MERGED_MAX
    label = labels_of_ways(micro, ENDS, 10)["merged"]
    assert len(label) == len(micro)
    assert len(np.unique(label)) == 10


def test_micro_clusters_of_parts_are_those_of_the_whole() -> None:
    rng = np.random.default_rng(1)
    lows = rng.integers(0, 100, (5000, 3))
    highs = np.minimum(lows + rng.integers(0, 40, (5000, 3)), 129)
    ends = np.array([129, 129, 129])
    whole = micro_clusters_of(lows, highs, ends)
    parts = [micro_clusters_of(lows[part], highs[part], ends) for part in np.array_split(np.arange(5000), 7)]
    joined = joined_micro(parts)
    for name in ("cells", "counts", "sums", "lows", "highs"):
        assert (getattr(joined, name) == getattr(whole, name)).all()
    few = joined_micro(parts, most=200)
    assert len(few) <= 200
    assert few.counts.sum() == whole.counts.sum()
