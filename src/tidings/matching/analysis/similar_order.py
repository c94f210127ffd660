"""Subscriptions in an order in which neighbours are alike, and groups of such.

Boxes on the same attributes lie in a k-d tree, whose leaves, read from one side to the other, are boxes with bounds
near each other. Cutting that order into runs is a clustering that takes seconds for a million, in which no group is
larger than another; it minimises nothing, and need not: groups only save bytes where their members match together.
"""

from __future__ import annotations

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.matching.analysis.rectangle_forest import forest_of
from tidings.matching.analysis.rectangles import Numbers, rectangles_of

GROUP = 256  # members: each takes a byte in a page


def order_of(table: FilterTable) -> Numbers:
    """The filters of a table that can match, each once."""
    forest = forest_of(rectangles_of(table), np.ones(table.count, bool))
    filters = forest.filter_of[forest.members]
    _, first = np.unique(filters, return_index=True)
    return filters[np.sort(first)]


def groups_of(table: FilterTable, size: int = GROUP) -> list[Numbers]:
    """Groups of at most so many filters."""
    order = order_of(table)
    return [order[start : start + size] for start in range(0, len(order), size)]
