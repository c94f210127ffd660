"""Where the boxes of a table pile up: how many subscriptions overlap each cell of a coarse grid.

On an attribute of numbers or times cells are equal steps between the first and the last hundredth of
the filters' bounds, the first and the last cell going on to the ends of the line; on one of strings
they are the constants that filters name. Filters that do not constrain an attribute are everywhere on
it, and are not counted there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.description import describe_set
from tidings.filter.normal.filter_table import FilterTable, Intervals
from tidings.filter.normal.value_sets import ValueSet, double_ordinal, from_ordinal, line
from tidings.matching.engines.entries import NULL, Entries, entries_of
from tidings.model.types import DataType, Path

Counts = npt.NDArray[np.int64]

CELLS = 32


@dataclass(frozen=True, eq=False)
class Crowd:
    """How many filters overlap each cell of an attribute, with the cell in words."""

    path: Path
    cells: tuple[str, ...]
    counts: Counts
    mean: float  # of all cells
    constants: int = 0  # of strings, how many cells there are, of which only the most crowded are listed

    def heat(self, cell: int) -> float:
        """How many times as many as in a cell on average."""
        return float(self.counts[cell]) / self.mean if self.mean else 0.0


@dataclass(frozen=True, eq=False)
class Plane:
    """The same of two attributes together: `counts[i, j]` overlap cell i of the first and cell j of the second."""

    paths: tuple[Path, Path]
    cells: tuple[tuple[str, ...], tuple[str, ...]]
    counts: Counts


def crowds_of(table: FilterTable) -> tuple[Crowd, ...]:
    """Of every attribute that filters compare with constants."""
    entries = entries_of(table)
    return tuple(
        _of_constants(entries, number, path, intervals)
        if intervals.keys is not None
        else _of_grid(entries, number, path, intervals)
        for number, (path, intervals) in enumerate(table.intervals.items())
    )


def plane_of(table: FilterTable) -> Plane | None:
    """The two attributes that most boxes constrain to ranges together; None where no two are."""
    entries = entries_of(table)
    ranged = [
        (np.bincount(_rows_to_entries(entries)[_ranges(entries, number)], minlength=entries.count) > 0)
        if intervals.keys is None
        else None
        for number, intervals in enumerate(table.intervals.values())
    ]
    together = {
        (one, other): int((first & second).sum())
        for one, first in enumerate(ranged)
        for other, second in enumerate(ranged)
        if one < other and first is not None and second is not None
    }
    pair = max(together, key=lambda one: together[one], default=None)
    if pair is None or not together[pair]:
        return None
    intervals = list(table.intervals.items())
    spans, cells = [], []
    for number in pair:
        edges = _edges(intervals[number][1])
        cells.append(_told(edges, intervals[number][1].type))
        rows = np.flatnonzero(entries.attributes == number)
        span = np.full((entries.count, 2), -1)
        span[_rows_to_entries(entries)[rows]] = np.stack(_span(entries, rows, edges), axis=1)
        spans.append(span)
    both = np.flatnonzero((spans[0][:, 0] >= 0) & (spans[1][:, 0] >= 0))
    (a, b), (c, d) = spans[0][both].T, spans[1][both].T
    grown = np.zeros((len(cells[0]) + 1, len(cells[1]) + 1), np.int64)
    for rows_, columns, sign in ((a, c, 1), (b + 1, c, -1), (a, d + 1, -1), (b + 1, d + 1, 1)):
        np.add.at(grown, (rows_, columns), sign)
    counts = grown.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
    return Plane((intervals[pair[0]][0], intervals[pair[1]][0]), (cells[0], cells[1]), counts)


def _rows_to_entries(entries: Entries) -> npt.NDArray[np.int64]:
    return np.repeat(np.arange(entries.count), np.diff(entries.offsets))


def _ranges(entries: Entries, number: int) -> npt.NDArray[np.bool_]:
    return np.asarray((entries.attributes == number) & (entries.lows != entries.highs))


def _of_grid(entries: Entries, number: int, path: Path, intervals: Intervals) -> Crowd:
    edges = _edges(intervals)
    rows = np.flatnonzero(entries.attributes == number)
    first, last = _span(entries, rows, edges)
    some = last >= first  # not NULL alone
    slots = np.repeat(entries.slots, np.diff(entries.offsets))[rows][some]
    counts = _overlaps(slots, first[some], last[some], len(edges) + 1)
    return Crowd(path, _told(edges, intervals.type), counts, float(counts.mean()))


def _overlaps(filters: npt.NDArray[Any], first: Counts, last: Counts, cells: int) -> Counts:
    """How many filters overlap each cell: one with several intervals counts once in a cell."""
    order = np.lexsort((first, filters))
    filters, first, last = filters[order].astype(np.int64), first[order], last[order]
    if len(filters):  # an interval begins after the last cell that one before it, of the same filter, has reached
        reach = filters * (cells + 1) + last
        before = np.maximum.accumulate(np.concatenate([[-1], reach[:-1]]))
        reached = np.where(before // (cells + 1) == filters, before % (cells + 1), -1)
        first = np.maximum(first, reached + 1)
    kept = first <= last
    grown = np.zeros(cells + 1, np.int64)
    np.add.at(grown, first[kept], 1)
    np.add.at(grown, last[kept] + 1, -1)
    return grown.cumsum()[:-1]


def _of_constants(entries: Entries, number: int, path: Path, intervals: Intervals) -> Crowd:
    assert intervals.keys is not None
    rows = np.flatnonzero(entries.attributes == number)
    lows, highs = entries.lows[rows], entries.highs[rows]
    # Constant i has the code 2i: the constants within an interval are those whose codes are.
    first, last = (np.maximum(lows, 0) + 1) >> 1, highs >> 1
    some = (highs >= 0) & (last >= first)
    slots = np.repeat(entries.slots, np.diff(entries.offsets))[rows]
    counts = _overlaps(slots[some], first[some], np.minimum(last[some], len(intervals.keys) - 1), len(intervals.keys))
    most = np.argsort(-counts, kind="stable")[:CELLS]
    if intervals.type.name == "string":
        told = tuple(repr(key.as_py().decode(errors="backslashreplace")) for key in intervals.keys.take(most))
    else:
        told = tuple(str(key.as_py()) for key in intervals.keys.take(most))
    return Crowd(path, told, counts[most], float(counts.mean()) if len(counts) else 0.0, len(intervals.keys))


def _edges(intervals: Intervals) -> npt.NDArray[np.int64]:
    """Where cells begin, but for the first, in codes."""
    codes = np.concatenate([intervals.lows, intervals.highs])
    first, last = line(intervals.type)
    codes = np.sort(codes[(codes > first) & (codes < last - 1)])
    if not len(codes):
        return np.empty(0, np.int64)
    low, high = int(codes[len(codes) // 100]), int(codes[-1 - len(codes) // 100])
    if intervals.type.name in ("float", "double"):
        start, end = (float(str(from_ordinal(place, intervals.type))) for place in (low, high))
        edges = [double_ordinal(_short(float(value), end - start)) for value in np.linspace(start, end, CELLS - 1)]
    else:
        edges = [low + (high - low) * step // (CELLS - 2) for step in range(CELLS - 1)]
    return np.unique(np.array(edges, np.int64))


def _short(value: float, extent: float) -> float:
    """Rounded to a thousandth of the extent or so: what a person would write."""
    return round(value, max(0, 3 - int(np.floor(np.log10(extent))))) if 0 < extent < 1e15 else value


def _span(entries: Entries, rows: Counts, edges: Counts) -> tuple[Counts, Counts]:
    """The first and last cell of each row; last < first for NULL alone."""
    lows, highs = entries.lows[rows], entries.highs[rows]
    first = np.searchsorted(edges, lows, side="right")
    last = np.searchsorted(edges, highs, side="right")
    return first, np.where(highs == NULL, -1, last)


def _told(edges: Counts, type_: DataType) -> tuple[str, ...]:
    start, end = line(type_)
    cuts = [start, *edges.tolist(), end]
    return tuple(describe_set(ValueSet(((low, high),)), type_) for low, high in pairwise(cuts))
