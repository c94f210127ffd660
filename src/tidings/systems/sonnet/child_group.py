"""What a virtual node of Sonnet keeps of a group that hangs below its own."""

from __future__ import annotations

from tidings.systems.protocols.effects import Id
from tidings.systems.sonnet.path_digest import Digest

NEVER_MS = -(1 << 40)


class Down:
    """A group that hangs below: a row, and who of it is known here."""

    __slots__ = ("announced_ms", "digest", "members", "seen_ms", "size", "spread", "told")

    def __init__(self, digest: Digest, seen_ms: int) -> None:
        self.digest = digest
        self.seen_ms = seen_ms
        self.members: dict[Id, int] = {}  # since when; those that registered here are newer than others
        self.spread = False  # whether the whole group knows of it, as far as is known here
        self.announced_ms = NEVER_MS
        self.told = False  # whether the last announcement from here has reached the whole group
        self.size = 1.0
