"""Analyse a table of subscriptions: which never match, which values are crowded, what each subscriber costs.

Texts are read by tasks, which also count the matches of their share with a sample of the events, and normal forms
meet at the driver; which of a million imply which is searched by tasks again, each for a share of the filters in all of
them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession

from tidings.errors import EventError
from tidings.filter.normal.filter_table import taken_filters
from tidings.matching.analysis.crowded_values import Crowd, Plane, crowds_of, plane_of
from tidings.matching.analysis.implications import Covering, Questions, answered, questions_of
from tidings.matching.analysis.rectangle_forest import Forest
from tidings.matching.batch_columns import Columns
from tidings.matching.selectivity import (
    CANDIDATE_NS,
    Dimension,
    Indices,
    Selectivity,
    dimensions_of,
    indices_of,
    selectivity_of,
)
from tidings.model.domain import Domain, path_text
from tidings.model.event import read_events
from tidings.pipeline.build.event_schema import domain_of
from tidings.pipeline.build.table_reading import WholeTable, checked, domain_name, read_whole
from tidings.pipeline.job_errors import PipelineError, brief_errors

if TYPE_CHECKING:
    from rich.console import RenderableType

EVENTS = 2_000  # sampled, where the user names no other number
NOTIFICATION_NS = 2_000.0  # of writing a match to a mailbox, on one core: taken, not measured; only the ratio matters

_SEARCHES_A_TASK = 50_000
_INDEX_SAMPLE = 200_000  # subscriptions that indices are chosen by


@dataclass(frozen=True, eq=False)
class Costs:
    """What each subscriber, or each subscription where no subscribers are known, costs an event, in nanoseconds."""

    names: Any  # an Arrow array, the dearest first
    subscriptions: npt.NDArray[np.int64]
    candidates: npt.NDArray[np.float64]  # that an event brings, expected of the sampled events
    matches: npt.NDArray[np.float64]  # of an event, counted
    by: str  # "subscriber" or "subscription"

    @property
    def ns(self) -> npt.NDArray[np.float64]:
        return np.asarray(self.candidates * CANDIDATE_NS + self.matches * NOTIFICATION_NS)

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        return np.asarray(self.ns / max(self.ns.sum(), 1e-9))

    def to_arrow(self) -> pa.Table:
        columns: dict[str, Any] = {
            self.by: self.names,
            "subscriptions": self.subscriptions,
            "candidates_an_event": self.candidates,
            "matches_an_event": self.matches,
            "ns_an_event": self.ns,
            "share": self.shares,
        }
        return pa.table(columns)


@dataclass(frozen=True, eq=False)
class Analysis:
    """What `analyse` found. Prints as a report with rich; `write` puts tables and pictures into a directory."""

    table: WholeTable
    covering: Covering
    redundant: Covering | None  # the same among the subscriptions of each subscriber
    crowds: tuple[Crowd, ...]
    plane: Plane | None
    dimensions: tuple[Dimension, ...]
    indices: Indices
    events: int  # sampled; 0: none were given, and the filters' own constants stand for them
    costs: Costs | None  # None where no events were given
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        found = {
            "subscriptions": len(self.table),
            "rejected": self.table.rejected,
            "elsewhere": self.table.elsewhere,
            "never": len(self.covering.never),
            "always": len(self.covering.always),
            "equivalent": len(self.covering.equivalent),
            "covered": len(self.covering.covered),
            "undecided": int(self.covering.undecided.sum()),
        }
        if self.redundant is not None:
            found["redundant"] = len(np.union1d(self.redundant.covered, self.redundant.equivalent))
        return found

    def relations(self) -> pa.Table:
        """A row for each fact: id, relation and, of equivalent, covered and redundant ones, the other's id.

        redundant: covered by, or equivalent to, a subscription of the same subscriber.
        """
        return _relations(self.table.ids, self.covering, self.redundant)

    def to_dict(self) -> dict[str, Any]:
        """The counts, suggestions and most crowded cells as JSON has them; the rest is in tables."""
        from tidings.pipeline.jobs.analysis_report import hottest

        return {
            "domain": self.table.domain.name,
            "counts": self.counts,
            "events": self.events,
            "dimensions": [
                {"attribute": path_text(one.path), "suggested": one.suggested, "met": one.met, "reason": one.reason}
                for one in self.dimensions
            ],
            "indices": [
                {
                    "attributes": [path_text(path) for path in one.paths],
                    "subscriptions": one.subscriptions,
                    "share": one.share,
                    "reason": one.reason,
                }
                for one in self.indices.chosen
            ],
            "in_no_index": self.indices.left,
            "hot_cells": [
                {
                    "attribute": path_text(crowd.path),
                    "cell": crowd.cells[cell],
                    "subscriptions": int(crowd.counts[cell]),
                }
                | {"heat": round(crowd.heat(cell), 2)}
                for crowd, cell in hottest(self.crowds)
            ],
            "seconds": {name: round(taken, 2) for name, taken in self.seconds.items()},
        }

    def write(self, directory: str | os.PathLike[str]) -> list[str]:
        """Tables (Parquet, CSV, JSON) and, with matplotlib, pictures. Returns the names of the files."""
        from tidings.pipeline.jobs.analysis_report import write

        return write(self, directory)

    def __rich__(self) -> RenderableType:
        from tidings.pipeline.jobs.analysis_report import report

        return report(self)


def analyse(
    subscriptions: DataFrame,
    *,
    events: DataFrame | None = None,
    domain: Any = None,
    subscriber: str | None = None,
    sample: int = EVENTS,
    seed: int = 0,
) -> Analysis:
    """Analyse a table of subscriptions, with the columns id and filter and where wanted domain and subscriber.

    `events` are typical ones: they give the domain where none is given, tell how selective filters are, and
    are matched, `sample` of them, to tell what each `subscriber` costs.
    """
    if events is None and domain is None:
        raise EventError("an analysis needs events, or a domain that says what types they have")
    if events is not None and (not isinstance(events, DataFrame) or events.isStreaming):
        raise EventError("the events of an analysis are a batch DataFrame")
    clock = _Clock()
    name = domain_name(checked(subscriptions)) if not isinstance(domain, Domain) else domain.name
    known = domain_of(events.schema if domain is None and events is not None else domain, name)
    typical = None if events is None else _sampled(events, sample, seed)
    clock.lap("events")
    table = read_whole(subscriptions, known, subscriber=subscriber, events=typical)
    if not len(table):
        raise PipelineError(f"the table has no subscriptions to '{known.name}' that can be read; nothing to analyse")
    clock.lap("read")
    spark = subscriptions.sparkSession
    covering = _searched(spark, questions_of(table.filters))
    redundant = None
    if table.subscribers is not None:
        redundant = _searched(spark, questions_of(table.filters, _owners(table.subscribers)))
    clock.lap("covering")
    batch = None if typical is None else Columns(read_events(typical, known, on_error="reject"))
    selectivity = selectivity_of(table.filters, batch)
    dimensions, indices = dimensions_of(selectivity), _indices(table, selectivity, batch)
    crowds, plane = crowds_of(table.filters), plane_of(table.filters)
    clock.lap("statistics")
    costs = None
    if typical is not None and table.matches is not None:
        costs = _costs(table, selectivity, table.matches, len(typical))
    return Analysis(
        table, covering, redundant, crowds, plane, dimensions, indices, selectivity.events, costs, clock.laps
    )


def _owners(subscribers: Any) -> npt.NDArray[np.int64]:
    """A number for each subscriber; a subscription without one has a number of its own."""
    owners = np.asarray(subscribers.dictionary_encode().indices.fill_null(-1)).astype(np.int64)
    return np.where(owners < 0, -1 - np.arange(len(owners)), owners)


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._at = now - self._at, now


def _sampled(events: DataFrame, sample: int, seed: int) -> pa.Table:
    with brief_errors():
        count = events.count()
        if not count:
            raise PipelineError("the table of events is empty; leave it out, or give events that are typical")
        if count > sample:
            fraction = min(1.0, 1.2 * sample / count + 100 / count)
            events = events.sample(fraction=fraction, seed=seed).limit(sample)
        return events.toArrow()


def _indices(table: WholeTable, whole: Selectivity, batch: Columns | None) -> Indices:
    if len(table) <= _INDEX_SAMPLE:
        return indices_of(whole)
    chosen = np.sort(np.random.default_rng(0).choice(len(table), _INDEX_SAMPLE, replace=False))
    return indices_of(selectivity_of(taken_filters(table.filters, chosen), batch), subscriptions=len(table))


# ---------------------------------------------------------------------- tasks


def _searched(spark: SparkSession, questions: Questions) -> Covering:
    """The questions answered by tasks, each for a share of the filters in the forest of all."""
    count = len(questions.filters)
    shared: Broadcast[tuple[Forest, npt.NDArray[np.int64]]] = spark.sparkContext.broadcast(
        (questions.forest, questions.filters)
    )
    try:
        tasks = max(1, min(-(-count // _SEARCHES_A_TASK), 1_000), spark.sparkContext.defaultParallelism)
        with brief_errors():
            found = spark.range(tasks, numPartitions=tasks).mapInArrow(
                partial(_search, shared, tasks), "part long, containers binary"
            )
            parts = {row.part: np.frombuffer(row.containers, np.int64) for row in found.collect()}
    finally:
        shared.destroy()
    return answered(questions, np.concatenate([np.empty(0, np.int64), *(parts[part] for part in range(tasks))]))


def _search(
    shared: Broadcast[tuple[Forest, npt.NDArray[np.int64]]], tasks: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    forest, filters = shared.value
    for batch in batches:
        for part in np.asarray(batch.column(0)).tolist():
            start, end = len(filters) * part // tasks, len(filters) * (part + 1) // tasks
            found = forest.containers(filters[start:end])
            yield pa.RecordBatch.from_pydict({"part": [part], "containers": [found.tobytes()]})


# ---------------------------------------------------------------------- the answer


def _costs(table: WholeTable, found: Selectivity, matches: npt.NDArray[np.int64], events: int) -> Costs:
    matched = matches / events
    if table.subscribers is None:
        costs = Costs(table.ids, np.ones(len(table), np.int64), found.candidates, matched, "subscription")
    else:
        encoded = table.subscribers.dictionary_encode()
        nobody = len(encoded.dictionary)
        owners = np.asarray(encoded.indices.fill_null(nobody))
        names = pa.concat_arrays([encoded.dictionary, pa.array([None], pa.string())])
        counts = np.bincount(owners, minlength=nobody + 1)
        candidates, delivered = (np.bincount(owners, one, nobody + 1) for one in (found.candidates, matched))
        some = counts > 0
        costs = Costs(
            names.filter(pa.array(some)),
            counts[some],
            candidates[some].astype(np.float64),
            delivered[some].astype(np.float64),
            "subscriber",
        )
    order = np.argsort(-costs.ns, kind="stable")
    return Costs(
        costs.names.take(pa.array(order)),
        costs.subscriptions[order],
        costs.candidates[order],
        costs.matches[order],
        costs.by,
    )


def _relations(ids: Any, covering: Covering, redundant: Covering | None) -> pa.Table:
    none: npt.NDArray[np.int64] = np.full(0, -1)
    facts: list[tuple[str, npt.NDArray[Any], npt.NDArray[np.int64]]] = [
        ("never", covering.never, none),
        ("always", covering.always, none),
        ("equivalent", covering.equivalent, covering.first[covering.equivalent]),
        ("covered", covering.covered, covering.coverer[covering.covered]),
        ("undecided", np.flatnonzero(covering.undecided), none),
    ]
    if redundant is not None:
        within = np.union1d(redundant.covered, redundant.equivalent)
        covered = redundant.coverer[within] >= 0
        facts.append(("redundant", within, np.where(covered, redundant.coverer[within], redundant.first[within])))
    rows = np.concatenate([fact[1] for fact in facts]).astype(np.int64)
    others = np.concatenate([fact[2] if len(fact[2]) else np.full(len(fact[1]), -1) for fact in facts])
    relation = pa.array(np.repeat([fact[0] for fact in facts], [len(fact[1]) for fact in facts]), pa.string())
    other = ids.take(pa.array(np.maximum(others, 0)))
    return pa.table(
        {
            "id": ids.take(pa.array(rows)),
            "relation": relation,
            "other": pc.if_else(pa.array(others >= 0), other, pa.scalar(None, ids.type)),
        }
    )
