"""Values by their hash on a ring: h(attribute ‖ value), and the positions at which conjunctions are held by it.

A range is held at every value in it. What cannot be listed, a range of texts or of doubles without a precision, is
held at none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidings.filter.normal.filter_table import Intervals
from tidings.kernels.hashing import hash_numbers, hash_text
from tidings.model.domain import path_text
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.geometry.key_pairs import distinct_hashed
from tidings.systems.geometry.line_positions import LineCells, event_values, listed_values, ranges
from tidings.systems.geometry.node_ring import Ring
from tidings.systems.interface import Numbers

_NULL_SEED = 1  # so that NULL has a hash that no value is made to have


def value_positions(path: Path, numbers: Numbers, ring: Ring) -> Numbers:
    """Where values lie on the ring, given their cells, their ordinals, or the hashes of texts: h(attribute ‖ value)."""
    return _on_ring(hash_numbers(numbers, hash_text(path_text(path))), ring)


def null_position(path: Path, ring: Ring) -> int:
    return int(_on_ring(hash_numbers(np.zeros(1, np.int64), hash_text(path_text(path), _NULL_SEED)), ring)[0])


def _on_ring(hashes: Any, ring: Ring) -> Numbers:
    return np.asarray((hashes >> np.uint64(64 - ring.bits)).astype(np.int64))


def event_positions(events: EventBatch, path: Path, cells: LineCells | None, ring: Ring) -> Numbers:
    """Where each event looks."""
    numbers, valid = event_values(events, path, cells)
    return np.where(valid, value_positions(path, numbers, ring), null_position(path, ring))


def held_positions(
    intervals: Intervals, path: Path, boxes: int, *, cells: LineCells | None, ring: Ring, most: int
) -> tuple[Numbers, Numbers]:
    """(box, position) for each value at which a box is held in one attribute's list, once each; none of too many."""
    first, lengths = listed_values(intervals, cells)
    lengths = np.where((lengths > 0) & (lengths <= most), lengths, most + 1)
    costs = np.bincount(intervals.boxes, lengths, boxes) + np.bincount(intervals.null_boxes, minlength=boxes)
    keyed = (costs > 0) & (costs <= most)
    rows = np.flatnonzero(keyed[intervals.boxes])
    row, numbers = ranges(first[rows], lengths[rows])
    nulls = intervals.null_boxes[keyed[intervals.null_boxes]].astype(np.int64)
    held = np.concatenate([intervals.boxes[rows[row]].astype(np.int64), nulls])
    hashed = value_positions(path, numbers, ring)
    positions = np.concatenate([hashed, np.full(len(nulls), null_position(path, ring))])
    several = costs[held] > 1
    if not several.any():
        return held, positions
    # Two values may hash alike, on a small ring often do; a list names a conjunction once.
    some, at = distinct_hashed(held[several], positions[several])
    return np.concatenate([held[~several], some]), np.concatenate([positions[~several], at])
