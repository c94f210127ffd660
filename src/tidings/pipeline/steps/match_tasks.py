"""What tasks do to match: Arrow batches of events in, the same with their matches out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.matching.matches import Matches
from tidings.model.event import Reject
from tidings.pipeline.runtime.worker_garbage import keep_what_is_there
from tidings.pipeline.steps.match_metrics import Measures
from tidings.pipeline.steps.shard_files import enough_memory, load_shards

OUTPUT_BYTES = 16 << 20  # of ids in one batch; Arrow's lists end at 2 GiB, and the JVM holds a batch whole
SHARDS_KEPT = 16  # loaded in a worker that serves one partition after the other


@dataclass(frozen=True)
class Task:
    """What a worker has to know: small, since it travels with every task."""

    names: tuple[str, ...]  # of the events' columns
    files: Mapping[int, str]  # of the shards that are not empty
    reads: tuple[str, ...]  # the columns that filters read
    counts: bool  # of the matches, in place of their ids
    string_ids: bool


def match_replicated(task: Task, measures: Measures, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Match every event against every shard."""
    for given in batches:
        batch = pa.RecordBatch.from_arrays(given.columns, names=list(task.names))
        events = batch.select(list(task.reads))
        found = []
        with enough_memory():
            matchers = load_shards(list(task.files.values()), kept=len(task.files))
            for shard, matcher in zip(task.files, matchers, strict=True):
                with measures.matching(shard, matcher, batch.num_rows):
                    found.append(matcher.match(events, on_error="reject"))
        measures.saw(batch.num_rows)
        yield from answer(batch, found, task)
    keep_what_is_there("match")


def match_visits(
    task: Task, measures: Measures, goes_on: bool, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Match every event against the shards that it consults here; the last column says which, and `goes_on` if so.

    They are read from the row: which partition a task works on is nobody's promise once others have
    coalesced partitions.
    """
    for given in batches:
        *columns, visit = cast(list[Any], given.columns)
        batch = pa.RecordBatch.from_arrays(columns, names=list(task.names))
        events = batch.select(list(task.reads))
        found = []
        for shard, rows in consulted(visit.field("shards")):
            if shard not in task.files:
                continue
            with enough_memory():
                (matcher,) = load_shards([task.files[shard]], kept=SHARDS_KEPT)
                with measures.matching(shard, matcher, len(rows)):
                    mine = events if len(rows) == len(events) else events.take(rows)
                    found.append(scattered(matcher.match(mine, on_error="reject"), rows, batch.num_rows))
        measures.saw(_beginning(visit))
        # PySpark wants the names of the columns on their way: numbers, for it trips over dots and quotes.
        sent = pa.RecordBatch.from_arrays(given.columns, names=[f"_{i}" for i in range(given.num_columns)])
        yield from answer(sent if goes_on else batch, found, task)
    keep_what_is_there("match")


def _beginning(visit: Any) -> int:
    """How many events make their first visit here, or their only one."""
    several = visit.type.get_field_index("first")
    return len(visit) if several < 0 else int(np.asarray(visit.field(several)).sum())


def consulted(shards: Any) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each shard that rows consult, with those rows, ascending; from an Arrow column of lists."""
    numbers = np.asarray(shards.flatten())
    rows = np.repeat(np.arange(len(shards)), np.diff(np.asarray(shards.offsets)))
    order = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.diff(numbers[order])) + 1
    for part in np.split(order, ends):
        if len(part):
            yield int(numbers[part[0]]), rows[part]


def scattered(matches: Matches, rows: npt.NDArray[np.int64], count: int) -> Matches:
    """The matches of some rows of a batch, ascending, as those of the whole batch."""
    if len(rows) == count:
        return matches
    counts = np.zeros(count, np.int64)
    counts[rows] = np.diff(matches.offsets)
    rejects = [Reject(int(rows[reject.row]), reject.attribute, reject.reason) for reject in matches.rejects]
    return Matches(np.concatenate([[0], np.cumsum(counts)]), matches.slots, matches.id_columns, rejects)


def answer(batch: pa.RecordBatch, found: list[Matches], task: Task) -> Iterator[pa.RecordBatch]:
    """The batch with what was found for its events in each shard; NULL for an event that does not fit the domain."""
    counts = np.zeros(batch.num_rows, np.int64)
    for matches in found:
        counts += np.diff(matches.offsets)
    unfit = np.zeros(batch.num_rows, bool)
    unfit[[reject.row for matches in found for reject in matches.rejects]] = True
    if task.counts:
        yield with_column(batch, pa.array(counts, mask=unfit if unfit.any() else None), "matches")
        return
    offsets = np.concatenate([[0], np.cumsum(counts)])
    ids = _ids(found, offsets, task.string_ids)
    for start, end in pieces(offsets, ids):
        lists = pa.ListArray.from_arrays(
            pa.array((offsets[start : end + 1] - offsets[start]).astype(np.int32)),
            ids.slice(offsets[start], offsets[end] - offsets[start]),
            mask=pa.array(unfit[start:end]) if unfit[start:end].any() else None,
        )
        yield with_column(batch.slice(start, end - start), lists, "subscriptions")


def _ids(found: list[Matches], offsets: npt.NDArray[np.int64], string_ids: bool) -> Any:
    """The ids of all matches, by event."""
    if not found:
        return pa.array([], pa.string() if string_ids else pa.int64())
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


def pieces(offsets: npt.NDArray[np.int64], ids: Any) -> Iterator[tuple[int, int]]:
    """Ranges of events whose ids take about OUTPUT_BYTES together; those of one event may take more."""
    width = max(1.0, ids.nbytes / max(1, len(ids)))
    piece = (offsets[1:] * width / OUTPUT_BYTES).astype(np.int64)
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(piece)) + 1, [len(piece)]]).tolist()
    return ((start, end) for start, end in pairwise(bounds) if end > start)


def with_column(batch: pa.RecordBatch, column: Any, name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, column], names=[*batch.schema.names, name])
