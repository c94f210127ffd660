"""What was set aside in a domain because it broke its stream: filters and events, with the reasons.

    domains/<key>/aside.json   {"filters": {"12": {"from": 345, "reason": …}}, "events": {"350": …}}

The driver finds them by trying parts of the batch that fails, and writes them down before the batch is run again, so
that whoever runs it then leaves out the same. The gateway reads them: a filter's subscription has failed from that
position on, an event is a dead letter of all who might have got it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from tidings.model.domain import Domain
from tidings.pipeline.aside import Aside
from tidings.pipeline.checkpoint import unfinished_batch
from tidings.pipeline.errors import PipelineError
from tidings.pipeline.probing import Culprits, Suspect, culprits_of
from tidings.service.data_directory import read_json, replace_json

MEND_AFTER = 2  # failures of a stream, one after the other: most are of the moment

_log = logging.getLogger("tidings.service")


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

    def with_culprits(self, found: Culprits, start: int) -> SetAside:
        """These too; a filter from the beginning of the batch that it broke."""
        new = {number: FailedFilter(number, start, reason) for number, reason in found.filters.items()}
        return SetAside({**new, **self.filters}, {**found.events, **self.events})

    @property
    def left_out(self) -> Aside:
        return Aside(frozenset(self.filters), frozenset(self.events))

    def __bool__(self) -> bool:
        return bool(self.filters or self.events)


def set_aside_culprits(path: Path, query: Path, log: Path, domain: Domain) -> bool:
    """Find what of a domain breaks the batch that a query has not finished, and write it down.

    Returns whether anything was found.
    """
    batch = unfinished_batch(query)
    if batch is None:
        return False
    before = SetAside.read(path)
    suspect = Suspect(
        str(query / "subscriptions"), batch.version, domain.to_dict(), str(log), batch.start, batch.end,
        tuple(before.filters), tuple(before.events),
    )  # fmt: skip
    try:
        found = culprits_of(suspect)
    except PipelineError as error:
        _log.warning("%s: %s", domain.name, error)
        return False
    if found:
        for number, reason in found.filters.items():
            _log.error("%s: filter %d is set aside from position %d: %s", domain.name, number, batch.start, reason)
        for position, reason in found.events.items():
            _log.error("%s: the event at position %d is set aside: %s", domain.name, position, reason)
        before.with_culprits(found, batch.start).write(path)
    return bool(found)
