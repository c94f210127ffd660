"""From a table of subscriptions to the shard files of its index: what the driver does, and has tasks do.

A shard leaves its task as rows of bytes, in parts that Spark moves with ease; the driver puts them together. So
executors need share no disk with the driver, nor with each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Domain
from tidings.pipeline.build.index_directory import SUFFIX, Layout, ShardFile
from tidings.pipeline.build.placement_choice import (
    SAMPLE,
    PlacementOptions,
    PlacementSample,
    adapted,
    partitions_for,
    planned,
    sampled,
)
from tidings.pipeline.build.table_reading import (
    Contents,
    ReadTable,
    attributes_read,
    by_id,
    divided,
    id_type,
    indexed,
    of_domain,
    read_table,
)
from tidings.pipeline.steps.counted_lists import CONJUNCTIONS, list_rows
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.interface import REPLICATED, CountsLists, Numbers, View, place, view_to_dict
from tidings.systems.planner.planner import PlacementPlan, Room
from tidings.systems.sharding import shards_of

SHARD_SIZE = 1_000_000  # subscriptions, about: two shards of half the size cost an event half as much again
SHARDS_MAX = 8  # of a replicated index: every event is matched in each
PART_BYTES = 1 << 20
REJECTS_A_PART = 50_000
REFUSED = (1 << 31) - 1  # the shard of what cannot be read
CONJUNCTION_BITS = 40  # conjunctions that one task numbers
BUILT = "shard int, kind string, part int, data binary"

_READ_SIZE = 250_000  # subscriptions that one task reads to place them
_COPIES = 3  # of a subscription, about, in files by a View
_BYTES_A_SUBSCRIPTION = 400  # of a shard file, to divide the way to the driver into small pieces
_PIECE = 8 << 20
_BUILDERS = 8  # tasks a core that build shards

_BUILT_TYPES: dict[str, pa.DataType] = {
    "shard": pa.int32(),
    "kind": pa.string(),
    "part": pa.int32(),
    "data": pa.binary(),
}
_BUILT = pa.schema(_BUILT_TYPES)


@dataclass
class BuiltLayout:
    """What the tasks of a build sent back."""

    layout: Layout
    rejected: int = 0
    reads: set[tuple[str, ...]] = field(default_factory=set)
    rejects: list[pa.Table] = field(default_factory=list)


@dataclass(frozen=True)
class IndexBuilder:
    """Builds layouts of one table for one domain."""

    table: DataFrame
    domain: Domain
    contents: Contents
    options: PlacementOptions
    events: pa.Table | None  # a sample

    @property
    def _subscriptions(self) -> DataFrame:
        return self.table.where(of_domain(self.domain)).select("id", "filter")

    @property
    def _parallelism(self) -> int:
        return self.table.sparkSession.sparkContext.defaultParallelism

    @property
    def partitions(self) -> int:
        return partitions_for(self.options, self._parallelism)

    @cached_property
    def _sampled(self) -> PlacementSample:
        """By about SAMPLE of the subscriptions, or all where they are fewer."""
        every = max(1, self.contents.subscriptions // SAMPLE)
        chosen = F.pmod(F.xxhash64(F.lit(3), "id", "filter"), F.lit(every)) == 0
        rows = self._subscriptions.where(chosen).limit(2 * SAMPLE).toArrow()
        return sampled(rows, self.contents.subscriptions, self.domain, self.events)

    def plan(self, memory: int, cores: int) -> PlacementPlan:
        return planned(self._sampled, Room(memory, cores, self.partitions), self.options)

    def build(self, placement: str, folder: Path, plan: PlacementPlan | None) -> BuiltLayout:
        """Write the shard files of a layout to a folder."""
        if placement == REPLICATED:
            return self._built(placement, self._replicated(), None, folder)
        if plan is not None and plan.placement == placement:
            view = plan.view
        else:
            view = adapted(placement, self._sampled, self.partitions, self.options)
        return self.place(view, folder)

    def place(self, view: View, folder: Path) -> BuiltLayout:
        """Write the shard files of a View to a folder."""
        task = BuildTask(self.domain, None, view)
        counts = isinstance(view, CountsLists)
        columns = f"id {id_type(self.table)}, filter string"
        columns += ", conjunction long, box int, key long, shard int" if counts else ", shard int"
        step = partial(list_subscriptions if counts else place_subscriptions, task)
        rows = divided(self._subscriptions, self.contents.subscriptions, _READ_SIZE).mapInArrow(step, columns)
        return self._built(view.placement, rows, view, folder)

    def _replicated(self) -> DataFrame:
        shards = max(1, min(SHARDS_MAX, -(-self.contents.subscriptions // SHARD_SIZE)))
        return self._subscriptions.withColumn("shard", by_id(shards))

    def _built(self, placement: str, rows: DataFrame, view: View | None, folder: Path) -> BuiltLayout:
        """Write the shards of rows `id, filter, shard` to a folder."""
        copies = 1 if view is None else _COPIES
        pieces = 1 + self.contents.subscriptions * copies * _BYTES_A_SUBSCRIPTION // _PIECE
        tasks, builder = SHARDS_MAX, F.col("shard")
        if view is not None:  # the numbers of its shards have gaps
            tasks = _BUILDERS * self._parallelism
            builder = F.pmod(F.xxhash64("shard"), F.lit(tasks)).cast("int")
        # The second shuffle has all shards built at once, before the driver asks for them piece by piece.
        built = (
            rows.repartitionById(tasks, builder)
            .mapInArrow(partial(build_shards, BuildTask(self.domain, self.events)), BUILT)
            .repartition(pieces, "shard", "kind", "part")
        )
        result, files = BuiltLayout(Layout(placement, ())), []
        build = secrets.token_hex(8)  # Spark has one namespace for the files of an application
        for shard, kind, part, data in _rows(built):
            name = f"tidings-{build}-{placement}-{shard:05d}{SUFFIX}"
            if kind == "file":
                _write_part(folder / name, part, data)
            elif kind == "rejects":
                result.rejects.append(pa.ipc.open_stream(pa.py_buffer(data)).read_all())
            else:
                summary = json.loads(data)
                result.rejected += summary["rejected"]
                result.reads |= {tuple(path) for path in summary["reads"]}
                if summary["subscriptions"]:
                    files.append(ShardFile(shard, name, summary["subscriptions"], summary["bytes"], summary["sha256"]))
        files.sort(key=lambda file: file.shard)
        form = None if view is None else view_to_dict(view)
        result.layout = Layout(placement, tuple(files), form)
        return result


def _rows(frame: DataFrame) -> Iterator[Any]:
    """The rows of a frame, partition by partition, by a job for each.

    As `toLocalIterator`, which keeps in the driver's heap what it has given, up to the last row (Spark 4.3).
    """
    rdd = frame.rdd
    for partition in range(rdd.getNumPartitions()):
        yield from frame.sparkSession.sparkContext.runJob(rdd, list, [partition])


def _write_part(path: Path, part: int, data: bytes) -> None:
    """Parts come in any order."""
    with path.open("r+b" if path.exists() else "xb") as file:
        file.seek(part * PART_BYTES)
        file.write(data)


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


def _row(shard: int, kind: str, part: int, data: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"shard": shard, "kind": kind, "part": part, "data": data}], schema=_BUILT)


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
