"""Digests: the computers of Tam, Azimi and Jacobsen's table 1, and what the paper leaves open."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest

from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.systems import channels_of, meet, place, route, statistics_of
from tidings.systems.digests import placement as digests
from tidings.testing.real_data import DataMissing, data_file

# Table 1's domain, in the attributes of the data that there are: price, speed (clock), ram, hd, screen, cd, quality.
COMPUTERS = Domain(
    "computers",
    [Attribute(name, "int") for name in ("price", "speed", "hd", "ram", "screen")]
    + [Attribute(name, "string", allowed=["yes", "no"]) for name in ("cd", "premium")],
    indices=[("price", "screen", "premium"), ("speed", "ram"), ("hd", "speed")],
)
WISHES = [
    "price > 1400 AND price < 1600 AND screen = 15 AND premium = 'yes'",
    "speed = 66 AND ram >= 8",
    "hd >= 500 AND speed >= 66 AND cd = 'yes'",
    "cd = 'yes'",
    "price < 1000",
    "price < 0 AND price > 0",
]


def computers() -> Any:
    try:
        path = data_file("computers_ecdat.csv")
    except DataMissing as missing:
        pytest.skip(str(missing))
    with open(path) as file:
        rows = list(csv.DictReader(file))
    names = [attribute.name for attribute in COMPUTERS.attributes]
    records = [{name: row[name] if name in ("cd", "premium") else int(row[name]) for name in names} for row in rows]
    return read_events(records, COMPUTERS)


def test_each_filter_for_a_computer_is_held_under_the_index_it_specifies() -> None:
    filters, events = compile_filters(WISHES, COMPUTERS), computers()
    view = digests.adapt(statistics_of(filters, events), partitions=4)
    assert view.indices == tuple(tuple((name,) for name in index) for index in COMPUTERS.indices)
    placed = place(filters, view)
    channel = dict(zip(placed.subscriptions.tolist(), channels_of(placed.keys).tolist(), strict=True))
    assert channel == {0: 0, 1: 1, 2: 2, 3: view.catch_all, 4: view.catch_all}


def test_computers_are_found_at_the_digests_and_few_others_are_met() -> None:
    filters, events = compile_filters(WISHES[:3] * 200, COMPUTERS), computers().part(0, 1000)
    view = digests.adapt(statistics_of(filters, events), partitions=4)
    found = meet(filters, events, view)
    every = meet(filters, events, digests.adapt(statistics_of(filters, events), partitions=4, keys_max=0))
    assert found.pairs == every.pairs
    assert found.candidates < 0.25 * every.candidates


def made(texts: list[str], records: list[dict[str, Any]], **interests: Any) -> tuple[Any, Any, digests.View]:
    filters, events = compile_filters(texts, STOCKS), read_events(records, STOCKS)
    return filters, events, digests.adapt(statistics_of(filters, events), partitions=2, **interests)


STOCKS = Domain("stocks", [Attribute("s", "string"), Attribute("x", "double"), Attribute("n", "int")])


def test_edges_are_at_quantiles_so_that_parts_have_about_as_many_events() -> None:
    rng = np.random.default_rng(3)
    values = rng.exponential(size=4_000)
    _, events, view = made(["x > 1 AND x < 2"] * 100, [{"x": x} for x in values], indices=[["x"]])
    parts = np.bincount(view.divisions["x",].of(events, ("x",)))
    assert parts[1:].max() < 1.5 * parts[1:].mean()
    assert parts[0] == 0  # nothing is missing


def test_an_event_without_an_attribute_is_found_at_the_part_of_null() -> None:
    filters, events, view = made(
        ["s = 'a'", "s IS NULL", "s IS NULL OR s = 'b'"], [{"s": "a"}, {}, {"s": "b"}], indices=[["s"]]
    )
    assert view.catch_all not in channels_of(place(filters, view).keys).tolist()
    assert meet(filters, events, view).pairs == [(0, 0), (1, 1), (1, 2), (2, 2)]


def test_a_subscription_takes_the_index_that_the_fewest_events_visit() -> None:
    records = [{"s": "common" if i % 10 else f"rare {i}", "n": i % 20} for i in range(200)]
    texts = ["s = 'common' AND n = 3", "s = 'rare 10' AND n = 10"]
    filters, _, view = made(texts, records, indices=[["s"], ["n"]])
    placed = place(filters, view)
    chosen = dict(zip(placed.subscriptions.tolist(), channels_of(placed.keys).tolist(), strict=True))
    assert chosen == {0: 1, 1: 0}


def test_past_the_cap_on_keys_another_index_or_the_catch_all_serves() -> None:
    records = [{"x": float(i), "n": i} for i in range(1_000)]
    texts = ["x > 100 AND x < 900 AND n >= 100 AND n < 900"]
    for keys_max, keys in ((400, range(100, 400)), (20, range(10, 20)), (1, (1,))):
        filters, events, view = made(texts, records, indices=[["x", "n"], ["x"]], keys_max=keys_max)
        assert len(place(filters, view)) in keys
        assert len(meet(filters, events, view).pairs) == 799


def test_conjunctions_of_one_subscription_are_in_one_index_so_that_it_is_found_once() -> None:
    records = [{"s": "a", "n": 1}, {"s": "b", "n": 2}, {"s": "a", "n": 2}]
    filters, events, view = made(["(s = 'a' AND n = 1) OR (s = 'b' AND n = 2)", "s = 'a' OR n = 2"], records)
    placed = place(filters, view)
    for row in (0, 1):
        assert len(set(channels_of(placed.keys[placed.subscriptions == row]).tolist())) == 1
    assert meet(filters, events, view).pairs == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)]


@pytest.mark.parametrize(
    "other",
    [
        Domain("bonds", [Attribute("s", "string"), Attribute("n", "int", unit="piece")]),
        Domain("stocks", [Attribute("s", "string"), Attribute("n", "bigint", unit="piece")]),
        Domain("stocks", [Attribute("s", "string"), Attribute("n", "int", unit="dozen")]),
        Domain("stocks", [Attribute("s", "string"), Attribute("m", "int", unit="piece")]),
    ],
    ids=["domain", "type", "unit", "name"],
)
def test_digests_differ_by_domain_index_type_unit_name_and_value(other: Domain) -> None:
    domain = Domain("stocks", [Attribute("s", "string"), Attribute("n", "int", unit="piece")])
    keys = [_digests_of(given, value) for given in (domain, other) for value in (1, 2)]
    assert len({key for part in keys for key in part}) == 8  # two indices, two domains, two values
    assert _digests_of(domain, 1) == keys[0]


def _digests_of(domain: Domain, value: int) -> list[int]:
    """The digests of an event with this value of the last attribute, in two indices that it is in."""
    first, last = domain.names
    filters = compile_filters([f"{last} = 1 AND {first} = 'a'", f"{last} = 2 AND {first} = 'a'"], domain)
    view = digests.adapt(statistics_of(filters), partitions=1, indices=[[last], [first, last]])
    keys: list[int] = route(read_events([{first: "a", last: value}], domain), view).keys[:2].tolist()
    return keys


def test_a_digest_begins_with_domain_table_and_index_as_in_table_1() -> None:
    domain = Domain("computers", [Attribute("price", "int", unit="USD"), Attribute("quality", "string")])
    (heading,) = digests.headings_of(domain, [(("price",), ("quality",))])
    assert heading == ("computers", "events", "price,quality", "int", "USD", "price", "string", "", "quality")


def test_a_view_that_was_written_without_headings_keeps_its_digests() -> None:
    _, events, view = made(["s = 'a'", "n = 1"], [{"s": "a", "n": 1}], indices=[["s"], ["n"]])
    form = view.to_dict()
    assert route(events, digests.View.from_dict(form)).keys.tolist() == route(events, view).keys.tolist()
    del form["headings"]
    before = digests.View.from_dict(form)
    assert before.headings == (("stocks", "s"), ("stocks", "n"))
    assert route(events, before).keys.tolist() != route(events, view).keys.tolist()


def test_indices_are_derived_where_none_is_declared_those_that_spare_the_most_first() -> None:
    rng = np.random.default_rng(5)
    records = [{"s": f"v{rng.integers(500)}", "n": int(rng.integers(3)), "x": rng.random()} for _ in range(1_000)]
    texts = [f"s = 'v{rng.integers(500)}' AND n = {rng.integers(3)}" for _ in range(1_500)]
    _, _, view = made(texts, records)
    assert ("s",) in view.indices[0]
    assert len(view.indices) <= 2
