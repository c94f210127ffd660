"""What goes wrong with files: done to those of a service that is down, or from beside one that is up."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import apsw


def tear_tail(log: Path) -> None:
    """Half of a frame at the end of the write-ahead log, as a crash in the middle of an append leaves it."""
    wal = log / "events.sqlite-wal"
    header = wal.read_bytes()[:32]
    with wal.open("ab") as file:
        # Number and size of a page, the salts of this run of the file, and a page that ends too soon.
        file.write((2).to_bytes(4, "big") + (0).to_bytes(4, "big") + header[16:24] + os.urandom(8 + 1000))


def flip_bits(log: Path) -> None:
    """One bit in each of the last frames of the write-ahead log; of the database where that is empty."""
    wal, database = log / "events.sqlite-wal", log / "events.sqlite"
    damaged = wal if wal.exists() and wal.stat().st_size > 40_000 else database
    with damaged.open("r+b") as file:
        size = damaged.stat().st_size
        for place in range(max(4096, size - 30_000), size, 4096):
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 0x10]))


def lose_checkpoint(query: Path) -> None:
    shutil.rmtree(query)


def truncate_checkpoint(query: Path) -> None:
    """The newest of Spark's files of offsets, emptied."""
    offsets = sorted(
        (path for path in (query / "offsets").iterdir() if path.name.isdigit()), key=lambda one: int(one.name)
    )
    offsets[-1].write_bytes(b"")
    (query / "offsets" / f".{offsets[-1].name}.crc").unlink(missing_ok=True)


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Nobody else can write to a database, nor, but in write-ahead mode, read it."""
    connection = apsw.Connection(str(database))
    connection.set_busy_timeout(30_000)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """A file that takes all the room there is on the folder's file system, to the last block."""
    filler = folder / ".filler"
    try:
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * (1 << 16)):
                pass
        yield
    finally:
        filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A file system of its own at a folder: tmpfs, which needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def can_mount() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("mount") is not None
