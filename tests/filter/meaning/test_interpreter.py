from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from tidings.filter.meaning.interpreter import evaluate, holds
from tidings.filter.tree import (
    And,
    Arithmetic,
    ArrayContains,
    Call,
    Cast,
    Comparison,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Reference,
    RLike,
)
from tidings.model.types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    STRING,
    VOID,
    DataType,
    array,
    decimal,
)

TRUE, FALSE, NULL = (Literal(value, BOOLEAN) for value in (True, False, None))
TRUTH = {True: TRUE, False: FALSE, None: NULL}


def literal(value: Any, type_: DataType = BIGINT) -> Literal:
    return Literal(value, type_)


@pytest.mark.parametrize(
    ("left", "right", "conjunction", "disjunction"),
    [
        (True, True, True, True),
        (True, False, False, True),
        (True, None, None, True),
        (False, False, False, False),
        (False, None, False, None),
        (None, None, None, None),
    ],
)
def test_logic_is_kleenes(left: Any, right: Any, conjunction: Any, disjunction: Any) -> None:
    for first, second in ((TRUTH[left], TRUTH[right]), (TRUTH[right], TRUTH[left])):
        assert evaluate(And((first, second)), {}) is conjunction
        assert evaluate(Or((first, second)), {}) is disjunction


def test_not_null_is_null_and_null_does_not_hold() -> None:
    assert evaluate(Not(NULL), {}) is None
    assert evaluate(Not(TRUE), {}) is False
    assert not holds(NULL, {})
    assert holds(TRUE, {})


def test_a_path_that_the_record_lacks_is_null() -> None:
    city = Reference(("address", "city"), STRING)
    assert evaluate(IsNull(city), {}) is True
    assert evaluate(city, {("address", "city"): "Ulm"}) == "Ulm"


ONE, TWO, NOTHING = literal(1), literal(2), literal(None)
NAN = literal(math.nan, DOUBLE)
ARRAY = array(BIGINT)

TABLE: list[tuple[Expression, Any]] = [
    (Comparison("=", ONE, ONE), True),
    (Comparison("=", ONE, NOTHING), None),
    (Comparison("<=>", ONE, NOTHING), False),
    (Comparison("<=>", NOTHING, NOTHING), True),
    (Comparison("<=>", ONE, ONE), True),
    (Comparison("<", ONE, TWO), True),
    (Comparison("<=", TWO, ONE), False),
    (Comparison(">", TWO, ONE), True),
    (Comparison(">=", ONE, ONE), True),
    (Comparison("=", NAN, NAN), True),
    (Comparison(">", NAN, literal(math.inf, DOUBLE)), True),
    (Comparison("=", literal(0.0, DOUBLE), literal(-0.0, DOUBLE)), True),
    (In(ONE, (TWO, ONE)), True),
    (In(ONE, (TWO,)), False),
    (In(ONE, (TWO, NOTHING)), None),
    (In(ONE, (NOTHING, ONE)), True),
    (In(NOTHING, (ONE,)), None),
    (ArrayContains(Literal([1, None], ARRAY), ONE), True),  # type: ignore[arg-type]
    (ArrayContains(Literal([2, None], ARRAY), ONE), None),  # type: ignore[arg-type]
    (ArrayContains(Literal([], ARRAY), ONE), False),  # type: ignore[arg-type]
    (ArrayContains(Literal([1], ARRAY), NOTHING), None),  # type: ignore[arg-type]
    (ArrayContains(Literal(None, ARRAY), ONE), None),
    (Like(literal("a%b", STRING), "a|%_", "|"), True),
    (Like(literal(None, STRING), "%"), None),
    (RLike(literal("xaby", STRING), "a.y?"), True),
    (RLike(literal("xaby", STRING), "^a"), False),
    (RLike(literal(None, STRING), "a"), None),
    (IsNull(NOTHING), True),
    (IsNull(ONE), False),
    (Arithmetic("+", ONE, TWO, BIGINT), 3),
    (Arithmetic("+", ONE, NOTHING, BIGINT), None),
    (Arithmetic("/", literal(1.0, DOUBLE), literal(0.0, DOUBLE), DOUBLE), None),
    (Negate(ONE, BIGINT), -1),
    (Negate(NOTHING, BIGINT), None),
    (Call("abs", literal(-5), BIGINT), 5),
    (Call("lower", literal("É", STRING), STRING), "é"),
    (Call("upper", literal("é", STRING), STRING), "É"),
    (Call("length", literal("é😀", STRING), INT), 2),
    (Call("length", literal(None, STRING), INT), None),
    (Cast(ONE, decimal(20, 1)), Decimal("1.0")),
    (Cast(literal(" 7 ", STRING), BIGINT), 7),
    (Cast(literal("x", STRING), BIGINT), None),
    (Cast(literal(None, VOID), BIGINT), None),
]


@pytest.mark.parametrize(("expression", "expected"), TABLE)
def test_an_expression_means_what_it_means_in_sql(expression: Expression, expected: Any) -> None:
    result = evaluate(expression, {})
    assert (type(result), result) == (type(expected), expected)
