"""Statistics of all subscriptions and of the history of events, and the Views that follow: jobs on Spark.

Every task reads its share and answers with sketches, a few thousand places for each attribute, however much it read;
the driver merges them. So quantile edges and empirical distributions are those of all events and all filters' bounds;
only what has to be looked at one by one, such as which index suits which subscription, is judged by a sample.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidings.errors import EventError
from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Domain
from tidings.model.event import read_events
from tidings.model.types import Path
from tidings.pipeline.build.build_tasks import read_table
from tidings.pipeline.build.event_schema import domain_of
from tidings.pipeline.build.index_build import checked, domain_name
from tidings.pipeline.job_errors import PipelineError, told_briefly
from tidings.pipeline.jobs.quantile_sketches import Sketch, merged, sketch_of
from tidings.systems.geometry.line_positions import bounds_in, event_places, has_places
from tidings.systems.interface import PlacementError, placement_named, placements
from tidings.systems.statistics import Statistics

SUBSCRIPTIONS = 20_000  # sampled
EVENTS = 20_000  # sampled

_READ_SIZE = 100_000

Sketches = dict[Path, Sketch]


@dataclass(frozen=True, eq=False)
class Adapted:
    """The statistics, and the View of each placement that can serve the subscriptions."""

    statistics: Statistics
    views: Mapping[str, Any]
    refused: Mapping[str, str] = field(default_factory=dict)  # placements that cannot, and why
    clustering: Mapping[str, Any] = field(default_factory=dict)  # of ways to cluster all subscriptions the quality
    seconds: Mapping[str, float] = field(default_factory=dict)


def adapt(
    subscriptions: DataFrame,
    events: DataFrame | None = None,
    *,
    domain: Any = None,
    names: Sequence[str] | None = None,
    partitions: int | None = None,
    epoch: int = 0,
    clusters_wanted: int | None = None,
) -> Adapted:
    """The Views of placements, all of them or those named, for a table of subscriptions and a history of events."""
    if events is None and domain is None:
        raise EventError("adapting needs a history of events, or a domain that says what types they have")
    began = time.perf_counter()
    spark = subscriptions.sparkSession
    table = checked(subscriptions)
    name = domain.name if isinstance(domain, Domain) else domain_name(table)
    known = domain_of(events.schema if domain is None and events is not None else domain, name)
    ours = table.where(F.col("domain").isNull() | (F.col("domain") == known.name)).select("id", "filter")
    seconds: dict[str, float] = {}
    statistics = statistics_over(ours, events, known)
    seconds["statistics"] = time.perf_counter() - began
    chosen = tuple(names) if names is not None else tuple(one for one in placements() if one != "planned")
    wanted = partitions or spark.sparkContext.defaultParallelism
    views: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for one in chosen:
        try:
            views[one] = placement_named(one).adapt(statistics, partitions=wanted, epoch=epoch)
        except PlacementError as error:
            if names is not None:
                raise
            refused[one] = str(error)
    seconds["views"] = time.perf_counter() - began - seconds["statistics"]
    found: dict[str, Any] = {}
    if "clusters" in views:
        from tidings.pipeline.jobs.cluster_adaptation import clustered_over

        views["clusters"], found = clustered_over(ours, statistics, views["clusters"], clusters_wanted)
        seconds["clusters"] = time.perf_counter() - began - seconds["statistics"] - seconds["views"]
    return Adapted(statistics, views, refused, found, seconds)


# ---------------------------------------------------------------------- statistics


def statistics_over(subscriptions: DataFrame, events: DataFrame | None, domain: Domain) -> Statistics:
    """What adapting looks at: sketches of all filters' bounds and of all events' values, and samples of both."""
    with told_briefly():
        count = subscriptions.count()
        if not count:
            raise PipelineError("the table has no subscriptions; there is nothing to adapt to")
        every = max(1, count // SUBSCRIPTIONS)
        rows = divided(subscriptions, count).mapInArrow(partial(_read_filters, domain, every), "part binary")
        parts = [pickle.loads(row.part) for row in rows.collect()]
        texts = pa.concat_arrays([part["texts"] for part in parts])
        filters = compile_filters(texts, domain, on_error="reject")
        if not filters.boxes:
            raise PipelineError("no subscription that was sampled can be read and ever match; nothing to adapt to")
        bounds = _merged([part["bounds"] for part in parts])
        values: Sketches = {}
        batch = None
        if events is not None:
            paths = tuple(path for path, intervals in filters.intervals.items() if has_places(intervals.type))
            names = [field.name for field in events.schema.fields]
            task = partial(_read_events, domain, paths, names)
            renamed = events.toDF(*(f"_{number}" for number in range(len(names))))
            values = _merged([pickle.loads(row.part) for row in renamed.mapInArrow(task, "part binary").collect()])
            batch = read_events(_sample(events), domain, on_error="reject")
    accepted = sum(part["accepted"] for part in parts)
    return Statistics(
        filters,
        accepted,
        None if batch is None else replace(batch, source=None),
        {path: sketch.distribution() for path, sketch in values.items()},
        {path: sketch.distribution() for path, sketch in bounds.items()},
    )


def divided(subscriptions: DataFrame, count: int) -> DataFrame:
    parts = max(subscriptions.sparkSession.sparkContext.defaultParallelism, count // _READ_SIZE)
    return subscriptions.repartitionById(parts, F.pmod(F.xxhash64("id"), F.lit(parts)).cast("int"))


def _sample(events: DataFrame) -> pa.Table:
    count = events.count()
    if count > EVENTS:
        events = events.sample(fraction=min(1.0, 1.2 * EVENTS / count), seed=0).limit(EVENTS)
    return events.toArrow()


def _merged(parts: Sequence[Sketches]) -> Sketches:
    paths = dict.fromkeys(path for part in parts for path in part)
    return {path: merged(part[path] for part in parts if path in part) for path in paths}


def packed(part: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(part, protocol=5)], pa.binary())], names=["part"])


def _read_filters(domain: Domain, every: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    given = list(batches)
    if not given:
        return
    read = read_table(pa.Table.from_batches(given), domain)
    bounds = {
        path: sketch_of(bounds_in(read.filters, path))
        for path, intervals in read.filters.intervals.items()
        if has_places(intervals.type)
    }
    texts = read.accepted["filter"].combine_chunks()
    sampled = texts.take(np.arange(0, len(texts), every))
    yield packed({"accepted": len(texts), "texts": sampled, "bounds": bounds})


def _read_events(
    domain: Domain, paths: Sequence[Path], names: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A sketch of each attribute, merged with that of every batch: so a task holds one batch at a time."""
    whole: Sketches = {}
    for batch in batches:
        read = read_events(batch.rename_columns(list(names)), domain, on_error="reject")
        for path in paths:
            places = event_places(read, path)
            sketch = sketch_of(places.all, int((~places.valid).sum()))
            whole[path] = merged([whole[path], sketch]) if path in whole else sketch
    yield packed(whole)
