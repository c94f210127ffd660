"""Lists of conjunctions at a partition, for placements that count (Chord, OPChord): looked up, gathered, counted.

A shard is the list of one attribute at one partition: rows of conjunction, subscription, filter, box
and key. It answers, for each event, the conjunctions at the event's own key whose interval on
the attribute holds the event's value. The task that gathers all answers of an event counts: who is found in as many
lists as it is in has its keyed attributes satisfied; what they do not decide is evaluated there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark import SparkFiles

from tidings.matching.columns import Columns, Mask
from tidings.model.domain import Domain
from tidings.model.event import EventBatch
from tidings.model.filter.columnar import FilterTable
from tidings.model.filter.compile import compile_filters
from tidings.pipeline.routing import read_rows
from tidings.pipeline.worker import Task, consulted, with_column
from tidings.rendezvous.interface import Numbers, Placed, View, channels_of, place, route
from tidings.rendezvous.meeting import counted, joined, needed, verified, within
from tidings.rendezvous.sharding import channel_of_shard, shards_of

LISTS_KEPT = 32
CONJUNCTIONS = (1 << 31) - 2  # the shard that has all conjunctions, with how many lists each is in


@dataclass(frozen=True, eq=False)
class List:
    """One attribute's list at one partition."""

    conjunctions: Numbers  # of each copy
    boxes: Numbers  # of each copy, in `filters`
    keys: Numbers
    filters: FilterTable


def list_rows(table: pa.Table, filters: FilterTable, view: View, first: int) -> tuple[pa.Table, Numbers]:
    """Rows for the lists of a table's conjunctions, numbered from `first` on, and the shard of each row.

    One more row for each conjunction says in how many lists it is, and whether they decide it.
    """
    placed = place(filters, view)
    assert placed.conjunctions is not None
    offsets = np.searchsorted(filters.box_filter, filters.box_filter)  # the first box of the same filter
    boxes = placed.conjunctions
    lists = needed(placed, filters.boxes)
    decided = _decided(filters, placed, view)
    every = np.arange(filters.boxes)
    rows = np.concatenate([placed.subscriptions, filters.box_filter])
    box = np.concatenate([boxes, every])
    made = table.take(pa.array(rows))
    made = made.append_column("conjunction", pa.array(box + first))
    made = made.append_column("box", pa.array((box - offsets[box]).astype(np.int32)))
    made = made.append_column("key", pa.array(np.concatenate([placed.keys, np.where(decided, lists, -lists)])))
    shards = np.concatenate([shards_of(placed.keys, view), np.full(filters.boxes, CONJUNCTIONS)])
    return made, shards


def _decided(filters: FilterTable, placed: Placed, view: View) -> Any:
    """Which conjunctions ask nothing but what their lists look at."""
    assert placed.conjunctions is not None
    open_ = filters.residual_of >= 0
    listed = np.zeros((len(view.paths) + 1, filters.boxes), bool)
    listed[channels_of(placed.keys), placed.conjunctions] = True
    numbers = {path: channel for channel, path in enumerate(view.paths)}
    for path, intervals in filters.intervals.items():
        asked = np.zeros(filters.boxes, bool)
        asked[intervals.constrained] = True
        if path in numbers:
            asked &= ~listed[numbers[path]]
        open_ |= asked
    return ~open_


# ---------------------------------------------------------------------- at a partition


@dataclass(frozen=True)
class ListTask:
    task: Task
    view: View
    domain: Domain


def look_up(given: ListTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The visits with the conjunctions that their lists name; NULL for an event that does not fit the domain."""
    task = given.task
    for batch in batches:
        *columns, visit = cast(list[Any], batch.columns)
        named = pa.RecordBatch.from_arrays(columns, names=list(task.names))
        columns_read = [*(path[0] for path in given.view.paths), *task.reads]
        events, unfit = read_rows(named, given.domain, columns_read)
        visited = route(events, given.view)
        rows, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for shard, mine in consulted(visit.field("shards")):
            if shard in task.files:
                held = _list(task.files[shard], given.domain)
                event, conjunctions = _listed(held, shard, mine, events, visited, given)
                rows.append(event)
                found.append(conjunctions)
        event = np.concatenate(rows)
        order = np.argsort(event, kind="stable")
        counts = np.bincount(event, minlength=len(batch))
        offsets: Any = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        numbers: Any = pa.array(np.concatenate(found)[order])
        lists = pa.ListArray.from_arrays(offsets, numbers, mask=unfit if unfit.any() else None)
        sent = pa.RecordBatch.from_arrays(batch.columns, names=[f"_{i}" for i in range(batch.num_columns)])
        yield with_column(sent, lists, "found")


def _listed(
    held: List, shard: int, rows: Numbers, events: EventBatch, visited: Any, given: ListTask
) -> tuple[Numbers, Numbers]:
    channel = channel_of_shard(shard)
    mine = (channels_of(visited.keys) == channel) & np.isin(visited.events, rows)
    copies = Placed(held.conjunctions, held.keys)
    visits = type(visited)(visited.events[mine], visited.keys[mine])
    event, copy = joined(copies, visits)
    if channel < len(given.view.paths):
        path = given.view.paths[channel]
        intervals = held.filters.intervals[path]
        codes, valid = Columns(events).codes(path, intervals.keys)
        kept = within(intervals, held.boxes[copy], codes[event], valid[event])
        event, copy = event[kept], copy[kept]
    return event, held.conjunctions[copy]


@lru_cache(maxsize=LISTS_KEPT)
def _list(name: str, domain: Domain) -> List:
    with pa.memory_map(SparkFiles.get(name)) as file:
        table = pa.ipc.open_file(file).read_all()
    filters, boxes = _boxes(table, domain)
    return List(np.asarray(table["conjunction"]), boxes, np.asarray(table["key"]), filters)


def _boxes(table: pa.Table, domain: Domain) -> tuple[FilterTable, Numbers]:
    """The filters of rows, each once, and the box of each row among theirs."""
    encoded = table["filter"].combine_chunks().dictionary_encode()
    filters = compile_filters(encoded.dictionary, domain)
    first = np.searchsorted(filters.box_filter, np.asarray(encoded.indices))
    return filters, first + np.asarray(table["box"])


# ---------------------------------------------------------------------- where all answers are


@dataclass(frozen=True, eq=False)
class Conjunctions:
    """All conjunctions of a layout, by number."""

    numbers: Numbers  # ascending
    lists: Numbers  # c3 of each
    open: Mask  # which have more to decide
    subscription: Numbers  # of each: its place in `ids`
    ids: Any
    boxes: Numbers  # of each open one, in `filters`; of others, anything
    filters: FilterTable  # of the open ones


@dataclass(frozen=True)
class Count:
    """Settles what was found in lists: a `combining.Settle`."""

    name: str | None  # of the file of conjunctions; None where there are none
    domain: Domain
    reads: tuple[str, ...]
    string_ids: bool

    def __call__(self, events: pa.RecordBatch, rows: Numbers, found: Any) -> tuple[Numbers, Any]:
        if self.name is None:
            return np.empty(0, np.int64), pa.array([], pa.string() if self.string_ids else pa.int64())
        known = _conjunctions(self.name, self.domain)
        at = np.searchsorted(known.numbers, np.asarray(found))
        rows, at = counted(rows, at, known.lists)
        holds = np.ones(len(rows), bool)
        undecided = np.flatnonzero(known.open[at])
        if len(undecided):
            columns = Columns(read_rows(events, self.domain, self.reads)[0])
            holds[undecided] = verified(known.filters, columns, rows[undecided], known.boxes[at[undecided]])
        pairs = np.unique(np.stack([rows[holds], known.subscription[at[holds]]]), axis=1)
        return pairs[0], known.ids.take(pa.array(pairs[1]))


@lru_cache(maxsize=2)
def _conjunctions(name: str, domain: Domain) -> Conjunctions:
    with pa.memory_map(SparkFiles.get(name)) as file:
        table = pa.ipc.open_file(file).read_all().sort_by("conjunction")
    lists = np.asarray(table["key"])
    open_ = lists < 0
    filters, boxes = _boxes(table.filter(pa.array(open_)), domain)
    all_boxes = np.zeros(len(table), np.int64)
    all_boxes[open_] = boxes
    ids = table["id"].combine_chunks().dictionary_encode()
    numbers = np.asarray(table["conjunction"])
    return Conjunctions(
        numbers, np.abs(lists), open_, np.asarray(ids.indices, np.int64), ids.dictionary, all_boxes, filters
    )
