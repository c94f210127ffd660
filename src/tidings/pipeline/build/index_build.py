"""From a table of subscriptions to the files of its index: what the driver does, and has tasks do."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidings.errors import SubscriptionError, did_you_mean
from tidings.filter.normal.filter_table import FilterTable
from tidings.model.domain import Domain
from tidings.pipeline.build.build_tasks import (
    BUILT,
    PART_BYTES,
    SUFFIX,
    BuildTask,
    build_shards,
    list_subscriptions,
    place_subscriptions,
)
from tidings.pipeline.build.index_directory import Layout, ShardFile
from tidings.pipeline.build.placement_choice import SAMPLE, Sampled, Wishes, adapted, partitions_for, planned, sampled
from tidings.store.formats import INDEX as FORMAT
from tidings.systems.interface import View, place, view_to_dict
from tidings.systems.planner.planner import Plan, Room

SHARD_SIZE = 1_000_000  # subscriptions, about: two shards of half the size cost an event half as much again
SHARDS_MAX = 8  # of a replicated index: every event is matched in each
_READ_SIZE = 250_000  # subscriptions that one task reads to place them
_BYTES_A_SUBSCRIPTION = 400  # of a shard file, to divide the way to the driver into small pieces
_PIECE = 8 << 20
_BUILDERS = 8  # tasks a core that build shards


def checked(table: DataFrame) -> DataFrame:
    """The columns id, filter and domain, ids as string or bigint; refuses a table that is none of subscriptions."""
    if not isinstance(table, DataFrame):
        raise SubscriptionError(f"subscriptions come as a DataFrame with id and filter, not as {type(table).__name__}")
    if table.isStreaming:
        raise SubscriptionError("subscriptions are a batch DataFrame, and this one is streaming")
    for name in ("id", "filter"):
        if name not in table.columns:
            raise SubscriptionError(f"subscription: there is no column '{name}'; {did_you_mean(name, table.columns)}")
    for name in ("filter", "domain"):
        if name in table.columns and not isinstance(table.schema[name].dataType, T.StringType):
            found = table.schema[name].dataType.simpleString()
            raise SubscriptionError(f"subscription: the column '{name}' is {found}, and has to be string; cast it")
    ids = table.schema["id"].dataType
    if not isinstance(ids, T.StringType | T.ByteType | T.ShortType | T.IntegerType | T.LongType):
        found = ids.simpleString()
        raise SubscriptionError(f"subscription: ids are texts or integers, and the column 'id' is {found}; cast it")
    id_column = F.col("id").cast("string" if isinstance(ids, T.StringType) else "bigint")
    domain = F.col("domain") if "domain" in table.columns else F.lit(None).cast("string")
    return table.select(id_column.alias("id"), F.col("filter"), domain.alias("domain"))


def domain_name(table: DataFrame) -> str:
    """The one domain that a table's subscriptions name; `events` where they name none."""
    found = [row.domain for row in table.select("domain").where("domain IS NOT NULL").distinct().limit(2).collect()]
    if len(found) > 1:
        raise SubscriptionError(
            f"the subscriptions are to several domains ('{found[0]}', '{found[1]}', …); compile(…, domain=…) says which"
        )
    return found[0] if found else "events"


def id_type(table: DataFrame) -> str:
    return table.schema["id"].dataType.simpleString()


@dataclass(frozen=True)
class Contents:
    """Of a table for one domain, before anything is compiled."""

    subscriptions: int
    elsewhere: int  # to other domains
    fingerprint: str


def contents_of(table: DataFrame, domain: Domain, wishes: Wishes) -> Contents:
    """Counts, and a fingerprint of the rows in whatever order."""
    hashes = [F.xxhash64(F.lit(seed), "id", "filter", "domain") for seed in (1, 2)]
    row = table.agg(
        F.count("*").alias("rows"),
        F.count(F.when(F.col("domain") != domain.name, 1)).alias("elsewhere"),
        *(F.sum(value.cast("decimal(38,0)")).alias(f"sum{i}") for i, value in enumerate(hashes)),
        *(F.bit_xor(value).alias(f"xor{i}") for i, value in enumerate(hashes)),
    ).first()
    assert row is not None
    parts = [FORMAT, version("tidings"), domain.to_dict(), id_type(table), asdict(wishes), row.asDict()]
    fingerprint = hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()
    return Contents(row.rows - row.elsewhere, row.elsewhere, fingerprint)


@dataclass
class Made:
    """What the tasks of a build sent back."""

    layout: Layout
    rejected: int = 0
    reads: set[tuple[str, ...]] = field(default_factory=set)
    rejects: list[pa.Table] = field(default_factory=list)


@dataclass(frozen=True)
class _Sharded:
    """The rows `id, filter, shard` that a layout is built from, and what its lists need where it has such."""

    rows: DataFrame
    copies: float = 1.0  # of a subscription, about
    view: View | None = None


@dataclass(frozen=True)
class Builder:
    """Builds layouts of one table for one domain."""

    table: DataFrame
    domain: Domain
    contents: Contents
    wishes: Wishes
    events: pa.Table | None  # a sample

    @property
    def _subscriptions(self) -> DataFrame:
        ours = F.col("domain").isNull() | (F.col("domain") == self.domain.name)
        return self.table.where(ours).select("id", "filter")

    @property
    def _parallelism(self) -> int:
        return self.table.sparkSession.sparkContext.defaultParallelism

    @property
    def partitions(self) -> int:
        return partitions_for(self.wishes, self._parallelism)

    @cached_property
    def _sampled(self) -> Sampled:
        """By about SAMPLE of the subscriptions, or all where they are fewer."""
        every = max(1, self.contents.subscriptions // SAMPLE)
        chosen = F.pmod(F.xxhash64(F.lit(3), "id", "filter"), F.lit(every)) == 0
        rows = self._subscriptions.where(chosen).limit(2 * SAMPLE).toArrow()
        return sampled(rows, self.contents.subscriptions, self.domain, self.events)

    def plan(self, memory: int, cores: int) -> Plan:
        return planned(self._sampled, Room(memory, cores, self.partitions), self.wishes)

    def build(self, placement: str, folder: Path, plan: Plan | None) -> Made:
        """Write the shard files of a layout to a folder."""
        if placement == "replicated":
            return self._built(placement, self._replicated(), folder)
        if plan is not None and plan.placement == placement:
            view = plan.view
        else:
            view = adapted(placement, self._sampled, self.partitions, self.wishes)
        return self.place(view, folder, self._sampled.statistics.filters)

    def place(self, view: View, folder: Path, sample: FilterTable) -> Made:
        """Write the shard files of a View to a folder; a sample says how many copies it makes."""
        copies = len(place(sample, view)) / max(1, sample.count)
        return self._built(view.placement, self._placed(view, copies), folder)

    def _replicated(self) -> _Sharded:
        shards = max(1, min(SHARDS_MAX, -(-self.contents.subscriptions // SHARD_SIZE)))
        return _Sharded(self._subscriptions.withColumn("shard", _by_id(shards)))

    def _placed(self, view: View, copies: float) -> _Sharded:
        parts = max(self._parallelism, self.contents.subscriptions // _READ_SIZE)
        task = BuildTask(self.domain, None, view)
        counts = view.combine == "all"
        columns = f"id {id_type(self.table)}, filter string"
        columns += ", conjunction long, box int, key long, shard int" if counts else ", shard int"
        step = partial(list_subscriptions if counts else place_subscriptions, task)
        placed = self._subscriptions.repartitionById(parts, _by_id(parts)).mapInArrow(step, columns)
        return _Sharded(placed, copies, view)

    def _built(self, placement: str, sharded: _Sharded, folder: Path) -> Made:
        pieces = 1 + int(self.contents.subscriptions * sharded.copies * _BYTES_A_SUBSCRIPTION / _PIECE)
        tasks, builder = SHARDS_MAX, F.col("shard")
        if sharded.view is not None:  # the numbers of its shards have gaps
            tasks = _BUILDERS * self._parallelism
            builder = F.pmod(F.xxhash64("shard"), F.lit(tasks)).cast("int")
        # The second shuffle has all shards built at once, before the driver asks for them piece by piece.
        built = (
            sharded.rows.repartitionById(tasks, builder)
            .mapInArrow(partial(build_shards, BuildTask(self.domain, self.events)), BUILT)
            .repartition(pieces, "shard", "kind", "part")
        )
        result, files = Made(Layout(placement, ())), []
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
        form = None if sharded.view is None else view_to_dict(sharded.view)
        result.layout = Layout(placement, tuple(files), form)
        return result


def _by_id(shards: int) -> Column:
    """So that all rows with one id meet, and an id that is there twice is seen."""
    return F.pmod(F.xxhash64("id"), F.lit(shards)).cast("int")


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
