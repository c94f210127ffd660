"""The boxes of a filter table as entries: what engines store, look up and verify.

An entry asks for one interval of codes on each of some attributes. NULL is the code `NULL`,
below all others, so that `x IS NULL` and `x IS NULL OR x < 5` are intervals too; a value with that
very ordinal is coded one higher, and entries that could tell it from the next one ask for a
recheck. A box with several intervals on an attribute becomes several entries, no two of which
hold the same event.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.filter_table import Codes, FilterTable, Intervals, Rows
from tidings.filter.normal.residuals import NO_RESIDUALS, Residuals
from tidings.filter.normal.value_sets import line
from tidings.filter.tree import Expression
from tidings.model.types import Path

NULL = -(1 << 63)  # the code of NULL
MAX_ENTRIES = 64  # of one box: past this, intervals are joined and told apart by a residual

_EMPTY = (np.empty(0, np.int32), np.empty(0, np.int16), np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class Membership:
    """That an attribute's code is in one of many intervals, ascending and disjoint."""

    attribute: int
    lows: Codes
    highs: Codes


@dataclass(frozen=True, slots=True)
class Residual:
    """What is left to decide of the events that an entry's intervals hold."""

    expression: Expression | None = None
    memberships: tuple[Membership, ...] = ()
    recheck: bool = False  # the whole filter is to be evaluated


@dataclass(frozen=True, slots=True)
class Entries:
    """Constraint rows by entry: entry i has the rows `offsets[i]` to `offsets[i + 1]`."""

    paths: tuple[Path, ...]  # the attributes that rows speak of, by number
    offsets: npt.NDArray[np.int64]
    attributes: npt.NDArray[np.int16]
    lows: Codes
    highs: Codes
    slots: Rows  # of each entry the filter
    residual_of: Rows  # of each entry its residual, -1 for none; those of `plain` are numbered first
    residuals: tuple[Residual, ...]  # that are more than an expression
    repeated: npt.NDArray[np.bool_]  # filters of which two entries may hold the same event; empty where none
    plain: Residuals = NO_RESIDUALS

    @property
    def count(self) -> int:
        return len(self.slots)


def entries_of(table: FilterTable) -> Entries:
    """All entries of a filter table."""
    rows = [_rows(number, intervals) for number, intervals in enumerate(table.intervals.values())]
    boxes, attributes, lows, highs = (np.concatenate([_EMPTY[i], *(part[i] for part in rows)]) for i in range(4))
    order = np.argsort(boxes, kind="stable")  # each attribute's rows are in order: this only merges them
    boxes, attributes, lows, highs = boxes[order], attributes[order], lows[order], highs[order]
    again = (boxes[1:] == boxes[:-1]) & (attributes[1:] == attributes[:-1])
    several = np.unique(boxes[1:][again])
    plain = np.ones(table.boxes, bool)
    plain[several] = False
    kept = plain[boxes]
    unclear = _unclear(table)
    expansion = _Expansion(table, unclear)
    for box, start, end in zip(several, *np.searchsorted(boxes, [several, several + 1]), strict=True):
        expansion.add(int(box), attributes[start:end].tolist(), lows[start:end].tolist(), highs[start:end].tolist())
    residual_of = np.where(unclear, len(table.residuals), table.residual_of)
    counts = np.bincount(boxes[kept], minlength=table.boxes)[plain]
    several_boxes = np.bincount(table.box_filter, minlength=table.count) > 1
    extra = np.array(expansion.rows, np.int64).reshape(-1, 3)
    return Entries(
        paths=tuple(table.intervals),
        offsets=np.concatenate([[0], np.cumsum(np.concatenate([counts, expansion.counts]))]).astype(np.int64),
        attributes=np.concatenate([attributes[kept], extra[:, 0]]).astype(np.int16),
        lows=np.concatenate([lows[kept], extra[:, 1]]),
        highs=np.concatenate([highs[kept], extra[:, 2]]),
        slots=table.box_filter[np.concatenate([np.flatnonzero(plain), np.array(expansion.boxes, np.int64)])],
        residual_of=np.concatenate([residual_of[plain], expansion.residual_of]).astype(np.int32),
        residuals=tuple(expansion.residuals),
        repeated=several_boxes if several_boxes.any() else np.empty(0, bool),
        plain=table.residuals,
    )


def _rows(number: int, intervals: Intervals) -> tuple[Rows, npt.NDArray[np.int16], Codes, Codes]:
    """One attribute's rows, with NULL as a code."""
    boxes, lows, highs = intervals.boxes, np.maximum(intervals.lows, NULL + 1), np.maximum(intervals.highs, NULL + 1)
    nulls = intervals.null_boxes
    if len(nulls):
        least = line(intervals.type)[0] if intervals.keys is None else -1
        from_the_least = (intervals.lows == least) & np.isin(boxes, nulls)
        lows = np.where(from_the_least, NULL, lows)
        alone = np.setdiff1d(nulls, boxes[from_the_least]).astype(np.int32)
        boxes = np.concatenate([alone, boxes])  # in front: NULL comes before the box's other intervals
        lows, highs = (np.concatenate([np.full(len(alone), NULL), ends]) for ends in (lows, highs))
    return boxes, np.full(len(boxes), number, np.int16), lows, highs


def _unclear(table: FilterTable) -> npt.NDArray[np.bool_]:
    """Boxes that tell the least ordinal of 64 bits from the next, which share a code."""
    unclear = np.zeros(table.boxes, bool)
    for intervals in table.intervals.values():
        if intervals.keys is None and line(intervals.type)[0] == NULL:
            unclear[intervals.boxes[(intervals.lows == NULL + 1) | (intervals.highs == NULL)]] = True
    return unclear


class _Expansion:
    """Boxes with several intervals on an attribute, expanded one by one."""

    def __init__(self, table: FilterTable, unclear: npt.NDArray[np.bool_]) -> None:
        self._table = table
        self._unclear = unclear
        self.residuals = [Residual(recheck=True)]
        self.boxes: list[int] = []
        self.counts: list[int] = []
        self.rows: list[tuple[int, int, int]] = []
        self.residual_of: list[int] = []

    def add(self, box: int, attributes: list[int], lows: list[int], highs: list[int]) -> None:
        sets: dict[int, list[tuple[int, int]]] = {}
        for attribute, low, high in zip(attributes, lows, highs, strict=True):
            sets.setdefault(attribute, []).append((low, high))
        memberships: list[Membership] = []
        for attribute in sorted(sets, key=lambda attribute: -len(sets[attribute])):
            if reduce(lambda size, intervals: size * len(intervals), sets.values(), 1) <= MAX_ENTRIES:
                break
            lows_, highs_ = np.array(sets[attribute], np.int64).T
            memberships.append(Membership(attribute, lows_, highs_))
            sets[attribute] = [(sets[attribute][0][0], max(high for _, high in sets[attribute]))]
        residual = self._residual(box, memberships)
        for chosen in product(*sets.values()):
            self.boxes.append(box)
            self.counts.append(len(chosen))
            self.rows += [(attribute, low, high) for attribute, (low, high) in zip(sets, chosen, strict=True)]
            self.residual_of.append(residual)

    def _residual(self, box: int, memberships: list[Membership]) -> int:
        number = int(self._table.residual_of[box])
        if self._unclear[box]:
            return len(self._table.residuals)
        if not memberships:
            return number
        expression = self._table.residuals[number] if number >= 0 else None
        self.residuals.append(Residual(expression, tuple(memberships)))
        return len(self._table.residuals) + len(self.residuals) - 1
