"""Events that wait to be written, and the pages that they become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import EventError
from tidings.model.event import EventBatch
from tidings.model.event_json import texts_of
from tidings.store.log.event_record import Keys, Name, keys_of, name_of, records_of
from tidings.store.log.page import MAX_PAGE_BYTES, MAX_PAGE_EVENTS, MIN_COLUMNS_EVENTS, Page, attributes_of, make_page

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
    """Events in the form that is written; in the caller's thread, where its errors belong."""
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
        raise EventError("the log wants to know the domain of these events: append(events, domain='…')")
    # In JSON a line break is but a space; in a page it ends an event.
    lines = texts_of(records) if texts is None else [text.replace("\n", " ") for text in texts]
    if len(lines) != len(records):
        raise EventError(f"there are {len(records)} events, and {len(lines)} texts")
    names = [name_of(record) if named else None for record in records]
    return Append(domain, lines, names, keys_of(domain, names), batch, sum(map(len, lines)))


def pages_of(appends: Sequence[Append], first: int, time: int) -> Iterator[Page]:
    """The new events of appends in pages: of one domain each, not too large, from a position on."""
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
    """The new rows of an append, in parts that fit a page."""
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
    """The attributes of a page, where it is worth it and all its events have the same."""
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
    """Keys of the last `remember` positions at least, and of twice as many at most."""

    def __init__(self, remember: int) -> None:
        self._remember = remember
        self._recent: dict[int, int] = {}
        self._runs: list[_Run] = []  # from old to new, each more than twice as long as the next

    def find(self, keys: Keys) -> Iterator[tuple[int, int]]:
        """Row and position of every candidate; a row may have several."""
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
        """Remember events, but for those of key 0; positions never go down from call to call."""
        for key, position in zip(keys, positions, strict=True):
            if key == 0:
                continue
            if key in self._recent:  # another event of the same hash: the dict has room for one
                self._freeze()
            self._recent[key] = position
        if len(self._recent) >= _RUN:
            self._freeze()

    def _freeze(self) -> None:
        keys = np.fromiter(self._recent.keys(), np.uint64, len(self._recent))
        positions = np.fromiter(self._recent.values(), np.int64, len(self._recent))
        self._recent = {}
        forgotten = int(positions[-1]) - self._remember
        # As in a log-structured merge: few runs to look into, and each key moves a few times only.
        while self._runs and len(self._runs[-1].keys) <= 2 * len(keys):
            older = self._runs.pop()
            kept = older.positions > forgotten
            keys = np.concatenate([older.keys[kept], keys])
            positions = np.concatenate([older.positions[kept], positions])
        order = np.argsort(keys, kind="stable")
        self._runs.append(_Run(keys[order], positions[order], int(positions.max())))
        while self._runs[0].newest <= forgotten:
            del self._runs[0]
