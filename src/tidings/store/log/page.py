"""A page: consecutive events of one domain, appended together, with a checksum over all of it; and pages as Arrow.

The texts of events are stored as published, one JSON object a line, compressed. A page of more than a few events also
has the attributes that were read from them, as Arrow columns: texts are for people and for domains that change, columns
are what matching reads, a hundred times as fast. Decoding needs only pages, no log, so another process can do it.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tidings.errors import EventError
from tidings.model.arrow import Column, arrow_type
from tidings.model.domain import Domain
from tidings.model.event import EventBatch, read_events
from tidings.model.types import DataType, Path
from tidings.store.log.event_record import Keys, name_of, parse
from tidings.store.log.log_errors import LogCorruptError

TIME = pa.timestamp("us", tz="UTC")
MIN_COLUMNS_EVENTS = 16  # with fewer, reading the texts costs no more than opening columns
MAX_PAGE_EVENTS = 1 << 14
MAX_PAGE_BYTES = 4 << 20  # of texts, so that a reader holds little at a time
_MIN_COMPRESSED_BYTES = 512
_COLUMNS = pa.ipc.IpcWriteOptions(compression="zstd")
_HEAD = struct.Struct("<qqqqqqq")
_CRC = struct.Struct("<I")

_Nested: TypeAlias = "dict[str, Any]"  # columns or types by name, a struct's one level deeper


@dataclass(frozen=True, slots=True)
class Page:
    """One row of the log's table; its fields are the columns, in their order."""

    first: int  # position of the first event
    count: int
    domain: str
    time: int  # when they were appended, in microseconds since 1970
    checksum: int
    length: int  # of the texts before compression; if that is the length of `events`, they are not compressed
    keys: bytes | None  # the hashed identities, with their own checksum
    events: bytes
    attributes: bytes | None  # an Arrow stream

    @property
    def end(self) -> int:
        return self.first + self.count

    def verify(self) -> None:
        """Raise LogCorruptError unless the checksum is right."""
        if self.checksum != _checksum(self):
            raise LogCorruptError(
                f"log: the events at positions {self.first} to {self.end - 1} are not as they were written "
                "(their checksum is wrong)",
                position=self.first,
            )

    def texts(self) -> list[str]:
        """Returns the events as JSON."""
        events: Any = self.events
        if len(events) != self.length:
            events = pa.decompress(events, decompressed_size=self.length, codec="zstd", asbytes=True)
        return str(events, "utf-8").split("\n")

    def columns(self, schema: pa.Schema) -> pa.RecordBatch | None:
        """Returns the attributes if the page has them in exactly this schema."""
        if self.attributes is None:
            return None
        with pa.ipc.open_stream(pa.py_buffer(self.attributes)) as stream:
            if not stream.schema.equals(schema):
                return None
            batch: pa.RecordBatch = stream.read_next_batch()
            return batch


def make_page(
    first: int, domain: str, time: int, texts: Sequence[str], keys: Keys | None, attributes: pa.RecordBatch | None
) -> Page:
    plain = "\n".join(texts).encode()
    events = plain
    if len(plain) >= _MIN_COMPRESSED_BYTES:
        packed: Any = pa.compress(plain, codec="zstd", asbytes=True)
        events = packed if len(packed) < len(plain) else plain
    columns = None
    if attributes is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, attributes.schema, options=_COLUMNS) as stream:
            stream.write_batch(attributes)
        columns = sink.getvalue().to_pybytes()
    packed_keys = None if keys is None else _sealed(keys.astype("<u8").tobytes())
    page = Page(first, len(texts), domain, time, 0, len(plain), packed_keys, events, columns)
    return Page(first, len(texts), domain, time, _checksum(page), len(plain), packed_keys, events, columns)


def without_columns(page: Page) -> Page:
    """Returns the same events without their attributes, which are read from the texts then."""
    keys = None if page.keys is None else unpack_keys(page.keys, page.first)
    return make_page(page.first, page.domain, page.time, page.texts(), keys, None)


def unpack_keys(sealed: bytes, first: int) -> Keys:
    """Returns the identities of a page's events, without the rest of the page."""
    packed = sealed[: -_CRC.size]
    if sealed != _sealed(packed):
        raise LogCorruptError(
            f"log: the identities of the events from position {first} on are not as they were written", position=first
        )
    return np.frombuffer(packed, "<u8").astype(np.uint64)


def _sealed(packed: bytes) -> bytes:
    return packed + _CRC.pack(zlib.crc32(packed))


def _checksum(page: Page) -> int:
    keys, attributes = page.keys or b"", page.attributes or b""
    domain = page.domain.encode()
    head = _HEAD.pack(page.first, page.count, page.time, page.length, len(domain), len(keys), len(page.events))
    checksum = 0
    for part in (head, domain, keys, page.events, attributes):
        checksum = zlib.crc32(part, checksum)
    return checksum


def attributes_schema(domain: Domain) -> pa.Schema:
    """Returns the attributes of a domain as an Arrow schema, structs nested as in Spark."""
    return pa.schema([pa.field(name, _type_of(node)) for name, node in nested(domain.leaves.items()).items()])


def attributes_of(batch: EventBatch) -> pa.RecordBatch:
    """Returns the attributes of events, by `attributes_schema`."""
    columns = [_column_of(node) for node in nested(batch.columns.items()).values()]
    return pa.RecordBatch.from_arrays(columns, schema=attributes_schema(batch.domain))


def nested(leaves: Iterable[tuple[Path, Any]]) -> _Nested:
    """Returns what belongs to the leaves of a domain by name, with the fields of a struct one level deeper."""
    tree: _Nested = {}
    for path, leaf in leaves:
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = leaf
    return tree


def _type_of(node: DataType | _Nested) -> pa.DataType:
    if isinstance(node, DataType):
        return arrow_type(node)
    return pa.struct([pa.field(name, _type_of(inner)) for name, inner in node.items()])


def _column_of(node: Column | _Nested) -> Column:
    if not isinstance(node, dict):
        return node
    return pa.StructArray.from_arrays([_column_of(inner) for inner in node.values()], names=list(node))


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
    rejected: Column  # why an event does not fit the domain, or NULL; if it does not, its attributes are NULL


def raw_batches(pages: Iterable[Page], start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yields pages as batches of `RAW_SCHEMA`, cut to positions [start, end)."""
    for group in _gathered(pages):
        position, time, texts = _cut(group, start, end)
        domains = pa.array([page.domain for page in group], pa.string())
        domain: Any = domains.take(_page_of_each(group, start, end))
        columns = [position, time, domain, *_envelopes(texts), pa.array(texts, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def attribute_columns(
    pages: Iterable[Page], domain: Domain, start: int, end: int, *, on_error: Literal["raise", "reject"] = "raise"
) -> Iterator[EventColumns]:
    """Yields pages of one domain as its attributes, cut to positions [start, end)."""
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
    """Yields pages in groups large enough for a batch; those with columns apart from those without."""
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
    """Returns the columns position and time of the parts of pages that lie in [start, end)."""
    positions = [np.arange(max(start, page.first), min(end, page.end)) for page in pages]
    times = np.array([page.time for page in pages])[_page_of_each(pages, start, end)]
    return pa.array(np.concatenate(positions)), pa.array(times).cast(TIME)


def _page_of_each(pages: list[Page], start: int, end: int) -> Any:
    return np.repeat(np.arange(len(pages)), [min(end, page.end) - max(start, page.first) for page in pages])


def _envelopes(texts: list[str]) -> list[Any]:
    """Returns source, id and type of each event that is a CloudEvent, NULL for others."""
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
