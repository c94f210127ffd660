"""Clusters: Casalicchio et al.'s example, both readings of MST, MGI, MGM and MGC."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.systems import PlacementError, channels_of, meet, place, positions_of, route, statistics_of
from tidings.systems.clusters import placement as clusters
from tidings.systems.clusters.clustering import (
    boruvka,
    components,
    cut,
    kmeans,
    merged,
    micro_clusters,
    neighbours,
    spanning_tree,
)
from tidings.systems.clusters.placement import Prices, quality, reorganised
from tidings.systems.geometry.rtree import rtree_of

RESOURCES = Domain(
    "resources",
    [Attribute("capacity", "int", min=0, max=100), Attribute("cost", "int", min=10, max=1000),
     Attribute("reputation", "int", min=1, max=10)],
)  # fmt: skip
FIGURE_2 = "capacity BETWEEN 50 AND 85 AND cost BETWEEN 550 AND 650 AND reputation = 5"


def interests(count: int, seed: int, *, spots: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    hot = rng.random((max(1, spots), 3))
    texts = []
    for _ in range(count):
        at = rng.normal(hot[rng.integers(spots)], 0.04) if spots else rng.random(3)
        low = np.clip(at, 0, 0.9) * [100, 990, 9] + [0, 10, 1]
        high = low + np.array([8, 80, 1])
        bounds = zip(("capacity", "cost", "reputation"), low.astype(int), high.astype(int), strict=True)
        texts.append(" AND ".join(f"{name} >= {a} AND {name} <= {b}" for name, a, b in bounds))
    return texts


def offers(count: int, seed: int, *, share: float = 1.0) -> Any:
    rng = np.random.default_rng(seed)
    return read_events(
        [
            {"capacity": int(c * 101 * share), "cost": int(10 + d * 991 * share), "reputation": int(1 + r * 10)}
            for c, d, r in rng.random((count, 3))
        ],
        RESOURCES,
    )


def test_figure_2_is_held_by_the_clusters_that_it_intersects_and_an_offer_in_it_finds_it() -> None:
    filters = compile_filters([FIGURE_2, *interests(200, 1, spots=3)], RESOURCES)
    view = clusters.adapt(statistics_of(filters, offers(500, 2)), partitions=4, clusters=8)
    lows, highs = clusters.boxes_in(filters, view.paths, view.edges)
    meets = ((view.lows <= highs[0]) & (view.highs >= lows[0])).all(axis=1)
    placed = place(filters, view)
    mine = placed.subscriptions == 0
    assert channels_of(placed.keys[mine]).tolist() == [0] * mine.sum()
    assert set(positions_of(placed.keys[mine]).tolist()) == set(np.flatnonzero(meets).tolist())
    offer = read_events([{"capacity": 60, "cost": 600, "reputation": 5}], RESOURCES)
    assert (0, 0) in meet(filters, offer, view).pairs


def test_mgm_chooses_the_smallest_of_the_groups_that_contain_an_event() -> None:
    one = np.zeros((1, 1), np.int64)
    view = clusters.View(
        (("cost",),), (np.array([100, 200, 300]),), np.concatenate([one, one + 1, one + 1]),
        np.concatenate([one + 4, one + 2, one + 3]), np.array([50.0, 7.0, 3.0]), np.array([0, 1, 2]),
    )  # fmt: skip
    events = read_events([{"cost": cost} for cost in (50, 150, 250, 999, None)], RESOURCES)
    chosen = [int(positions_of(key)) for key in route(events, view).keys if channels_of(key) == 0]
    assert chosen == [2, 2, 2, 0, 0]


@pytest.mark.parametrize("method", ["merged", "cut", "kmeans"])
def test_every_way_of_clustering_covers_what_it_was_made_of(method: Any) -> None:
    filters, events = compile_filters(interests(300, 3, spots=5), RESOURCES), offers(200, 4)
    view = clusters.adapt(statistics_of(filters, events), partitions=3, clusters=10, method=method, mode="paper")
    assert quality(filters, events, view).false_negatives == 0
    lows, highs = clusters.boxes_in(filters, view.paths, view.edges)
    inside = ((view.lows[None] <= lows[:, None]) & (view.highs[None] >= highs[:, None])).all(axis=2)
    assert inside.any(axis=1).all()


def test_single_linkage_chains_on_uniform_data_and_the_other_ways_do_not() -> None:
    points = np.random.default_rng(5).random((800, 3))
    largest = {
        name: np.bincount(label).max()
        for name, label in (
            ("cut", cut(points, 20)), ("merged", merged(points, np.ones(800), 20)),
            ("kmeans", kmeans(points, np.ones(800), 20)),
        )
    }  # fmt: skip
    assert largest["cut"] > 0.9 * 800
    assert largest["merged"] < 0.5 * 800
    assert largest["kmeans"] < 0.15 * 800


def test_merging_recomputes_centroids_and_cutting_looks_at_edges() -> None:
    line = np.array([[0.0], [1.0], [2.1], [3.3], [4.6], [20.0]])
    assert cut(line, 2).tolist() == [0, 0, 0, 0, 0, 1]
    pairs = merged(line, np.ones(6), 3)
    assert pairs[0] == pairs[1] != pairs[3]
    assert pairs[5] not in pairs[:5].tolist()


def test_boruvka_finds_the_tree_that_prim_finds() -> None:
    points = np.random.default_rng(6).random((60, 2))
    ends = np.array([(i, j) for i in range(60) for j in range(i)])
    lengths = np.sqrt(((points[ends[:, 0]] - points[ends[:, 1]]) ** 2).sum(axis=1))
    _, prim = spanning_tree(points)
    assert np.isclose(lengths[boruvka(60, ends, lengths)].sum(), prim.sum())
    assert components(5, np.array([[0, 1], [3, 4]])).tolist() == [0, 0, 1, 2, 2]


def test_micro_clusters_and_their_neighbours_give_nearly_the_same_tree() -> None:
    points = np.random.default_rng(7).random((3_000, 2))
    label, cells = micro_clusters(points, 20)
    assert len(cells) <= 400
    sums = np.stack([np.bincount(label, axis) for axis in points.T], axis=1)
    centres = sums / np.bincount(label)[:, None]
    ends, lengths = neighbours(centres, cells)
    found = boruvka(len(centres), ends, lengths)
    assert len(found) == len(centres) - 1
    assert lengths[found].sum() < 1.05 * spanning_tree(centres)[1].sum()


def test_the_tree_of_boxes_finds_what_a_scan_finds() -> None:
    rng = np.random.default_rng(8)
    lows = rng.integers(0, 100, (300, 3))
    highs = lows + rng.integers(0, 30, (300, 3))
    asked = rng.integers(0, 110, (50, 3))
    query, box = rtree_of(lows, highs).intersecting(asked, asked + 5)
    found = set(zip(query.tolist(), box.tolist(), strict=True))
    meets = ((lows[None] <= asked[:, None] + 5) & (highs[None] >= asked[:, None])).all(axis=2)
    assert found == set(zip(*map(np.ndarray.tolist, np.nonzero(meets)), strict=True))
    assert len(query) == len(found)
    query, box = rtree_of(lows, highs).holding(asked, asked + 2)
    holds = ((lows[None] <= asked[:, None]) & (highs[None] >= asked[:, None] + 2)).all(axis=2)
    assert set(zip(query.tolist(), box.tolist(), strict=True)) == set(
        zip(*map(np.ndarray.tolist, np.nonzero(holds)), strict=True)
    )


def test_as_the_paper_has_it_newcomers_that_only_overlap_a_cluster_lose_events() -> None:
    before = compile_filters([text for text in interests(200, 9) if int(text.split()[2]) < 50], RESOURCES)
    after = compile_filters(interests(300, 10), RESOURCES)
    events = offers(400, 11)
    made = clusters.adapt(statistics_of(before, events), partitions=2, clusters=6, mode="paper")
    lost = quality(after, events, made).false_negatives
    assert lost > 0
    assert quality(after, events, replace(made, mode="strict")).false_negatives == 0


def test_groups_are_rebuilt_only_if_the_cost_test_says_so_and_with_fewer_if_needed() -> None:
    before = compile_filters(interests(100, 12, spots=2), RESOURCES)
    drifted, events = compile_filters(interests(300, 13), RESOURCES), offers(400, 14)
    made = clusters.adapt(statistics_of(before, events), partitions=2, clusters=6, mode="paper")
    known = statistics_of(drifted, events)
    lost = quality(drifted, events, made).false_negatives
    assert lost > 20
    assert reorganised(made, known, clusters=20, prices=Prices(1, 1e6, 0, 0)) is None  # γI·FN < K·γR
    anew = reorganised(made, known, clusters=20, prices=Prices(1, 1, 0, 0))
    assert anew is not None
    assert anew.epoch == made.epoch + 1
    assert quality(drifted, events, anew).false_negatives == 0
    fewer = reorganised(made, known, clusters=20, prices=Prices(1, lost / 10, 0, 0))
    assert fewer is not None
    assert fewer.count < 10
    with pytest.raises(PlacementError, match="statistics with events"):
        reorganised(made, statistics_of(drifted), clusters=5)
