"""Spark's lexical rules: what each literal denotes, and what is refused where."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tidings.errors import FilterError
from tidings.filter.syntax.lexer import lex
from tidings.filter.tree import Literal
from tidings.model.types import parse_type

# As Spark 4.3 reads them; tests/testing/test_agreement.py asks it.
STRINGS = [
    ("'a''b'", "a'b"),
    ('"a""b"', 'a"b'),
    ("'a'  'b'", "ab"),
    ("'a' \"b\"", "ab"),
    (r"'\n\t\r\b\0\Z'", "\n\t\r\b\0\x1a"),
    (r"'\101'", "A"),
    (r"'\07'", "\x007"),
    (r"'\377'", "377"),
    (r"'\u0041\U0001F600'", "A😀"),
    (r"'\ud83d\ude00'", "😀"),
    (r"'\u00'", "u00"),
    (r"'\q\'\"'", "q'\""),
    (r"'\%\_\\'", r"\%\_" + "\\"),
    (r"r'a\nb'", r"a\nb"),
    ('R"it\'s"', "it's"),
    ("r'a''b'", "ab"),
    ("'a\nb'", "a\nb"),
    ("''", ""),
]

NUMBERS = [
    ("5", 5, "int"),
    ("007", 7, "int"),
    ("2147483647", 2147483647, "int"),
    ("2147483648", 2147483648, "bigint"),
    ("9223372036854775808", Decimal(9223372036854775808), "decimal(19,0)"),
    ("99999999999999999999999999999999999999", Decimal("9" * 38), "decimal(38,0)"),
    ("5L", 5, "bigint"),
    ("5s", 5, "smallint"),
    ("5Y", 5, "tinyint"),
    ("1.5", Decimal("1.5"), "decimal(2,1)"),
    (".5", Decimal("0.5"), "decimal(1,1)"),
    ("5.", Decimal(5), "decimal(1,0)"),
    ("00012.50", Decimal("12.50"), "decimal(4,2)"),
    ("0.001", Decimal("0.001"), "decimal(3,3)"),
    ("1.5BD", Decimal("1.5"), "decimal(2,1)"),
    ("1e3bd", Decimal(1000), "decimal(4,0)"),
    ("1e3", 1000.0, "double"),
    ("1E-3D", 0.001, "double"),
    ("1.5d", 1.5, "double"),
    ("0.1F", 0.10000000149011612, "float"),
    ("1e-60F", 0.0, "float"),
]


@pytest.mark.parametrize(("text", "value"), STRINGS)
def test_a_string_denotes_what_spark_reads(text: str, value: str) -> None:
    (literal,) = lex(f"a = {text}").literals
    assert literal.value().value == value


@pytest.mark.parametrize(("text", "value", "type_"), NUMBERS)
def test_a_number_has_the_value_and_type_that_spark_gives_it(text: str, value: object, type_: str) -> None:
    (literal,) = lex(f"a = {text}").literals
    assert literal.value().value == value
    assert literal.value().type == parse_type(type_)


@pytest.mark.parametrize(
    ("text", "value"), [("128Y", -128), ("2147483648", -2147483648), ("9223372036854775808L", -(2**63))]
)
def test_a_minus_sign_is_part_of_the_least_number(text: str, value: int) -> None:
    (literal,) = lex(f"a = -{text}").literals
    assert literal.value(negative=True).value == value


def test_a_decimal_has_no_negative_zero() -> None:
    (literal,) = lex("a = -0.00").literals
    assert str(literal.value(negative=True).value) == "0.00"


def test_a_shape_is_the_text_less_its_literals_names_blanks_and_case_of_keywords() -> None:
    shapes = {
        lex(text).shape for text in ("a = 5 and b like 'x'", " a=12.5   AND b LIKE 'it''s' ", 'a = 1e3 AND `b` Like ""')
    }
    assert shapes == {"`n0` = :p0 AND `n1` LIKE :p1"}


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("a = 'x", 5, "never closed"),
        ("a = `x", 5, "never closed"),
        ("a = 1_000", 5, "'1_000' is no number"),
        ("a = 0x1F", 5, "'0x1F' is no number"),
        ("a = 200Y", 5, "out of range for a tinyint"),
        ("a = 9223372036854775808L", 5, "out of range for a bigint"),
        ("a = 1e400", 5, "out of range for a double"),
        ("a = 1e50F", 5, "out of range for a float"),
        ("a = 1.5L", 5, "is no number"),
        ("a = " + "9" * 39, 5, "more than 38 digits"),
        ("a = " + "9" * 100_000, 5, "more than 38 digits"),
        ("a = -" + "9" * 100_000 + "L", 6, "out of range for a bigint"),
        ("a = \u0663", 5, "'\u0663' is no number"),
        (r"a = '\ud83d'", 5, "not valid Unicode"),
        (r"a = '\U00110000'", 5, "not valid Unicode"),
        ("été = 1", 1, "unexpected 'é'"),
        ("a = 1; drop", 6, "unexpected ';'"),
        ("a = ?", 5, "unexpected '?'"),
        ("a = :x", 5, "unexpected ':'"),
        ("a[0] = 1", 2, "unexpected '['"),
        ("a::string = '1'", 2, "there are no casts"),
        ("a || 'x' = 'yx'", 3, "there is nothing that joins strings"),
        ("a LIKE ANY ('x%', 'y%')", 8, "write a LIKE 'x%' OR a LIKE 'y%'"),
        ("!a", 1, "unexpected '!'"),
        ("a = 1 -- b", 7, "comments"),
        ("a /* b */ = 1", 3, "comments"),
        ("a = X'41'", 5, "X literals"),
        ("a > INTERVAL '1' DAY", 5, "INTERVAL literals"),
        ("a = DATE '2020-02-30'", 5, "not a date"),
        ("a = DATE 'today'", 5, "not a date"),
        ("java_method('x')", 1, "unknown function 'java_method'"),
        ("a = 1)", 6, "without its '('"),
        ("(a = 1", 1, "never closed"),
        ("a IN (1,)", 8, "missing after ','"),
        ("", None, "empty"),
        (" \n ", None, "empty"),
    ],
)
def test_what_the_language_lacks_is_refused_at_its_place(text: str, column: int | None, reason: str) -> None:
    with pytest.raises(FilterError) as raised:
        _literals(text)
    assert raised.value.column == column
    assert reason in str(raised.value)


def _literals(text: str) -> list[Literal]:
    return [literal.value() for literal in lex(text).literals]


def test_an_error_shows_the_beginning_of_a_long_text_only() -> None:
    for text in ("9" * 100_000, "9" * 100_000 + "L", "1e" + "9" * 5_000, "9" * 100_000 + "x"):
        with pytest.raises(FilterError) as raised:
            _literals(f"a = {text}")
        assert len(str(raised.value)) < 250


@pytest.mark.parametrize(
    "text",
    [
        "(" * 201 + "a = 1" + ")" * 201,
        "NOT " * 201 + "a",
        "NOT (" * 101 + "a" + ")" * 101,
        "a = " + "- " * 201 + "5",
        " AND ".join(["a = 1"] * 3000),
        "a IN (" + ", ".join(["1"] * 5001) + ")",
        "a " + "= " * 10_001,
    ],
)
def test_too_many_levels_or_tokens_are_refused_before_anything_recurses(text: str) -> None:
    with pytest.raises(FilterError, match="more than"):
        lex(text)


def test_levels_end_where_their_parentheses_do() -> None:
    assert len(lex(" AND ".join(["((((a = - - 1))))"] * 500)).tokens) == 14 * 500 - 1
    assert len(lex("(" * 200 + "a" + ")" * 200).tokens) == 401
    assert len(lex(" OR ".join(["NOT NOT a"] * 1000)).tokens) == 4 * 1000 - 1
