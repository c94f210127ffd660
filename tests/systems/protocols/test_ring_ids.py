from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.systems.protocols.ring_ids import between, hashed, ring_distance, within

IDS = st.integers(0, 15)


@given(IDS, IDS, IDS)
def test_between_is_what_a_walk_clockwise_passes(low: int, x: int, high: int) -> None:
    steps = (high - low) % 16 or 16
    passed = [(low + step) % 16 for step in range(1, steps)]
    assert between(low, x, high) == (x in passed)
    assert within(low, x, high) == (x in [*passed, high])


@given(IDS, IDS)
def test_distance_is_the_shorter_way_around(a: int, b: int) -> None:
    assert ring_distance(a, b, 4) == ring_distance(b, a, 4) == min((a - b) % 16, (b - a) % 16)


@pytest.mark.parametrize("bits", [3, 24, 128, 160])
def test_the_id_of_a_name_fits_the_ring(bits: int) -> None:
    assert 0 <= hashed("node", bits) < 1 << bits
