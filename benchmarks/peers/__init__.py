"""What others reach: a module for each competitor, found by being here.

A competitor's module has a class `Peer` with the two methods of `Competitor`, a `name`, and the
`workloads` it can do. Each is written as well as we can write it, in the formulation that was
fastest of those tried, and says which those were.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Protocol

from benchmarks.peers.prepared import Prepared

ALL_WORKLOADS = ("bluedove", "alerts", "strings", "mixed")


class Competitor(Protocol):
    """What is timed. Filters come prepared; events are a table as a user has it."""

    name: str
    workloads: tuple[str, ...]
    events_max: int  # of one batch: no more gains nothing

    def build(self, subscriptions: Prepared) -> None: ...

    def match(self, events: Any) -> tuple[Any, Any]:
        """The matches, in any order: two arrays, events and subscriptions by number."""


def peers() -> dict[str, type[Competitor]]:
    """Every competitor here by its name."""
    found = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return {module.Peer.name: module.Peer for module in found if hasattr(module, "Peer")}
