"""The settings of Sonnet's nodes."""

from __future__ import annotations

from typing import NamedTuple

from tidings.systems.protocols.ring import ChordSettings
from tidings.systems.sonnet.path_digest import Ordering
from tidings.systems.sonnet.paths import HOST_BITS, RING_BITS


class SonnetSettings(NamedTuple):
    chord: ChordSettings = ChordSettings(bits=RING_BITS, successors=4, fingers_ms=4_000)
    register_ms: int = 2_000
    share_ms: int = 2_000
    announce_ms: int = 4_000  # after which a group that hangs below is announced again, if it registers again
    expiry_ms: int = 12_000  # without an announcement or a registration, after which a row is dropped
    again_ms: int = 3_000  # after which a packet is sent again that is not confirmed
    wait_ms: int = 9_000  # … and how much longer, where a node has said that it confirms it later
    attempts: int = 16
    remembered_ms: int = 90_000  # for how long a packet is known again
    looks_around: int = 3  # registrations, after which another up-stream is tried
    better: float = 0.8  # of the present one's cost, at which another is taken
    ratio: float = 8.0  # θ: of those who are served to those who serve them, beyond which nodes degrade
    capacity: float = 200.0  # packets sent a second, beyond which a node is overloaded
    enters_anywhere: bool = True  # False: every packet enters at the first 0-node
    degrades: bool = True
    chooses: bool = True  # False: the first up-stream that is found is kept
    ordering: Ordering = "ranks"
    log: bool = True  # False: what a host has published is gone with it
    id_bits: int = HOST_BITS  # of a host
