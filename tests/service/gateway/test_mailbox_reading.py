"""A read of the log holds what it needs itself; the cache only saves reading the same pages again."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tests.store.memory_topic import MemoryTopic

from tidings.service.gateway.mailbox_reading import EventTexts
from tidings.store.log.log_in_topic import TopicLog
from tidings.store.log.log_reader import LogReader
from tidings.store.log.log_writer import Log
from tidings.store.log.page import Page


@pytest.fixture(params=["files", "topic"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, LogReader]]:
    """A log and a reader of it, with its pages in files and in a topic of Kafka."""
    if request.param == "files":
        with Log(tmp_path) as log, LogReader(tmp_path) as reader:
            yield log, reader
    else:
        topic = MemoryTopic()
        with TopicLog(tmp_path, topic) as log, LogReader(tmp_path, topic=topic) as reader:
            yield log, reader


def numbers(found: Iterator[str | None]) -> list[int | None]:
    return [None if text is None else json.loads(text)["n"] for text in found]


def test_a_read_that_is_larger_than_the_cache_finds_every_event(log: Any) -> None:
    written, reader = log
    written.append([{"n": 0}], domain="a")
    for number in range(1, 43):
        written.append([{"n": number, "text": "x" * 10_000}], domain="b")
    written.append([{"n": 43}], domain="a")
    texts = EventTexts(reader, cached_characters=50_000)
    assert numbers(texts.of([0, 43], "a")) == [0, 43]
    assert numbers(texts.of(range(1, 43), "b")) == list(range(1, 43))
    assert numbers(texts.of([0, 43], "a")) == [0, 43]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_cached_every_read_finds_what_the_log_has(log: Any, seed: int) -> None:
    written, reader = log
    chance = random.Random(seed)
    domains: list[str] = []
    while len(domains) < 300:
        domain, count = chance.choice("ab"), chance.choice([1, 1, 5, 40])
        events = [{"n": len(domains) + row, "text": "x" * chance.choice([1, 500])} for row in range(count)]
        written.append(events, domain=domain)
        domains += [domain] * count
    texts = EventTexts(reader, cached_characters=chance.choice([1, 2_000, 10**9]))
    for _ in range(30):
        wanted = sorted(chance.sample(range(len(domains)), chance.choice([1, 10, 200])))
        expected = [position if domains[position] == "a" else None for position in wanted]
        assert numbers(texts.of(wanted, "a")) == expected


def test_what_retention_removes_during_a_read_is_none_and_the_rest_is_there(log: Any) -> None:
    written, reader = log
    for number in range(6):
        written.append([{"n": number}], domain="a")
    texts = EventTexts(reader, cached_characters=1)
    reading = texts.of(range(6), "a")
    assert numbers(iter([next(reading)])) == [0]
    written.retain(from_position=3)
    rest = numbers(reading)
    assert rest[2:] == [3, 4, 5]
    assert all(number in (None, position) for position, number in enumerate(rest, start=1))
    assert numbers(EventTexts(reader).of(range(6), "a")) == [None, None, None, 3, 4, 5]


def test_no_more_is_read_than_is_asked_for(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written, reader = log
    for number in range(20):
        written.append([{"n": number}], domain="a")
    read: list[int] = []

    def noted(*places: Any, **options: Any) -> Iterator[Page]:
        for page in pages(*places, **options):
            read.append(page.first)
            yield page

    pages = reader.pages
    monkeypatch.setattr(reader, "pages", noted)
    reading = EventTexts(reader).of(range(20), "a")
    assert numbers(itertools.islice(reading, 2)) == read == [0, 1]
