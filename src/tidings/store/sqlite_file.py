"""What all our SQLite files share: kind and format checked, durable writes, clear errors."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import apsw

from tidings.errors import TidingsError
from tidings.store.formats import check_header, other_format
from tidings.store.log.log_files import sync_directory

BUSY_SECONDS = 30.0


class SqliteFile:
    """A file, made if there is none. Any thread may use it; a write is on the disk when it returns."""

    kind: ClassVar[str]  # errors begin with it
    described: ClassVar[str]  # as in: not a …
    application: ClassVar[int]
    format: ClassVar[int]
    tables: ClassVar[str]  # the SQL that makes them
    error: ClassVar[type[TidingsError]]
    busy_error: ClassVar[type[TidingsError]]

    def __init__(
        self, path: str | os.PathLike[str], *, read_only: bool = False, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        self.path = Path(path)
        check_header(self.kind, self.path, self.application, self.format)
        self._lock = threading.RLock()
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        with self._translated("open"):
            self._connection = apsw.Connection(str(self.path), flags=flags)
            try:
                self._connection.set_busy_timeout(round(busy_seconds * 1000))
                if not read_only:
                    self._make()
                self._check()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ for subclasses

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        """Run SQL to its end: apsw would stop at the first row that is not read."""
        with self._lock:
            if self._connection.in_transaction:  # which translates errors itself
                return list(self._connection.execute(sql, values))
            with self._translated("read"):
                return list(self._connection.execute(sql, values))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """A transaction that reads one state of the file."""
        with self._lock, self._translated("read"):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("COMMIT")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that writes; undone if the block raises."""
        with self._lock, self._translated("write to"):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    # ------------------------------------------------------------------ opening

    def _make(self) -> None:
        self._ask("PRAGMA synchronous = FULL")
        if not self._ask("PRAGMA application_id")[0][0] and not self._ask("SELECT 1 FROM sqlite_schema LIMIT 1"):
            self._ask("PRAGMA journal_mode = WAL")
            with self._writing():
                if not self._ask("SELECT 1 FROM sqlite_schema LIMIT 1"):  # no other process has made them
                    self._ask(self.tables)
                    self._ask(f"PRAGMA application_id = {self.application}")
                    self._ask(f"PRAGMA user_version = {self.format}")
        # Make the name of a new file durable, and the removal of its first journal: a power cut could bring that back,
        # and undo what was written. The process that made the file may have been killed before this.
        sync_directory(self.path.absolute().parent)

    def _check(self) -> None:
        if self._ask("PRAGMA application_id")[0][0] != self.application:
            raise self.error(f"{self.kind}: {self.path} is a database of something else")
        format_ = self._ask("PRAGMA user_version")[0][0]
        if format_ != self.format:
            raise other_format(self.kind, self.path, format_, self.format)

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except apsw.CantOpenError as error:
            raise self.error(f"{self.kind}: cannot open {self.path}: {error}; give a writable path") from error
        except apsw.FullError as error:
            raise self.error(f"{self.kind}: cannot {doing} {self.path}: the disk is full; make room") from error
        except (apsw.BusyError, apsw.LockedError) as error:
            raise self.busy_error(
                f"{self.kind}: cannot {doing} {self.path}: another process keeps it locked"
            ) from error
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise self.error(
                f"{self.kind}: {self.path} is damaged ({error}), or not a {self.described}; restore a copy of it"
            ) from error
        except apsw.Error as error:
            raise self.error(f"{self.kind}: cannot {doing} {self.path}: {error}") from error
