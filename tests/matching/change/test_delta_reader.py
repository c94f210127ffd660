"""A filter that is read by its shape says what it says when it is parsed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidings import Attribute, Domain, FilterError
from tidings.filter.compile.literal_scanner import NUMBER_MARK, STRING_MARK
from tidings.filter.normal.normal_form import normalise
from tidings.filter.normal.value_sets import double_ordinal, line
from tidings.filter.syntax.parser import parse_filter
from tidings.matching.change.delta_reader import (
    DOUBLE,
    TEXT,
    Bound,
    DeltaReader,
    Reads,
    Recipes,
    Step,
    entries_of_form,
)
from tidings.model.types import DOUBLE as DOUBLE_TYPE

TYPES = {
    "s": "string", "t": "string", "x": "double", "f": "float", "n": "bigint", "i": "int", "b": "tinyint",
    "d": "decimal(10,2)", "whole": "decimal(18,0)", "at": "date",
}  # fmt: skip
DOMAIN = Domain("d", [Attribute(name, type_) for name, type_ in TYPES.items()])

NUMBERS = st.one_of(
    st.sampled_from(
        ["0", "0.0", "00", "007", "0.10", "1.5", "127", "128", "2147483647", "2147483648", "9007199254740993", "1e3",
         "1E-400", "1e400", "5L", "2.5D", "1.", ".5", "9223372036854775806", "9223372036854775807", "99999999.99",
         "9223372036854775808", "123456789012345678901234567890", "0.1234567890123456789", "1.7976931348623157e308",
         "0.000000000000000000000001", "12345678901234567.8", "1.5BD", "99999999999999999999.5"]
    ),
    st.integers(0, 10**20).map(str),
    st.decimals(0, 10**9, allow_nan=False, places=3).map(str),
    st.floats(0, 1e300).map(repr),
)  # fmt: skip
STRINGS = st.one_of(
    st.sampled_from(
        ["''", "'a'", "'it''s'", r"'a\'b'", r"'\u0041'", "r'a'", '"a"', "'é€𝄞'", "'-- 1'", "'1 AND 2'", "' '"]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="'\\"), max_size=6).map(lambda text: f"'{text}'"),
)
BLANKS = st.sampled_from(["", " ", "  ", "\t", "\n", "\u00a0", " /* 5 */ ", " -- '\n"])
SIGNS = st.sampled_from(["", "", "", "-", "- ", "+", "- -"])


@st.composite
def predicates(draw: Any) -> str:
    blank = draw(st.sampled_from(["", " ", " ", " "])) or draw(BLANKS)
    name = draw(st.sampled_from([*TYPES, "X", "`x`"]))
    if TYPES.get(name) == "string":
        return f"{name}{blank}={blank}{draw(STRINGS)}"
    if name == "at":
        return f"{name} >= DATE '2024-01-0{draw(st.integers(0, 9))}'"
    number = draw(SIGNS) + draw(NUMBERS)
    if draw(st.booleans()):
        return f"{name} BETWEEN {number} AND {draw(SIGNS)}{draw(NUMBERS)}"
    op = draw(st.sampled_from(["<", "<=", ">", ">=", "=", "=="]))
    return f"{name}{blank}{op}{blank}{number}" if draw(st.booleans()) else f"{number} {op} {name}"


FILTERS = st.lists(predicates(), min_size=1, max_size=4).map(" AND ".join)


def _entries(reads: Reads) -> dict[int, list[frozenset[Any]]]:
    """The entries of each filter, each as constraints by the attribute's number."""
    found: dict[int, list[frozenset[Any]]] = {}
    text_starts = [0, *reads.text_ends.tolist()]
    start = 0
    for number, end in zip(reads.filters.tolist(), reads.ends.tolist(), strict=True):
        constraints = []
        for row in range(start, end):
            text = int(reads.texts[row])
            asked: Any = (int(reads.lows[row]), int(reads.highs[row]))
            if text >= 0:
                asked = reads.text_data[text_starts[text] : text_starts[text + 1]].tobytes()
            constraints.append((int(reads.leaves[row]), asked))
        found.setdefault(number, []).append(frozenset(constraints))
        start = end
    return {number: sorted(entries, key=repr) for number, entries in found.items()}


def _parsed(texts: list[str]) -> tuple[dict[int, list[frozenset[Any]]], list[int]]:
    """The same by a parse of each filter, and those that cannot be parsed."""
    leaves = {path: number for number, path in enumerate(DOMAIN.leaves)}
    found: dict[int, list[frozenset[Any]]] = {}
    wrong = []
    for number, text in enumerate(texts):
        try:
            read, _ = entries_of_form(normalise(parse_filter(text, DOMAIN)), DOMAIN)
        except FilterError:
            wrong.append(number)
            continue
        entries = [
            frozenset((leaves[path], asked[0] if len(asked) == 1 else tuple(asked)) for path, *asked in entry)
            for entry in read
        ]
        if entries:
            found[number] = sorted(entries, key=repr)
    return found, wrong


@settings(max_examples=100, deadline=None)
@given(st.lists(FILTERS, min_size=1, max_size=8))
@example(["x > -0.0", "x > -0", "x > 0.0", "x >= - 5", "x < 00.50", "x = 9007199254740993"])
@example(["s = 'a'", "s = ''", "s = 'é'", "s = 'it''s'", "s = r'a'", r"s = '\\'", "s = 'a' 'b'"])
@example(["n > 5", "n > 5.5", "n > 9223372036854775807", "n > -9223372036854775808", "n = 018", "n > 1e2", "n > 5L"])
@example(["d > 1.5", "d > 1.505", "d > 99999999.99", "d > 100000000", "d = -0.00", "b > 127", "b > 128", "b < -128"])
def test_filters_of_known_shapes_are_read_as_a_parse_reads_them(texts: list[str]) -> None:
    reader = DeltaReader(DOMAIN)
    expected, unreadable = _parsed(texts)
    for _ in range(2):  # their shapes new, and known
        reads, wrong = reader.read_all(pa.array(texts))
        assert [row for row, _ in wrong] == unreadable
        assert _entries(reads) == expected


LITERAL = re.compile(
    r"('[^'\\]*'|\b[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?:[lLsSyYfFdD]|[bB][dD])?\b)", re.ASCII
)  # as the shapes have it


def _split(text: str) -> tuple[bytes, list[str]]:
    """The shape of a text, with marks for its literals, and those."""
    pieces = LITERAL.split(text)
    literals = pieces[1::2]
    marks = [STRING_MARK if literal[0] == "'" else NUMBER_MARK for literal in literals]
    return "".join(part for pair in zip(pieces[::2], [*marks, ""], strict=True) for part in pair).encode(), literals


@settings(max_examples=133, deadline=None)
@given(st.text(st.sampled_from("ar_x01.5' \\\"=-eE`é\x01\n/*("), min_size=1, max_size=14))
@example("x>1.5e3 1.5 .5 1. 1..5 x1.5 a'b'c 'x'5 5'x' 'a''b'")
def test_a_text_is_split_as_the_regular_expression_splits_it_or_not_at_all(text: str) -> None:
    shape, literals = _split(text)
    first, last = line(DOUBLE_TYPE)
    steps = [
        Step(hole, TEXT, bounds=(Bound(0, hole, False),))
        if literal[0] == "'"
        else Step(hole, DOUBLE, low=first, high=last - 1, bounds=(Bound(0, hole, False),))
        for hole, literal in enumerate(literals)
    ]
    recipes = Recipes()
    if steps:
        recipes.add(shape, steps)
    scanned = recipes.scan(pa.array(["", text, "x = 5"]).slice(1, 1))
    if scanned.done[0]:
        texts = [literal[1:-1].encode() for literal in literals if literal[0] == "'"]
        codes = [double_ordinal(float(literal)) for literal in literals if literal[0] != "'"]
        assert scanned.text_data.tobytes() == b"".join(texts)
        assert np.diff(scanned.text_ends, prepend=0).tolist() == [len(text) for text in texts]
        assert scanned.lows[scanned.texts < 0].tolist() == scanned.highs[scanned.texts < 0].tolist() == codes


@pytest.mark.parametrize(
    "text",
    [
        "x > 1.5", "x >= -2 AND x < 0.30", "s = 'v1' AND t = 'v 2'", "n = 7 AND s = 'é'", "x BETWEEN 1 AND 2.5",
        "d >= 1.25 AND i < 5", "f = 0.1",
    ],
)  # fmt: skip
def test_a_plain_filter_is_scanned_once_its_shape_is_known(text: str) -> None:
    reader = DeltaReader(DOMAIN)
    assert not reader.recipes.scan(pa.array([text])).done[0]
    reader.read_all(pa.array([text]))
    assert reader.recipes.scan(pa.array([text])).done[0]


def test_a_shape_is_told_from_others_by_its_bytes_when_there_are_many() -> None:
    recipes, (_, last) = Recipes(), line(DOUBLE_TYPE)
    for number in range(3000):
        recipes.add(f"x{number} > \x02".encode(), [Step(number, DOUBLE, high=last - 1, bounds=(Bound(4, 0, False),))])
    texts = [f"x{number} > {number}.5" for number in range(-5, 3005)]
    scanned = recipes.scan(pa.array(texts))
    assert scanned.done.tolist() == [0 <= number < 3000 for number in range(-5, 3005)]
    assert scanned.leaves.tolist() == list(range(3000))
    assert scanned.lows.tolist() == [double_ordinal(number + 0.5) for number in range(3000)]
