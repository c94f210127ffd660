"""A cell's count is that of the filters with a value in it, found one by one."""

from __future__ import annotations

from random import Random

import numpy as np

from tidings.filter.compile.compiler import compile_filters
from tidings.matching.analysis.crowded_values import Crowd, crowds_of, plane_of
from tidings.model.domain import Attribute, Domain
from tidings.testing import brute_force

STOCKS = Domain("stocks", [Attribute("symbol", "string"), Attribute("price", "double"), Attribute("volume", "bigint")])


def crowds(filters: list[str]) -> dict[str, Crowd]:
    return {crowd.path[0]: crowd for crowd in crowds_of(compile_filters(filters, STOCKS))}


def test_integers_overlap_the_cells_that_hold_a_value_of_theirs() -> None:
    random = Random(2)
    starts = [random.randint(0, 300) for _ in range(200)]
    filters = [f"volume BETWEEN {start} AND {start + random.randint(0, 40)}" for start in starts]
    filters += [f"volume IN ({start}, {start + 3}, {start + 90})" for start in starts[:40]] + [
        "volume IS NULL",
        "price > 1",
    ]
    crowd = crowds(filters)["volume"]
    for cell, count in zip(crowd.cells, crowd.counts.tolist(), strict=True):
        inside = [{"volume": value} for value in range(-5, 420) if _in_cell(value, cell)]
        matched = (
            {number for _, number in brute_force(dict(enumerate(filters[:-1])), inside, STOCKS)} if inside else set()
        )
        assert count == len(matched), cell
    assert crowd.counts.max() == max(crowd.counts)
    assert crowd.heat(int(np.argmax(crowd.counts))) > 1


def _in_cell(value: int, cell: str) -> bool:
    if " " not in cell:
        return value == int(cell)
    return all(
        value >= int(bound[3:]) if bound.startswith(">=") else value <= int(bound[3:]) if bound.startswith("<=")
        else value > int(bound[2:]) if bound.startswith(">") else value < int(bound[2:])
        for bound in cell.split(" and ")
    )  # fmt: skip


def test_strings_are_counted_by_the_constants_that_filters_name() -> None:
    filters = (
        ["symbol = 'OIL'"] * 5
        + ["symbol IN ('OIL', 'GAS')"] * 3
        + ["symbol >= 'OIL'"] * 2
        + ["NOT symbol = 'OIL'", "symbol = 'TIN'"]
    )
    crowd = crowds(filters)["symbol"]
    assert dict(zip(crowd.cells, crowd.counts.tolist(), strict=True)) == {"'OIL'": 10, "'GAS'": 4, "'TIN'": 4}
    assert crowd.cells[0] == "'OIL'"
    assert crowd.constants == 3


def test_two_attributes_are_counted_together_where_most_filters_have_ranges_on_both() -> None:
    filters = [f"price BETWEEN {k} AND {k + 9} AND volume BETWEEN {k} AND {k + 9}" for k in range(100)]
    plane = plane_of(compile_filters([*filters, "price > 3 AND symbol = 'OIL'"], STOCKS))
    assert plane is not None
    assert plane.paths == (("price",), ("volume",))
    assert plane.counts.shape == (len(plane.cells[0]), len(plane.cells[1]))
    assert plane.counts[0, -1] == plane.counts[-1, 0] == 0
    assert plane.counts.max() <= 20
    assert (np.diag(plane.counts) > 0).all()


def test_filters_of_equalities_have_no_plane() -> None:
    assert plane_of(compile_filters(["symbol = 'OIL' AND volume = 3", "price > 3"], STOCKS)) is None
