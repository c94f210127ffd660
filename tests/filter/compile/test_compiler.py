"""Many filters at once: by shape or one by one, the columns are the same."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.errors import FilterError
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.compile.filter_reader import FilterReader
from tidings.filter.normal.filter_table import FilterTable
from tidings.filter.syntax.parser import parse_filter
from tidings.model.domain import Attribute, Domain
from tidings.testing import workloads

DOMAIN = Domain(
    "test",
    [
        Attribute(name, type_)
        for name, type_ in {
            "t": "tinyint", "i": "int", "l": "bigint", "f": "float", "d": "double", "e": "decimal(10,2)",
            "w": "decimal(38,10)", "s": "string", "u": "string", "b": "boolean", "day": "date", "ts": "timestamp",
            "nt": "timestamp_ntz", "c0": "double", "v": "string", "`odd name`": "double", "x.y": "double",
            "x.z": "double", "many": "array<decimal(10,2)>", "texts": "array<string>",
        }.items()
    ],
)  # fmt: skip

# Predicates with holes for literals: {n} a number, {s} the inside of a string, {d} a date, {t} a time.
PREDICATES = [
    "t > {n}", "i = {n}", "l <= {n}", "f < {n}", "d >= {n}", "d > -{n}", "e = {n}", "e < -{n}", "w > {n}", "s = '{s}'",
    "'{s}' < u", "s LIKE '{s}%'", "s NOT LIKE '{s}'", "u IN ('{s}', '{s}', '{s}')", "i NOT IN ({n}, {n}, {n})",
    "i IN ({n}, {n})", "d BETWEEN {n} AND {n}", "l != {n}", "b", "NOT b", "i IS NULL", "d IS NOT NULL", "d > c0",
    "day >= '{d}'", "day = DATE '{d}'", "ts < TIMESTAMP '{t}'", "nt > TIMESTAMP_NTZ '{t}'", "{n} > d", "s ILIKE '{s}'",
    "d + {n} > c0", "e IN ({n}, {n})", "s >= '{s}'", "d <=> {n}", "c0 = {n}", "l = '{n}'", "length(s) > {n}",
    "d > {n} AND d < {n}", "s > '{s}' AND s < '{s}'", "v = '{s}'", "v LIKE '{s}%' AND u > '{s}'", "`odd name` > {n}",
    "x.y > {n}", "x . z < {n}", "`x`.`z` = {n}", "s IS NULL", "u IS NOT NULL", "s <=> '{s}'", "i <=> {n}", "w <=> {n}",
    "i IN ({n}, NULL)", "s NOT IN ('{s}', NULL)", "d > {n} * {n}", "l > {n} + {n}", "{n} > {n}", "s = \"{s}\"",
    "s LIKE '{s}' ESCAPE '!'", "day < TIMESTAMP '{t}'", "ts >= DATE '{d}'", "i = '{n}'", "b = '{s}'", "w IN ({n}, {n})",
]  # fmt: skip
# What no interval can say, with literals that differ from filter to filter.
RESIDUALS = [
    "d > c0 * {n}", "d + {n} > c0", "d - {n} < -c0", "e * {n} > w", "e + {n} >= l", "l + {n} > i", "i % {n} = {n}",
    "i / {n} > t", "-{n} * f < d", "-(e + {n}) < -{n}", "abs(l - {n}) < {n}", "w / {n} < e % {n}", "l + {n} = '{n}'",
    "{n} - i > l * {n} + {n}", "(d + {n}) IN ({n}, {n}, {n})", "(e - {n}) NOT IN ({n}, {n})", "i + {n} IN ({n}, NULL)",
    "(l + {n}) BETWEEN {n} AND -{n}", "d + {n} <=> c0 + {n}", "d + {n} <=> d + {n}", "e + {n} <=> NULL",
    "lower(s) = '{s}'", "upper(s) > lower('{s}')", "length(s) > {n}", "length(s) = length('{s}') + {n}", "s = {n}",
    "lower(s) IN ('{s}', '{s}', NULL)", "s LIKE '%{s}%'", "s LIKE '_{s}%' ESCAPE '!'", "s ILIKE '{s}%'",
    "s NOT LIKE '%{s}'", "lower(s) LIKE '{s}%'", "s RLIKE '{p}'", "NOT s RLIKE '^{p}'", "s RLIKE r'{p}'",
    "upper(s) RLIKE \"{p}\"", "(s RLIKE '{p}') = b", "b = (d + {n} > c0)", "s <=> lower('{s}')",
    "array_contains(many, {n})", "array_contains(texts, '{s}')", "NOT array_contains(many, -{n})", "ts > day",
    "v = '{t}' AND ts <=> nt", "(day = DATE '{d}') = b", "(ts < TIMESTAMP '{t}') <=> (day >= '{d}')", "f + {n}F > d",
    "(nt > TIMESTAMP_NTZ '{t}') IS NULL", "(d > {n}) IS NOT NULL", "NOT (lower(u) = '{s}' AND d + {n} > c0)",
    "d + {n} > c0 AND d + {n} > c0", "lower(s) = '{s}' OR lower(s) = '{s}'", "s LIKE '%{s}%' AND s LIKE '%{s}%'",
    "s = '{s}' OR (upper(u) = '{s}' AND i > {n})", "{n} = d + {n} OR e + {n} = {n}",
]  # fmt: skip
NUMBERS = [
    "0", "1", "5", "12", "127", "128", "1.5", "0.25", "99.99", "100.125", "7.0", "1.10", "00", "1e3", "5L",
    "2147483648", "3Y", "1.5D", "9223372036854775807", "123456789012345678901", "1e400", "2147483647",
    "9223372036854775808",
    "0.0", "007.50", "1E-7", "2.5e+2", "12BD", "1e2BD", "300S", "40000S", "200Y", "1.25F", "1e39F", "0e0",
    "99999999999999.999999",
    "1234567890123456789012345678901234567890", "0.00000000000000000001", "1000000000",
]  # fmt: skip
TEXTS = ["a", "b", "ab", "zz", "5", "x y", "", "a%", "_", "é", "it''s", "a\\n", "0", "-- x", "%", "A", "%%", "a!%"]
TEXTS += ["\\\\%", "a\\\\", "\\u00e9", "\\ud800", "true", "2020-01-01", "a\nb", '"', "a_b%", "\\'", "1e3", "😀", "NULL"]
PATTERNS = [
    "a",
    "a+b",
    "[a-z]*",
    "x|y",
    "(a|b)c?",
    "a.b",
    "",
    "(",
    "a**",
    "\\\\d+",
    "[^a]",
    "é",
    "(?i)a",
    "a{2}",
    "$",
    "\\d",
]
DATES = ["2020-01-01", "2021-12-31", "2020-02-30", "1999-1-1", "0001-01-01", "x"]
TIMES = ["2020-01-01 10:00:00", "2021-12-31 23:59:59.5", "2020-01-01", "2020-01-01 10:00:00 Europe/Paris", "x"]


def _boxes(table: FilterTable) -> list[Any]:
    """What each filter asks: its boxes, in no order, with cuts for the codes of strings."""
    asked: list[dict[Any, list[Any]]] = [{} for _ in range(table.boxes)]
    for path, intervals in table.intervals.items():
        keys: Any = None if intervals.keys is None else intervals.keys.to_pylist()
        for box, low, high in zip(intervals.boxes, intervals.lows, intervals.highs, strict=True):
            ends = (low, high) if keys is None else (_cut(low, keys), _cut(high + 1, keys))
            asked[box].setdefault(path, []).append(ends)
        for box in intervals.null_boxes:
            asked[box].setdefault(path, []).append(None)
    boxes: list[Any] = [set() for _ in range(table.count)]
    for box, (row, residual) in enumerate(zip(table.box_filter, table.residual_of, strict=True)):
        constraints = frozenset((path, tuple(ends)) for path, ends in asked[box].items())
        boxes[row].add((constraints, None if residual < 0 else table.residuals[residual]))
    assert sum(map(len, boxes)) == table.boxes, "a filter has no box twice"
    for row, error in table.rejects:
        boxes[row] = str(error)
    return boxes


def _cut(code: int, keys: list[Any]) -> Any:
    if not 0 <= code < 2 * len(keys):
        return code < 0 or "past all"
    cut = keys[code // 2], code % 2
    return cut == (b"", 0) or cut  # before the empty string is before all


def _fill(template: str, random: Random) -> str:
    for hole, choices in _CHOICES.items():
        while hole in template:
            # Mostly plain literals, so that most filters of a shape are planned.
            choice = random.choice(choices[: len(choices) // 3] if random.random() < 0.8 else choices)
            template = template.replace(hole, choice, 1)
    return template


_CHOICES = {"{n}": NUMBERS, "{s}": TEXTS, "{d}": DATES, "{t}": TIMES, "{p}": PATTERNS}


@st.composite
def _same_shape(draw: st.DrawFn) -> list[str]:
    """Filters that differ only in their literals, from a random boolean structure."""
    random = Random(draw(st.integers(0, 2**32)))

    def template(depth: int) -> str:
        if depth == 0 or random.random() < 0.4:
            return random.choice(PREDICATES if random.random() < 0.6 else RESIDUALS)
        joint = random.choice((" AND ", " OR "))
        text = "(" + joint.join(template(depth - 1) for _ in range(random.randint(2, 3))) + ")"
        return f"NOT {text}" if random.random() < 0.2 else text

    shape = template(2)
    filters = [_fill(shape, random) for _ in range(random.randint(8, 24))]
    if random.random() < 0.5:  # the same template with other names
        names = {"s": "u", "u": "v", "v": "s", "d": "c0", "c0": "d"}
        renamed = re.sub(r"\b(s|u|v|d|c0)\b(?![}'])", lambda name: names[name.group()], shape)
        filters += [_fill(renamed, random) for _ in range(random.randint(1, 12))]
    return filters


@settings(max_examples=50, deadline=None)
@given(_same_shape())
def test_a_plan_gives_what_the_full_parse_gives(filters: list[str]) -> None:
    planned = compile_filters(filters, DOMAIN, on_error="reject")
    full = compile_filters(filters, DOMAIN, on_error="reject", plans=False)
    assert _boxes(planned) == _boxes(full)


@st.composite
def _many_literals(draw: st.DrawFn) -> list[str]:
    """Filters of one shape, with any literals."""
    whole = st.integers(0, 10**6) | st.integers(0, 2**64) | st.sampled_from([2**31 - 1, 2**31, 2**63 - 1, 2**63])
    fraction = st.decimals(0, 10**8, allow_nan=False, allow_infinity=False, places=draw(st.integers(1, 8)))
    numbers = whole.map(str) | fraction.map(lambda number: f"{number:f}") | st.floats(0, 1e9).map(lambda x: f"{x:e}")
    texts = st.text(max_size=6).map(lambda text: text.replace("\\", "\\\\").replace("'", "''"))
    shape = draw(st.sampled_from([*PREDICATES, *RESIDUALS]).filter(lambda shape: '"' not in shape))
    shape = re.sub(r"\{([dtp])\}", lambda hole: _CHOICES[hole.group()][0], shape)
    return [
        re.sub(r"\{[ns]\}", lambda hole: draw(numbers if hole.group() == "{n}" else texts), shape)
        for _ in range(draw(st.integers(10, 30)))
    ]


@settings(max_examples=25, deadline=None)
@given(_many_literals())
def test_a_plan_gives_every_filter_its_own_literals(filters: list[str]) -> None:
    planned = compile_filters(filters, DOMAIN, on_error="reject")
    assert _boxes(planned) == _boxes(compile_filters(filters, DOMAIN, on_error="reject", plans=False))


@pytest.mark.parametrize("predicate", [*PREDICATES, *RESIDUALS])
def test_every_predicate_is_compiled_alike_alone(predicate: str) -> None:
    random = Random(predicate)
    filters = [_fill(predicate, random) for _ in range(200)]
    planned = compile_filters(filters, DOMAIN, on_error="reject")
    assert _boxes(planned) == _boxes(compile_filters(filters, DOMAIN, on_error="reject", plans=False))


@pytest.mark.parametrize("predicate", [*PREDICATES, *RESIDUALS])
def test_a_predicate_seen_before_is_read_as_the_full_parse_reads_it(predicate: str) -> None:
    random, reader = Random(predicate), FilterReader(DOMAIN)
    for text in (_fill(predicate, random) for _ in range(60)):
        if (tree := reader.by_predicates(text)) is not None:
            assert tree == parse_filter(text, DOMAIN), text


@pytest.mark.parametrize("name", ["bluedove", "alerts", "strings", "mixed"])
def test_the_workloads_are_compiled_alike(name: str) -> None:
    workload = getattr(workloads, name)(subscriptions=400, events=1)
    planned = compile_filters(workload.filters, workload.domain)
    assert _boxes(planned) == _boxes(compile_filters(workload.filters, workload.domain, plans=False))


def test_a_bad_filter_is_listed_with_its_row_and_the_others_are_compiled() -> None:
    filters = [f"d > {k}" for k in range(20)] + ["prise > 1", "d >"] + [f"d < {k}" for k in range(20)]
    table = compile_filters(filters, DOMAIN, on_error="reject")
    assert [row for row, _ in table.rejects] == [20, 21]
    assert table.rejects[1][1].column == 3
    assert table.boxes == 40
    assert table.never.tolist() == []
    with pytest.raises(FilterError, match="prise"):
        compile_filters(filters, DOMAIN)


def test_never_and_always_are_told_by_filter() -> None:
    table = compile_filters(["d > 1", "d > 1 AND d < 0", "TRUE", "d IS NULL OR d IS NOT NULL", "d IS NULL"], DOMAIN)
    assert table.never.tolist() == [1]
    assert table.always.tolist() == [2, 3]


@pytest.mark.parametrize("kind", [list, pa.array, lambda texts: pa.chunked_array([texts[:3], texts[3:]])])
def test_filters_come_as_a_list_or_as_arrow(kind: Any) -> None:
    texts = [f"d > {k}" for k in range(10)]
    assert compile_filters(kind(texts), DOMAIN).boxes == 10


def test_no_filters_are_a_table_without_boxes() -> None:
    table = compile_filters([], DOMAIN)
    assert (table.count, table.boxes) == (0, 0)
    assert table.never.tolist() == table.always.tolist() == []


@pytest.mark.parametrize("bad", [[None], ["d > 1", 5], ["\ud800"], pa.array(["d > 1", None])])
def test_what_is_not_text_is_refused(bad: Any) -> None:
    with pytest.raises(FilterError):
        compile_filters(bad, DOMAIN)


def test_filters_that_differ_in_a_residuals_literals_share_its_tree() -> None:
    table = compile_filters([f"d > c0 * {k % 7}.5 AND i > {k}" for k in range(100)], DOMAIN)
    (template,) = table.residuals.templates
    assert [column.tolist() for column in template.literals] == [[k + 0.5 for k in range(7)]]
    assert len(table.residuals) == 7, "what is the same is there once"
    assert [table.residuals[number] for number in table.residual_of[:7]] == [
        parse_filter(f"d > c0 * {k}.5", DOMAIN) for k in range(7)
    ]


def test_codes_are_within_the_line_of_their_type() -> None:
    table = compile_filters([f"t > {k} OR s > 'a{k}'" for k in range(-5, 30)], DOMAIN)
    tiny = table.intervals[("t",)]
    assert tiny.highs.max() == 127
    strings = table.intervals[("s",)]
    assert strings.keys is not None
    assert np.all(strings.highs == 2 * len(strings.keys) - 1)
