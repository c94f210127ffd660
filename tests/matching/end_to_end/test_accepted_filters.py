"""A filter that is accepted can be compiled, matched, explained, saved and described, on any event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.matching.full_scan import scan

from tidings import Matcher
from tidings.errors import FilterError
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.meaning.interpreter import holds
from tidings.filter.normal.description import describe_filter
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.syntax.writer import to_sql
from tidings.matching.batch_columns import Columns
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events, read_record

TYPES = {
    "s": "string", "t": "string", "i": "int", "l": "bigint", "d": "double", "b": "boolean", "m": "decimal(38,10)",
    "a": "array<string>", "doc": "string",
}  # fmt: skip
DOMAIN = Domain("d", [Attribute(name, type_) for name, type_ in TYPES.items()])
EVENTS: list[dict[str, Any]] = [
    {},
    {"s": "a" * 9_000, "i": 1, "l": 3},
    {"s": "İ" * 5_000, "t": "x", "b": True, "d": 1.5, "m": "1.5", "a": ["x", None], "doc": "<a><b>1</b></a>"},
    {"s": "." * 9_000 + "a", "b": False, "d": float("nan"), "i": 77, "t": "y7"},
    {"s": "", "t": "", "i": -(2**31), "doc": "<x"},
]
LISTED = ", ".join(str(2 * k) for k in range(1_200))
PAIRS = " OR ".join(f"(s = 'x{k}' AND t = 'y{k}')" for k in range(250))
ACCEPTED = {
    "LIKE, 4,500 wildcards": "s LIKE '" + "%a" * 4_500 + "'",
    "LIKE, a long text": "s LIKE '%" + "." * 9_000 + "%a'",
    "LIKE, a long text of an expression": "lower(s) LIKE '%" + "." * 9_000 + "%a'",
    "LIKE, a long text alone": "s LIKE '%" + "." * 9_000 + "%'",
    "LIKE, of a constant": "'aaa' LIKE '" + "%a" * 4_500 + "'",
    "LIKE, 1,000 times _": "s LIKE '%" + "a_" * 1_000 + "%'",
    "ILIKE, letters that grow": "s ILIKE '" + "İ" * 5_000 + "'",
    "RLIKE, deep": "s RLIKE '" + "(" * 500 + "a" + ")" * 500 + "'",
    "RLIKE, many words": "s RLIKE '" + "|".join(f"w{k}z" for k in range(1_200)) + "'",
    "a long list in many boxes": f"i IN ({LISTED}) AND l IN ({LISTED}) AND ({PAIRS})",
    "many <> and many boxes": " AND ".join(f"t != 'z{k}'" for k in range(900)) + f" AND ({PAIRS})",
    "2,400 times <>": " AND ".join(f"i != {k}" for k in range(2_400)),
    "residuals in many boxes": " AND ".join(f"(i = {k} OR length(s) = {k})" for k in range(300)),
    "residuals beside many boxes": " AND ".join(
        [f"(i + d = {k} OR length(s) = {k})" for k in range(8)] + [f"i + d <> {k}" for k in range(600)]
    ),
    "strings that are joined": "s LIKE " + " ".join(["'%a'"] * 3_000),
    "nearly 200 levels": "(" * 95 + "b" + " AND i = 1 OR s = 'x')" * 95,
    "a namespace": "xpath_boolean(doc, '/p:a/p:b', map('p', 'http://" + "x" * 3_000 + "'))",
}
LONG = ("a long list in many boxes", "2,400 times <>", "residuals beside many boxes")  # to compile
REFUSED = {
    "a path that its namespace makes too long": (
        "xpath_boolean(doc, '/p:a/p:b/p:c', map('p', 'http://" + "x" * 5_000 + "'))",
        "with its namespaces written out, the path has more than 10,000 characters at column 20",
    ),
    "groups beyond what Arrow keeps": ("s RLIKE '" + "(" * 400 + "a" + ")" * 400 + "{1000}'", "too large"),
}


CASES = [
    pytest.param(text, id=name, marks=[pytest.mark.long] if name in LONG else []) for name, text in ACCEPTED.items()
]


def _expected(text: str) -> list[bool]:
    tree = parse_filter(text, DOMAIN)
    return [holds(tree, read_record(event, DOMAIN)) for event in EVENTS]


@pytest.mark.parametrize("text", CASES)
def test_what_is_accepted_is_matched_alike_by_every_engine(text: str, tmp_path: Path) -> None:
    expected = _expected(text)
    batch = read_events(EVENTS, DOMAIN)
    found = set(scan(compile_filters([text], DOMAIN), Columns(batch), np.arange(len(EVENTS)))[0].tolist())
    assert [row in found for row in range(len(EVENTS))] == expected
    for others in (3, 2_000):  # so few are scanned, so many are in the engines
        matcher = Matcher({"it": text} | {f"o{k}": f"i = {k}" for k in range(others)}, DOMAIN, threads=1)
        matched = set(matcher.match(EVENTS).pairs())
        assert [(row, "it") in matched for row in range(len(EVENTS))] == expected
    grown = Matcher({f"o{k}": f"i = {k}" for k in range(20)}, DOMAIN, threads=1)
    grown.match(EVENTS)
    grown.add({"it": text})
    assert {row for row, id_ in grown.match(EVENTS).pairs() if id_ == "it"} == set(np.flatnonzero(expected).tolist())
    grown.save(tmp_path / "saved")
    assert Matcher.load(tmp_path / "saved").match(EVENTS).pairs() == grown.match(EVENTS).pairs()


@pytest.mark.parametrize("text", CASES)
def test_what_is_accepted_is_explained_and_described(text: str) -> None:
    matcher = Matcher({"it": text}, DOMAIN, threads=1)
    for event, expected in zip(EVENTS, _expected(text), strict=True):
        explanation = matcher.explain(event, "it")
        assert explanation.reason.outcome is expected or not expected
        assert str(explanation)
    assert all(isinstance(near.subscription, str) for near in matcher.nearest(EVENTS[1]))
    assert describe_filter(text, DOMAIN)
    assert _expected(to_sql(parse_filter(text, DOMAIN))) == _expected(text)


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_could_not_be_matched_is_refused_at_once(text: str, reason: str) -> None:
    with pytest.raises(FilterError, match=reason):
        parse_filter(text, DOMAIN)


@pytest.mark.parametrize(
    "shape",
    [
        " AND ".join(["i != {}"] * 40),
        " AND ".join(["i NOT IN ({}, {}, {})"] * 12),
        " AND ".join(["i + l != {}"] * 90),
        "s LIKE '%{}%' AND i IN (" + ", ".join(["{}"] * 300) + ") AND (" + " OR ".join(["d > {} AND l < {}"] * 9) + ")",
    ],
)
def test_many_large_filters_of_one_shape_compile_as_each_alone(shape: str) -> None:
    filters = [shape.format(*(range(first, first + shape.count("{}")))) for first in range(0, 2_000, 200)]
    together, alone = (compile_filters(filters, DOMAIN, plans=plans) for plans in (True, False))
    assert together.boxes == alone.boxes
    batch = read_events(EVENTS, DOMAIN)
    for table in (together, alone):
        events, found = scan(table, Columns(batch), np.arange(len(EVENTS)))
        expected = {(row, k) for k, text in enumerate(filters) for row in np.flatnonzero(_expected(text)).tolist()}
        assert set(zip(events.tolist(), found.tolist(), strict=True)) == expected


def test_a_path_is_read_wherever_it_stands_in_a_filter() -> None:
    filters = [f"xpath_boolean(doc, '/a{k}') IS NULL AND i = {k % 3}" for k in range(30)]
    filters[20] = "xpath_boolean(doc, '/a[') IS NULL AND i = 1"
    filters[21] = "xpath_boolean('<a/>', '/a[') AND i = 1"
    for plans in (True, False):
        table = compile_filters(filters, DOMAIN, on_error="reject", plans=plans)
        assert [row for row, _ in table.rejects] == [20, 21]
