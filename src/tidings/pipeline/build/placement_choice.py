"""Where events and subscriptions meet on Spark: what the user may ask for, and what an executor can hold.

replicated   every worker maps all shards; events stay where they are. No shuffle.
others       a placement of `tidings.systems`: its View says which partition holds what, and where events go.
auto         what the planner finds cheapest, of one placement or several
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tidings.errors import did_you_mean
from tidings.model.domain import Domain
from tidings.model.event import read_events
from tidings.pipeline.build.table_reading import indexed, read_table
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.runtime.spark_workarounds import is_local
from tidings.systems.interface import AUTO, PlacementError, View, placement_named, placements, system_named
from tidings.systems.planner.planner import PlacementPlan, Room, plan
from tidings.systems.statistics import Statistics, statistics_of

SAMPLE = 10_000  # subscriptions
PARTITIONS_MIN = 4

# What a Python worker takes before it has any index: libraries, kernels, batches on their way
WORKER_ADDRESSES = 1_950 * 2**20
WORKER_BYTES = 340 * 2**20


@dataclass(frozen=True)
class PlacementOptions:
    """What the user asks of an index, beside its subscriptions; None: let it be chosen."""

    memory: int | None = None  # bytes that an executor has for its part of the index
    dimensions: tuple[str, ...] | None = None
    segments: int | None = None
    policy: str | None = None  # by which an event's candidate is chosen

    def of(self, placement: str) -> dict[str, Any]:
        """What of it concerns a placement."""
        return {name: getattr(self, name) for name in system_named(placement).options}


def checked_name(name: str) -> str:
    """A placement's name, or `auto`."""
    if name != AUTO and name not in placements():
        known = [AUTO, *placements()]
        listed = ", ".join(f"'{one}'" for one in known[:-1])
        raise ValueError(f"placement is {listed} or '{known[-1]}', not {name!r}; {did_you_mean(name, known)}")
    return name


@dataclass(frozen=True, eq=False)
class PlacementSample:
    """Subscriptions and events by which placements are adapted and compared."""

    statistics: Statistics
    rows: pa.Table  # the subscriptions
    domain: Domain
    events: pa.Table | None


def sampled(sample: pa.Table, subscriptions: int, domain: Domain, events: pa.Table | None) -> PlacementSample:
    """From some of the subscriptions, and of the events where they are known."""
    read = read_table(sample, domain)
    known = None if events is None else read_events(_known(events, domain), domain, on_error="reject")
    count = round(subscriptions * len(read.sound) / max(1, len(sample)))
    return PlacementSample(statistics_of(read.filters, known, subscriptions=count), read.accepted, domain, events)


def _known(events: pa.Table, domain: Domain) -> pa.Table:
    """The columns that the domain has: others may be of types that Tidings does not read."""
    tops = {path[0] for path in domain.leaves}
    return events.select([name for name in events.column_names if name in tops])


def planned(given: PlacementSample, room: Room, options: PlacementOptions) -> PlacementPlan:
    """What `auto` stands for."""
    names = {name: options.of(name) for name in placements()}
    return plan(given.statistics, room, subscription_bytes=_subscription_bytes(given), wishes=names)


def _subscription_bytes(given: PlacementSample) -> float:
    """Of a subscription in a shard file."""
    if not len(given.rows):
        return 0.0
    with tempfile.TemporaryDirectory(prefix="tidings-sample-") as folder:
        path = os.path.join(folder, "sample")
        indexed(given.rows, given.domain, given.events).save(path)
        return os.path.getsize(path) / len(given.rows)


def adapted(placement: str, given: PlacementSample, partitions: int, options: PlacementOptions) -> View:
    """The View of a placement that the user named."""
    try:
        made: View = placement_named(placement).adapt(given.statistics, partitions=partitions, **options.of(placement))
    except PlacementError as error:
        raise PipelineError(str(error)) from None
    return made


def partitions_for(options: PlacementOptions, parallelism: int) -> int:
    """So many that every core has some to serve, and none is most of the index."""
    return options.segments or max(PARTITIONS_MIN, parallelism)


# ---------------------------------------------------------------------- executors


def executor_memory(spark: SparkSession) -> int:
    """Bytes that an executor has for the index, by its configuration; half of a local machine's.

    Spark limits each worker's address space if it is configured to. Else an executor has its overhead for all it does
    beside the JVM's heap, and its workers share pages of the index; where they already take most of that, a quarter
    is counted on, since not every cluster enforces it.
    """
    context = spark.sparkContext
    if is_local(spark):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    conf, cores = context.getConf(), executor_cores(spark)
    if given := conf.get("spark.executor.pyspark.memory"):
        return max(0, parse_bytes(given, unit=2**20) // cores - WORKER_ADDRESSES)
    if given := conf.get("spark.executor.memoryOverhead"):
        overhead = parse_bytes(given, unit=2**20)
    else:
        factor = float(conf.get("spark.executor.memoryOverheadFactor") or "0.1")
        heap = parse_bytes(conf.get("spark.executor.memory") or "1g", unit=2**20)
        overhead = max(384 * 2**20, int(factor * heap))
    return max(overhead // 4, overhead - cores * WORKER_BYTES)


def executor_cores(spark: SparkSession) -> int:
    """How many tasks run in an executor at once."""
    context = spark.sparkContext
    if is_local(spark):
        return context.defaultParallelism
    return int(context.getConf().get("spark.executor.cores") or "1")


def parse_bytes(text: str | int, unit: int = 1) -> int:
    """A size as Spark writes it, 512m or 2g; a bare number counts units."""
    if isinstance(text, int):
        return text
    units = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
    word = text.strip().lower().removesuffix("b").removesuffix("i")
    number, factor = (word[:-1], units[word[-1]]) if word and word[-1] in units else (word, unit)
    try:
        return int(float(number) * factor)
    except ValueError:
        raise ValueError(f"{text!r} is no size; write one as 512m or 2g") from None
