"""Text to tree: Spark's precedence and casts, and errors that say where and what to do."""

from __future__ import annotations

import pytest

from tidings.errors import FilterError
from tidings.filter.meaning.interpreter import holds
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.tree import Arithmetic, ArrayContains, Comparison, Expression, In, Not, attributes_of
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_record

TYPES = {
    "t": "tinyint", "s": "smallint", "i": "int", "l": "bigint", "f": "float", "d": "double", "e": "decimal(10,2)",
    "w": "decimal(38,10)", "st": "string", "b": "boolean", "da": "date", "ts": "timestamp", "nt": "timestamp_ntz",
    "ai": "array<int>", "al": "array<bigint>", "af": "array<float>", "ad": "array<double>",
    "ae": "array<decimal(10,2)>", "ast": "array<string>", "ats": "array<timestamp>", "price": "double",
    "address": "struct<city:string,geo:struct<lat:double>>", "raw": "binary", "tags": "map<string,string>",
    "select": "int", "`two words`": "int", "`a.b`": "int",
}  # fmt: skip
DOMAIN = Domain("test", [Attribute(name, type_) for name, type_ in TYPES.items()])


def _met(expression: Expression) -> str:
    """The type in which the operands of a predicate meet."""
    match expression:
        case Not(operand):
            return _met(operand)
        case Comparison(_, left, right):
            assert left.type == right.type
            return str(left.type)
        case In(operand, items):
            assert {item.type for item in items} == {operand.type}
            return str(operand.type)
        case ArrayContains(array, item):
            assert array.type.element == item.type
            return str(item.type)
    raise AssertionError(expression)


@pytest.mark.parametrize(
    ("text", "type_"),
    [  # as the analysed plans of Spark 4.3 have it
        ("t = 1", "int"), ("i = 1S", "int"), ("l = 1.5", "decimal(21,1)"), ("l = 1e3", "double"),
        ("f = 0.1", "double"), ("f = 1", "double"), ("f = l", "double"), ("f = 1.5F", "float"),
        ("e = 1", "decimal(10,2)"), ("e = 1.234", "decimal(11,3)"), ("e = l", "decimal(22,2)"),
        ("w = 1.123456789012", "decimal(38,10)"), ("w = d", "double"), ("i = 9223372036854775808", "decimal(19,0)"),
        ("i = -2147483648", "int"), ("i = -2147483649", "bigint"), ("i <=> 1.5", "decimal(11,1)"),
        ("st = 5", "bigint"), ("st = 1.5", "double"), ("st = e", "double"), ("st = da", "date"), ("st = b", "boolean"),
        ("da = ts", "timestamp"), ("da = nt", "timestamp_ntz"), ("ts = nt", "timestamp"), ("i = '5'", "bigint"),
        ("e = '5.5'", "double"), ("da = '2020-01-01'", "date"), ("b = 'true'", "boolean"), ("i = NULL", "int"),
        ("i IN (1, 2.5)", "decimal(11,1)"), ("i IN (1, '2')", "bigint"), ("i IN (1, NULL)", "int"),
        ("l IN (2.5, '3')", "double"), ("l IN ('3', 2.5)", "decimal(21,1)"), ("e = 1Y", "decimal(10,2)"),
        ("l > 0.0000000000000000001", "bigint"), ("1.5 > l", "decimal(21,1)"),
        ("l > 9223372036854775808", "decimal(20,0)"),
        ("f IN (1)", "double"), ("e IN (1)", "decimal(12,2)"), ("e IN ('1', 2)", "double"),
        ("da IN ('2020-01-01', ts)", "timestamp"), ("i IN (1, 2.5, 1e0)", "double"), ("i IN (l, 2.5)", "decimal(21,1)"),
        ("array_contains(ai, 1L)", "bigint"), ("array_contains(ai, 1.5)", "decimal(11,1)"),
        ("array_contains(ad, 1.5)", "double"), ("array_contains(ae, 1)", "decimal(12,2)"),
        ("array_contains(af, 1)", "float"), ("array_contains(af, 1.5)", "double"), ("array_contains(al, f)", "float"),
        ("array_contains(ats, da)", "timestamp"), ("array_contains(ast, 'x')", "string"),
    ],
)  # fmt: skip
def test_operands_meet_in_the_type_that_spark_chooses(text: str, type_: str) -> None:
    assert _met(parse_filter(text, DOMAIN)) == type_


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("i + l", "bigint"), ("t + t", "tinyint"), ("t + 1", "int"), ("f + f", "float"), ("f + i", "double"),
        ("f + 1.5", "double"), ("e + 1", "decimal(11,2)"), ("e * 2", "decimal(12,2)"), ("e * i", "decimal(21,2)"),
        ("e / 2", "decimal(14,6)"), ("e / e", "decimal(23,13)"), ("w * w", "decimal(38,6)"), ("w / w", "decimal(38,6)"),
        ("e % 2", "decimal(3,2)"), ("i / 2", "double"), ("i % 2", "int"), ("i % 2.5", "decimal(2,1)"),
        ("l * 1.1", "decimal(23,1)"), ("e - w", "decimal(38,9)"), ("l / e", "decimal(33,11)"), ("f / f", "double"),
        ("st + 1", "bigint"), ("st * 1.5", "double"), ("st / 2", "double"), ("e + NULL", "decimal(11,2)"),
        ("NULL / NULL", "double"), ("w % e", "decimal(18,10)"), ("2 / e", "decimal(14,11)"), ("t % s", "smallint"),
    ],
)  # fmt: skip
def test_arithmetic_has_the_type_that_spark_gives_it(text: str, type_: str) -> None:
    expression = parse_filter(f"({text}) IS NULL", DOMAIN)
    (operand,) = [getattr(expression, "operand", None)]
    assert isinstance(operand, Arithmetic)
    assert str(operand.type) == type_


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("NOT b AND b OR b", "((NOT b) AND b) OR b"),
        ("NOT i = 1", "NOT (i = 1)"),
        ("b OR b AND NOT b", "b OR (b AND (NOT b))"),
        ("i = 1 IS NULL", "(i = 1) IS NULL"),
        ("i + 2 * 3 % 4 - 5 > 1", "((i + ((2 * 3) % 4)) - 5) > 1"),
        ("i - -5 = 1", "(i - (-5)) = 1"),
        ("i BETWEEN 1 AND 2 AND b", "(i BETWEEN 1 AND 2) AND b"),
        ("i NOT BETWEEN 1 AND 2", "NOT (i >= 1 AND i <= 2)"),
        ("i <> 1", "NOT i == 1"),
        ("st NOT LIKE 'a!%' ESCAPE '!'", "NOT st LIKE 'a!%' ESCAPE '!'"),
        ("st NOT ILIKE 'A%'", "NOT lower(st) LIKE 'a%'"),
        ("(((b)))", "b"),
        ("b AND (b AND (b AND i = 1))", "b AND b AND b AND i = 1"),
    ],
)
def test_precedence_and_shorthand_are_sparks(text: str, same: str) -> None:
    assert parse_filter(text, DOMAIN) == parse_filter(same, DOMAIN)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("PRICE > 1", ("price",)),
        ("Address.CITY = 'x'", ("address", "city")),
        ("`select` = 1", ("select",)),
        ("select = 1", ("select",)),
        ("`two words` = 1", ("two words",)),
        ("`a.b` = 1", ("a.b",)),
    ],
)
def test_names_are_found_as_spark_finds_them(text: str, path: tuple[str, ...]) -> None:
    assert [reference.path for reference in attributes_of(parse_filter(text, DOMAIN))] == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prise > 3", "filter: unknown attribute 'prise' at column 1; did you mean 'price'?"),
        (
            "i = 1 AND adress.city = 'x'",
            "filter: unknown attribute 'adress.city' at column 11; did you mean 'address.city'?",
        ),
        ("a.b = 1", "filter: unknown attribute 'a.b' at column 1"),
        ("address = 'x'", "is carried along, not filtered at column 1; name a field of it, as address.city"),
        ("raw = 'x'", "attribute 'raw' of type binary is carried along, not filtered at column 1"),
        ("i > 1 AND b = 5", "filter: cannot compare boolean with int at column 11"),
        ("i = true", "filter: cannot compare int with boolean at column 1"),
        ("ai = ai", "filter: cannot compare array<int> with array<int> at column 1"),
        ("i IN (1, true)", "filter: cannot look for int among int, boolean at column 1"),
        ("st + st > 1", "filter: cannot compute string + string at column 1"),
        ("array_contains(ai, '1')", "filter: cannot look for string in array<int> at column 16"),
        ("array_contains(i, 1)", "array_contains takes an array, and this is of type int at column 16"),
        ("length(i) > 1", "length takes a string, and this is of type int at column 8"),
        ("abs(b) > 1", "abs takes a number, and this is of type boolean at column 5"),
        ("i LIKE '1%'", "LIKE takes a string, and this is of type int at column 1"),
        ("st LIKE st", "the pattern of LIKE is a string literal at column 9"),
        (r"st LIKE 'a\\b'", "LIKE cannot read the pattern"),
        ("st LIKE 'a' ESCAPE 'ab'", "ESCAPE takes one character at column 20"),
        ("st RLIKE 'a' ESCAPE '!'", "filter: ESCAPE follows LIKE or ILIKE at column 1"),
        ("st RLIKE '('", "RLIKE cannot read the pattern"),
        (r"st RLIKE r'(a)\1'", "RLIKE cannot read the pattern"),
        ("i", "a filter is a condition, and this is of type int at column 1"),
        ("NULL", "a filter is a condition, and this is of type void"),
        ("b AND i", "AND, OR and NOT take conditions, and this is of type int at column 7"),
        ("i =", "filter: something is missing after '=' at column 3"),
        ("i > 1 AND", "filter: something is missing after 'AND' at column 7"),
        ("i = 5 b", "filter: unexpected 'b' at column 7"),
        ("i = 5 6", "filter: unexpected '6' at column 7"),
        ("b = i > 1", "filter: a comparison inside a comparison at column 5; put the inner one in parentheses"),
        ("i = l = b", "filter: a comparison inside a comparison at column 1; put the inner one in parentheses"),
        ("i BETWEEN 1 AND 2 = true", "a comparison inside a comparison"),
        ("b IS TRUE", "IS is followed by NULL or NOT NULL at column 1; write a = true"),
        ("st REGEXP 'a'", "filter: 'REGEXP' is not in the language at column 4; write RLIKE"),
        ("CASE WHEN b THEN 1 END", "is not in the language"),
        ("i IS DISTINCT FROM 3", "<=>"),
        ("upper(st, 'x') = 'A'", "unexpected ')' at column 14"),
        ("count(i) > 1", "filter: unknown function 'count' at column 1"),
        ("lowr(st) = 'a'", "filter: unknown function 'lowr' at column 1; did you mean 'lower'?"),
        ("CAST(i AS string) = '1'", "there are no casts"),
        ("da > '2020-13-01'", "filter: '2020-13-01' is not a date at column 6"),
        ("i = 'abc'", "filter: 'abc' is not a bigint at column 5"),
        ("i" + " + 1" * 250 + " > 1", "more than 200 levels deep"),
        ("st = '); --", "filter: the ' is never closed at column 6"),
        ("i = 1 OR java_method('java.lang.Runtime', 'x')", "unknown function 'java_method' at column 10"),
        ("`x", "filter: the ` is never closed at column 1"),
        ("SELECT * FROM t", "filter"),
        ("i = (SELECT 1)", "filter"),
        ("i IN (SELECT l FROM t)", "filter: a subquery is not in the language at column 7; a filter sees one event"),
        ("x" * 100_000 + " = 1", "filter: unknown attribute 'xxxxx"),
        ("*", "filter"),
        ("address.* = 1", "filter"),
        ("i > 5D.i", "filter: unexpected '.' after what is no attribute at column 5"),
        ("st = 'x'.st", "filter: unexpected '.' after what is no attribute at column 6"),
        ("i > TRUE.i", "filter: unexpected '.' after what is no attribute at column 10"),
        ("i > l.OR", "filter: unexpected 'OR' at column 5; write `OR` if it is a name"),
        ("i BETWEEN 5D. AND 9", "filter: unexpected '.' after what is no attribute at column 11"),
    ],
)
def test_a_bad_filter_is_refused_with_its_place_and_what_to_do(text: str, message: str) -> None:
    with pytest.raises(FilterError) as raised:
        parse_filter(text, DOMAIN)
    assert message in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("i IN (SELECT 1)", 7),
        ("i IN (SELECT * FROM t)", 7),
        ("i = (SELECT max(y) FROM t)", 6),
        ("EXISTS (SELECT 1)", 9),
        ("b AND NOT EXISTS ( select 1 from t)", 20),
        ("d > ALL (SELECT d FROM t)", 10),
        ("(SELECT 1) = i", 2),
        ("i IN (1, (SELECT 2))", 11),
        ("i IN (WITH a AS (SELECT 1) SELECT * FROM a)", 7),
    ],
)
def test_a_subquery_is_refused_by_its_name(text: str, column: int) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text, DOMAIN)
    assert str(caught.value) == (
        f"filter: a subquery is not in the language at column {column}; "
        "a filter sees one event: compare its attributes with values"
    )


@pytest.mark.parametrize("text", ["(prise > 1)", "(`select` > prise)", "i IN (prise)", "(select < prise)"])
def test_an_attribute_in_parentheses_is_no_subquery(text: str) -> None:
    with pytest.raises(FilterError, match="unknown attribute 'prise'"):
        parse_filter(text, DOMAIN)


def test_what_is_not_text_is_no_filter() -> None:
    with pytest.raises(FilterError, match="a filter is text, not int"):
        parse_filter(5, DOMAIN)  # type: ignore[arg-type]


def test_two_attributes_that_differ_by_case_are_told_apart_or_refused() -> None:
    domain = Domain("d", [Attribute("Price", "double"), Attribute("price", "bigint")])
    assert _met(parse_filter("price = 1L", domain)) == "bigint"
    with pytest.raises(FilterError, match="ambiguous"):
        parse_filter("PRICE = 1", domain)


def test_long_chains_are_read_without_recursion() -> None:
    text = " AND ".join(f"i != {number}" for number in range(2400))
    expression = parse_filter(text, DOMAIN)
    assert len(getattr(expression, "operands", ())) == 2400
    assert parse_filter(" OR ".join(["b AND i = 1"] * 1200), DOMAIN) is not None


def test_the_deepest_filter_that_is_allowed_is_read() -> None:
    true = read_record({"b": True}, DOMAIN)
    assert parse_filter("(" * 199 + "b" + ")" * 199, DOMAIN) == parse_filter("b", DOMAIN)
    assert holds(parse_filter("NOT " * 198 + "b", DOMAIN), true)
    nested = "b"
    for level in range(95):
        nested = f"(b {'AND' if level % 2 else 'OR'} NOT {nested})"
    assert holds(parse_filter(nested, DOMAIN), true)
