"""Events that wait to be written, the pages that they become, and the identities of recent events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import EventError
from tidings.model.event import EventBatch
from tidings.model.event_json import texts_of
from tidings.store.log.event_record import Keys, Name, keys_of, name_of, parse, records_of, same_event
from tidings.store.log.log_errors import LogConflictError, LogError, LogRangeError
from tidings.store.log.page import (
    MAX_PAGE_BYTES,
    MAX_PAGE_EVENTS,
    MIN_COLUMNS_EVENTS,
    Page,
    attributes_of,
    make_page,
    unpack_keys,
)

Events: TypeAlias = EventBatch | Sequence[Mapping[str, Any]]


@dataclass(eq=False)
class Append:
    """Events that wait to be written, all or none."""

    domain: str
    texts: list[str]
    names: list[Name | None]
    keys: Keys | None
    batch: EventBatch | None
    size: int
    future: Future[list[int]] = field(default_factory=Future)
    positions: list[int] = field(default_factory=list)  # of every event
    fresh: Sequence[int] = ()  # the rows that are no duplicates


_Part: TypeAlias = tuple[Append, Sequence[int]]  # an append, and the rows of it that go into one page


def prepared(events: Events, domain: str | None, texts: Sequence[str] | None) -> Append:
    """Returns events in the form that is written; runs in the caller's thread, which gets the errors."""
    batch = events if isinstance(events, EventBatch) else None
    named = True
    if isinstance(events, EventBatch):
        if domain is not None and domain != events.domain.name:
            raise EventError(f"these events are of the domain '{events.domain.name}', not '{domain}'")
        domain = events.domain.name
        records = records_of(events)
        named = events.domain.has_cloud_events
        if texts is not None and len(texts) != len(records):
            texts = [texts[row] for row in events.rows]
    elif isinstance(events, Mapping | str | bytes):
        raise EventError("events come as a list; put the one event in brackets")
    else:
        records = list(events)
    if not domain:
        raise EventError("these events need a domain: append(events, domain='…')")
    # In JSON a line break is only a space; in a page it ends an event.
    lines = texts_of(records) if texts is None else [text.replace("\n", " ") for text in texts]
    if len(lines) != len(records):
        raise EventError(f"there are {len(records)} events, and {len(lines)} texts")
    names = [name_of(record) if named else None for record in records]
    return Append(domain, lines, names, keys_of(domain, names), batch, sum(map(len, lines)))


def pages_of(appends: Sequence[Append], first: int, time: int) -> Iterator[Page]:
    """Yields the new events of appends in pages of one domain each, not too large, from a position on."""
    parts: list[_Part] = []
    count = size = 0
    for append in appends:
        for rows in _cut(append):
            length = append.size * len(rows) // len(append.texts)
            full = count + len(rows) > MAX_PAGE_EVENTS or size + length > MAX_PAGE_BYTES
            if parts and (full or parts[0][0].domain != append.domain):
                yield _page(first, time, parts)
                first += count
                parts, count, size = [], 0, 0
            parts.append((append, rows))
            count += len(rows)
            size += length
    if parts:
        yield _page(first, time, parts)


def _cut(append: Append) -> Iterator[Sequence[int]]:
    """Yields the new rows of an append, in parts that fit a page."""
    at = size = 0
    for end, row in enumerate(append.fresh):
        length = len(append.texts[row])
        if end > at and (end - at == MAX_PAGE_EVENTS or size + length > MAX_PAGE_BYTES):
            yield append.fresh[at:end]
            at, size = end, 0
        size += length
    if at < len(append.fresh):
        yield append.fresh[at:]


def _page(first: int, time: int, parts: list[_Part]) -> Page:
    texts = [append.texts[row] for append, rows in parts for row in rows]
    keys = None
    if any(append.keys is not None for append, _ in parts):
        keys = np.concatenate(
            [
                np.zeros(len(rows), np.uint64) if append.keys is None else append.keys[list(rows)]
                for append, rows in parts
            ]
        )
    return make_page(first, parts[0][0].domain, time, texts, keys, _columns(parts, len(texts)))


def _columns(parts: list[_Part], count: int) -> pa.RecordBatch | None:
    """Returns the attributes of a page if it has enough events, all of one version of the domain."""
    batch = parts[0][0].batch
    if batch is None or not batch.columns or count < MIN_COLUMNS_EVENTS:
        return None
    batches = []
    for append, rows in parts:
        if append.batch is None or append.batch.domain != batch.domain:
            return None
        columns = attributes_of(append.batch)
        batches.append(columns if len(rows) == append.batch.count else columns.take(pa.array(rows)))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


_RUN = 1 << 16  # keys that wait in a dict, before they become a sorted run of 16 bytes each


class _Run(NamedTuple):
    keys: Keys  # in order
    positions: npt.NDArray[np.int64]
    newest: int


class RecentIds:
    """Finds the positions of recent events by the hashes of their identities: the caller compares the events.

    It has the keys of at least the last `remember` positions, and of at most twice as many.
    """

    def __init__(self, remember: int) -> None:
        self._remember = remember
        self._recent: dict[int, int] = {}
        self._runs: list[_Run] = []  # from old to new, each more than twice as long as the next

    def find(self, keys: Keys) -> Iterator[tuple[int, int]]:
        """Yields row and position of every candidate; a row may have several."""
        recent = self._recent
        for row, key in enumerate(keys.tolist()):
            if key in recent:
                yield row, recent[key]
        for run in self._runs:
            places = run.keys.searchsorted(keys)
            found = run.keys.take(places, mode="clip") == keys
            for row in np.flatnonzero(found).tolist():
                place = int(places[row])
                while place < len(run.keys) and run.keys[place] == keys[row]:
                    yield row, int(run.positions[place])
                    place += 1

    def add(self, keys: Iterable[int], positions: Iterable[int]) -> None:
        """Remember events, except those of key 0; positions never go down from call to call."""
        for key, position in zip(keys, positions, strict=True):
            if key == 0:
                continue
            if key in self._recent:  # another event with the same hash: the dict has room for one
                self._freeze()
            self._recent[key] = position
        if len(self._recent) >= _RUN:
            self._freeze()

    def _freeze(self) -> None:
        keys = np.fromiter(self._recent.keys(), np.uint64, len(self._recent))
        positions = np.fromiter(self._recent.values(), np.int64, len(self._recent))
        self._recent = {}
        forgotten = int(positions[-1]) - self._remember
        # As in a log-structured merge tree: few runs to search, and each key moves only a few times.
        while self._runs and len(self._runs[-1].keys) <= 2 * len(keys):
            older = self._runs.pop()
            kept = older.positions > forgotten
            keys = np.concatenate([older.keys[kept], keys])
            positions = np.concatenate([older.positions[kept], positions])
        order = np.argsort(keys, kind="stable")
        self._runs.append(_Run(keys[order], positions[order], int(positions.max())))
        while self._runs[0].newest <= forgotten:
            del self._runs[0]


class DuplicateSearch:
    """Gives appended events their positions, and finds those that the log has already, by source and id."""

    def __init__(self, remember: int, pages: Callable[[int, int], Iterator[Page]]) -> None:
        """`pages` reads the log: keys are hashes, so the events themselves are compared."""
        self._ids = RecentIds(remember)
        self._pages = pages
        self._cached: tuple[Page, list[str]] | None = None  # the page that a duplicate was last found in

    def remember(self, keys: bytes | None, first: int, end: int) -> None:
        """Note the identities of events that were written at positions [first, end)."""
        if keys is not None:
            self._ids.add(unpack_keys(keys, first).tolist(), range(first, end))

    def forget_page(self) -> None:
        """Called when pages were removed from the log."""
        self._cached = None

    def place(self, group: list[Append], position: int) -> list[Append]:
        """Give every event its position, from one on, or that of its first appearance; appends that conflict fail."""
        staged: dict[str, dict[Name, tuple[int, str]]] = {}  # events of this group by domain and name
        placed = []
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

    def _duplicates(
        self, append: Append, staged: dict[Name, tuple[int, str]], position: int
    ) -> tuple[dict[int, int], dict[Name, tuple[int, str]]]:
        """Returns the positions of the rows that are in the log already, and the names of the others."""
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
        """Returns position and text of the event with this name, among positions where its key was seen."""
        for position in candidates:
            page, texts = self._cached or (None, [])
            if page is None or not page.first <= position < page.end:
                try:
                    page = next(self._pages(position, position + 1))
                except (LogRangeError, StopIteration):
                    continue  # it was removed
                texts = page.texts()
                self._cached = (page, texts)
            text = texts[position - page.first]
            if page.domain == domain and name_of(parse(text)) == name:
                return position, text
        return None
