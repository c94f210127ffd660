"""A file of SQLite that is one of ours: its kind and format checked, its writes durable, its errors in our words."""

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
    """The file, made where there is none. Any thread may ask; what is written is on the disk when that returns."""

    kind: ClassVar[str]  # that errors begin with
    described: ClassVar[str]  # as in: this is no …
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

    # ------------------------------------------------------------------ for those that are such files

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        """Run SQL to its end: apsw stops at the first row that nobody takes."""
        with self._lock:
            if self._connection.in_transaction:  # whose own words tell what was being done
                return list(self._connection.execute(sql, values))
            with self._translated("read"):
                return list(self._connection.execute(sql, values))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Several questions to one state of the file."""
        with self._lock, self._translated("read"):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("COMMIT")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction; undone where the block raises."""
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
                if not self._ask("SELECT 1 FROM sqlite_schema LIMIT 1"):  # nobody was faster
                    self._ask(self.tables)
                    self._ask(f"PRAGMA application_id = {self.application}")
                    self._ask(f"PRAGMA user_version = {self.format}")
        # The name of a new file is there, and that of its first journal is not: else a power cut may bring that back,
        # and with it what was before. Whoever made the file may have been killed before this.
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
            raise self.error(f"{self.kind}: cannot open {self.path}: {error}; give a file that can be made") from error
        except apsw.FullError as error:
            raise self.error(f"{self.kind}: cannot {doing} {self.path}: the disk is full; make room") from error
        except (apsw.BusyError, apsw.LockedError) as error:
            raise self.busy_error(
                f"{self.kind}: cannot {doing} {self.path}: another process keeps it locked"
            ) from error
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise self.error(
                f"{self.kind}: {self.path} is damaged ({error}), or no {self.described}; restore a copy of it"
            ) from error
        except apsw.Error as error:
            raise self.error(f"{self.kind}: cannot {doing} {self.path}: {error}") from error
