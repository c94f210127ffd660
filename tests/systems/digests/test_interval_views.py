"""Views with other intervals: when they are made, and what they leave as it is."""

from __future__ import annotations

import numpy as np
import pytest

from tidings.model.domain import Attribute, Domain
from tidings.systems.digests.interval_views import AdaptSettings, IntervalViews
from tidings.systems.digests.messages import IntervalEdges, IntervalView, ValueReport, ValueSample
from tidings.systems.digests.placement import adapt
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Event

LOTS = Domain(
    "lots",
    [Attribute("kind", "string", allowed=["a", "b"]), Attribute("weight", "int", min=0, max=1600)],
    indices=[("weight",), ("kind",)],
)
CONTENT = Content(LOTS)
VIEWS = IntervalViews(adapt(CONTENT.statistics, partitions=1), CONTENT, 32)


def report(places: list[int], events: int | None = None) -> ValueReport:
    return ValueReport(len(places) if events is None else events, (ValueSample("weight", tuple(sorted(places))),))


def light(count: int) -> list[int]:
    return np.random.default_rng(2).integers(0, 100, count).tolist()


def test_the_first_view_has_intervals_of_equal_width() -> None:
    (division,) = VIEWS.first.divisions
    assert division.attribute == "weight"
    assert len(division.edges) == 15
    assert division.edges == pytest.approx(range(100, 1600, 100), abs=1)


def test_intervals_become_those_of_equal_probability() -> None:
    places = light(400)
    made = VIEWS.adapted(VIEWS.first, [report(places[:200]), report(places[200:])], AdaptSettings())
    assert made is not None
    ((name, edges),) = made
    assert name == "weight"
    counts = np.bincount(np.searchsorted(edges, places, side="right"))
    assert len(counts) == 16
    assert counts.max() < 2 * counts.mean()


def test_a_report_of_many_events_weighs_as_much_as_they_do() -> None:
    heavy = [1500 + place for place in light(100)]
    made = VIEWS.adapted(VIEWS.first, [report(light(100), events=1_000), report(heavy, events=10)], AdaptSettings())
    assert made is not None
    assert sum(edge < 100 for edge in made[0].edges) >= 14


def test_the_view_stays_while_the_sample_is_small_or_others_gain_little() -> None:
    even = list(range(0, 1600, 4))
    assert VIEWS.adapted(VIEWS.first, [report(light(199))], AdaptSettings()) is None
    assert VIEWS.adapted(VIEWS.first, [report(even)], AdaptSettings()) is None
    assert VIEWS.adapted(VIEWS.first, [], AdaptSettings()) is None


def test_groups_of_another_view_are_others_and_filter_and_event_meet_in_each() -> None:
    event = Event("e", '{"kind": "a", "weight": 30}')
    views = [
        VIEWS.first,
        IntervalView(1, 5, (IntervalEdges("weight", (10, 20, 40)),)),
        IntervalView(1, 6, (IntervalEdges("weight", (10, 20, 40)),)),
    ]
    met = [set(VIEWS.at(view).held("weight BETWEEN 25 AND 35")) & set(VIEWS.at(view).visited(event)) for view in views]
    assert [len(groups) for groups in met] == [1, 1, 1]
    assert len(set.union(*met)) == 3


def test_values_are_sampled_where_a_line_has_intervals() -> None:
    assert VIEWS.sampled(Event("e", '{"kind": "a", "weight": 30}')) == (30,)
    assert VIEWS.sampled(Event("e", '{"kind": "a"}')) == (None,)


def test_a_view_with_other_attributes_or_edges_that_do_not_ascend_is_impossible() -> None:
    assert VIEWS.is_possible(IntervalView(3, 1, (IntervalEdges("weight", (1, 2)),)))
    assert not VIEWS.is_possible(IntervalView(3, 1, ()))
    assert not VIEWS.is_possible(IntervalView(3, 1, (IntervalEdges("kind", (1, 2)),)))
    assert not VIEWS.is_possible(IntervalView(3, 1, (IntervalEdges("weight", (2, 2)),)))
    assert not VIEWS.is_possible(IntervalView(3, 1, (IntervalEdges("weight", tuple(range(5_000))),)))
