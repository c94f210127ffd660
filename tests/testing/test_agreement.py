"""Spark, the interpreter and the matcher agree. `make fuzz` asks the same of a million pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings import Domain
from tidings.model.domain import Attribute
from tidings.model.event import read_events
from tidings.testing.agreement import compare, smallest
from tidings.testing.fuzz import match_pairs
from tidings.testing.random_cases import Case, make_case
from tidings.testing.spark_judge import NULL, RAISED, events_frame, spark_truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CASES = json.loads((Path(__file__).parents[1] / "filter" / "meaning" / "spark_cases.json").read_text())
AS_NUMBER = {
    "date": "unix_date({})",
    "timestamp": "unix_micros({})",
    "timestamp_ntz": "unix_micros(cast({} AS timestamp))",
}


@pytest.mark.parametrize(
    ("seed", "filters", "compiled"), [(0, 20, True), (1, 80, False), (2, 80, False), (3, 80, False)]
)
def test_spark_the_interpreter_and_the_matcher_say_the_same(
    spark: SparkSession, seed: int, filters: int, compiled: bool
) -> None:
    case = make_case(Random(seed), events=60, filters=filters)
    tally = compare(spark, case, match=match_pairs, compiled=compiled)
    assert tally.disagreements == [], "\n\n".join(map(str, tally.disagreements[:5]))
    assert tally.pairs > filters * 50
    assert tally.true > tally.pairs / 5


TABLE_DOMAIN = Domain(
    "table",
    [
        Attribute("s", "string"), Attribute("l", "bigint"), Attribute("d", "double"), Attribute("e", "decimal(10,2)"),
        Attribute("ts", "timestamp"), Attribute("x", "array<int>"), Attribute("p", "struct<q:string,r:int>"),
    ],
)  # fmt: skip
TABLE_EVENTS: list[dict[str, Any]] = [
    {
        "s": "abc",
        "l": 5,
        "d": 1.5,
        "e": "1.50",
        "ts": "2020-01-01T00:00:00Z",
        "x": [1, None],
        "p": {"q": "it's", "r": 1},
    },
    {"s": "5", "l": 2**53 + 1, "d": float("nan"), "e": "-0.01", "ts": "1969-12-31T23:59:59.999999Z", "x": [], "p": {}},
    {"s": "", "l": -(2**63), "d": -0.0, "e": "99999999.99", "x": [2]},
    {},
]
TABLE_FILTERS = r"""
s = 5
s <=> NULL
l = 9007199254740992D
l = 9007199254740993
l + 1 > l
-l > 0
abs(l) > 0
l % 0 = 1
1 / l > 0.1
d = d
d > 1e308
d = 0
d <=> 'NaN'
e = 1.5
e * 2 >= 3
e / 3 = 0.5
ts = DATE '2020-01-01'
ts < '1970-01-01'
ts = TIMESTAMP '2020-01-01 01:00:00+01:00'
array_contains(x, 1)
array_contains(x, 3)
NOT array_contains(x, 3)
p.q = 'it''s'
p.`r` IN (1, NULL)
p.r NOT IN (2, NULL)
s LIKE 'a\\_c'
s NOT LIKE 'a_c'
s ILIKE 'A%'
s RLIKE '^a.c\\z'
s BETWEEN 'a' AND 'b'
NOT (l > 0 AND s = 'abc') OR d IS NULL
""".strip().splitlines()


def test_a_table_of_filters_means_the_same_everywhere(spark: SparkSession) -> None:
    tally = compare(spark, Case(TABLE_DOMAIN, TABLE_EVENTS, TABLE_FILTERS), match=match_pairs)
    assert tally.disagreements == [], "\n\n".join(map(str, tally.disagreements[:5]))


def test_a_matcher_that_is_wrong_is_caught_with_the_part_of_the_filter_that_shows_it(spark: SparkSession) -> None:
    def blind_to_like(subscriptions: Sequence[tuple[int, str]], case: Case) -> set[tuple[int, int]]:
        return {(i, n) for i, n in match_pairs(subscriptions, case) if "LIKE" not in dict(subscriptions)[n]}

    case = Case(TABLE_DOMAIN, TABLE_EVENTS, ["l < 10 AND (d > 1 OR s LIKE 'a%') AND e > 0", "l > 0"])
    tally = compare(spark, case, match=blind_to_like)
    assert [disagreement.says for disagreement in tally.disagreements] == ["the matcher misses this match"]
    found = smallest(spark, case, tally.disagreements, match=blind_to_like)
    assert (found.filter, found.event) == ("s LIKE 'a%'", {"s": "abc"})


def test_the_judge_tells_errors_from_nulls_and_says_what_a_plain_where_says(spark: SparkSession) -> None:
    filters = ["1 / l > 0.1", "l IS NOT NULL AND s RLIKE 'b'", "s = 5", "p.r = 1 OR p.r IS NULL", "nowhere = 1"]
    filters.append(f"d < {'9' * 39}")
    verdict = spark_truth(spark, TABLE_DOMAIN, [*TABLE_EVENTS, {"l": 0}], filters)
    assert verdict.outcomes[0].tolist()[3:] == [NULL, RAISED]
    assert verdict.outcomes[2].tolist()[:2] == [RAISED, 1]
    assert list(verdict.refusals) == [4, 5]
    frame = events_frame(spark, read_events([*TABLE_EVENTS, {"l": 0}], TABLE_DOMAIN))
    for number in (1, 3):
        assert frame.filter(filters[number]).count() == int(verdict.truth[number].sum())


@pytest.mark.parametrize("type_name", CASES["casts"])
def test_the_table_of_casts_is_sparks(spark: SparkSession, type_name: str) -> None:
    texts = [text for text, _ in CASES["casts"][type_name]]
    expression = AS_NUMBER.get(type_name, "{}").format(f"try_cast(text AS {type_name})")
    rows = (
        spark.createDataFrame([(text,) for text in texts], "text string").coalesce(1).selectExpr(expression).collect()
    )
    expected = [value for _, value in CASES["casts"][type_name]]
    if type_name.startswith("decimal"):
        expected = [None if value is None else Decimal(value) for value in expected]
    wrong = [
        (text, row[0], value)
        for text, row, value in zip(texts, rows, expected, strict=True)
        if repr(row[0]) != repr(value)
    ]
    assert wrong == []


def test_the_table_of_decimal_arithmetic_is_sparks(spark: SparkSession) -> None:
    functions = {"+": "try_add", "-": "try_subtract", "*": "try_multiply", "/": "try_divide", "%": "try_mod"}
    expressions, expected = [], []
    for left, left_type, op, right, right_type, result_type, value in CASES["decimal_arithmetic"]:
        if value is not None or op != "%":  # where the quotient is too long, try_mod raises too
            call = f"{functions[op]}(CAST('{left}' AS {left_type}), CAST('{right}' AS {right_type}))"
            expressions += [call, f"typeof({call})"]
            expected += [None if value is None else Decimal(value), result_type]
    row = spark.range(1).selectExpr(*(f"{text} AS c{i}" for i, text in enumerate(expressions))).collect()[0]
    assert list(row) == expected
