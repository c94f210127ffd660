"""Views of nodes follow from what a domain declares, and better from a sample of its events."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest

from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.simulator.workload import market
from tidings.systems import bluedove, chord, clusters, digests, opchord
from tidings.systems.interface import EVERYWHERE, place, placement_named
from tidings.systems.meeting import meet
from tidings.systems.statistics import Statistics, declared_statistics, sampled_statistics

PRICE = Attribute("price", "double", min=0.0, max=20.0, precision=0.01)
FREE = Attribute("note", "string")
NUMBERS = [Attribute(f"n{number}", "int", min=0, max=1000) for number in range(8)]


def declared(system: Any, *attributes: Attribute, indices: Any = ()) -> Any:
    domain = Domain("things", attributes, indices=indices)
    return placement_named(system.SYSTEM.name).adapt(declared_statistics(domain), partitions=1)


def held_everywhere(view: Any, *texts: str, attributes: list[Attribute]) -> list[bool]:
    """Whether each filter is held at every node."""
    placed = place(compile_filters(texts, Domain("things", attributes)), view)
    everywhere = view.owners(placed.keys) == EVERYWHERE
    return [bool(everywhere[placed.subscriptions == row].all()) for row in range(len(texts))]


def test_opchord_orders_values_by_min_max_and_precision() -> None:
    assert declared(opchord, PRICE).orders[("price",)].count == 2001


@pytest.mark.parametrize(
    ("attribute", "count"),
    [
        (Attribute("day", "date", min=datetime.date(2026, 1, 1), max=datetime.date(2026, 1, 31)), 31),
        (Attribute("at", "timestamp", min="2026-01-01T00:00:00Z", max="2026-01-01T00:00:09Z", precision=1_000_000), 10),
        (Attribute("cost", "decimal(10,2)", min="0.00", max="9.99"), 1000),
        (Attribute("wanted", "boolean"), 2),
    ],
)
def test_dates_times_decimals_and_booleans_have_the_values_they_declare(attribute: Attribute, count: int) -> None:
    assert declared(opchord, attribute).orders[attribute.path].count == count
    assert declared(clusters, attribute).paths == (attribute.path,)
    assert declared(digests, attribute).indices == ((attribute.path,),)


def test_allowed_texts_are_ordered_as_their_bytes_are() -> None:
    order = declared(opchord, Attribute("symbol", "string", allowed=["GAMMA", "ALPHA", "BETA"])).orders[("symbol",)]
    assert order.edges.tolist() == [b"ALPHA", b"BETA", b"GAMMA"]


def test_digests_without_declared_indices_have_one_of_each_attribute() -> None:
    attributes = [PRICE, FREE, Attribute("x", "double"), Attribute("user", "bigint")]
    view = declared(digests, *attributes)
    assert view.indices == ((("price",),), (("note",),), (("user",),))  # nothing divides a double without ends
    filters = ["price < 1", "note = 'a'", "user = 7", "x > 1"]
    assert held_everywhere(view, *filters, attributes=attributes) == [False, False, False, True]


def test_an_index_of_a_free_text_is_kept_and_serves_equality() -> None:
    attributes = [PRICE, FREE]
    view = declared(digests, *attributes, indices=[("note",), ("note", "price")])
    assert view.indices == ((("note",),), (("note",), ("price",)))
    assert held_everywhere(view, "note = 'a'", "price < 1", attributes=attributes) == [False, True]


def test_declared_intervals_have_as_many_values_each() -> None:
    edges = declared(digests, NUMBERS[0]).divisions[("n0",)].edges
    assert len(edges) == 15
    assert np.diff(edges).max() - np.diff(edges).min() <= 2


def test_clusters_have_as_many_axes_as_there_are_attributes_up_to_six() -> None:
    assert len(declared(clusters, *NUMBERS[:5]).paths) == 5
    assert len(declared(clusters, *NUMBERS).paths) == 6


def test_chord_has_a_list_for_every_attribute_whose_values_have_places() -> None:
    view = declared(chord, PRICE, FREE, Attribute("tags", "array<string>"))
    assert view.paths == (("price",), ("note",))


def sample_of(values: list[float], *attributes: Attribute) -> Statistics:
    domain = Domain("things", attributes or [Attribute("x", "double")])
    return sampled_statistics(read_events([{"x": value} for value in values], domain))


def test_a_sample_orders_values_by_how_they_are_distributed() -> None:
    known = sample_of([float(value) for value in [*range(100), *[1000] * 100]])
    view: Any = placement_named("opchord").adapt(known, partitions=1)
    fiftieth = view.orders[("x",)].offsets(np.array([50]), view.ring)
    assert fiftieth == pytest.approx(view.ring.size / 4, rel=0.05)  # half of the events have one value, far away


def test_a_sample_cuts_what_nothing_is_declared_of() -> None:
    known = sample_of([float(value**2) for value in range(1_000)])
    view: Any = placement_named("digests").adapt(known, partitions=1)
    assert view.indices == ((("x",),),)
    assert len(view.divisions[("x",)].edges) == 15
    axes: Any = placement_named("clusters").adapt(known, partitions=1, cells=16)
    assert [len(edges) for edges in axes.edges] == [15]


def test_what_a_sample_lacks_is_taken_as_it_is_declared() -> None:
    known = sample_of([1.0, 2.0], Attribute("x", "double"), PRICE, FREE)
    assert not known.along(("note",)).is_known
    assert known.along(("price",)).is_known
    assert known.along(("price",)).nulls == 0


def test_bluedove_cuts_segments_where_values_are_if_no_filter_is_known() -> None:
    domain = Domain("things", NUMBERS[:2])
    view: Any = bluedove_view(declared_statistics(domain))
    assert [len(edges) for edges in view.edges] == [3, 3]


def bluedove_view(known: Statistics) -> Any:
    return placement_named(bluedove.SYSTEM.name).adapt(known, partitions=4, dimensions=["n0", "n1"], segments=4)


@pytest.mark.parametrize("known", [declared_statistics, lambda domain: sampled_statistics(market().batch)])
@pytest.mark.parametrize("system", ["chord", "opchord", "digests", "clusters"])
def test_a_view_made_without_filters_finds_every_match(system: str, known: Any) -> None:
    pool = market()
    view = placement_named(system).adapt(known(pool.domain), partitions=4)
    found = {(pool.filters[row], pool.events[event]) for event, row in meet(pool.table, pool.batch, view).pairs}
    assert found == {(text, body) for text in pool.filters for body in pool.events if pool.matches(text, body)}
