"""How far each subscriber has come: what was acknowledged, what is tried again, and what was given up.

    with Deliveries("data/deliveries.sqlite") as deliveries:
        deliveries.acknowledge(subscription.key, 4711)
        deliveries.failed(subscription.key, 4712, "503 Service Unavailable", next_try=…)

Only the gateway writes this file. A subscription is known by its key in the catalogue, which is never used again: one
that reuses the id of a deleted one starts from the beginning. Every write is on the disk when it returns, so nothing
that was acknowledged comes back, and a restart forgets no attempt.

    position   …  40    41    42    43    44  …
    cursor                ▲                           all up to 41 was acknowledged
    attempts                    ✗✗                    42 failed twice, and will be tried again
    dead            ✗                                 40 was given up, with a reason
    redriven   ↻                                      39 was dead, and is tried again on request
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidings.errors import TidingsError
from tidings.store.formats import DELIVERIES
from tidings.store.sqlite_file import BUSY_SECONDS, SqliteFile

_TABLES = """
    CREATE TABLE cursors (
        subscription INTEGER PRIMARY KEY, position INTEGER NOT NULL, change INTEGER NOT NULL) STRICT;
    CREATE UNIQUE INDEX cursors_by_change ON cursors (change);
    CREATE TABLE counter (change INTEGER NOT NULL) STRICT;
    INSERT INTO counter VALUES (0);
    CREATE TABLE attempts (
        subscription INTEGER NOT NULL, position INTEGER NOT NULL, attempts INTEGER NOT NULL, reason TEXT NOT NULL,
        first_try INTEGER NOT NULL, next_try INTEGER NOT NULL,
        PRIMARY KEY (subscription, position)) STRICT, WITHOUT ROWID;
    CREATE INDEX attempts_by_time ON attempts (next_try);
    CREATE TABLE dead (
        subscription INTEGER NOT NULL, position INTEGER NOT NULL, reason TEXT NOT NULL, attempts INTEGER NOT NULL,
        time INTEGER NOT NULL, PRIMARY KEY (subscription, position)) STRICT, WITHOUT ROWID;
    CREATE TABLE redriven (
        subscription INTEGER NOT NULL, position INTEGER NOT NULL,
        PRIMARY KEY (subscription, position)) STRICT, WITHOUT ROWID;
"""


class DeliveriesError(TidingsError):
    """A file of deliveries that cannot be used."""


class DeliveriesBusyError(DeliveriesError):
    """Another process keeps the file locked. Nothing was changed; try again."""


@dataclass(frozen=True)
class Attempt:
    """A notification that could not be delivered yet."""

    subscription: int
    position: int
    attempts: int
    reason: str  # of the last failure
    first_try: int  # microseconds since 1970
    next_try: int


@dataclass(frozen=True)
class DeadNotification:
    """A notification that was given up."""

    subscription: int
    position: int
    reason: str
    attempts: int
    time: int  # microseconds since 1970


class Deliveries(SqliteFile):
    """The deliveries in a file. One process writes; others may read."""

    kind, described = "deliveries", "file of deliveries"
    application, format, tables = 0x54444E44, DELIVERIES, _TABLES
    error, busy_error = DeliveriesError, DeliveriesBusyError

    def __init__(
        self, path: str | os.PathLike[str], *, read_only: bool = False, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        if read_only and not Path(path).exists():
            raise DeliveriesError(f"deliveries: {path} does not exist yet; the gateway makes it")
        super().__init__(path, read_only=read_only, busy_seconds=busy_seconds)

    def cursor(self, subscription: int) -> int:
        """Returns the last position that a subscriber has acknowledged, with all before it; -1 if there is none."""
        found = self._ask("SELECT position FROM cursors WHERE subscription = ?", subscription)
        return int(found[0][0]) if found else -1

    def acknowledge(self, subscription: int, position: int) -> int:
        """Note that a subscriber has all up to a position; returns the cursor, which never goes back."""
        return self.acknowledge_many({subscription: position})[subscription]

    def acknowledge_many(self, positions: Mapping[int, int]) -> dict[int, int]:
        """Note how far subscribers have come, in one transaction; returns their cursors."""
        with self._writing():
            for subscription, position in positions.items():
                self._acknowledge(subscription, position)
            return {subscription: self.cursor(subscription) for subscription in positions}

    def cursors(self) -> dict[int, int]:
        """Returns the cursor of every subscription."""
        return dict(self._ask("SELECT subscription, position FROM cursors"))

    def changed_cursors(self, after: int = 0) -> tuple[int, dict[int, int]]:
        """Returns the number to ask with next time, and the cursors that have changed after a number."""
        rows = self._ask("SELECT subscription, position, change FROM cursors WHERE change > ? ORDER BY change", after)
        return (rows[-1][2] if rows else after), {subscription: position for subscription, position, _ in rows}

    def failed(self, subscription: int, position: int, reason: str, next_try: int) -> int:
        """Note that a delivery has failed and when to try again, in microseconds; returns the number of failures."""
        with self._writing():
            sql = (
                "INSERT INTO attempts VALUES (?1, ?2, 1, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET "
                "attempts = attempts + 1, reason = excluded.reason, next_try = excluded.next_try RETURNING attempts"
            )
            rows = self._ask(sql, subscription, position, reason, _now(), next_try)
        return int(rows[0][0])

    def attempts(self, subscription: int) -> list[Attempt]:
        """Returns what of a subscription failed and will be tried again, by position."""
        rows = self._ask("SELECT * FROM attempts WHERE subscription = ? ORDER BY position", subscription)
        return [Attempt(*row) for row in rows]

    def due(self, now: int) -> list[int]:
        """Returns the subscriptions that have something to try again at this time or before."""
        rows = self._ask("SELECT DISTINCT subscription FROM attempts WHERE next_try <= ? ORDER BY subscription", now)
        return [subscription for (subscription,) in rows]

    def next_due(self, after: int) -> int | None:
        """Returns when something is tried again next, after a time."""
        found: int | None = self._ask("SELECT min(next_try) FROM attempts WHERE next_try > ?", after)[0][0]
        return found

    def try_now(self, subscription: int) -> None:
        """Try again at once what failed."""
        with self._writing():
            self._ask("UPDATE attempts SET next_try = 0 WHERE subscription = ?", subscription)

    def delivered(self, subscription: int, position: int) -> None:
        """Note that one notification was delivered, possibly out of order: it is neither tried again nor redriven."""
        with self._writing():
            self._settle(subscription, position)

    def dead(
        self, subscription: int, position: int, reason: str, attempts: int | None = None, *, acknowledge: bool = False
    ) -> None:
        """Give a notification up. With `acknowledge`, the cursor passes it, in the same transaction.

        `attempts` is by default the number of failures that were noted.
        """
        with self._writing():
            if attempts is None:
                known = self._ask(
                    "SELECT attempts FROM attempts WHERE subscription = ? AND position = ?", subscription, position
                )
                attempts = known[0][0] if known else 0
            self._settle(subscription, position)
            self._ask(
                "INSERT OR REPLACE INTO dead VALUES (?, ?, ?, ?, ?)", subscription, position, reason, attempts, _now()
            )
            if acknowledge:
                self._acknowledge(subscription, position)

    def dead_many(self, subscription: int, reasons: Mapping[int, str], *, cursors: Mapping[int, int]) -> None:
        """Give notifications up, by position with the reason, and have cursors be this far, in one transaction."""
        with self._writing():
            rows = [(subscription, position, reason, _now()) for position, reason in reasons.items()]
            self._connection.executemany("INSERT OR REPLACE INTO dead VALUES (?, ?, ?, 0, ?)", rows)
            for key, position in cursors.items():
                self._acknowledge(key, position)

    def dead_letters(self, subscription: int, after: int = -1, limit: int = 100) -> list[DeadNotification]:
        """Returns what was given up of a subscription after a position, by position."""
        sql = "SELECT * FROM dead WHERE subscription = ? AND position > ? ORDER BY position LIMIT ?"
        rows = self._ask(sql, subscription, after, limit)
        return [DeadNotification(*row) for row in rows]

    def dead_letter_counts(self) -> dict[int, int]:
        """Returns how many were given up, by subscription."""
        return dict(self._ask("SELECT subscription, count(*) FROM dead GROUP BY subscription"))

    def redrive(self, subscription: int, positions: Iterable[int] | None = None) -> list[int]:
        """Try again what was given up, all of it or at some positions; returns the positions."""
        with self._writing():
            dead = {row[0] for row in self._ask("SELECT position FROM dead WHERE subscription = ?", subscription)}
            again = sorted(dead if positions is None else dead.intersection(positions))
            rows = [(subscription, position) for position in again]
            self._connection.executemany("INSERT OR IGNORE INTO redriven VALUES (?, ?)", rows)
            self._connection.executemany("DELETE FROM dead WHERE subscription = ? AND position = ?", rows)
        return again

    def redriven(self, subscription: int, after: int = -1, limit: int = 100) -> list[int]:
        """Returns the positions to deliver once more, until they are delivered or dead again."""
        sql = "SELECT position FROM redriven WHERE subscription = ? AND position > ? ORDER BY position LIMIT ?"
        rows = self._ask(sql, subscription, after, limit)
        return [position for (position,) in rows]

    def with_redriven(self) -> list[int]:
        """Returns the subscriptions that have something to deliver once more."""
        return [key for (key,) in self._ask("SELECT DISTINCT subscription FROM redriven ORDER BY subscription")]

    def forget(self, subscription: int) -> None:
        """Remove all that is known of a subscription."""
        with self._writing():
            for table in ("cursors", "attempts", "dead", "redriven"):
                self._ask(f"DELETE FROM {table} WHERE subscription = ?", subscription)

    def _acknowledge(self, subscription: int, position: int) -> None:
        if position <= self.cursor(subscription):
            return
        # The number is not taken from the cursors: the one with the highest may be forgotten.
        ((change,),) = self._ask("UPDATE counter SET change = change + 1 RETURNING change")
        self._ask("INSERT OR REPLACE INTO cursors VALUES (?, ?, ?)", subscription, position, change)
        sql = (  # redriven ones are tried again, whatever was acknowledged since
            "DELETE FROM attempts WHERE subscription = ?1 AND position <= ?2 AND position NOT IN "
            "(SELECT position FROM redriven WHERE subscription = ?1)"
        )
        self._ask(sql, subscription, position)

    def _settle(self, subscription: int, position: int) -> None:
        for table in ("attempts", "redriven"):
            self._ask(f"DELETE FROM {table} WHERE subscription = ? AND position = ?", subscription, position)


def _now() -> int:
    return time.time_ns() // 1000
