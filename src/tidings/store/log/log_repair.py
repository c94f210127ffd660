"""Repairs a log with wrong checksums when there is no copy to restore.

A damaged log raises an error when the damage is read, and cannot be opened for writing when acknowledged events are
missing. `repair` records those positions as lost: they are never used again, readers skip them, and all others stay as
they are.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidings.store.log.log_errors import LogCorruptError
from tidings.store.log.log_files import (
    BUSY_SECONDS,
    Acknowledged,
    WriterLock,
    ask,
    open_to_read,
    open_to_write,
    translated,
)
from tidings.store.log.page import Page

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LostPositions:
    """Positions that are lost, and why."""

    first: int
    last: int
    reason: str


def repair(directory: str | os.PathLike[str], *, busy_seconds: float = BUSY_SECONDS) -> list[LostPositions]:
    """Give up what cannot be read; returns those positions, none for a sound log.

    If SQLite itself cannot read its file, an error says so, and only a copy helps.
    """
    path = Path(directory)
    lock = WriterLock(path)
    mark = Acknowledged(path, write=True)
    try:
        connection = open_to_write(path, busy_seconds)
        try:
            lost = _give_up(connection, mark.read())
        finally:
            connection.close()
    finally:
        mark.close()
        lock.release()
    for gone in lost:
        _logger.warning("log: %s: positions %d to %d are lost: %s", path, gone.first, gone.last, gone.reason)
    return lost


def damage(directory: Path, progress: Callable[[int, int], None] = lambda done, of: None) -> list[LostPositions]:
    """Returns what `repair` would give up: positions whose events are not as they were written. Changes nothing.

    `progress` is called with the number of pages read, and of all pages.
    """
    mark = Acknowledged(directory, write=False)
    acknowledged = mark.read()  # before the log itself is read: it only grows
    mark.close()
    connection = open_to_read(directory, BUSY_SECONDS)
    try:
        ask(connection, "BEGIN")
        lost, _ = _found(connection, acknowledged, progress)
    finally:
        connection.close()
    return lost


def _give_up(connection: Any, acknowledged: int) -> list[LostPositions]:
    lost, damaged = _found(connection, acknowledged, lambda done, of: None)
    with translated("cannot repair"), connection:
        for first in damaged:
            ask(connection, "DELETE FROM pages WHERE first = ?", (first,))
        for gone in lost:
            ask(connection, "INSERT INTO lost VALUES (?, ?, ?)", (gone.first, gone.last, gone.reason))
    return lost


def _found(
    connection: Any, acknowledged: int, progress: Callable[[int, int], None]
) -> tuple[list[LostPositions], list[int]]:
    """Returns the positions that are lost, and the damaged pages."""
    lost: list[LostPositions] = []
    damaged: list[int] = []
    with translated("cannot read"):
        ((pages,),) = ask(connection, "SELECT count(*) FROM pages")
        assert isinstance(pages, int)
        start = ask(connection, "SELECT coalesce(max(last) + 1, 0) FROM removed")[0][0]
        known: list[Any] = ask(connection, "SELECT first, last FROM lost")
        at: Any = start
        for done, row in enumerate(connection.execute("SELECT * FROM pages ORDER BY first"), 1):
            progress(done, pages)
            page = Page(*row)
            try:
                page.verify()
            except LogCorruptError:
                damaged.append(page.first)
                continue  # its count may be wrong too: the gap ends where the next sound page begins
            lost += _missing(at, page.first, known, "the checksum is wrong, or the page is gone")
            at = page.end
        # Damaged pages at the end reach as far as they say, so that their positions are not used again.
        ends: list[Any] = ask(connection, "SELECT max(first + count) FROM pages WHERE first >= ?", (at,))
        end = max(acknowledged, *(lost_last + 1 for _, lost_last in known), ends[0][0] or 0, 0)
        lost += _missing(at, end, known, "the tail of the file is damaged, or an old copy was restored")
    return lost, damaged


def _missing(first: int, end: int, known: list[Any], reason: str) -> list[LostPositions]:
    """Returns the positions [first, end), without those that were given up before."""
    missing = []
    for known_first, known_last in sorted(known):
        if known_first < end and known_last >= first:
            if known_first > first:
                missing.append(LostPositions(first, known_first - 1, reason))
            first = known_last + 1
    if first < end:
        missing.append(LostPositions(first, end - 1, reason))
    return missing
