"""The log, written: durable, ordered, deduplicated.

    with Log("data/log") as log:
        positions = log.append(read_events(events, flights))

An append is on the disk when it returns, wholly or not at all. Appends of several threads that wait at the same time
share one transaction and one fsync. A CloudEvent whose source and id are those of a recent event of its domain is not
appended again: the position of the first is returned.

All domains share one log: they share the fsync, and a position alone identifies an event.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from tidings.store.log.appends import Append, DuplicateSearch, Events, pages_of, prepared
from tidings.store.log.log_errors import LogBusyError, LogError, LogRangeError
from tidings.store.log.log_files import (
    BUSY_SECONDS,
    Acknowledged,
    WriterLock,
    ask,
    open_to_write,
    sync_directory,
    translated,
    unfinished_bytes,
)
from tidings.store.log.log_reader import LogReader
from tidings.store.log.page import Page
from tidings.store.log.topic_pages import Topic

REMEMBERED_EVENTS = 4_000_000  # whose identities are known: 16 bytes of memory each
MAX_WAITING_BYTES = 64 << 20
_GROUP_BYTES = 8 << 20  # of one transaction, so that the first in it does not wait for too many others
_CORRECTION_US = 10_000_000  # by which a clock may be set back: times stand still until it has caught up
_REMOVED_AT_ONCE = 256  # pages that retention removes in one transaction: appends are written in between

_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Job:
    """Other work for the one thread that writes."""

    work: Callable[[], Any]
    size: int = 0
    future: Future[Any] = field(default_factory=Future)


class Log(LogReader):
    """A log open for writing, made if there is none. One process at a time can have it open so."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        remember: int = REMEMBERED_EVENTS,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        busy_seconds: float = BUSY_SECONDS,
        topic: Topic | None = None,
    ) -> None:
        path = Path(directory)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LogError(f"log: cannot make {path}: {error}") from None
        self._time = 0  # of the last append
        self._search = DuplicateSearch(remember, self.pages)
        with contextlib.ExitStack() as opened:
            opened.callback(WriterLock(path).release)
            self._mark = Acknowledged(path, write=True)
            opened.callback(self._mark.close)
            self._writer = open_to_write(path, busy_seconds, in_topic=topic is not None)
            opened.callback(self._writer.close)  # checkpoints
            unfinished = unfinished_bytes(self._writer, path)
            sync_directory(path)
            super().__init__(path, busy_seconds=busy_seconds, topic=topic)
            opened.callback(super().close)
            self._next = self.end  # raises if acknowledged events are missing
            if unfinished:
                _logger.warning(
                    "log: %s: %d bytes of an append that was never acknowledged were cut off", path, unfinished
                )
            self._recover(remember)
            self._make_ready()
            self._opened = opened.pop_all()
        self._max_waiting = max_waiting_bytes
        self._waiting: deque[Append | _Job] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._failed: LogError | None = None
        self._thread = threading.Thread(target=self._run, name="tidings-log", daemon=True)
        self._thread.start()

    def append(self, events: Events, *, domain: str | None = None, texts: Sequence[str] | None = None) -> list[int]:
        """Append events, wait until they are on the disk, and return their positions.

        `events` come from `read_events`, or are plain records and CloudEvents with the name of their domain. The first
        kind keeps its typed columns, which Spark then reads without parsing. `texts` is the JSON of each event, if the
        caller has it: writing it is half of the work.
        """
        positions: list[int] = self._enqueue(prepared(events, domain, texts), wait=True).result()
        return positions

    def submit(
        self, events: Events, *, domain: str | None = None, texts: Sequence[str] | None = None
    ) -> Future[list[int]]:
        """Like `append`, without waiting; raises LogBusyError if too much waits already."""
        return self._enqueue(prepared(events, domain, texts), wait=False)

    def retain(
        self, *, from_position: int | None = None, max_age: dt.timedelta | None = None, max_bytes: int | None = None
    ) -> int:
        """Remove the oldest events that any of these limits excludes; returns the new start.

        Events are removed by pages, so up to a page more is kept; new events reuse the space.
        """
        limit = self.kept_from(max_age=max_age, max_bytes=max_bytes)
        if from_position is not None:
            if not 0 <= from_position <= self.end:
                raise LogRangeError(f"log: cannot keep from position {from_position}: the log ends at {self.end}")
            limit = max(limit, from_position)
        while self._do(lambda: self._remove_before(limit)):
            pass
        return self.start

    def close(self) -> None:
        """Write what waits, and release the log."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        with translated("cannot close"):
            self._opened.close()

    # -- the queue ---------------------------------------------------------------------------------

    def _do(self, work: Callable[[], Any]) -> Any:
        return self._enqueue(_Job(work), wait=True).result()

    def _enqueue(self, item: Append | _Job, *, wait: bool) -> Future[Any]:
        with self._changed:
            while self._waiting and self._waiting_bytes + item.size > self._max_waiting and not self._closing:
                if not wait:
                    raise LogBusyError(f"log: {self._waiting_bytes} bytes wait to be written already; try again")
                self._changed.wait()
            if self._closing:
                raise LogError("log: it is closed")
            self._waiting.append(item)
            self._waiting_bytes += item.size
            self._changed.notify_all()
        return item.future

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                group = list(self._take())
                self._changed.notify_all()
            if group and isinstance(group[0], _Job):
                _complete(group[0].future, group[0].work)
            elif group:
                self._commit([item for item in group if isinstance(item, Append)])

    def _take(self) -> Iterator[Append | _Job]:
        """Yields what is done next: one job, or appends that share a transaction."""
        taken = size = 0
        while self._waiting:
            item = self._waiting[0]
            size += item.size
            if taken and (isinstance(item, _Job) or size > _GROUP_BYTES):
                return
            taken += 1
            self._waiting_bytes -= item.size
            self._waiting.popleft()
            if item.future.set_running_or_notify_cancel():  # from here on it cannot be cancelled
                yield item
            if isinstance(item, _Job):
                return

    # -- on the writing thread ---------------------------------------------------------------------

    def _commit(self, group: list[Append]) -> None:
        try:
            if self._failed is not None:
                raise self._failed
            self._make_ready()
            group.sort(key=lambda append: append.domain)  # larger pages; the order in each domain stays
            placed = self._search.place(group, self._next)
            pages = list(pages_of(placed, self._next, self._now()))
            self._write(pages)
            self._remember(pages)
        except BaseException as error:  # whatever it is, no caller may wait forever
            if not isinstance(error, LogError):
                self._failed = LogError(f"log: the writing thread failed ({error!r}); open the log again")
                _logger.exception("log: the writing thread failed")
            for append in group:
                if not append.future.done():
                    append.future.set_exception(error)
            return
        for append in placed:
            append.future.set_result(append.positions)

    def _now(self) -> int:
        """Returns the time of the next append: the clock's; if it was set back a little, the last time again."""
        now = time.time_ns() // 1000
        if not now <= self._time <= now + _CORRECTION_US:
            self._time = now
        return self._time

    def _make_ready(self) -> None:
        """Called before pages are written: a log in a topic takes its place there."""

    def _remember(self, pages: Iterable[Page]) -> None:
        for page in pages:
            self._search.remember(page.keys, page.first, page.end)

    def _write(self, pages: list[Page]) -> None:
        if not pages:
            return  # only duplicates
        writer = self._writer
        values = ((*(getattr(page, name) for name in Page.__slots__),) for page in pages)
        with translated(f"cannot append at position {self._next}", position=self._next):
            try:
                ask(writer, "BEGIN IMMEDIATE")
                writer.executemany("INSERT INTO pages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
                self._sync(writer)
            finally:
                if writer.in_transaction:
                    ask(writer, "ROLLBACK")
        self._next = pages[-1].end
        self._mark.write(self._next)

    def _sync(self, writer: apsw.Connection) -> None:
        try:
            ask(writer, "COMMIT")
        except apsw.IOError as error:
            # A failed sync may have dropped what it should have written, and the next one would not notice.
            self._failed = LogError(
                f"log: the disk failed while events from position {self._next} on were written ({error}): whether "
                "they are kept is known when the log is opened again"
            )
            raise self._failed from error

    def _remove_before(self, limit: int) -> bool:
        """Remove some pages that lie wholly before a position; returns whether there are more."""
        chosen = "SELECT first, count, domain FROM pages WHERE first < ? AND first + count <= ? ORDER BY first LIMIT ?"
        with translated("cannot remove old events"):
            pages: list[Any] = ask(self._writer, chosen, (limit, limit, _REMOVED_AT_ONCE))
            if not pages:
                return False
            with self._writer:
                for domain in {page[2] for page in pages}:
                    last = max(first + count - 1 for first, count, of in pages if of == domain)
                    ask(self._writer, "INSERT OR REPLACE INTO removed VALUES (?, ?)", (domain, last))
                ask(self._writer, "DELETE FROM pages WHERE first <= ?", (pages[-1][0],))
                ask(self._writer, "DELETE FROM clock_steps WHERE first <= ?", (pages[-1][0],))
        self._search.forget_page()
        return len(pages) == _REMOVED_AT_ONCE

    def _recover(self, remember: int) -> None:
        """Read from the files what the writer has to know: the last time, and recent identities."""
        last = self._ask("SELECT time FROM pages ORDER BY first DESC LIMIT 1")
        self._time = last[0][0] if last else 0
        if self._topic is None:
            self._mark.write(self._next)
        recent = "SELECT first, count, keys FROM pages WHERE first >= ? AND keys IS NOT NULL ORDER BY first"
        with translated("cannot read"):
            pages: Iterator[Any] = self._writer.execute(recent, (self._first_of_newest(remember),))
            for first, count, keys in pages:
                self._search.remember(keys, first, first + count)

    def _first_of_newest(self, events: int) -> int:
        """Returns where the newest of this many events begin; lost positions have no events."""
        at = self._next
        for first, last in self._ask("SELECT first, last FROM lost ORDER BY first DESC"):
            between = at - (last + 1)
            if between >= events:
                break
            events -= max(between, 0)
            at = first
        return int(at - events)


def _complete(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
