"""Filters as sets of rectangles of codes, so that "implies" is a comparison of integers.

A rectangle has a row for each attribute that it constrains: one interval of codes. What no interval can
say, a residual, is a row too, on a line of its own: residuals are the same point there exactly where
their normal texts are the same, and a rectangle without one has no row. So one rectangle lies within
another exactly where on every row of the other it has a row within. The owner of a filter, where only
filters of one owner are to be compared, is one more such point.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.filter_table import FilterTable
from tidings.kernels.decorator import kernel
from tidings.matching.engines.entries import entries_of

Numbers = npt.NDArray[np.int64]

_MAX_REDUCED = 1024  # rectangles of a filter, beyond which those within others are not looked for


@dataclass(frozen=True, eq=False)
class Rectangles:
    """Of filter f those from `starts[f]` to `starts[f + 1]`; rectangle r has the rows from `offsets[r]` on, ascending
    by attribute."""

    starts: Numbers
    offsets: Numbers
    attributes: npt.NDArray[np.int32]
    lows: Numbers
    highs: Numbers

    @property
    def filters(self) -> int:
        return len(self.starts) - 1

    @property
    def arrays(self) -> tuple[Any, Any, Any, Any, Any]:
        return self.starts, self.offsets, self.attributes, self.lows, self.highs


def rectangles_of(table: FilterTable, owners: Numbers | None = None) -> Rectangles:
    """All rectangles of a table's filters, but for those that lie within another of the same filter."""
    entries = entries_of(table)
    plain = len(table.residuals)
    residuals = entries.residual_of.astype(np.int64)
    # What is more than an expression, such as a set of very many intervals, equals nothing but itself.
    own = np.flatnonzero(residuals >= plain)
    residuals[own] = plain + np.arange(len(own))
    paths = len(entries.paths)
    extra = [(paths, residuals, residuals >= 0)]
    if owners is not None:
        extra.append((paths + 1, owners[entries.slots], np.ones(entries.count, bool)))
    rows = np.diff(entries.offsets)
    rectangles = [np.repeat(np.arange(entries.count), rows), *(np.flatnonzero(has) for _, _, has in extra)]
    attributes = [entries.attributes.astype(np.int32), *(np.full(has.sum(), at, np.int32) for at, _, has in extra)]
    lows = [entries.lows, *(values[has] for _, values, has in extra)]
    highs = [entries.highs, *(values[has] for _, values, has in extra)]
    # By filter, then rectangle, then attribute: the extra attributes have the highest numbers and come last.
    by_filter = np.argsort(entries.slots, kind="stable")
    place = np.empty(entries.count, np.int64)
    place[by_filter] = np.arange(entries.count)
    at = place[np.concatenate(rectangles)]
    order = np.argsort(at, kind="stable")
    made = Rectangles(
        _starts(entries.slots, table.count),
        _starts(at, entries.count),
        np.concatenate(attributes)[order],
        np.concatenate(lows)[order],
        np.concatenate(highs)[order],
    )
    return _without_inner(made)


def implies(one: int, other: int, rectangles: Rectangles) -> bool:
    """Whether every rectangle of one filter lies within one of the other."""
    return bool(_covers(other, one, *rectangles.arrays))


def same_boxes(rectangles: Rectangles) -> Numbers:
    """Of each filter the first that has the same rectangles; the filter itself where it is the first, or has none.

    As no rectangle of a filter lies within another of it, two filters that imply each other box by box have
    the same rectangles.
    """
    digests = np.zeros((rectangles.filters, 2), np.uint64)
    _digest(*rectangles.arrays, digests)
    order = np.lexsort((np.arange(len(digests)), digests[:, 1], digests[:, 0]))
    again = (digests[order][1:] == digests[order][:-1]).all(axis=1)
    first = np.maximum.accumulate(np.where(np.r_[True, ~again], np.arange(len(order)), 0)) if len(order) else order
    found = np.empty(len(order), np.int64)
    found[order] = order[first]
    _keep_proved(*rectangles.arrays, found)
    return found


def _starts(numbers: npt.NDArray[Any], count: int) -> Numbers:
    return np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=count))]).astype(np.int64)


def _without_inner(given: Rectangles) -> Rectangles:
    inner = np.zeros(len(given.offsets) - 1, bool)
    _mark_inner(*given.arrays, inner)
    if not inner.any():
        return given
    rows = np.diff(given.offsets)
    kept = np.repeat(~inner, rows)
    filters = np.repeat(np.arange(given.filters), np.diff(given.starts))[~inner]
    return Rectangles(
        _starts(filters, given.filters),
        np.concatenate([[0], np.cumsum(rows[~inner])]),
        given.attributes[kept],
        given.lows[kept],
        given.highs[kept],
    )


# ---------------------------------------------------------------------- kernels


@kernel
def _within(inner: int, outer: int, offsets: Any, attributes: Any, lows: Any, highs: Any) -> bool:
    row, end = offsets[inner], offsets[inner + 1]
    for wanted in range(offsets[outer], offsets[outer + 1]):
        while row < end and attributes[row] < attributes[wanted]:
            row += 1
        if row == end or attributes[row] != attributes[wanted]:
            return False
        if lows[row] < lows[wanted] or highs[row] > highs[wanted]:
            return False
    return True


@kernel
def _covers(outer: int, inner: int, starts: Any, offsets: Any, attributes: Any, lows: Any, highs: Any) -> bool:
    for rectangle in range(starts[inner], starts[inner + 1]):
        held = False
        for other in range(starts[outer], starts[outer + 1]):
            if _within(rectangle, other, offsets, attributes, lows, highs):
                held = True
                break
        if not held:
            return False
    return True


@kernel
def _mark_inner(starts: Any, offsets: Any, attributes: Any, lows: Any, highs: Any, inner: Any) -> None:
    for number in range(len(starts) - 1):
        first, end = starts[number], starts[number + 1]
        if end - first < 2 or end - first > _MAX_REDUCED:
            continue
        for one in range(first, end):
            for other in range(first, end):
                if one == other or inner[other] or not _within(one, other, offsets, attributes, lows, highs):
                    continue
                inner[one] = True  # of two that are the same the first goes, and the second is not compared with it
                break


@kernel(inline="always")
def _mixed(value: Any) -> Any:
    """The finaliser of MurmurHash3: every bit of the input reaches every bit of the output."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@kernel
def _digest(starts: Any, offsets: Any, attributes: Any, lows: Any, highs: Any, digests: Any) -> None:
    """A sum over rectangles, so that their order does not matter."""
    for number in range(len(starts) - 1):
        if starts[number] == starts[number + 1]:  # never matches: like no other here
            digests[number, 0] = np.uint64(number)
        for rectangle in range(starts[number], starts[number + 1]):
            one, other = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x2545F4914F6CDD1D)
            for row in range(offsets[rectangle], offsets[rectangle + 1]):
                one = _mixed(one ^ np.uint64(attributes[row]))
                one = _mixed(one ^ np.uint64(lows[row]))
                one = _mixed(one ^ np.uint64(highs[row]))
                other = _mixed(other + np.uint64(attributes[row]))
                other = _mixed(other + np.uint64(lows[row]))
                other = _mixed(other + np.uint64(highs[row]))
            digests[number, 0] += one
            digests[number, 1] += other


@kernel
def _keep_proved(starts: Any, offsets: Any, attributes: Any, lows: Any, highs: Any, found: Any) -> None:
    for number in range(len(found)):
        first = found[number]
        if first != number and not (
            _covers(first, number, starts, offsets, attributes, lows, highs)
            and _covers(number, first, starts, offsets, attributes, lows, highs)
        ):
            found[number] = number
