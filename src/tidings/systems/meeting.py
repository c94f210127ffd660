"""The join of place and route, in memory: which subscriptions events find, and what it takes.

    subscriptions ─► place ─┐
                            ├─► the same key ─► an exact check ─► every match, or those in as many lists as c3
    events        ─► route ─┘

The plain twin of what Spark and the overlays do with a View: they are held to it, and it to the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidings.filter.normal.filter_table import FilterTable, Intervals
from tidings.matching.batch_columns import Columns, Mask
from tidings.matching.evaluation import true_rows
from tidings.model.event import EventBatch
from tidings.systems.geometry.key_pairs import counted_pairs, distinct_pairs
from tidings.systems.geometry.line_positions import ranges
from tidings.systems.interface import CountsLists, Numbers, Placed, Routed, View, channels_of, place, route


@dataclass(frozen=True, eq=False)
class Meeting:
    """What events found."""

    events: Numbers  # of each match the event, ascending, …
    subscriptions: Numbers  # … and the subscription
    visits: int  # keys that events visited
    copies: int  # keys at which subscriptions are held
    candidates: int  # (event, subscription) or, with counting, (event, conjunction) that met at a key

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.events.tolist(), self.subscriptions.tolist(), strict=True))


def meet(filters: FilterTable, events: EventBatch, view: View) -> Meeting:
    """Every event with the subscriptions that it finds under a View."""
    return met(filters, events, view, place(filters, view), route(events, view))


def met(filters: FilterTable, events: EventBatch, view: View, placed: Placed, routed: Routed) -> Meeting:
    """The same, of copies and visits that are there: a match once for each key at which it is found."""
    event, copy = joined(placed, routed)
    columns = Columns(events)
    if placed.conjunctions is None:
        subscriptions = placed.subscriptions[copy]
        found = _holding(filters, columns, event, subscriptions)
        event, subscriptions = event[found], subscriptions[found]
        candidates = len(found)
    else:
        boxes = placed.conjunctions[copy]
        candidates = len(boxes)
        listed = _in_lists(filters, columns, view, channels_of(placed.keys[copy]), event, boxes)
        event, boxes = counted(event[listed], boxes[listed], needed(placed, filters.boxes))
        kept = verified(filters, columns, event, boxes)
        pairs = np.unique(event[kept] * max(1, filters.count) + filters.box_filter[boxes[kept]])
        event, subscriptions = pairs // max(1, filters.count), pairs % max(1, filters.count)
    order = np.lexsort((subscriptions, event))
    return Meeting(event[order], subscriptions[order], len(routed), len(placed), candidates)


def joined(placed: Placed, routed: Routed) -> tuple[Numbers, Numbers]:
    """(event, copy) for every visit to a key at which a copy is held."""
    order = np.argsort(placed.keys, kind="stable")
    keys = placed.keys[order]
    first, last = np.searchsorted(keys, routed.keys), np.searchsorted(keys, routed.keys, side="right")
    visit, at = ranges(first, last - first)
    return routed.events[visit], order[at]


def needed(placed: Placed, boxes: int) -> Numbers:
    """c3 of each conjunction: in how many lists it is, each an attribute's."""
    assert placed.conjunctions is not None
    conjunctions, _ = distinct_pairs(placed.conjunctions, channels_of(placed.keys))
    return np.bincount(conjunctions, minlength=boxes)


def counted(events: Numbers, boxes: Numbers, lists: Numbers) -> tuple[Numbers, Numbers]:
    """The (event, conjunction) pairs that were found in as many lists as the conjunction is in."""
    events, boxes, times = counted_pairs(events, boxes)
    full = times == lists[boxes]
    return events[full], boxes[full]


# ---------------------------------------------------------------------- exact checks of pairs


def _holding(filters: FilterTable, columns: Columns, events: Numbers, subscriptions: Numbers) -> Mask:
    """Which of these pairs are matches: some box of the filter holds the event."""
    first = np.searchsorted(filters.box_filter, subscriptions)
    last = np.searchsorted(filters.box_filter, subscriptions, side="right")
    pair, boxes = ranges(first, last - first)
    held = verified(filters, columns, events[pair], boxes)
    found = np.zeros(len(events), bool)
    found[pair[held]] = True
    return found


def verified(filters: FilterTable, columns: Columns, events: Numbers, boxes: Numbers) -> Mask:
    """Which of these boxes hold the event that they are paired with."""
    held = np.ones(len(boxes), bool)
    for path, intervals in filters.intervals.items():
        codes, valid = columns.codes(path, intervals.keys)
        constrained = np.zeros(filters.boxes, bool)
        constrained[intervals.constrained] = True
        rows = np.flatnonzero(constrained[boxes])
        held[rows] &= within(intervals, boxes[rows], codes[events[rows]], valid[events[rows]])
    residual_of = filters.residual_of[boxes]
    for number in np.unique(residual_of[held & (residual_of >= 0)]).tolist():
        rows = np.flatnonzero(held & (residual_of == number))
        held[rows] = true_rows(filters.residuals[number], columns, events[rows])
    return held


def within(intervals: Intervals, boxes: Numbers, codes: Numbers, valid: Mask) -> Mask:
    """Which values lie in what the box that they are paired with asks of one attribute."""
    first = np.searchsorted(intervals.boxes, boxes)
    last = np.searchsorted(intervals.boxes, boxes, side="right")
    pair, row = ranges(first, last - first)
    inside = (codes[pair] >= intervals.lows[row]) & (codes[pair] <= intervals.highs[row]) & valid[pair]
    found = np.zeros(len(boxes), bool)
    if len(intervals.null_boxes):
        missing = np.flatnonzero(~valid)
        found[missing] = np.isin(boxes[missing], intervals.null_boxes)
    found[pair[inside]] = True
    return found


def _in_lists(
    filters: FilterTable, columns: Columns, view: View, channels: Numbers, events: Numbers, boxes: Numbers
) -> Mask:
    """Which conjunctions have the event's value in what they ask of the list's own attribute: checked at the node."""
    kept = np.ones(len(boxes), bool)
    assert isinstance(view, CountsLists)
    for channel in range(view.channels):
        path, rows = view.list_of(channel), np.flatnonzero(channels == channel)
        if path is None or not len(rows):
            continue
        intervals = filters.intervals[path]
        codes, valid = columns.codes(path, intervals.keys)
        kept[rows] = within(intervals, boxes[rows], codes[events[rows]], valid[events[rows]])
    return kept
