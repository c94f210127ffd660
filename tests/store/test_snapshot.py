"""Files that are copied together while they are written are as they were at one moment."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from tidings.store.snapshot import FileSnapshot, SnapshotError

ROWS = 3_000  # so many that a copy takes several steps


def made(path: Path, journal: str) -> Path:
    with sqlite3.connect(path) as file:
        file.execute(f"PRAGMA journal_mode = {journal}")
        file.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, x BLOB)")
        file.executemany("INSERT INTO t VALUES (?, randomblob(2000))", [(-n,) for n in range(1, ROWS)])
        file.execute("INSERT INTO t VALUES (0, NULL)")
    file.close()
    return path


def last(path: Path) -> int:
    file = apsw.Connection(str(path))
    assert list(file.execute("PRAGMA integrity_check")) == [("ok",)]
    number: int = next(iter(file.execute("SELECT max(n) FROM t")))[0]
    file.close()
    return number


@contextmanager
def written(*paths: Path) -> Iterator[None]:
    """A number goes to the first file, then to the second, … and then the next number to the first."""
    stopped = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            files = [apsw.Connection(str(path)) for path in paths]
            for file in files:
                file.set_busy_timeout(30_000)
            number = 0
            while not stopped.is_set():
                number += 1
                for file in files:
                    file.execute("INSERT INTO t VALUES (?, randomblob(3000))", (number,))
            for file in files:
                file.close()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
    assert not failed


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_no_copy_has_a_write_without_the_one_that_it_followed_from(tmp_path: Path, order: tuple[int, ...]) -> None:
    paths = [made(tmp_path / name, journal) for name, journal in (("a", "WAL"), ("b", "WAL"), ("c", "PERSIST"))]
    with written(*paths):
        for turn in range(4):
            chosen = [paths[at] for at in order]
            with FileSnapshot(chosen) as snapshot:
                for path in reversed(chosen):  # the one with a rollback journal somewhere in between
                    snapshot.copy(path, tmp_path / f"{path.name}.{turn}")
            first, second, third = (last(tmp_path / f"{path.name}.{turn}") for path in paths)
            assert first >= second >= third >= first - 1


def test_a_later_file_has_all_that_the_others_have_and_its_writer_does_not_wait(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a", "WAL"), made(tmp_path / "b", "WAL")
    with written(first, second):  # the second refers to the first
        for turn in range(4):
            with FileSnapshot([second], later=[first]) as snapshot:
                for path in (second, first):
                    snapshot.copy(path, tmp_path / f"{path.name}.{turn}")
            assert last(tmp_path / f"a.{turn}") >= last(tmp_path / f"b.{turn}")
    holder = apsw.Connection(str(first))
    holder.execute("BEGIN IMMEDIATE")
    with FileSnapshot([second], later=[first], busy_seconds=0.05) as snapshot:
        snapshot.copy(first, tmp_path / "copy")
    holder.close()


def test_writers_continue_while_a_file_is_copied_as_it_was(tmp_path: Path) -> None:
    path = made(tmp_path / "a", "WAL")
    writer = apsw.Connection(str(path))
    seen: list[tuple[int, int]] = []

    def progress(done: int, of: int) -> None:
        writer.execute("INSERT INTO t VALUES (?, randomblob(100000))", (len(seen) + 1,))
        seen.append((done, of))

    with FileSnapshot([path]) as snapshot:
        snapshot.copy(path, tmp_path / "copy", progress)
    writer.close()
    assert last(tmp_path / "copy") == 0
    assert last(path) == len(seen) > 0
    assert seen[-1][0] == seen[-1][1] == (tmp_path / "copy").stat().st_size


def test_a_file_that_is_locked_or_damaged_is_named(tmp_path: Path) -> None:
    path = made(tmp_path / "a", "WAL")
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(SnapshotError, match=r"cannot lock .*a: another process keeps it locked"):
        FileSnapshot([path], busy_seconds=0.05)
    holder.close()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(SnapshotError, match=r"cannot lock .*a: it is damaged .* check-data"):
        FileSnapshot([path])
