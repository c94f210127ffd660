"""Pairs of numbers are each there once, whatever their order and size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidings.systems.geometry.key_pairs import counted_pairs, distinct_hashed, distinct_pairs, starts_of

small = st.integers(0, 5)
any_number = st.integers(-(2**63), 2**63 - 1)
pairs = (
    st.lists(st.tuples(small, small)) | st.lists(st.tuples(small, any_number)) | st.lists(st.tuples(any_number, small))
)


def columns(given: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    one, other = zip(*given, strict=True) if given else ((), ())
    return np.array(one, np.int64), np.array(other, np.int64)


def rows(one: np.ndarray, other: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(one.tolist(), other.tolist(), strict=True))


@given(pairs)
def test_every_pair_is_there_once_and_in_order(given: list[tuple[int, int]]) -> None:
    assert rows(*distinct_pairs(*columns(given))) == sorted(set(given))


@given(pairs)
def test_pairs_are_counted(given: list[tuple[int, int]]) -> None:
    one, other, times = counted_pairs(*columns(given))
    assert rows(one, other) == sorted(set(given))
    assert times.tolist() == [given.count(pair) for pair in sorted(set(given))]


@given(st.lists(st.tuples(small, any_number)))
def test_hashes_of_a_row_are_there_once_in_any_order(given: list[tuple[int, int]]) -> None:
    assert sorted(rows(*distinct_hashed(*columns(given)))) == sorted(set(given))


def test_rows_whose_mixes_are_alike_by_chance_are_both_kept() -> None:
    golden = 0x9E3779B97F4A7C15
    mixed = (1 * golden) ^ 0
    other = np.array([0, mixed ^ (2 * golden % 2**64)], np.uint64).view(np.int64)
    found = rows(*distinct_hashed(np.array([1, 2], np.int64), other))
    assert sorted(found) == sorted(zip([1, 2], other.tolist(), strict=True))


def test_a_start_is_where_any_column_differs() -> None:
    assert starts_of(np.array([1, 1, 1, 2]), np.array([5, 5, 6, 6])).tolist() == [0, 2, 3]
    assert starts_of(np.empty(0)).tolist() == []
