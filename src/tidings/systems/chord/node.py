"""Publish/subscribe on a Chord ring: the nodes of `tidings.systems.opchord`, with lists by hash."""

from __future__ import annotations

from tidings.systems.chord import placement
from tidings.systems.geometry.node_ring import Ring, RingView
from tidings.systems.opchord.list_holder import OPChordSettings
from tidings.systems.opchord.node import ring_overlay
from tidings.systems.statistics import Statistics


def _adapt(statistics: Statistics, ring: Ring, settings: OPChordSettings) -> RingView:
    return placement.adapt(statistics, partitions=1, ring=ring, values_max=settings.values_max)


OVERLAY = ring_overlay(_adapt)
