"""Every filter that can match is in one group, and those of a group match together more often than others do."""

from __future__ import annotations

import numpy as np
import pytest

from tidings.filter.compile.compiler import compile_filters
from tidings.matching.analysis.rectangle_forest import groups_of, order_of
from tidings.matching.matcher import Matcher
from tidings.model.domain import Attribute, Domain
from tidings.testing import workloads

PRICES = Domain("prices", [Attribute("price", "double"), Attribute("symbol", "string")])


def test_every_filter_that_can_match_is_there_once() -> None:
    filters = ["price > 3", "price > 5 AND price < 4", "TRUE", "price > 3", "price < 1 OR symbol = 'OIL'"]
    assert sorted(order_of(compile_filters(filters, PRICES)).tolist()) == [0, 2, 3, 4]
    assert [len(group) for group in groups_of(compile_filters(filters, PRICES), 3)] == [3, 1]


@pytest.mark.parametrize("name", ["bluedove", "mixed"])
def test_the_members_of_a_group_match_the_same_events(name: str) -> None:
    workload = workloads.WORKLOADS[name](6000, 400)
    table = compile_filters(workload.filters, workload.domain)
    matches = Matcher(list(enumerate(workload.filters.to_pylist())), workload.domain, threads=1).match(workload.events)

    def meetings(groups: list[np.ndarray]) -> int:
        """How many groups events meet: the fewer, the more a group's members match together."""
        group_of = np.full(table.count, -1)
        for number, group in enumerate(groups):
            group_of[group] = number
        return len(set(zip(matches.events.tolist(), group_of[matches.slots].tolist(), strict=True)))

    alike = groups_of(table, 64)
    order = np.random.default_rng(0).permutation(np.concatenate(alike))
    mixed = [order[start : start + 64] for start in range(0, len(order), 64)]
    assert meetings(alike) < 0.9 * meetings(mixed)
