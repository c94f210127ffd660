"""Pages as Arrow: whole events, or the attributes of one domain.

Needs no log, only its pages, so that they may be read in one place and decoded in another.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tidings.errors import EventError
from tidings.model.arrow import Column
from tidings.model.domain import Domain
from tidings.model.event import read_events
from tidings.store.log.event_record import name_of, parse
from tidings.store.log.page import TIME, Page, attributes_of, attributes_schema

_TOGETHER = 1 << 13  # events of small pages that are decoded at once
_ENVELOPE = ("source", "id", "type")

RAW_SCHEMA = pa.schema(
    [pa.field("position", pa.int64()), pa.field("time", TIME)]
    + [pa.field(name, pa.string()) for name in ("domain", *_ENVELOPE, "event")]
)


class EventColumns(NamedTuple):
    """Events of one domain, as columns of the same length."""

    position: Column
    time: Column
    attributes: pa.RecordBatch  # by `attributes_schema`
    rejected: Column  # why an event does not fit the domain, where it does not; its attributes are NULL then


def raw_batches(pages: Iterable[Page], start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Pages as batches of `RAW_SCHEMA`, cut to positions [start, end)."""
    for group in _gathered(pages):
        position, time, texts = _cut(group, start, end)
        domains = pa.array([page.domain for page in group], pa.string())
        domain: Any = domains.take(_page_of_each(group, start, end))
        columns = [position, time, domain, *_envelopes(texts), pa.array(texts, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def attribute_columns(
    pages: Iterable[Page], domain: Domain, start: int, end: int, *, on_error: Literal["raise", "reject"] = "raise"
) -> Iterator[EventColumns]:
    """Pages of one domain as its attributes, cut to positions [start, end)."""
    schema = attributes_schema(domain)
    for group in _gathered(pages):
        columns = [page.columns(schema) for page in group]
        whole = [batch for batch in columns if batch is not None]
        if len(whole) == len(group):
            position, time = _places(group, start, end)
            first = max(start - group[0].first, 0)
            for batch in pa.Table.from_batches(whole).slice(first, len(position)).combine_chunks().to_batches():
                yield EventColumns(position[: len(batch)], time[: len(batch)], batch, pa.nulls(len(batch), pa.string()))
                position, time = position[len(batch) :], time[len(batch) :]
        else:
            yield _read_texts(group, domain, start, end, on_error)


def _gathered(pages: Iterable[Page]) -> Iterator[list[Page]]:
    """Pages in groups large enough to be worth a batch; those with columns apart from those without."""
    group: list[Page] = []
    count = 0
    for page in pages:
        if group and (count >= _TOGETHER or (page.attributes is None) != (group[0].attributes is None)):
            yield group
            group, count = [], 0
        group.append(page)
        count += page.count
    if group:
        yield group


def _read_texts(
    pages: list[Page], domain: Domain, start: int, end: int, on_error: Literal["raise", "reject"]
) -> EventColumns:
    position, time, texts = _cut(pages, start, end)
    batch = read_events([parse(text) for text in texts], domain, on_error="reject")
    if batch.rejects and on_error == "raise":
        first = batch.rejects[0]
        raise EventError(
            f"{first.reason} (the event at position {position[first.row]} of the log)", attribute=first.attribute
        )
    attributes = attributes_of(batch)
    reasons: list[str | None] = [None] * len(texts)
    for reject in reversed(batch.rejects):  # of several, the first
        reasons[reject.row] = (f"attribute '{reject.attribute}': " if reject.attribute else "") + reject.reason
    if batch.rejects and attributes.num_columns:
        rows = np.full(len(texts), -1, np.int64)
        rows[batch.rows] = np.arange(batch.count)
        taken: Any = pa.array(rows, mask=rows < 0)
        attributes = attributes.take(taken)
    return EventColumns(position, time, attributes, pa.array(reasons, pa.string()))


def _cut(pages: list[Page], start: int, end: int) -> tuple[Any, Any, list[str]]:
    texts = [text for page in pages for text in page.texts()[max(start - page.first, 0) : end - page.first]]
    return *_places(pages, start, end), texts


def _places(pages: list[Page], start: int, end: int) -> tuple[Any, Any]:
    """The columns position and time of the parts of pages that lie in [start, end)."""
    positions = [np.arange(max(start, page.first), min(end, page.end)) for page in pages]
    times = np.array([page.time for page in pages])[_page_of_each(pages, start, end)]
    return pa.array(np.concatenate(positions)), pa.array(times).cast(TIME)


def _page_of_each(pages: list[Page], start: int, end: int) -> Any:
    return np.repeat(np.arange(len(pages)), [min(end, page.end) - max(start, page.first) for page in pages])


def _envelopes(texts: list[str]) -> list[Any]:
    """Source, id and type of each event that is a CloudEvent, NULL of others."""
    lines = "\n".join(texts).encode()
    schema = pa.schema([(name, pa.string()) for name in ("specversion", *_ENVELOPE)])
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    try:
        read = pj.read_json(io.BytesIO(lines), reading, options).combine_chunks()
    except pa.ArrowInvalid:  # plain events may have attributes of these names and of other types
        return _envelopes_one_by_one(texts)
    named = pc.and_(read["specversion"].is_valid(), pc.and_(read["source"].is_valid(), read["id"].is_valid()))
    columns: list[Any] = [pc.if_else(named, read[name], pa.scalar(None, pa.string())) for name in _ENVELOPE]
    return [column.combine_chunks() for column in columns]


def _envelopes_one_by_one(texts: list[str]) -> list[Any]:
    found: list[tuple[str | None, str | None, str | None]] = []
    for text in texts:
        event = parse(text)
        name, kind = name_of(event), event.get("type")
        found.append((*name, kind if isinstance(kind, str) else None) if name is not None else (None, None, None))
    return [pa.array(column, pa.string()) for column in zip(*found, strict=True)]
