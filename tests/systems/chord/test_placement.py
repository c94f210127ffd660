"""Chord's and OPChord's examples: Triantafillou and Aekaterinidis, figures 1, 2, 6 and 7, and where they err."""

from __future__ import annotations

import json
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pytest

from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.systems import (
    channels_of,
    meet,
    place,
    positions_of,
    route,
    statistics_of,
    view_from_dict,
    view_to_dict,
)
from tidings.systems.chord import placement as chord
from tidings.systems.geometry import hashed_values
from tidings.systems.geometry.node_ring import Ring, even_ring
from tidings.systems.opchord import placement as opchord
from tidings.systems.opchord.placement import Order, shares
from tidings.systems.statistics import Statistics

PRICE = {"type": "decimal(10,2)", "min": "0.00", "max": "20.00", "precision": "0.01"}
STOCKS = Domain(
    "stocks",
    [Attribute("Exchange", "string"), Attribute("Symbol", "string")]
    + [Attribute(name, **PRICE) for name in ("Price", "High", "Low")],
)
EVENT = {"Exchange": "NYSE", "Symbol": "OTE", "Price": "8.40", "High": "8.80", "Low": "8.22"}
FIGURE_2 = [
    "Exchange = 'NYSE' AND Symbol = 'OTE' AND Price < 8.70 AND Price > 8.30",
    "Symbol = 'OTE' AND Price = 8.20 AND Low < 8.05",
]
EIGHT = Domain("ring", [Attribute("a", "int", min=0, max=7, precision=1)])
FULL = Ring(3, tuple(range(8)))


def scattered_ring(nodes: int, bits: int = 48) -> Ring:
    """Nodes anywhere, as in a network of peers."""
    return Ring(bits, tuple(sorted(Random(0).sample(range(1 << bits), nodes))))


def stocks_event() -> Any:
    priced = {name: Decimal(EVENT[name]) for name in ("Price", "High", "Low")}
    return read_events([EVENT | priced], STOCKS)


def test_a_range_of_prices_is_held_at_each_of_its_39_values() -> None:
    filters = compile_filters(["8.30 < Price AND Price < 8.70"], STOCKS)
    placed = place(filters, chord.adapt(statistics_of(filters), partitions=4))
    assert len(placed) == 39


@pytest.mark.parametrize("placement", [chord, opchord])
def test_the_event_of_figure_1_matches_subscription_1_of_figure_2_in_3_lists_and_not_2(placement: Any) -> None:
    filters, events = compile_filters(FIGURE_2, STOCKS), stocks_event()
    interests = {"values_max": 2001} if placement is chord else {"empirical": False}
    view = placement.adapt(statistics_of(filters, events), partitions=8, **interests)
    assert meet(filters, events, view).pairs == [(0, 0)]
    placed = place(filters, view)
    lists = {int(row): set() for row in (0, 1)}
    for row, channel in zip(placed.subscriptions.tolist(), channels_of(placed.keys).tolist(), strict=True):
        lists[row].add(view.paths[channel][0])
    assert lists[0] == {"Exchange", "Symbol", "Price"}
    assert lists[1] == {"Symbol", "Price", "Low"}


def test_figure_6_chord_scatters_a_range_over_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = {1: 6, 2: 2, 3: 4}  # the paper's hash, of which it gives only these
    monkeypatch.setattr(
        hashed_values,
        "value_positions",
        lambda path, numbers, ring: np.array([figure[number] for number in numbers.tolist()]),
    )
    filters = compile_filters(["0 < a AND a < 4"], EIGHT)
    view = chord.adapt(statistics_of(filters), partitions=8, ring=FULL)
    placed = place(filters, view)
    assert sorted(FULL.members[owner] for owner in view.owners(placed.keys).tolist()) == [2, 4, 6]


def test_figure_7_opchord_holds_a_range_at_neighbours() -> None:
    filters = compile_filters(["0 < a AND a < 4"], EIGHT)
    made = opchord.adapt(statistics_of(filters), partitions=8, ring=FULL, empirical=False)
    order = Order(start=5, count=8, cells=made.orders["a",].cells)
    view = opchord.View(made.paths, FULL, {("a",): order})
    holders = view.owners(place(filters, view).keys).tolist()
    assert sorted(FULL.members[holder] for holder in holders) == [0, 6, 7]


def test_the_greatest_value_does_not_come_around_to_the_place_of_the_least() -> None:
    filters = compile_filters(["a = 0", "a = 7", "a = -5", "a = 99"], EIGHT)
    view = opchord.adapt(statistics_of(filters), partitions=8, ring=FULL, empirical=False)
    start = view.orders["a",].start
    held = positions_of(place(filters, view).keys).tolist()
    assert held == [start, (start + 7) % 8, start, (start + 7) % 8]  # and what is out of range stays at the ends


def test_positions_keep_the_order_of_values_and_are_exact_on_large_rings() -> None:
    numbers = np.arange(2001)
    assert shares(numbers, 2001, 48).tolist() == [(i << 48) // 2001 for i in range(2001)]


def test_a_walk_ends_by_distance_also_where_an_arc_is_nearly_the_whole_ring() -> None:
    ring = Ring(4, (2, 7, 11))
    first, count = ring.walks(np.array([3, 3, 3, 12]), np.array([0, 5, 15, 7]))
    assert first.tolist() == [1, 1, 1, 0]
    assert count.tolist() == [1, 2, 3, 2]


def test_with_far_more_nodes_than_values_only_the_values_nodes_hold_a_range() -> None:
    domain = Domain("small", [Attribute("a", "int", min=0, max=9, precision=1)])
    filters = compile_filters(["a >= 2 AND a <= 6"], domain)
    views = [
        opchord.adapt(statistics_of(filters), partitions=0, ring=scattered_ring(100), empirical=False, jump=jump)
        for jump in (2.0, 1000.0)
    ]
    jumping, walking = (len(place(filters, view)) for view in views)
    assert jumping == 5
    assert 35 < walking < 65  # four tenths of the nodes
    events = read_events([{"a": a} for a in range(10)], domain)
    for view in views:
        assert [event for event, _ in meet(filters, events, view).pairs] == [2, 3, 4, 5, 6]


def test_the_empirical_distribution_gives_every_node_about_as_many_events() -> None:
    rng = np.random.default_rng(1)
    domain = Domain("skewed", [Attribute("x", "double")])
    values = rng.exponential(size=20_000)
    filters = compile_filters([f"x > {value}" for value in values[:200]], domain)
    events = read_events([{"x": value} for value in values], domain)
    view = opchord.adapt(statistics_of(filters, events), partitions=10)
    routed = route(events, view)
    load = np.bincount(view.owners(routed.keys[channels_of(routed.keys) == 0]), minlength=10)
    assert load.max() < 1.2 * load.mean()


def test_the_hash_is_of_the_attribute_and_the_value() -> None:
    ring = even_ring(16)
    same = np.array([5])
    assert hashed_values.value_positions(("a",), same, ring) != hashed_values.value_positions(("b",), same, ring)


def test_positions_are_the_same_in_every_process() -> None:
    positions = hashed_values.value_positions(("price",), np.array([0, 840]), even_ring(4))
    assert positions.tolist() == [
        201414937174105,
        23502216275343,
    ]
    assert hashed_values.null_position(("price",), even_ring(4)) == 162704542049710


@pytest.mark.parametrize("placement", [chord, opchord])
def test_a_view_survives_being_written_and_read(placement: Any) -> None:
    filters, events = compile_filters(FIGURE_2, STOCKS), stocks_event()
    view = placement.adapt(statistics_of(filters, events), partitions=5, epoch=7)
    again = view_from_dict(json.loads(json.dumps(view_to_dict(view))))
    assert again.epoch == 7
    assert place(filters, again).keys.tolist() == place(filters, view).keys.tolist()
    assert route(events, again).keys.tolist() == route(events, view).keys.tolist()


WIDE = "Price >= 1.00 AND Price < 19.00"  # 1,800 values


def test_a_range_is_held_at_all_its_values_where_there_is_no_limit() -> None:
    filters = compile_filters([WIDE, "Price >= 0"], STOCKS)
    statistics = statistics_of(filters)
    limited, unlimited = (chord.adapt(statistics, partitions=4, values_max=most) for most in (64, 0))
    assert len(place(filters, limited)) == 2  # in no list, and so held everywhere
    assert np.bincount(place(filters, unlimited).subscriptions).tolist() == [1_800, 2_001]


def test_without_a_limit_a_range_without_declared_ends_is_not_listed_for_ever() -> None:
    domain = Domain("open", [Attribute("n", "bigint")])
    filters = compile_filters(["n > 5", "n > 5 AND n < 9"], domain)
    placed = place(filters, chord.adapt(statistics_of(filters), partitions=4, values_max=0))
    assert np.bincount(placed.subscriptions).tolist() == [1, 3]


def test_texts_of_which_nothing_is_known_are_hashed_by_value_in_order_too() -> None:
    filters, events = compile_filters(FIGURE_2, STOCKS), stocks_event()
    known = statistics_of(filters)
    unknown = Statistics(known.filters, known.subscriptions)
    view = opchord.adapt(unknown, partitions=8)
    assert ("Symbol",) in view.paths
    assert ("Symbol",) not in view.orders
    assert meet(filters, events, view).pairs == [(0, 0)]
    owners = view.ring.owners(hashed_values.event_positions(events, ("Symbol",), None, view.ring))
    channel = view.paths.index(("Symbol",))
    placed = place(filters, view)
    held = positions_of(placed.keys[channels_of(placed.keys) == channel])
    assert set(held.tolist()) == set(owners.tolist())
    again = view_from_dict(json.loads(json.dumps(view_to_dict(view))))
    assert place(filters, again).keys.tolist() == placed.keys.tolist()


@pytest.mark.parametrize("count", [2, 3, 8, 100, 1_000])
@pytest.mark.parametrize("empirical", [False, True])
def test_values_in_order_are_counted_and_found_where_their_hash_puts_them(count: int, empirical: bool) -> None:
    domain = Domain("small", [Attribute("a", "int", min=0, max=count - 1, precision=1)])
    filters = compile_filters(["a > 0"], domain)
    seen = np.random.default_rng(count).integers(0, count, 300)
    statistics = statistics_of(filters, read_events([{"a": int(a)} for a in seen], domain))
    view = opchord.adapt(statistics, partitions=1, ring=Ring(12, (0,)), empirical=empirical)
    order = view.orders["a",]
    offsets = order.offsets(np.arange(order.count), view.ring)
    assert view.value_position(0, order.count) is None
    found = [view.value_position(0, number) for number in range(order.count)]
    assert found == ((order.start + offsets) % 4096).tolist()
    for position in range(0, 4096, 7):
        assert view.values_up_to(0, position) == int((offsets <= (position - order.start) % 4096).sum())
