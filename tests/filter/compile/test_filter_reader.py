"""Filters read by their predicates have the same trees as filters that are parsed whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tidings.filter.compile.filter_reader import FilterReader
from tidings.filter.syntax.parser import parse_filter
from tidings.model.domain import Attribute, Domain
from tidings.testing.strategies import Case, cases

DOMAIN = Domain(
    "test",
    [
        Attribute(name, type_)
        for name, type_ in {
            "i": "int", "l": "bigint", "d": "double", "s": "string", "b": "boolean", "day": "date", "ts": "timestamp",
            "`odd name`": "double", "x.y": "double",
        }.items()
    ],
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "i = 1 AND d > 2 OR s = 'x'", "i = 1 OR d > 2 AND s = 'x'", "NOT i = 1 AND b", "NOT (i = 1 AND b)", "NOT NOT b",
        "i BETWEEN 1 AND 2 AND d BETWEEN 3 AND 4", "i NOT BETWEEN 1 AND 2 OR b", "NOT i BETWEEN 1 AND 2 AND b",
        "(i + 1) * 2 > l AND b", "((i = 1))", "(i = 1) = b", "(i = 1 OR b) = b AND b", "(i > 1) IS NULL OR b",
        "i IN (1, 2) AND (b OR d IN (1, 2.5))", "(i = 1 AND b) AND (d > 1 AND (l < 2 AND b))", "TRUE OR b AND FALSE",
        "b OR (b OR (b OR i = 1))", "i IS NOT NULL AND NOT d IS NULL", "length(lower(s)) > 2 AND abs(i - 3) < 4",
        "i=-1 AND d>-2.5", "s LIKE 'a%' AND s NOT LIKE '%b'", "day = DATE '2020-01-01' OR ts < timestamp'2020-01-01'",
        "x.y > 1 AND `odd name` < 2", "i > 1 AND\n\td < 2  ", "s = \"it's\" OR s = 'it''s' OR s = r'\\d'",
    ],
)  # fmt: skip
def test_logic_is_split_where_the_parser_splits_it(text: str) -> None:
    reader = FilterReader(DOMAIN)
    assert reader.by_predicates(text) is None, "its predicates are new"
    assert reader.by_predicates(text) == reader.by_predicates(text) == parse_filter(text, DOMAIN)


@pytest.mark.parametrize(
    "text",
    [
        "", "i", "i =", "i = 1 AND", "OR b", "(i = 1", "i = 1)", "() AND b", "i = 1 d = 2", "prise > 1", "s AND b",
        "i = x", "i BETWEEN 1", "i BETWEEN 1 AND", "i = 1 = 2", "NULL AND b", "b -- c", "b; b", "s = 'a' 'b'",
        "s RLIKE '('", "foo(i) = 1", "i = 99999999999999999999999999999999999999999", "s LIKE 'a!' ESCAPE '!'",
        "i = NOT b AND b",
        "(" * 50 + "b" + ")" * 50, " AND ".join(["b"] * 1000),
    ],
)  # fmt: skip
def test_what_is_out_of_the_ordinary_is_left_to_the_full_parse(text: str) -> None:
    reader = FilterReader(DOMAIN)
    assert [reader.by_predicates(text) for _ in range(3)] == [None] * 3


@settings(max_examples=50, deadline=None)
@given(cases(events=2, filters=12))
def test_any_filter_is_read_as_the_full_parse_reads_it(case: Case) -> None:
    reader = FilterReader(case.domain)
    for text in case.filters * 3:
        if (tree := reader.by_predicates(text)) is not None:
            assert tree == parse_filter(text, case.domain), text
