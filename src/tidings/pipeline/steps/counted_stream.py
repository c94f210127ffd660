"""Lists in a stream (Chord, OPChord): what an event's visits found comes together by its position, and is counted.

    rows ─► send: a row a visit ─► look up at the partition ─► shuffle by position ─► count ─► matches

A list names conjunctions by numbers from 0 on. What is matched there and then, the delta and versions without lists,
goes the same way as -1 less the id. The log is the source, so that an event is known by its position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidings.matching.matches import Matches
from tidings.model.event import Reject
from tidings.pipeline.runtime.spark_workarounds import freeze_garbage
from tidings.pipeline.steps.counted_lists import Count, Lists
from tidings.pipeline.steps.index_version import ShardedVersion
from tidings.pipeline.steps.match_metrics import Measures
from tidings.pipeline.steps.match_tasks import VISIT, MatchTask, answered, with_lists
from tidings.pipeline.steps.route_step import RouteTask, routed_to_each
from tidings.systems.interface import CountsLists

_FOUND = "found"
_NO_FIT = "an attribute does not fit its domain"


def match_by_lists(frame: DataFrame, task: MatchTask, measures: Measures, partitions: int, schema: Any) -> DataFrame:
    """Rows with a version, each with its matches."""
    routed = routed_to_each(frame, RouteTask(task.names, task.versions, partitions, position=task.position))
    between = T.StructType([*routed.schema.fields, T.StructField(_FOUND, T.ArrayType(T.LongType(), False))])
    seen = routed.mapInArrow(partial(look_up_visits, task, measures), between)
    position = F.col(between.names[task.names.index(task.position)])
    gathered = seen.repartitionById(partitions, F.pmod(position, F.lit(partitions)).cast("int"))
    return gathered.mapInArrow(partial(count_visits, task, measures), schema)


def look_up_visits(task: MatchTask, measures: Measures, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The visits with the numbers of what they find; NULL for an event that does not fit its domain or is left out."""
    whole = replace(task, goes_on=True)
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=[*task.names, VISIT])
        for version, rows in task.versions.split(batch):
            measures.saw(int(np.asarray(_visit(rows).field("first")).sum()))
            yield from answered(whole, rows, partial(_numbers, version), measures, count=False)
    freeze_garbage("look up")


def _numbers(version: ShardedVersion, rows: pa.RecordBatch, measures: Measures) -> list[Matches]:
    visit = _visit(rows)
    if version.view is None:
        return [_as_ids(matches) for matches in version.match(rows, measures)]
    shards, first = visit.field("shards"), visit.field("first")
    if not isinstance(version.view, CountsLists):
        return [_as_ids(matches) for matches in version.match_visits(rows, shards, first, measures)]
    offsets, numbers, unfit = _lists(version).found(rows, shards)
    rejects = [Reject(int(row), None, _NO_FIT) for row in np.flatnonzero(unfit)]
    found = Matches(offsets, np.arange(len(numbers), dtype=np.int32), (numbers,), rejects)
    nowhere: Any = pa.array([[]] * len(rows), pa.list_(pa.int32()))
    delta = version.match_visits(rows, nowhere, first, measures)
    return [found, *(_as_ids(matches) for matches in delta)]


def _lists(version: ShardedVersion) -> Lists:
    files = version.files
    assert files.view is not None
    assert files.domain is not None
    return Lists(files.base, files.reads, files.view, files.domain, version.folder, version.aside)


def _as_ids(matches: Matches) -> Matches:
    """The same with -1 less the ids."""
    columns: Any = tuple(pc.subtract(pa.scalar(-1, pa.int64()), column) for column in matches.id_columns)
    return Matches(matches.offsets, matches.slots, columns, matches.rejects)


def _visit(rows: pa.RecordBatch) -> Any:
    return rows.column(VISIT)


def count_visits(task: MatchTask, measures: Measures, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row for each event, of all its visits."""
    given = [batch for batch in batches if len(batch)]
    if not given:
        return
    columns = [column.combine_chunks() for column in pa.Table.from_batches(given).columns]
    batch = pa.RecordBatch.from_arrays(columns, names=[*task.names, VISIT, _FOUND])
    for version, rows in task.versions.split(batch):
        yield from _counted(task, version, rows, measures)
    freeze_garbage("count")


def _counted(
    task: MatchTask, version: ShardedVersion, rows: pa.RecordBatch, measures: Measures
) -> Iterator[pa.RecordBatch]:
    _, first, event = np.unique(np.asarray(rows.column(task.position)), return_index=True, return_inverse=True)
    found: Any = rows.column(_FOUND)
    unfit = np.zeros(len(first), bool)
    unfit[event[np.asarray(found.is_null())]] = True
    at = np.repeat(event, np.asarray(pc.list_value_length(found).fill_null(0)))
    numbers = np.asarray(found.flatten())
    events = rows.take(first)
    is_listed = numbers >= 0
    at_events, ids = [at[~is_listed]], [-1 - numbers[~is_listed]]
    if isinstance(version.view, CountsLists):
        counted, listed = Count(_lists(version), string_ids=False)(events, at[is_listed], numbers[is_listed])
        if version.removed is not None and len(listed):
            alive = ~np.asarray(pc.is_in(listed, value_set=version.removed).to_numpy(zero_copy_only=False))
            counted, listed = counted[alive], listed.filter(pa.array(alive))
        at_events.append(counted)
        ids.append(np.asarray(listed))
    at, matched = np.concatenate(at_events), np.concatenate(ids)
    at, matched = at[~unfit[at]], matched[~unfit[at]]
    measures.saw(0, len(matched))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=len(first)))])
    kept = events.select(list(task.keeps) or list(range(len(task.names))))
    yield from with_lists(kept, offsets, pa.array(matched[np.argsort(at, kind="stable")]), unfit, "subscriptions")
