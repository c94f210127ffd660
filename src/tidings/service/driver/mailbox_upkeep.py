"""What a driver does to mailboxes beside filling them: it prunes what was acknowledged and forgets what is gone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidings.service.driver.followed_filters import FollowedFilters
from tidings.store.catalogue import Catalogue
from tidings.store.mailboxes.deliveries import Deliveries
from tidings.store.mailboxes.notifications import Notifications

PRUNED_TOGETHER = 2_000  # rows, in one transaction
PRUNE_ALL_SECONDS = 300.0
FORGET_SECONDS = 10.0  # after a row has left the index: a micro-batch may still be at it


@dataclass
class Departed:
    """Rows of subscriptions that were deleted, and since when; their mailboxes go when no batch can be at them."""

    _gone: list[tuple[float, list[int]]] = field(default_factory=list)

    def note(self, left: list[int], catalogue: Catalogue) -> None:
        """Of rows that have left the index, those whose subscription is no more."""
        if left:
            kept = catalogue.by_filter(left)
            self._gone.append((time.monotonic(), [number for number in left if number not in kept]))

    def due(self) -> list[int]:
        """Rows whose mailboxes can go now, each returned once."""
        numbers: list[int] = []
        while self._gone and self._gone[0][0] < time.monotonic() - FORGET_SECONDS:
            numbers += self._gone.pop(0)[1]
        return numbers


@dataclass
class Cursors:
    """What subscribers have acknowledged since the last look."""

    path: Path  # the gateway's file
    _seen: int = 0  # the last change of a cursor that was pruned by
    _next: int = 0  # the last one that was returned
    _all: float = field(default_factory=time.monotonic)  # when all of them were looked at

    def changed(self) -> dict[int, int]:
        """The positions up to which subscriptions, by their keys, have acknowledged; of all, now and then."""
        if not self.path.exists():
            return {}
        with Deliveries(self.path, read_only=True) as deliveries:
            if time.monotonic() - self._all > PRUNE_ALL_SECONDS:  # what a failure may have left
                self._seen, self._all = 0, time.monotonic()
            self._next, cursors = deliveries.changed_cursors(self._seen)
        return cursors

    def pruned(self) -> None:
        """What `changed` returned was pruned; until this is called, it returns it again."""
        self._seen = self._next


def marks_of(index: FollowedFilters, cursors: Mapping[int, int]) -> list[tuple[int, int]]:
    """The rows of these subscriptions, each with the position up to which it was acknowledged."""
    rows = index.numbers_of(cursors)
    return [(number, cursors[key]) for key, numbers in rows.items() for number in numbers]


def prune(mailboxes: Notifications, marks: list[tuple[int, int]]) -> None:
    """Remove what was acknowledged, a part of it at a time: the query waits meanwhile."""
    for start in range(0, len(marks), PRUNED_TOGETHER):
        mailboxes.prune(dict(marks[start : start + PRUNED_TOGETHER]))
