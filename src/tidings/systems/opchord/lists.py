"""Where a ring keeps a subscription's lists: the placements' own laws (`tidings.systems`), for one filter or event.

A conjunction lies, for each attribute that it constrains and that has a list, on some arcs of the ring: with Chord's
placement on a point for each value, with OPChord's on one arc for a range. What constrains no such attribute
lies on one point of its own, the catch-all's, which every event visits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.value_sets import ValueSet
from tidings.model.event import read_events
from tidings.model.event_json import parse_events
from tidings.systems.chord import placement as chord
from tidings.systems.geometry.line_positions import event_places, has_places
from tidings.systems.interface import channels_of, positions_of
from tidings.systems.opchord import placement as opchord
from tidings.systems.protocols.content import REMEMBERED, Content, Interest, Record
from tidings.systems.protocols.effects import Event, Id
from tidings.systems.protocols.ring_ids import hashed, within

RingView: TypeAlias = "chord.View | opchord.View"


class Arc(NamedTuple):
    """Positions from `start`, clockwise, over `length`: 0 is a point."""

    start: Id
    length: int


class Conjunction(NamedTuple):
    """One box of a filter: its arcs by channel, and how many lists have to name it."""

    arcs: dict[int, tuple[Arc, ...]]

    @property
    def lists(self) -> int:  # c3 of the paper
        return len(self.arcs)


class Lists:
    """A View of Chord's or OPChord's placement, asked about one filter or event at a time."""

    def __init__(self, view: RingView, content: Content) -> None:
        self.view = view
        self.content = content
        self.bits = view.ring.bits
        self.channels = view.channels
        self._catch_all = Arc(hashed("", self.bits), 0)
        self.conjunctions = lru_cache(REMEMBERED)(self._conjunctions)
        self._positions_of = lru_cache(REMEMBERED)(self._positions)

    def position_step(self, channel: int) -> float:
        """How far apart neighbouring values of an attribute are on the ring, where they are at equal distances."""
        if not isinstance(self.view, opchord.View) or channel >= len(self.view.paths):
            return 0.0
        order = self.view.orders[self.view.paths[channel]]
        return (1 << self.bits) / order.count if order.before is None else 0.0

    def changed(self, channel: int, old: Arc, new: Arc) -> list[Arc]:
        """Where an update has to be told: between the old ends and the new, or at both values where they are hashed.

        A node between the ends needs no news: for the values that it owns both filters say the same. The nodes at
        the ends do even where the ends stay, for a node owns many values.
        """
        if not isinstance(self.view, opchord.View) or channel == self.view.catch_all:
            return [old, new]
        origin, mask = self.view.orders[self.view.paths[channel]].start, (1 << self.bits) - 1
        begins = sorted(((old.start - origin) & mask, (new.start - origin) & mask))
        ends = sorted((arc.start - origin & mask) + arc.length for arc in (old, new))
        return [Arc((origin + low) & mask, high - low) for low, high in (begins, ends)]

    def positions(self, event: Event) -> tuple[Id, ...]:
        """Where an event looks, by channel."""
        return self._positions_of(event.body)

    def values(self, interest: Interest, box: int, channel: int) -> ValueSet | None:
        """What a conjunction asks of the channel's attribute; None of the catch-all."""
        if channel == self.view.catch_all:
            return None
        return interest.boxes[box].sets[self.view.paths[channel]]

    def admits(self, record: Record, text: str, box: int, channel: int) -> bool:
        """Whether an event's value is one that the conjunction asks for: a node's list holds those of many values."""
        values = self.values(self.content.interest(text), box, channel)
        return values is None or self.content.satisfies(record, self.view.paths[channel], values)

    def rest_holds(self, record: Record, text: str, box: int) -> bool:
        """Whether an event satisfies what no list has looked at: the residual, and attributes without a list."""
        found = self.content.interest(text).boxes[box]
        listed = {self.view.paths[c] for c in self.conjunctions(text)[box].arcs if c != self.view.catch_all}
        unlisted = all(
            self.content.satisfies(record, path, values) for path, values in found.sets.items() if path not in listed
        )
        # The whole filter says no more of an event in this box than its residual does.
        return unlisted and (found.residual is None or self.content.interest(text).holds(record))

    def _conjunctions(self, text: str) -> tuple[Conjunction, ...]:
        filters = compile_filters([text], self.content.domain, plans=False)
        found: list[dict[int, list[Arc]]] = [{} for _ in range(filters.boxes)]
        if isinstance(self.view, opchord.View):
            for channel, path in enumerate(self.view.paths):
                intervals = filters.intervals.get(path)
                if intervals is None or not has_places(intervals.type):
                    continue
                arcs = opchord.arcs_of(intervals, self.view.orders[path], self.view.ring)
                for box, start, length in zip(arcs.boxes, arcs.starts, arcs.lengths, strict=True):
                    found[int(box)].setdefault(channel, []).append(Arc(int(start), int(length)))
        else:
            placed = chord.place(filters, self.view)
            assert placed.conjunctions is not None
            channels, positions = channels_of(placed.keys), positions_of(placed.keys)
            for box, channel, position in zip(placed.conjunctions, channels, positions, strict=True):
                if channel != self.view.catch_all:
                    found[int(box)].setdefault(int(channel), []).append(Arc(int(position), 0))
        return tuple(
            Conjunction({c: tuple(arcs) for c, arcs in box.items()} or {self.view.catch_all: (self._catch_all,)})
            for box in found
        )

    def _positions(self, body: str) -> tuple[Id, ...]:
        batch = read_events(parse_events(body), self.content.domain)
        if isinstance(self.view, chord.View):
            keys = chord.route(batch, self.view).keys
            return (*(int(position) for position in positions_of(keys)[:-1]), self._catch_all.start)
        positions = []
        for path in self.view.paths:
            order, places = self.view.orders[path], event_places(batch, path)
            number = order.numbers(places.all) if places.valid[0] else np.zeros(1, np.int64)  # NULL lies with the least
            positions.append(int(order.positions(number, self.view.ring)[0]))
        return (*positions, self._catch_all.start)


def touches(arcs: tuple[Arc, ...], low: Id, high: Id, mask: int) -> bool:
    """Whether one of the arcs has a position in (low, high]."""
    for start, length in arcs:
        if within(low, start, high):
            return True
        first = (low + 1 - start) & mask  # from the arc's beginning to the first position that is owned
        if first <= length:
            return True
    return False
