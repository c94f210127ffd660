"""What a node's process drops, counted by reason; each reason is logged, but not for every single one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

LOG_EVERY_S = 10.0
MAX_SHOWN = 200  # characters of what a peer sent, in a line of the log

log = logging.getLogger("tidings.node")


class Drops:
    """Counts, and logs the first of a reason and then at most one in LOG_EVERY_S, with how many there were."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}  # when, and what the count was

    def note(self, reason: str, detail: str) -> None:
        self.counts[reason] += 1
        now, count = self._clock(), self.counts[reason]
        at, before = self._logged.get(reason, (now - LOG_EVERY_S, 0))
        if now - at < LOG_EVERY_S:
            return
        self._logged[reason] = (now, count)
        shown = detail.encode("unicode_escape").decode()[:MAX_SHOWN]
        more = f" ({count - before:,} times)" if count - before > 1 else ""
        log.warning("%s: %s%s", reason, shown, more)
