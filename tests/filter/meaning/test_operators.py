from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.filter.meaning.operators import (
    absolute,
    arithmetic,
    cast,
    compare,
    compile_re2,
    contained_text,
    length,
    like_to_re2,
    lower,
    negate,
    upper,
)
from tidings.filter.meaning.patterns import check_rlike
from tidings.model.types import (
    BIGINT,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    VOID,
    array,
    decimal,
    parse_type,
)

# What Spark 4.3 answers to `try_cast(text AS type)` in UTC and to arithmetic on decimals; null where
# it refuses. Dates are days, timestamps microseconds since 1970. `test_agreement.py` asks Spark itself.
CASES = json.loads(Path(__file__).with_name("spark_cases.json").read_text())

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def same(left: Any, right: Any) -> bool:
    return repr(left) == repr(right)  # tells 0.0 from -0.0 and 1.0 from 1.00, and NaN is NaN


@pytest.mark.parametrize("type_name", CASES["casts"])
def test_a_text_reads_as_in_spark(type_name: str) -> None:
    target = parse_type(type_name)
    for text, expected in CASES["casts"][type_name]:
        if target.name == "decimal" and expected is not None:
            expected = Decimal(expected)
        assert same(cast(text, STRING, target), expected), text


@pytest.mark.parametrize("text", CASES["times_of_day"])
def test_a_time_of_day_without_a_date_is_no_timestamp(text: str) -> None:
    assert cast(text, STRING, TIMESTAMP) is None


def test_decimal_arithmetic_is_as_in_spark() -> None:
    for left, _, op, right, _, result_type, expected in CASES["decimal_arithmetic"]:
        result = arithmetic(op, Decimal(left), Decimal(right), parse_type(result_type))
        assert same(result, None if expected is None else Decimal(expected)), (left, op, right)


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (None, VOID, INT, None),
        (7, INT, BIGINT, 7),
        (2**31, BIGINT, INT, None),
        (2**53 + 1, BIGINT, DOUBLE, float(2**53)),
        (16777217, INT, FLOAT, 16777216.0),
        (9007199791611905, BIGINT, FLOAT, 9007200328482816.0),
        (-9007199791611905, BIGINT, FLOAT, -9007200328482816.0),
        (INT64_MIN, BIGINT, FLOAT, -(2.0**63)),
        (5, INT, decimal(11, 1), Decimal("5.0")),
        (100, INT, decimal(3, 1), None),
        (Decimal("1.25"), decimal(3, 2), decimal(2, 1), Decimal("1.3")),
        (Decimal("-1.25"), decimal(3, 2), decimal(2, 1), Decimal("-1.3")),
        (Decimal("-0.04"), decimal(3, 2), decimal(2, 1), Decimal("0.0")),
        (Decimal("9.95"), decimal(3, 2), decimal(2, 1), None),
        (Decimal("0.1"), decimal(1, 1), DOUBLE, 0.1),
        (0.10000000149011612, FLOAT, DOUBLE, 0.10000000149011612),
        (1, DATE, TIMESTAMP, 86_400_000_000),
        (-1, DATE, TIMESTAMP_NTZ, -86_400_000_000),
        (2**31 - 1, DATE, TIMESTAMP, None),
        (5, TIMESTAMP_NTZ, TIMESTAMP, 5),
        ([1, None, 3], array(INT), array(DOUBLE), [1.0, None, 3.0]),
    ],
)
def test_a_value_is_carried_to_a_wider_type_as_in_spark(value: Any, source: Any, target: Any, expected: Any) -> None:
    assert same(cast(value, source, target), expected)


@pytest.mark.parametrize(
    ("op", "left", "right", "type_", "expected"),
    [
        ("+", 127, 1, TINYINT, None),
        ("+", INT64_MAX, 1, BIGINT, None),
        ("-", INT64_MIN, 1, BIGINT, None),
        ("*", 2**32, 2**31, BIGINT, None),
        ("*", -(2**32), 2**31, BIGINT, INT64_MIN),
        ("%", -7, 3, INT, -1),
        ("%", 7, -3, INT, 1),
        ("%", INT64_MIN, -1, BIGINT, 0),
        ("%", 7, 0, INT, None),
        ("/", 1.0, 0.0, DOUBLE, None),
        ("/", 1.0, -0.0, DOUBLE, None),
        ("/", math.nan, 0.0, DOUBLE, None),
        ("%", 1.0, 0.0, DOUBLE, None),
        ("%", -7.5, 2.0, DOUBLE, -1.5),
        ("%", math.inf, 2.0, DOUBLE, math.nan),
        ("%", 2.0, math.inf, DOUBLE, 2.0),
        ("*", 1e308, 10.0, DOUBLE, math.inf),
        ("/", 1e308, 1e-308, DOUBLE, math.inf),
        ("-", math.inf, math.inf, DOUBLE, math.nan),
        ("*", 3e38, 10.0, FLOAT, math.inf),
        ("+", 16777216.0, 1.0, FLOAT, 16777216.0),
    ],
)
def test_arithmetic_is_as_in_spark_and_null_where_spark_raises(
    op: str, left: Any, right: Any, type_: Any, expected: Any
) -> None:
    assert same(arithmetic(op, left, right, type_), expected)


def test_the_least_integer_has_neither_opposite_nor_absolute_value() -> None:
    assert negate(-128, TINYINT) is None
    assert absolute(INT64_MIN, BIGINT) is None
    assert (negate(127, TINYINT), absolute(-127, TINYINT)) == (-127, 127)


@pytest.mark.parametrize(
    ("value", "negated", "absolute_value"),
    [
        ("1.50", "-1.50", "1.50"),
        ("-1.50", "1.50", "1.50"),
        ("0.00", "0.00", "0.00"),
        ("0." + "4" + "9" * 37, "-0.5" + "0" * 37, "0.4" + "9" * 37),
        ("-0.12345678901234567890123456789012345678", *["0.12345678901234567890123456789012350000"] * 2),
        ("0." + "9" * 38, None, "0." + "9" * 38),
    ],
)
def test_a_decimal_of_more_than_34_digits_is_rounded_when_its_sign_changes_as_in_spark(
    value: str, negated: str | None, absolute_value: str
) -> None:
    number = Decimal(value)
    type_ = decimal(38, len(value.partition(".")[2]))
    assert same(negate(number, type_), None if negated is None else Decimal(negated))
    assert same(absolute(number, type_), Decimal(absolute_value))


ORDER: list[list[Any]] = [
    [-math.inf, -1.5, -5e-324, -0.0, 5e-324, 1.0, math.inf, math.nan],
    ["", "\x00", "A", "a", "aa", "é", "\uffff", "😀"],
    [False, True],
    [INT64_MIN, -1, 0, 2**53, 2**53 + 1, INT64_MAX],
    [Decimal("-0.1"), Decimal("0.0"), Decimal("0.1")],
]


@pytest.mark.parametrize("ascending", ORDER)
def test_values_of_one_type_have_one_total_order(ascending: list[Any]) -> None:
    for i, left in enumerate(ascending):
        for j, right in enumerate(ascending):
            assert compare(left, right) == (i > j) - (i < j)


def test_the_two_zeros_are_equal() -> None:
    assert compare(-0.0, 0.0) == 0


@given(st.text(), st.text())
def test_strings_are_in_the_order_of_their_utf8_bytes(left: str, right: str) -> None:
    by_bytes = (left.encode() > right.encode()) - (left.encode() < right.encode())
    assert compare(left, right) == by_bytes


@given(st.integers(INT64_MIN, INT64_MAX))
def test_an_integer_becomes_the_nearest_float(number: int) -> None:
    assert cast(number, BIGINT, FLOAT) == float(np.int64(number).astype(np.float32))


LIKE = [
    # pattern, escape, must match, must not match
    ("a%", "\\", ["a", "ab", "a\nb"], ["", "ba", "A"]),
    ("a_b", "\\", ["a😀b", "a\nb", "a%b"], ["ab", "axxb"]),
    ("%", "\\", ["", "x"], []),
    ("", "\\", [""], ["x", "\n"]),
    ("a\\%b", "\\", ["a%b"], ["axb", "a\\%b"]),
    ("a\\\\b", "\\", ["a\\b"], ["ab", "a\\\\b"]),
    ("a|%b", "|", ["a%b"], ["axb"]),
    ("a__b", "_", ["a_b"], ["axb", "axxb"]),
    ("a.*b$", "\\", ["a.*b$"], ["axxb"]),
    ("x\n", "\\", ["x\n"], ["x"]),
    ("x", "\\", ["x"], ["x\n"]),
    ("a\x00b", "\\", ["a\x00b"], ["ab"]),
]


@pytest.mark.parametrize(("pattern", "escape", "matching", "others"), LIKE)
def test_like_matches_the_whole_string(pattern: str, escape: str, matching: list[str], others: list[str]) -> None:
    compiled = compile_re2(like_to_re2(pattern, escape))
    assert [text for text in matching if not compiled.search(text)] == []
    assert [text for text in others if compiled.search(text)] == []


@pytest.mark.parametrize(
    ("pattern", "escape", "text"),
    [
        ("%7%", "\\", "7"), ("%a.*%", "\\", "a.*"), ("%%", "\\", ""), ("%😀\n%", "\\", "😀\n"), ("%a\\b%", "|", "a\\b"),
        ("%", "\\", None), ("a%", "\\", None), ("%a", "\\", None), ("%a%b%", "\\", None), ("%a_b%", "\\", None),
        ("%a\\%b%", "\\", None), ("%%%%", "%", None), ("", "\\", None),
    ],
)  # fmt: skip
def test_a_like_pattern_that_seeks_one_text_is_told(pattern: str, escape: str, text: str | None) -> None:
    assert contained_text(pattern, escape) == text
    if text is not None:
        sought = compile_re2(like_to_re2(pattern, escape))
        for value in ("", text, f"x{text}", f"{text}\n", "a7b", "xaxxb", "\n"):
            assert bool(sought.search(value)) == (text in value)


@pytest.mark.parametrize(
    ("pattern", "escape", "reason"),
    [
        ("a\\b", "\\", "stands before 'b'"),
        ("ab\\", "\\", "ends with its escape character"),
        ("a%b%", "%", "stands before 'b'"),
        ("ab", "xx", "one character"),
        ("ab", "", "one character"),
        ("ab", "😀", "one character"),
    ],
)
def test_a_like_pattern_that_spark_refuses_is_refused(pattern: str, escape: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        like_to_re2(pattern, escape)


@pytest.mark.parametrize("pattern", ["(", "a{2000}", r"(?=a)", r"(a)\1", "((a{100}){100}){100}", "a" * 10_001])
def test_a_pattern_beyond_re2_or_its_memory_is_refused_with_a_reason(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        check_rlike(pattern)


def test_a_pattern_that_would_take_others_forever_takes_re2_no_time() -> None:
    assert not compile_re2("(a+)+$").search("a" * 5000 + "b")


def test_case_and_length_are_those_of_unicode() -> None:
    assert lower("ΌΣΟΣ İ") == "όσος i̇"
    assert upper("straße ﬀ") == "STRASSE FF"
    assert length("a😀é") == 3
