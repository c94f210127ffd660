"""Find what breaks a stream, and set it aside; see `set_aside`."""

from __future__ import annotations

import logging
from pathlib import Path

from tidings.model.domain import Domain
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.steps.index_version import Aside
from tidings.pipeline.streams.checkpoint import unfinished_batch
from tidings.pipeline.streams.failure_search import Suspect, culprits_of
from tidings.service.data.set_aside import SetAside

MEND_AFTER = 2  # failures of a stream, one after the other: most are of the moment

_log = logging.getLogger("tidings.service")


def left_out(*asides: SetAside) -> Aside:
    """What a stream leaves out; numbers and positions are of all domains."""
    filters = frozenset[int]().union(*(aside.filters for aside in asides))
    return Aside(filters, frozenset[int]().union(*(aside.events for aside in asides)))


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
        before.with_culprits(found.filters, found.events, batch.start).write(path)
    return bool(found)
