"""Whoever matches an event at its candidate finds there every subscription that the event satisfies, once."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.model.event import read_events
from tidings.model.filter.compile import compile_filters
from tidings.pipeline.segmentation import Segmentation, segmented
from tidings.rendezvous.bluedove import Spans, View, edges_at_quantiles, place, route, segments_of
from tidings.testing.cases import make_case
from tidings.testing.workloads import WORKLOADS


def view_of(*edges: list[int]) -> View:
    made = tuple(np.array(part) for part in edges)
    return View(made, tuple(np.zeros(len(part) + 1) for part in made))


def spans(rows: list[tuple[int, int, int]], count: int, everywhere: tuple[int, ...] = ()) -> Spans:
    subscriptions, first, last = np.array(rows, np.int64).reshape(-1, 3).T
    mask = np.zeros(count, bool)
    mask[list(everywhere)] = True
    return Spans(subscriptions, first, last, mask)


def copies(dimensions: list[Spans], view: View) -> set[tuple[int, int]]:
    rows, sets = place(dimensions, view)
    made = list(zip(rows.tolist(), sets.tolist(), strict=True))
    assert len(set(made)) == len(made), "a set holds a subscription twice"
    return set(made)


def test_a_subscription_is_copied_to_every_segment_that_it_overlaps_in_each_dimension() -> None:
    view = view_of([10, 20, 30], [5])
    assert copies([spans([(0, 1, 2)], 1), spans([(0, 0, 0)], 1)], view) == {(0, 1), (0, 2), (0, 4)}


def test_a_subscription_that_is_wide_in_a_dimension_is_held_once_for_the_dimension() -> None:
    view = view_of([10, 20, 30], [5])
    assert copies([spans([(0, 0, 3)], 1), spans([(0, 1, 1)], 1)], view) == {(0, 5), (0, 6)}


def test_a_subscription_that_is_wide_in_every_dimension_is_held_once_for_all() -> None:
    view = view_of([10], [5])
    assert copies([spans([], 1, (0,)), spans([], 1, (0,))], view) == {(0, view.catch_all)}


def test_a_filter_that_no_event_matches_is_held_nowhere() -> None:
    assert copies([spans([], 1)], view_of([10])) == set()


def test_an_event_goes_to_its_cheapest_candidate_and_to_the_first_of_equals() -> None:
    view = View((np.array([10]), np.array([5])), (np.array([3.0, 1.0]), np.array([2.0, 1.0])))
    assert route([np.array([0, 1, 0]), np.array([0, 1, 1])], view).tolist() == [2, 1, 3]


def test_a_candidate_consults_its_own_set_its_dimensions_wide_ones_and_the_catch_all() -> None:
    view = view_of([10, 20], [5])
    assert [view.consulted(candidate) for candidate in range(5)] == [
        (0, 5, 7), (1, 5, 7), (2, 5, 7), (3, 6, 7), (4, 6, 7),
    ]  # fmt: skip


def test_edges_divide_the_places_evenly_and_a_place_on_an_edge_begins_a_segment() -> None:
    edges = edges_at_quantiles(np.arange(100), 4)
    assert edges.tolist() == [25, 50, 75]
    assert segments_of(np.array([0, 24, 25, 99]), edges).tolist() == [0, 0, 1, 3]


def check_rendezvous(filters: Any, events: Any, domain: Domain, *, segments: int) -> None:
    """Every match is with a subscription that exactly one of the sets holds that the event's candidate consults."""
    table = compile_filters(filters, domain)
    made = segmented(table, segments)
    if made is None:
        return
    rows, sets = made.place(table)
    held = [set(rows[sets == number].tolist()) for number in range(made.sets)]
    columns = read_events(events, domain).columns
    candidates = made.route([columns[path] for path in made.paths])
    found = Matcher(pa.table({"id": np.arange(len(filters)), "filter": filters}), domain, threads=1).match(events)
    for event, candidate in enumerate(candidates.tolist()):
        consulted = [held[number] for number in made.view.consulted(candidate)]
        for subscription in found.of(event):
            assert sum(subscription in part for part in consulted) == 1, (event, filters[subscription])


@given(st.integers(0, 2**32))
@settings(max_examples=15)
def test_every_match_of_generated_filters_is_found_at_the_candidate_once(seed: int) -> None:
    case = make_case(Random(seed), events=20, filters=30)
    filters = pa.array([text for _, text in case.readable()], pa.string())
    check_rendezvous(filters, case.events, case.domain, segments=3)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_match_of_a_workload_is_found_at_the_candidate_once(name: str) -> None:
    workload = WORKLOADS[name](2_000, 500)
    check_rendezvous(workload.filters, workload.events, workload.domain, segments=6)


def test_a_segmentation_survives_being_written_and_read() -> None:
    workload = WORKLOADS["mixed"](2_000, 500)
    made = segmented(compile_filters(workload.filters, workload.domain), 6, ["n0", "c0"])
    assert made is not None
    again = Segmentation.from_dict(made.to_dict(), workload.domain)
    columns = read_events(workload.events, workload.domain).columns
    given = [columns[path] for path in made.paths]
    assert again.route(given).tolist() == made.route(given).tolist()
