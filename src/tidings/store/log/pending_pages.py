"""Events that wait to be written, and the pages that they become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
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
