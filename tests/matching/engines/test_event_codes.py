"""Laws of the grids that divide an attribute's line into cells."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.filter.compile.plan_execution import double_ordinals
from tidings.matching.engines.entries import NULL
from tidings.matching.engines.event_codes import CELL_BITS, MAX_EDGES, grid_of

LEAST, GREATEST = NULL + 1, 2**63 - 1
CODES = st.integers(LEAST, GREATEST) | st.integers(-50, 50) | st.sampled_from([LEAST, GREATEST, 0])
DOUBLES = st.floats() | st.floats(-10, 10) | st.sampled_from([float("-inf"), float("inf"), float("nan"), 0.0, 1e308])


def expected_cells(codes, edges):
    return np.where(codes == NULL, 0, np.searchsorted(edges, codes, side="right") + 1)


@given(st.lists(CODES, max_size=60), st.lists(CODES | st.just(NULL), max_size=30))
def test_the_cell_of_a_code_is_one_more_than_the_edges_at_or_below_it(bounds, codes):
    grid = grid_of(np.array(bounds, np.int64), floating=False)
    codes = np.array([*codes, *bounds], np.int64)
    assert grid.edges.tolist() == sorted(set(bounds))
    assert grid.cells(codes).tolist() == expected_cells(codes, grid.edges).tolist()


@given(st.lists(DOUBLES, max_size=60), st.lists(DOUBLES, max_size=30))
def test_so_is_the_cell_of_a_double_infinite_or_nan(bounds, values):
    bounds, values = (double_ordinals(np.array(each, np.float64)) for each in (bounds, values))
    grid = grid_of(bounds, floating=True)
    codes = np.concatenate([values, bounds])
    assert grid.cells(codes).tolist() == expected_cells(codes, grid.edges).tolist()


@pytest.mark.parametrize("spread", ["uniform", "far apart", "repeated"])
def test_many_bounds_become_few_edges_with_about_as_many_between_any_two(spread):
    rng = np.random.default_rng(0)
    bounds = {
        "uniform": lambda: rng.integers(0, 10**9, 100_000),
        "far apart": lambda: (10 ** rng.uniform(0, 18, 100_000)).astype(np.int64),
        "repeated": lambda: rng.zipf(1.3, 100_000) % 20_000,
    }[spread]()
    grid = grid_of(bounds, floating=False)
    cells = grid.cells(bounds)
    assert 100 < len(grid.edges) <= MAX_EDGES
    assert cells.max() < 1 << CELL_BITS
    assert cells.tolist() == expected_cells(bounds, grid.edges).tolist()
    among = np.bincount(cells)
    alone = np.bincount(cells, weights=bounds == grid.edges[cells - 2])  # on the edge itself: cannot be divided
    assert (among - alone).max() < 100_000 / 500
