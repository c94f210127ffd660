"""OPChord: values in their order around the ring (Triantafillou and Aekaterinidis, section 4).

A range is an arc: it is held by the nodes on it, one after the other. Where an attribute's least,
greatest value and precision are declared, its values are spread evenly as in the paper; else by the
empirical distribution F of the events, s0 + F(v)·2^m, which keeps the order and gives every node
as many events. Texts of which nothing is known are hashed one by one, as in Chord. Counting is
Chord's: a conjunction matches the events that find it in as many lists as it constrains attributes, c3.

Where the paper leaves a choice or errs:
    the printed hash takes the greatest value around to the place of the least: D counts both ends
    values past the ends stay in the first and the last place, and NULL lies with the least
    a walk is ended by its distance, not by the owner of its end
    where there are more than `jump` nodes to a value, only the values' own nodes hold a range
    a list is that of an attribute at a node, which owns many values: its intervals are checked there

channels   one for each attribute, and the catch-all's
positions  the number of a node: what lies at one node for one attribute is one list
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tidings.filter.normal.filter_table import FilterTable, Intervals
from tidings.kernels.hashing import hash_text
from tidings.model.domain import path_text
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.geometry.hashed_values import event_positions, held_positions
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.geometry.line_positions import (
    Edges,
    LineCells,
    cells_of,
    edges_from_json,
    edges_to_json,
    event_places,
    has_places,
    interval_segments,
    ranges,
    segments_of,
)
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

JUMP = 2.0  # nodes to a value
TEXTS_MAX = 64  # values that a conjunction may list of an attribute whose texts are hashed


@dataclass(frozen=True, eq=False)
class Order:
    """How an attribute's values are numbered in their order, 0 to `count` − 1, and how far around the ring each is."""

    start: int  # s0 of the paper: where on the ring the least value lies
    count: int  # D
    cells: LineCells | None = None  # that number the values, at equal distances
    edges: Edges | None = None  # or places at which the next number begins
    before: Numbers | None = None  # with edges: how many of the values seen lie before each number, and of them all

    def numbers(self, places: Edges) -> Numbers:
        if self.cells is not None:
            return self.cells.numbers(places)
        assert self.edges is not None
        return segments_of(places, self.edges)

    def interval_numbers(self, intervals: Intervals) -> tuple[Numbers, Numbers]:
        if self.cells is not None:
            return self.numbers(intervals.lows), self.numbers(intervals.highs)
        assert self.edges is not None
        return interval_segments(intervals, self.edges)

    def offsets(self, numbers: Numbers, ring: Ring) -> Numbers:
        """How far from s0 values lie: ⌊i·2^m / D⌋ for the i of each, or ⌊F(v)·2^m⌋."""
        if self.before is None:
            return shares(numbers, self.count, ring.bits)
        return shares(self.before[numbers], int(self.before[-1]), ring.bits)

    def positions(self, numbers: Numbers, ring: Ring) -> Numbers:
        """pos(a, v) of each value."""
        return (self.start + self.offsets(numbers, ring)) % ring.size

    def to_dict(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "count": self.count,
            "cells": None if self.cells is None else self.cells.to_dict(),
            "edges": None if self.edges is None else edges_to_json(self.edges),
            "before": None if self.before is None else self.before.tolist(),
        }

    @staticmethod
    def from_dict(form: dict[str, Any]) -> Order:
        cells, edges, before = form["cells"], form["edges"], form["before"]
        return Order(
            form["start"],
            form["count"],
            None if cells is None else LineCells(**cells),
            None if edges is None else edges_from_json(edges),
            None if before is None else np.array(before, np.int64),
        )


def shares(numbers: Numbers, count: int, bits: int) -> Numbers:
    """⌊i·2^bits / count⌋, exactly: by long division, since the product has more than 64 bits."""
    quotient, rest = np.zeros_like(numbers), numbers % count
    left = bits
    while left:
        digit = min(left, 62 - count.bit_length())
        shifted = rest << digit
        quotient, rest = (quotient << digit) + shifted // count, shifted % count
        left -= digit
    return quotient


@dataclass(frozen=True, eq=False)
class View(RingView):
    """The ring, and the order of each attribute's values around it; one without an order is hashed."""

    placement: ClassVar[str] = "opchord"

    orders: Mapping[Path, Order] = field(default_factory=dict)
    jump: float = JUMP
    epoch: int = 0

    def jumps(self, path: Path) -> bool:
        """Whether there are so many nodes to a value that those between two values are left out."""
        return len(self.ring.members) > self.jump * self.orders[path].count

    def arcs(self, filters: FilterTable) -> Iterator[tuple[int, int, Arc]]:
        for channel, path in enumerate(self.paths):
            intervals = filters.intervals.get(path)
            if intervals is None or not has_places(intervals.type):
                continue
            if path not in self.orders:
                for box, position in zip(*(part.tolist() for part in _hashed(filters, path, self)), strict=True):
                    yield box, channel, Arc(position, 0)
                continue
            arcs = arcs_of(intervals, self.orders[path], self.ring)
            for box, start, length in zip(
                *(part.tolist() for part in (arcs.boxes, arcs.starts, arcs.lengths)), strict=True
            ):
                yield box, channel, Arc(start, length)

    def positions(self, events: EventBatch) -> list[Numbers]:
        return [self._positions(events, path) for path in self.paths]

    def _positions(self, events: EventBatch, path: Path) -> Numbers:
        if path not in self.orders:
            return event_positions(events, path, None, self.ring)
        order, places = self.orders[path], event_places(events, path)
        found = order.numbers(places.distinct)
        numbers = found[places.number] if len(found) else np.zeros(events.count, np.int64)
        return order.positions(np.where(places.valid, numbers, 0), self.ring)  # NULL lies with the least

    def start_of(self, channel: int) -> int | None:
        order = self._order(channel)
        return None if order is None else order.start

    def _order(self, channel: int) -> Order | None:
        path = self.list_of(channel)
        return None if path is None else self.orders.get(path)

    def values_up_to(self, channel: int, position: int) -> int | None:
        order = self._order(channel)
        if order is None:
            return None
        offset = (position - order.start) % self.ring.size
        if order.before is not None:
            return bisect_right(self._offsets[channel], offset)
        # Of the numbers i those with ⌊i·2^m / D⌋ ≤ offset.
        return min(order.count, -(-(offset + 1) * order.count >> self.ring.bits))

    def value_position(self, channel: int, number: int) -> int | None:
        order = self._order(channel)
        if order is None or number >= order.count:
            return None
        if order.before is not None:
            return (order.start + self._offsets[channel][number]) % self.ring.size
        return (order.start + (number << self.ring.bits) // order.count) % self.ring.size

    @cached_property
    def _offsets(self) -> dict[int, list[int]]:
        """Of lists in the order of an empirical distribution: how far from the first each value lies."""
        orders = ((channel, self.orders.get(path)) for channel, path in enumerate(self.paths))
        return {
            channel: order.offsets(np.arange(order.count), self.ring).tolist()
            for channel, order in orders
            if order is not None and order.before is not None
        }

    def described_parts(self, path: Path) -> str:
        order = self.orders.get(path)
        if order is None:
            return "each value, no ranges"
        return f"{order.count:,} values" if order.before is None else f"{order.count:,} quantiles"

    def owners(self, keys: Numbers) -> Numbers:
        return np.where(channels_of(keys) == self.catch_all, EVERYWHERE, positions_of(keys))

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {
            "orders": [self.orders[path].to_dict() if path in self.orders else None for path in self.paths],
            "jump": self.jump,
            "epoch": self.epoch,
        }

    @staticmethod
    def from_dict(form: dict[str, Any]) -> View:
        paths, ring = paths_and_ring(form)
        forms = zip(paths, form["orders"], strict=True)
        orders = {path: Order.from_dict(order) for path, order in forms if order is not None}
        return View(paths, ring, orders, form["jump"], form["epoch"])


def adapt(
    statistics: Statistics,
    *,
    partitions: int,
    epoch: int = 0,
    ring: Ring | None = None,
    jump: float = JUMP,
    empirical: bool = True,
) -> View:
    """The order of every attribute that filters compare with constants.

    By the empirical distribution of events; where `empirical` is False, or no event is known, by the least,
    greatest value and precision that the domain declares; where it does not, by the bounds of the filters. Of
    attributes with neither, texts are hashed, and others have no list.
    """
    ring = ring or even_ring(partitions)
    found = {path: order_of(statistics, path, ring, empirical) for path in statistics.paths}
    leaves = statistics.filters.domain.leaves
    paths = tuple(path for path, order in found.items() if order is not None or leaves[path].name == "string")
    orders = {path: order for path, order in found.items() if order is not None}
    return View(paths, ring, orders, jump, epoch)


def order_of(statistics: Statistics, path: Path, ring: Ring, empirical: bool) -> Order | None:
    start = hash_text(path_text(path)) >> (64 - ring.bits)  # s0(a) = hash(attribute's name)
    cells, known = cells_of(statistics.filters.domain, path), statistics.along(path)
    declared = cells is not None and cells.count is not None and cells.count < 1 << 48
    sampled = path in statistics.values and statistics.source != "declaration"
    if declared and not (empirical and sampled and known.is_known):
        assert cells is not None
        assert cells.count is not None
        return Order(start, cells.count, cells=cells)
    if not known.is_known:
        return None
    edges = np.unique(known.quantiles)
    # A value's place is where those below it end: a frequent value is followed by a long way without any.
    before = np.searchsorted(known.quantiles, edges, side="left") + 1
    before = np.concatenate([[0], before, [len(known.quantiles) + 1]]).astype(np.int64)
    return Order(start, len(edges) + 1, edges=edges, before=before)


# ---------------------------------------------------------------------- the law


@dataclass(frozen=True, eq=False)
class Arcs:
    """Where conjunctions lie on the ring, for one attribute: from the position `starts`, `lengths` on."""

    boxes: Numbers
    starts: Numbers
    lengths: Numbers
    first: Numbers  # the numbers of the least and of the greatest value
    last: Numbers


def arcs_of(intervals: Intervals, order: Order, ring: Ring) -> Arcs:
    """The arc of each interval; NULL's is at the least value."""
    first, last = order.interval_numbers(intervals)
    zero = np.zeros(len(intervals.null_boxes), np.int64)
    first, last = np.concatenate([first, zero]), np.concatenate([last, zero])
    boxes = np.concatenate([intervals.boxes, intervals.null_boxes]).astype(np.int64)
    begin, end = order.offsets(first, ring), order.offsets(last, ring)
    return Arcs(boxes, (order.start + begin) % ring.size, end - begin, first, last)


def place(filters: FilterTable, view: View) -> Placed:
    parts = []
    unkeyed = np.ones(filters.boxes, bool)
    for channel, path in enumerate(view.paths):
        intervals = filters.intervals.get(path)
        if intervals is None or not has_places(intervals.type):
            continue
        if path not in view.orders:
            boxes, positions = _hashed(filters, path, view)
            boxes, holders = distinct_pairs(boxes, view.ring.owners(positions))
            unkeyed[boxes] = False
            parts.append((boxes, keys_at(channel, holders)))
            continue
        arcs = arcs_of(intervals, view.orders[path], view.ring)
        boxes, holders = _holders(arcs, path, view)
        unkeyed[boxes] = False
        if view.jumps(path) or len(arcs.boxes) > len(intervals.constrained):
            boxes, holders = distinct_pairs(boxes, holders)  # intervals of one box may share a node
        parts.append((boxes, keys_at(channel, holders)))
    alone = np.flatnonzero(unkeyed)
    parts.append((alone, alike_keys(view.catch_all, len(alone))))
    return placed_of(parts, filters.box_filter)


def _hashed(filters: FilterTable, path: Path, view: View) -> tuple[Numbers, Numbers]:
    """(box, position) for every value at which a box is held, of an attribute whose values are hashed."""
    intervals = filters.intervals[path]
    return held_positions(intervals, path, filters.boxes, cells=None, ring=view.ring, most=TEXTS_MAX)


def _holders(arcs: Arcs, path: Path, view: View) -> tuple[Numbers, Numbers]:
    """(box, node) for every node that holds a box for this attribute."""
    if view.jumps(path):
        row, numbers = ranges(arcs.first, arcs.last - arcs.first + 1)
        return arcs.boxes[row], view.ring.owners(view.orders[path].positions(numbers, view.ring))
    row, nodes = ranges(*view.ring.walks(arcs.starts, arcs.lengths))
    return arcs.boxes[row], nodes % len(view.ring.members)


def route(events: EventBatch, view: View) -> Routed:
    keys = [keys_at(channel, view.ring.owners(at)) for channel, at in enumerate(view.positions(events))]
    keys.append(alike_keys(view.catch_all, events.count))
    return routed_of(events.count, keys)
