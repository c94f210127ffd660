"""An explanation agrees with the interpreter, says how far off each predicate is, and fits a terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.filter.meaning.interpreter import evaluate
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.tree import Expression
from tidings.matching.explain.explanation import WIDTH, Reason, explain
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_record
from tidings.model.types import Path

DOMAIN = Domain(
    "flights",
    [
        Attribute("origin", "string"),
        Attribute("dest", "string"),
        Attribute("delay", "int"),
        Attribute("air_time", "int"),
        Attribute("fare", "decimal(10,2)"),
        Attribute("load", "double"),
        Attribute("day", "date"),
        Attribute("departure", "timestamp"),
        Attribute("full", "boolean"),
        Attribute("tags", "array<string>"),
    ],
)
NOON = int(datetime(2013, 2, 8, 12, tzinfo=UTC).timestamp() * 1_000_000)
RECORD: dict[Path, Any] = {
    ("origin",): "JFK",
    ("dest",): "LAX",
    ("delay",): 45,
    ("day",): NOON // 86_400_000_000,
    ("departure",): NOON,
    ("load",): 0.8,
    ("full",): False,
    ("tags",): ["late", None],
}


def parse(text: str) -> Expression:
    return parse_filter(text, DOMAIN)


def only_reason(text: str) -> Reason:
    return explain(parse(text), RECORD).reason


@pytest.mark.parametrize(
    ("text", "outcome", "detail"),
    [
        ("delay > 30", True, "delay is 45"),
        ("delay > 60", False, "delay is 45: 15 below 60"),
        ("60 < delay", False, "delay is 45: 15 below 60"),
        ("delay < 30", False, "delay is 45: 15 above 30"),
        ("delay > 45", False, "delay is 45: exactly 45"),
        ("delay = 50", False, "delay is 45: 5 below 50"),
        ("delay != 45", False, "delay is 45: exactly 45"),
        ("delay > 45.5", False, "delay is 45: 0.5 below 45.5"),
        ("delay IN (10, 44, 90)", False, "delay is 45: nearest, 1 above 44"),
        ("delay NOT IN (45)", False, "delay is 45"),
        ("delay > air_time", None, "delay is 45, air_time is NULL"),
        ("delay * 2 > delay + 90", False, "delay is 45: 45 below 135"),
        ("load >= 0.9", False, "load is 0.8: 0.1 below 0.9"),
        ("load >= 1e300", False, "load is 0.8: 1.00000e+300 below 1E300"),
        ("fare < 100", None, "fare is NULL"),
        ("origin = 'JFK'", True, "origin is 'JFK'"),
        ("origin = 'EWR'", False, "origin is 'JFK': wanted 'EWR'"),
        ("origin != 'JFK'", False, "origin is 'JFK'"),
        ("origin > 'KLM'", False, "origin is 'JFK'"),
        ("origin IN ('EWR', 'LGA')", False, "origin is 'JFK'"),
        ("origin LIKE 'L%'", False, "origin is 'JFK'"),
        ("origin IS NULL", False, "origin is 'JFK'"),
        ("day = DATE '2013-02-11'", False, "day is 2013-02-08: 3 d before 2013-02-11"),
        (
            "departure >= TIMESTAMP '2013-02-08 14:15:30Z'",
            False,
            "departure is 2013-02-08 12:00:00: 2 h 15 min before 2013-02-08 14:15:30",
        ),
        ("day > DATE '2013-02-08'", False, "day is 2013-02-08: exactly 2013-02-08"),
        ("full", False, "full is false"),
        ("full = true", False, "full is false"),
        ("array_contains(tags, 'early')", None, "tags is ['late', NULL]"),
        ("true = false", False, ""),
    ],
)
def test_a_predicate_tells_its_outcome_its_values_and_how_far_off_they_are(
    text: str, outcome: bool | None, detail: str
) -> None:
    reason = only_reason(text)
    assert (reason.outcome, reason.detail) == (outcome, detail)
    assert reason.failing == (outcome is not True)


@pytest.mark.parametrize(
    ("text", "failing"),
    [
        ("origin = 'JFK' AND dest = 'LAX'", 0),
        ("origin = 'EWR' AND dest = 'BOS'", 2),
        ("origin = 'EWR' AND dest = 'LAX'", 1),
        ("origin = 'EWR' OR dest = 'BOS'", 1),
        ("origin = 'EWR' OR (dest = 'BOS' AND delay > 60)", 1),
        ("origin = 'JFK' OR (dest = 'BOS' AND delay > 60)", 0),
        ("NOT (origin = 'JFK' OR dest = 'LAX')", 2),
        ("NOT (origin = 'JFK' AND dest = 'LAX')", 1),
        ("NOT (origin = 'JFK' AND dest = 'BOS')", 0),
        ("NOT NOT (origin = 'JFK')", 0),
        ("NOT (fare > 1 AND fare < 2)", 1),
    ],
)
def test_failing_is_the_least_number_of_predicates_that_would_have_to_turn(text: str, failing: int) -> None:
    assert explain(parse(text), RECORD).failing == failing


atoms = st.sampled_from(
    [
        "delay > 30",
        "delay > 60",
        "origin = 'JFK'",
        "origin != 'JFK'",
        "fare > 1",
        "fare IS NULL",
        "full",
        "delay IN (45)",
    ]
)
filters = st.recursive(
    atoms,
    lambda inner: st.one_of(
        inner.map(lambda a: f"NOT ({a})"),
        st.tuples(inner, inner).map(lambda ab: f"({ab[0]}) AND ({ab[1]})"),
        st.tuples(inner, inner).map(lambda ab: f"({ab[0]}) OR ({ab[1]})"),
    ),
    max_leaves=8,
)


@given(filters)
def test_an_explanation_agrees_with_the_interpreter(text: str) -> None:
    tree = parse(text)
    explanation = explain(tree, RECORD)
    assert explanation.reason.outcome is evaluate(tree, RECORD)
    assert explanation.matches == (explanation.failing == 0)
    assert 0 <= explanation.distance <= explanation.failing
    assert json.loads(json.dumps(explanation.to_dict()))["matches"] == explanation.matches
    assert all(len(line) <= WIDTH for line in str(explanation).splitlines())


def test_a_match_is_printed_with_the_branch_that_held() -> None:
    text = "origin = 'JFK' AND (delay > 60 OR fare IS NULL)"
    assert str(explain(parse(text), RECORD, subscription="ana", text=text)).splitlines() == [
        '✓ matches subscription "ana"',
        "  ✓ all of",
        "    ✓ origin = 'JFK'                 origin is 'JFK'",
        "    ✓ any of (branch 2 held)",
        "      ✗ delay > 60                   delay is 45: 15 below 60",
        "      ✓ fare IS NULL                 fare is NULL",
    ]


def test_a_miss_is_printed_with_what_it_lacks() -> None:
    text = "NOT (origin = 'JFK' OR fare > 100) AND dest = 'LAX'"
    assert str(explain(parse(text), RECORD)).splitlines() == [
        "✗ does not match: 2 predicates short",
        "  ✗ all of",
        "    ✗ not",
        "      ✓ any of (branch 1 held)",
        "        ✓ origin = 'JFK'             origin is 'JFK'",
        "        ? fare > 100.00              fare is NULL",
        "    ✓ dest = 'LAX'                   dest is 'LAX'",
    ]


def test_a_long_predicate_is_wrapped_to_the_terminal() -> None:
    cities = ", ".join(f"'city number {n}'" for n in range(30))
    lines = str(explain(parse(f"dest IN ({cities}) AND delay > 60"), RECORD)).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert sum("city number" in line for line in lines) > 3


def test_an_explanation_as_a_dict_has_the_whole_tree() -> None:
    text = "origin = 'EWR' OR delay > 60"
    assert explain(parse(text), RECORD, subscription=7, text=text).to_dict() == {
        "subscription": 7,
        "filter": text,
        "matches": False,
        "failing": 1,
        "distance": 0.2,
        "reason": {
            "kind": "any of",
            "filter": text,
            "outcome": False,
            "parts": [
                {
                    "kind": "predicate",
                    "filter": "origin = 'EWR'",
                    "outcome": False,
                    "detail": "origin is 'JFK': wanted 'EWR'",
                },
                {"kind": "predicate", "filter": "delay > 60", "outcome": False, "detail": "delay is 45: 15 below 60"},
            ],
        },
    }


def test_long_values_are_shown_by_their_beginning() -> None:
    domain = Domain("long", [Attribute("s", "string"), Attribute("a", "array<string>")])
    record = read_record({"s": "x" * 1_000_000, "a": ["y" * 500] * 100}, domain)
    text = " OR ".join([*(f"s = '{k}'" for k in range(500)), "array_contains(a, 'z')"])
    told = json.dumps(explain(parse_filter(text, domain), record).to_dict(), ensure_ascii=False)
    assert "s is '" + "x" * 200 + "'… of 1,000,000 characters" in told
    assert "'… of 500 characters, … 100 in all]" in told
    assert len(told) < 500_000
