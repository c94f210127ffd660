"""Where a ring keeps a subscription's lists: the placements' own laws (`tidings.systems`), for one filter or event.

A conjunction lies, for each attribute that it constrains and that has a list, on some arcs of the ring: with Chord's
placement on a point for each value, with OPChord's on one arc for a range. What constrains no such attribute
lies on one point of its own, the catch-all's, which every event visits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.value_sets import ValueSet
from tidings.model.event import read_events
from tidings.model.event_json import parse_events
from tidings.systems.geometry.node_ring import Arc, RingView
from tidings.systems.protocols.content import REMEMBERED, Content, ReadFilter, Record
from tidings.systems.protocols.effects import Event, Id
from tidings.systems.protocols.ring_ids import hashed, within


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

    def next_value(self, channel: int, after: Id) -> Id | None:
        """Where the next value of an attribute lies, clockwise; None if values are hashed, or this is past the last."""
        before = self.view.values_up_to(channel, after)
        return None if before is None else self.view.value_position(channel, before)

    def values_between(self, channel: int, low: Id, high: Id) -> int | None:
        """How many values of an attribute lie in (low, high]; None if they are hashed."""
        before, up_to = self.view.values_up_to(channel, low), self.view.values_up_to(channel, high)
        return None if before is None or up_to is None else max(0, up_to - before)

    def owns_value(self, channel: int, arcs: tuple[Arc, ...], low: Id, high: Id) -> bool:
        """Whether a value on one of the arcs, which begin and end at values, lies in (low, high]."""
        mask = (1 << self.bits) - 1
        for start, length in arcs:
            if within(low, start, high):
                return True
            if (low + 1 - start) & mask <= length:  # the arc has begun before
                value = self.next_value(channel, low)
                if value is not None and (value - start) & mask <= length and within(low, value, high):
                    return True
        return False

    def differing(self, old: str, new: str, box: int, channel: int) -> list[Arc] | None:
        """Where an update from one filter to another has to be told; None if all of it has to be stored again.

        By hash: at the values that one of them has and the other has not, and at those that an end cuts through. In
        order: between the old ends and the new, arc by arc, if both have as many.
        """
        before, after = (self.values(self.content.interest(text), box, channel) for text in (old, new))
        if before == after or before is None or after is None:
            return []
        was, now = (self.conjunctions(text)[box].arcs[channel] for text in (old, new))
        if self.view.start_of(channel) is None:
            ends = set(before.intervals) ^ set(after.intervals)
            cut = {Arc(position, 0) for position in self.view.partial_ends(channel, sorted(ends))}
            told = (set(was) ^ set(now)) | (cut & {*was, *now})
            return sorted(told) or list(now)
        if before.null != after.null or not len(was) == len(now) == before.size == after.size:
            return None
        found = []
        for old_arc, new_arc, old_ends, new_ends in zip(was, now, before.intervals, after.intervals, strict=False):
            for arc, moved in zip(
                self.changed(channel, old_arc, new_arc),
                (old_end != new_end for old_end, new_end in zip(old_ends, new_ends, strict=True)),
                strict=True,
            ):
                if arc.length or moved:
                    found.append(arc)
        return found

    def changed(self, channel: int, old: Arc, new: Arc) -> list[Arc]:
        """Where an update has to be told: between the old ends and the new, or at both values where they are hashed.

        A node between the ends needs no news: for the values that it owns both filters say the same. The nodes at
        the ends do even where the ends stay, for a node owns many values.
        """
        origin, mask = self.view.start_of(channel), (1 << self.bits) - 1
        if origin is None:
            return [old, new]
        begins = sorted(((old.start - origin) & mask, (new.start - origin) & mask))
        ends = sorted((arc.start - origin & mask) + arc.length for arc in (old, new))
        return [Arc((origin + low) & mask, high - low) for low, high in (begins, ends)]

    def positions(self, event: Event) -> tuple[Id, ...]:
        """Where an event looks, by channel."""
        return self._positions_of(event.body)

    def values(self, interest: ReadFilter, box: int, channel: int) -> ValueSet | None:
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
        if not unlisted or found.residual is None:
            return self.content.checks.noted(unlisted)
        return self.content.interest(text).holds(record)  # it says no more of an event in this box than its residual

    def _conjunctions(self, text: str) -> tuple[Conjunction, ...]:
        filters = compile_filters([text], self.content.domain, plans=False)
        found: list[dict[int, list[Arc]]] = [{} for _ in range(filters.boxes)]
        for box, channel, arc in self.view.arcs(filters):
            found[box].setdefault(channel, []).append(arc)
        return tuple(
            Conjunction({c: tuple(arcs) for c, arcs in box.items()} or {self.view.catch_all: (self._catch_all,)})
            for box in found
        )

    def _positions(self, body: str) -> tuple[Id, ...]:
        batch = read_events(parse_events(body), self.content.domain)
        return (*(int(at[0]) for at in self.view.positions(batch)), self._catch_all.start)
