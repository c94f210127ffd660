"""Ordinals keep the order of their types, and sets of intervals are an algebra."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.filter.compile.plan_execution import double_ordinals
from tidings.filter.meaning.operators import compare
from tidings.filter.normal.value_sets import ValueSet, around, everything, from_ordinal, line, ordinal, union
from tidings.model.types import DOUBLE, STRING, DataType, decimal, parse_type

ANY_DOUBLE = st.binary(min_size=8, max_size=8).map(lambda data: struct.unpack("<d", data)[0])
TYPES = [parse_type(name) for name in ("boolean", "tinyint", "bigint", "float", "double", "date", "timestamp")]
TYPES += [decimal(10, 2), decimal(38, 38)]
SMALL = st.lists(st.tuples(st.integers(-8, 8), st.integers(-8, 8)), max_size=5)


@given(ANY_DOUBLE, ANY_DOUBLE)
def test_ordinals_of_doubles_are_in_sparks_order(left: float, right: float) -> None:
    places = ordinal(left, DOUBLE), ordinal(right, DOUBLE)
    assert (places[0] > places[1]) - (places[0] < places[1]) == compare(left, right)


@given(st.text(), st.text())
def test_strings_are_in_the_order_of_their_bytes(left: str, right: str) -> None:
    places = ordinal(left, STRING), ordinal(right, STRING)
    assert (places[0] > places[1]) - (places[0] < places[1]) == compare(left, right)


@given(st.lists(ANY_DOUBLE, min_size=1))
def test_the_vectorised_ordinals_of_doubles_are_the_plain_ones(values: list[float]) -> None:
    assert double_ordinals(np.array(values)).tolist() == [ordinal(value, DOUBLE) for value in values]


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_line_begins_and_ends_with_values_of_its_type(type_: DataType) -> None:
    low, high = line(type_)
    for place in (low, 0, high - 1):
        assert ordinal(from_ordinal(place, type_), type_) == place


def _members(values: ValueSet) -> set[int | None]:
    return {place for low, high in values.intervals for place in range(low, high)} | ({None} if values.null else set())


@given(SMALL, SMALL, st.booleans(), st.booleans())
def test_union_intersection_and_complement_are_those_of_the_members(
    left: list[tuple[int, int]], right: list[tuple[int, int]], left_null: bool, right_null: bool
) -> None:
    one, other = union(left, null=left_null), union(right, null=right_null)
    assert _members(one | other) == _members(one) | _members(other)
    assert _members(one & other) == _members(one) & _members(other)
    assert _members(one.complement(-9, 10)) == set(range(-9, 10)) - _members(one)
    for result in (one | other, one & other, one.complement(-9, 10)):
        ends = [end for interval in result.intervals for end in interval]
        assert ends == sorted(set(ends)), "intervals are disjoint, ascending, not empty and do not touch"


def test_everything_is_every_value_and_null() -> None:
    for type_ in [*TYPES, STRING]:
        assert everything(type_) == ValueSet((line(type_),), null=True)
        assert not everything(type_).is_empty


def test_around_a_string_lies_nothing_but_the_string() -> None:
    before, after = around("ab", STRING)
    assert before < after < around("ab\0", STRING)[0]
    assert around("aa\U0010ffff", STRING)[1] < before
