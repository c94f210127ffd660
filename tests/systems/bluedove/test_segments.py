"""A View of BlueDove for more matchers, or fewer: section III-C."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.systems import PlacementError, meet, place, statistics_of
from tidings.systems.bluedove import placement as bluedove
from tidings.systems.bluedove.forwarding import Load
from tidings.systems.bluedove.placement import View, sizes, with_load
from tidings.systems.bluedove.segments import joined, left, relieved, resized
from tidings.testing.workloads import WORKLOADS


def known(subscriptions: int = 1_000, events: int = 200) -> tuple[Any, Any]:
    workload = WORKLOADS["bluedove"](subscriptions, events)
    filters = compile_filters(workload.filters, workload.domain)
    return filters, read_events(workload.events, workload.domain)


def idle(view: View) -> Load:
    return Load(view.costs, np.zeros(view.candidates), np.ones(view.candidates), np.full(view.candidates, 1e3))


def test_a_newcomer_takes_half_of_the_hottest_segments_and_gives_all_back_on_leaving() -> None:
    filters, events = known()
    view = bluedove.adapt(statistics_of(filters, events), partitions=4, matchers=4)
    view = replace(view, copies=100, costs=np.zeros(16))  # as in the paper, where nothing is held for a whole dimension
    view = replace(view, costs=sizes(place(filters, view), view))
    wanted = meet(filters, events, view).pairs
    larger = joined(view, filters)
    assert (larger.partitions, larger.epoch) == (5, view.epoch + 1)
    for dimension, edges in enumerate(larger.edges):
        assert len(edges) == len(view.edges[dimension]) + 1
        assert (larger.assignment[larger.bases[dimension] : larger.bases[dimension + 1]] == 4).sum() == 1
    assert larger.costs.max() < view.costs.max()
    smaller = left(larger, 1, filters)
    assert (smaller.partitions, smaller.epoch) == (4, view.epoch + 2)
    for changed in (larger, smaller):
        assert all((np.diff(edges) > 0).all() for edges in changed.edges)  # no gap, no overlap
        assert meet(filters, events, changed).pairs == wanted
    with pytest.raises(PlacementError, match="last matcher"):
        left(replace(view, assignment=np.zeros(16, np.int64)), 0, filters)


@pytest.mark.parametrize("partitions", [3, 4, 6, 11])
def test_a_view_for_other_partitions_keeps_the_segments_that_are_not_divided(partitions: int) -> None:
    filters, events = known()
    view = bluedove.adapt(statistics_of(filters, events), partitions=4)
    changed = resized(view, partitions, filters)
    assert changed.partitions == partitions
    assert changed.epoch == view.epoch + (partitions != 4)
    for before, after in zip(view.edges, changed.edges, strict=True):
        few, many = sorted((before.tolist(), after.tolist()), key=len)
        assert set(few) <= set(many)
    assert meet(filters, events, changed).pairs == meet(filters, events, view).pairs


def test_the_segments_that_were_measured_to_be_busy_are_divided_though_others_hold_more() -> None:
    filters, events = known()
    view = bluedove.adapt(statistics_of(filters, events), partitions=4)
    for busy in range(4):
        arrivals = np.where(np.arange(view.candidates) % 4 == busy, 900.0, 1.0)
        loaded = with_load(view, replace(idle(view), arrivals=arrivals))
        changed = resized(loaded, 5, filters)
        for dimension in range(len(view.paths)):
            new = set(changed.edges[dimension].tolist()) - set(view.edges[dimension].tolist())
            (cut,) = new
            assert np.searchsorted(view.edges[dimension], cut, side="right") == busy


def test_a_matcher_is_added_when_one_has_more_to_do_than_it_can() -> None:
    filters, events = known()
    view = bluedove.adapt(statistics_of(filters, events), partitions=4)
    assert relieved(view, filters) is view  # nothing is measured
    calm = with_load(view, idle(view))
    assert relieved(calm, filters) is calm
    late = with_load(view, replace(idle(view), arrivals=np.where(view.assignment == 2, 400.0, 1.0)))
    assert relieved(late, filters).partitions == 5


def test_a_view_that_cannot_be_divided_has_fewer_partitions_than_asked_for() -> None:
    plane = Domain("plane", [Attribute("x", "int")])
    filters = compile_filters([f"x = {number % 3}" for number in range(30)], plane)
    view = bluedove.adapt(statistics_of(filters), partitions=2)
    assert resized(view, 20, filters).partitions < 20
    assert len(place(filters, resized(view, 20, filters))) >= 30
    assert sizes(place(filters, view), view).sum() >= 30
