"""The Views of a network one after the other: the same indices, with other intervals.

A View that follows from a domain's declaration cuts every line into intervals of equal width. Which intervals have
equal probability shows when events are published: their values are sampled, and lines are cut at the quantiles of
the sample, as Tam et al. propose where the distribution of an attribute is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tidings.model.domain import parse_path, path_text
from tidings.model.event import read_events
from tidings.model.event_json import parse_events
from tidings.model.types import Path
from tidings.systems.digests.messages import IntervalEdges, IntervalView, ValueReport
from tidings.systems.digests.placement import View
from tidings.systems.geometry.line_positions import (
    INTERVALS,
    LineDivision,
    crowding,
    edges_at_shares,
    event_places,
)
from tidings.systems.interface import Floats, Numbers
from tidings.systems.protocols.content import REMEMBERED, Content, GroupKeys
from tidings.systems.protocols.effects import Event, Id
from tidings.systems.protocols.ring_ids import hashed

EDGES_MAX = 4_096  # of one attribute
VIEWS = 64  # that are remembered


class AdaptSettings(NamedTuple):
    """When Views are adapted to the events, and how nodes change over."""

    adapt_ms: int = 10_000  # between two reports of values, and between two looks at them; 0: Views stay as they are
    check_ms: int = 2_000  # between two questions whether there is a newer View
    settle_ms: int = 4_000  # from learning of a View until events are routed by it
    overlap_ms: int = 12_000  # for which subscriptions stay registered under the View before it
    intervals: int = INTERVALS  # that a line is divided into
    sample: int = 64  # values that a node reports of each attribute
    sample_min: int = 200  # values of all nodes that a View is adapted to
    window_ms: int = 60_000  # for which a report counts
    gain: float = 0.25  # by which the present intervals have to be more crowded than new ones


class FixedViews:
    """One View for ever: groups by some other law."""

    def __init__(self, keys: GroupKeys, name: str) -> None:
        self.name = name  # of the domain
        self.first = IntervalView(0, 0, ())
        self.content = keys.content
        self._keys = keys

    def at(self, view: IntervalView) -> GroupKeys:
        """Returns where filters and events meet, by a View."""
        return self._keys

    def is_possible(self, view: IntervalView) -> bool:
        """Returns whether these are intervals of this domain's indices."""
        return view.divisions == ()

    def sampled(self, event: Event) -> tuple[int | None, ...]:
        """Returns the place of an event's value on each line that is divided into intervals."""
        return ()

    def adapted(
        self, view: IntervalView, reports: Sequence[ValueReport], settings: AdaptSettings
    ) -> tuple[IntervalEdges, ...] | None:
        """Returns intervals that suit the reported values better than the View's; None: it stays."""
        return None


class IntervalViews(FixedViews):
    """The Views that differ from a first one in their intervals."""

    def __init__(self, view: View, content: Content, bits: int) -> None:
        super().__init__(ViewKeys(view, content, bits, 0), content.domain.name)
        self.view = view
        self._bits = bits
        self._paths = tuple(path for path, division in view.divisions.items() if division.edges is not None)
        self.first = IntervalView(0, 0, tuple(map(self._edges_of, self._paths)))
        self._keys_of = lru_cache(VIEWS)(self._made)
        self._sampled_of = lru_cache(REMEMBERED)(self._sampled)

    def _edges_of(self, path: Path) -> IntervalEdges:
        edges = self.view.divisions[path].edges
        assert edges is not None
        return IntervalEdges(path_text(path), tuple(edges.tolist()))

    def at(self, view: IntervalView) -> GroupKeys:
        return self._keys_of(view)

    def _made(self, view: IntervalView) -> GroupKeys:
        divisions = dict(self.view.divisions)
        for name, edges in view.divisions if view != self.first else ():
            shares = np.full(len(edges) + 2, 1 / (len(edges) + 1))  # by their making
            divisions[parse_path(name)] = LineDivision(edges=np.array(edges, np.int64), shares=shares)
        made = replace(self.view, divisions=divisions, epoch=view.epoch)
        return ViewKeys(made, self.content, self._bits, view.proposer)

    def is_possible(self, view: IntervalView) -> bool:
        return tuple(one.attribute for one in view.divisions) == tuple(map(path_text, self._paths)) and all(
            len(edges) <= EDGES_MAX and all(a < b for a, b in pairwise(edges)) for _, edges in view.divisions
        )

    def sampled(self, event: Event) -> tuple[int | None, ...]:
        return self._sampled_of(event.body) if self._paths else ()

    def _sampled(self, body: str) -> tuple[int | None, ...]:
        batch = read_events(parse_events(body), self.content.domain)
        found = [event_places(batch, path).all for path in self._paths]
        return tuple(int(places[0]) if len(places) else None for places in found)

    def adapted(
        self, view: IntervalView, reports: Sequence[ValueReport], settings: AdaptSettings
    ) -> tuple[IntervalEdges, ...] | None:
        made = []
        for present in view.divisions:
            places, weights = _gathered(present.attribute, reports)
            if len(places) >= settings.sample_min:
                edges = edges_at_shares(places, weights, settings.intervals)
                before = crowding(places, weights, np.array(present.edges, np.int64))
                if before > (1 + settings.gain) * crowding(places, weights, edges):
                    present = present._replace(edges=tuple(edges.tolist()))
            made.append(present)
        return tuple(made) if tuple(made) != view.divisions else None


class ViewKeys(GroupKeys):
    """The groups of one View: of two Views with one epoch, those of each."""

    def __init__(self, view: View, content: Content, bits: int, proposer: Id) -> None:
        self._proposer = proposer
        super().__init__(view, content, bits)

    def _group(self, key: int) -> Id:
        name = self.content.domain.name
        return hashed(f"{self.view.placement} {self.view.epoch} {self._proposer} {name} {key}", self._bits)


def _gathered(attribute: str, reports: Iterable[ValueReport]) -> tuple[Numbers, Floats]:
    """The sampled values of an attribute, each with the number of events that it stands for."""
    places, weights = [np.empty(0, np.int64)], [np.empty(0)]
    for report in reports:
        for sample in report.samples:
            if sample.attribute == attribute and sample.places:
                places.append(np.array(sample.places, np.int64))
                weights.append(np.full(len(sample.places), max(1, report.events) / len(sample.places)))
    return np.concatenate(places), np.concatenate(weights)
