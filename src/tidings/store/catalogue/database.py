"""SQLite and PostgreSQL behind the catalogue: opening, transactions, errors.

What differs between the two is only here. In both there is one writer at a time: SQLite locks the file, and in
PostgreSQL a writer first locks the one row of the table `catalogue`. So revisions become visible in the order of their
numbers, and a reader who has seen one has seen all before it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, make_url

from tidings.errors import TidingsError
from tidings.store.catalogue import schema
from tidings.store.formats import other_format
from tidings.store.log.log_files import sync_directory

BUSY_SECONDS = 30.0
AT_ONCE = 500  # rows that one statement names: databases bound how many
_CONNECTIONS, _MORE_CONNECTIONS = 8, 56  # kept, and made while many threads ask at the same time
_JOURNAL_BYTES = 4 << 20
_LOCK = 0x5449_4449  # of PostgreSQL's advisory locks, the one for making the tables

T = TypeVar("T")

_next_revision = (
    sa.update(schema.catalogue).values(revision=schema.catalogue.c.revision + 1).returning(schema.catalogue.c.revision)
)
_only_row = sa.select(schema.catalogue.c.format)
_lock_only_row = _only_row.with_for_update()
_set_tenant = sa.select(sa.func.set_config("tidings.tenant", sa.bindparam("tenant", type_=sa.Text), True))


class Database:
    """A database with the tables of a catalogue, made if there are none. Any thread may use it."""

    def __init__(self, place: str | os.PathLike[str], *, busy_seconds: float = BUSY_SECONDS) -> None:
        text = os.fspath(place)
        self.is_sqlite = "://" not in text
        self._busy_seconds = busy_seconds
        # A thread that finds SQLite locked would sleep and try again; threads of one process can wait for each other.
        self._writer = threading.Lock()
        if self.is_sqlite:
            self.place = text
            self._engine = self._sqlite(Path(text))
        else:
            self._engine = self._postgresql(text)
            self.place = self._engine.url.render_as_string(hide_password=True)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._engine.dispose()

    @contextlib.contextmanager
    def reading(self, tenant: str) -> Iterator[Connection]:
        """A transaction that only reads, and sees the rows of this tenant."""
        with self._translated("read"), self._engine.connect() as connection, connection.begin():
            self._be(tenant, connection)
            yield connection

    @contextlib.contextmanager
    def writing(self, tenant: str) -> Iterator[Connection]:
        """A transaction that writes, the only one at a time; undone if the block raises."""
        with self._translated("write to"), contextlib.ExitStack() as opened:
            if self.is_sqlite:
                if not self._writer.acquire(timeout=self._busy_seconds):
                    raise CatalogueBusyError(
                        f"catalogue: another thread writes to {self.place} for too long; try again"
                    )
                opened.callback(self._writer.release)
            connection = opened.enter_context(self._engine.connect()).execution_options(tidings_writes=True)
            opened.enter_context(connection.begin())
            self._be(tenant, connection)
            if not self.is_sqlite:
                connection.execute(_lock_only_row)
            yield connection

    def _be(self, tenant: str, connection: Connection) -> None:
        if not self.is_sqlite:
            connection.execute(_set_tenant, {"tenant": tenant})

    def _sqlite(self, path: Path) -> sa.Engine:
        try:
            # Only its owner can read it: it has the secrets that sign webhooks. SQLite gives its journal the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise CatalogueError(
                f"catalogue: cannot open {path}: {error.strerror}; give a path that can be written"
            ) from None
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(path)),
            connect_args={"timeout": self._busy_seconds, "check_same_thread": False},
            pool_size=_CONNECTIONS,
            max_overflow=_MORE_CONNECTIONS,
        )
        sa.event.listen(engine, "connect", _set_up_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _postgresql(self, url: str) -> sa.Engine:
        try:
            parsed = make_url(url)
        except exc.ArgumentError:
            raise CatalogueError("catalogue: not a URL; give postgresql://user@host/database") from None
        if parsed.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
            raise CatalogueError(
                f"catalogue: '{parsed.drivername}' is not supported; give the path of a file, for SQLite, or "
                "postgresql://user@host/database"
            )
        return sa.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            connect_args={"connect_timeout": max(2, round(self._busy_seconds))},
            pool_size=_CONNECTIONS,
            max_overflow=_MORE_CONNECTIONS,
            pool_pre_ping=True,  # connections break when the server is restarted
        )

    def _prepare(self) -> None:
        if self.is_sqlite:
            self._prepare_sqlite()
        else:
            self._prepare_postgresql()
        with self.reading(schema.ALL_TENANTS) as connection:
            found = connection.execute(_only_row).scalar_one_or_none()
        if found != schema.FORMAT:
            raise other_format("catalogue", self.place, found, schema.FORMAT)

    def _prepare_sqlite(self) -> None:
        with self._translated("open"), self._engine.connect() as connection:
            connection = connection.execution_options(tidings_writes=True)
            with connection.begin():
                application = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
                if application != schema.APPLICATION:
                    if application or connection.exec_driver_sql("SELECT 1 FROM sqlite_schema LIMIT 1").first():
                        raise CatalogueError(f"catalogue: {self.place} is a database of something else")
                    _make_tables(connection)
                    connection.exec_driver_sql(f"PRAGMA application_id = {schema.APPLICATION}")
        # The name of a new file is durable when its directory is; the process that made it may have been killed before.
        sync_directory(Path(self.place).absolute().parent)

    def _prepare_postgresql(self) -> None:
        with self._translated("open"), self._engine.begin() as connection:
            if sa.inspect(connection).has_table("catalogue"):
                columns = {column["name"] for column in sa.inspect(connection).get_columns("catalogue")}
                if columns != set(schema.catalogue.c.keys()):
                    raise CatalogueError(f"catalogue: {self.place} is a database of something else")
                return
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            if sa.inspect(connection).has_table("catalogue"):
                return  # another process has made them
            _make_tables(connection)
            for statement in schema.ROW_LEVEL_SECURITY:
                connection.exec_driver_sql(statement)

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Raises the errors of both databases as ours."""
        try:
            yield
        except exc.IntegrityError as error:
            raise CatalogueConflictError(f"catalogue: {self.place} has such a row already: {error.orig}") from error
        except exc.TimeoutError as error:
            raise CatalogueBusyError(f"catalogue: too many requests to {self.place} at once; try again") from error
        except exc.DBAPIError as error:
            raise _translated_error(self.place, doing, error) from error


def next_revision(connection: Connection) -> int:
    """Counts one more change of the filters or the domains, within its transaction; returns the new revision."""
    return int(connection.execute(_next_revision).scalar_one())


def random_id(kind: str) -> str:
    """Returns a name that nobody can guess: 80 random bits, in letters and digits that are not easily confused."""
    return f"{kind}_{base64.b32encode(secrets.token_bytes(10)).decode().lower()}"


def now() -> int:
    """Returns microseconds since 1970."""
    return time.time_ns() // 1000


def in_parts(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yields rows in parts that fit one statement."""
    for start in range(0, len(rows), AT_ONCE):
        yield rows[start : start + AT_ONCE]


def can_be_kept(*texts: str) -> bool:
    """Whether `plain` accepts these texts: no row has others, and a query for them would be an error."""
    with contextlib.suppress(CatalogueError):
        return all(plain(text, "text") == text for text in texts)
    return False


def plain(text: str, what: str) -> str:
    """Returns a text that both databases can store; raises for NUL, and for half of a surrogate pair."""
    if "\0" in text:
        raise CatalogueError(f"{what}: contains the character NUL; leave it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CatalogueError(f"{what}: contains half of a surrogate pair, at {error.start}; leave it out") from None
    return text


def _make_tables(connection: Connection) -> None:
    schema.metadata.create_all(connection)
    connection.execute(sa.insert(schema.catalogue).values(one=1, format=schema.FORMAT, revision=0))


def _set_up_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin explicitly
    # A journal, not a write-ahead log: Python's SQLite may be one whose log can be damaged when it is reset (up to
    # 3.51.2). PERSIST is the journal with the fewest syncs; FULL: a commit is on the disk when it returns.
    connection.execute("PRAGMA journal_mode = PERSIST")
    connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that first reads and later writes could find that another one has written in between.
    writes = connection.get_execution_options().get("tidings_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _translated_error(place: str, doing: str, error: exc.DBAPIError) -> CatalogueError:
    original = error.orig
    code = getattr(original, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CatalogueBusyError(f"catalogue: cannot {doing} {place}: another process keeps it locked; try again")
    if code == sqlite3.SQLITE_FULL:
        return CatalogueError(f"catalogue: cannot {doing} {place}: the disk is full; make room")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CatalogueError(f"catalogue: {place} is damaged ({original}), or not a catalogue; restore a copy of it")
    if not code and isinstance(error, exc.OperationalError):  # of PostgreSQL: no connection
        return CatalogueBusyError(f"catalogue: cannot {doing} {place}: {_first_line(original)}; is the server running?")
    return CatalogueError(f"catalogue: cannot {doing} {place}: {_first_line(original)}")


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class CatalogueError(TidingsError):
    """The base of every error of a catalogue; raised itself if only the message says what to do."""


class CatalogueMissingError(CatalogueError):
    """What is to be changed does not exist, or belongs to another tenant."""


class CatalogueConflictError(CatalogueError):
    """It contradicts what exists already. Nothing was changed."""


class CatalogueChangedError(CatalogueConflictError):
    """What a change was made for has changed in the meantime. Nothing was changed; look again, and try again."""


class CatalogueBusyError(CatalogueError):
    """The database is locked, or cannot be reached. Nothing was changed; try again."""
