"""What tasks do to match: Arrow batches of events in, the same with their matches out. Batch and stream alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.matching.matches import Matches
from tidings.pipeline.runtime.spark_workarounds import freeze_garbage
from tidings.pipeline.steps.index_version import NOTHING, Aside, ShardedVersion, Versions
from tidings.pipeline.steps.match_metrics import Measures

OUTPUT_BYTES = 16 << 20  # of ids in one batch; Arrow's lists end at 2 GiB, and the JVM holds a batch whole
VISIT = "_tidings_visit"  # the column that says where an event goes, and which shards it consults there


@dataclass(frozen=True)
class MatchTask:
    """What a worker has to know: small, since it travels with every task."""

    names: tuple[str, ...]  # of the events' columns
    versions: Versions
    string_ids: bool
    counts: bool = False  # the number of matches, in place of their ids
    goes_on: bool = False  # visits keep all columns, to be combined afterwards
    keeps: tuple[str, ...] = ()  # else the columns that go on with the matches; all if none is named
    rejected: str | None = None  # the column that says why an event does not fit its domain, if the source does
    position: str = "position"  # the column that says which event it is
    aside: Aside = NOTHING  # what is left out


def match_rows(task: MatchTask, measures: Measures, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Match every event against all subscriptions of its version."""
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=list(task.names))
        for version, rows in task.versions.split(batch):
            measures.saw(len(rows))
            yield from answered(task, rows, version.match, measures)
    freeze_garbage("match")


def match_visits(task: MatchTask, measures: Measures, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Match every event against the shards that it consults here, which the last column says.

    They are read from the row: which partition a task works on is not certain once others have coalesced partitions.
    A version without a View is matched whole, wherever its rows come to.
    """
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=[*task.names, VISIT])
        for version, rows in task.versions.split(batch):
            measures.saw(int(np.asarray(_visit(rows).field("first")).sum()))
            match = version.match if version.view is None else _by_visit(version)
            yield from answered(task, rows, match, measures)
    freeze_garbage("match")


_Match = Callable[[pa.RecordBatch, Measures], list[Matches]]


def _by_visit(version: ShardedVersion) -> _Match:
    def match(rows: pa.RecordBatch, measures: Measures) -> list[Matches]:
        visit = _visit(rows)
        return version.match_visits(rows, visit.field("shards"), visit.field("first"), measures)

    return match


def _visit(rows: pa.RecordBatch) -> Any:
    return rows.column(VISIT)


def answered(
    task: MatchTask, rows: pa.RecordBatch, match: _Match, measures: Measures, *, count: bool = True
) -> Iterator[pa.RecordBatch]:
    """The columns that go on, with what `match` finds; NULL for rows that do not fit their domain or are left out.

    Without `count`, what is found does not count as matches yet.
    """
    fits = _fitting(task, rows)
    if fits is not None:
        unfit = _going_on(task, rows.filter(pc.invert(fits)))
        yield with_column(unfit, pa.nulls(len(unfit), pa.list_(_id_type(task.string_ids))), "subscriptions")
        rows = rows.filter(fits)
    if len(rows):
        found = match(rows, measures)
        if count:
            measures.saw(0, sum(map(len, found)))
        yield from answer(_going_on(task, rows), found, counts=task.counts, string_ids=task.string_ids)


def _going_on(task: MatchTask, rows: pa.RecordBatch) -> pa.RecordBatch:
    if task.goes_on:
        # PySpark needs the names of the columns on their way: numbers, since it fails on dots and quotes.
        return pa.RecordBatch.from_arrays(rows.columns, names=[f"_{i}" for i in range(rows.num_columns)])
    return rows.select(list(task.keeps) or list(range(len(task.names))))  # by number: names may occur twice


def _fitting(task: MatchTask, rows: pa.RecordBatch) -> Any:
    """Which rows are matched: those that fit their domain and are not left out; None if all are."""
    fits: Any = None
    if task.rejected is not None:
        fits = rows.column(task.rejected).is_null()
    if task.aside.events:
        kept = pc.invert(task.aside.among(rows.column(task.position)))
        fits = kept if fits is None else pc.and_(fits, kept)
    return None if fits is None or pc.all(fits, min_count=0).as_py() else fits


def answer(batch: pa.RecordBatch, found: list[Matches], *, counts: bool, string_ids: bool) -> Iterator[pa.RecordBatch]:
    """The batch with what was found for its events in each shard; NULL for an event that does not fit the domain."""
    each = np.zeros(batch.num_rows, np.int64)
    for matches in found:
        each += np.diff(matches.offsets)
    unfit = np.zeros(batch.num_rows, bool)
    unfit[[reject.row for matches in found for reject in matches.rejects]] = True
    if counts:
        yield with_column(batch, pa.array(each, mask=unfit if unfit.any() else None), "matches")
        return
    offsets = np.concatenate([[0], np.cumsum(each)])
    yield from with_lists(batch, offsets, _ids(found, offsets, string_ids), unfit, "subscriptions")


def with_lists(
    batch: pa.RecordBatch, offsets: npt.NDArray[np.int64], values: Any, unfit: npt.NDArray[np.bool_], name: str
) -> Iterator[pa.RecordBatch]:
    """The batch with a list for each row, from one offset to the next, in pieces of moderate size; NULL if unfit."""
    for start, end in _pieces(offsets, values):
        lists = pa.ListArray.from_arrays(
            pa.array((offsets[start : end + 1] - offsets[start]).astype(np.int32)),
            values.slice(offsets[start], offsets[end] - offsets[start]),
            mask=pa.array(unfit[start:end]) if unfit[start:end].any() else None,
        )
        yield with_column(batch.slice(start, end - start), lists, name)


def _ids(found: list[Matches], offsets: npt.NDArray[np.int64], string_ids: bool) -> Any:
    """The ids of all matches, by event."""
    if not found:
        return pa.array([], _id_type(string_ids))
    if len(found) == 1:
        return found[0].ids
    places = np.empty(offsets[-1], np.int64)  # of each match among those of all shards, one after the other
    filled, before = offsets[:-1].copy(), 0
    for matches in found:
        counts = np.diff(matches.offsets)
        at = np.repeat(filled - matches.offsets[:-1], counts) + np.arange(len(matches))
        places[at] = np.arange(before, before + len(matches))
        filled += counts
        before += len(matches)
    return pa.concat_arrays([matches.ids for matches in found]).take(pa.array(places))


def _id_type(string_ids: bool) -> Any:
    return pa.string() if string_ids else pa.int64()


def _pieces(offsets: npt.NDArray[np.int64], ids: Any) -> Iterator[tuple[int, int]]:
    """Ranges of events whose ids take about OUTPUT_BYTES together; those of one event may take more."""
    width = max(1.0, ids.nbytes / max(1, len(ids)))
    piece = (offsets[1:] * width / OUTPUT_BYTES).astype(np.int64)
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(piece)) + 1, [len(piece)]]).tolist()
    return ((start, end) for start, end in pairwise(bounds) if end > start)


def with_column(batch: pa.RecordBatch, column: Any, name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, column], names=[*batch.schema.names, name])
