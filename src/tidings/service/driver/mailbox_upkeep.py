"""Keeps mailboxes small: removes what subscribers have acknowledged, and the mailboxes of deleted subscriptions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tidings.service.driver.followed_filters import FollowedFilters
from tidings.store.catalogue import Catalogue
from tidings.store.mailboxes.deliveries import Deliveries
from tidings.store.mailboxes.notifications import Notifications

PRUNED_TOGETHER = 2_000  # rows, in one transaction: the query waits meanwhile
PRUNE_ALL_SECONDS = 300.0
FORGET_SECONDS = 10.0  # after a row has left the index: a micro-batch may still write to its mailbox


@dataclass(eq=False)
class MailboxUpkeep:
    """Looks after the mailboxes of one domain."""

    filters: FollowedFilters
    catalogue: Catalogue
    opened: Callable[[], AbstractContextManager[Notifications]]
    _deleted: list[tuple[float, list[int]]] = field(default_factory=list)  # rows of deleted subscriptions, since when

    def retire(self, reached: int) -> None:
        """Removes filters that end before a position; later the mailboxes of those whose subscription was deleted."""
        if left := self.filters.retire(reached):
            kept = self.catalogue.by_filter(left)
            self._deleted.append((time.monotonic(), [number for number in left if number not in kept]))
        if numbers := self._due():
            with self.opened() as mailboxes:
                mailboxes.forget(numbers)
            self.filters.forget(numbers)

    def _due(self) -> list[int]:
        numbers: list[int] = []
        while self._deleted and self._deleted[0][0] < time.monotonic() - FORGET_SECONDS:
            numbers += self._deleted.pop(0)[1]
        return numbers

    def prune(self, cursors: Mapping[int, int], log_start: int) -> None:
        """Removes what subscriptions have acknowledged, given as positions by their keys.

        What overflowed them is removed if it became dead letters, up to cursors by the negative numbers of filters, and
        if the log has removed it too: until then it might be matched again, and would not be known.
        """
        rows = self.filters.numbers_of(cursors)
        marks = [(number, cursors[key]) for key, numbers in rows.items() for number in numbers]
        taken = {number: min(cursors[-number], log_start - 1) for number in self.filters.known if -number in cursors}
        if not (marks or taken) or not self.filters.files.mailboxes.exists():
            return
        with self.opened() as mailboxes:
            for start in range(0, len(marks), PRUNED_TOGETHER):
                mailboxes.prune(dict(marks[start : start + PRUNED_TOGETHER]))
            if taken:
                mailboxes.forget_overflowed(taken)


@dataclass
class Cursors:
    """What subscribers have acknowledged since the last look."""

    path: Path  # the gateway's file
    _seen: int = 0  # the last change of a cursor that was pruned by
    _next: int = 0  # the last one that was returned
    _all: float = field(default_factory=time.monotonic)  # when all of them were looked at

    def changed(self) -> dict[int, int]:
        """Returns the positions up to which subscriptions, by their keys, have acknowledged; now and then of all."""
        if not self.path.exists():
            return {}
        with Deliveries(self.path, read_only=True) as deliveries:
            if time.monotonic() - self._all > PRUNE_ALL_SECONDS:  # what a failure may have left
                self._seen, self._all = 0, time.monotonic()
            self._next, cursors = deliveries.changed_cursors(self._seen)
        return cursors

    def pruned(self) -> None:
        """Notes that what `changed` returned was pruned; until then it returns the same again."""
        self._seen = self._next
