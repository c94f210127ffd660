"""How many events a second does the log keep durably, and how many does it give back?

Expected: batches of 1,000 well beyond 20,000 events a second on one core, most of it the writing of
JSON; single events from concurrent threads well beyond 1,500 a second, because they share the fsync.
Reading attributes from their columns is limited by decompression, reading them from texts by the
JSON parser. The plain way, a row of SQLite for each event, is measured beside it: in the same
transactions, with a checksum, without columns and without a look for duplicates, as "records, texts
given" is in pages.

Seconds are of the clock, since waiting for the disk is the point; `per_core_second` is by CPU time.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pyarrow as pa

from benchmarks.options import Options
from tidings.model.domain import Attribute, Domain
from tidings.model.event import EventBatch, read_events
from tidings.model.event_json import texts_of
from tidings.store.log.log_reader import LogReader
from tidings.store.log.log_writer import Log

SEED = 1
EVENTS = 100_000
BATCH = 1_000
SINGLES = 4_000
THREADS = (1, 4, 16, 64)
REPEATS = 3

DOMAIN = Domain(
    "flights",
    [
        Attribute(name, type_)
        for name, type_ in {
            "carrier": "string", "flight": "bigint", "origin": "string", "dest": "string", "dep_delay": "double",
            "distance": "int", "at": "timestamp",
        }.items()
    ],
)  # fmt: skip


def run(options: Options) -> Iterator[dict[str, Any]]:
    count = EVENTS // 10 if options.quick else EVENTS
    records = _records(count)
    random = Random(SEED)
    cloud = [
        {"specversion": "1.0", "id": f"{random.getrandbits(128):032x}", "source": "/flights", "type": "departure"}
        | {"data": record}
        for record in records
    ]
    parts = [slice(at, at + BATCH) for at in range(0, count, BATCH)]
    batches = [read_events(cloud[part], DOMAIN) for part in parts]
    texts = [texts_of(cloud[part]) for part in parts]
    with tempfile.TemporaryDirectory(prefix="tidings-appending-") as folder:
        place = Path(folder)
        yield {"case": "the disk: fsync of a 4 KiB write", "events": 200, **_fsyncs(place)}
        yield _row("append, a row an event, texts given", count, lambda: _plain_rows(place / "rows", texts))
        plain = [texts_of(records[part]) for part in parts]
        yield _row(
            "append, records, texts given",
            count,
            lambda: _append(place / "log", [records[part] for part in parts], plain),
        )
        yield _row("append, records", count, lambda: _append(place / "log", [records[part] for part in parts]))
        yield _row("append, CloudEvents", count, lambda: _append(place / "log", [cloud[part] for part in parts]))
        yield _row("append, CloudEvents with columns", count, lambda: _append(place / "log", batches))
        yield _row(
            "append, CloudEvents with columns, texts given", count, lambda: _append(place / "log", batches, texts)
        )
        yield from _reading(place, records, batches)
        for threads in THREADS:
            many = SINGLES // 10 if options.quick else SINGLES
            yield _row(f"append, single events of {threads} threads", many, _singles(place / "log", many, threads))


def _records(count: int) -> list[dict[str, Any]]:
    random = Random(SEED)
    return [
        {
            "carrier": random.choice(("UA", "AA", "DL", "B6")),
            "flight": random.randrange(9999),
            "origin": random.choice(("JFK", "EWR", "LGA")),
            "dest": random.choice(("SFO", "LAX", "ORD", "MIA")),
            "dep_delay": round(random.gauss(10, 30), 1),
            "distance": random.randrange(200, 3000),
            "at": f"2013-01-{random.randrange(1, 29):02d}T{random.randrange(24):02d}:00:00Z",
        }
        for _ in range(count)
    ]


def _row(case: str, events: int, work: Callable[[], float]) -> dict[str, Any]:
    """The median of some repeats; `work` answers the bytes that an event takes on the disk, or 0."""
    clock, cpu = [], []
    size = 0.0
    for _ in range(REPEATS):
        started, used = time.perf_counter(), time.process_time()
        size = work()
        clock.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    seconds = statistics.median(clock)
    return {
        "case": case,
        "events": events,
        "seed": SEED,
        "per_second": round(events / seconds),
        "per_core_second": round(events / statistics.median(cpu)),
        "spread": round((max(clock) - min(clock)) / seconds, 2),
        **({"bytes_per_event": round(size, 1)} if size else {}),
    }


def _append(directory: Path, batches: list[Any], texts: list[list[str]] | None = None) -> float:
    shutil.rmtree(directory, ignore_errors=True)
    with Log(directory) as log:
        for k, batch in enumerate(batches):
            domain = None if isinstance(batch, EventBatch) else DOMAIN.name
            log.append(batch, domain=domain, texts=texts[k] if texts is not None else None)
        assert log.end == BATCH * len(batches)
    return os.path.getsize(directory / "events.sqlite") / (BATCH * len(batches))


def _singles(directory: Path, count: int, threads: int) -> Callable[[], float]:
    def work() -> float:
        shutil.rmtree(directory, ignore_errors=True)
        with Log(directory) as log:

            def publish() -> None:
                for n in range(count // threads):
                    log.append([{"carrier": "UA", "flight": n, "dep_delay": 3.5}], domain=DOMAIN.name)

            publishers = [threading.Thread(target=publish) for _ in range(threads)]
            for publisher in publishers:
                publisher.start()
            for publisher in publishers:
                publisher.join()
            assert log.end == count // threads * threads
        return 0.0

    return work


def _reading(place: Path, records: list[dict[str, Any]], batches: list[EventBatch]) -> Iterator[dict[str, Any]]:
    count = len(records)
    _append(place / "columns", batches)
    _append(place / "texts", [records[at : at + BATCH] for at in range(0, count, BATCH)])
    expected = pa.Table.from_batches([_attributes(batch) for batch in batches])
    for name in ("columns", "texts"):
        with LogReader(place / name) as log:
            read = pa.Table.from_batches([part.attributes for part in log.read_attributes(DOMAIN)])
            assert read.equals(expected), f"what was read from {name} is not what was appended"

    def read_rows() -> float:
        connection = apsw.Connection(str(place / "rows"))
        texts = []
        for _, checksum, text in connection.execute("SELECT position, checksum, event FROM events ORDER BY position"):
            assert isinstance(text, str)
            assert zlib.crc32(text.encode()) == checksum
            texts.append(text)
        assert len(pa.array(texts)) == count
        connection.close()
        return 0.0

    def read(name: str, attributes: bool) -> float:
        with LogReader(place / name) as log:
            if attributes:
                assert sum(len(part.position) for part in log.read_attributes(DOMAIN)) == count
            else:
                assert sum(part.num_rows for part in log.read()) == count
        return 0.0

    yield _row("read, a row an event, texts alone", count, read_rows)
    yield _row("read, events whole", count, lambda: read("columns", False))
    yield _row("read, attributes from columns", count, lambda: read("columns", True))
    yield _row("read, attributes from texts", count, lambda: read("texts", True))


def _attributes(batch: EventBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(batch.columns.values()), names=[path[0] for path in batch.columns])


def _plain_rows(file: Path, batches: list[list[str]]) -> float:
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    connection = apsw.Connection(str(file))
    for statement in (
        "PRAGMA journal_mode = WAL",
        "PRAGMA synchronous = FULL",
        "CREATE TABLE events (position INTEGER PRIMARY KEY, domain TEXT, time INTEGER, checksum INTEGER, event TEXT)",
    ):
        connection.execute(statement).fetchall()
    position = 0
    for texts in batches:
        rows = [(position + k, DOMAIN.name, 0, zlib.crc32(text.encode()), text) for k, text in enumerate(texts)]
        with connection:
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
        position += len(texts)
    connection.close()
    return os.path.getsize(file) / position


def _fsyncs(place: Path) -> dict[str, Any]:
    descriptor = os.open(place / "fsync", os.O_CREAT | os.O_RDWR)
    started = time.perf_counter()
    for k in range(200):
        os.pwrite(descriptor, b"x" * 4096, k * 4096)
        os.fsync(descriptor)
    seconds = time.perf_counter() - started
    os.close(descriptor)
    return {"seed": SEED, "per_second": round(200 / seconds)}
