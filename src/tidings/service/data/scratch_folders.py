"""Temporary files of a driver and its Spark: a folder in the data directory for each run, removed when it ends.

If a driver is killed, the next one removes its folder: it finds the lock of that run free. It also removes files that
were half written when a driver was killed, and checkpoints that were put aside.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tidings.service.data.data_directory import DataDirectory
from tidings.store.log.log_errors import LogBusyError, LogError
from tidings.store.log.log_files import WriterLock


@contextlib.contextmanager
def scratch(data: DataDirectory) -> Iterator[Path]:
    """Makes a folder for temporary files of this process and of those that it starts, which find it in TMPDIR."""
    if not remove_dead(data):
        remove_unfinished(data)
    data.runs.mkdir(mode=0o700, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=data.runs))
    lock = WriterLock(folder)
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = before[0]
        if before[1] is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before[1]
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def remove_dead(data: DataDirectory) -> int:
    """Remove the folders of runs that have ended; returns how many have not."""
    alive = 0
    for folder in data.runs.iterdir() if data.runs.is_dir() else ():
        try:
            if folder.is_dir():
                WriterLock(folder).release()
        except LogBusyError:
            alive += 1
            continue
        except LogError:
            pass  # a lock that cannot be read is not held
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.unlink(missing_ok=True)
    return alive


def remove_unfinished(data: DataDirectory) -> None:
    """Remove half-written files of a killed driver, and what was put aside. No other driver may be running."""
    for domain in (*(data.domains.iterdir() if data.domains.is_dir() else ()), data.shared.folder):
        for folder in (*domain.glob("*.replaced-*"), *domain.glob("index/.staged-*")):
            shutil.rmtree(folder, ignore_errors=True)
        for path in (*domain.rglob(".*"), *domain.glob("mailboxes.sqlite.staged/*.arrow")):
            if path.is_file() and path.suffix != ".crc":  # the names of Hadoop's checksums, which are whole
                path.unlink(missing_ok=True)
    for path in (*data.jobs.glob(".*.json.*"), *data.path.glob(f".{data.driver_status.name}.*")):
        path.unlink(missing_ok=True)
