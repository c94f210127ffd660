"""What each operator must match and must not: values of one attribute, and the filters that hold of them.

`None` is NULL. A value that is in neither list of a filter is not spoken of. Interpreter, matcher and
(where there is Java) Spark are held to the same table.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tidings import Attribute, Domain, Matcher, parse_filter
from tidings.filter.meaning.interpreter import holds
from tidings.model.event import read_record

NAN, INF = math.nan, math.inf
# (type of x, filter, must match, must not match)
TABLE: list[tuple[str, str, list[Any], list[Any]]] = [
    ("double", "x = 1", [1.0], [0.0, 1.0000001, NAN, None]),
    ("double", "x == 1.5", [1.5], [1.0, None]),
    ("double", "x = 0", [0.0, -0.0], [5e-324, None]),
    ("double", "x <=> 1", [1.0], [2.0, None]),
    ("double", "x <=> NULL", [None], [0.0, NAN]),
    ("double", "NOT (x <=> 1)", [2.0, None, NAN], [1.0]),
    ("double", "x != 1", [2.0, NAN, INF], [1.0, None]),
    ("double", "x <> 1", [2.0], [1.0, None]),
    ("double", "x < 1", [0.5, -INF], [1.0, 2.0, NAN, None]),
    ("double", "x <= 1", [1.0, -INF], [1.5, NAN, INF, None]),
    ("double", "x > 1", [1.5, INF, NAN], [1.0, None]),
    ("double", "x >= 1", [1.0, NAN], [0.99, None]),
    ("double", "x = 'NaN'", [NAN], [INF, None]),
    ("double", "x > 'Infinity'", [NAN], [INF, None]),
    ("double", "x BETWEEN 1 AND 2", [1.0, 2.0], [0.9, 2.1, NAN, None]),
    ("double", "x BETWEEN 2 AND 1", [], [1.0, 1.5, 2.0, None]),
    ("double", "x NOT BETWEEN 1 AND 2", [0.0, NAN], [1.0, 1.5, None]),
    ("double", "x IN (1, 2.5)", [1.0, 2.5], [2.0, None]),
    ("double", "x NOT IN (1, 2.5)", [2.0, NAN], [1.0, None]),
    ("double", "x IN (1, NULL)", [1.0], [2.0, None]),
    ("double", "x NOT IN (1, NULL)", [], [1.0, 2.0, None]),
    ("double", "x = 0.1", [0.1], [0.1 + 1e-16, 0.30000000000000004]),
    ("double", "x / 0 = 1 OR x = 3", [3.0], [1.0, None]),
    ("double", "x % 2 = 1", [3.0, 1.0], [2.0, -1.0, NAN, None]),
    ("double", "-x = 5", [-5.0], [5.0, None]),
    ("double", "abs(x) > 2", [-3.0, INF], [2.0, None]),
    ("float", "x = 0.1", [], [0.1]),  # the float nearest 0.1 is not the double nearest 0.1
    ("float", "x = 0.1F", [0.1], [0.2, None]),
    ("float", "x + x = 0.2F", [0.1], [0.2]),
    ("bigint", "x = 9007199254740993", [2**53 + 1], [2**53, None]),
    ("bigint", "x = 9007199254740992e0", [2**53, 2**53 + 1], [2**53 - 1, None]),
    ("bigint", "x > 1.5", [2], [1, None]),
    ("bigint", "x = 1.0", [1], [0, None]),
    ("bigint", "x = 1.5", [], [1, 2, None]),
    ("bigint", "x = '5'", [5], [4, None]),
    ("bigint", "x + 1 > 0", [0], [2**63 - 1, None]),  # an overflow is NULL
    ("bigint", "x * 2 > 1", [1, 2**61], [2**62, None]),
    ("bigint", "x / 2 = 1.5", [3], [2, 4, None]),
    ("bigint", "x % 2 = -1", [-3], [3, 2, None]),
    ("bigint", "x % 0 IS NULL", [1, None], []),
    ("tinyint", "x = 128", [], [127, -128, None]),
    ("tinyint", "x < 128", [127, -128], [None]),
    ("tinyint", "-x = 128", [], [-128, None]),
    ("tinyint", "abs(x) IS NULL", [-128, None], [127]),
    ("decimal(10,2)", "x = 1.5", ["1.50"], ["1.51", None]),
    ("decimal(10,2)", "x = 1.505", [], ["1.50", "1.51", None]),
    ("decimal(10,2)", "x < 1.505", ["1.50"], ["1.51", None]),
    ("decimal(10,2)", "x > 1e0", ["1.01"], ["1.00", None]),
    ("decimal(10,2)", "x / 3 = 0.333333", ["1.00"], ["2.00", None]),
    ("decimal(38,10)", "x = 1.123456789012", ["1.1234567890"], ["1.1234567891", None]),
    ("string", "x = 'a'", ["a"], ["A", "a ", "", None]),
    ("string", "x < 'b'", ["a", "B", ""], ["b", "ba", "é", None]),
    ("string", "x > '\\uffff'", ["😀"], ["\uffff", "z", None]),  # by bytes, not by UTF-16
    ("string", "x LIKE 'a%'", ["a", "abc", "a\n"], ["A", "ba", "", None]),
    ("string", "x LIKE '_b%'", ["ab", "😀b!"], ["b", "aab", None]),
    ("string", "x LIKE '%7%'", ["7", "a7b"], ["", "8", None]),
    ("string", "x LIKE '10\\%'", ["10%"], ["10", "10x", None]),
    ("string", "x LIKE '10!%' ESCAPE '!'", ["10%"], ["10", "10!%", None]),
    ("string", "x LIKE ''", [""], ["a", None]),
    ("string", "x LIKE '%'", ["", "a\nb"], [None]),
    ("string", "x NOT LIKE 'a%'", ["b", ""], ["a", None]),
    ("string", "x LIKE 'a_c'", ["abc", "a\nc"], ["ac", "abbc", None]),
    ("string", "x ILIKE 'AB%'", ["abc", "ABC", "aB"], ["b", None]),
    ("string", "x RLIKE '^a+b'", ["ab", "aaab!"], ["b", "xab", None]),
    ("string", "x RLIKE 'b'", ["abc"], ["ac", None]),
    ("string", "x NOT RLIKE 'b'", ["ac"], ["abc", None]),
    ("string", "x RLIKE '(a+)+$'", ["aaa"], ["b" * 27, None]),
    ("string", "x = 'it''s'", ["it's"], ["its", None]),
    ("string", "x IN ('a', 'b')", ["a", "b"], ["c", "", None]),
    ("string", "x = 5", ["5", " 5 ", "+5"], ["5.0", "five", "", None]),  # text that is no number is NULL
    ("string", "x > 1.5", ["2", "1e3", "Infinity"], ["1", "x", None]),
    ("string", "lower(x) = 'abc'", ["ABC", "abc"], ["abd", None]),
    ("string", "upper(x) = 'STRASSE'", ["straße"], ["strase", None]),
    ("string", "length(x) = 2", ["ab", "😀!"], ["a", "", None]),
    ("string", "x IS NULL", [None], ["", "NULL"]),
    ("string", "x IS NOT NULL", ["", "NULL"], [None]),
    ("boolean", "x", [True], [False, None]),
    ("boolean", "NOT x", [False], [True, None]),
    ("boolean", "x = false", [False], [True, None]),
    ("boolean", "x OR NULL", [True], [False, None]),
    ("boolean", "x AND NULL IS NULL", [True], [False, None]),
    ("boolean", "(x AND NULL) IS NULL", [True, None], [False]),
    ("boolean", "x < true", [False], [True, None]),
    ("date", "x = DATE '2020-02-29'", ["2020-02-29"], ["2020-03-01", None]),
    ("date", "x >= '2020-01-01'", ["2020-01-01", "9999-12-31"], ["2019-12-31", None]),
    ("date", "x < TIMESTAMP '2020-01-01 00:00:01'", ["2020-01-01"], ["2020-01-02", None]),
    ("timestamp", "x = TIMESTAMP '2020-01-01 10:00:00'", ["2020-01-01T10:00:00Z"], ["2020-01-01T10:00:01Z", None]),
    ("timestamp", "x = TIMESTAMP '2020-01-01 10:00:00+02:00'", ["2020-01-01T08:00:00Z"], ["2020-01-01T10:00:00Z"]),
    ("timestamp", "x > '2020-07-01 10:00:00 Europe/Paris'", ["2020-07-01T08:00:01Z"], ["2020-07-01T08:00:00Z", None]),
    ("timestamp", "x >= '2020-01-01'", ["2020-01-01T00:00:00+00:00"], ["2020-01-01T00:00:00+01:00", None]),
    ("timestamp", "x < DATE '2020-01-02'", ["2020-01-01T23:59:59.999999Z"], ["2020-01-02T00:00:00Z", None]),
    ("timestamp_ntz", "x = TIMESTAMP_NTZ '2020-01-01 10:00:00'", ["2020-01-01T10:00:00"], ["2020-01-01T10:00:01"]),
    ("array<int>", "array_contains(x, 2)", [[1, 2], [2, None]], [[1], [], [None], None]),
    ("array<int>", "NOT array_contains(x, 2)", [[1], []], [[1, 2], [1, None], None]),
    ("array<double>", "array_contains(x, 1.5)", [[1.5], [NAN, 1.5]], [[1.0], [NAN], None]),
    ("array<string>", "array_contains(x, 'a')", [["b", "a"]], [["A"], [], None]),
    ("array<string>", "x IS NULL", [None], [[], [None]]),
]


def _domain(type_: str) -> Domain:
    return Domain("operators", [Attribute("x", type_)])


@pytest.mark.parametrize(("type_", "text", "matching", "others"), TABLE, ids=[f"{row[0]}: {row[1]}" for row in TABLE])
def test_an_operator_matches_what_it_must_and_nothing_that_it_must_not(
    type_: str, text: str, matching: list[Any], others: list[Any]
) -> None:
    domain = _domain(type_)
    events = [{"x": value} for value in (*matching, *others)]
    expected = [True] * len(matching) + [False] * len(others)
    tree = parse_filter(text, domain)
    assert [holds(tree, read_record(event, domain)) for event in events] == expected
    found = Matcher([("s", text)], domain).match(events)
    assert [bool(count) for count in found.offsets[1:] - found.offsets[:-1]] == expected


@pytest.mark.spark
def test_spark_agrees_with_the_table(spark: Any) -> None:
    from tidings.testing.spark_judge import spark_truth

    for type_ in dict.fromkeys(row[0] for row in TABLE):
        rows = [row for row in TABLE if row[0] == type_]
        values = [value for row in rows for value in (*row[2], *row[3])]
        verdict = spark_truth(spark, _domain(type_), [{"x": value} for value in values], [row[1] for row in rows])
        start = 0
        for number, (_, text, matching, others) in enumerate(rows):
            expected = np.array([True] * len(matching) + [False] * len(others))
            judged = slice(start, start + len(expected))
            spoken = ~verdict.raised[number, judged]  # where Spark raises, Tidings says NULL
            assert not verdict.refusals.get(number), text
            assert (verdict.truth[number, judged] == expected)[spoken].all(), text
            start += len(expected)
