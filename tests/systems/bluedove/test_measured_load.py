from __future__ import annotations

import numpy as np
import pytest

from tidings.model.domain import Attribute, Domain
from tidings.systems.bluedove.forwarding import POLICIES
from tidings.systems.bluedove.measured_load import measured_load
from tidings.systems.bluedove.placement import View, with_load
from tidings.systems.interface import keys_at
from tidings.systems.sharding import shards_of

PLANE = Domain("plane", [Attribute("x", "int"), Attribute("y", "int")])
VIEW = View(
    tuple(PLANE.leaves), (np.array([10]), np.array([10])), np.array([30.0, 10.0, 20.0, 20.0]), np.array([0, 1, 1, 0]), 2
)


def shard(dimension: int, segment: int) -> int:
    return int(shards_of(keys_at(dimension * VIEW.levels, np.array([segment])), VIEW)[0])


def test_a_candidate_has_the_load_that_its_shard_counted() -> None:
    counts = {
        shard(0, 0): (200, 900, 100_000_000),  # 2,000 a second could be
        shard(1, 1): (50, 900, 50_000_000),
        -1: (250, 3, 0),
        -2: (250, 3, 700),
        VIEW.catch_all << 20: (250, 10, 5),
    }
    load = measured_load(VIEW, counts, 0.05, VIEW.costs)
    assert load.arrivals.tolist() == [4_000, 0, 0, 1_000]
    assert load.served[[0, 3]].tolist() == pytest.approx([2_000, 1_000])
    assert load.queued.tolist() == pytest.approx([100, 0, 0, 0])  # in 50 ms 100 of the 200 can be matched
    # 150 ms for 200 × 30 + 50 × 20 comparisons
    assert load.served[1] == pytest.approx(7_000 / 0.15 / 10)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_in_force_by_what_was_measured(policy: str) -> None:
    load = measured_load(VIEW, {shard(0, 0): (200, 0, 400_000_000)}, 0.1, VIEW.costs)
    view = with_load(VIEW, load, policy=policy)  # type: ignore[arg-type]
    assert view.policy == policy
    assert view.load is load
    if policy in ("adaptive", "response time"):
        assert int(np.argmax(view.costs)) == 0


def test_a_stream_that_has_counted_nothing_yet_routes_by_subscriptions_alone() -> None:
    load = measured_load(VIEW, {}, 1.0, VIEW.costs)
    costs = with_load(VIEW, load, policy="adaptive").costs
    assert np.argsort(costs, kind="stable").tolist() == np.argsort(VIEW.costs, kind="stable").tolist()
