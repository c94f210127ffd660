"""Lists of conjunctions at a partition, for placements that count (Chord, OPChord): looked up, gathered, counted.

A shard is the list of one attribute at one partition: rows of conjunction, subscription, filter, box and key. For each
event it has the conjunctions at the event's own key whose interval on the attribute holds the event's value. The task
that gathers all visits of an event counts: a conjunction that is found in as many lists as it is in has its keyed
attributes satisfied; what they do not decide is evaluated there.

What has no keyed attribute is in one list, which every event looks at where it is: that one is a matcher, so
that only what matches is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark import SparkFiles

from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.matching.batch_columns import Columns, Mask
from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.model.event import EventBatch
from tidings.pipeline.steps.index_version import consulted
from tidings.pipeline.steps.match_tasks import with_lists
from tidings.pipeline.steps.route_step import read_rows
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.geometry.line_positions import ranges
from tidings.systems.interface import Numbers, Placed, Routed, View, channels_of, place, route
from tidings.systems.meeting import counted, needed, verified, within
from tidings.systems.sharding import channel_of_shard, shards_of

LISTS_KEPT = 32
EVENTS_AT_ONCE = 256  # for which lists are looked up: they may name most of the conjunctions for each
CONJUNCTIONS = (1 << 31) - 2  # the shard that has all conjunctions, with how many lists each is in


@dataclass(frozen=True, eq=False)
class List:
    """One attribute's list at one partition, by key."""

    conjunctions: Numbers  # of each copy
    boxes: Numbers  # of each copy, in `filters`
    keys: Numbers  # ascending
    filters: FilterTable


@dataclass(frozen=True, eq=False)
class CatchAll:
    """The conjunctions without a keyed attribute, by filter."""

    conjunctions: Numbers
    starts: Numbers  # of each filter among them, and the end
    matcher: Matcher  # of the filters; ids are their numbers


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
    """What a worker has to know to look events up in lists."""

    names: tuple[str, ...]  # of the events' columns
    files: Mapping[int, str]  # of the lists, by shard
    reads: tuple[str, ...]  # the columns that filters read
    view: View
    domain: Domain


def look_up(task: ListTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The visits with the conjunctions that their lists name; NULL for an event that does not fit the domain."""
    for batch in batches:
        sent = pa.RecordBatch.from_arrays(batch.columns, names=[f"_{i}" for i in range(batch.num_columns)])
        for start in range(0, len(batch), EVENTS_AT_ONCE):
            part = sent.slice(start, EVENTS_AT_ONCE)
            yield from with_lists(part, *_looked_up(task, part), "found")


def _looked_up(task: ListTask, batch: pa.RecordBatch) -> tuple[Numbers, Any, Mask]:
    """For each visit the conjunctions that its lists name, from one offset to the next; and which events do not fit."""
    *columns, visit = cast(list[Any], batch.columns)
    named = pa.RecordBatch.from_arrays(columns, names=list(task.names))
    events, unfit = read_rows(named, task.domain, [*(path[0] for path in task.view.paths), *task.reads])
    routed = route(events, task.view)
    rows, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for shard, mine in consulted(visit.field("shards")):
        if shard not in task.files:
            continue
        if channel_of_shard(shard) == len(task.view.paths):
            event, conjunctions = _matched(
                _catch_all(task.files[shard], task.domain), mine, named.select(list(task.reads))
            )
        else:
            held = _list(task.files[shard], task.domain)
            event, conjunctions = _listed(held, channel_of_shard(shard), mine, events, routed, task.view)
        rows.append(event)
        found.append(conjunctions)
    event = np.concatenate(rows)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(event, minlength=len(batch)))])
    return offsets, pa.array(np.concatenate(found)[np.argsort(event, kind="stable")]), unfit


def _listed(
    held: List, channel: int, rows: Numbers, events: EventBatch, routed: Routed, view: View
) -> tuple[Numbers, Numbers]:
    """(event, conjunction) for what is at an event's own key and has its value in the interval on the list's line."""
    keys = np.zeros(events.count, np.int64)
    mine = channels_of(routed.keys) == channel
    keys[routed.events[mine]] = routed.keys[mine]
    first = np.searchsorted(held.keys, keys[rows])
    last = np.searchsorted(held.keys, keys[rows], side="right")
    visit, copy = ranges(first, last - first)
    event = rows[visit]
    intervals = held.filters.intervals[view.paths[channel]]
    codes, valid = Columns(events).codes(view.paths[channel], intervals.keys)
    kept = within(intervals, held.boxes[copy], codes[event], valid[event])
    return event[kept], held.conjunctions[copy[kept]]


def _matched(held: CatchAll, rows: Numbers, events: pa.RecordBatch) -> tuple[Numbers, Numbers]:
    """(event, conjunction) for the filters that match: which of a filter's conjunctions it was, is decided later."""
    matches = held.matcher.match(events.take(rows), on_error="reject")
    filters = np.asarray(matches.ids)
    visit, at = ranges(held.starts[filters], held.starts[filters + 1] - held.starts[filters])
    return np.repeat(rows, np.diff(matches.offsets))[visit], held.conjunctions[at]


@lru_cache(maxsize=LISTS_KEPT)
def _list(name: str, domain: Domain) -> List:
    table = _read(name).sort_by("key")
    filters, boxes = _boxes(table, domain)
    return List(np.asarray(table["conjunction"]), boxes, np.asarray(table["key"]), filters)


@lru_cache(maxsize=2)
def _catch_all(name: str, domain: Domain) -> CatchAll:
    table = _read(name)
    encoded = table["filter"].combine_chunks().dictionary_encode()
    number = np.asarray(encoded.indices)
    order = np.argsort(number, kind="stable")
    starts = np.searchsorted(number[order], np.arange(len(encoded.dictionary) + 1))
    filters = pa.table({"id": pa.array(np.arange(len(encoded.dictionary))), "filter": encoded.dictionary})
    return CatchAll(np.asarray(table["conjunction"])[order], starts, Matcher(filters, domain, threads=1))


def _read(name: str) -> pa.Table:
    with pa.memory_map(SparkFiles.get(name)) as file:
        return pa.ipc.open_file(file).read_all()


def _boxes(table: pa.Table, domain: Domain) -> tuple[FilterTable, Numbers]:
    """The filters of rows, each once, and the box of each row among theirs."""
    encoded = table["filter"].combine_chunks().dictionary_encode()
    filters = compile_filters(encoded.dictionary, domain)
    first = np.searchsorted(filters.box_filter, np.asarray(encoded.indices))
    return filters, first + np.asarray(table["box"])


# ---------------------------------------------------------------------- where all visits of an event are


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

    name: str | None  # of the file of conjunctions; None if there are none
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
        rows, subscriptions = distinct_pairs(rows[holds], known.subscription[at[holds]])
        return rows, known.ids.take(pa.array(subscriptions))


@lru_cache(maxsize=2)
def _conjunctions(name: str, domain: Domain) -> Conjunctions:
    table = _read(name).sort_by("conjunction")
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
