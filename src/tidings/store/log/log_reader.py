"""Reads the log: by position, as Arrow, from any process, while it is written.

    with LogReader("data/log") as log:
        for batch in log.read(log.start, log.end):           # position, time, domain, source, id, type, event
            ...
        for part in log.read_attributes(flights, 0, 1_000):  # the attributes of one domain, as typed columns
            ...

Every page that is read has its checksum verified, and every position is accounted for: a missing one was removed by
retention (`LogRangeError`), or is damage (`LogCorruptError`).
"""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import pyarrow as pa

from tidings.model.domain import Domain
from tidings.store.log.event_record import parse
from tidings.store.log.log_errors import LogCorruptError, LogRangeError
from tidings.store.log.log_files import BUSY_SECONDS, Acknowledged, ask, open_to_read, translated
from tidings.store.log.page import EventColumns, Page, attribute_columns, raw_batches
from tidings.store.log.topic_pages import PlacedPage, Topic, fetched, topic_at, written_place

_FETCH_BYTES = 8 << 20  # of pages in memory at a time, and one page more

_START = "(SELECT coalesce(max(last) + 1, 0) FROM removed)"
_END = f"""max((SELECT coalesce((SELECT first + count FROM pages ORDER BY first DESC LIMIT 1), 0)),
               (SELECT coalesce(max(last) + 1, 0) FROM lost), {_START})"""
_FROM_PAGE_WITH = "first >= coalesce((SELECT max(first) FROM pages WHERE first <= ?1), ?1) AND first + count > ?1"
# Of some domains, as a JSON list; of all if that is NULL.
_OF_DOMAINS = "(?3 IS NULL OR domain IN (SELECT value FROM json_each(?3)))"
_PAGES = f"""SELECT first, count, domain, time, checksum, length,
    CASE WHEN {_OF_DOMAINS} THEN keys END, CASE WHEN {_OF_DOMAINS} THEN events END,
    CASE WHEN {_OF_DOMAINS} THEN attributes END
    FROM pages WHERE {_FROM_PAGE_WITH} AND first < ?2 ORDER BY first"""
_SIZES = "SELECT first, count, domain, length(events) + coalesce(length(attributes), 0) AS size FROM pages"
_PLACED_SIZES = "SELECT first, count, domain, size FROM pages JOIN placed USING (first)"  # of pages in a topic
_PLACED = f"""SELECT first, count, domain, time, checksum, length, offset, size FROM pages JOIN placed USING (first)
    WHERE {_FROM_PAGE_WITH} AND first < ?2 AND {_OF_DOMAINS} ORDER BY first"""
_HEADERS = f"""SELECT first, count, length FROM pages
    WHERE {_FROM_PAGE_WITH} AND first < ?2 AND {_OF_DOMAINS} ORDER BY first"""
_REMOVED = (
    "SELECT coalesce(max(last) + 1, 0) FROM removed WHERE ?1 IS NULL OR domain IN (SELECT value FROM json_each(?1))"
)

Domains: TypeAlias = str | Collection[str] | None  # the key of one, those of several; None: all
_Ask: TypeAlias = Callable[..., list[Any]]  # SQL and its values

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)


def _now() -> int:
    """Returns microseconds since 1970, as times are in the log."""
    return time.time_ns() // 1000


@dataclass(frozen=True)
class LoggedEvent:
    """One event, and when and where it was appended."""

    position: int
    time: dt.datetime
    domain: str
    event: dict[str, Any]  # as published: a record, or a CloudEvent with the record in `data`


class LogReader:
    """Reads a log. Any number of readers, in any process; threads may share one."""

    def __init__(
        self, directory: str | os.PathLike[str], *, busy_seconds: float = BUSY_SECONDS, topic: Topic | None = None
    ) -> None:
        self.directory = Path(directory)
        self.place = written_place(self.directory)  # the URL of the topic that has the pages; None: they are here
        self._topic = topic_at(self.place) if topic is None and self.place is not None else topic
        self._connection = open_to_read(self.directory, busy_seconds, in_topic=self._topic is not None)
        self._acknowledged = Acknowledged(self.directory, write=False)
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            self._acknowledged.close()
        if self._topic is not None:
            self._topic.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def start(self) -> int:
        """The first position that retention has left."""
        return int(self._ask(f"SELECT {_START}")[0][0])

    @property
    def end(self) -> int:
        """The position that the next event will have."""
        acknowledged = self._acknowledged.read()  # before the end: it only grows
        end = int(self._ask(f"SELECT {_END}")[0][0])
        if end < acknowledged:
            raise LogCorruptError(
                f"log: {self.directory} was acknowledged up to position {acknowledged - 1}, and ends at "
                f"{end - 1}: its tail is damaged, or an old copy was restored; restore a newer one, or give "
                f"the positions up with tidings.store.log.log_repair",
                position=end,
            )
        return end

    @property
    def stored_bytes(self) -> int:
        """How many bytes the events take, compressed, without SQLite's own overhead."""
        return int(self._ask(f"SELECT coalesce(sum(size), 0) FROM ({self._sizes})")[0][0])

    @property
    def _sizes(self) -> str:
        return _SIZES if self._topic is None else _PLACED_SIZES

    def read(
        self, start: int | None = None, end: int | None = None, *, domain: Domains = None
    ) -> Iterator[pa.RecordBatch]:
        """Returns the events at positions [start, end), of some domains or of all, by `RAW_SCHEMA`."""
        start, end = self._range(start, end)
        return raw_batches(self.pages(start, end, domain=domain), start, end)

    def read_attributes(
        self,
        domain: Domain,
        start: int | None = None,
        end: int | None = None,
        *,
        on_error: Literal["raise", "reject"] = "raise",
    ) -> Iterator[EventColumns]:
        """Returns the attributes of a domain's events at positions [start, end).

        An event that does not fit the domain (which may have changed since) raises EventError; with
        `on_error="reject"`, the column `rejected` says why.
        """
        start, end = self._range(start, end)
        return attribute_columns(self.pages(start, end, domain=domain.name), domain, start, end, on_error=on_error)

    def event(self, position: int) -> LoggedEvent:
        """Returns the event at a position."""
        for page in self.pages(*self._range(position, position + 1)):
            appended = _EPOCH + dt.timedelta(microseconds=page.time)
            return LoggedEvent(position, appended, page.domain, parse(page.texts()[position - page.first]))
        raise LogRangeError(f"log: the event at position {position} was lost, and given up in a repair")

    def position_at(self, time: dt.datetime) -> int:
        """Returns the first position appended at this time or later; the end if there is none.

        An event has the time of the clock when it was appended, and clocks are corrected. A time in the future is
        ignored. So is one that is earlier than those before it: such an event counts as late as what follows it.
        """
        if time.tzinfo is None:
            raise LogRangeError(f"log: the time {time} has no zone; add one, such as UTC")
        return _position_at(self, self._ask, (time - _EPOCH) // dt.timedelta(microseconds=1), _now())

    def kept_from(self, *, max_age: dt.timedelta | None = None, max_bytes: int | None = None) -> int:
        """Returns the first position that these limits keep: events no older, and the newest of this many bytes."""
        limits = [self.start]
        if max_age is not None:
            now = _now()
            limits.append(_position_at(self, self._ask, now - max_age // dt.timedelta(microseconds=1), now))
        if max_bytes is not None:
            limits.append(self.position_of_newest(max_bytes))
        return max(limits)

    def position_of_newest(self, max_bytes: int, *, before: int | None = None, prefix: str = "") -> int:
        """Returns the first position of the newest events that take this many bytes, of all or before a position.

        With a prefix, only events of domains count whose names begin with it.
        """
        sizes = f"{self._sizes} WHERE (?1 IS NULL OR first < ?1) AND domain GLOB ?2 || '*' ORDER BY first DESC"
        at = total = 0
        with self._lock, translated("cannot read"):
            for first, count, _, size in self._connection.cursor().execute(sizes, (before, prefix)):
                total += size
                if total > max_bytes:
                    return int(first + count)
                at = first
        return int(at)

    def bytes_between(self, start: int, end: int, *, prefix: str = "") -> int:
        """Returns how many bytes the events at positions [start, end) take, compressed, by whole pages.

        With a prefix, only events of domains count whose names begin with it.
        """
        total = f"SELECT coalesce(sum(size), 0) FROM ({self._sizes}) WHERE first + count > ? AND first < ?"
        return int(self._ask(f"{total} AND domain GLOB ? || '*'", start, end, prefix)[0][0])

    def advance(self, start: int, *, domain: Domains = None, events: int | None = None, end: int | None = None) -> int:
        """Returns where a read from `start` on ends that takes at most this many events of the domain.

        It ends right after the last of them, so it returns `start` itself if there are none.
        """
        end = self.end if end is None else end
        if domain is None:
            return max(start, end if events is None else min(end, start + events))
        at, left = start, events
        for first, count, _ in self._headers(start, end, domain):
            taken = min(first + count, end) - max(first, start)
            if left is not None and taken >= left:
                return int(max(first, start) + left)
            at = min(first + count, end)
            left = None if left is None else left - taken
        return at

    def pages(self, start: int, end: int, *, domain: Domains = None) -> Iterator[Page]:
        """Yields the pages with events at positions [start, end), verified; the first and last may reach beyond."""
        at = start
        while at < end:
            rows = self._fetch(at, end, domain)
            for row in rows:
                page = Page(*row)
                if page.first > at:
                    self._account_for(at, page.first, domain)
                at = page.end
                if _is_among(page.domain, domain):
                    page.verify()
                    yield page
            if not rows:
                self._account_for(at, end, domain)
                at = end

    def _range(self, start: int | None, end: int | None) -> tuple[int, int]:
        start = self.start if start is None else start
        last = self.end
        end = last if end is None else end
        if not 0 <= start <= end <= last:
            raise LogRangeError(f"log: there are no positions {start} to {end}: the log ends at {last}")
        return start, end

    def parts(self, start: int, end: int, domain: str) -> Iterator[tuple[int, int, int]]:
        """Yields the parts of positions [start, end) with events of a domain: first position, number and bytes of each.

        Bytes are those of the events' texts; for a part of a page, its share.
        """
        for first, count, length in self._headers(start, end, domain):
            begin = max(first, start)
            taken = min(first + count, end) - begin
            yield begin, taken, length * taken // count

    def _headers(self, start: int, end: int, domain: Domains) -> Iterator[Sequence[Any]]:
        while rows := self._ask(_HEADERS + " LIMIT 1000", start, end, _listed(domain)):
            yield from rows
            start = rows[-1][0] + rows[-1][1]

    def _fetch(self, at: int, end: int, domain: Domains) -> list[tuple[Any, ...]]:
        """Returns the next pages, not too many bytes: a slow reader keeps SQLite from cutting its log."""
        rows: list[tuple[Any, ...]] = []
        size = 0
        with self._lock, translated("cannot read", position=at):
            cursor = self._connection.cursor()
            for row in cursor.execute(_PAGES, (at, end, _listed(domain))):
                rows.append(row)
                size += 1000 + len(row[6] or b"") + len(row[7] or b"") + len(row[8] or b"")
                if size > _FETCH_BYTES:
                    break
            cursor.close()
        if self._topic is None or not rows:
            return rows
        places = {place.page.first: place for place in self._placed(rows[0][0], rows[-1][0] + 1, domain)}
        return _with_events(self._topic, rows, places, domain)

    def placed(self, start: int, end: int, *, domain: Domains = None) -> list[PlacedPage]:
        """Returns where a topic has the pages with events at positions [start, end)."""
        found = list(self._placed(start, end, domain))
        if start < (begin := self.start):  # asked after the lookup: what was there then is returned
            self._account_for(start, min(begin, end), domain)
        return found

    def _placed(self, start: int, end: int, domain: Domains) -> Iterator[PlacedPage]:
        for *known, offset, size in self._ask(_PLACED, start, end, _listed(domain)):
            first, count, of, time, checksum, length = known
            yield PlacedPage(Page(first, count, of, time, checksum, length, None, b"", None), offset, size)

    def removed_to(self, domain: Domains = None) -> int:
        """Returns the position after the last event of the domain that retention has removed; 0 if none was."""
        return int(self._ask(_REMOVED, _listed(domain))[0][0])

    def _account_for(self, first: int, end: int, domain: Domains) -> None:
        """Raise the reason why positions [first, end) have no page, unless no event of the domain is missing."""
        removed_to = self.removed_to(domain)
        if first < removed_to:
            raise LogRangeError(
                f"log: positions {first} to {min(end, removed_to) - 1} were removed by retention, "
                f"and the log begins at {self.start}"
            )
        at = max(first, self.start)
        for lost_first, lost_last in self._ask("SELECT first, last FROM lost WHERE last >= ? ORDER BY first", at):
            if lost_first > at:
                break
            at = max(at, lost_last + 1)
        if at < end:
            raise LogCorruptError(
                f"log: positions {at} to {end - 1} are missing from {self.directory}: the file is damaged; "
                "restore a copy, or give them up with tidings.store.log.log_repair",
                position=at,
            )

    def _ask(self, sql: str, *values: object) -> list[Any]:
        with self._lock, translated("cannot read"):
            return ask(self._connection, sql, values)


def _with_events(
    topic: Topic, rows: list[tuple[Any, ...]], places: Mapping[int, PlacedPage], domain: Domains
) -> list[tuple[Any, ...]]:
    """Returns the first of these pages, not too many bytes, with their events from the topic."""
    taken: list[tuple[Any, ...]] = []
    wanted: list[PlacedPage] = []
    size = 0
    for row in rows:
        if _is_among(row[2], domain):
            place = places.get(row[0])
            if place is None:
                break  # removed meanwhile
            size += place.size
            if wanted and size > _FETCH_BYTES:
                break
            wanted.append(place)
        taken.append(row)
    whole = {page.first: (page.keys, page.events, page.attributes) for page in fetched(topic, wanted)}
    return [(*row[:6], *whole.get(row[0], row[6:])) for row in taken]


def _listed(domain: Domains) -> str | None:
    """Returns domains as SQL takes them."""
    if domain is None:
        return None
    return json.dumps([domain] if isinstance(domain, str) else sorted(domain))


def _is_among(name: str, domain: Domains) -> bool:
    return domain is None or (name == domain if isinstance(domain, str) else name in domain)


def _position_at(log: LogReader, ask: _Ask, wanted: int, now: int) -> int:
    """Returns the first position at a time or later, of events whose times are neither in the future nor early."""
    start, end = log.start, log.end
    if wanted > now:
        return end
    steps = ask("SELECT first FROM clock_steps WHERE first > ? AND first < ? ORDER BY first", start, end)
    found, latest = start, None  # the latest time so far, of those that are neither in the future nor early
    for first, last in pairwise([start, *(step for (step,) in steps), end]):
        at = _first_from(ask, wanted, first, last)
        before = ask("SELECT time FROM pages WHERE first >= ? AND first < ? ORDER BY first DESC LIMIT 1", first, at)
        if before and (latest is None or before[0][0] >= latest):
            found, latest = at, before[0][0]
        there = ask("SELECT time FROM pages WHERE first >= ? AND first < ? ORDER BY first LIMIT 1", at, last)
        if there and there[0][0] <= now:
            break
    return found


def _first_from(ask: _Ask, wanted: int, low: int, high: int) -> int:
    """Returns the first position at a time or later, among positions [low, high) whose times never go down."""
    while low < high:
        middle = (low + high) // 2
        page = ask("SELECT first, count, time FROM pages WHERE first <= ? ORDER BY first DESC LIMIT 1", middle)
        if not page or page[0][0] + page[0][1] <= low:  # only lost positions between
            low = middle + 1
        elif page[0][2] < wanted:
            low = max(middle + 1, page[0][0] + page[0][1])
        else:
            high = max(low, page[0][0])
    return low
