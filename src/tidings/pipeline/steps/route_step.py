"""How events reach the partitions that hold what they may satisfy: the View's law, as steps of Spark.

    rows ─► send: a row a visit ─► shuffle by the View's partition ─► match what is consulted there

An event that visits one partition is sent there. One that visits several is sent to each. A batch puts together again
what its visits found (`combine_step`), by a hash of its values that they share; a number by its order would not do,
since a task that Spark runs again may read its events in another. A stream does not: a store of notifications takes a
row for each visit, as a subscription is met at one visit only.

Where a row goes follows from the row and its version, so that a task that is run again sends the same rows to the same
places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from tidings.kernels.hashing import hash_numbers, hashes_of
from tidings.matching.batch_columns import Mask
from tidings.model.domain import Domain, path_text
from tidings.model.event import EventBatch, fit_column, read_events
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.runtime.spark_workarounds import freeze_garbage, numbered
from tidings.pipeline.steps.index_version import ShardedVersion, Versions
from tidings.pipeline.steps.match_tasks import VISIT, with_column
from tidings.systems.geometry.line_positions import event_values, has_places
from tidings.systems.interface import Numbers, View
from tidings.systems.sharding import Visits, visits_of

VISITED = T.StructType(
    [
        T.StructField("partition", T.IntegerType(), False),
        T.StructField("shards", T.ArrayType(T.IntegerType(), False), False),
        T.StructField("first", T.BooleanType(), False),  # of the event's visits, which carries all its columns
    ]
)
COMBINED = T.StructType(
    [
        *VISITED.fields,
        T.StructField("task", T.IntegerType(), False),  # that sent the event, …
        T.StructField("event", T.LongType(), False),  # … a hash of what filters read of it, …
        T.StructField("visits", T.IntegerType(), False),  # … and how many visits it makes
    ]
)


def routed_once(events: DataFrame, view: View, domain: Domain) -> DataFrame:
    """Every event to its one partition, with the shards that it consults there.

    Only the View's attributes go to Python for it: `routed_to_each`, which sends whole rows there, would do the same.
    """
    if VISIT in map(str.lower, events.columns):
        raise PipelineError(f"the events have a column {VISIT}, which matching adds itself; rename it")

    def visit(*columns: pa.Array) -> pa.Array:  # type: ignore[type-arg] # Spark reads these hints
        struct: pa.Array[Any] = _struct(visits_of(_events(columns, view, domain), view), view.partitions)
        return struct

    route = arrow_udf(visit, VISITED)  # type: ignore[call-overload]
    columns = [F.col(path_text(path)) for path in view.paths] or [F.lit(1)]
    sent = events.withColumn(VISIT, route(*columns))
    return sent.repartitionById(view.partitions, F.col(f"{VISIT}.partition"))


def _events(columns: Any, view: View, domain: Domain) -> EventBatch:
    """The columns of the View's attributes; what does not fit the domain is NULL, and refused when it is matched."""
    pairs = zip(view.paths, columns, strict=False)
    fitted = {path: fit_column(column, domain.leaves[path]).column for path, column in pairs}
    return EventBatch(domain, len(columns[0]), fitted, np.arange(len(columns[0])), [], None)


@dataclass(frozen=True)
class RouteTask:
    """What a worker has to know to send events to each partition that they visit."""

    names: tuple[str, ...]
    versions: Versions
    partitions: int  # a View of more is served by these
    reads: tuple[str, ...] = ()  # the columns that filters read
    combined: bool = False  # visits are put together again: all carry what filters read, and only the first the rest
    position: str = "position"  # the column by which rows of a version without a View are divided


def routed_to_each(events: DataFrame, task: RouteTask) -> DataFrame:
    """Every event to each of its partitions, under numbers for names and with the column VISIT."""
    given = numbered(events)
    visit = COMBINED if task.combined else VISITED
    # A visit that does not carry a column has NULL there, whatever the events' own schema says of it.
    carried = [T.StructField(one.name, one.dataType, one.nullable or task.combined) for one in given.schema.fields]
    schema = T.StructType([*carried, T.StructField(VISIT, visit, False)])
    sent = given.mapInArrow(partial(send, task), schema)
    return numbered(sent.repartitionById(task.partitions, F.col(f"{VISIT}.partition")))


def send(task: RouteTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A row for each visit."""
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=list(task.names))
        for version, rows in task.versions.split(batch):
            yield _sent(task, version, rows, number)
    freeze_garbage("route")


def _sent(task: RouteTask, version: ShardedVersion, rows: pa.RecordBatch, number: int) -> pa.RecordBatch:
    if version.view is None:
        places = np.asarray(rows.column(task.position)) % task.partitions
        visits = Visits(np.arange(len(rows)), places, np.zeros(len(rows) + 1, np.int64), np.empty(0, np.int64))
        return _expanded(task, rows, visits, _struct(visits, task.partitions))
    assert version.files.domain is not None
    names = [*(task.reads if task.combined else ()), *(path[0] for path in version.view.paths)]
    events, unfit = read_rows(rows, version.files.domain, names)
    visits = visits_of(events, version.view)
    visit = _struct(visits, task.partitions)
    if task.combined:
        counts = np.bincount(visits.events, minlength=len(rows))
        added = [
            pa.array(np.full(len(visits), number, np.int32)),
            pa.array(content_hashes(events, unfit)[visits.events]),
            pa.array(counts[visits.events].astype(np.int32)),
        ]
        visit = pa.StructArray.from_arrays([*visit.flatten(), *added], COMBINED.names)
    return _expanded(task, rows, visits, visit)


def _struct(visits: Visits, partitions: int) -> Any:
    """The visits by the schema VISITED."""
    offsets: Any = pa.array(visits.offsets.astype(np.int32))
    numbers: Any = pa.array(visits.shards.astype(np.int32))
    places = pa.array((visits.partitions % partitions).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, numbers)
    return pa.StructArray.from_arrays([places, lists, pa.array(_is_first(visits))], VISITED.names)


def _is_first(visits: Visits) -> Mask:
    return np.asarray(np.r_[True, visits.events[1:] != visits.events[:-1]][: len(visits)])


def _expanded(task: RouteTask, rows: pa.RecordBatch, visits: Visits, visit: Any) -> pa.RecordBatch:
    """A row for each visit, with the columns that it carries."""
    whole: Any = pa.array(visits.events)
    carried: Any = pa.array(visits.events, mask=~_is_first(visits)) if task.combined else whole
    columns = [
        column.take(whole if name in task.reads else carried)
        for name, column in zip(task.names, rows.columns, strict=True)
    ]
    made = pa.RecordBatch.from_arrays(columns, names=[f"_{i}" for i in range(len(columns))])
    return with_column(made, visit, VISIT)


def read_rows(batch: pa.RecordBatch, domain: Domain, names: Iterable[str]) -> tuple[EventBatch, Mask]:
    """Reads some columns of events; returns them, and which rows do not fit the domain: those stay, with NULLs."""
    named = list(dict.fromkeys(names))
    if not named:
        return EventBatch(domain, len(batch), {}, np.arange(len(batch)), [], None), np.zeros(len(batch), bool)
    narrow = Domain(domain.name, [one for one in domain.attributes if one.path[0] in named])
    read = read_events(batch.select(named), narrow, on_error="reject")
    unfit = np.ones(len(batch), bool)
    unfit[read.rows] = False
    columns = read.columns
    if unfit.any():
        at = np.full(len(batch), 0, np.int64)
        at[read.rows] = np.arange(read.count)
        places: Any = pa.array(at, mask=unfit)
        columns = {path: column.take(places) for path, column in columns.items()}
    return EventBatch(domain, len(batch), columns, np.arange(len(batch)), [], None), unfit


def content_hashes(events: EventBatch, unfit: Mask) -> Numbers:
    """A hash of everything that was read of each event, and of whether it fits."""
    mixed = unfit.astype(np.int64)
    for path, column in events.columns.items():
        if has_places(events.domain.leaves[path]):
            numbers, valid = event_values(events, path, None)
        else:  # arrays, and decimals of more than 64 bits: seldom
            texts: Any = pa.array([repr(value) for value in column.to_pylist()], pa.string())
            numbers, valid = hashes_of(texts).view(np.int64), ~unfit
        mixed = hash_numbers(mixed ^ np.where(valid, numbers, -1), 1).view(np.int64)
    return mixed
