"""A ring of identifiers with nodes on it, each of which owns what lies between its predecessor and itself (Chord).

Stoica et al., "Chord" (2001): a position belongs to its *successor*, the first node at or after it,
clockwise. A partition of Spark is a node: number i is that of the i-th member.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.filter.normal.value_sets import Cut
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.interface import POSITION_BITS, Numbers, PlacementError, listed
from tidings.systems.protocols.effects import Id


@dataclass(frozen=True, eq=False)
class Ring:
    bits: int
    members: tuple[int, ...]  # their identifiers, ascending

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= POSITION_BITS:
            raise PlacementError(f"ring: identifiers have 1 to {POSITION_BITS} bits, not {self.bits}")
        if not self.members or list(self.members) != sorted(set(self.members)):
            raise PlacementError("ring: members are one or more different identifiers in ascending order")
        if self.members[0] < 0 or self.members[-1] >= self.size:
            raise PlacementError(f"ring: identifiers are from 0 to {self.size - 1}")

    @property
    def size(self) -> int:
        return 1 << self.bits

    @cached_property
    def _twice(self) -> Numbers:
        """The members, and once more a turn later: so no search has to wrap."""
        once = np.array(self.members, np.int64)
        return np.concatenate([once, once + self.size])

    def owners(self, positions: Numbers) -> Numbers:
        """The number of the successor of each position."""
        return np.searchsorted(self._twice, positions) % len(self.members)

    def walks(self, starts: Numbers, arcs: Numbers) -> tuple[Numbers, Numbers]:
        """Who owns a part of each arc: so many nodes, from the number of the first on, clockwise.

        A walk ends at the first node that is at least the arc away from its start: told by distance, since the
        owner of the arc's end is also that of its beginning where the arc is nearly the whole ring.
        """
        first = np.searchsorted(self._twice, starts)
        last = np.searchsorted(self._twice, starts + arcs)
        return first % len(self.members), np.minimum(last - first + 1, len(self.members))


class Arc(NamedTuple):
    """Positions from `start`, clockwise, over `length`: 0 is a point."""

    start: Id
    length: int


@dataclass(frozen=True, eq=False)
class RingView(ABC):
    """What Views with a list for each attribute, on the nodes of a ring, have in common; subscriptions are counted."""

    paths: tuple[Path, ...]
    ring: Ring

    @property
    def partitions(self) -> int:
        return len(self.ring.members)

    @property
    def channels(self) -> int:
        return len(self.paths) + 1

    @property
    def visits(self) -> int:
        return len(self.paths)

    @property
    def catch_all(self) -> int:
        return len(self.paths)

    @abstractmethod
    def arcs(self, filters: FilterTable) -> Iterator[tuple[int, int, Arc]]:
        """Returns where conjunctions lie on the ring: (box, channel, arc), but for those that no list has."""
        ...

    @abstractmethod
    def positions(self, events: EventBatch) -> list[Numbers]:
        """Returns where each event looks: a position for each attribute's list."""
        ...

    def start_of(self, channel: int) -> int | None:
        """Returns where the values of a list begin, if they lie on the ring in their order."""
        return None

    def values_up_to(self, channel: int, position: int) -> int | None:
        """Returns how many values of a list lie from its beginning to there, if they lie in their order."""
        return None

    def value_position(self, channel: int, number: int) -> int | None:
        """Returns where the value of this number in the order of a list lies; None if there are not as many."""
        return None

    def partial_ends(self, channel: int, intervals: Iterable[tuple[Cut, Cut]]) -> list[int]:
        """Returns where intervals end between two values of a hashed list: some of what lies there is in them."""
        return []

    def list_of(self, channel: int) -> Path | None:
        return self.paths[channel] if channel < len(self.paths) else None

    def described(self) -> str:
        return listed(self.paths)

    def to_dict(self) -> dict[str, Any]:
        return {
            "paths": [list(path) for path in self.paths],
            "bits": self.ring.bits,
            "members": list(self.ring.members),
        }


def paths_and_ring(form: dict[str, Any]) -> tuple[tuple[Path, ...], Ring]:
    """What `RingView.to_dict` has written."""
    return tuple(tuple(path) for path in form["paths"]), Ring(form["bits"], tuple(form["members"]))


def even_ring(nodes: int, bits: int = POSITION_BITS) -> Ring:
    """Nodes at equal distances: each owns an equal part."""
    return Ring(bits, tuple(((number + 1) << bits) // nodes - 1 for number in range(nodes)))
