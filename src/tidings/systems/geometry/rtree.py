"""An R-tree over boxes, packed once (Leutenegger et al., "STR: A Simple and Efficient Algorithm for R-Tree Packing",
1997), and searched for many queries at a time.

A View's clusters do not change, so neither does their tree. Its top is wide, and compared with every query as one
matrix: that takes less than to follow a narrow tree down.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidings.systems.geometry.line_positions import ranges
from tidings.systems.interface import Numbers

NODE = 8  # children
TOP = 64  # nodes, or boxes, that every query is compared with

_CELLS = 1 << 20  # of the matrix of queries and nodes that is looked at at once


@dataclass(frozen=True, eq=False)
class Level:
    """Nodes, or at last the boxes: axis by axis their first and last places, both included. Node i has as children
    those in the places `order[NODE * i : NODE * (i + 1)]` one level down."""

    lows: Numbers  # axes × nodes
    highs: Numbers
    order: Numbers  # of this level's nodes, as the one above has them


@dataclass(frozen=True, eq=False)
class RTree:
    levels: tuple[Level, ...]  # the top first

    def intersecting(self, lows: Numbers, highs: Numbers) -> tuple[Numbers, Numbers]:
        """(query, box) for every box that meets a query's, by query."""
        return self._search(highs, lows)

    def holding(self, lows: Numbers, highs: Numbers) -> tuple[Numbers, Numbers]:
        """(query, box) for every box that a query's lies within, by query."""
        return self._search(lows, highs)

    def containing(self, points: Numbers) -> tuple[Numbers, Numbers]:
        """(query, box) for every box that holds a point, by query."""
        return self._search(points, points)

    def _search(self, after: Numbers, before: Numbers) -> tuple[Numbers, Numbers]:
        """What begins at `after` or earlier and ends at `before` or later, on every axis: so do the nodes above it."""
        ends, begins = np.ascontiguousarray(after.T), np.ascontiguousarray(before.T)
        query, node = _at_top(self.levels[0], ends, begins)
        for level in self.levels[1:]:
            starts = node * NODE
            row, at = ranges(starts, np.minimum(NODE, len(level.order) - starts))
            query, node = query[row], level.order[at]
            for low, high, end, begin in zip(level.lows, level.highs, ends, begins, strict=True):
                kept = (low[node] <= end[query]) & (high[node] >= begin[query])
                query, node = query[kept], node[kept]
        return query, node


def _at_top(top: Level, ends: Numbers, begins: Numbers) -> tuple[Numbers, Numbers]:
    """(query, node) where they meet: every query beside every node."""
    queries, nodes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    count, width = ends.shape[1], top.lows.shape[1]
    size = max(1, _CELLS // max(1, width))
    for start in range(0, count, size):
        part = slice(start, start + size)
        meets = np.ones((len(range(*part.indices(count))), width), bool)
        for low, high, end, begin in zip(top.lows, top.highs, ends, begins, strict=True):
            meets &= (low[None, :] <= end[part, None]) & (high[None, :] >= begin[part, None])
        query, node = np.nonzero(meets)
        queries.append(query + start)
        nodes.append(node)
    return np.concatenate(queries), np.concatenate(nodes)


def rtree_of(lows: Numbers, highs: Numbers) -> RTree:
    levels: list[Level] = []
    while True:
        order = _tiled((lows + highs) / 2)
        levels.append(Level(np.ascontiguousarray(lows.T), np.ascontiguousarray(highs.T), order))
        if len(lows) <= TOP:
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
