"""The log, written: durable, ordered, deduplicated.

    with Log("data/log") as log:
        positions = log.append(read_events(events, flights))

An append is on the disk before it is answered, wholly or not at all. Appends of several threads that
wait at the same time share one transaction and one fsync. A CloudEvent whose source and id are those
of a recent event of its domain is not appended again: its answer is the position of the first.

All domains share one log, so that they share the fsync, and a position alone says which event is meant.
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
import numpy as np

from tidings.store.log.appends import Append, Events, RecentIds, pages_of, prepared
from tidings.store.log.event_record import Name, name_of, parse, same_event
from tidings.store.log.log_errors import LogBusyError, LogConflictError, LogError, LogRangeError
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
from tidings.store.log.page import Page, unpack_keys
from tidings.store.log.topic_pages import Topic

REMEMBERED_EVENTS = 4_000_000  # whose identities are known: 16 bytes of memory each
MAX_WAITING_BYTES = 64 << 20
_GROUP_BYTES = 8 << 20  # of one transaction, so that the first in it need not wait for too many others
_CORRECTION_US = 10_000_000  # that a clock is set back now and then: times stand still until it has caught up
_REMOVED_AT_ONCE = 256  # pages that retention removes in one transaction, so that appends come in between

_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Job:
    """Something else for the one thread that writes."""

    work: Callable[[], Any]
    size: int = 0
    future: Future[Any] = field(default_factory=Future)


class Log(LogReader):
    """A log open for writing, made where there is none. One process at a time has it so."""

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
        self._ids = RecentIds(remember)
        self._cached: tuple[Page, list[str]] | None = None  # the page that a duplicate was last found in
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
            self._next = self.end  # raises where what was acknowledged is gone
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
        """Append events, wait until they are on the disk, and answer their positions.

        `events` are read by `read_events`, or plain records and CloudEvents with the name of their
        domain. The first kind keeps its typed columns, which Spark then reads without parsing.
        `texts` is the JSON of each event, where the caller has it: half of the work is writing that.
        """
        positions: list[int] = self._enqueue(prepared(events, domain, texts), wait=True).result()
        return positions

    def submit(
        self, events: Events, *, domain: str | None = None, texts: Sequence[str] | None = None
    ) -> Future[list[int]]:
        """As `append`, without waiting; `LogBusyError` where too much waits already."""
        return self._enqueue(prepared(events, domain, texts), wait=False)

    def retain(
        self, *, from_position: int | None = None, max_age: dt.timedelta | None = None, max_bytes: int | None = None
    ) -> int:
        """Remove the oldest events that any of these limits says to remove, and answer the new start.

        Events leave by pages, so that up to a page more is kept; the space is used again by new ones.
        """
        limit = self.kept_from(max_age=max_age, max_bytes=max_bytes)
        if from_position is not None:
            if not 0 <= from_position <= self.end:
                raise LogRangeError(f"log: cannot keep from position {from_position}, for the log ends at {self.end}")
            limit = max(limit, from_position)
        while self._do(lambda: self._remove_before(limit)):
            pass
        return self.start

    def close(self) -> None:
        """Write what waits, and let go of the log."""
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
                _answer(group[0].future, group[0].work)
            elif group:
                self._commit([item for item in group if isinstance(item, Append)])

    def _take(self) -> Iterator[Append | _Job]:
        """What is done next: one job, or appends that share a transaction."""
        taken = size = 0
        while self._waiting:
            item = self._waiting[0]
            size += item.size
            if taken and (isinstance(item, _Job) or size > _GROUP_BYTES):
                return
            taken += 1
            self._waiting_bytes -= item.size
            self._waiting.popleft()
            if item.future.set_running_or_notify_cancel():  # from here on nobody can cancel it
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
            placed = self._place(group)
            pages = list(pages_of(placed, self._next, self._now()))
            self._write(pages)
            self._remember(pages)
        except BaseException as error:  # whatever it is, nobody may wait forever
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
        """The time of the next append: the clock's, which may have been set back; a little is waited out."""
        now = time.time_ns() // 1000
        if not now <= self._time <= now + _CORRECTION_US:
            self._time = now
        return self._time

    def _make_ready(self) -> None:
        """See that the next page can be written, at a position that is known."""

    def _place(self, group: list[Append]) -> list[Append]:
        """Give every event its position, or that of its first appearance; refuse appends that conflict."""
        staged: dict[str, dict[Name, tuple[int, str]]] = {}  # events of this group by domain and name
        placed = []
        position = self._next
        for append in group:
            named = staged.setdefault(append.domain, {})
            try:
                duplicates, mine = self._duplicates(append, named, position)
            except LogError as error:
                append.future.set_exception(error)
                continue
            named |= mine
            count = len(append.texts)
            if duplicates:
                append.fresh = [row for row in range(count) if row not in duplicates]
                places = iter(range(position, position + len(append.fresh)))
                append.positions = [-1 if row in duplicates else next(places) for row in range(count)]
                for row, found in duplicates.items():
                    append.positions[row] = found
            else:
                append.fresh = range(count)
                append.positions = list(range(position, position + count))
            position += len(append.fresh)
            placed.append(append)
        return placed

    def _remember(self, pages: Iterable[Page]) -> None:
        """Note the identities of events that are there now."""
        for page in pages:
            if page.keys is not None:
                self._ids.add(unpack_keys(page.keys, page.first).tolist(), range(page.first, page.end))

    def _duplicates(
        self, append: Append, staged: dict[Name, tuple[int, str]], position: int
    ) -> tuple[dict[int, int], dict[Name, tuple[int, str]]]:
        """Of the rows that are there already, their positions; and the names of the others."""
        if append.keys is None:
            return {}, {}
        stored: dict[int, list[int]] = {}
        for row, place in self._ids.find(append.keys):
            stored.setdefault(row, []).append(place)
        duplicates: dict[int, int] = {}
        mine: dict[Name, tuple[int, str]] = {}
        for row in np.flatnonzero(append.keys).tolist():
            text, name = append.texts[row], append.names[row]
            assert name is not None
            earlier = staged.get(name) or mine.get(name) or self._stored(append.domain, name, stored.get(row, ()))
            if earlier is None:
                mine[name] = (position + row - len(duplicates), text)
                continue
            place, known = earlier
            if not same_event(known, text):
                raise LogConflictError(
                    f"log: row {row}: another event of '{append.domain}' with the source {name[0]!r} and the id "
                    f"{name[1]!r} is at position {place}; give this one an id of its own",
                    row=row,
                    position=place,
                )
            duplicates[row] = place
        return duplicates, mine

    def _stored(self, domain: str, name: Name, candidates: Sequence[int]) -> tuple[int, str] | None:
        """Position and text of the event of this name, among positions where its key was seen."""
        for position in candidates:
            page, texts = self._cached or (None, [])
            if page is None or not page.first <= position < page.end:
                try:
                    page = next(self.pages(position, position + 1))
                except (LogRangeError, StopIteration):
                    continue  # it is there no more
                texts = page.texts()
                self._cached = (page, texts)
            text = texts[position - page.first]
            if page.domain == domain and name_of(parse(text)) == name:
                return position, text
        return None

    def _write(self, pages: list[Page]) -> None:
        if not pages:
            return  # duplicates alone
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
            # A sync that failed may have dropped what it should have written, and the next would not notice.
            self._failed = LogError(
                f"log: the disk failed while events from position {self._next} on were written ({error}): whether "
                "they are kept is known when the log is opened again, which it has to be"
            )
            raise self._failed from error

    def _remove_before(self, limit: int) -> bool:
        """Remove some pages that lie wholly before a position; whether there are more."""
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
        self._cached = None
        return len(pages) == _REMOVED_AT_ONCE

    def _recover(self, remember: int) -> None:
        """What is known from the files when the log is opened."""
        last = self._ask("SELECT time FROM pages ORDER BY first DESC LIMIT 1")
        self._time = last[0][0] if last else 0
        if self._topic is None:
            self._mark.write(self._next)
        recent = "SELECT first, count, keys FROM pages WHERE first >= ? AND keys IS NOT NULL ORDER BY first"
        with translated("cannot read"):
            pages: Iterator[Any] = self._writer.execute(recent, (self._first_of_newest(remember),))
            for first, count, keys in pages:
                self._ids.add(unpack_keys(keys, first).tolist(), range(first, first + count))

    def _first_of_newest(self, events: int) -> int:
        """Where the newest of so many events begin; positions that are lost have none."""
        at = self._next
        for first, last in self._ask("SELECT first, last FROM lost ORDER BY first DESC"):
            between = at - (last + 1)
            if between >= events:
                break
            events -= max(between, 0)
            at = first
        return int(at - events)


def _answer(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
