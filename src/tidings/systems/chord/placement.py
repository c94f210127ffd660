"""Chord: a hash of every value (Triantafillou and Aekaterinidis, "Content-based Publish-Subscribe Over Structured
P2P Networks", section 3).

For each attribute that a conjunction constrains it is held at the hash of each value that the
attribute may have there; an event visits the hash of each of its values, and matches what it
finds in as many lists as the conjunction has (c3). A range is held at every value in it, which
the paper's figure 4 steps through by the attribute's precision; ranges of too many values, and those
of texts and of doubles without a precision, are not keyed and left to the exact check. What
has no keyed attribute is held everywhere. The paper has no limit: with `values_max=0` a range is
held at all of its values, if the domain declares how many there are.

channels   one for each attribute, and the catch-all's
positions  on a ring of `bits` bits; the successor of a position owns it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.filter.normal.value_sets import Cut
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.geometry.hashed_values import event_positions, held_positions, value_positions
from tidings.systems.geometry.line_positions import LineCells, cells_of, has_places
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

VALUES_MAX = 64  # that a conjunction is held at for one attribute, unless another limit is set
MOST_DECLARED = 1 << 20  # without a limit


@dataclass(frozen=True, eq=False)
class View(RingView):
    """The ring, and which attributes have lists. Without a limit, `values_max=0`, it is the paper's cost."""

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
        return [event_positions(events, path, self.cells.get(path), self.ring) for path in self.paths]

    def partial_ends(self, channel: int, intervals: Iterable[tuple[Cut, Cut]]) -> list[int]:
        cells = self.cells.get(self.paths[channel])
        if cells is None:
            return []  # a text, and a double without a precision, is a cell of its own
        cuts = [cut for ends in intervals for cut in ends if -1 << 63 < cut < 1 << 63]  # the line's ends cut no cell
        after, before = (cells.numbers(np.array(cuts, np.int64) - back) for back in (0, 1))
        return [int(at) for at in value_positions(self.paths[channel], after[after == before], self.ring)]

    def most(self, path: Path) -> int:
        """Returns how many values a conjunction is held at, at most: where there is no limit, all that are declared."""
        if self.values_max:
            return self.values_max
        cells = self.cells.get(path)
        return min(MOST_DECLARED, VALUES_MAX if cells is None or cells.count is None else cells.count + 1)

    def described_parts(self, path: Path) -> str:
        return "each value" if path in self.cells else "each value, no ranges"

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


# ---------------------------------------------------------------------- the law


def place(filters: FilterTable, view: View) -> Placed:
    parts = []
    unkeyed = np.ones(filters.boxes, bool)
    for channel, path in enumerate(view.paths):
        intervals = filters.intervals.get(path)
        if intervals is None or not has_places(intervals.type):
            continue
        boxes, positions = held_positions(
            intervals, path, filters.boxes, cells=view.cells.get(path), ring=view.ring, most=view.most(path)
        )
        unkeyed[boxes] = False
        parts.append((boxes, keys_at(channel, positions)))
    alone = np.flatnonzero(unkeyed)
    parts.append((alone, alike_keys(view.catch_all, len(alone))))
    return placed_of(parts, filters.box_filter)


def route(events: EventBatch, view: View) -> Routed:
    keys = [keys_at(channel, positions) for channel, positions in enumerate(view.positions(events))]
    keys.append(alike_keys(view.catch_all, events.count))
    return routed_of(events.count, keys)
