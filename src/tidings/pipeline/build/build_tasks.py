"""What tasks do to build an index: read filters, tell the bad ones, and make a shard file of the others.

A shard leaves its task as rows of bytes, in parts that Spark moves with ease; the driver puts
them together. So executors need share no disk with the driver, nor with each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.filter.tree import attributes_of
from tidings.matching.change.literal_scanner import LiteralScanner
from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.model.types import Path
from tidings.pipeline.steps.counted_lists import CONJUNCTIONS, list_rows
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.interface import Numbers, View, place
from tidings.systems.sharding import shards_of

SUFFIX = ".tidings"  # of shard files
PART_BYTES = 1 << 20
EVENTS_MIN = 100  # by which the index of a shard is chosen, however small it is
REJECTS_A_PART = 50_000
REFUSED = (1 << 31) - 1  # the shard of what cannot be read
CONJUNCTION_BITS = 40  # conjunctions that one task numbers
BUILT = "shard int, kind string, part int, data binary"

_BUILT_TYPES: dict[str, pa.DataType] = {
    "shard": pa.int32(), "kind": pa.string(), "part": pa.int32(), "data": pa.binary(),
}  # fmt: skip
_BUILT = pa.schema(_BUILT_TYPES)


@dataclass(frozen=True, eq=False)
class ReadTable:
    """Subscriptions, told by whether they can be matched."""

    rows: pa.Table  # id and filter, as given
    reasons: Any  # of each row, why it is refused before its filter is read; NULL where it is not
    filters: FilterTable  # of the rows without a reason

    @cached_property
    def sound(self) -> pa.Table:
        """The rows that `filters` numbers."""
        return self.rows.filter(self.reasons.is_null())

    @cached_property
    def accepted(self) -> pa.Table:
        """The subscriptions that can be matched."""
        good = np.ones(len(self.sound), bool)
        good[[row for row, _ in self.filters.rejects]] = False
        return self.sound if good.all() else self.sound.filter(pa.array(good))

    @cached_property
    def refused(self) -> pa.Table:
        """The others, as given."""
        bad = pa.array([row for row, _ in self.filters.rejects], pa.int64())
        return pa.concat_tables([self.rows.filter(self.reasons.is_valid()), self.sound.take(bad)])

    def rejects(self) -> pa.Table:
        """id, reason and position of those, in their order."""
        errors = [error for _, error in self.filters.rejects]
        read = pa.array([f"{error.reason}; {error.hint}".removesuffix("; ") for error in errors], pa.string())
        unread = self.reasons.drop_null()
        positions = [*[None] * len(unread), *(error.column for error in errors)]
        columns = [
            self.refused["id"].combine_chunks(),
            pa.concat_arrays([unread, read]),
            pa.array(positions, pa.int32()),
        ]
        return pa.table(columns, names=["id", "reason", "position"])


def read_table(table: pa.Table, domain: Domain) -> ReadTable:
    """Read the filters of a table `id, filter`; nothing that is wrong with a row stops the others."""
    table = table.combine_chunks()
    reasons = _unread(table["id"].combine_chunks(), table["filter"].combine_chunks())
    sound = table["filter"].filter(reasons.is_null())
    return ReadTable(table, reasons, compile_filters(sound, domain, on_error="reject", scan=LiteralScanner))


def _unread(ids: Any, filters: Any) -> Any:
    missing = ids.is_null() if pa.types.is_integer(ids.type) else pc.equal(ids, pa.scalar("")).fill_null(True)
    counts = pc.value_counts(ids)
    often = counts.field("values").filter(pc.greater(counts.field("counts"), pa.scalar(1)))
    return pc.case_when(
        pc.make_struct(missing, pc.is_in(ids, value_set=often), filters.is_null()),
        pa.scalar("there is no id; every subscription needs one"),
        pa.scalar("the id is there more than once; every subscription needs its own"),
        pa.scalar("there is no filter; write TRUE to have every event"),
    )


def attributes_read(filters: FilterTable) -> set[Path]:
    """The attributes that filters ask anything of."""
    return set(filters.intervals).union(
        reference.path for residual in filters.residuals for reference in attributes_of(residual)
    )


# ---------------------------------------------------------------------- tasks


@dataclass(frozen=True)
class BuildTask:
    """What a task has to know."""

    domain: Domain
    sample: pa.Table | None  # of events
    view: View | None = None


def place_subscriptions(task: BuildTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows `id, filter, shard`, one for each shard that holds a subscription.

    All rows with one id are in one partition, so that an id that is there twice is seen. What is
    refused goes to a shard of its own, and is refused there again, with the reason.
    """
    assert task.view is not None
    given = list(batches)
    if not given:
        return
    read = read_table(pa.Table.from_batches(given), task.domain)
    placed = place(read.filters, task.view)
    shards, rows = distinct_pairs(shards_of(placed.keys, task.view), placed.subscriptions)
    yield from _with_shards(read.sound.take(rows), shards, read)


def list_subscriptions(task: BuildTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for placements that count: rows of the lists that name a subscription's conjunctions."""
    assert task.view is not None
    given = list(batches)
    if not given:
        return
    context = TaskContext.get()
    first = (0 if context is None else context.partitionId()) << CONJUNCTION_BITS
    read = read_table(pa.Table.from_batches(given).sort_by("id"), task.domain)
    rows, shards = list_rows(read.sound, read.filters, task.view, first)
    yield from _with_shards(rows, shards, read)


def _with_shards(rows: pa.Table, shards: Numbers, read: ReadTable) -> Iterator[pa.RecordBatch]:
    refused = read.refused
    for name in rows.column_names[2:]:
        refused = refused.append_column(name, pa.nulls(len(refused), rows.schema.field(name).type))
    numbers = np.concatenate([shards, np.full(len(refused), REFUSED)]).astype(np.int32)
    yield from pa.concat_tables([rows, refused]).append_column("shard", pa.array(numbers)).to_batches()


def build_shards(task: BuildTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows `BUILT` of every shard in a partition, from the rows `id, filter, shard` of its subscriptions."""
    given = list(batches)
    if not given:
        return
    table = pa.Table.from_batches(given)
    shards = np.asarray(table["shard"])
    for shard in np.unique(shards).tolist():
        members = table.filter(pa.array(shards == shard)).drop_columns("shard")
        if len(members.column_names) > 2 and shard != REFUSED:
            yield from _build_list(shard, members, task)
        else:
            # In the order of ids, so that a task that is repeated makes the same file again, byte by byte.
            yield from _build(shard, members.select(["id", "filter"]).sort_by("id"), task)


def _build_list(shard: int, members: pa.Table, task: BuildTask) -> Iterator[pa.RecordBatch]:
    order: list[tuple[str, Literal["ascending", "descending"]]] = [("conjunction", "ascending"), ("key", "ascending")]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, members.schema) as writer:
        writer.write_table(members.sort_by(order).combine_chunks())
    data = sink.getvalue().to_pybytes()
    for part, start in enumerate(range(0, len(data), PART_BYTES)):
        yield _row(shard, "file", part, data[start : start + PART_BYTES])
    filters = members["filter"].combine_chunks().unique()
    reads = attributes_read(compile_filters(filters, task.domain)) if shard == CONJUNCTIONS else set()
    summary = {
        "subscriptions": len(members["id"].unique()),
        "rejected": 0,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "reads": sorted(reads),
    }
    yield _row(shard, "summary", 0, json.dumps(summary).encode())


def _build(shard: int, members: pa.Table, task: BuildTask) -> Iterator[pa.RecordBatch]:
    read = read_table(members, task.domain)
    digest, size = hashlib.sha256(), 0
    if len(read.accepted):
        for part, data in enumerate(_saved(read.accepted, task)):
            digest.update(data)
            size += len(data)
            yield _row(shard, "file", part, data)
    rejects = read.rejects()
    for part, start in enumerate(range(0, len(rejects), REJECTS_A_PART)):
        yield _row(shard, "rejects", part, _ipc(rejects.slice(start, REJECTS_A_PART)))
    summary = {
        "subscriptions": len(read.accepted),
        "rejected": len(rejects),
        "bytes": size,
        "sha256": digest.hexdigest(),
        "reads": sorted(attributes_read(read.filters)),
    }
    yield _row(shard, "summary", 0, json.dumps(summary).encode())


def _saved(subscriptions: pa.Table, task: BuildTask) -> Iterator[bytes]:
    with tempfile.TemporaryDirectory(prefix="tidings-shard-") as folder:
        path = os.path.join(folder, "shard")
        indexed(subscriptions, task.domain, task.sample).save(path)
        with open(path, "rb") as file:
            yield from iter(lambda: file.read(PART_BYTES), b"")


def indexed(subscriptions: pa.Table, domain: Domain, sample: pa.Table | None) -> Matcher:
    """A matcher that has its index, and so can be saved with it: made for events like those of the sample.

    Those are saved with it too. So a small shard is given few: else they would be most of its file.
    """
    matcher = Matcher(subscriptions, domain, threads=1)
    typical = pa.table({}) if sample is None else sample.slice(0, max(EVENTS_MIN, len(subscriptions) // 4))
    matcher.match(typical, on_error="reject")
    return matcher


def _row(shard: int, kind: str, part: int, data: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"shard": shard, "kind": kind, "part": part, "data": data}], schema=_BUILT)


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
