"""A log's pages as the records of a topic, such as Kafka's, and which of these records count.

A topic accepts records from everybody, and a record that was sent without a response may still arrive after another
writer has begun. So a record says which offset it was meant for: it counts at that offset, and is void at any other. Of
two writers one is thus always too late, and notices by the offset that it gets. Pages that are committed together count
when all of them do, one after the other.

A writer begins with an empty page. Once that counts, nothing that an earlier writer has sent can.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from tidings.store.log.log_errors import LogCorruptError, LogError
from tidings.store.log.page import Page, make_page

_MAGIC = b"TDP1"
# magic, offset, part, parts; first, count, time, checksum, length; bytes of the domain, keys, events, attributes
_HEAD = struct.Struct("<4sqIIqqqIqIqII")
_FETCHED_BYTES = 8 << 20  # of pages in memory at a time, and one page more
_NONE = 0xFFFFFFFF  # the length of attributes that are not there


class Topic(Protocol):
    """One ordered sequence of records, each with its offset, kept by another service."""

    @property
    def name(self) -> str:
        """Its name for an operator."""

    @property
    def max_record_bytes(self) -> int: ...

    def bounds(self) -> tuple[int, int]:
        """Returns the offset of the first record, and that of the next one."""

    def append(self, records: Sequence[bytes]) -> list[int]:
        """Append records in this order; returns their offsets. LogUnknownError: it is not known whether it has them."""

    def read(self, offsets: Iterable[int], *, max_bytes: int | None = None) -> dict[int, bytes]:
        """Returns the existing records at ascending offsets; only the first of them if they have many bytes."""

    def remove_before(self, offset: int) -> None: ...

    def close(self) -> None: ...


class Sent(NamedTuple):
    """A record that was read."""

    offset: int  # where it was meant to be
    part: int  # of how many pages that count together
    parts: int
    page: Page


def packed(pages: Sequence[Page], offset: int) -> list[bytes]:
    """Returns pages that are committed together as records from an offset on."""
    records = []
    for part, page in enumerate(pages):
        domain, keys = page.domain.encode(), page.keys
        head = _HEAD.pack(
            _MAGIC,
            offset + part,
            part,
            len(pages),
            page.first,
            page.count,
            page.time,
            page.checksum,
            page.length,
            len(domain),
            -1 if keys is None else len(keys),
            len(page.events),
            _NONE if page.attributes is None else len(page.attributes),
        )
        records.append(b"".join((head, domain, keys or b"", page.events, page.attributes or b"")))
    return records


def unpacked(record: bytes) -> Sent | None:
    """Returns the content of a record; None if it is not one of ours."""
    if not record.startswith(_MAGIC) or len(record) < _HEAD.size:
        return None
    _, offset, part, parts, first, count, time, checksum, length, *sizes = _HEAD.unpack_from(record)
    at = _HEAD.size
    fields: list[bytes | None] = []
    for size in sizes:
        there = size not in (-1, _NONE)
        fields.append(record[at : at + size] if there else None)
        at += size if there else 0
    if at != len(record):
        raise LogCorruptError(f"log: the record at offset {offset} is not as it was sent", position=first)
    domain, keys, events, attributes = fields
    assert domain is not None
    assert events is not None
    return Sent(
        offset, part, parts, Page(first, count, domain.decode(), time, checksum, length, keys, events, attributes)
    )


class PlacedPage(NamedTuple):
    """A page without its events, and where they are."""

    page: Page
    offset: int
    size: int


def fetched(topic: Topic, placed: Sequence[PlacedPage]) -> Iterator[Page]:
    """Yields pages with their events from the topic."""
    at = 0
    while at < len(placed):
        end, size = at + 1, placed[at].size
        while end < len(placed) and size + placed[end].size <= _FETCHED_BYTES:
            size += placed[end].size
            end += 1
        records = topic.read([one.offset for one in placed[at:end]])
        for page, offset, _ in placed[at:end]:
            sent = unpacked(records[offset]) if offset in records else None
            if sent is None:
                raise LogCorruptError(
                    f"log: {topic.name} has lost the record at offset {offset}, with the events from position "
                    f"{page.first} on",
                    position=page.first,
                )
            yield replace(page, keys=sent.page.keys, events=sent.page.events, attributes=sent.page.attributes)
        at = end


def opening(first: int, time: int) -> Page:
    """Returns the empty page by which a writer takes its place, at the next position."""
    return make_page(first, "", time, [], None, None)


class Following:
    """Reads all records of a topic in order, and finds the commits that count."""

    def __init__(self, *, cut: bool = False) -> None:
        self._cut = cut  # records before the first were removed, maybe the first part of its commit
        self._begun = 0  # the first part that waits
        self._parts: list[Page] = []

    def take(self, offset: int, record: bytes | None) -> list[Page] | None:
        """Returns the pages of a commit that is complete with this record; None if none is."""
        sent = None if record is None else unpacked(record)
        cut, self._cut = self._cut, False
        if sent is None or sent.offset != offset:
            self._parts = []
            return None
        if sent.part == 0 or cut:
            self._begun, self._parts = sent.part, []
        if sent.part != self._begun + len(self._parts):
            self._parts = []
            return None
        self._parts.append(sent.page)
        if sent.part + 1 < sent.parts:
            return None
        pages, self._parts = self._parts, []
        return pages

    @property
    def waiting(self) -> int:
        """How many records before this one belong to a commit that is not complete yet."""
        return len(self._parts)


PLACE = "topic.json"


def written_place(directory: Path) -> str | None:
    """Returns the URL of a log's topic; None for a log that keeps its pages itself."""
    path = directory / PLACE
    try:
        return str(json.loads(path.read_text())["url"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LogError(f"log: cannot read {path}: {error}; start its writer again, which writes it") from error


def write_place(directory: Path, url: str) -> None:
    """Write down which topic has the pages, in a file that only its owner can read: a URL may have a password."""
    before = written_place(directory)
    if before is not None and urlsplit(before).path != urlsplit(url).path:
        raise LogError(
            f"log: {directory} belongs to the topic {urlsplit(before).path[1:]}, not to {urlsplit(url).path[1:]}; give "
            "that one, or another directory"
        )
    beside = directory / f".{PLACE}.{os.getpid()}"
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"url": url}, file)
    beside.replace(directory / PLACE)


def topic_at(url: str) -> Topic:
    """Returns the topic that a URL names, not connected yet."""
    if urlsplit(url).scheme != "kafka":
        raise LogError("log: give a directory, or kafka://host:port/topic")
    try:
        from tidings.store.log.kafka_topic import KafkaTopic
    except ImportError:
        raise LogError("log: Kafka needs another package: pip install 'tidings[kafka]'") from None
    return KafkaTopic(url)


@cache
def shared_topic(url: str) -> Topic:
    """Returns one connection for all tasks of a process, which keeps it open."""
    return topic_at(url)
