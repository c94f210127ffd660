"""The notifications that matching decided on, each exactly once: which subscription gets which event.

    with Notifications("data/notifications.sqlite") as store:
        store.load(matches, query="…", batch=12, version=3, reached={LOG: 4711})
        store.positions_of("ada/commute")

A notification is (source, position, subscription), and is there once however often it is loaded. A load is one
transaction: its notifications, and how far its query has come. So the file and the query never differ by more than the
batch that was under way.

Similar subscriptions can form groups, for which a load writes pages: see `mailbox_grouping`.

A file may have bounded mailboxes, one for each subscription: a notification that finds its mailbox full is noted as
overflowed, and can still be read. What a subscriber has acknowledged is pruned, and does not come back when its batch
is loaded again. A load notes whose mailboxes it filled, so that delivery can look there.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidings.errors import TidingsError
from tidings.store.formats import MAILBOXES
from tidings.store.mailboxes.mailbox_grouping import LOG as LOG
from tidings.store.mailboxes.mailbox_grouping import TABLES, Groups
from tidings.store.mailboxes.mailbox_loading import MailboxRows, PageFilling, UnboundedRows, matches_of
from tidings.store.sqlite_file import BUSY_SECONDS, SqliteFile

BATCHES_KEPT = 1_000  # of each query, to look at
MAX_WAITING = 100_000  # notifications in one mailbox of a service
REPLAY = "replay-"  # what the names of queries over history begin with
SHARED = "shared-"  # and those of the stream that many stores share, which knows itself how far it has come
_LAST = (1 << 63) - 1

_TABLES = """
    CREATE TABLE notifications (
        subscription ANY NOT NULL, source TEXT NOT NULL, position INTEGER NOT NULL,
        PRIMARY KEY (subscription, source, position)) STRICT, WITHOUT ROWID;
    CREATE TABLE batches (
        query TEXT NOT NULL, batch INTEGER NOT NULL, version INTEGER NOT NULL, time INTEGER NOT NULL,
        notifications INTEGER NOT NULL, PRIMARY KEY (query, batch)) STRICT, WITHOUT ROWID;
    CREATE TABLE reached (
        query TEXT NOT NULL, source TEXT NOT NULL, position INTEGER NOT NULL,
        PRIMARY KEY (query, source)) STRICT, WITHOUT ROWID;
    CREATE TABLE mailboxes (
        subscription ANY PRIMARY KEY NOT NULL, waiting INTEGER NOT NULL, overflowed INTEGER NOT NULL,
        pruned INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE overflowed (
        subscription ANY NOT NULL, source TEXT NOT NULL, position INTEGER NOT NULL, time INTEGER NOT NULL,
        PRIMARY KEY (subscription, source, position)) STRICT, WITHOUT ROWID;
    CREATE TABLE loads (number INTEGER PRIMARY KEY AUTOINCREMENT, subscriptions BLOB) STRICT;
    CREATE TABLE bound (max_waiting INTEGER) STRICT;
    INSERT INTO bound VALUES (NULL);
"""


class NotificationsError(TidingsError):
    """A file of notifications that cannot be used, or a load that contradicts an earlier one."""


@dataclass(frozen=True)
class Batch:
    """One load of a query."""

    batch: int
    version: int  # of the subscriptions
    time: int  # microseconds since 1970
    notifications: int  # that were new


@dataclass(frozen=True)
class Overflowed:
    """A notification that found its mailbox full."""

    position: int
    time: int  # microseconds since 1970


class Notifications(SqliteFile):
    """The notifications in a file. Any number read it; one process loads at a time.

    With `max_waiting`, the file has mailboxes with room for this many from now on, for all loads; without it, the file
    stays as it is, and a new one keeps all that is loaded.
    """

    kind, described = "notifications", "file of notifications"
    application, format, tables = 0x54444E54, MAILBOXES, _TABLES + TABLES
    error = busy_error = NotificationsError

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_waiting: int | None = None,
        read_only: bool = False,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        super().__init__(path, read_only=read_only, busy_seconds=busy_seconds)
        self._groups = Groups(self._connection)
        try:
            if max_waiting is not None and self.max_waiting != max_waiting:
                self._bound(max_waiting)
        except BaseException:
            self.close()
            raise

    @property
    def max_waiting(self) -> int | None:
        """How many notifications a mailbox has room for; None: there are no mailboxes."""
        bound: int | None = self._ask("SELECT max_waiting FROM bound")[0][0]
        return bound

    def load(
        self, matches: Iterable[pa.Table], *, query: str, batch: int, version: int, reached: Mapping[str, int]
    ) -> int:
        """Add the notifications of one micro-batch, and note how far its query has come; returns how many were new.

        `matches` has the columns `position`, `subscriptions` (a list of ids) and, if positions are not the log's,
        `source`. A batch that was loaded before changes nothing, and has to be of the same version: otherwise its
        events would have met other subscriptions than the first time.
        """
        with self._writing():
            earlier = self._ask("SELECT version FROM batches WHERE query = ? AND batch = ?", query, batch)
            if earlier and earlier[0][0] != version:
                raise NotificationsError(
                    f"notifications: batch {batch} was loaded with version {earlier[0][0]} of the subscriptions, "
                    f"and comes again with {version}: the checkpoint is of another time than {self.path}"
                )
            bound = self.max_waiting
            connection, groups = self._connection, self._groups
            rows = UnboundedRows(connection) if bound is None else MailboxRows(connection, bound, groups)
            pages = PageFilling(groups, connection, bound)
            for table in matches:
                rows.add(pages.rows_of(matches_of(table)))
            rows.write_down()
            rows.add(pages.finish())
            added = rows.finish(pages.told) + pages.added
            self._note(query, batch, version, added, reached)
        return added

    def _note(self, query: str, batch: int, version: int, added: int, reached: Mapping[str, int]) -> None:
        now = time.time_ns() // 1000
        self._ask("INSERT OR IGNORE INTO batches VALUES (?, ?, ?, ?, ?)", query, batch, version, now, added)
        self._ask("DELETE FROM batches WHERE query = ? AND batch <= ?", query, batch - BATCHES_KEPT)
        for source, position in reached.items():
            sql = (
                "INSERT INTO reached VALUES (?1, ?2, ?3) "
                "ON CONFLICT DO UPDATE SET position = max(position, excluded.position)"
            )
            self._ask(sql, query, source, position)

    def batches(self, query: str) -> list[Batch]:
        """Returns the last loads of a query, the oldest first."""
        rows = self._ask(
            "SELECT batch, version, time, notifications FROM batches WHERE query = ? ORDER BY batch", query
        )
        return [Batch(*row) for row in rows]

    def last_batch(self, query: str) -> int | None:
        """Returns the number of a query's last load; None if it has none."""
        found: int | None = self._ask("SELECT max(batch) FROM batches WHERE query = ?", query)[0][0]
        return found

    def queries(self) -> list[str]:
        """Returns the queries of this store alone that have loaded anything, without replays of the past."""
        rows = self._ask("SELECT DISTINCT query FROM batches")
        return [query for (query,) in rows if not query.startswith((REPLAY, SHARED))]

    def reached(self, query: str) -> dict[str, int]:
        """Returns, by source, the last position that a query has matched, with all before it."""
        return dict(self._ask("SELECT source, position FROM reached WHERE query = ?", query))

    def resume(self) -> int:
        """Returns the position of the log after the last one that any query of this store alone has matched."""
        return 1 + max((self.reached(query).get(LOG, -1) for query in self.queries()), default=-1)

    def group(self, groups: Iterable[Sequence[str | int]]) -> int:
        """Put these subscriptions into groups from now on, each in one, and others in none; returns how many there are.

        Members of a group should be similar, so that an event for one is for many: a few hundred, 65,536 at most.
        """
        with self._writing():
            return self._groups.make(groups)

    @property
    def groups(self) -> int:
        """How many groups are written to."""
        with self._reading():
            return self._groups.count

    def groups_of(self, subscriptions: Any) -> Any:
        """Returns the number of the group that each of an array of subscriptions is written to; −1 for none."""
        with self._reading():
            return self._groups.known.find(subscriptions)[0]

    def positions_of(
        self, subscription: str | int, *, after: int = -1, before: int = _LAST, source: str = LOG, limit: int = -1
    ) -> list[int]:
        """Returns the positions of the events that wait for a subscription, in order."""
        sql = (
            "SELECT position FROM notifications WHERE subscription = ? AND source = ? AND position > ? "
            "AND position < ? ORDER BY position LIMIT ?"
        )
        with self._reading():
            rows = [position for (position,) in self._ask(sql, subscription, source, after, before, limit)]
            paged = self._groups.positions_of(subscription, source, after, before, limit)
        if not paged:
            return rows
        return sorted([*rows, *paged])[: None if limit < 0 else limit]

    def waiting(self, subscription: str | int) -> int:
        """Returns how many notifications a mailbox holds."""
        with self._reading():
            if self.max_waiting is None:
                return 0
            found = self._ask("SELECT waiting FROM mailboxes WHERE subscription = ?", subscription)
            return (int(found[0][0]) if found else 0) + self._groups.waiting(subscription)

    def overflowed(
        self, subscription: str | int, *, after: int = -1, before: int = _LAST, limit: int = -1
    ) -> list[Overflowed]:
        """Returns the events of the log that found a mailbox full, in order."""
        sql = (
            "SELECT position, time FROM overflowed WHERE subscription = ? AND source = ? AND position > ? "
            "AND position < ? ORDER BY position LIMIT ?"
        )
        rows = self._ask(sql, subscription, LOG, after, before, limit)
        return [Overflowed(*row) for row in rows]

    def woken(self, after: int) -> tuple[int, list[int]]:
        """Returns the last load's number, and the subscriptions with a number that got something since a load.

        If these are too many, or the load is long past or of another file: all that have something waiting.
        """
        with self._reading():
            found = self._ask("SELECT min(number), max(number) FROM loads")
            first, last = found[0]
            if last is None:
                return 0, []
            if after == last:
                return last, []
            if first - 1 <= after < last:
                blobs = self._ask("SELECT subscriptions FROM loads WHERE number > ?", after)
                if all(blob is not None for (blob,) in blobs):
                    return last, sorted({number for (blob,) in blobs for number in array("q", blob)})
            rows = self._ask(
                "SELECT subscription FROM mailboxes WHERE waiting > 0 AND typeof(subscription) = 'integer' ORDER BY 1"
            )
            return last, sorted({number for (number,) in rows} | self._groups.told())

    def prune(self, acknowledged: Mapping[int, int]) -> int:
        """Remove what subscriptions have acknowledged, each up to a position of the log; returns how many."""
        removed = 0
        with self._writing():
            if self.max_waiting is None:
                raise NotificationsError(
                    f"notifications: {self.path} has no mailboxes to prune; open it with max_waiting"
                )
            marks = {}
            for subscription, position in acknowledged.items():
                found = self._ask("SELECT waiting, pruned FROM mailboxes WHERE subscription = ?", subscription)
                if found and found[0][1] >= position:
                    continue
                sql = "DELETE FROM notifications WHERE subscription = ? AND source = ? AND position <= ?"
                self._ask(sql, subscription, LOG, position)
                gone = self._connection.changes()
                removed += gone
                marks[subscription] = (found[0][1] if found else -1), position
                sql = (
                    "INSERT INTO mailboxes VALUES (?1, 0, 0, ?2) "
                    "ON CONFLICT DO UPDATE SET waiting = waiting - ?3, pruned = ?2"
                )
                self._ask(sql, subscription, position, gone)
            return removed + self._groups.prune(marks)

    def forget(self, subscriptions: Iterable[int]) -> None:
        """Remove the mailboxes of deleted subscriptions, and what overflowed them."""
        with self._writing():
            gone = list(subscriptions)
            for subscription in gone:
                for table in ("notifications", "overflowed", "mailboxes"):
                    self._ask(f"DELETE FROM {table} WHERE subscription = ?", subscription)
            self._groups.forget(gone)

    def forget_overflowed(self, taken: Mapping[int, int]) -> int:
        """Remove what overflowed the mailboxes of subscriptions, each up to a position of the log; returns how many."""
        removed = 0
        with self._writing():
            for subscription, position in taken.items():
                sql = "DELETE FROM overflowed WHERE subscription = ? AND source = ? AND position <= ?"
                self._ask(sql, subscription, LOG, position)
                removed += self._connection.changes()
        return removed

    def pairs(self) -> Iterator[tuple[int, str | int]]:
        """Yields every notification as (position, subscription)."""
        rows: Iterator[Any] = self._connection.execute("SELECT position, subscription FROM notifications")
        yield from rows
        yield from self._groups.pairs()

    def __len__(self) -> int:
        return int(self._ask("SELECT count(*) FROM notifications")[0][0]) + sum(1 for _ in self._groups.pairs())

    def _bound(self, max_waiting: int) -> None:
        with self._writing():
            if self.max_waiting is None and len(self):
                self._ask("INSERT INTO mailboxes SELECT subscription, count(*), 0, -1 FROM notifications GROUP BY 1")
                self._groups.bound()
                self._ask("INSERT INTO loads (subscriptions) VALUES (NULL)")  # wakes them all
            self._ask("UPDATE bound SET max_waiting = ?", max_waiting)
