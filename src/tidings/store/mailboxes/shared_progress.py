"""How far the stream has come that small domains share.

Each domain has its own file of mailboxes, which a micro-batch touches only if it has matches for it. So each batch is
noted here after all mailboxes have it: every event before `resume` is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidings.errors import TidingsError
from tidings.store import formats
from tidings.store.sqlite_file import SqliteFile

_TABLES = """
    CREATE TABLE batches (query TEXT PRIMARY KEY NOT NULL, batch INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE resume (position INTEGER NOT NULL) STRICT;
    INSERT INTO resume VALUES (0);
    CREATE TABLE work (
        domain TEXT PRIMARY KEY NOT NULL, events INTEGER NOT NULL, seconds REAL NOT NULL) STRICT, WITHOUT ROWID;
"""


class Work(NamedTuple):
    """What was done for a domain."""

    events: int = 0  # that were matched
    seconds: float = 0.0  # that it took

    def over(self, seconds: float) -> Pace:
        """Returns the pace of this work over some seconds."""
        return Pace(self.events / seconds, self.seconds / seconds)


class Pace(NamedTuple):
    """What a domain takes, each second."""

    events: float
    seconds: float  # of matching


class SharedProgressError(TidingsError):
    """A file of progress that cannot be used."""


class SharedProgress(SqliteFile):
    """The progress in a file. One query writes at a time; others may read."""

    kind, described = "progress", "file of a shared stream's progress"
    application, format, tables = 0x54445350, formats.SHARED_PROGRESS, _TABLES
    error = busy_error = SharedProgressError

    def note(self, query: str, batch: int, last: int | None, work: Mapping[str, Work]) -> None:
        """Note that a batch is in all mailboxes: its last position, and what was done for each domain."""
        with self._writing():
            before = self.last_batch(query)
            if before is not None and before >= batch:
                return  # the batch was run again
            self._ask(
                "INSERT INTO batches VALUES (?1, ?2) ON CONFLICT DO UPDATE SET batch = excluded.batch", query, batch
            )
            if last is not None:
                self._ask("UPDATE resume SET position = max(position, ?)", last + 1)
            for domain, done in work.items():
                sql = (
                    "INSERT INTO work VALUES (?1, ?2, ?3) "
                    "ON CONFLICT DO UPDATE SET events = events + ?2, seconds = seconds + ?3"
                )
                self._ask(sql, domain, done.events, done.seconds)

    def last_batch(self, query: str) -> int | None:
        """Returns the number of the last batch of a query that is in all mailboxes."""
        found = self._ask("SELECT batch FROM batches WHERE query = ?", query)
        return int(found[0][0]) if found else None

    @property
    def resume(self) -> int:
        """The position after the last event that is in all mailboxes."""
        return int(self._ask("SELECT position FROM resume")[0][0])

    def work(self) -> dict[str, Work]:
        """Returns what was done for each domain since the file was made."""
        return {domain: Work(*done) for domain, *done in self._ask("SELECT domain, events, seconds FROM work")}
