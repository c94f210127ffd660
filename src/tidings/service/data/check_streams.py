"""What Spark's side of a domain has on the disk: its index, and the checkpoint of its stream.

Both can be made again, the index from the catalogue and the checkpoint from the mailboxes, so that damage of them costs
time and nothing else.
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
_QUERY = "start the service: the stream goes on without it, after the last position that its mailboxes have"


def check_streams(files: DomainFiles, end: int | None, report: Report, progress: Callable[[int, int], None]) -> None:
    """Look at the index and the checkpoint of one domain; `end` is where the log ends, where that is known."""
    progress(0, 1)
    if files.index.is_dir():
        _check_index(files, report)
    if files.query.is_dir() and any(files.query.iterdir()):  # an empty one is of a backup, and not begun
        _Query(files.key, files.query, end, report).check(partial(_loaded, files.mailboxes, Notifications))
    progress(1, 1)


def check_shared(files: SharedFiles, end: int | None, report: Report) -> None:
    """Look at the checkpoint of the stream that small domains share."""
    if files.query.is_dir() and any(files.query.iterdir()):
        query = _Query("the shared stream", files.query, end, report)
        query.check(partial(_loaded, files.progress, SharedProgress))


def _loaded(path: Path, kind: type[Notifications | SharedProgress], query: str) -> int | None:
    """The last batch of a query that is in the mailboxes."""
    with kind(path, read_only=True) as store:
        return store.last_batch(query)


def _check_index(files: DomainFiles, report: Report) -> None:
    directory = IndexDirectory(files.index)
    while True:
        version = None
        try:
            version = directory.current()
            if version is None:
                return  # nothing was compiled yet
            found = describe_version(directory, version)
        except TidingsError as error:
            if report.running and directory.current() != version:
                continue  # another has taken its place meanwhile
            report.add(files.index, str(error), _INDEX.format(files.index))
            return
        report.sound.append(f"index of {files.key}: version {version}, {found.subscriptions:,} subscriptions")
        return


class _Query:
    """The checkpoint of a stream, read as it lies there."""

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
            with contextlib.suppress(TidingsError):  # which was said of the mailboxes
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
            self._wrong(f"offsets/{batch}", f"makes no sense ({error!r})")
            return
        if self._end is not None and position > self._end:
            self._wrong(f"offsets/{batch}", f"is at position {position:,}, and the log ends at {self._end:,}")

    def _check_store(self, loaded: int | None, planned: int, done: int) -> None:
        """The mailboxes may be one batch ahead: they are loaded before Spark writes down that a batch is done."""
        if loaded is not None and loaded > planned:
            self._wrong("offsets", f"come to batch {planned}, and the mailboxes have {loaded}: they are an old copy")
        elif done > (-1 if loaded is None else loaded):
            self._wrong("commits", f"come to batch {done}, and the mailboxes to {loaded}, which are an old copy")

    def _batches(self, folder: str) -> list[int]:
        path = self._path / folder
        return sorted(int(one.name) for one in path.iterdir() if one.name.isdecimal()) if path.is_dir() else []

    def _lines(self, name: str, count: int) -> list[str] | None:
        """What Spark has written to a file: a version, and so many lines in all at least."""
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
            self._wrong(name, f"holds no JSON ({error})")
            return None
        return found if isinstance(found, dict) else None

    def _text(self, name: str) -> str | None:
        path: Path = self._path / name
        try:
            return path.read_text()
        except FileNotFoundError as error:
            if not self._report.running:  # else Spark may have removed it, as it does with old ones
                self._wrong(name, f"cannot be read ({error.strerror})")
        except (OSError, ValueError) as error:
            self._wrong(name, f"cannot be read ({error})")
        return None

    def _wrong(self, name: str, problem: str) -> None:
        self._sound = False
        self._report.add(self._path / name, problem, _QUERY)
