"""What tasks do to match: Arrow batches of events in, the same with their matches out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.matching.matches import Matches
from tidings.pipeline.garbage import keep_what_is_there
from tidings.pipeline.shards import load_shards
from tidings.rendezvous.bluedove import View

CANDIDATE = "_tidings_candidate"  # the column that says where an event was sent
OUTPUT_BYTES = 16 << 20  # of ids in one batch; Arrow's lists end at 2 GiB, and the JVM holds a batch whole
SETS_KEPT = 12  # loaded in a worker that serves one candidate after the other


@dataclass(frozen=True)
class Task:
    """What a worker has to know: small, since it travels with every task."""

    names: tuple[str, ...]  # of the events' columns
    files: Mapping[int, str]  # of the shards that are not empty
    reads: tuple[str, ...]  # the columns that filters read
    counts: bool  # of the matches, in place of their ids
    string_ids: bool


def match_replicated(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Match every event against every shard."""
    for batch in batches:
        yield from _matched(task, list(task.files.values()), batch.columns, kept=len(task.files))
    keep_what_is_there("match")


def match_routed(task: Task, view: View, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Match every event against the sets that its candidate consults.

    The candidate is read from the row: which partition a task works on is nobody's promise once
    others have coalesced partitions.
    """
    for batch in batches:
        *events, candidates = batch.columns
        sent = np.asarray(candidates)
        for candidate in np.unique(sent).tolist():
            files = [task.files[number] for number in view.consulted(candidate) if number in task.files]
            here = pa.array(sent == candidate)
            yield from _matched(task, files, [column.filter(here) for column in events], kept=SETS_KEPT)
    keep_what_is_there("match")


def _matched(task: Task, files: list[str], columns: list[Any], *, kept: int) -> Iterator[pa.RecordBatch]:
    batch = pa.RecordBatch.from_arrays(columns, names=list(task.names))
    events = batch.select(list(task.reads))
    found = [shard.match(events, on_error="reject") for shard in load_shards(files, kept=kept)]
    yield from answer(batch, found, task)


def answer(batch: pa.RecordBatch, found: list[Matches], task: Task) -> Iterator[pa.RecordBatch]:
    """The batch with what was found for its events in each shard; NULL for an event that does not fit the domain."""
    counts = np.zeros(batch.num_rows, np.int64)
    for matches in found:
        counts += np.diff(matches.offsets)
    unfit = np.zeros(batch.num_rows, bool)
    unfit[[reject.row for matches in found[:1] for reject in matches.rejects]] = True
    if task.counts:
        yield _with(batch, pa.array(counts, mask=unfit if unfit.any() else None), "matches")
        return
    offsets = np.concatenate([[0], np.cumsum(counts)])
    ids = _ids(found, offsets, task.string_ids)
    for start, end in _pieces(offsets, ids):
        lists = pa.ListArray.from_arrays(
            pa.array((offsets[start : end + 1] - offsets[start]).astype(np.int32)),
            ids.slice(offsets[start], offsets[end] - offsets[start]),
            mask=pa.array(unfit[start:end]) if unfit[start:end].any() else None,
        )
        yield _with(batch.slice(start, end - start), lists, "subscriptions")


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


def _pieces(offsets: npt.NDArray[np.int64], ids: Any) -> Iterator[tuple[int, int]]:
    """Ranges of events whose ids take about OUTPUT_BYTES together; those of one event may take more."""
    width = max(1.0, ids.nbytes / max(1, len(ids)))
    piece = (offsets[1:] * width / OUTPUT_BYTES).astype(np.int64)
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(piece)) + 1, [len(piece)]]).tolist()
    return ((start, end) for start, end in pairwise(bounds) if end > start)


def _with(batch: pa.RecordBatch, column: Any, name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, column], names=[*batch.schema.names, name])
