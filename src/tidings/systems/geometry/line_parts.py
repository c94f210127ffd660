"""How an attribute's line is divided into parts, for digests: by its values, or into intervals of equal probability.

NULL is a part of its own. Each part carries the share of the events that lie in it, where that is known, so
that a subscription can choose where it is met by few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.forwarding import Floats
from tidings.systems.geometry.coarse_line import Cells, cells_of, event_values, listed_values
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.geometry.line_positions import (
    Edges,
    edges_at_quantiles,
    edges_from_json,
    edges_to_json,
    event_segments,
    interval_segments,
    ranges,
)
from tidings.systems.interface import Numbers
from tidings.systems.statistics import Statistics

INTERVALS = 16  # that a line is divided into
VALUES_MAX = 32  # that a range may list
FREQUENT = 256  # values of which the share is known one by one

_NULL = np.int64(-0x4E55_4C4C)  # the number of NULL's part among values
_FEW = 24  # values that are parts by themselves, of numbers


@dataclass(frozen=True, eq=False)
class Held:
    """The parts that each box overlaps: those of box i are `numbers[offsets[i]:offsets[i + 1]]`; none: unconstrained,
    or too many."""

    offsets: Numbers
    numbers: Numbers
    shares: Floats  # of each box: of the events that lie in its parts

    @property
    def counts(self) -> Numbers:
        return np.diff(self.offsets)


@dataclass(frozen=True, eq=False)
class Division:
    """One attribute's parts. With edges: NULL is part 0, interval i part i + 1. Without: a part is a value's number."""

    edges: Edges | None = None
    cells: Cells | None = None
    shares: Floats = field(default_factory=lambda: np.empty(0))  # of NULL, then of each interval or frequent value
    frequent: Numbers = field(default_factory=lambda: np.empty(0, np.int64))  # ascending
    rest: float = 0.0  # the share of any other value

    def of(self, events: EventBatch, path: Path) -> Numbers:
        """The part that each event lies in."""
        if self.edges is None:
            numbers, valid = event_values(events, path, self.cells)
            return np.where(valid, numbers, _NULL)
        valid = events.columns[path].is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, event_segments(events, path, self.edges) + 1, 0)

    def held(self, filters: FilterTable, path: Path) -> Held:
        """The parts of every box."""
        intervals = filters.intervals.get(path)
        if intervals is None:
            return Held(np.zeros(filters.boxes + 1, np.int64), np.empty(0, np.int64), np.ones(filters.boxes))
        if self.edges is None:
            first, lengths = listed_values(intervals, self.cells)
            lengths = np.where((lengths > 0) & (lengths <= VALUES_MAX), lengths, VALUES_MAX + 1)
            most, null = VALUES_MAX, _NULL
        else:
            first, last = interval_segments(intervals, self.edges)
            first, lengths = first + 1, last - first + 1
            most, null = len(self.edges) + 2, np.int64(0)
        totals = np.bincount(intervals.boxes, lengths, filters.boxes)
        rows = np.flatnonzero(totals[intervals.boxes] <= most)
        row, numbers = ranges(first[rows], lengths[rows])
        nulls = intervals.null_boxes[totals[intervals.null_boxes] <= most].astype(np.int64)
        boxes = np.concatenate([intervals.boxes[rows[row]].astype(np.int64), nulls])
        numbers = np.concatenate([numbers, np.full(len(nulls), null)])
        boxes, numbers = distinct_pairs(boxes, numbers)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(boxes, minlength=filters.boxes))])
        shares = np.bincount(boxes, self._shares(numbers), filters.boxes).astype(np.float64)
        return Held(offsets, numbers, shares)

    def _shares(self, numbers: Numbers) -> Floats:
        if not len(self.shares):
            return np.full(len(numbers), self.rest)
        if self.edges is not None:
            return np.asarray(self.shares[numbers])
        at = np.minimum(np.searchsorted(self.frequent, numbers), max(0, len(self.frequent) - 1))
        known = self.frequent[at] == numbers if len(self.frequent) else np.zeros(len(numbers), bool)
        found = np.where(known, self.shares[1:][at] if len(self.frequent) else 0.0, self.rest)
        return np.where(numbers == _NULL, self.shares[0], found)

    def to_dict(self) -> dict[str, Any]:
        return {
            "edges": None if self.edges is None else edges_to_json(self.edges),
            "cells": None if self.cells is None else self.cells.to_dict(),
            "shares": self.shares.tolist(),
            "frequent": self.frequent.tolist(),
            "rest": self.rest,
        }


def divisions_from_dict(forms: Sequence[dict[str, Any]]) -> dict[Path, Division]:
    divisions = {}
    for form in forms:
        edges, cells = form["edges"], form["cells"]
        divisions[tuple(form["path"])] = Division(
            None if edges is None else edges_from_json(edges),
            None if cells is None else Cells(**cells),
            np.array(form["shares"], np.float64),
            np.array(form["frequent"], np.int64),
            form["rest"],
        )
    return divisions


def division_of(statistics: Statistics, path: Path, intervals: int = INTERVALS) -> Division:
    """Texts by value; other lines into intervals: at every value where there are few, else at the events' quantiles."""
    along = statistics.along(path)
    events = statistics.events if statistics.events is not None and statistics.events.count else None
    if statistics.filters.domain.leaves[path].name != "string":
        cells = cells_of(statistics.filters.domain, path)
        if not along.is_known and cells is not None and cells.count is not None and cells.count <= _FEW:
            return Division(cells=cells, rest=1 / cells.count)
        few = along.distinct <= _FEW
        edges = np.unique(along.quantiles) if few else edges_at_quantiles(along.quantiles, intervals)
        made = Division(edges=edges, shares=np.full(len(edges) + 2, 1 / (len(edges) + 1)))
        if events is None:
            return made
        counts = np.bincount(made.of(events, path), minlength=len(edges) + 2)
        shares = np.asarray((counts + 0.5) / (events.count + 0.5 * len(counts)), np.float64)
        return Division(edges=edges, shares=shares)
    if events is None:
        return Division(rest=1 / max(2, along.distinct))
    numbers, counts = np.unique(Division().of(events, path), return_counts=True)
    nulls = float(counts[numbers == _NULL].sum()) / events.count
    numbers, counts = numbers[numbers != _NULL], counts[numbers != _NULL]
    often = np.sort(np.argsort(-counts, kind="stable")[:FREQUENT])
    others = max(0.0, 1 - nulls - counts[often].sum() / events.count)
    rest = max(others / max(1, len(numbers) - len(often)), 0.1 / events.count)
    shares = np.concatenate([[nulls], counts[often] / events.count])
    return Division(shares=shares, frequent=numbers[often], rest=rest)
