"""Rtree: libspatialindex, bulk loaded, every event looked up as a point in one vectorised call.

Its boxes are closed, so the upper bounds are the doubles just below those of the filters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rtree import index

from benchmarks.peers.prepared import Prepared


class Peer:
    name = "rtree"
    workloads = ("bluedove",)
    events_max = 10_000

    def build(self, subscriptions: Prepared) -> None:
        (boxes,) = subscriptions.classes
        self._names = subscriptions.numbers
        lows, highs = (
            {conjunct.names[0]: boxes.constants[conjunct.constants[0]] for conjunct in boxes.of_kind(kind)}
            for kind in ("at_least", "below")
        )
        self._index = index.Index(
            (
                boxes.subscriptions,
                np.stack([lows[name] for name in self._names], axis=1),
                np.nextafter(np.stack([highs[name] for name in self._names], axis=1), -np.inf),
            ),
            properties=index.Property(dimension=len(self._names), leaf_capacity=100, fill_factor=0.9),
        )

    def match(self, events: Any) -> tuple[Any, Any]:
        points = np.stack([events[name].to_numpy() for name in self._names], axis=1)
        subscriptions, counts = self._index.intersection_v(points, points)
        return np.repeat(np.arange(len(points)), counts.astype(np.int64)), subscriptions
