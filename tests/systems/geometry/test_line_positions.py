"""Lines: edges at equal shares of weighted places, and how crowded segments are."""

from __future__ import annotations

import numpy as np
import pytest

from tidings.systems.geometry.line_positions import FEW, crowding, edges_at_shares, segments_of


def test_segments_between_edges_at_shares_weigh_about_as_much() -> None:
    rng = np.random.default_rng(1)
    places = rng.exponential(1_000, 2_000).astype(np.int64)
    weights = rng.random(2_000) * np.where(places > 2_000, 20.0, 1.0)
    edges = edges_at_shares(places, weights, 8)
    shares = np.bincount(segments_of(places, edges), weights) / weights.sum()
    assert len(edges) == 7
    assert shares.max() < 0.15
    assert crowding(places, weights, edges) == pytest.approx(1 / 8, rel=0.02)
    even = np.linspace(0, places.max(), 9).astype(np.int64)[1:-1]
    assert crowding(places, weights, even) > 1.3 / 8


def test_few_values_are_segments_by_themselves() -> None:
    places = np.repeat(np.arange(FEW) * 7, 5)
    assert edges_at_shares(places, np.ones(len(places)), 4).tolist() == sorted({*places.tolist()})


def test_two_values_lie_in_one_segment_as_often_as_their_weights_say() -> None:
    places, weights = np.array([1, 5, 9]), np.array([2.0, 1.0, 1.0])
    assert crowding(places, weights, np.array([5])) == pytest.approx(0.5)
    assert crowding(places, weights, np.array([], np.int64)) == pytest.approx(1.0)
    assert crowding(places, weights, np.array([5, 9])) == pytest.approx(0.25 + 2 / 16)
