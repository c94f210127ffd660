"""`tidings backup` and `tidings restore`: a data directory copied while it is served, and brought back.

A backup has what a crash of the whole service at one moment would have left: catalogue, deliveries, mailboxes and the
log as they were then (see `snapshot`), and the token. Indexes and checkpoints are not copied: indexes are rebuilt from
the catalogue, and streams continue after the last position that their mailboxes have. backup.json has the checksum of
every file.

    backup.json   {"made_by", "time", "source", "log": {"start", "end"}, "streams", "files": {name: {…}}}

`streams` are the domains that have their own stream. Restored, each has an empty checkpoint, so that its stream begins
after what is in its mailboxes.

A restored log continues POSITIONS_SKIPPED further. After the backup the service may have given positions to events that
the backup does not have, and subscribers know them: no position is given to a second event.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tidings import __version__
from tidings.errors import TidingsError
from tidings.service.data.data_directory import (
    FORMAT_FILE,
    DataDirectory,
    check_format,
    domain_key,
    parts_of_key,
    replace_json,
)
from tidings.service.data.private_files import tighten
from tidings.store.log.log_errors import LogError
from tidings.store.log.log_files import EVENTS, Acknowledged, ask, open_to_write, sync_directory
from tidings.store.log.log_reader import LogReader
from tidings.store.log.topic_pages import PLACE
from tidings.store.snapshot import FileSnapshot

MANIFEST = "backup.json"
POSITIONS_SKIPPED = 10**12
_READ_BYTES = 1 << 20

Progress: TypeAlias = Callable[[str, int, int], None]  # what is being done, bytes done, and of how many


class BackupError(TidingsError):
    """A backup that cannot be made or restored."""


@dataclass(frozen=True)
class Backup:
    """What is in a backup."""

    time: str  # when it was begun
    log_start: int
    log_end: int
    bytes: int
    files: int


def _silent(what: str, done: int, of: int) -> None:
    pass


# ---------------------------------------------------------------------- backup


def back_up(data: DataDirectory, target: Path, progress: Progress = _silent) -> Backup:
    """Copy a data directory, served or not, to a new directory."""
    _refuse_to_back_up(data)
    with _unfinished(target) as folder:
        time = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        names, streams = _copied(data, folder, progress)
        with LogReader(folder / "log") as log:
            start, end = log.start, log.end
        mark = Acknowledged(folder / "log", write=True)
        mark.write(end)
        mark.close()
        names.append("log/acknowledged")
        files = {name: _described(folder, name, progress) for name in names}
        form = {
            "made_by": f"tidings {__version__}",
            "time": time,
            "source": str(data.path),
            "log": {"start": start, "end": end},
            "streams": streams,
            "files": files,
        }
        replace_json(folder / MANIFEST, form, durable=True)
    return Backup(time, start, end, sum(one["bytes"] for one in files.values()), len(files))


def _refuse_to_back_up(data: DataDirectory) -> None:
    if not check_format(data.path):
        raise BackupError(f"backup: {data.path} is not a data directory; give that of a service")
    if (data.log / PLACE).exists():
        raise BackupError(
            f"backup: the events of {data.path} are in Kafka, which has its own copies; to copy the rest, stop the "
            "service, copy the directory with cp -a, and start the copy with the same --log"
        )
    if not data.catalogue.exists():
        raise BackupError(
            f"backup: the catalogue of {data.path} is in PostgreSQL, and has to be copied at the same moment; stop the "
            "service, then copy both: the directory with cp -a, and the database with pg_dump"
        )
    if not (data.log / EVENTS).exists() or not data.deliveries.exists():
        raise BackupError(f"backup: {data.path} is empty; start `tidings serve --data {data.path}` once")


def _copied(data: DataDirectory, folder: Path, progress: Progress) -> tuple[list[str], list[str]]:
    """Copy files; returns their names, and the domains that had their own stream at that moment."""
    _allow_open_files()
    names: list[str] = []
    streams: list[str] = []
    with FileSnapshot(_locked(data, streams), later=[data.log / EVENTS]) as snapshot:
        for path in snapshot.paths:
            name = str(path.relative_to(data.path))
            (folder / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            snapshot.copy(path, folder / name, partial(progress, f"copying {name}"))
            names.append(name)
    for path in (data.path / FORMAT_FILE, data.token, *sorted(data.domains.glob("*/aside.json"))):
        if path.exists():
            name = str(path.relative_to(data.path))
            _copy(path, folder / name)
            names.append(name)
    return names, streams


def _locked(data: DataDirectory, streams: list[str]) -> Iterator[Path]:
    """Yields the files that are copied as they are at one moment, in the order of their locks.

    Notes the domains that have their own stream while no mailbox can be written: none can move from one stream to the
    other in between. Once the first two files are locked, the gateway can make no domain or subscription, read no
    answer to a job, and acknowledge nothing: a mailbox file that is made later has nothing that refers to them.
    """
    yield from (data.catalogue, data.deliveries)
    yield from sorted(data.domains.glob("*/mailboxes.sqlite"))
    streams += sorted(path.parent.name for path in data.domains.glob("*/query"))
    # Written after a batch is in all mailboxes: the locked ones have all that it says.
    yield from (path for path in [data.shared.progress] if path.exists())


def _allow_open_files() -> None:
    """Raise the limit of open files: a snapshot has three open for each domain."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _described(folder: Path, name: str, progress: Progress) -> dict[str, Any]:
    path = folder / name
    return {"bytes": path.stat().st_size, "sha256": _checksum(path, f"reading {name} again", progress)}


# ---------------------------------------------------------------------- restore


def restore(backup: Path, target: Path, progress: Progress = _silent) -> Backup:
    """Make a new data directory from a backup; `tidings serve` can start it as it is."""
    found, files, streams = read_manifest(backup)
    if not check_format(backup):
        raise BackupError(f"restore: {backup} has no {FORMAT_FILE}: it is incomplete; give another backup")
    with _unfinished(target) as folder:
        for name, described in files.items():
            source, copy = backup / name, folder / name
            copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                _copy(source, copy)
            except OSError as error:
                raise BackupError(
                    f"restore: cannot copy {source}: {error.strerror}; give a complete backup, or make room"
                ) from error
            # Of the copy, which is what is restored.
            if _checksum(copy, f"copying {name}", progress) != described["sha256"]:
                raise BackupError(f"restore: {source} is not as it was written: the backup is damaged; give another")
        _skip_positions(folder / "log")
        for key in streams:
            (folder / "domains" / key / "query").mkdir(parents=True, mode=0o700)
    return found


def read_manifest(backup: Path) -> tuple[Backup, dict[str, dict[str, Any]], list[str]]:
    """Returns what a backup has, its files, and the domains with their own stream."""
    try:
        form = json.loads((backup / MANIFEST).read_bytes())
        files: dict[str, dict[str, Any]] = form["files"]
        streams = [domain_key(*parts_of_key(key)) for key in form["streams"]]
        size = sum(int(one["bytes"]) for one in files.values())
        found = Backup(str(form["time"]), int(form["log"]["start"]), int(form["log"]["end"]), size, len(files))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackupError(
            f"restore: {backup} is not a backup: {MANIFEST} cannot be read ({error}); give a directory that `tidings "
            "backup` made"
        ) from error
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise BackupError(f"restore: {backup} names a file outside of it ({name}); give another backup")
    return found, files, streams


def _skip_positions(log: Path) -> None:
    """Have the log continue far after every position that may have been given since the backup."""
    with LogReader(log) as reader:
        end = reader.end
    connection = open_to_write(log, 10.0)
    try:
        with connection:
            reason = "not used: the log was restored from a backup, and these positions may have been used before"
            ask(connection, "INSERT INTO lost VALUES (?, ?, ?)", (end, end + POSITIONS_SKIPPED - 1, reason))
    finally:
        connection.close()


# ---------------------------------------------------------------------- files


@contextlib.contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """Makes a folder that gets the name of the target when all has gone well; otherwise it is removed."""
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BackupError(f"{target} exists already; give a new or an empty directory")
    folder = target.with_name(f".{target.name}.unfinished-{secrets.token_hex(4)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        yield folder
        tighten(folder)
        for inner in sorted(path for path in folder.rglob("*") if path.is_dir()):
            sync_directory(inner)
        sync_directory(folder)
        folder.replace(target)
        sync_directory(target.parent)
    except (OSError, LogError) as error:
        raise BackupError(f"cannot write {target}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to:
        shutil.copyfileobj(read, to, _READ_BYTES)
        to.flush()
        os.fsync(to.fileno())


def _checksum(path: Path, what: str, progress: Progress) -> str:
    digest, done, size = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            digest.update(part)
            done += len(part)
            progress(what, done, size)
    return digest.hexdigest()
