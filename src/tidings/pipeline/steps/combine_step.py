"""Put together what an event found at several partitions: the last step of placements that visit more than one.

All visits of an event come to one task. They are known by the task that sent them and a hash of what filters read of
the event. Events that are alike in all of that are interchangeable: they make the same visits and find the same, so one
of them is looked at for all. Whether they are alike is checked, since hashes can collide; and so is that no visit is
missing: then the job fails, instead of losing a match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.steps.match_tasks import with_column, with_lists
from tidings.systems.geometry.line_positions import ranges
from tidings.systems.interface import REPLICATED, Numbers

Settle = Callable[[pa.RecordBatch, Numbers, Any], tuple[Numbers, Any]]  # (events, rows, numbers found) → (rows, ids)


@dataclass(frozen=True, eq=False)
class _Kinds:
    """Visits in order, and what is alike among them: kind i has the looks `starts[i]` to `starts[i + 1]`."""

    order: Numbers  # of the rows that came
    looks: Numbers  # of each kind and partition one visit, in order
    starts: Numbers
    events: Numbers  # the visits that carry their event's columns, by kind
    kind_of: Numbers  # of each of those


@dataclass(frozen=True)
class CombineTask:
    """What a worker has to know to put visits together."""

    names: tuple[str, ...]  # of the events' columns
    reads: tuple[str, ...]  # the columns that filters read
    counts: bool  # the number of matches, in place of their ids
    settle: Settle | None = None  # what decides which of the found numbers are matches; None: all are ids that match


def combine(task: CombineTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row for each event. The last columns of the rows that come are the visit, and what was found."""
    given = [batch for batch in batches if len(batch)]
    if not given:
        return
    *columns, visit, found = (_one(column) for column in pa.Table.from_batches(given).columns)
    kinds = _kinds(visit, {name: columns[i] for i, name in enumerate(task.names) if name in task.reads})
    carried: Any = pa.array(kinds.order[kinds.events])
    events = pa.RecordBatch.from_arrays([column.take(carried) for column in columns], names=list(task.names))
    looked: Any = found.take(pa.array(kinds.order[kinds.looks]))
    count = len(kinds.starts) - 1
    kind_of_look = np.repeat(np.arange(count), np.diff(kinds.starts))
    unfit = np.zeros(count, bool)
    unfit[kind_of_look[np.asarray(looked.is_null())]] = True
    if task.counts and task.settle is None:
        counts = np.bincount(kind_of_look, np.asarray(looked.fill_null(0)), count).astype(np.int64)
        yield _counted(events, counts[kinds.kind_of], unfit[kinds.kind_of])
        return
    sizes = np.asarray(pc.list_value_length(looked).fill_null(0))
    rows, ids = np.repeat(kind_of_look, sizes), looked.flatten()
    if task.settle is not None:
        first = np.searchsorted(kinds.kind_of, np.arange(count))
        rows, ids = task.settle(events.take(first), rows, ids)
    counts = np.bincount(rows, minlength=count)
    if task.counts:
        yield _counted(events, counts[kinds.kind_of], unfit[kinds.kind_of])
        return
    yield from _listed(events, kinds.kind_of, counts, ids, unfit[kinds.kind_of])


def _counted(events: pa.RecordBatch, counts: Numbers, unfit: Any) -> pa.RecordBatch:
    return with_column(events, pa.array(counts, mask=unfit if unfit.any() else None), "matches")


def _listed(
    events: pa.RecordBatch, kind_of: Numbers, counts: Numbers, ids: Any, unfit: Any
) -> Iterator[pa.RecordBatch]:
    """The events with the ids of their kinds, in pieces of moderate size."""
    begins = np.concatenate([[0], np.cumsum(counts)])
    if len(kind_of) > len(counts):  # some are alike: their ids are written for each
        _, at = ranges(begins[kind_of], counts[kind_of])
        ids, begins = ids.take(pa.array(at)), np.concatenate([[0], np.cumsum(counts[kind_of])])
    yield from with_lists(events, begins, ids, unfit, "subscriptions")


def _one(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _kinds(visit: Any, reads: dict[str, Any]) -> _Kinds:
    names = ("task", "event", "partition", "visits", "first")
    task, event, partition, visits, first = (np.asarray(visit.field(name)) for name in names)
    apart = np.zeros(len(task), np.int64)  # numbers events whose hashes are alike and that are not
    while True:
        order = np.lexsort((partition, apart, event, task))
        kinds = _fresh(order, task, event, apart)
        runs = _fresh(order, task, event, apart, partition)
        kind_of_row = np.cumsum(kinds) - 1
        size = np.bincount(kind_of_row)
        each = visits[order][np.flatnonzero(kinds)]
        alike = size // each  # events of a kind
        if (alike > 1).any() and not apart.any():
            several = np.flatnonzero((alike > 1)[kind_of_row])
            leader = np.flatnonzero(kinds)[kind_of_row[several]]
            differing = _differing(reads, order[several], order[leader])
            if differing.any():
                mixed = np.isin(kind_of_row[several], kind_of_row[several[differing]])
                rows = order[several[mixed]]
                apart[rows] = _numbered(reads, rows)
                continue
        looks = np.flatnonzero(runs)
        lengths = np.diff(np.append(looks, len(order)))
        carrying = np.flatnonzero(first[order])
        whole = (
            (visits[order] == each[kind_of_row]).all()
            and (lengths == alike[kind_of_row[looks]]).all()
            and np.array_equal(np.bincount(kind_of_row[looks]), each)
            and np.array_equal(np.bincount(kind_of_row[carrying], minlength=len(size)), alike)
        )
        if not whole:
            raise PipelineError(
                "match: visits of an event to the partitions of its placement are missing: what came before the match "
                "gave other events when Spark ran a lost task again; give events that do not depend on chance or time, "
                f"or use placement='{REPLICATED}'"
            )
        starts = np.searchsorted(kind_of_row[looks], np.arange(len(size) + 1))
        return _Kinds(order, looks, starts, carrying, kind_of_row[carrying])


def _fresh(order: Numbers, *columns: Any) -> Any:
    """Where, in this order, a row differs from the one before."""
    fresh = np.zeros(len(order), bool)
    fresh[0] = True
    for column in columns:
        ordered = column[order]
        fresh[1:] |= ordered[1:] != ordered[:-1]
    return fresh


def _differing(reads: dict[str, Any], rows: Numbers, leaders: Numbers) -> Any:
    """Which rows are not surely like their leader in all that filters read."""
    differing = np.zeros(len(rows), bool)
    for column in reads.values():
        if pa.types.is_nested(column.type):
            differing[:] = True
            continue
        mine, others = column.take(pa.array(rows)), column.take(pa.array(leaders))
        same = pc.or_kleene(pc.equal(mine, others), pc.and_(mine.is_null(), others.is_null()))
        differing |= ~np.asarray(same.fill_null(False))
    return differing


def _numbered(reads: dict[str, Any], rows: Numbers) -> Numbers:
    """A number above 0 for each row, the same for those that are alike."""
    taken = [column.take(pa.array(rows)).to_pylist() for column in reads.values()]
    known: dict[str, int] = {}
    return np.array([known.setdefault(repr(values), len(known) + 1) for values in zip(*taken, strict=True)], np.int64)
