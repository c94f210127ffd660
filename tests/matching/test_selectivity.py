"""Shares are those of the sampled events, and what is suggested follows from them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidings.filter.compile.compiler import compile_filters
from tidings.matching.batch_columns import Columns
from tidings.matching.selectivity import dimensions_of, indices_of, selectivity_of
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.testing import brute_force, workloads

STOCKS = Domain("stocks", [Attribute("symbol", "string"), Attribute("price", "double"), Attribute("volume", "bigint")])


def sample(count: int = 1000) -> Columns:
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "symbol": [f"S{i}" for i in rng.integers(0, 50, count)],
            "price": rng.uniform(0, 100, count),
            "volume": pa.array(rng.integers(0, 10, count), mask=rng.random(count) < 0.2),
        }
    )
    return Columns(read_events(table, STOCKS))


def test_a_filters_candidates_are_no_fewer_than_its_matches_and_of_one_constraint_as_many() -> None:
    columns = sample()
    filters = [
        "price < 25",
        "volume IS NULL",
        "symbol = 'S3'",
        "price < 25 AND symbol = 'S3'",
        "symbol IN ('S1', 'S2')",
        "TRUE",
    ]
    found = selectivity_of(compile_filters(filters, STOCKS), columns)
    matches = np.zeros(len(filters))
    for _, number in brute_force(dict(enumerate(filters)), columns.batch.source, STOCKS):
        matches[number] += 1 / 1000
    assert (found.candidates >= matches - 1e-9).all()
    assert found.candidates[[0, 1, 2, 4, 5]] == pytest.approx(matches[[0, 1, 2, 4, 5]], abs=0.002)
    assert found.candidates[3] == pytest.approx(matches[2], abs=0.001)


def test_an_attribute_that_one_box_leaves_open_is_open() -> None:
    found = selectivity_of(compile_filters(["price < 25 OR volume = 3", "price < 25"], STOCKS), sample())
    along = dict(zip(found.entries.paths, map(found.along, range(2)), strict=True))
    assert along[("price",)][0] == 1
    assert along[("price",)][1] == pytest.approx(0.25, abs=0.05)


def test_ranges_are_best_divided_by_their_narrowest_attribute() -> None:
    filters = [f"price BETWEEN {k} AND {k + 2} AND volume BETWEEN 0 AND {k % 9}" for k in range(90)]
    dimensions = dimensions_of(selectivity_of(compile_filters(filters, STOCKS), sample()))
    assert [one.path for one in dimensions] == [("price",), ("volume",)]
    assert dimensions[0].suggested
    assert dimensions[0].met == pytest.approx(0.02, abs=0.01)
    assert "100% of the subscriptions constrain it" in dimensions[0].reason


def test_equalities_are_found_by_an_index_and_ranges_by_none() -> None:
    filters = [f"symbol = 'S{k % 50}' AND price > {k % 90}" for k in range(4000)] + ["price > 3"] * 10
    indices = indices_of(selectivity_of(compile_filters(filters, STOCKS), sample()))
    assert [one.paths for one in indices.chosen] == [(("symbol",),)]
    assert (indices.chosen[0].subscriptions, indices.left) == (4000, 10)
    assert indices.candidates == pytest.approx(10 + 4000 / 50, rel=0.1)


def test_few_subscriptions_are_worth_no_index() -> None:
    found = selectivity_of(compile_filters([f"symbol = 'S{k}'" for k in range(50)], STOCKS), sample())
    assert indices_of(found).chosen == ()
    assert indices_of(found, subscriptions=500_000).chosen[0].subscriptions == 500_000


def test_workloads_get_the_suggestions_that_they_were_made_for() -> None:
    boxes = workloads.bluedove(2000, 500)
    found = selectivity_of(
        compile_filters(boxes.filters, boxes.domain), Columns(read_events(boxes.events, boxes.domain))
    )
    assert {one.path for one in dimensions_of(found) if one.suggested} == {("a",), ("b",), ("c",), ("d",)}
    assert indices_of(found).chosen == ()
    texts = workloads.strings(4000, 500)
    columns = Columns(read_events(texts.events, texts.domain))
    found = selectivity_of(compile_filters(texts.filters, texts.domain), columns)
    indices = indices_of(found, subscriptions=1_000_000)
    assert indices.left < 10_000
    assert {path for one in indices.chosen for path in one.paths} == {(f"s{i}",) for i in range(12)}
