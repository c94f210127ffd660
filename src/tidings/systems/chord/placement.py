"""Chord: a hash of every value (Triantafillou and Aekaterinidis, "Content-based Publish-Subscribe Over Structured
P2P Networks", section 3).

For each attribute that a conjunction constrains it is held at the hash of each value that the
attribute may have there; an event visits the hash of each of its values, and matches what it
finds in as many lists as the conjunction has (c3). A range is held at every value in it, which
the paper's figure 4 steps through by the attribute's precision; ranges of too many values, and those
of texts and of doubles without a precision, are not keyed and left to the exact check. What
has no keyed attribute is held everywhere.

channels   one for each attribute, and the catch-all's
positions  on a ring of `bits` bits; the successor of a position owns it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tidings.filter.normal.filter_table import FilterTable, Intervals
from tidings.kernels.hashing import hash_numbers, hash_text
from tidings.model.domain import path_text
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.geometry.key_pairs import distinct_hashed
from tidings.systems.geometry.line_positions import LineCells, cells_of, event_values, has_places, listed_values, ranges
from tidings.systems.geometry.node_ring import Arc, Ring, RingView, even_ring, paths_and_ring
from tidings.systems.interface import (
    EVERYWHERE,
    Numbers,
    Placed,
    Routed,
    alike_keys,
    channels_of,
    keys_at,
    placed_of,
    positions_of,
    routed_of,
)
from tidings.systems.statistics import Statistics

VALUES_MAX = 64  # that a conjunction is held at for one attribute

_NULL_SEED = 1  # so that NULL has a hash that no value is made to have


@dataclass(frozen=True, eq=False)
class View(RingView):
    """The ring, and which attributes have lists. `values_max` past a domain's size is the paper's cost."""

    placement: ClassVar[str] = "chord"

    cells: Mapping[Path, LineCells] = field(default_factory=dict)  # of the attributes whose ranges are lists of cells
    values_max: int = VALUES_MAX
    epoch: int = 0

    def arcs(self, filters: FilterTable) -> Iterator[tuple[int, int, Arc]]:
        placed = place(filters, self)
        assert placed.conjunctions is not None
        channels, positions = channels_of(placed.keys).tolist(), positions_of(placed.keys).tolist()
        for box, channel, position in zip(placed.conjunctions.tolist(), channels, positions, strict=True):
            if channel != self.catch_all:
                yield box, channel, Arc(position, 0)

    def positions(self, events: EventBatch) -> list[Numbers]:
        found = []
        for path in self.paths:
            numbers, valid = event_values(events, path, self.cells.get(path))
            found.append(np.where(valid, value_positions(path, numbers, self.ring), null_position(path, self.ring)))
        return found

    def owners(self, keys: Numbers) -> Numbers:
        owners = self.ring.owners(positions_of(keys))
        return np.where(channels_of(keys) == self.catch_all, EVERYWHERE, owners)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {
            "cells": [self.cells[path].to_dict() if path in self.cells else None for path in self.paths],
            "values_max": self.values_max,
            "epoch": self.epoch,
        }

    @staticmethod
    def from_dict(form: dict[str, Any]) -> View:
        paths, ring = paths_and_ring(form)
        cells = {path: LineCells(**cell) for path, cell in zip(paths, form["cells"], strict=True) if cell is not None}
        return View(paths, ring, cells, form["values_max"], form["epoch"])


def adapt(
    statistics: Statistics,
    *,
    partitions: int,
    epoch: int = 0,
    ring: Ring | None = None,
    values_max: int = VALUES_MAX,
) -> View:
    """Lists for every attribute that filters compare with constants; the nodes at equal distances."""
    cells = {path: cells_of(statistics.filters.domain, path) for path in statistics.paths}
    known = {path: cell for path, cell in cells.items() if cell is not None}
    return View(statistics.paths, ring or even_ring(partitions), known, values_max, epoch)


# ---------------------------------------------------------------------- positions


def value_positions(path: Path, numbers: Numbers, ring: Ring) -> Numbers:
    """Where values lie on the ring, given their cells, their ordinals, or the hashes of texts: h(attribute ‖ value)."""
    return _on_ring(hash_numbers(numbers, hash_text(path_text(path))), ring)


def null_position(path: Path, ring: Ring) -> int:
    return int(_on_ring(hash_numbers(np.zeros(1, np.int64), hash_text(path_text(path), _NULL_SEED)), ring)[0])


def _on_ring(hashes: Any, ring: Ring) -> Numbers:
    return np.asarray((hashes >> np.uint64(64 - ring.bits)).astype(np.int64))


# ---------------------------------------------------------------------- the law


def place(filters: FilterTable, view: View) -> Placed:
    parts = []
    unkeyed = np.ones(filters.boxes, bool)
    for channel, path in enumerate(view.paths):
        intervals = filters.intervals.get(path)
        if intervals is None or not has_places(intervals.type):
            continue
        boxes, positions = _held(intervals, path, view, filters.boxes)
        unkeyed[boxes] = False
        parts.append((boxes, keys_at(channel, positions)))
    alone = np.flatnonzero(unkeyed)
    parts.append((alone, alike_keys(view.catch_all, len(alone))))
    return placed_of(parts, filters.box_filter)


def route(events: EventBatch, view: View) -> Routed:
    keys = [keys_at(channel, positions) for channel, positions in enumerate(view.positions(events))]
    keys.append(alike_keys(view.catch_all, events.count))
    return routed_of(events.count, keys)


def _held(intervals: Intervals, path: Path, view: View, boxes: int) -> tuple[Numbers, Numbers]:
    """(box, position) for each value at which a box is held in one attribute's list, once each."""
    first, lengths = listed_values(intervals, view.cells.get(path))
    lengths = np.where((lengths > 0) & (lengths <= view.values_max), lengths, view.values_max + 1)
    costs = np.bincount(intervals.boxes, lengths, boxes) + np.bincount(intervals.null_boxes, minlength=boxes)
    keyed = (costs > 0) & (costs <= view.values_max)
    rows = np.flatnonzero(keyed[intervals.boxes])
    row, numbers = ranges(first[rows], lengths[rows])
    nulls = intervals.null_boxes[keyed[intervals.null_boxes]].astype(np.int64)
    held = np.concatenate([intervals.boxes[rows[row]].astype(np.int64), nulls])
    hashed = value_positions(path, numbers, view.ring)
    positions = np.concatenate([hashed, np.full(len(nulls), null_position(path, view.ring))])
    several = costs[held] > 1
    if not several.any():
        return held, positions
    # Two values may hash alike, on a small ring often do; a list names a conjunction once.
    some, at = distinct_hashed(held[several], positions[several])
    return np.concatenate([held[~several], some]), np.concatenate([positions[~several], at])
