"""The log in a topic of Kafka: pages go there, and the directory has an index of them.

    with open_log("data/log", "kafka://broker:9092/events") as log:
        positions = log.append(read_events(events, flights))

An append returns when the topic has it and the index knows it. Readers see what the index has, so positions mean the
same as in a log that keeps its pages itself: order, identities, the end of the log. The index may lag after a crash, or
be lost with its disk: before it begins, the writer adds what the topic has beyond it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidings.store.log.log_errors import LogBusyError, LogCorruptError, LogError, LogUnknownError
from tidings.store.log.log_files import ask, translated
from tidings.store.log.log_writer import Log
from tidings.store.log.page import Page, without_columns
from tidings.store.log.topic_pages import Following, Topic, opening, packed, topic_at, write_place

_TRIES = 5  # to take a place in the topic, where others write to it
_TOGETHER = 1_000  # records that are indexed at once
_TOGETHER_BYTES = 16 << 20

_logger = logging.getLogger(__name__)


def open_log(directory: str | os.PathLike[str], url: str | None = None, **options: Any) -> Log:
    """Opens the log of a directory for writing; with a URL, its pages are in the topic that it names."""
    if url is None:
        return Log(directory, **options)
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_place(path, url)
    except OSError as error:
        raise LogError(f"log: cannot write to {path}: {error}") from None
    topic = topic_at(url)
    try:
        return TopicLog(path, topic, **options)
    except BaseException:
        topic.close()
        raise


class TopicLog(Log):
    """A log whose pages are in a topic, open for writing."""

    def __init__(self, directory: str | os.PathLike[str], topic: Topic, **options: Any) -> None:
        self._pages_in = topic
        self._has_place = False  # whether the next record of the topic is ours to write
        self._offset = 0  # all records before it were read
        super().__init__(directory, topic=topic, **options)

    # -- on the writing thread ---------------------------------------------------------------------

    def _make_ready(self) -> None:
        """Index what the topic has beyond the index, then take the place after it."""
        if self._has_place:
            return
        topic = self._pages_in
        for _ in range(_TRIES):
            end = self._catch_up()
            try:
                offsets = topic.append(packed([opening(self._next, self._now())], end))
            except LogUnknownError as error:  # the topic is read again to see
                _logger.warning("%s", error)
                continue
            if offsets == [end]:
                self._index([], end + 1)
                self._has_place = True
                return
        raise LogBusyError(
            f"log: cannot write to {topic.name}: it does not respond, or others write to it, and a log has one writer; "
            "try again"
        )

    def _catch_up(self) -> int:
        """Index every commit that counts; returns the offset of the next record."""
        topic = self._pages_in
        self._offset, self._next = int(self._ask("SELECT offset FROM followed")[0][0]), self.end
        low, high = topic.bounds()
        self._check_bounds(low, high)
        self._forget_before(low)
        new = self._offset == 0
        at = max(low, self._offset)
        following = Following(cut=new and low > 0)
        while at < high:
            records = topic.read(range(at, min(high, at + _TOGETHER)), max_bytes=_TOGETHER_BYTES)
            upto = max(records, default=min(high, at + _TOGETHER) - 1) + 1
            commits: list[tuple[int, list[Page]]] = []
            for offset in range(at, upto):
                pages = following.take(offset, records.get(offset))
                if pages is not None:
                    commits.append((offset - len(pages) + 1, pages))
            if new and commits:
                self._begin_at(commits[0][1][0])
                new = False
            self._take_in(commits, upto - following.waiting)
            at = upto
        return high

    def _check_bounds(self, low: int, high: int) -> None:
        name = self._pages_in.name
        if high < self._offset:
            raise LogCorruptError(
                f"log: {name} ends at offset {high}, and it had {self._offset} records: it has lost records "
                "that it had confirmed, or is another topic; restore it, or use another directory",
                position=self._next,
            )
        if low == high and low > self._offset:
            raise LogCorruptError(
                f"log: {name} has nothing left of its {high} records, and this log has not read all of them: the "
                "next position is not known; restore the directory, or use another topic",
                position=self._next,
            )

    def _begin_at(self, page: Page) -> None:
        """Begin a rebuilt index at the first page of a topic whose earlier events were removed."""
        if page.first > 0:
            with translated("cannot write"), self._writer:
                ask(self._writer, "INSERT OR REPLACE INTO removed VALUES ('', ?)", (page.first - 1,))
        self._next = page.first

    def _take_in(self, commits: Sequence[tuple[int, list[Page]]], followed: int) -> None:
        placed: list[tuple[int, Page]] = []
        for offset, pages in commits:
            for at, page in enumerate(pages, offset):
                if page.first != self._next:
                    raise LogCorruptError(
                        f"log: {self._pages_in.name} has position {page.first} at offset {at}, where {self._next} "
                        "comes next: records are missing before it, or it is a topic of two logs",
                        position=self._next,
                    )
                page.verify()
                self._next = page.end
                self._time = page.time
                placed += [(at, page)] if page.count else []
        self._index(placed, followed)
        self._remember(page for _, page in placed)

    def _index(self, placed: Sequence[tuple[int, Page]], followed: int) -> None:
        """Write down where pages are; from then on readers see them."""
        writer = self._writer
        rows = [replace(page, events=b"", attributes=None) for _, page in placed]
        values = ((*(getattr(page, name) for name in Page.__slots__),) for page in rows)
        places = ((page.first, offset, _size(page)) for offset, page in placed)
        with translated(f"cannot note pages from position {self._next} on"), writer:
            writer.executemany("INSERT INTO pages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
            writer.executemany("INSERT INTO placed VALUES (?, ?, ?)", places)
            ask(writer, "UPDATE followed SET offset = ?", (followed,))
        self._offset = followed

    def _write(self, pages: list[Page]) -> None:
        if not pages:
            return  # duplicates alone
        bytes_max = self._pages_in.max_record_bytes
        pages = [page if _size(page) < bytes_max // 2 else without_columns(page) for page in pages]
        begin = self._offset
        self._has_place = False  # until all has gone well
        offsets = self._pages_in.append(packed(pages, begin))
        if offsets != list(range(begin, begin + len(pages))):  # then not all of them count, so none does
            raise LogBusyError(
                f"log: another process has written to {self._pages_in.name}, and a log has one writer: stop it, then "
                "try again"
            )
        try:
            self._index(list(zip(offsets, pages, strict=True)), begin + len(pages))
        except LogError as error:
            raise LogUnknownError(f"{error} (the events are in the topic, and are indexed later)") from error
        self._next = pages[-1].end
        self._has_place = True

    def _remove_before(self, limit: int) -> bool:
        more = super()._remove_before(limit)
        if not more:
            first: list[Any] = self._ask("SELECT offset FROM placed ORDER BY first LIMIT 1")
            # The last record stays: it has the next position of the log.
            self._pages_in.remove_before(min([self._offset - 1, *(row[0] for row in first)]))
        return more

    def _forget_before(self, offset: int) -> None:
        """Remove from the index the events that the topic itself has removed."""
        last_before = (
            "SELECT first + count FROM pages JOIN placed USING (first) WHERE offset < ? ORDER BY first DESC LIMIT 1"
        )
        gone: list[Any] = self._ask(last_before, offset)
        if gone:
            _logger.warning("log: %s has removed the events before position %d", self._pages_in.name, gone[0][0])
            while super()._remove_before(gone[0][0]):
                pass


def _size(page: Page) -> int:
    return len(page.events) + len(page.attributes or b"") + len(page.keys or b"")
