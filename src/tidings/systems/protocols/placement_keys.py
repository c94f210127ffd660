"""Where one filter or event goes, by a placement that has one key in common for them (`combine` "any")."""

from __future__ import annotations

from functools import lru_cache

from tidings.filter.compile.compiler import compile_filters
from tidings.model.event import read_events
from tidings.model.event_json import parse_events
from tidings.systems.interface import View, place, route
from tidings.systems.protocols.content import REMEMBERED, Content
from tidings.systems.protocols.effects import Event, Id
from tidings.systems.protocols.ring_ids import hashed


class Keys:
    """A View, asked about one filter or event at a time; keys become ids of groups by a hash."""

    def __init__(self, view: View, content: Content, bits: int) -> None:
        assert view.combine == "any", "a subscription and an event that satisfies it have one key in common"
        self.view = view
        self.content = content
        self._bits = bits
        self.held = lru_cache(REMEMBERED)(self._held)
        self._visited_by = lru_cache(REMEMBERED)(self._visited)

    def visited(self, event: Event) -> tuple[Id, ...]:
        """The groups that an event goes to."""
        return self._visited_by(event.body)

    def _held(self, text: str) -> tuple[Id, ...]:
        placed = place(compile_filters([text], self.content.domain, plans=False), self.view)
        return tuple(dict.fromkeys(self._group(int(key)) for key in placed.keys))

    def _visited(self, body: str) -> tuple[Id, ...]:
        routed = route(read_events(parse_events(body), self.content.domain), self.view)
        return tuple(dict.fromkeys(self._group(int(key)) for key in routed.keys))

    def _group(self, key: int) -> Id:
        return hashed(f"{self.view.placement} {self.view.epoch} {self.content.domain.name} {key}", self._bits)
