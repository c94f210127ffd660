"""What tasks of a stream do where events are routed: every row by the View of the version that it is pinned to.

    rows ─► send: a row a visit ─► shuffle by the View's partition ─► match what is consulted there

An event's visits are answered apart, and nobody puts them together again: a store of notifications takes a row for
each, since a subscription is met at one visit alone. A version without a View is matched whole, wherever its rows
come to.

Where a row goes follows from the row and its version, so that a task that is run again, because an executor with its
output is gone, sends the same rows to the same places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from tidings.model.event import EventBatch
from tidings.pipeline.steps.match_tasks import with_column
from tidings.pipeline.steps.route_step import read_rows
from tidings.pipeline.streams.versioned_tasks import PinnedTask, PinnedVersion, answered, by_version
from tidings.systems.sharding import Visits, visits_of

VISIT = "_tidings_visit"  # the column that says where a row goes
VISITED = T.StructType(
    [
        T.StructField("partition", T.IntegerType(), False),
        T.StructField("shards", T.ArrayType(T.IntegerType(), False), False),
        T.StructField("first", T.BooleanType(), False),  # of the event
    ]
)


def send_pinned(task: PinnedTask, partitions: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A row for each partition that an event visits."""
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=list(task.names))
        for version, rows in by_version(task, batch):
            visits = _visits(task, version, rows, partitions)
            sent = rows.take(visits.events)
            numbered = pa.RecordBatch.from_arrays(sent.columns, names=[f"_{i}" for i in range(sent.num_columns)])
            yield with_column(numbered, _struct(visits, partitions), VISIT)


def match_visits(task: PinnedTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows with what they meet here; the last column says what they consult."""
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=[*task.names, VISIT])
        for version, rows in by_version(task, batch):
            if version.placed is None:
                yield from answered(task, rows, version.match)
            else:
                yield from answered(task, rows, lambda fit, version=version: _met(version, fit))  # type: ignore[misc]


def _met(version: PinnedVersion, rows: pa.RecordBatch) -> Any:
    visit: Any = rows.column(VISIT)
    return version.match_visits(rows, visit.field("shards"), visit.field("first"))


def _visits(task: PinnedTask, version: PinnedVersion, rows: pa.RecordBatch, partitions: int) -> Visits:
    if version.placed is None:
        count = len(rows)
        places = np.asarray(rows.column(task.position)) % partitions
        return Visits(np.arange(count), places, np.zeros(count + 1, np.int64), np.empty(0, np.int64))
    assert version.domain is not None
    view = version.placed.view
    events = EventBatch(version.domain, len(rows), {}, np.arange(len(rows)), [], None)
    if view.paths:
        events, _ = read_rows(rows, version.domain, [path[0] for path in view.paths])
    return visits_of(events, view)


def _struct(visits: Visits, partitions: int) -> Any:
    first = np.r_[True, visits.events[1:] != visits.events[:-1]][: len(visits)]
    offsets: Any = pa.array(visits.offsets.astype(np.int32))
    shards: Any = pa.array(visits.shards.astype(np.int32))
    # A View of more partitions than the query was started with is served by those that there are.
    places = pa.array((visits.partitions % partitions).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, shards)
    return pa.StructArray.from_arrays([places, lists, pa.array(first)], ["partition", "shards", "first"])
