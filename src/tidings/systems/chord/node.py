"""Publish/subscribe on a Chord ring: the nodes of `tidings.systems.opchord`, with lists by hash."""

from __future__ import annotations

from tidings.systems.chord import placement
from tidings.systems.opchord.node import ring_overlay

OVERLAY = ring_overlay(placement.adapt)
