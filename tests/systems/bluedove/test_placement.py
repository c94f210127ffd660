"""BlueDove's segments, candidates and policies: Li et al., figures 2 to 4, and what the paper leaves to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tidings.errors import DomainError
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.compile.plan_execution import double_ordinals
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.systems import EVERYWHERE, PlacementError, channels_of, meet, place, positions_of, route, statistics_of
from tidings.systems.bluedove import placement as bluedove
from tidings.systems.bluedove.forwarding import Load, costs_of
from tidings.systems.bluedove.placement import View, assigned, sizes, with_load
from tidings.systems.geometry.line_positions import edges_at_quantiles, segments_of
from tidings.testing.workloads import WORKLOADS

TRAFFIC = Domain("traffic", [Attribute(name, "int") for name in ("latitude", "longitude", "speed")])
PLANE = Domain("plane", [Attribute("x", "int"), Attribute("y", "int")])


def view_of(domain: Domain, *edges: list[int], **given: Any) -> View:
    made = tuple(np.array(part, np.int64) for part in edges)
    candidates = sum(len(part) + 1 for part in made)
    paths = tuple(domain.leaves)[: len(edges)]
    defaults: dict[str, Any] = {"costs": np.zeros(candidates), "assignment": np.arange(candidates), "copies": 2}
    return View(paths, made, **defaults | given)


def test_figure_2_the_subscription_lands_on_f_by_latitude_c_by_longitude_ab_by_speed() -> None:
    # The printed bounds of longitude are inverted; between -60 and 0 is the third of six segments.
    view = view_of(
        TRAFFIC, [-60, -30, 0, 30, 60], [-120, -60, 0, 60, 120], [20, 40, 60, 80, 100],
        assignment=np.tile(np.arange(6), 3),
    )  # fmt: skip
    text = "latitude >= 70 AND latitude < 74 AND longitude >= -42 AND longitude < -41 AND speed >= 0 AND speed < 25"
    placed = place(compile_filters([text], TRAFFIC), view)
    by_dimension: dict[int, str] = {}
    for channel, owner in zip(channels_of(placed.keys).tolist(), view.owners(placed.keys).tolist(), strict=True):
        by_dimension[channel // view.levels] = by_dimension.get(channel // view.levels, "") + "ABCDEF"[owner]
    assert by_dimension == {0: "F", 1: "C", 2: "AB"}


def test_figure_3_the_message_goes_to_d_which_has_fewer_subscriptions() -> None:
    # X4 belongs to D with 4 subscriptions, Y1 to A with 13.
    view = view_of(PLANE, [10, 20, 30], [10, 20, 30], assignment=np.tile(np.arange(4), 2))
    view = replace(view, costs=np.array([7.0, 11.0, 6.0, 4.0, 13.0, 5.0, 5.0, 5.0]))
    routed = route(read_events([{"x": 35, "y": 5}], PLANE), view)
    assert [owner for owner in view.owners(routed.keys).tolist() if owner != EVERYWHERE] == [3]  # D


def test_figure_4_the_adaptive_policy_leaves_the_faster_matcher_in_time() -> None:
    """A is fast and idle, B slow; everything goes to A, whose queue has grown past B's long before it reports again."""
    reported = Load(
        subscriptions=np.array([10.0, 10.0]), queued=np.array([0.0, 20.0]), arrivals=np.array([200.0, 50.0]),
        served=np.array([100.0, 100.0]),
    )  # fmt: skip
    later = replace(reported, age_s=1.0)
    for policy, now, then in (("adaptive", 0, 1), ("response time", 0, 0)):
        assert np.argmin(costs_of(policy, reported)) == now  # type: ignore[arg-type]
        assert np.argmin(costs_of(policy, later)) == then  # type: ignore[arg-type]
    assert costs_of("adaptive", later).tolist() == [1.01, 0.01]  # (0 + (200 − 100) + 1) / 100, and never below 0
    with pytest.raises(PlacementError, match="no forwarding policy 'luck'"):
        costs_of("luck", reported)  # type: ignore[arg-type]


def test_a_new_report_is_a_new_view_and_the_same_view_always_routes_alike() -> None:
    workload = WORKLOADS["bluedove"](500, 300)
    filters, events = compile_filters(workload.filters, workload.domain), read_events(workload.events, workload.domain)
    view = bluedove.adapt(statistics_of(filters, events), partitions=5, policy="random", dimensions=list("abcd"))
    assert route(events, view).keys.tolist() == route(events, view).keys.tolist()
    dimensions = np.bincount(channels_of(route(events, view).keys)[:: view.levels + 1] // view.levels, minlength=4)
    assert dimensions.min() > 300 / 4 / 2  # any of the four, about as often
    idle = Load(view.costs, np.zeros(view.candidates), np.zeros(view.candidates), np.ones(view.candidates))
    busy = replace(idle, queued=np.where(np.arange(view.candidates) < view.bases[1], 1000.0, 0.0))
    moved = with_load(view, busy, policy="adaptive")
    assert moved.epoch == view.epoch + 1
    assert 0 not in channels_of(route(events, moved).keys).tolist()  # nothing goes to the busy dimension


def test_a_subscription_is_copied_to_the_segments_it_overlaps_a_wide_one_to_groups() -> None:
    view = view_of(PLANE, list(range(10, 160, 10)), copies=3, widths=(4,))
    filters = compile_filters(["x >= 25 AND x < 45", "x >= 5 AND x < 75", "x >= 0", "x < 0 OR x > 10"], PLANE)
    placed = place(filters, view)
    held: dict[int, list[tuple[int, int]]] = {}
    for row, key in zip(placed.subscriptions.tolist(), placed.keys, strict=True):
        held.setdefault(row, []).append((int(channels_of(key)), int(positions_of(key))))
    assert held[0] == [(0, 2), (0, 3), (0, 4)]  # segments 2 to 4 of sixteen
    assert held[1] == [(1, 0), (1, 1)]  # eight segments: two groups of four
    assert held[2] == [(view.catch_all, 0)]  # sixteen: the whole of the only dimension, so everywhere
    assert held[3] == [(view.catch_all, 0)]


def test_hierarchical_groups_store_fewer_copies_of_wide_ranges_and_find_the_same() -> None:
    workload = WORKLOADS["bluedove"](1_000, 200)
    filters, events = compile_filters(workload.filters, workload.domain), read_events(workload.events, workload.domain)
    known = statistics_of(filters, events)
    flat, grouped = (bluedove.adapt(known, partitions=64, fan_out=fan_out) for fan_out in (64, 4))
    assert len(place(filters, grouped)) < 0.6 * len(place(filters, flat))
    assert meet(filters, events, grouped).pairs == meet(filters, events, flat).pairs


def test_edges_divide_the_places_evenly_and_a_place_on_an_edge_begins_a_segment() -> None:
    edges = edges_at_quantiles(np.arange(100), 4)
    assert edges.tolist() == [25, 50, 75]
    assert segments_of(np.array([0, 24, 25, 99]), edges).tolist() == [0, 0, 1, 3]


def test_dimensions_are_those_in_which_an_event_meets_few_and_can_be_named() -> None:
    workload = WORKLOADS["mixed"](2_000, 200)
    filters = compile_filters(workload.filters, workload.domain)
    named = bluedove.adapt(statistics_of(filters), partitions=4, dimensions=["n0", "c0"])
    assert set(named.paths) == {("n0",), ("c0",)}
    with pytest.raises(DomainError, match="'nought' cannot be a dimension"):
        bluedove.adapt(statistics_of(filters), partitions=4, dimensions=["nought"])
    with pytest.raises(PlacementError, match="needs an attribute"):
        bluedove.adapt(statistics_of(compile_filters(["TRUE"], PLANE)), partitions=4)


def test_matchers_have_as_many_segments_of_each_dimension_and_about_as_much_to_do() -> None:
    workload = WORKLOADS["bluedove"](2_000, 1_000)
    filters, events = compile_filters(workload.filters, workload.domain), read_events(workload.events, workload.domain)
    known = statistics_of(filters, events)
    view = bluedove.adapt(known, partitions=8, matchers=8)
    for dimension in range(4):
        mine = view.assignment[view.bases[dimension] : view.bases[dimension + 1]]
        assert sorted(mine.tolist()) == list(range(8))
    assert np.array_equal(assigned(view, 8, events).assignment, view.assignment)
    routed = route(events, view)
    owners = view.owners(routed.keys)
    sent = routed.keys[owners >= 0]
    candidates = view.bases[channels_of(sent) // view.levels] + positions_of(sent)
    work = np.bincount(
        owners[owners >= 0], view.costs[candidates], 8
    )  # the subscriptions that events are compared with
    assert work.max() < 2 * work.mean()


def test_hot_spots_store_2_77_times_the_mean_in_a_and_d_and_1_73_times_in_b_and_c() -> None:
    """The paper says 2.7 times the density; counted are the copies in segments 50 wide, of 40,000 subscriptions."""
    workload = WORKLOADS["bluedove"](40_000, 1)
    filters = compile_filters(workload.filters, workload.domain)
    even = double_ordinals(np.arange(50.0, 1000.0, 50.0))
    view = View(tuple(filters.intervals), (even,) * 4, np.zeros(80), np.arange(80), copies=20)
    counts = sizes(place(filters, view), view).reshape(4, 20)
    assert counts.max(axis=1) / counts.mean(axis=1) == pytest.approx([2.77, 1.73, 1.73, 2.77], abs=0.05)


def test_there_are_as_many_partitions_as_asked_for_or_as_many_as_there_are_segments() -> None:
    workload = WORKLOADS["bluedove"](2_000, 200)
    filters, events = compile_filters(workload.filters, workload.domain), read_events(workload.events, workload.domain)
    for wanted in (2, 7, 20, 64):
        view = bluedove.adapt(statistics_of(filters, events), partitions=wanted)
        assert view.partitions == wanted
        assert len(view.paths) > 1
    few = compile_filters([f"x = {number % 3}" for number in range(30)], PLANE)
    view = bluedove.adapt(statistics_of(few), partitions=20)
    assert view.partitions == view.candidates < 20


def test_what_was_measured_is_in_the_view_and_is_written_and_read_with_it() -> None:
    view = view_of(PLANE, [10], [10])
    figures = [np.array(column, np.float64) for column in ([9, 4, 9, 4], [0, 3, 0, 0], [5, 5, 5, 5], [10, 10, 2, 2])]
    loaded = with_load(view, Load(*figures), policy="adaptive")
    read = View.from_dict(loaded.to_dict())
    assert read.load is not None
    assert read.costs.tolist() == loaded.costs.tolist() == [0.1, 0.4, 0.5, 0.5]
    assert read.load.to_dict() == Load(*figures).to_dict()
    assert View.from_dict({name: value for name, value in view.to_dict().items() if name != "load"}).load is None
