"""Filters and events, as every node of a system understands them: the domain is handed out beforehand.

Messages carry texts; what they mean is worked out once in a process, and remembered. `GroupKeys` says where they meet,
for a View in which they have one key in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tidings.errors import EventError
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.meaning.interpreter import holds
from tidings.filter.normal.normal_form import Box, normalise
from tidings.filter.normal.value_sets import ValueSet, ordinal
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.tree import Expression
from tidings.model.domain import Domain
from tidings.model.event import read_events, read_record
from tidings.model.event_json import parse_events
from tidings.model.types import Path
from tidings.systems.interface import CountsLists, View, place, route
from tidings.systems.protocols.effects import Event, Id
from tidings.systems.protocols.ring_ids import hashed
from tidings.systems.statistics import Statistics, declared_statistics

REMEMBERED = 65_536  # filters, and events

Record = Mapping[Path, Any]


@dataclass
class ExactChecks:
    """How often an event was checked against a filter exactly, and how often it did not match: a false positive."""

    made: int = 0
    rejected: int = 0

    def noted(self, found: bool) -> bool:
        """Counts a check, and returns what it found."""
        self.made += 1
        self.rejected += not found
        return found


@dataclass(frozen=True, eq=False)
class ReadFilter:
    """A filter, read: its tree, and the boxes whose union it is."""

    text: str
    tree: Expression
    boxes: tuple[Box, ...]
    checks: ExactChecks

    def holds(self, record: Record) -> bool:
        return self.checks.noted(holds(self.tree, record))


class Content:
    """The domain, with what its filters and events mean, and what is known of them beforehand."""

    def __init__(self, domain: Domain, statistics: Statistics | None = None) -> None:
        self.domain = domain
        self._statistics = statistics
        self.checks = ExactChecks()
        self.interest = lru_cache(REMEMBERED)(self._interest)
        self._record_of = lru_cache(REMEMBERED)(self._record)

    @cached_property
    def statistics(self) -> Statistics:
        """What Views are adapted to. Nodes of one network must place alike: by default it follows from the domain."""
        return self._statistics if self._statistics is not None else declared_statistics(self.domain)

    def record(self, event: Event) -> Record:
        return self._record_of(event.body)

    def _interest(self, text: str) -> ReadFilter:
        tree = parse_filter(text, self.domain)
        return ReadFilter(text, tree, normalise(tree).boxes, self.checks)

    def _record(self, body: str) -> Record:
        events = parse_events(body)
        if len(events) != 1:
            raise EventError(f"a publication is one event, and this is {len(events)}; publish them one by one")
        return read_record(events[0], self.domain)

    def satisfies(self, record: Record, path: Path, values: ValueSet) -> bool:
        """Whether the event's value of one attribute lies in a set."""
        value = record.get(path)
        if value is None:
            return values.null
        return _contains(values, ordinal(value, self.domain.leaves[path]))


def _contains(values: ValueSet, place: Any) -> bool:
    cut = (place, 0) if isinstance(place, bytes) else place
    return any(low <= cut < high for low, high in values.intervals)


class GroupKeys:
    """A View, asked about one filter or event at a time; keys become ids of groups by a hash."""

    def __init__(self, view: View, content: Content, bits: int) -> None:
        assert not isinstance(view, CountsLists), "a subscription and an event that satisfies it share one key"
        self.view = view
        self.content = content
        self._bits = bits
        self.held = lru_cache(REMEMBERED)(self._held)
        self._visited_by = lru_cache(REMEMBERED)(self._visited)

    def visited(self, event: Event) -> tuple[Id, ...]:
        """Returns the groups that an event goes to."""
        return self._visited_by(event.body)

    def _held(self, text: str) -> tuple[Id, ...]:
        placed = place(compile_filters([text], self.content.domain, plans=False), self.view)
        return tuple(dict.fromkeys(self._group(int(key)) for key in placed.keys))

    def _visited(self, body: str) -> tuple[Id, ...]:
        routed = route(read_events(parse_events(body), self.content.domain), self.view)
        return tuple(dict.fromkeys(self._group(int(key)) for key in routed.keys))

    def _group(self, key: int) -> Id:
        return hashed(f"{self.view.placement} {self.view.epoch} {self.content.domain.name} {key}", self._bits)
