"""The files of a log, all in one directory.

    events.sqlite      the pages, in SQLite's write-ahead mode: readers never wait for the writer
    writer.sqlite      its write lock is held by the log's one writer, which it names
    acknowledged       up to which position appends were acknowledged, written after every commit
    topic.json         the topic of a log whose pages are in Kafka; events.sqlite then has where each page is

SQLite silently cuts its write-ahead log at the first frame whose checksum is wrong. After a crash that is right, as an
unfinished frame was never acknowledged; after a flipped bit it would lose acknowledged events. `acknowledged` tells the
two apart. It is written after the commit is on the disk and never synced itself, so it may lag (after a power cut) but
never lead.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import apsw

from tidings.store import formats
from tidings.store.log.log_errors import LogBusyError, LogCorruptError, LogError, LogFullError

EVENTS, WRITER, ACKNOWLEDGED = "events.sqlite", "writer.sqlite", "acknowledged"
BUSY_SECONDS = 10.0
_LOG, _INDEX = 0x54444C47, 0x54444C49
_MARK = struct.Struct("<qI")
_WAL_HEADER, _WAL_FRAME = 32, 24  # bytes, as SQLite's file format has them

_TABLES = """
    CREATE TABLE pages (
        first INTEGER PRIMARY KEY, count INTEGER NOT NULL, domain TEXT NOT NULL, time INTEGER NOT NULL,
        checksum INTEGER NOT NULL, length INTEGER NOT NULL, keys BLOB, events BLOB NOT NULL, attributes BLOB) STRICT;
    CREATE TABLE removed (domain TEXT PRIMARY KEY, last INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE lost (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, reason TEXT NOT NULL) STRICT;
    -- Where times go down along the log, since the clock was set back: between these they never do.
    CREATE TABLE clock_steps (first INTEGER PRIMARY KEY) STRICT;
    CREATE TRIGGER clock_stepped BEFORE INSERT ON pages
        WHEN new.time < (SELECT time FROM pages ORDER BY first DESC LIMIT 1)
        BEGIN INSERT INTO clock_steps VALUES (new.first); END;
"""
# For pages in a topic: the rows of `pages` have no events, and all can be rebuilt from the topic.
_INDEX_TABLES = """
    CREATE TABLE placed (
        first INTEGER PRIMARY KEY, offset INTEGER NOT NULL, size INTEGER NOT NULL) STRICT;
    CREATE TRIGGER removed_with_its_page AFTER DELETE ON pages
        BEGIN DELETE FROM placed WHERE first = old.first; END;
    CREATE TABLE followed (offset INTEGER NOT NULL) STRICT;
    INSERT INTO followed VALUES (0);
"""


def open_to_read(directory: Path, busy_seconds: float, *, in_topic: bool = False) -> apsw.Connection:
    path = directory / EVENTS
    if not path.is_file():
        raise LogError(f"log: there is none in {directory}; opening it for writing makes one")
    _check_header(path, in_topic=in_topic)
    with translated(f"cannot open {path}"):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(round(busy_seconds * 1000))
        # Otherwise the last to close would write to the file, and that may be a reader.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        _check_kind(connection, path, in_topic=in_topic)
    return connection


def open_to_write(directory: Path, busy_seconds: float, *, in_topic: bool = False) -> apsw.Connection:
    """Returns the one connection that writes and checkpoints; makes the log if there is none."""
    path = directory / EVENTS
    _check_header(path, in_topic=in_topic)
    with translated(f"cannot open {path}"):
        new = not path.exists()
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(round(busy_seconds * 1000))
        # FULL: every commit is synced before it returns; on macOS through the drive's own cache too.
        # Events in a topic are safe there: the index only has to be consistent.
        ask(connection, f"PRAGMA synchronous = {'NORMAL' if in_topic else 'FULL'}")
        ask(connection, "PRAGMA fullfsync = ON")
        ask(connection, "PRAGMA journal_size_limit = 67108864")
        if new:
            ask(connection, "PRAGMA journal_mode = WAL")
            with connection:
                ask(connection, _TABLES + (_INDEX_TABLES if in_topic else ""))
                ask(connection, f"PRAGMA application_id = {_INDEX if in_topic else _LOG}")
                ask(connection, f"PRAGMA user_version = {formats.LOG}")
        _check_kind(connection, path, in_topic=in_topic)
    return connection


def unfinished_bytes(connection: apsw.Connection, directory: Path) -> int:
    """Returns how much of an unfinished append a crashed writer left; SQLite has cut it off already."""
    path = directory / f"{EVENTS}-wal"
    try:
        wal = path.read_bytes()
    except FileNotFoundError:
        return 0
    # Header: magic, format, page size, sequence, two salts. Frame: number, size, two salts, two checksums, the page.
    if len(wal) < _WAL_HEADER:
        return 0
    frame = _WAL_FRAME + int.from_bytes(wal[8:12], "big")
    with translated(f"cannot open {path}"):
        sound = ask(connection, "PRAGMA wal_checkpoint(PASSIVE)")[0][1]
    assert isinstance(sound, int)
    at = _WAL_HEADER + max(sound, 0) * frame
    begin = at
    while wal[at + 8 : at + 16] == wal[16:24]:  # a frame of this run of the file, not of an earlier one
        at += frame
    return min(at, len(wal)) - begin if at > begin else 0


def _check_header(path: Path, *, in_topic: bool) -> None:
    formats.check_header("log", path, _INDEX if in_topic else _LOG, formats.LOG)


def _check_kind(connection: apsw.Connection, path: Path, *, in_topic: bool) -> None:
    (application,), (version,) = ask(connection, "PRAGMA application_id"), ask(connection, "PRAGMA user_version")
    if application[0] == (_LOG if in_topic else _INDEX):
        raise LogError(
            f"log: {path} has the events itself; for a log in a topic give another directory"
            if in_topic
            else f"log: the events of {path.parent} are in a topic; say which, as with --log kafka://…"
        )
    if application[0] != (_INDEX if in_topic else _LOG):
        raise LogError(f"log: {path} is a database of something else")
    if version[0] != formats.LOG:
        raise formats.other_format("log", path, version[0], formats.LOG)


def ask(connection: apsw.Connection, sql: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Run SQL to its end: apsw would stop at the first row that is not read."""
    return list(connection.execute(sql, values))


class WriterLock:
    """Held by the one writer of a log, and released when its process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        path = directory / WRITER
        with translated(f"cannot open {path}"):
            self._connection = apsw.Connection(str(path))
            try:
                with contextlib.suppress(apsw.FullError):  # without a name, so that a full disk can be made room on
                    self._write_name()
                ask(self._connection, "BEGIN IMMEDIATE")
            except apsw.BusyError:
                name: object = "another process"
                with contextlib.suppress(apsw.Error, IndexError):  # it may be about to write its name
                    name = ask(self._connection, "SELECT name FROM writer")[0][0]
                self._connection.close()
                raise LogBusyError(
                    f"log: {directory} is being written by {name}; a log has one writer: "
                    "publish through that process, or stop it first"
                ) from None

    def _write_name(self) -> None:
        name = f"process {os.getpid()} on {socket.gethostname()}"
        with self._connection:  # with a rollback journal: the name can be read while the lock is held
            ask(self._connection, "CREATE TABLE IF NOT EXISTS writer (name TEXT)")
            ask(self._connection, "DELETE FROM writer")
            ask(self._connection, "INSERT INTO writer VALUES (?)", (name,))

    def release(self) -> None:
        self._connection.close()


class Acknowledged:
    """The end of the log as last acknowledged, in its own file."""

    def __init__(self, directory: Path, *, write: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
        try:
            self._file: int | None = os.open(directory / ACKNOWLEDGED, flags | getattr(os, "O_BINARY", 0), 0o600)
        except FileNotFoundError:
            self._file = None

    def read(self) -> int:
        """Returns a position that the log reaches at least; 0 if the file is missing or damaged."""
        if self._file is None:
            return 0
        os.lseek(self._file, 0, os.SEEK_SET)
        mark = os.read(self._file, _MARK.size)
        if len(mark) < _MARK.size:
            return 0
        end, checksum = _MARK.unpack(mark)
        return int(end) if checksum == zlib.crc32(mark[:8]) else 0

    def write(self, end: int) -> None:
        assert self._file is not None
        mark = struct.pack("<q", end)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, mark + struct.pack("<I", zlib.crc32(mark)))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, if the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def translated(doing: str, *, position: int = 0) -> Iterator[None]:
    """Raises SQLite's errors as ours."""
    try:
        yield
    except apsw.FullError as error:
        raise LogFullError(f"log: {doing}: the disk is full; make room, then try again") from error
    except (apsw.BusyError, apsw.LockedError) as error:
        raise LogBusyError(f"log: {doing}: another process keeps the file locked; try again") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise LogCorruptError(
            f"log: {doing}: the file is damaged at or after position {position} ({error}); restore a copy of it",
            position=position,
        ) from error
    except apsw.Error as error:
        raise LogError(f"log: {doing}: {error}") from error
