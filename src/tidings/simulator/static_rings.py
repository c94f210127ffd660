"""Exact hop counts on rings too large to simulate: a million nodes at rest, and lookups over arrays.

Every node is where it should be and knows what it should: fingers and a successor list. A lookup then takes
the hops that the nodes of `tidings.systems.protocols.ring` would take, message for message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StaticRing:
    ids: Numbers  # ascending
    bits: int
    successors: int = 4

    @staticmethod
    def of(nodes: int, *, bits: int = 40, successors: int = 4, seed: int = 0) -> StaticRing:
        """Nodes anywhere on a ring."""
        random = np.random.default_rng(seed)
        ids = np.unique(random.integers(0, 1 << bits, nodes + nodes // 8 + 8))
        return StaticRing(np.sort(random.permutation(ids)[:nodes]), bits, successors)

    @property
    def size(self) -> int:
        return 1 << self.bits

    def owner(self, keys: Numbers) -> Numbers:
        """The number of each key's successor."""
        return np.searchsorted(self.ids, keys % self.size) % len(self.ids)

    def hops(self, starts: Numbers, keys: Numbers) -> Numbers:
        """How many messages a lookup of each key takes that begins at the node of this number."""
        count = len(self.ids)
        at = starts.copy()
        hops = np.zeros(len(at), np.int64)
        left = np.arange(len(at))
        while len(left):
            here = at[left]
            distance = (keys[left] - self.ids[here]) % self.size
            distance = np.where(distance == 0, self.size, distance)  # one's own id: once around
            hops[left] += 1
            going = distance > (self.ids[(here + 1) % count] - self.ids[here]) % self.size
            left, here, distance = left[going], here[going], distance[going]
            at[left] = self._nearest(here, distance)
        return hops

    def _nearest(self, here: Numbers, distance: Numbers) -> Numbers:
        """The node that is known here and most closely precedes what lies at this distance: the closest finger."""
        count = len(self.ids)
        best = (here + 1) % count
        reached = (self.ids[best] - self.ids[here]) % self.size
        for ahead in range(2, min(self.successors, count - 1) + 1):
            best, reached = self._nearer(here, distance, best, reached, (here + ahead) % count)
        exponent = np.frexp((distance - 1).astype(np.float64))[1].astype(np.int64) - 1
        open_ = np.arange(len(here))
        while len(open_):
            finger = self.owner(self.ids[here[open_]] + (np.int64(1) << exponent[open_]))
            away = (self.ids[finger] - self.ids[here[open_]]) % self.size
            found = (away < distance[open_]) & (away > 0)
            taken = open_[found]
            closer = away[found] > reached[taken]
            best[taken[closer]] = finger[found][closer]
            exponent[open_] -= 1
            open_ = open_[~found]
            open_ = open_[exponent[open_] >= 0]
        return best

    def _nearer(
        self, here: Numbers, distance: Numbers, best: Numbers, reached: Numbers, other: Numbers
    ) -> tuple[Numbers, Numbers]:
        away = (self.ids[other] - self.ids[here]) % self.size
        better = (away < distance) & (away > reached)
        return np.where(better, other, best), np.where(better, away, reached)
