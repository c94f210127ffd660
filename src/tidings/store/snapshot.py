"""Copies several SQLite files as they are at one moment, while others write to them.

    with FileSnapshot([catalogue, deliveries, mailboxes], later=[log]) as snapshot:
        snapshot.copy(log, target, progress)

For a moment the files are locked against writing. In that moment a reader of each begins a transaction, and keeps
seeing the file as it is then. So the copies hold what a crash of all writers at that moment would have left, however
long copying takes: if one write followed from another, no copy has the second without the first. Writers wait for that
moment; those of a file with a rollback journal until it is copied. A file that others refer to, and that refers to
none, may be of a `later` moment: its writer does not wait.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self, TypeAlias

import apsw

from tidings.errors import TidingsError

BUSY_SECONDS = 30.0
_PAGES_AT_ONCE = 4096  # of SQLite's, between reports of progress

CopyProgress: TypeAlias = Callable[[int, int], None]  # bytes done, and of how many


class SnapshotError(TidingsError):
    """A file that cannot be copied."""


class FileSnapshot:
    """Several files at one moment. They are locked in order, each before the next path is taken from the iterable."""

    def __init__(
        self, paths: Iterable[Path], *, later: Iterable[Path] = (), busy_seconds: float = BUSY_SECONDS
    ) -> None:
        self._busy_ms = round(busy_seconds * 1000)
        self._readers: dict[Path, apsw.Connection] = {}
        chosen: list[Path] = []
        with contextlib.ExitStack() as opened, contextlib.ExitStack() as locked:
            for path in paths:
                with _translated("lock", path):
                    writer = self._opened(path, apsw.SQLITE_OPEN_READWRITE, locked)
                    writer.execute("BEGIN IMMEDIATE")
                chosen.append(path)
            for path in (*chosen, *later):
                with _translated("read", path):
                    reader = self._readers[path] = self._opened(path, apsw.SQLITE_OPEN_READONLY, opened)
                    reader.execute("BEGIN; SELECT count(*) FROM sqlite_schema").fetchall()
            self._undo = opened.pop_all()

    def _opened(self, path: Path, flags: int, undo: contextlib.ExitStack) -> apsw.Connection:
        connection = apsw.Connection(str(path), flags=flags)
        undo.callback(connection.close)
        connection.set_busy_timeout(self._busy_ms)
        # Only its writer checkpoints the file.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return connection

    def copy(self, path: Path, target: Path, progress: CopyProgress = lambda done, of: None) -> None:
        """Copy a file, and release it; the copy is on the disk when this returns."""
        reader = self._readers.pop(path)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with _translated("copy", path), contextlib.closing(apsw.Connection(str(target))) as written:
            written.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY").fetchall()
            page_bytes = reader.pragma("page_size")
            assert isinstance(page_bytes, int)
            with written.backup("main", reader, "main") as copying:
                while not copying.done:
                    copying.step(_PAGES_AT_ONCE)
                    done = copying.page_count - copying.remaining
                    progress(done * page_bytes, copying.page_count * page_bytes)
        reader.close()
        for leftover in (f"{target}-wal", f"{target}-shm", f"{target}-journal"):
            Path(leftover).unlink(missing_ok=True)
        with target.open("rb") as file:
            os.fsync(file.fileno())

    @property
    def paths(self) -> list[Path]:
        """The files that are not copied yet, in order."""
        return list(self._readers)

    def close(self) -> None:
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def _translated(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (apsw.BusyError, apsw.LockedError) as error:
        raise SnapshotError(f"backup: cannot {doing} {path}: another process keeps it locked; try again") from error
    except apsw.FullError as error:
        raise SnapshotError(f"backup: cannot {doing} {path}: the disk is full; make room") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise SnapshotError(
            f"backup: cannot {doing} {path}: it is damaged ({error}); run `tidings check-data`"
        ) from error
    except apsw.Error as error:
        raise SnapshotError(f"backup: cannot {doing} {path}: {error}") from error
