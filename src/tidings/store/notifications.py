"""Who is told of what: the notifications that matching decided on, each exactly once.

    with Notifications("data/notifications.sqlite") as store:
        store.load(matches, query="…", batch=12, version=3, reached={LOG: 4711})
        store.positions_of("ada/commute")

A notification is (source, position, subscription), and is there once however often it is loaded. A load is
one transaction: its notifications, and how far the query that decided on them has come. So what is in the
file and what the query knows of it never differ by more than the batch that was under way.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import apsw
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import TidingsError

LOG = ""  # the source of positions in the log; other sources have names, such as Kafka's topic/partition
BATCHES_KEPT = 1_000  # of each query, to look at
BUSY_SECONDS = 30.0
_APPLICATION, _FORMAT = 0x54444E54, 1

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
"""


class NotificationsError(TidingsError):
    """A store of notifications that cannot be used, or a load that contradicts an earlier one."""


@dataclass(frozen=True)
class Batch:
    """One load of a query."""

    batch: int
    version: int  # of the subscriptions
    time: int  # microseconds since 1970
    notifications: int  # that were new


class Notifications:
    """The notifications in a file, made where there is none. Any number read it; one process loads."""

    def __init__(self, path: str | os.PathLike[str], *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = Path(path)
        with _translated(self.path, "open"):
            self._connection = apsw.Connection(str(self.path))
            self._connection.set_busy_timeout(round(busy_seconds * 1000))
            self._prepare()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(
        self, matches: Iterable[pa.Table], *, query: str, batch: int, version: int, reached: Mapping[str, int]
    ) -> int:
        """Add the notifications of one micro-batch, and say how far its query has come; answers how many were new.

        `matches` has the columns `position`, `subscriptions` (a list of ids) and where positions are
        not the log's `source`. A batch that was loaded before changes nothing, and has to be of the
        same version: else its events would have met other subscriptions than the first time.
        """
        with _translated(self.path, "write to"):
            try:
                self._ask("BEGIN IMMEDIATE")
                earlier = self._ask("SELECT version FROM batches WHERE query = ? AND batch = ?", query, batch)
                if earlier and earlier[0][0] != version:
                    raise NotificationsError(
                        f"notifications: batch {batch} was loaded with version {earlier[0][0]} of the subscriptions, "
                        f"and comes again with {version}: the checkpoint is of another time than {self.path}"
                    )
                before = self._connection.total_changes()
                for table in matches:
                    self._connection.executemany("INSERT OR IGNORE INTO notifications VALUES (?, ?, ?)", _rows(table))
                added = self._connection.total_changes() - before
                self._say(query, batch, version, added, reached)
                self._ask("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._ask("ROLLBACK")
        return added

    def _say(self, query: str, batch: int, version: int, added: int, reached: Mapping[str, int]) -> None:
        now = time.time_ns() // 1000
        self._ask("INSERT OR IGNORE INTO batches VALUES (?, ?, ?, ?, ?)", query, batch, version, now, added)
        self._ask("DELETE FROM batches WHERE query = ? AND batch <= ?", query, batch - BATCHES_KEPT)
        for source, position in reached.items():
            self._ask(
                "INSERT INTO reached VALUES (?1, ?2, ?3) "
                "ON CONFLICT DO UPDATE SET position = max(position, excluded.position)",
                query, source, position,
            )  # fmt: skip

    def batches(self, query: str) -> list[Batch]:
        """The last loads of a query, the oldest first."""
        rows = self._ask(
            "SELECT batch, version, time, notifications FROM batches WHERE query = ? ORDER BY batch", query
        )
        return [Batch(*row) for row in rows]

    def last_batch(self, query: str) -> int | None:
        """The number of a query's last load."""
        found: int | None = self._ask("SELECT max(batch) FROM batches WHERE query = ?", query)[0][0]
        return found

    def queries(self) -> list[str]:
        """The queries that have loaded anything."""
        return [query for (query,) in self._ask("SELECT DISTINCT query FROM batches")]

    def reached(self, query: str) -> dict[str, int]:
        """Of each source the position up to which a query has come: it and all before are done."""
        return dict(self._ask("SELECT source, position FROM reached WHERE query = ?", query))

    def positions_of(
        self, subscription: str | int, *, after: int = -1, source: str = LOG, limit: int = -1
    ) -> list[int]:
        """Positions of the events that a subscription is to be told of, in their order."""
        sql = (
            "SELECT position FROM notifications WHERE subscription = ? AND source = ? AND position > ? "
            "ORDER BY position LIMIT ?"
        )
        return [position for (position,) in self._ask(sql, subscription, source, after, limit)]

    def pairs(self) -> Iterator[tuple[int, str | int]]:
        """Every notification as (position, subscription), for whoever wants to compare."""
        rows: Iterator[Any] = self._connection.execute("SELECT position, subscription FROM notifications")
        yield from rows

    def __len__(self) -> int:
        return int(self._ask("SELECT count(*) FROM notifications")[0][0])

    def _prepare(self) -> None:
        # FULL: what was loaded is on the disk before the query forgets about it.
        self._ask("PRAGMA synchronous = FULL")
        if not self._ask("PRAGMA application_id")[0][0] and not self._ask("SELECT 1 FROM sqlite_schema LIMIT 1"):
            self._ask("PRAGMA journal_mode = WAL")
            self._ask("BEGIN IMMEDIATE")
            if not self._ask("SELECT 1 FROM sqlite_schema LIMIT 1"):  # nobody was faster
                self._ask(_TABLES)
                self._ask(f"PRAGMA application_id = {_APPLICATION}")
                self._ask(f"PRAGMA user_version = {_FORMAT}")
            self._ask("COMMIT")
        (application,), (format_,) = self._ask("PRAGMA application_id")[0], self._ask("PRAGMA user_version")[0]
        if application != _APPLICATION:
            raise NotificationsError(f"notifications: {self.path} is a database of something else")
        if format_ != _FORMAT:
            raise NotificationsError(
                f"notifications: {self.path} has format {format_}, and this is Tidings with format {_FORMAT}"
            )

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        return list(self._connection.execute(sql, values))


def _rows(matches: pa.Table) -> Iterator[tuple[Any, str, int]]:
    """(subscription, source, position) of every match, in the order that the table keeps."""
    lists: Any = matches["subscriptions"].combine_chunks()
    parents: Any = pc.list_parent_indices(lists)
    ids: list[Any] = pc.list_flatten(lists).to_pylist()
    known = "source" in matches.column_names
    sources: Any = matches["source"].take(parents).to_pylist() if known else [LOG] * len(ids)
    positions: Any = matches["position"].take(parents).to_pylist()
    return zip(ids, sources, positions, strict=True)


@contextlib.contextmanager
def _translated(path: Path, doing: str) -> Iterator[None]:
    """SQLite's errors in our words."""
    try:
        yield
    except apsw.CantOpenError as error:
        raise NotificationsError(f"notifications: cannot open {path}: {error}; give a file that can be made") from error
    except apsw.FullError as error:
        raise NotificationsError(f"notifications: cannot {doing} {path}: the disk is full; make room") from error
    except (apsw.BusyError, apsw.LockedError) as error:
        raise NotificationsError(f"notifications: cannot {doing} {path}: another process keeps it locked") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise NotificationsError(
            f"notifications: {path} is damaged ({error}), or no store of notifications; restore a copy of it"
        ) from error
    except apsw.Error as error:
        raise NotificationsError(f"notifications: cannot {doing} {path}: {error}") from error
