"""When to try again: exponential back-off with jitter, never sooner than the service asks."""

from __future__ import annotations

from dataclasses import dataclass

BUSY = frozenset({429, 503})  # the service did nothing yet, and says so


@dataclass(frozen=True)
class Retries:
    """How long one request is tried again before its error is the caller's."""

    for_seconds: float = 60.0  # since the first attempt; 0 tries once
    first_seconds: float = 0.1
    longest_seconds: float = 10.0

    def pause(self, attempt: int, *, elapsed: float, asked: float | None, chance: float) -> float | None:
        """Seconds to wait after this attempt (from 1), or None to give up; `chance` is a draw from [0, 1).

        >>> Retries().pause(3, elapsed=1.0, asked=None, chance=0.5)
        0.30000000000000004
        >>> Retries().pause(1, elapsed=1.0, asked=5.0, chance=0.0)
        5.0
        >>> Retries(for_seconds=0).pause(1, elapsed=0.0, asked=None, chance=0.0)
        """
        if self.for_seconds <= 0:
            return None
        widest = min(self.longest_seconds, self.first_seconds * 2.0 ** min(attempt - 1, 60))
        drawn = widest * (0.5 + chance / 2)  # half of it certain, so that a restart is not hammered
        pause = drawn if asked is None else asked + drawn - widest / 2
        return pause if elapsed + pause <= self.for_seconds else None
