"""An R-tree over boxes, packed once (Leutenegger et al., "STR: A Simple and Efficient Algorithm for R-Tree Packing",
1997), and searched for many queries at a time.

A View's clusters do not change, so neither does their tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidings.rendezvous.interface import Numbers
from tidings.rendezvous.places import ranges

NODE = 8  # children


@dataclass(frozen=True, eq=False)
class RTree:
    """Boxes, both ends included, and above them the levels of nodes: node i of a level has the children of
    `order[NODE * i : NODE * (i + 1)]` one level down."""

    levels: tuple[tuple[Numbers, Numbers, Numbers], ...]  # lows and highs of the nodes, and the children in order

    def intersecting(self, lows: Numbers, highs: Numbers) -> tuple[Numbers, Numbers]:
        """(query, box) for every box that meets a query's."""
        query = np.arange(len(lows))
        node = np.zeros(len(lows), np.int64)
        for depth, (node_lows, node_highs, order) in enumerate(self.levels):
            if depth == 0:  # the root: one node, whose box need not be looked at
                query, child = np.repeat(query, len(order)), np.tile(order, len(lows))
            else:
                query, child = _children(query, node, order)
            meets = (node_lows[child] <= highs[query]) & (node_highs[child] >= lows[query])
            kept = meets.all(axis=1)
            query, node = query[kept], child[kept]
        return query, node

    def containing(self, points: Numbers) -> tuple[Numbers, Numbers]:
        """(query, box) for every box that holds a point."""
        return self.intersecting(points, points)


def _children(query: Numbers, node: Numbers, order: Numbers) -> tuple[Numbers, Numbers]:
    starts = node * NODE
    row, at = ranges(starts, np.minimum(NODE, len(order) - starts))
    return query[row], order[at]


def rtree_of(lows: Numbers, highs: Numbers) -> RTree:
    levels: list[tuple[Numbers, Numbers, Numbers]] = []
    while True:
        order = _tiled((lows + highs) / 2)
        levels.append((lows, highs, order))
        if len(lows) <= NODE:
            return RTree(tuple(reversed(levels)))
        starts = np.arange(0, len(order), NODE)
        lows, highs = (
            np.minimum.reduceat(lows[order], starts, axis=0),
            np.maximum.reduceat(highs[order], starts, axis=0),
        )


def _tiled(centres: np.typing.NDArray[np.float64]) -> Numbers:
    """Boxes in the order of tiles: cut into slabs along the first axis, those along the second, and so on."""
    count, axes = centres.shape
    order = np.arange(count)
    for axis in range(axes):
        if not count:
            break
        slabs = max(1, round((count / NODE) ** ((axis) / axes)))  # that there are before this axis is cut
        slab = np.arange(count) * slabs // count
        order = order[np.lexsort((centres[order, axis], slab))]
    return order
