"""`tidings check-data`: which files of a data directory are damaged, and what to do about it.

Each file is read completely and its checksums are verified; then the files are compared: none may refer to a position
that the log has not given, or to a number that the catalogue has not. Nothing is changed. While a service runs, a file
is read before those that it refers to, and what only holds for a service at rest is not checked.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from tidings.errors import TidingsError
from tidings.service.data.data_directory import DataDirectory, DomainFiles, SetAside, check_format
from tidings.service.data.private_files import too_open
from tidings.store.catalogue import Catalogue, Extent
from tidings.store.log.log_errors import LogBusyError
from tidings.store.log.log_files import ACKNOWLEDGED, EVENTS, WriterLock
from tidings.store.log.log_reader import LogReader
from tidings.store.log.log_repair import damage
from tidings.store.log.topic_pages import PLACE

SHOWN = 10  # findings of one kind for each file
RESTORE = "restore a backup"
GIVE_UP = "restore a backup, or give them up with tidings.store.log.log_repair.repair"
LATER = "restore a backup: this file is newer than another, as if only some of them were replaced"

Progress: TypeAlias = Callable[[str, int, int], None]  # what is being read, how much of it, and of how much


@dataclass(frozen=True)
class Finding:
    """Something that is wrong."""

    place: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}; {self.remedy}"


@dataclass
class Report:
    """What was found."""

    running: bool = False  # the service ran while it was checked
    findings: list[Finding] = field(default_factory=list)
    sound: list[str] = field(default_factory=list)  # what is sound, a line each
    unchecked: list[str] = field(default_factory=list)  # what could not be checked, and why

    def add(self, place: object, problem: str, remedy: str) -> None:
        self.findings.append(Finding(str(place), problem, remedy))


def _silent(what: str, done: int, of: int) -> None:
    pass


def check_data(data: DataDirectory, *, catalogue: str | None = None, progress: Progress = _silent) -> Report:
    """Check all files of a data directory; give the URL of its catalogue if that is in PostgreSQL."""
    report = Report()
    if not check_format(data.path):
        raise TidingsError(f"check: {data.path} is not a data directory; give that of a service")
    with _held(data, report):
        if open_ := too_open(data.path):
            remedy = "start the service, which tightens them, or chmod -R go= the directory"
            report.add(open_[0], f"{len(open_)} files, such as this one, can be read by others", remedy)
        # A file before those that it refers to: see above.
        domains = [DomainFiles(path.name, path) for path in sorted(data.domains.iterdir())] if _is(data.domains) else []
        boxes = {files.key: _mailboxes(files, report, progress) for files in domains if _has_mailboxes(files, report)}
        for files in domains:
            _aside(files, report)
        shared = _shared(data, report, progress)
        delivered = _deliveries(data, report, progress)
        extent = _catalogue(data, catalogue, report, progress)
        end = _log(data, report, progress)
        _check_references(data, boxes, delivered, shared, extent, end, report)
        from tidings.service.data.check_streams import (  # Spark's package takes a while to import
            check_shared,
            check_streams,
        )

        planned_to = None if report.running else end  # a stream that runs plans further than the log was a moment ago
        for files in domains:
            check_streams(files, planned_to, report, partial(progress, f"reading the index of {files.key}"))
        check_shared(data.shared, planned_to, report)
        _jobs(data, report)
    return report


@contextlib.contextmanager
def _held(data: DataDirectory, report: Report) -> Iterator[None]:
    """Keep a service from starting meanwhile; if one runs, note that."""
    lock = None
    try:
        if data.lock.is_dir():
            lock = WriterLock(data.lock)
    except LogBusyError:
        report.running = True
        report.unchecked.append(
            "whether checkpoints agree with mailboxes and log: the service runs; stop it to check that"
        )
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _is(folder: Path) -> bool:
    return folder.is_dir()


# ---------------------------------------------------------------------- one file


@dataclass(frozen=True)
class _Refers:
    """The highest numbers that a file refers to; -1 if it refers to none."""

    position: int = -1
    filter: int = -1
    subscription: int = -1


@contextlib.contextmanager
def _read(path: Path, report: Report, progress: Progress) -> Iterator[apsw.Connection | None]:
    """Yields a connection to a SQLite file; None if the file is damaged or empty."""
    progress(f"reading {path}", 0, 1)
    with contextlib.ExitStack() as opened:
        connection: apsw.Connection | None = None
        try:
            # Of a service at rest, SQLite may have to recover the file first, as any start would.
            flags = apsw.SQLITE_OPEN_READONLY if report.running else apsw.SQLITE_OPEN_READWRITE
            connection = apsw.Connection(str(path), flags=flags)
            opened.callback(connection.close)
            wrong = list(_wrong_within(connection))
        except apsw.Error as error:
            wrong = [f"cannot be read ({error})"]
        for line in wrong:
            report.add(path, line, RESTORE)
        is_made = connection is not None and not wrong and connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
        yield connection if is_made else None


def _wrong_within(connection: apsw.Connection) -> Iterator[str]:
    connection.set_busy_timeout(30_000)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.execute("BEGIN")
    for (line,) in connection.execute(f"PRAGMA integrity_check({SHOWN})").fetchall():
        if line != "ok":
            yield str(line)
    broken: list[Any] = connection.execute("PRAGMA foreign_key_check").fetchall()
    for table, _, other, _ in broken[:SHOWN]:
        yield f"a row of {table} refers to a missing one of {other}"


def _one(connection: apsw.Connection, sql: str) -> int:
    """Returns the one number that a query selects; -1 for NULL."""
    found: list[Any] = connection.execute(sql).fetchall()
    return -1 if found[0][0] is None else int(found[0][0])


def _has_mailboxes(files: DomainFiles, report: Report) -> bool:
    """Whether a domain has mailboxes; they are missing if its stream has run without them."""
    if not files.mailboxes.exists() and files.query.exists():
        report.add(files.mailboxes, "the mailboxes are missing, and the domain's stream has begun", RESTORE)
    return files.mailboxes.exists()


def _aside(files: DomainFiles, report: Report) -> None:
    """Check the list of what a stream leaves out: it decides what a repeated batch matches."""
    try:
        SetAside.read(files.aside)
    except (TidingsError, AttributeError, KeyError, TypeError, ValueError) as error:
        report.add(files.aside, f"what the stream leaves out cannot be read ({error})", RESTORE)


def _mailboxes(files: DomainFiles, report: Report, progress: Progress) -> _Refers:
    with _read(files.mailboxes, report, progress) as file:
        if file is None:
            return _Refers()
        position = _one(
            file,
            "SELECT max(p) FROM (SELECT max(position) p FROM notifications WHERE source = '' UNION ALL "
            "SELECT max(position) FROM overflowed WHERE source = '' UNION ALL "
            "SELECT max(last) FROM pages WHERE source = '' UNION ALL "
            "SELECT max(position) FROM reached WHERE source = '')",
        )
        number = _one(file, "SELECT max(subscription) FROM mailboxes WHERE typeof(subscription) = 'integer'")
        waiting = _one(file, "SELECT count(*) FROM notifications")
        report.sound.append(f"mailboxes of {files.key}: {waiting:,} notifications in rows, up to position {position:,}")
        return _Refers(position, number)


def _shared(data: DataDirectory, report: Report, progress: Progress) -> _Refers:
    if not data.shared.progress.exists():
        return _Refers()
    with _read(data.shared.progress, report, progress) as file:
        if file is None:
            return _Refers()
        position = _one(file, "SELECT position FROM resume") - 1
        report.sound.append(f"progress of the shared stream: up to position {position:,}")
        return _Refers(position)


def _deliveries(data: DataDirectory, report: Report, progress: Progress) -> _Refers:
    if not data.deliveries.exists():
        if (data.log / EVENTS).exists():
            missing = "the cursors and dead letters of all subscriptions are missing"
            report.add(data.deliveries, missing, f"{RESTORE}; without one, all that is kept is delivered again")
        return _Refers()
    with _read(data.deliveries, report, progress) as file:
        if file is None:
            return _Refers()
        tables = ("cursors", "attempts", "dead", "redriven")
        parts = " UNION ALL ".join(f"SELECT max({{0}}) n FROM {table}" for table in tables)
        position = _one(file, f"SELECT max(n) FROM ({parts.format('position')})")
        subscription = _one(file, f"SELECT max(n) FROM ({parts.format('subscription')})")
        filter_ = _one(file, "SELECT max(-subscription) FROM cursors WHERE subscription < 0")
        cursors = _one(file, "SELECT count(*) FROM cursors WHERE subscription > 0")
        report.sound.append(f"deliveries: {cursors:,} cursors, up to position {position:,}")
        return _Refers(position, filter_, subscription)


def _catalogue(data: DataDirectory, url: str | None, report: Report, progress: Progress) -> Extent | None:
    if url is None and not data.catalogue.exists():
        if data.token.exists() or data.deliveries.exists():
            remedy = f"if it is in PostgreSQL, give --catalogue postgresql://…; otherwise {RESTORE}"
            report.add(data.catalogue, "the catalogue is missing", remedy)
        return None
    if url is None:
        with _read(data.catalogue, report, progress) as file:
            if file is None:
                return None
    try:
        with Catalogue(url or data.catalogue) as opened:
            extent = opened.extent()
            secret = data.read_token()
            if secret is not None and opened.tenant_of(secret) is None:
                remedy = "restore the one that belongs to it, or remove it to get a new one"
                report.add(data.token, "this token is not in the catalogue", remedy)
    except TidingsError as error:
        report.add(data.catalogue if url is None else "the catalogue", str(error), RESTORE)
        return None
    so_far = f"{extent.last_subscription:,} subscriptions made so far"
    report.sound.append(f"catalogue: {len(extent.domains):,} domains, {so_far}")
    return extent


def _log(data: DataDirectory, report: Report, progress: Progress) -> int | None:
    """Returns the end of the log; None if it is not known."""
    path = data.log / EVENTS
    if not path.exists():
        if data.deliveries.exists() or (data.log / ACKNOWLEDGED).exists():
            report.add(path, "the log is missing", RESTORE)
        else:
            report.unchecked.append(f"the log: {data.log} has none yet")
        return None
    in_topic = (data.log / PLACE).exists()
    with _read(path, report, progress) as file:
        if file is None:
            return None
    try:
        if not in_topic:
            lost = damage(data.log, partial(progress, "reading the log"))
            for gone in lost[:SHOWN]:
                report.add(path, f"positions {gone.first:,} to {gone.last:,} are lost: {gone.reason}", GIVE_UP)
            if lost:
                return None
        with LogReader(data.log) as log:
            start, end = log.start, log.end
            if in_topic:
                for page in log.pages(start, end):
                    progress("reading the topic", page.end - start, end - start)
    except TidingsError as error:
        report.add(path, str(error), RESTORE)
        return None
    report.sound.append(f"log: positions {start:,} to {end - 1:,}" if end > start else f"log: empty, ends at {end:,}")
    return end


# ---------------------------------------------------------------------- one file and another


def _check_references(
    data: DataDirectory,
    boxes: dict[str, _Refers],
    delivered: _Refers,
    shared: _Refers,
    extent: Extent | None,
    end: int | None,
    report: Report,
) -> None:
    places = [(data.domains / key / "mailboxes.sqlite", refers) for key, refers in boxes.items()]
    for path, refers in [*places, (data.deliveries, delivered), (data.shared.progress, shared)]:
        if end is not None and refers.position >= end:
            report.add(path, f"has position {refers.position:,}, and the log ends at {end:,}", LATER)
        if extent is not None and refers.filter > extent.last_filter:
            problem = f"has filter {refers.filter:,}, and the catalogue has given {extent.last_filter:,} numbers"
            report.add(path, problem, LATER)
        if extent is not None and refers.subscription > extent.last_subscription:
            given = f"the catalogue has given {extent.last_subscription:,} keys"
            report.add(path, f"has subscription {refers.subscription:,}, and {given}", LATER)
    if extent is not None and end is not None and extent.last_position > end:
        problem = f"has a filter that begins or ends at position {extent.last_position:,}, and the log ends at {end:,}"
        report.add(data.catalogue, problem, LATER)


def _jobs(data: DataDirectory, report: Report) -> None:
    for path in sorted(data.jobs.glob("[!.]*.json")) if _is(data.jobs) else ():
        try:
            json.loads(path.read_bytes())
        except FileNotFoundError:
            continue  # the gateway has removed it
        except (OSError, ValueError) as error:
            report.add(path, f"is not JSON: {error}", "remove it: the driver does the job again")
