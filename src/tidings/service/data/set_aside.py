"""What was set aside in a domain because it broke its stream: filters and events, with the reasons.

    domains/<key>/aside.json   {"filters": {"12": {"from": 345, "reason": …}}, "events": {"350": …}}

The driver finds them by trying parts of the batch that fails, and writes them down before the batch is run again, so
that the next run leaves out the same. The gateway reads them: a filter's subscription has failed from that
position on, an event is a dead letter of all who might have got it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidings.service.data.data_directory import read_json, replace_json


@dataclass(frozen=True)
class FailedFilter:
    """A filter that breaks matching."""

    number: int
    position: int  # it is left out from here on
    reason: str


@dataclass(frozen=True)
class SetAside:
    """What a domain's stream leaves out."""

    filters: dict[int, FailedFilter] = field(default_factory=dict)  # by number
    events: dict[int, str] = field(default_factory=dict)  # reasons by position

    @staticmethod
    def read(path: Path) -> SetAside:
        form = read_json(path) or {"filters": {}, "events": {}}
        failed = (FailedFilter(int(text), one["from"], one["reason"]) for text, one in form["filters"].items())
        events = {int(position): reason for position, reason in form["events"].items()}
        return SetAside({one.number: one for one in failed}, events)

    def write(self, path: Path) -> None:
        filters = {str(one.number): {"from": one.position, "reason": one.reason} for one in self.filters.values()}
        events = {str(position): reason for position, reason in self.events.items()}
        replace_json(path, {"filters": filters, "events": events}, durable=True)

    def with_culprits(self, filters: Mapping[int, str], events: Mapping[int, str], start: int) -> SetAside:
        """These too, by their reasons; filters from the beginning of the batch that they broke."""
        new = {number: FailedFilter(number, start, reason) for number, reason in filters.items()}
        return SetAside({**new, **self.filters}, {**events, **self.events})

    def __bool__(self) -> bool:
        return bool(self.filters or self.events)
