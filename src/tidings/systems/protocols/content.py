"""Filters and events, as every node of a system understands them: the domain is handed out beforehand.

Messages carry texts; what they mean is worked out once in a process, and remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tidings.errors import EventError
from tidings.filter.meaning.interpreter import holds
from tidings.filter.normal.normal_form import Box, normalise
from tidings.filter.normal.value_sets import ValueSet, ordinal
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.tree import Expression
from tidings.model.domain import Domain
from tidings.model.event import read_record
from tidings.model.event_json import parse_events
from tidings.model.types import Path
from tidings.systems.protocols.effects import Event

REMEMBERED = 65_536  # filters, and events

Record = Mapping[Path, Any]


@dataclass(frozen=True, eq=False)
class Interest:
    """A filter, read: its tree, and the boxes whose union it is."""

    text: str
    tree: Expression
    boxes: tuple[Box, ...]

    def holds(self, record: Record) -> bool:
        return holds(self.tree, record)


class Content:
    """The domain, with what its filters and events mean."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.interest = lru_cache(REMEMBERED)(self._interest)
        self._record_of = lru_cache(REMEMBERED)(self._record)

    def record(self, event: Event) -> Record:
        return self._record_of(event.body)

    def _interest(self, text: str) -> Interest:
        tree = parse_filter(text, self.domain)
        return Interest(text, tree, normalise(tree).boxes)

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
