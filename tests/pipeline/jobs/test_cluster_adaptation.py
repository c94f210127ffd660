"""Clusters of all subscriptions, found part by part, are those of the whole, and the best way to them is taken."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidings.pipeline.jobs.adaptation import (
    Adapted,
    MicroClusters,
    adapt,
    cut_by_boruvka,
    joined_micro,
    micro_clusters_of,
)
from tidings.testing import workloads

pytestmark = pytest.mark.spark

BOXES = workloads.bluedove(3000, 3000)


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Adapted:
    table = pa.table({"id": range(3000), "filter": BOXES.filters})
    events = spark.createDataFrame(BOXES.events).repartition(3)
    return adapt(spark.createDataFrame(table).repartition(3), events, names=["clusters"], partitions=4)


def test_the_best_way_to_cluster_all_subscriptions_is_taken(found: Adapted) -> None:
    assert set(found.clustering) == {"sample", "boruvka", "kmeans"}
    assert all(quality.false_negatives == 0 for quality in found.clustering.values())
    chosen = found.views["clusters"]
    events = found.statistics.events
    assert events is not None
    assert chosen.mode == "strict"
    assert chosen.sizes.sum() > 0


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


def test_the_spanning_tree_is_cut_between_what_lies_apart() -> None:
    rng = np.random.default_rng(2)
    centres = np.repeat([[20, 20], [60, 90], [110, 30]], 500, axis=0) + rng.integers(-8, 9, (1500, 2))
    micro: MicroClusters = micro_clusters_of(centres - 2, centres + 2, np.array([129, 129]))
    label = cut_by_boruvka(micro, np.array([129, 129]), 3)
    assert sorted(np.bincount(label, micro.counts).tolist()) == [500, 500, 500]
