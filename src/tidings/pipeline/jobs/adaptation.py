"""Statistics of all subscriptions and of the history of events, and the Views that follow: jobs on Spark.

Every task reads its share and returns sketches, a few thousand places for each attribute, however much it read; the
driver merges them. So quantile edges and empirical distributions are those of all events and all filters' bounds; only
what has to be looked at one by one, such as which index suits which subscription, is judged by a sample.

A sketch keeps every n-th place of a part, in order, each standing for n. The rank of a place in a sketch differs from
its true one by less than n, so that after any number of merges quantiles are wrong by at most the sum of what the parts
left out: a part in KEPT each time that it is thinned out.

Clusters of a million subscriptions are found approximately: tasks lay a grid over the centres of boxes and count, cell
by cell (`systems.clusters.micro_clusters`); the driver clusters the cells in several ways, and takes the best for the
sampled events.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

from tidings.errors import EventError
from tidings.filter.normal.filter_table import joined_filters, taken_filters
from tidings.model.domain import Domain
from tidings.model.event import EventBatch, read_events
from tidings.model.types import Path
from tidings.pipeline.build.event_schema import domain_of
from tidings.pipeline.build.table_reading import checked, divided, domain_name, of_domain, read_table
from tidings.pipeline.job_errors import PipelineError, brief_errors
from tidings.systems.clusters import placement as clusters
from tidings.systems.clusters.micro_clusters import joined_micro, labels_of_ways, micro_clusters_of
from tidings.systems.clusters.placement import Quality, quality
from tidings.systems.geometry.line_positions import Edges, bounds_in, event_places, has_places
from tidings.systems.interface import PlacementError, View, placement_named, systems
from tidings.systems.statistics import QUANTILES, Distribution, Statistics

SUBSCRIPTIONS = 20_000  # sampled
EVENTS = 20_000  # sampled
KEPT = 4096  # places of a sketch
_JUDGING = 2_000  # events that tell which way is the best: each is compared with every sampled subscription


Sketches = dict[Path, "Sketch"]


@dataclass(frozen=True, eq=False)
class Adapted:
    """The statistics, and the View of each placement that can serve the subscriptions."""

    statistics: Statistics
    views: Mapping[str, Any]
    refused: Mapping[str, str] = field(default_factory=dict)  # placements that cannot, and why
    clustering: Mapping[str, Any] = field(default_factory=dict)  # of ways to cluster all subscriptions the quality
    seconds: Mapping[str, float] = field(default_factory=dict)
    partitions: int = 0  # that were asked for


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
    ours = table.where(of_domain(known)).select("id", "filter")
    seconds: dict[str, float] = {}
    statistics = statistics_over(ours, events, known)
    seconds["statistics"] = time.perf_counter() - began
    alone = [name for name, system in systems().items() if not system.combines]
    chosen = tuple(alone if names is None else names)
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
    for one, view in views.items():
        views[one], ways = over_whole_table(ours, statistics, view, clusters_wanted)
        found |= ways
    seconds["whole table"] = time.perf_counter() - began - seconds["statistics"] - seconds["views"]
    return Adapted(statistics, views, refused, found, seconds, wanted)


# ---------------------------------------------------------------------- statistics


def statistics_over(subscriptions: DataFrame, events: DataFrame | None, domain: Domain) -> Statistics:
    """What adapting looks at: sketches of all filters' bounds and of all events' values, and samples of both."""
    with brief_errors():
        count = subscriptions.count()
        if not count:
            raise PipelineError("the table has no subscriptions; there is nothing to adapt to")
        every = max(1, count // SUBSCRIPTIONS)
        rows = divided(subscriptions, count).mapInArrow(partial(_read_filters, domain, every), "part binary")
        parts = [pickle.loads(row.part) for row in rows.collect()]
        filters = joined_filters([part["sampled"] for part in parts], domain)
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


def _sample(events: DataFrame) -> pa.Table:
    count = events.count()
    if count > EVENTS:
        events = events.sample(fraction=min(1.0, 1.2 * EVENTS / count), seed=0).limit(EVENTS)
    return events.toArrow()


def _merged(parts: Sequence[Sketches]) -> Sketches:
    paths = dict.fromkeys(path for part in parts for path in part)
    return {path: merged_sketch(part[path] for part in parts if path in part) for path in paths}


def _packed(part: Any) -> pa.RecordBatch:
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
    sampled = taken_filters(read.filters, read.good[::every])
    yield _packed({"accepted": len(read.good), "sampled": sampled, "bounds": bounds})


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
            whole[path] = merged_sketch([whole[path], sketch]) if path in whole else sketch
    yield _packed(whole)


# ---------------------------------------------------------------------- sketches


@dataclass(frozen=True, eq=False)
class Sketch:
    """Places in their order, how many each stands for, and how many NULLs there were."""

    places: Edges
    weights: npt.NDArray[np.float64]
    nulls: int = 0
    distinct: int = 0  # places seen; of a merged sketch, at least so many

    @property
    def count(self) -> float:
        return float(self.weights.sum())

    def distribution(self, quantiles: int = QUANTILES) -> Distribution:
        total = self.count
        nulls = self.nulls / max(1.0, total + self.nulls)
        if not len(self.places):
            return Distribution(self.places, nulls, 0)
        reached = np.cumsum(self.weights)
        wanted = np.linspace(0, total, min(quantiles, len(self.places)))
        at = np.minimum(np.searchsorted(reached, wanted, side="left"), len(self.places) - 1)
        return Distribution(self.places[at], nulls, self.distinct)


def sketch_of(places: Edges, nulls: int = 0, *, kept: int = KEPT) -> Sketch:
    """A sketch of places in any order."""
    ordered = np.sort(places)
    distinct = 0 if not len(ordered) else 1 + int((ordered[1:] != ordered[:-1]).sum())
    return _thinned(ordered, np.ones(len(ordered)), nulls, distinct, kept)


def merged_sketch(sketches: Iterable[Sketch], *, kept: int = KEPT) -> Sketch:
    """A sketch of all that these are sketches of."""
    given = list(sketches)
    filled = [sketch for sketch in given if len(sketch.places)]
    nulls = sum(sketch.nulls for sketch in given)
    if not filled:
        return Sketch(np.empty(0, np.int64), np.empty(0), nulls)
    places = np.concatenate([sketch.places for sketch in filled])
    order = np.argsort(places, kind="stable")
    places, weights = places[order], np.concatenate([sketch.weights for sketch in filled])[order]
    seen = 1 + int((places[1:] != places[:-1]).sum())
    return _thinned(places, weights, nulls, max(seen, *(sketch.distinct for sketch in filled)), kept)


def _thinned(places: Edges, weights: npt.NDArray[np.float64], nulls: int, distinct: int, kept: int) -> Sketch:
    if len(places) <= kept:
        return Sketch(places, weights, nulls, distinct)
    total = float(weights.sum())
    reached = np.cumsum(weights)
    # In the middle of equal shares of the weight, so that no end of the line is favoured.
    at = np.searchsorted(reached, (np.arange(kept) + 0.5) * total / kept, side="left")
    return Sketch(places[np.minimum(at, len(places) - 1)], np.full(kept, total / kept), nulls, distinct)


# ---------------------------------------------------------------------- clusters


def over_whole_table(
    subscriptions: DataFrame, statistics: Statistics, view: View, wanted: int | None = None
) -> tuple[View, dict[str, Quality]]:
    """Returns a View for all subscriptions instead of a sample, if this job can make one: of clusters it can."""
    if not isinstance(view, clusters.View):
        return view, {}
    return clustered_over(subscriptions, statistics, view, wanted)


def clustered_over(
    subscriptions: DataFrame, statistics: Statistics, view: clusters.View, wanted: int | None = None
) -> tuple[clusters.View, dict[str, Quality]]:
    """The clusters of all subscriptions on the axes of a View made from a sample: the best of the ways there are.

    By `labels_of_ways` of the micro-clusters, and those of the sample itself: the one whose events meet the fewest
    subscriptions that they do not match.
    """
    domain = statistics.filters.domain
    ends = np.array([len(edges) + 1 for edges in view.edges], np.int64)
    with brief_errors():
        task = partial(_count_boxes, domain, view)
        rows = divided(subscriptions, statistics.subscriptions)
        parts = [pickle.loads(row.part) for row in rows.mapInArrow(task, "part binary").collect()]
    micro = joined_micro(parts)
    if not len(micro):
        return view, {}
    count = wanted or view.count
    ways = {"sample": view}
    for way, label in labels_of_ways(micro, ends, count).items():
        order = np.argsort(label, kind="stable")
        starts = np.searchsorted(label[order], np.arange(label.max() + 1))
        lows = np.minimum.reduceat(micro.lows[order], starts, axis=0)
        highs = np.maximum.reduceat(micro.highs[order], starts, axis=0)
        blank = replace(
            view, lows=lows, highs=highs, sizes=np.zeros(len(lows)), assignment=np.zeros(len(lows), np.int64)
        )
        ways[way] = clusters.sized(blank, statistics, view.partitions)
    if statistics.events is None or not statistics.events.count:
        return ways["kmeans"], {}
    judging = _some(statistics.events, _JUDGING)
    found = {way: quality(statistics.filters, judging, made) for way, made in ways.items()}
    best = min(ways, key=lambda way: (found[way].false_negatives, found[way].delivered))
    return ways[best], found


def _some(events: EventBatch, wanted: int) -> EventBatch:
    """About so many of the events, at equal distances."""
    chosen = np.arange(0, events.count, max(1, events.count // wanted))
    columns = {path: column.take(chosen) for path, column in events.columns.items()}
    return EventBatch(events.domain, len(chosen), columns, events.rows[chosen], [], None)


def _count_boxes(domain: Domain, view: clusters.View, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    given = list(batches)
    if not given:
        return
    filters = read_table(pa.Table.from_batches(given), domain).filters
    lows, highs = clusters.boxes_in(filters, view.paths, view.edges)
    yield _packed(micro_clusters_of(lows, highs, np.array([len(edges) + 1 for edges in view.edges], np.int64)))
