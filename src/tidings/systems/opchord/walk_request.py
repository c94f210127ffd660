"""A walk that a node asked for, and how far it has come."""

from __future__ import annotations

from tidings.systems.geometry.node_ring import Arc
from tidings.systems.opchord.messages import Store, Stored

MAX_PARTS = 1_024  # that are reported out of order


class WalkRequest:
    """A walk that was asked for, and which parts of its arc have been reported."""

    __slots__ = ("covered", "hops", "reports", "store", "subscription")

    def __init__(self, subscription: str, store: Store) -> None:
        self.subscription = subscription
        self.store = store
        self.covered: list[tuple[int, int]] = []  # from where to where, from the arc's start; ascending, and apart
        self.reports = 0
        self.hops = 0

    def report(self, message: Stored, mask: int) -> bool:
        """Takes a report, and returns whether all is stored."""
        low = (message.arc.start - self.store.arc.start) & mask
        high = low + message.arc.length
        if low <= self.store.arc.length and len(self.covered) < MAX_PARTS:
            apart = [part for part in self.covered if part[1] < low or part[0] > high]
            touching = [part for part in self.covered if part not in apart]
            low, high = min([low, *(part[0] for part in touching)]), max([high, *(part[1] for part in touching)])
            self.covered = sorted([*apart, (low, high)])
            self.reports += 1
            self.hops += message.hops
        return not self.gaps(mask)

    def gaps(self, mask: int) -> list[Arc]:
        """Returns the parts that nobody has reported; a gap begins and ends where something is reported."""
        start, length = self.store.arc
        if not self.covered:
            return [self.store.arc]
        ends = [0, *(end for part in self.covered for end in part), length]
        pairs = zip(ends[::2], ends[1::2], strict=True)
        return [Arc((start + low) & mask, high - low) for low, high in pairs if low < high]
