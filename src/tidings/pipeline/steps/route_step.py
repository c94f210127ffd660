"""How events reach the partitions that hold what they may satisfy: the View's law, as steps of Spark.

An event that visits one partition is sent there. One that visits several is sent to each, under a hash of
its values that its visits share, and what they find is put together again afterwards (`combining`). A
number by its order would not do: a task that Spark runs again may read its events in another.
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
from tidings.pipeline.steps.match_tasks import with_column
from tidings.systems.geometry.coarse_line import event_values
from tidings.systems.geometry.line_positions import has_places
from tidings.systems.interface import Numbers, View
from tidings.systems.sharding import Visits, visits_of

VISIT = "_tidings_visit"  # the column that says where an event goes

_ONE = T.StructType(
    [
        T.StructField("partition", T.IntegerType(), False),
        T.StructField("shards", T.ArrayType(T.IntegerType(), False), False),
    ]
)
SEVERAL = T.StructType(
    [
        *_ONE.fields,
        T.StructField("task", T.IntegerType(), False),  # that sent the event, …
        T.StructField("event", T.LongType(), False),  # … a hash of what filters read of it, …
        T.StructField("visits", T.IntegerType(), False),  # … how many visits it makes, …
        T.StructField("first", T.BooleanType(), False),  # … and whether this one carries all its columns
    ]
)


def routed_once(events: DataFrame, view: View, domain: Domain) -> DataFrame:
    """Every event to its one partition, with the shards that it consults there."""
    if VISIT in map(str.lower, events.columns):
        raise PipelineError(f"the events have a column {VISIT}, which matching adds itself; rename it")

    def visit(*columns: pa.Array) -> pa.Array:  # type: ignore[type-arg] # Spark reads these hints
        struct: pa.Array[Any] = _struct(visits_of(_events(columns, view, domain), view))
        return struct

    route = arrow_udf(visit, _ONE)  # type: ignore[call-overload]
    columns = [F.col(path_text(path)) for path in view.paths] or [F.lit(1)]
    sent = events.withColumn(VISIT, route(*columns))
    return sent.repartitionById(view.partitions, F.col(f"{VISIT}.partition"))


def _events(columns: Any, view: View, domain: Domain) -> EventBatch:
    """The columns of the View's attributes; what does not fit the domain is NULL, and refused where it is matched."""
    pairs = zip(view.paths, columns, strict=False)
    fitted = {path: fit_column(column, domain.leaves[path]).column for path, column in pairs}
    return EventBatch(domain, len(columns[0]), fitted, np.arange(len(columns[0])), [], None)


def _struct(visits: Visits) -> Any:
    offsets: Any = pa.array(visits.offsets.astype(np.int32))
    numbers: Any = pa.array(visits.shards.astype(np.int32))
    shards = pa.ListArray.from_arrays(offsets, numbers)
    return pa.StructArray.from_arrays([pa.array(visits.partitions.astype(np.int32)), shards], ["partition", "shards"])


# ---------------------------------------------------------------------- several visits


@dataclass(frozen=True)
class RouteTask:
    """What a worker has to know to send events to several partitions."""

    names: tuple[str, ...]
    view: View
    domain: Domain
    reads: tuple[str, ...]  # the columns that filters read
    whole: bool  # every visit carries all columns, not the first alone


def routed_to_each(events: DataFrame, task: RouteTask) -> DataFrame:
    """Every event to each of its partitions."""
    schema = T.StructType(
        [T.StructField(f"_{number}", field.dataType) for number, field in enumerate(events.schema.fields)]
        + [T.StructField(VISIT, SEVERAL, False)]
    )
    numbered = events.toDF(*(f"_{number}" for number in range(len(events.columns))))
    sent = numbered.mapInArrow(partial(send, task), schema)
    return sent.repartitionById(task.view.partitions, F.col(f"{VISIT}.partition"))


def send(task: RouteTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A row for each visit."""
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=list(task.names))
        events, unfit = read_rows(batch, task.domain, [*task.reads, *(path[0] for path in task.view.paths)])
        yield _expanded(task, given, visits_of(events, task.view), number, content_hashes(events, unfit))


def read_rows(batch: pa.RecordBatch, domain: Domain, names: Iterable[str]) -> tuple[EventBatch, Mask]:
    """The events of a batch, of some columns, and which do not fit their domain: those keep their rows, with NULLs."""
    named = list(dict.fromkeys(names))
    narrow = Domain(domain.name, [one for one in domain.attributes if one.path[0] in named])
    given = pa.RecordBatch.from_arrays([batch.column(name) for name in named], names=named) if named else batch
    read = read_events(given, narrow, on_error="reject")
    unfit = np.ones(len(batch), bool)
    unfit[read.rows] = False
    columns = read.columns
    if unfit.any():
        at = np.full(len(batch), 0, np.int64)
        at[read.rows] = np.arange(read.count)
        places: Any = pa.array(at, mask=unfit)
        columns = {path: column.take(places) for path, column in columns.items()}
    return EventBatch(domain, len(batch), columns, np.arange(len(batch)), [], None), unfit


def _expanded(task: RouteTask, batch: pa.RecordBatch, visits: Visits, number: int, hashes: Numbers) -> pa.RecordBatch:
    first = np.r_[True, visits.events[1:] != visits.events[:-1]][: len(visits)]
    whole: Any = pa.array(visits.events)
    carried: Any = pa.array(visits.events, mask=~first)
    columns = [
        column.take(whole if task.whole or name in task.reads else carried)
        for name, column in zip(task.names, batch.columns, strict=True)
    ]
    counts = np.bincount(visits.events, minlength=len(batch))
    struct = pa.StructArray.from_arrays(
        [
            *_struct(visits).flatten(),
            pa.array(np.full(len(visits), number, np.int32)),
            pa.array(hashes[visits.events]),
            pa.array(counts[visits.events].astype(np.int32)),
            pa.array(first),
        ],
        [field.name for field in SEVERAL.fields],
    )
    made = pa.RecordBatch.from_arrays(columns, names=[f"_{i}" for i in range(len(columns))])
    return with_column(made, struct, VISIT)


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
