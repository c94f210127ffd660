"""A page: consecutive events of one domain, appended together, with a checksum over all of it.

The events' texts are kept as published, one JSON object a line, compressed. A page of more than a
few events also keeps the attributes that were read from them, as Arrow columns: texts are for
people and for domains that change, columns are what matching reads, a hundred times as fast.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidings.model.arrow import Column, arrow_type
from tidings.model.domain import Domain
from tidings.model.event import EventBatch
from tidings.model.types import DataType, Path
from tidings.store.log.event_record import Keys
from tidings.store.log.log_errors import LogCorruptError

TIME = pa.timestamp("us", tz="UTC")
MIN_COLUMNS_EVENTS = 16  # below, reading the texts costs no more than opening columns
MAX_PAGE_EVENTS = 1 << 14
MAX_PAGE_BYTES = 4 << 20  # of texts, so that a reader holds little at a time
_MIN_COMPRESSED_BYTES = 512
_COLUMNS = pa.ipc.IpcWriteOptions(compression="zstd")
_HEAD = struct.Struct("<qqqqqqq")
_CRC = struct.Struct("<I")

_Nested: TypeAlias = "dict[str, Any]"  # columns or types by name, a struct's one level deeper


@dataclass(frozen=True, slots=True)
class Page:
    """What one row of the log's table holds; its fields are the columns, in their order."""

    first: int  # position of the first event
    count: int
    domain: str
    time: int  # when they were appended, in microseconds since 1970
    checksum: int
    length: int  # of the texts before compression; where that is the length of `events`, they are not compressed
    keys: bytes | None  # the hashed identities, and a checksum of their own
    events: bytes
    attributes: bytes | None  # an Arrow stream

    @property
    def end(self) -> int:
        return self.first + self.count

    def verify(self) -> None:
        if self.checksum != _checksum(self):
            raise LogCorruptError(
                f"log: the events at positions {self.first} to {self.end - 1} are not as they were written "
                "(their checksum is wrong)",
                position=self.first,
            )

    def texts(self) -> list[str]:
        """The events as JSON."""
        events: Any = self.events
        if len(events) != self.length:
            events = pa.decompress(events, decompressed_size=self.length, codec="zstd", asbytes=True)
        return str(events, "utf-8").split("\n")

    def columns(self, schema: pa.Schema) -> pa.RecordBatch | None:
        """The attributes, where the page has them in exactly this schema."""
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
    """The same events without their attributes, which are read from the texts then."""
    keys = None if page.keys is None else unpack_keys(page.keys, page.first)
    return make_page(page.first, page.domain, page.time, page.texts(), keys, None)


def unpack_keys(sealed: bytes, first: int) -> Keys:
    """The identities of a page's events, without the rest of the page."""
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
    """The attributes of a domain as Arrow columns, structs nested as Spark has them."""
    return pa.schema([pa.field(name, _type_of(node)) for name, node in nested(domain.leaves.items()).items()])


def attributes_of(batch: EventBatch) -> pa.RecordBatch:
    """The attributes of events, by `attributes_schema`."""
    columns = [_column_of(node) for node in nested(batch.columns.items()).values()]
    return pa.RecordBatch.from_arrays(columns, schema=attributes_schema(batch.domain))


def nested(leaves: Iterable[tuple[Path, Any]]) -> _Nested:
    """What belongs to the leaves of a domain, by name, that of a struct's fields one level deeper."""
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
