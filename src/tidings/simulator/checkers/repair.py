"""Flaws that are allowed while they are being repaired, and not for longer.

Nodes that repair themselves are wrong for a while after others came, went or crashed: a law that says "never" of such
a flaw would be broken by every crash, and one that looks only at the end would not see a repair that takes too long,
or that works only because of another one. So each flaw has a clock of its own, from when it is first seen until
it is gone, and a limit that the protocol's own periods give.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tidings.simulator.world import Violation, World

NEVER = 1 << 60


class Repair:
    """The flaws that there are, each with the time since when, and the limit that breaks the law."""

    def __init__(self, law: str, within_ms: int) -> None:
        self._law = law
        self._within_ms = within_ms
        self._since: dict[Hashable, int] = {}
        self._what: Mapping[Hashable, str] = {}
        self._oldest_ms = NEVER

    def found(self, world: World, flaws: Mapping[Hashable, str]) -> None:
        """These are all flaws now."""
        since = self._since
        self._since = {flaw: since.get(flaw, world.now_ms) for flaw in flaws}
        self._what = flaws
        self._oldest_ms = min(self._since.values(), default=NEVER)
        self.unchanged(world)

    def unchanged(self, world: World) -> None:
        """Nothing has happened that could mend a flaw or make another."""
        self.judge(world, self._within_ms)

    def judge(self, world: World, within_ms: int) -> None:
        """Raise `Violation` for a flaw that is older than this."""
        if world.now_ms - self._oldest_ms <= within_ms:
            return
        oldest = min(self._since, key=lambda flaw: self._since[flaw])
        raise Violation(self._law, f"{self._what[oldest]}, since {self._oldest_ms} ms", world.now_ms)
