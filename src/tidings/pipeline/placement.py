"""Where events and subscriptions meet on Spark: the whole index at every worker, or a part of it at each partition.

replicated   every worker maps all shards; events stay where they are. No shuffle.
bluedove     a partition is a candidate of `rendezvous.bluedove`; an event is sent to one, and matched
             against the sets that it consults. An executor needs what its running tasks consult.

`auto` estimates both from a sample of the subscriptions.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from tidings.model.domain import Domain, path_text
from tidings.pipeline.building import read_table
from tidings.pipeline.segmentation import segmented
from tidings.pipeline.shards import indexed

Placement = Literal["replicated", "bluedove"]

SAMPLE = 10_000  # subscriptions
SEGMENTS_MIN = 4
ROUTE_NS = 6_000.0  # what sending an event to its candidate costs, on one core: measured, and only the ratio matters


@dataclass(frozen=True)
class Wishes:
    """What the user asks of an index, beside its subscriptions; None: let it be chosen."""

    memory: int | None = None  # bytes that an executor has for its part of the index
    dimensions: tuple[str, ...] | None = None
    segments: int | None = None


@dataclass(frozen=True)
class Estimate:
    """What placements would cost, by a sample of the subscriptions."""

    subscriptions: int
    bytes: float  # of the whole index
    match_ns: float  # of an event against the whole index
    dimensions: tuple[str, ...] = ()  # of bluedove; none where no attribute can be one
    segments: int = 1
    largest: float = 1.0  # share of the subscriptions that one task of bluedove consults, at most
    met: float = 1.0  # share of the subscriptions that an event meets there, on average
    stored: float = 1.0  # copies of a subscription

    @staticmethod
    def from_dict(form: dict[str, Any]) -> Estimate:
        return Estimate(**form | {"dimensions": tuple(form["dimensions"])})


@dataclass(frozen=True)
class Choice:
    placement: Placement
    reasons: tuple[str, ...]


def choose(estimate: Estimate, memory: int, cores: int) -> Choice:
    """The placement that an executor's memory holds, of two the cheaper; `cores` tasks run in an executor at once."""
    working = min(1.0, estimate.largest * cores) * estimate.bytes
    routed_ns = ROUTE_NS + estimate.met * estimate.match_ns
    replicated = f"replicated: {_size(estimate.bytes)} in each executor, {_micros(estimate.match_ns)} an event"
    if not estimate.dimensions:
        return Choice("replicated", (replicated, "chosen: replicated, since no attribute can be a dimension"))
    bluedove = (
        f"bluedove on {', '.join(estimate.dimensions)}: {_size(working)} in each executor, {_micros(routed_ns)} "
        f"an event, which meets {estimate.met:.0%} of the subscriptions; {estimate.stored:.1f} copies of each stored"
    )
    fits = estimate.bytes <= memory, working <= memory
    chosen: Placement
    if fits[0] == fits[1]:
        chosen = "bluedove" if routed_ns < estimate.match_ns else "replicated"
        why = "cheaper" if fits[0] else f"cheaper, though neither fits the {_size(memory)} of an executor"
    else:
        chosen = "replicated" if fits[0] else "bluedove"
        why = f"it alone fits the {_size(memory)} of an executor"
    return Choice(chosen, (replicated, bluedove, f"chosen: {chosen}, {why}"))


def _size(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _micros(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e3:,.1f} µs"


def estimated(
    sample: pa.Table, subscriptions: int, domain: Domain, events: pa.Table | None, wishes: Wishes, parallelism: int
) -> Estimate:
    """What placing so many subscriptions would cost, if they are like those of the sample."""
    read = read_table(sample, domain)
    count = len(read.accepted)
    if not count:
        return Estimate(subscriptions, 0, 0)
    scale = subscriptions / len(sample)
    matcher = indexed(read.accepted, domain, events)
    with tempfile.TemporaryDirectory(prefix="tidings-sample-") as folder:
        path = os.path.join(folder, "sample")
        matcher.save(path)
        size = os.path.getsize(path) * scale
    match_ns = sum(engine.estimated_ns for engine in matcher.stats().engines) * scale
    made = segmented(read.filters, segments_for(wishes, parallelism), wishes.dimensions)
    if made is None:
        return Estimate(subscriptions, size, match_ns)
    return Estimate(
        subscriptions=subscriptions,
        bytes=size,
        match_ns=match_ns,
        dimensions=tuple(map(path_text, made.paths)),
        segments=max(len(edges) + 1 for edges in made.view.edges),
        largest=max(float(costs.max()) for costs in made.view.costs) / count,
        met=made.met(count),
        stored=len(made.place(read.filters)[0]) / count,
    )


def segments_for(wishes: Wishes, parallelism: int) -> int:
    """Segments of a dimension: every core has candidates to serve, and no candidate is most of the index."""
    return wishes.segments or max(SEGMENTS_MIN, parallelism)


# ---------------------------------------------------------------------- executors


def _is_local(spark: SparkSession) -> bool:
    master = spark.sparkContext.master or ""
    return master == "local" or master.startswith("local[")


def executor_memory(spark: SparkSession) -> int:
    """Bytes that the Python workers of one executor have, by its configuration; half of a local machine's."""
    context = spark.sparkContext
    if _is_local(spark):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    conf = context.getConf()
    given = conf.get("spark.executor.pyspark.memory") or conf.get("spark.executor.memoryOverhead")
    if given:
        return parse_bytes(given, unit=2**20)
    factor = float(conf.get("spark.executor.memoryOverheadFactor") or "0.1")
    return max(384 * 2**20, int(factor * parse_bytes(conf.get("spark.executor.memory") or "1g", unit=2**20)))


def executor_cores(spark: SparkSession) -> int:
    """How many tasks run in an executor at once."""
    context = spark.sparkContext
    if _is_local(spark):
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
