"""A k-d tree (Bentley, 1975) for each class of rectangles, to look for one that another lies within.

A class is the set of attributes that a rectangle constrains. What contains a rectangle is of a class
that is part of its own, so that few trees are asked. A rectangle of d intervals is a point with 2 d
coordinates, its lows and highs; a node knows the least low and the greatest high below it on each
attribute, and holds no container of a rectangle that begins before or ends after them. The first
container that is found ends the search, and so does the budget: what is asked of one filter is bounded.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.filter_table import FilterTable
from tidings.kernels.decorator import kernel
from tidings.kernels.hashing import hash_lists
from tidings.matching.analysis.rectangles import Numbers, Rectangles, _covers, rectangles_of

BUDGET = 1_000_000  # nodes and rectangles looked at for one filter; a billionth of a second each, about
NONE, UNDECIDED = -1, -2

_LEAF = 16
_MAX_DEPTH = 64
_SUBSETS_MAX = 10  # attributes of a class, up to which the classes within it are looked up one by one


@dataclass(frozen=True, eq=False)
class Forest:
    """The trees of all classes, one after the other.

    Class c has the attributes `class_attributes[class_offsets[c]:class_offsets[c + 1]]`, and within it lie
    the classes `parts[part_offsets[c]:part_offsets[c + 1]]`. Node n holds `members[first[n]:last[n]]`, has the
    children n + 1 and `right[n]` (0: it is a leaf), and its bounds begin at `bounds_at[n]`: lows, then highs.
    """

    rectangles: Rectangles
    filter_of: Numbers  # by rectangle
    class_of: npt.NDArray[np.int32]  # by rectangle
    class_offsets: Numbers
    class_attributes: npt.NDArray[np.int32]
    part_offsets: Numbers
    parts: npt.NDArray[np.int32]
    roots: Numbers  # by class; -1 where it has no members
    members: Numbers
    first: Numbers
    last: Numbers
    right: Numbers
    bounds_at: Numbers
    bounds: Numbers

    def containers(self, filters: Numbers, *, budget: int = BUDGET) -> Numbers:
        """For each of some filters another that it implies, and that does not imply it: NONE, or UNDECIDED where the
        budget ended the search."""
        found = np.empty(len(filters), np.int64)
        _containers(
            filters, budget, *self.rectangles.arrays, self.filter_of, self.class_of, self.class_offsets,
            self.class_attributes, self.part_offsets, self.parts, self.roots, self.members, self.first, self.last,
            self.right, self.bounds_at, self.bounds, found,
        )  # fmt: skip
        return found


def forest_of(rectangles: Rectangles, kept: npt.NDArray[np.bool_]) -> Forest:
    """The trees of the rectangles of some filters, no two of which have the same rectangles."""
    count = len(rectangles.offsets) - 1
    filter_of = np.repeat(np.arange(rectangles.filters), np.diff(rectangles.starts))
    class_of, firsts = _classes(rectangles)
    sets = [
        tuple(rectangles.attributes[rectangles.offsets[r] : rectangles.offsets[r + 1]].tolist())
        for r in firsts.tolist()
    ]
    parts = _parts(sets)
    chosen = np.flatnonzero(kept[filter_of]) if count else np.empty(0, np.int64)
    members = chosen[np.argsort(class_of[chosen], kind="stable")]
    held = np.concatenate([[0], np.cumsum(np.bincount(class_of[chosen], minlength=len(sets)))]).astype(np.int64)
    sizes = np.array([len(one) for one in sets], np.int64)
    roots, first, last, right, bounds_at, bounds = _planted(members, held, sizes, rectangles)
    return Forest(
        rectangles,
        filter_of.astype(np.int64),
        class_of.astype(np.int32),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        np.array([attribute for one in sets for attribute in one], np.int32),
        np.concatenate([[0], np.cumsum([len(one) for one in parts])]).astype(np.int64),
        np.array([part for one in parts for part in one], np.int32),
        roots, members, first, last, right, bounds_at, bounds,
    )  # fmt: skip


def _classes(rectangles: Rectangles) -> tuple[Numbers, Numbers]:
    """The class of each rectangle, and a rectangle of each class."""
    signatures = np.empty(len(rectangles.offsets) - 1, np.uint64)
    hash_lists(rectangles.offsets, rectangles.attributes, signatures)
    _, firsts, class_of = np.unique(signatures, return_index=True, return_inverse=True)
    assert _same_attributes(rectangles.offsets, rectangles.attributes, firsts[class_of])
    return class_of.astype(np.int64), firsts.astype(np.int64)


def _parts(sets: list[tuple[int, ...]]) -> list[list[int]]:
    """Of each class those that are part of it, itself included."""
    number = {attributes: at for at, attributes in enumerate(sets)}
    often: dict[int, int] = {}
    for attributes in sets:
        for attribute in attributes:
            often[attribute] = often.get(attribute, 0) + 1
    by_rarest: dict[int, list[int]] = {}
    for at, attributes in enumerate(sets):
        if attributes:
            by_rarest.setdefault(min(attributes, key=lambda one: (often[one], one)), []).append(at)
    found = []
    for attributes in sets:
        if len(attributes) <= _SUBSETS_MAX:
            subsets = (part for size in range(len(attributes) + 1) for part in combinations(attributes, size))
            found.append([number[part] for part in subsets if part in number])
        else:
            whole = set(attributes)
            near = (at for attribute in attributes for at in by_rarest.get(attribute, ()))
            found.append([*([number[()]] if () in number else []), *(at for at in near if whole.issuperset(sets[at]))])
    return found


# ---------------------------------------------------------------------- building


def _planted(members: Numbers, held: Numbers, sizes: Numbers, rectangles: Rectangles) -> tuple[Numbers, ...]:
    nodes = int((4 * (np.diff(held) // _LEAF + 1)).sum())
    width = int(sizes.max(initial=0))
    roots = np.full(len(sizes), -1, np.int64)
    first, last, right, bounds_at = (np.zeros(nodes, np.int64) for _ in range(4))
    space = int((8 * (np.diff(held) // _LEAF + 1) * sizes).sum())
    bounds = np.empty(space, np.int64)
    used, filled = _plant(
        members, held, sizes, width, rectangles.offsets, rectangles.lows, rectangles.highs,
        roots, first, last, right, bounds_at, bounds,
    )  # fmt: skip
    return roots, first[:used], last[:used], right[:used], bounds_at[:used], bounds[:filled]


@kernel
def _plant(
    members: Any, held: Any, sizes: Any, width: int, offsets: Any, lows: Any, highs: Any,
    roots: Any, first: Any, last: Any, right: Any, bounds_at: Any, bounds: Any,
) -> Any:  # fmt: skip
    used = filled = 0
    waiting = np.empty((_MAX_DEPTH * 2, 3), np.int64)  # begin, end, and the node whose right child it is
    least, most = np.empty(2 * width, np.int64), np.empty(2 * width, np.int64)
    extent = np.empty(2 * width)
    for number in range(len(sizes)):
        base, count, size = held[number], held[number + 1] - held[number], sizes[number]
        if count == 0:
            continue
        # Members are moved together with their coordinates: to follow them from node to node would miss the caches.
        points = np.empty((count, 2 * size), np.int64)
        for at in range(count):
            row = offsets[members[base + at]]
            for which in range(size):
                points[at, which], points[at, size + which] = lows[row + which], highs[row + which]
        roots[number] = used
        top = 1
        waiting[0, 0], waiting[0, 1], waiting[0, 2] = 0, count, -1
        whole = True
        while top > 0:
            top -= 1
            begin, end, parent = waiting[top, 0], waiting[top, 1], waiting[top, 2]
            node = used
            used += 1
            if parent >= 0:
                right[parent] = node
            first[node], last[node], bounds_at[node] = base + begin, base + end, filled
            for which in range(2 * size):
                least[which] = most[which] = points[begin, which]
            for at in range(begin + 1, end):
                for which in range(2 * size):
                    value = points[at, which]
                    least[which], most[which] = min(least[which], value), max(most[which], value)
            for which in range(size):
                bounds[filled + which], bounds[filled + size + which] = least[which], most[size + which]
            filled += 2 * size
            best, split = 0.0, -1
            for which in range(2 * size):
                spread = np.float64(most[which]) - np.float64(least[which])
                if whole:
                    extent[which] = spread
                if spread > 0 and spread / extent[which] > best:
                    best, split = spread / extent[which], which
            whole = False
            if end - begin <= _LEAF or split < 0:
                continue
            middle = (begin + end) // 2
            _select(points, members[base : base + count], begin, end - 1, middle, split)
            waiting[top, 0], waiting[top, 1], waiting[top, 2] = middle, end, node
            waiting[top + 1, 0], waiting[top + 1, 1], waiting[top + 1, 2] = begin, middle, -1
            top += 2
    return used, filled


@kernel
def _select(points: Any, members: Any, low: int, high: int, wanted: int, which: int) -> None:
    """Hoare's quickselect: what comes before `wanted` is no greater on a coordinate, and what comes after no less."""
    while low < high:
        pivot = points[(low + high) // 2, which]
        i, j = low, high
        while i <= j:
            while points[i, which] < pivot:
                i += 1
            while points[j, which] > pivot:
                j -= 1
            if i <= j:
                members[i], members[j] = members[j], members[i]
                for each in range(points.shape[1]):
                    points[i, each], points[j, each] = points[j, each], points[i, each]
                i += 1
                j -= 1
        if wanted <= j:
            high = j
        elif wanted >= i:
            low = i
        else:
            return


@kernel
def _same_attributes(offsets: Any, attributes: Any, others: Any) -> bool:
    for rectangle in range(len(others)):
        base, other = offsets[rectangle], offsets[others[rectangle]]
        if offsets[rectangle + 1] - base != offsets[others[rectangle] + 1] - other:
            return False
        for row in range(offsets[rectangle + 1] - base):
            if attributes[base + row] != attributes[other + row]:
                return False
    return True


# ---------------------------------------------------------------------- searching


@kernel
def _containers(
    filters: Any, budget: int, starts: Any, offsets: Any, attributes: Any, lows: Any, highs: Any, filter_of: Any,
    class_of: Any, class_offsets: Any, class_attributes: Any, part_offsets: Any, parts: Any, roots: Any, members: Any,
    first: Any, last: Any, right: Any, bounds_at: Any, bounds: Any, found: Any,
) -> None:  # fmt: skip
    low, high = np.empty(len(class_attributes) + 1, np.int64), np.empty(len(class_attributes) + 1, np.int64)
    stack = np.empty(2 * _MAX_DEPTH, np.int64)
    for at in range(len(filters)):
        number = filters[at]
        found[at] = NONE
        if starts[number] == starts[number + 1]:
            continue
        asked = starts[number]  # the rectangle with the fewest rows is within the fewest others
        for other in range(starts[number] + 1, starts[number + 1]):
            if offsets[other + 1] - offsets[other] < offsets[asked + 1] - offsets[asked]:
                asked = other
        several = starts[number + 1] - starts[number]
        left = budget
        for place in range(part_offsets[class_of[asked]], part_offsets[class_of[asked] + 1]):
            part = parts[place]
            if roots[part] < 0:
                continue
            size = class_offsets[part + 1] - class_offsets[part]
            row = offsets[asked]
            for which in range(size):
                while attributes[row] != class_attributes[class_offsets[part] + which]:
                    row += 1
                low[which], high[which] = lows[row], highs[row]
            stack[0] = roots[part]
            top = 1
            while top > 0 and left > 0:
                top -= 1
                node = stack[top]
                left -= 1
                base = bounds_at[node]
                possible = True
                for which in range(size):
                    if bounds[base + which] > low[which] or bounds[base + size + which] < high[which]:
                        possible = False
                        break
                if not possible:
                    continue
                if right[node] > 0:
                    stack[top], stack[top + 1] = right[node], node + 1
                    top += 2
                    continue
                for member in range(first[node], last[node]):
                    rectangle = members[member]
                    other = filter_of[rectangle]
                    left -= 1
                    if other == number:
                        continue
                    base_row = offsets[rectangle]
                    held = True
                    for which in range(size):
                        if lows[base_row + which] > low[which] or highs[base_row + which] < high[which]:
                            held = False
                            break
                    if not held:
                        continue
                    if several > 1:
                        left -= several * (starts[other + 1] - starts[other])
                        if not _covers(other, number, starts, offsets, attributes, lows, highs):
                            continue
                    found[at] = other
                    break
                if found[at] >= 0:
                    break
            if found[at] >= 0 or left <= 0:
                break
        if found[at] < 0 and left <= 0:
            found[at] = UNDECIDED


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
