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
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.matching.batch_columns import Columns, Mask
from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.model.event import EventBatch
from tidings.pipeline.steps.index_version import consulted, find_file
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
class Lists:
    """The lists of a View: where their files are, and what a worker has to know to look things up in them."""

    files: Mapping[int, str]  # names, by shard
    reads: tuple[str, ...]  # the columns that filters read
    view: View
    domain: Domain
    folder: Path | None = None  # of the files; None: Spark brought them
    aside: frozenset[int] = frozenset()  # subscriptions that are left out

    def path(self, shard: int) -> str:
        return str(find_file(self.folder, self.files[shard]))

    def found(self, events: pa.RecordBatch, shards: Any) -> tuple[Numbers, Any, Mask]:
        """Returns for each event the conjunctions that the lists in `shards` name, from one offset to the next.

        And which events do not fit the domain.
        """
        read, unfit = read_rows(events, self.domain, [*(path[0] for path in self.view.paths), *self.reads])
        routed = route(read, self.view)
        rows, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for shard, mine in consulted(shards):
            if shard not in self.files:
                continue
            if channel_of_shard(shard) == len(self.view.paths):
                held = _catch_all(self.path(shard), self.domain, self.aside)
                event, conjunctions = _matched(held, mine, events.select(list(self.reads)))
            else:
                one = _list(self.path(shard), self.domain, self.aside)
                event, conjunctions = _listed(one, channel_of_shard(shard), mine, read, routed, self.view)
            rows.append(event)
            found.append(conjunctions)
        event = np.concatenate(rows)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(event, minlength=len(events)))])
        return offsets, pa.array(np.concatenate(found)[np.argsort(event, kind="stable")]), unfit


@dataclass(frozen=True)
class ListTask:
    """What a worker has to know to look the visits of a batch up."""

    names: tuple[str, ...]  # of the events' columns
    lists: Lists


def look_up(task: ListTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The visits with the conjunctions that their lists name; NULL for an event that does not fit the domain."""
    for batch in batches:
        sent = pa.RecordBatch.from_arrays(batch.columns, names=[f"_{i}" for i in range(batch.num_columns)])
        for start in range(0, len(batch), EVENTS_AT_ONCE):
            part = sent.slice(start, EVENTS_AT_ONCE)
            *columns, visit = cast(list[Any], part.columns)
            events = pa.RecordBatch.from_arrays(columns, names=list(task.names))
            yield from with_lists(part, *task.lists.found(events, visit.field("shards")), "found")


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
def _list(path: str, domain: Domain, aside: frozenset[int]) -> List:
    table = _read(path, aside).sort_by("key")
    filters, boxes = _boxes(table, domain)
    return List(np.asarray(table["conjunction"]), boxes, np.asarray(table["key"]), filters)


@lru_cache(maxsize=2)
def _catch_all(path: str, domain: Domain, aside: frozenset[int]) -> CatchAll:
    table = _read(path, aside)
    encoded = table["filter"].combine_chunks().dictionary_encode()
    number = np.asarray(encoded.indices)
    order = np.argsort(number, kind="stable")
    starts = np.searchsorted(number[order], np.arange(len(encoded.dictionary) + 1))
    filters = pa.table({"id": pa.array(np.arange(len(encoded.dictionary))), "filter": encoded.dictionary})
    return CatchAll(np.asarray(table["conjunction"])[order], starts, Matcher(filters, domain, threads=1))


def _read(path: str, aside: frozenset[int]) -> pa.Table:
    with pa.memory_map(path) as file:
        table = pa.ipc.open_file(file).read_all()
    return table.filter(~pc.field("id").isin(sorted(aside))) if aside else table


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
    """Settles what was found in lists: a `combine_step.Settle`."""

    lists: Lists
    string_ids: bool

    def __call__(self, events: pa.RecordBatch, rows: Numbers, found: Any) -> tuple[Numbers, Any]:
        lists = self.lists
        if CONJUNCTIONS not in lists.files:
            return np.empty(0, np.int64), pa.array([], pa.string() if self.string_ids else pa.int64())
        known = _conjunctions(lists.path(CONJUNCTIONS), lists.domain, lists.aside)
        at = np.searchsorted(known.numbers, np.asarray(found))
        rows, at = counted(rows, at, known.lists)
        holds = np.ones(len(rows), bool)
        undecided = np.flatnonzero(known.open[at])
        if len(undecided):
            columns = Columns(read_rows(events, lists.domain, lists.reads)[0])
            holds[undecided] = verified(known.filters, columns, rows[undecided], known.boxes[at[undecided]])
        rows, subscriptions = distinct_pairs(rows[holds], known.subscription[at[holds]])
        return rows, known.ids.take(pa.array(subscriptions))


@lru_cache(maxsize=2)
def _conjunctions(path: str, domain: Domain, aside: frozenset[int]) -> Conjunctions:
    table = _read(path, aside).sort_by("conjunction")
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
