"""What is said to imply another does, for every event; and whatever comparing boxes in pairs finds is found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.normal_form import Box, NormalForm, normalise
from tidings.filter.normal.value_sets import ValueSet, line
from tidings.filter.syntax.parser import parse_filter
from tidings.matching.analysis.implications import Covering, covering
from tidings.matching.engines.entries import entries_of
from tidings.model.domain import Attribute, Domain
from tidings.model.types import DataType
from tidings.testing import brute_force, workloads
from tidings.testing.random_cases import make_case
from tidings.testing.strategies import cases

STOCKS = Domain(
    "stocks",
    [Attribute("symbol", "string"), Attribute("price", "double"), Attribute("volume", "bigint"),
     Attribute("high", "double"), Attribute("low", "double")],
)  # fmt: skip

SMALL = st.integers(0, 6)


def found_in(filters: list[str], domain: Domain = STOCKS, **how: int) -> Covering:
    return covering(compile_filters(filters, domain), **how)


def box_within(inner: Box, outer: Box) -> bool:
    if outer.residual is not None and outer.residual != inner.residual:
        return False
    return all(
        path in inner.sets and inner.sets[path] & values == inner.sets[path] for path, values in outer.sets.items()
    )


def pieces(values: ValueSet, type_: DataType) -> list[ValueSet]:
    """A set interval by interval; NULL is one of its own, or with the interval that begins where values do."""
    single = [ValueSet((interval,)) for interval in values.intervals]
    if not values.null:
        return single
    if single and values.intervals[0][0] == line(type_)[0]:
        return [ValueSet(values.intervals[:1], null=True), *single[1:]]
    return [ValueSet((), null=True), *single]


def boxes_of(form: NormalForm, domain: Domain) -> Iterator[Box]:
    """Boxes with one interval on each attribute: of `s IN ('a', 'b')` one may be covered here and one there."""
    for box in form.boxes:
        choices = [pieces(values, domain.leaves[path]) for path, values in box.sets.items()]
        for chosen in product(*choices):
            yield Box(dict(zip(box.sets, chosen, strict=True)), box.residual)


def form_implies(one: NormalForm, other: NormalForm, domain: Domain) -> bool:
    return all(any(box_within(box, outer) for outer in other.boxes) for box in boxes_of(one, domain))


def check_against_all_pairs(filters: list[str], domain: Domain) -> Covering:
    """Normal forms, each with each, by their sets: another way than that of the rectangles."""
    forms = [normalise(parse_filter(text, domain)) for text in filters]
    special = [form.never or form.always for form in forms]
    implied = {
        (a, b)
        for a in range(len(forms))
        for b in range(len(forms))
        if a != b and not special[a] and not special[b] and form_implies(forms[a], forms[b], domain)
    }
    found = found_in(filters, domain)
    assert found.never.tolist() == [i for i, form in enumerate(forms) if form.never]
    assert found.always.tolist() == [i for i, form in enumerate(forms) if form.always]
    same = [next((b for b in range(a) if (a, b) in implied and (b, a) in implied), a) for a in range(len(forms))]
    strict = {(a, b) for a, b in implied if (b, a) not in implied}
    assert found.first.tolist() == same
    assert found.covered.tolist() == sorted({a for a, _ in strict})
    for a in found.covered.tolist():
        assert (a, int(found.coverer[a])) in strict
        assert found.coverer[found.coverer[a]] == -1
    return found


def small_conjunct(random: Random) -> str:
    low, width = random.randint(0, 6), random.randint(0, 4)
    return random.choice(
        [
            f"price >= {low} AND price < {low + width + 1}",
            f"volume BETWEEN {low} AND {low + width}",
            f"symbol = '{random.choice('abc')}'",
            f"symbol IN ('{random.choice('abc')}', '{random.choice('abc')}')",
            f"symbol LIKE '{random.choice('ab')}%'",
            f"price > {low}",
            f"NOT volume = {low}",
            "volume IS NULL",
            f"(volume IS NULL OR volume < {low})",
            "high > low * 1.5",
            f"high > low * {low}",
        ]
    )


def small_filter(random: Random) -> str:
    boxes = [
        " AND ".join(small_conjunct(random) for _ in range(random.choice([1, 1, 2, 3])))
        for _ in range(random.choice([1, 1, 1, 2]))
    ]
    return " OR ".join(f"({box})" for box in boxes)


@pytest.mark.parametrize(
    ("filter", "covered_by"),
    [
        ("price > 10", "price > 5"),
        ("price > 10", "price >= 10"),
        ("price > 10 AND symbol = 'OIL'", "price > 10"),
        ("symbol = 'OIL'", "symbol IN ('OIL', 'GAS')"),
        ("symbol = 'OILY'", "symbol LIKE 'OIL%'"),
        ("volume = 3", "volume IS NOT NULL"),
        ("volume IS NULL", "volume IS NULL OR volume < 5"),
        ("price < 1 OR price > 9", "price < 2 OR price > 8"),
        ("price < 1 OR symbol = 'OIL'", "price < 2 OR symbol IN ('OIL', 'GAS') OR volume = 1"),
        ("high > low * 2 AND price > 3", "high > low * 2"),
        ("high > low * 2 AND price > 3", "price > 1"),
    ],
)
def test_a_filter_that_asks_for_more_is_covered_by_the_one_that_asks_for_less(filter: str, covered_by: str) -> None:
    found = found_in([filter, "symbol = 'none of these' AND high > 99", covered_by])
    assert found.coverer.tolist() == [2, -1, -1]
    assert found.equivalent.tolist() == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("price > 10", "price < 10"),
        ("price IS NULL", "price > 5"),
        ("high > low * 2 AND price > 3", "high > low * 3"),
        ("high > low * 2", "price > 3"),
        ("symbol = 'OIL'", "symbol = 'oil'"),
        ("price < 1 OR volume > 5", "price < 2"),
    ],
)
def test_filters_of_which_neither_implies_the_other_are_left_alone(one: str, other: str) -> None:
    found = found_in([one, other])
    assert (found.covered.tolist(), found.equivalent.tolist()) == ([], [])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("price > 5 AND symbol = 'OIL'", "symbol = 'OIL' AND NOT price <= 5"),
        ("volume > 4", "volume >= 5"),
        ("price < 1 OR price < 2", "price < 2"),
        ("symbol IN ('a', 'b')", "symbol = 'b' OR symbol = 'a'"),
        ("price < 2 OR (price < 1 AND volume = 3)", "price < 2"),
        ("high > low * 2 AND price > 3", "price > 3 AND high > low * 2"),
    ],
)
def test_filters_that_mean_the_same_are_equivalent_however_they_are_written(one: str, other: str) -> None:
    found = found_in([one, other, "price > 100"])
    assert found.first.tolist() == [0, 0, 2]


def test_who_never_and_who_always_matches_is_told_and_covers_nobody() -> None:
    found = found_in(["price > 5", "TRUE", "price > 5 AND price < 3", "price > 9", "1 = 1"])
    assert (found.never.tolist(), found.always.tolist()) == ([2], [1, 4])
    assert found.coverer.tolist() == [-1, -1, -1, 0, -1]
    assert found.first.tolist() == [0, 1, 2, 3, 4]


def test_boxes_that_cover_another_only_together_are_missed_as_the_manual_says() -> None:
    found = found_in(["price > 0", "(price < 5 AND volume > 0) OR price > 4 OR (price < 5 AND NOT volume > 1)"])
    assert found.covered.tolist() == []


def test_the_coverer_of_a_long_chain_is_its_end() -> None:
    found = found_in([f"price > {k}" for k in range(3000)])
    assert found.coverer.tolist() == [-1] + [0] * 2999


def test_equivalent_filters_share_one_coverer() -> None:
    found = found_in(["volume >= 5 AND price > 1", "price > 1 AND volume > 4", "price > 1"])
    assert found.first.tolist() == [0, 0, 2]
    assert found.coverer.tolist() == [2, 2, -1]


def test_with_owners_only_filters_of_one_owner_are_compared() -> None:
    table = compile_filters(["price > 5", "price > 9", "price > 9", "price > 7"], STOCKS)
    found = covering(table, np.array([1, 2, 1, 2]))
    assert found.coverer.tolist() == [-1, 3, 0, -1]
    assert found.first.tolist() == [0, 1, 2, 3]


def test_a_search_beyond_its_budget_is_counted_and_says_nothing_false() -> None:
    workload = workloads.bluedove(2000, 1)
    table = compile_filters(workload.filters, workload.domain)
    whole, short = covering(table), covering(table, budget=40)
    assert not whole.undecided.any()
    assert short.undecided.any()
    assert set(short.covered.tolist()) <= set(whole.covered.tolist())


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_small_tables_are_found_as_comparing_every_pair_finds_them(random: Random) -> None:
    check_against_all_pairs([small_filter(random) for _ in range(14)], STOCKS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("alerts", marks=pytest.mark.long),
        pytest.param("bluedove", marks=pytest.mark.long),
        "strings",
        "mixed",
    ],
)
def test_workloads_are_found_as_comparing_every_pair_finds_them(name: str) -> None:
    workload = workloads.WORKLOADS[name](400, 1)
    check_against_all_pairs(workload.filters.to_pylist(), workload.domain)


@given(cases(events=6, filters=8))
@settings(max_examples=60, deadline=None)
def test_no_event_matches_a_covered_filter_and_not_its_coverer(case: object) -> None:
    check_events(case)


def check_events(case: object) -> int:
    readable = case.readable()  # type: ignore[attr-defined]
    filters = [text for _, text in readable]
    domain, events = case.domain, case.events  # type: ignore[attr-defined]
    table = compile_filters(pa.array(filters, pa.string()), domain)
    found = covering(table)
    matched = set(brute_force(dict(enumerate(filters)), events, domain))
    for event in range(len(events)):
        for a in found.covered.tolist():
            assert (event, a) not in matched or (event, int(found.coverer[a])) in matched
        for a in range(len(filters)):
            assert ((event, a) in matched) == ((event, int(found.first[a])) in matched)
            assert (event, a) in matched or a not in found.always
            assert (event, a) not in matched or a not in found.never
    return len(found.covered) + len(found.equivalent)


def test_generated_filters_of_every_type_are_covered_soundly_and_often_enough_to_tell() -> None:
    random = Random(3)
    told = 0
    for _ in range(12):
        case = make_case(random, events=12, filters=60, size=4)
        told += check_events(case)
    assert told > 40


def test_generated_filters_of_every_type_are_found_as_comparing_every_pair_finds_them() -> None:
    random = Random(5)
    for _ in range(6):
        case = make_case(random, events=4, filters=60, size=4)
        filters = [text for _, text in case.readable()]
        table = compile_filters(filters, case.domain)
        entries = entries_of(table)
        odd = set(entries.slots[entries.residual_of >= len(table.residuals)].tolist())
        check_against_all_pairs([text for number, text in enumerate(filters) if number not in odd], case.domain)
