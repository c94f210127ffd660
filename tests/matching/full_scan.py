"""Matching by trying every box on every event, a block at a time: plain, exact, and slow.

The engines are held to it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.filter_table import Codes, FilterTable, Intervals
from tidings.matching.batch_columns import Columns, Mask
from tidings.matching.evaluation import true_rows

_BLOCK_CELLS = 1 << 22  # boxes × events compared at once: what fits a cache, as bytes
_BLOCK_EVENTS = 1024


def scan(
    filters: FilterTable, columns: Columns, events: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The matches of some events of a batch as (event, filter), ascending."""
    codes = {}
    for path, intervals in filters.intervals.items():
        values, valid = columns.codes(path, intervals.keys)
        codes[path] = values[events], valid[events]
    found_events, found = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    boxes_at_once = max(1, _BLOCK_CELLS // _BLOCK_EVENTS)
    for first_event in range(0, len(events), _BLOCK_EVENTS):
        block = slice(first_event, min(first_event + _BLOCK_EVENTS, len(events)))
        for first_box in range(0, filters.boxes, boxes_at_once):
            last_box = min(first_box + boxes_at_once, filters.boxes)
            inside = np.ones((last_box - first_box, block.stop - block.start), bool)
            for path, intervals in filters.intervals.items():
                values, valid = codes[path]
                _keep_within(inside, intervals, first_box, last_box, values[block], valid[block])
            _keep_residuals(inside, filters, first_box, columns, events[block])
            box, event = np.nonzero(inside)
            found_events.append(events[block][event])
            found.append(filters.box_filter[box + first_box])
    # A filter may hold an event in several of its boxes: it matches once.
    keys = np.unique(np.concatenate(found_events) * max(1, filters.count) + np.concatenate(found))
    return keys // max(1, filters.count), (keys % max(1, filters.count)).astype(np.int32)


def _keep_within(inside: Mask, intervals: Intervals, first: int, last: int, codes: Codes, valid: Mask) -> None:
    """Drop from `inside` (boxes × events) what is outside the intervals of one attribute."""
    rows = slice(*np.searchsorted(intervals.boxes, (first, last)))
    boxes = intervals.boxes[rows] - first
    within = (codes >= intervals.lows[rows, None]) & (codes <= intervals.highs[rows, None]) & valid
    if len(boxes) > 1 and (boxes[1:] == boxes[:-1]).any():
        starts = np.flatnonzero(np.r_[True, boxes[1:] != boxes[:-1]])
        boxes, within = boxes[starts], np.logical_or.reduceat(within, starts, axis=0)
    nulls = intervals.null_boxes[slice(*np.searchsorted(intervals.null_boxes, (first, last)))] - first
    if len(nulls):
        accepted = np.zeros((len(inside), inside.shape[1]), bool)
        accepted[boxes] = within
        accepted[nulls] |= ~valid
        boxes = np.union1d(boxes, nulls)
        within = accepted[boxes]
    inside[boxes] &= within


def _keep_residuals(
    inside: Mask, filters: FilterTable, first: int, columns: Columns, events: npt.NDArray[np.int64]
) -> None:
    """Evaluate what is left to decide, on the events that are left."""
    residual_of = filters.residual_of[first : first + len(inside)]
    for number in np.unique(residual_of[residual_of >= 0]):
        boxes = np.flatnonzero(residual_of == number)
        rows = np.flatnonzero(inside[boxes].any(axis=0))
        if len(rows):
            true = np.zeros(inside.shape[1], bool)
            true[rows] = true_rows(filters.residuals[number], columns, events[rows])
            inside[boxes] &= true
