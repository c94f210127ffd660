"""The normal form holds exactly the events that the filter does, in no more boxes than allowed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from tidings.errors import FilterError
from tidings.filter.meaning.interpreter import holds
from tidings.filter.normal.description import describe_filter
from tidings.filter.normal.normal_form import MAX_BOXES, Box, NormalForm, normalise
from tidings.filter.normal.value_sets import ordinal
from tidings.filter.syntax.parser import parse_filter
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_record
from tidings.testing.strategies import Case, cases

TYPES = {
    "a": "int", "b": "bigint", "d": "double", "s": "string", "e": "decimal(10,2)", "f": "boolean", "day": "date",
}  # fmt: skip
DOMAIN = Domain("test", [Attribute(name, type_) for name, type_ in TYPES.items()])


def _form(text: str) -> NormalForm:
    return normalise(parse_filter(text, DOMAIN))


def _in_box(box: Box, record: Any, domain: Domain) -> bool:
    for path, values in box.sets.items():
        value = record[path]
        if value is None:
            if not values.null:
                return False
            continue
        place = ordinal(value, domain.leaves[path])
        cut = (place, 0) if isinstance(place, bytes) else place
        if not any(low <= cut < high for low, high in values.intervals):
            return False
    return box.residual is None or holds(box.residual, record)


@settings(max_examples=80, deadline=None)
@given(cases(events=12, filters=6))
def test_an_event_is_in_a_box_exactly_when_the_filter_holds(case: Case) -> None:
    records = [read_record(event, case.domain) for event in case.events]
    for text in case.filters:
        try:
            tree = parse_filter(text, case.domain)
        except FilterError:
            continue
        form = normalise(tree)
        assert len(form.boxes) <= MAX_BOXES
        for record in records:
            assert any(_in_box(box, record, case.domain) for box in form.boxes) == holds(tree, record), text


@pytest.mark.parametrize(
    "text",
    [
        "a > 5 AND a < 3", "a = 1 AND a = 2", "a IS NULL AND a > 1", "FALSE", "1 = 2", "a = NULL", "a NOT IN (1, NULL)",
        "a IN (NULL)", "a > 2147483647", "s < ''", "f AND NOT f", "a = 1.5", "NULL > a", "NOT (a = 1 OR a != 1)",
        "e = 1.234", "a < a", "NOT a = a", "NOT (a <=> a)", "a BETWEEN 3 AND 2", "1 / 0 = 1",
        "(a = 1 OR a = 2) AND (a = 3 OR a = 4)",
    ],
)  # fmt: skip
def test_filters_that_nothing_can_match_are_recognised(text: str) -> None:
    assert _form(text).never


@pytest.mark.parametrize(
    "text",
    ["TRUE", "1 = 1", "a IS NULL OR a IS NOT NULL", "NOT FALSE OR a = 1", "NULL <=> NULL", "'a' LIKE 'a%'", "a <=> a",
     "a = a OR a IS NULL",
     "a > 1 OR a <= 1 OR a IS NULL", "NOT (a <=> 5) OR a = 5"],
)  # fmt: skip
def test_filters_that_everything_matches_are_recognised(text: str) -> None:
    assert _form(text).always


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        ("a = 1", 1),
        ("a IN (1, 2, 5, 9)", 1),
        ("a = 1 OR a = 2 OR a > 7", 1),
        ("a = 1 OR b = 2", 2),
        ("(a = 1 OR b = 2) AND (d > 1 OR s = 'x')", 4),
        ("NOT (a = 1 AND b = 2)", 2),
        ("a = 1 AND NOT (b = 2 OR d = 3)", 1),
        (" AND ".join(f"(a != {k} OR b != {k})" for k in range(8)), 256),
        (" AND ".join(f"(a != {k} OR b != {k})" for k in range(9)), 256),
        (" OR ".join(f"(a = {k} AND b = {k})" for k in range(256)), 256),
        (" OR ".join(f"(a = {k} AND b = {k})" for k in range(257)), 1),
        ("a = 1 OR a = 1 AND b = 2 OR a = 1", 2),
    ],
)
def test_boxes_are_counted_before_they_are_expanded(text: str, boxes: int) -> None:
    assert len(_form(text).boxes) <= boxes
    assert len(_form(text).boxes) > boxes // 4


def test_past_the_limit_the_rest_is_residual_and_its_hull_still_narrows() -> None:
    form = _form("d > 0 AND (" + " OR ".join(f"(a = {k} AND b = {k})" for k in range(900)) + ")")
    (box,) = form.boxes
    assert box.residual is not None
    assert box.sets[("a",)].intervals == ((0, 900),)
    assert ("d",) in box.sets


def test_twenty_choices_of_two_stay_small() -> None:
    form = _form(" AND ".join(f"(s = 'x{k}' OR d = {k})" for k in range(20)))
    assert len(form.boxes) <= MAX_BOXES


@pytest.mark.parametrize(
    "text",
    [
        "NOT (" + " OR ".join(f"(a = {k} AND b = {k} AND d = {k})" for k in range(300)) + ")",
        " AND ".join(f"(a = {k} OR b = {k} OR d > {k} OR s = '{k}')" for k in range(300)),
    ],
)
def test_what_is_past_the_limit_is_one_residual_that_all_boxes_share(text: str) -> None:
    form = _form(text)
    assert 1 < len(form.boxes) <= MAX_BOXES
    assert len({id(box.residual) for box in form.boxes}) == 1


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("d > 8.3 AND d < 8.7", "1 box\n  d: > 8.3 and < 8.7"),
        ("s LIKE 'ab%' OR a != 5", "2 boxes\n  s: >= 'ab' and < 'ac'\n  or\n  a: <= 4, or >= 6"),
        ("a >= 100 AND b < 100", "1 box\n  a: >= 100\n  b: <= 99"),
        ("a IS NULL", "1 box\n  a: NULL"),
        (
            "e >= 1.5 AND day < '2020-01-01' AND a > b",
            "1 box\n  e: >= 1.50\n  day: <= DATE '2019-12-31'\n  to evaluate: a > b",
        ),
        ("s = 'x' AND f", "1 box\n  s: 'x'\n  f: true"),
        ("d IS NOT NULL", "1 box\n  d: any value"),
        ("a > 5 AND a < 3", "never: no event can match"),
        ("TRUE", "always: every event matches"),
    ],
)
def test_a_normal_form_is_described_in_words(text: str, description: str) -> None:
    assert describe_filter(text, DOMAIN) == description


@pytest.mark.parametrize("big", [2**53, 2**53 + 1, 2**62 + 1, 2**63 - 1, -(2**63)])
def test_a_bigint_is_compared_with_a_double_as_spark_does_it(big: int) -> None:
    for op in ("<", "<=", "=", ">=", ">"):
        for literal in (
            "9007199254740992e0",
            "9.007199254740993e15",
            "4.611686018427388e18",
            "9.223372036854775807e18",
        ):
            tree = parse_filter(f"b {op} {literal}", DOMAIN)
            record = {("b",): big}
            in_box = any(_in_box(box, record, DOMAIN) for box in normalise(tree).boxes)
            order = (float(big) > float(literal)) - (float(big) < float(literal))
            assert in_box == {"<": order < 0, "<=": order <= 0, "=": order == 0, ">=": order >= 0, ">": order > 0}[op]
            assert in_box == holds(tree, record)
