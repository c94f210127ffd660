"""The matcher finds exactly what the oracle finds, whatever the events come as."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tidings import Attribute, Domain, DomainError, EventError, FilterError, Matcher, Subscription, SubscriptionError
from tidings.testing import workloads
from tidings.testing.oracle import brute_force
from tidings.testing.strategies import Case, cases

STOCKS = Domain("stocks", [Attribute("symbol", "string"), Attribute("price", "double"), Attribute("volume", "bigint")])
EVENTS = [
    {"symbol": "OIL", "price": 8.5, "volume": 10},
    {"symbol": "GAS", "price": None, "volume": 2**53 + 1},
    {"symbol": None, "price": 70.0},
]
SUBSCRIPTIONS = [
    ("cheap", "price < 10"),
    ("big", "volume > 9007199254740992"),
    ("unnamed", "symbol IS NULL OR price IS NULL"),
    ("never", "price < 0 AND price > 0"),
    ("all", "TRUE"),
    ("ratio", "price * 2 > volume"),
]
PAIRS = [(0, "cheap"), (0, "all"), (0, "ratio"), (1, "big"), (1, "unnamed"), (1, "all"), (2, "unnamed"), (2, "all")]


@settings(max_examples=25, deadline=None)
@given(cases(events=10, filters=12))
def test_the_matcher_finds_what_the_oracle_finds(case: Case) -> None:
    readable = case.readable()
    found = Matcher(readable, case.domain).match(case.events).pairs()
    assert found == brute_force(readable, case.events, case.domain)


@pytest.mark.parametrize("name", ["bluedove", "alerts", "strings", "mixed"])
def test_the_matcher_finds_what_the_oracle_finds_on_the_workloads(name: str) -> None:
    workload = getattr(workloads, name)(subscriptions=300, events=40)
    subscriptions = list(enumerate(workload.filters.to_pylist()))
    found = Matcher(subscriptions, workload.domain).match(workload.events).pairs()
    assert found == brute_force(subscriptions, workload.events.to_pylist(), workload.domain)


@pytest.mark.parametrize(
    "as_given",
    [
        list,
        lambda events: pa.Table.from_pylist(
            events, schema=pa.schema([("symbol", "string"), ("price", "double"), ("volume", "int64")])
        ),
        lambda events: pl.DataFrame(events, schema={"symbol": pl.String, "price": pl.Float64, "volume": pl.Int64}),
        lambda events: pd.DataFrame(events, dtype=object).astype({"price": "float64", "volume": "Int64"}),
        lambda events: [
            {"specversion": "1.0", "id": "1", "source": "/x", "type": "quote", "data": event} for event in events
        ],
    ],
    ids=["dicts", "arrow", "polars", "pandas", "cloudevents"],
)
def test_events_come_in_many_forms_and_match_alike(as_given: Any) -> None:
    assert Matcher(SUBSCRIPTIONS, STOCKS).match(as_given(EVENTS)).pairs() == PAIRS


@pytest.mark.parametrize(
    "as_given",
    [
        list,
        dict,
        lambda pairs: [Subscription(id_, text) for id_, text in pairs],
        lambda pairs: pa.table({"id": [id_ for id_, _ in pairs], "filter": [text for _, text in pairs]}),
        lambda pairs: pd.DataFrame(pairs, columns=["id", "filter"]),
        lambda pairs: pl.DataFrame(pairs, schema=["id", "filter"], orient="row"),
    ],
    ids=["pairs", "dict", "objects", "arrow", "pandas", "polars"],
)
def test_subscriptions_come_in_many_forms_and_match_alike(as_given: Any) -> None:
    assert Matcher(as_given(SUBSCRIPTIONS), STOCKS).match(EVENTS).pairs() == PAIRS


def test_without_a_domain_the_first_events_give_it() -> None:
    matcher = Matcher(SUBSCRIPTIONS)
    assert matcher.domain is None
    assert matcher.match(EVENTS).pairs() == PAIRS
    assert matcher.domain is not None
    assert matcher.match(EVENTS[:1]).pairs() == PAIRS[:3]


def test_without_a_domain_no_events_give_none() -> None:
    matcher = Matcher(SUBSCRIPTIONS)
    assert matcher.match([]).pairs() == []
    assert matcher.domain is None


def test_an_attribute_that_the_first_events_lack_is_asked_for() -> None:
    with pytest.raises(FilterError, match=r"unknown attribute 'volume'.*give Matcher a domain"):
        Matcher([("big", "volume > 5")]).match([{"price": 1.0}])


@pytest.mark.parametrize(
    "domain",
    [
        {"symbol": "string", "price": "double", "volume": "bigint"},
        pa.schema([("symbol", pa.string()), ("price", pa.float64()), ("volume", pa.int64())]),
    ],
)
def test_a_domain_comes_as_a_schema_too(domain: Any) -> None:
    assert Matcher(SUBSCRIPTIONS, domain).match(EVENTS).pairs() == PAIRS


@pytest.mark.parametrize("domain", ["stocks", 5, {"price": "doubel"}])
def test_what_is_no_domain_is_refused(domain: Any) -> None:
    with pytest.raises(DomainError):
        Matcher(SUBSCRIPTIONS, domain)


def test_ids_keep_the_type_they_were_given_in() -> None:
    matches = Matcher([(7, "price > 1"), (2**40, "TRUE")], STOCKS).match(EVENTS)
    assert matches.pairs() == [(0, 7), (0, 2**40), (1, 2**40), (2, 7), (2, 2**40)]
    assert matches.ids.type == pa.int64()


def test_matches_are_rows_of_slots_by_event() -> None:
    matches = Matcher(SUBSCRIPTIONS, STOCKS).match(EVENTS)
    assert matches.offsets.tolist() == [0, 3, 6, 8]
    assert [sorted(matches.slots[start:end].tolist()) for start, end in ((0, 3), (3, 6), (6, 8))] == [
        [0, 4, 5],
        [1, 2, 4],
        [2, 4],
    ]
    assert matches.of(1) == ["big", "unnamed", "all"]
    assert len(matches) == 8
    assert matches.to_arrow().to_pylist()[0] == {"event": 0, "subscription": "cheap"}
    assert repr(matches) == "<Matches: 8 of 3 events>"


def test_a_subscription_counts_from_its_first_position_up_to_its_last() -> None:
    subscriptions = [
        Subscription("early", "TRUE", valid_to=11),
        Subscription("late", "TRUE", valid_from=11),
        Subscription("ever", "TRUE"),
        Subscription("middle", "TRUE", valid_from=11, valid_to=12),
    ]
    matches = Matcher(subscriptions, STOCKS).match(EVENTS, positions=[10, 11, 12])
    assert matches.pairs() == [
        (0, "early"),
        (0, "ever"),
        (1, "late"),
        (1, "ever"),
        (1, "middle"),
        (2, "late"),
        (2, "ever"),
    ]
    assert len(Matcher(subscriptions, STOCKS).match(EVENTS)) == 12
    with pytest.raises(ValueError, match="2 positions for 3 events"):
        Matcher(subscriptions, STOCKS).match(EVENTS, positions=[1, 2])


def test_an_event_that_does_not_fit_raises_or_is_listed_and_matches_nothing() -> None:
    events = [EVENTS[0], {"symbol": "OIL", "price": "8.5"}, EVENTS[2]]
    matcher = Matcher(SUBSCRIPTIONS, STOCKS)
    with pytest.raises(EventError, match="row 1, attribute 'price'"):
        matcher.match(events)
    matches = matcher.match(events, on_error="reject")
    assert [(reject.row, reject.attribute) for reject in matches.rejects] == [(1, "price")]
    assert matches.pairs() == [(0, "cheap"), (0, "all"), (0, "ratio"), (2, "unnamed"), (2, "all")]
    assert matches.offsets.tolist() == [0, 3, 3, 5]


def test_a_bad_filter_is_named_by_its_subscription_and_nothing_is_built() -> None:
    with pytest.raises(
        FilterError, match=r"subscription 'b': unknown attribute 'prise' at column 1; did you mean 'price'\?"
    ):
        Matcher([("a", "price > 1"), ("b", "prise > 1")], STOCKS)
    with pytest.raises(FilterError, match="2 filters in all"):
        Matcher([("a", "prise > 1"), ("b", "price >")], STOCKS)


@pytest.mark.parametrize(
    "subscriptions",
    [[("a", "TRUE"), ("a", "FALSE")], [(None, "TRUE")], [("a", None)], [("a", "TRUE"), (1, "TRUE")], [(1.5, "TRUE")]],
)
def test_a_table_that_cannot_be_is_refused(subscriptions: Any) -> None:
    with pytest.raises((SubscriptionError, FilterError)):
        Matcher(subscriptions, STOCKS)


def test_nothing_matches_nothing() -> None:
    assert Matcher([], STOCKS).match(EVENTS).pairs() == []
    assert Matcher(SUBSCRIPTIONS, STOCKS).match([]).pairs() == []
    assert Matcher([], STOCKS).match([]).offsets.tolist() == [0]


def test_more_events_and_boxes_than_a_block_holds_are_matched_alike() -> None:
    rng = np.random.default_rng(5)
    bounds = np.round(rng.random((5000, 2)) * 100, 2)
    subscriptions = [(i, f"price > {low} AND volume < {int(high)}") for i, (low, high) in enumerate(bounds)]
    events = pa.table({"price": np.round(rng.random(3000) * 100, 2), "volume": rng.integers(0, 100, 3000)})
    matches = Matcher(subscriptions, STOCKS).match(events)
    prices, volumes = events["price"].to_numpy(), events["volume"].to_numpy()
    expected = (prices[:, None] > bounds[:, 0]) & (volumes[:, None] < bounds[:, 1].astype(int))
    found = np.column_stack([matches.events, matches.slots])
    assert np.array_equal(found[np.lexsort((matches.slots, matches.events))], np.argwhere(expected))


def test_an_unknown_subscription_cannot_be_explained() -> None:
    with pytest.raises(SubscriptionError, match="no subscription 'chep'; did you mean 'cheap'"):
        Matcher(SUBSCRIPTIONS, STOCKS).explain(EVENTS[0], "chep")


def test_the_nearest_subscriptions_are_those_with_the_fewest_failing_predicates() -> None:
    subscriptions = {
        "far": "price > 100 AND volume > 5",
        "near": "price > 9 AND volume > 5",
        "two": "price > 9 AND volume > 50",
    }
    nearest = Matcher(subscriptions, STOCKS).nearest(EVENTS[0], limit=2)
    assert [(explanation.subscription, explanation.failing) for explanation in nearest] == [("near", 1), ("far", 1)]
