"""Checks what Spark needs of a domain: its index, and the checkpoint of its stream.

Both can be rebuilt, the index from the catalogue and the checkpoint from the mailboxes, so damage only costs time.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.errors import TidingsError
from tidings.pipeline.build.index_directory import IndexDirectory, describe_version
from tidings.pipeline.streams.checkpoint import IDENTITY
from tidings.service.data.data_directory import DomainFiles, SharedFiles
from tidings.store.mailboxes.notifications import Notifications
from tidings.store.mailboxes.shared_progress import SharedProgress

if TYPE_CHECKING:
    from tidings.service.data.check_data import Report

_INDEX = "stop the service and remove the directory {}: it is compiled again from the catalogue"
_QUERY = "start the service: the stream continues without it, after the last position that its mailboxes have"


def check_streams(files: DomainFiles, end: int | None, report: Report, progress: Callable[[int, int], None]) -> None:
    """Check the index and the checkpoint of one domain; `end` is the end of the log, if known."""
    progress(0, 1)
    if files.index.is_dir():
        _check_index(files, report)
    if files.query.is_dir() and any(files.query.iterdir()):  # an empty one is new, or of a backup
        _Query(files.key, files.query, end, report).check(partial(_loaded, files.mailboxes, Notifications))
    progress(1, 1)


def check_shared(files: SharedFiles, end: int | None, report: Report) -> None:
    """Check the checkpoint of the stream that small domains share."""
    if files.query.is_dir() and any(files.query.iterdir()):
        query = _Query("the shared stream", files.query, end, report)
        query.check(partial(_loaded, files.progress, SharedProgress))


def _loaded(path: Path, kind: type[Notifications | SharedProgress], query: str) -> int | None:
    """Returns the last batch of a query that is in the mailboxes."""
    with kind(path, read_only=True) as store:
        return store.last_batch(query)


def _check_index(files: DomainFiles, report: Report) -> None:
    directory = IndexDirectory(files.index)
    while True:
        version = None
        try:
            version = directory.current()
            if version is None:
                return  # nothing is compiled yet
            found = describe_version(directory, version)
        except TidingsError as error:
            if report.running and directory.current() != version:
                continue  # it was replaced meanwhile
            report.add(files.index, str(error), _INDEX.format(files.index))
            return
        report.sound.append(f"index of {files.key}: version {version}, {found.subscriptions:,} subscriptions")
        return


class _Query:
    """Checks the checkpoint of a stream, without Spark."""

    def __init__(self, key: str, path: Path, end: int | None, report: Report) -> None:
        self._key = key
        self._path = path
        self._end = end
        self._report = report
        self._sound = True

    def check(self, loaded: Callable[[str], int | None]) -> None:
        form = self._json(IDENTITY)
        offsets, commits = self._batches("offsets"), self._batches("commits")
        for batch in offsets:
            self._check_offset(batch)
        for batch in commits:
            self._lines(f"commits/{batch}", 2)
        planned, done = max(offsets, default=-1), max(commits, default=-1)
        if done > planned:
            self._wrong("commits", f"batch {done} is done, and {planned} is the last that was planned")
        if form is not None and not self._report.running:
            with contextlib.suppress(TidingsError):  # which is reported for the mailboxes
                self._check_store(loaded(str(form.get("query"))), planned, done)
        if self._sound:
            self._report.sound.append(f"checkpoint of {self._key}: {done + 1:,} batches are done")

    def _check_offset(self, batch: int) -> None:
        lines = self._lines(f"offsets/{batch}", 3)
        if lines is None:
            return
        try:
            offset = json.loads(lines[2])
            position, _ = int(offset["log"]), int(offset["subscriptions"])
        except (ValueError, KeyError, TypeError) as error:
            self._wrong(f"offsets/{batch}", f"cannot be read ({error!r})")
            return
        if self._end is not None and position > self._end:
            self._wrong(f"offsets/{batch}", f"is at position {position:,}, and the log ends at {self._end:,}")

    def _check_store(self, loaded: int | None, planned: int, done: int) -> None:
        """The mailboxes may be one batch ahead: they are loaded before Spark notes that a batch is done."""
        if loaded is not None and loaded > planned:
            self._wrong("offsets", f"come to batch {planned}, and the mailboxes have {loaded}: they are an old copy")
        elif done > (-1 if loaded is None else loaded):
            self._wrong("commits", f"come to batch {done}, and the mailboxes to {loaded}, which are an old copy")

    def _batches(self, folder: str) -> list[int]:
        path = self._path / folder
        return sorted(int(one.name) for one in path.iterdir() if one.name.isdecimal()) if path.is_dir() else []

    def _lines(self, name: str, count: int) -> list[str] | None:
        """Returns the lines of a file that Spark has written: a version, and at least this many lines in all."""
        text = self._text(name)
        if text is None:
            return None
        lines = text.splitlines()
        if len(lines) < count or not re.fullmatch(r"v\d+", lines[0]):
            self._wrong(name, "is cut short" if text else "is empty")
            return None
        return lines

    def _json(self, name: str) -> dict[str, Any] | None:
        text = self._text(name)
        try:
            found = None if text is None else json.loads(text)
        except ValueError as error:
            self._wrong(name, f"is not JSON ({error})")
            return None
        return found if isinstance(found, dict) else None

    def _text(self, name: str) -> str | None:
        path: Path = self._path / name
        try:
            return path.read_text()
        except FileNotFoundError as error:
            if not self._report.running:  # otherwise Spark may have removed it, as it does with old ones
                self._wrong(name, f"cannot be read ({error.strerror})")
        except (OSError, ValueError) as error:
            self._wrong(name, f"cannot be read ({error})")
        return None

    def _wrong(self, name: str, problem: str) -> None:
        self._sound = False
        self._report.add(self._path / name, problem, _QUERY)
