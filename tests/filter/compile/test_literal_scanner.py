"""The scanner of bytes finds the shapes and literals that the regular expressions find."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.filter.compile.literal_scanner import LiteralScanner
from tidings.filter.compile.shapes import Attributes, RegularExpressions, template_of
from tidings.model.domain import Domain
from tidings.testing import workloads
from tidings.testing.random_cases import make_case

PIECES = (
    "a", "b1", " ", "=", " = ", ">", "5", "0.5", "1e3", "5L", ".", ".5", "5.", "-", "'x'", "''", "'it''s'", '"y"',
    "'\\''", "r'z'", "`a b`", "'ü'", "ü", "'", "\t", "\n", "(", ")", ",", " AND ", "DATE '2020-01-01'", "--", "\x01",
    "\x02", "'\x01'",
)  # fmt: skip


def check(texts: list[str], domain: Domain | None = None) -> None:
    column = pa.array(["left out", *texts], pa.string())[1:]  # whose buffers begin before it
    scanned, judge = LiteralScanner(column), RegularExpressions(column)
    codes, shapes = scanned.shapes()
    expected_codes, expected_shapes = judge.shapes()
    assert [shapes[code] for code in codes] == [expected_shapes[code] for code in expected_codes]
    assert len(set(shapes)) == len(shapes)
    attributes = Attributes(domain) if domain is not None else None
    for number, shape in enumerate(shapes):
        template = shape if attributes is None else getattr((template_of(shape, attributes) or [None])[0], "text", None)
        rows = np.flatnonzero(codes == number).astype(np.int32)
        if template is not None:
            found, expected = scanned.in_holes(template, rows), judge.in_holes(template, rows)
            assert [one.to_pylist() for one in found] == [one.to_pylist() for one in expected]


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=1, max_size=8))
def test_of_any_text_the_shape_and_the_literals_are_the_same(texts: list[str]) -> None:
    check(texts)


@settings(max_examples=8)
@given(st.randoms(use_true_random=False))
def test_of_any_filter_the_shape_and_the_literals_are_the_same(random: Random) -> None:
    case = make_case(random, events=1, filters=12, size=5)
    check(case.filters, case.domain)


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_of_each_workload_the_shapes_and_the_literals_are_the_same(name: str) -> None:
    workload = workloads.WORKLOADS[name](subscriptions=500, events=1)
    check(workload.filters.to_pylist(), workload.domain)


def test_plain_texts_and_others_of_one_shape_come_in_their_order() -> None:
    check(["a = 'x' AND b1 > 5", "a = 'it''s' AND b1 > 6", "a = 'y' AND b1 > 1e3", "a = 'z' AND b1 > 0.5"])


def test_there_may_be_no_text_and_no_literal() -> None:
    codes, shapes = LiteralScanner(pa.array([], pa.string())).shapes()
    assert (len(codes), shapes) == (0, [])
    check([""])
    check(["TRUE", "TRUE", "a"])
