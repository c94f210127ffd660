"""The newest subscriptions, in an index that grows: made to be added to at once, and to be merged later.

Strings are coded by their number among the texts that were asked for, in the order in which they came: so codes
do not change with what is added. Most entries are *guests* in the cells of the largest segment, where events look
anyway. The others are *chained*: filed under the constraint that the fewest sampled events satisfy, an equality in a
hash table, a range in each of the cells of a coarse grid that it touches, where the places of a table are heads of
chains to which a new entry is linked.

A `Fresh` is immutable to whoever has it. One that was added to shares the arrays of the one before,
written past the end of what that one reads, and has heads of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.filter.normal.filter_table import Builder, Codes, FilterTable
from tidings.filter.normal.normal_form import NormalForm
from tidings.filter.syntax.parser import parse_filter
from tidings.kernels.hashing import string_buffers
from tidings.matching.batch_columns import Columns, Mask
from tidings.matching.change import delta_kernels as kernels
from tidings.matching.change.delta_reader import Reads
from tidings.matching.change.removed import NEVER, mark
from tidings.matching.change.segment import joined
from tidings.matching.engines.cells import Visit
from tidings.matching.engines.entries import NULL
from tidings.matching.engines.event_codes import MAX_EDGES, Coder, Encoded, encode, grid_of
from tidings.matching.engines.found_pairs import by_event
from tidings.matching.engines.guests import Guests, Host, Newcomers, guests_of
from tidings.matching.evaluation import true_rows
from tidings.matching.index import Found
from tidings.model import types
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.subscription import SubscriptionTable
from tidings.model.types import Path


class Texts(NamedTuple):
    """Texts by number, and a hash table of them, to which more are added at the end while these are read."""

    ends: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    table: npt.NDArray[np.int32]
    known: int  # how many of them there are


@dataclass(frozen=True, slots=True)
class TextCoder(Coder):
    """Codes strings by their numbers, -1 for those that nobody asks for."""

    texts: Texts | None = None

    def codes(self, columns: Columns) -> tuple[Codes, Mask]:
        assert self.texts is not None
        column, texts = columns.batch.columns[self.path], self.texts
        codes = np.empty(len(column), np.int64)
        kernels.text_codes(
            *string_buffers(column), columns.hashes(self.path), texts.table, texts.ends, texts.data, texts.known, codes
        )
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else np.ones(len(column), bool)
        return codes, valid


def reading(coder: Coder, texts: Texts) -> Coder:
    """A coder that knows these texts, where it is one of strings."""
    return replace(coder, texts=texts) if isinstance(coder, TextCoder) else coder


_FIRST_ROOM = 1024
_PAIRS = 1 << 14
_MAX_TABLES = 64


class _Arrays(NamedTuple):
    """What grows at its end. Entries have rows, one for each constraint, and links, one for each chain they are in."""

    slots: npt.NDArray[np.int32]  # of each entry
    rows: npt.NDArray[np.int32]  # where its rows end
    attributes: npt.NDArray[np.int16]  # of each row, by number among those used
    lows: Codes
    highs: Codes
    texts: npt.NDArray[np.int32]  # the text that a row asks for, -1: none
    text_ends: npt.NDArray[np.int32]
    text_data: npt.NDArray[np.uint8]
    text_table: npt.NDArray[np.int32]  # a hash table of texts: a power of two of places, -1: empty
    links: npt.NDArray[np.int64]
    died: npt.NDArray[np.int32]  # of each slot, with which change: those that came later see it
    marks: npt.NDArray[np.uint8]  # a bit for each slot that died
    rechecked: Mask  # slots whose entries only bring candidates


def _no_arrays() -> _Arrays:
    def none(type_: Any, *shape: int) -> npt.NDArray[Any]:
        return np.empty((0, *shape), type_)

    return _Arrays(
        none(np.int32), none(np.int32), none(np.int16), none(np.int64), none(np.int64), none(np.int32), none(np.int32),
        none(np.uint8), np.full(_FIRST_ROOM, -1, np.int32), none(np.int64, 4), none(np.int32), none(np.uint8),
        none(np.bool_),
    )  # fmt: skip


class _Counts(NamedTuple):
    """How much of each array is read."""

    entries: int = 0
    rows: int = 0
    texts: int = 0
    bytes: int = 0
    links: int = 0
    slots: int = 0


class _Attribute(NamedTuple):
    coder: Coder
    sample: Codes  # the codes of sampled events, ascending
    edges: Codes  # between the cells of the grid for chains

    @property
    def path(self) -> Path:
        return self.coder.path

    @property
    def is_text(self) -> bool:
        return isinstance(self.coder, TextCoder)


class _Places(NamedTuple):
    """What says where an entry is filed."""

    numbers: npt.NDArray[np.int16]  # of the domain's leaves among the attributes, -1: nothing asks for it yet
    samples: Codes  # attributes × sampled events
    edges: Codes  # attributes × edges


def _no_places() -> _Places:
    return _Places(np.empty(0, np.int16), np.empty((0, 0), np.int64), np.empty((0, kernels.CELLS - 1), np.int64))


@dataclass(frozen=True, eq=False)
class Fresh:
    """Only the newest of those that share their arrays may be changed."""

    domain: Domain
    sample: Columns | None
    attributes: tuple[_Attribute, ...] = ()
    tables: tuple[SubscriptionTable, ...] = ()
    guests: Guests | None = None  # those entries that are in a segment's cells
    chained: int = 0  # entries that are not
    repeats: bool = False  # a slot has several entries
    deaths: int = 0  # changes that removed some of these
    dead: int = 0
    _places: _Places = field(default_factory=_no_places)
    _counts: _Counts = field(default_factory=_Counts)
    _arrays: _Arrays = field(default_factory=_no_arrays)
    _heads: npt.NDArray[np.int32] = field(default_factory=lambda: np.full(kernels.HASHED + 1, -1, np.int32))
    # These two are shared by all, and only looked at by who changes the newest.
    _slots: dict[str | int, int] = field(default_factory=dict)
    _forms: dict[int, NormalForm] = field(default_factory=dict)  # of those that are more than one entry

    def __len__(self) -> int:
        return self._counts.slots

    @property
    def alive(self) -> int:
        return len(self) - self.dead

    @property
    def entries(self) -> int:
        return self._counts.entries

    @property
    def bytes(self) -> int:
        own = sum(array.nbytes for array in self._arrays) + self._heads.nbytes
        return own + (0 if self.guests is None else self.guests.bytes)

    @property
    def died(self) -> npt.NDArray[np.int32]:
        return self._arrays.died

    @property
    def marks(self) -> npt.NDArray[np.uint8]:
        return self._arrays.marks

    # ------------------------------------------------------------------ changes

    def with_added(self, table: SubscriptionTable, reads: Reads) -> Fresh:
        """With these subscriptions, whose filters were read, after the others."""
        known, texts = self._with_attributes(reads.leaves)._with_texts(reads.text_ends, reads.text_data)
        return known._with_read(table, reads, texts[reads.texts])

    def _with_read(self, table: SubscriptionTable, reads: Reads, texts: npt.NDArray[np.int32]) -> Fresh:
        first, counts = len(self), self._counts
        grown = counts._replace(
            entries=counts.entries + len(reads.filters), rows=counts.rows + len(reads.lows), slots=first + len(table)
        )
        arrays = _with_room(self._arrays, grown)
        arrays.slots[counts.entries : grown.entries] = reads.filters + np.int32(first)
        arrays.rows[counts.entries : grown.entries] = reads.ends + counts.rows
        arrays.attributes[counts.rows : grown.rows] = self._places.numbers[reads.leaves]
        arrays.lows[counts.rows : grown.rows] = np.where(texts < 0, reads.lows, texts)
        arrays.highs[counts.rows : grown.rows] = np.where(texts < 0, reads.highs, texts)
        arrays.texts[counts.rows : grown.rows] = texts
        arrays.died[first : grown.slots] = NEVER
        arrays.rechecked[first : grown.slots] = ~reads.exact
        several = self.repeats or (bool(reads.forms) and len(np.unique(reads.filters)) < len(reads.filters))
        self._slots.update(zip(_listed(table.ids), range(first, grown.slots), strict=True))
        self._forms.update((first + row, form) for row, form in reads.forms.items())
        known = replace(self, tables=_with_table(self.tables, table), repeats=several, _counts=grown, _arrays=arrays)
        return known._with_filed(counts.entries)

    def _with_texts(self, ends: npt.NDArray[Any], data: npt.NDArray[np.uint8]) -> tuple[Fresh, npt.NDArray[np.int32]]:
        """With these texts among those that have numbers, and their numbers, after which comes -1."""
        numbers = np.empty(len(ends) + 1, np.int32)
        numbers[-1] = -1
        counts = self._counts
        room = counts._replace(texts=counts.texts + len(ends), bytes=counts.bytes + len(data))
        arrays = _with_room(self._arrays, room)
        if 2 * room.texts > len(arrays.text_table):
            places = 1 << int(np.ceil(np.log2(4 * room.texts)))
            arrays = arrays._replace(text_table=np.full(places, -1, np.int32))
            kernels.fill_table(arrays.text_ends, arrays.text_data, counts.texts, arrays.text_table)
        texts, size = kernels.number_texts(
            ends, data, arrays.text_table, arrays.text_ends, arrays.text_data, counts.texts, counts.bytes, numbers
        )
        return replace(self, _arrays=arrays, _counts=counts._replace(texts=int(texts), bytes=int(size))), numbers

    def _with_attributes(self, leaves: npt.NDArray[np.int64]) -> Fresh:
        """With those of the domain's leaves that are constrained for the first time."""
        numbers = self._places.numbers
        if not len(leaves) or (len(numbers) and numbers[leaves].min() >= 0):
            return self
        paths = list(self.domain.leaves)
        numbers = numbers.copy() if len(numbers) else np.full(len(paths), -1, np.int16)
        attributes = list(self.attributes)
        known = self
        for leaf in np.unique(leaves[numbers[leaves] < 0]).tolist():
            numbers[leaf] = len(attributes)
            if self.sample is not None and self.domain.leaves[paths[leaf]] == types.STRING:
                offsets, data = string_buffers(self.sample.distinct(paths[leaf])[0])
                known, _ = known._with_texts(offsets[1:] - offsets[0], data[offsets[0] : offsets[-1]])
            attributes.append(known._attribute(paths[leaf]))
        heads = np.full(kernels.HASHED + 1 + kernels.CELLS * len(attributes), -1, np.int32)
        heads[: len(self._heads)] = self._heads
        samples, edges = (
            np.stack(one) for one in zip(*((each.sample, each.edges) for each in attributes), strict=True)
        )
        return replace(known, attributes=tuple(attributes), _places=_Places(numbers, samples, edges), _heads=heads)

    def _coders(self) -> list[Coder]:
        return [reading(attribute.coder, self._texts) for attribute in self.attributes]

    @property
    def _texts(self) -> Texts:
        arrays = self._arrays
        return Texts(arrays.text_ends, arrays.text_data, arrays.text_table, self._counts.texts)

    def with_host(self, host: Host | None) -> Fresh:
        """With all entries that it has places for as guests of a segment, and of no other."""
        bare = replace(
            self, guests=None if host is None else guests_of(host), chained=0, _heads=np.full_like(self._heads, -1),
            _counts=self._counts._replace(links=0), _arrays=self._arrays._replace(links=np.empty((0, 4), np.int64)),
        )  # fmt: skip
        return bare._with_filed(0)

    def _with_filed(self, first: int) -> Fresh:
        """With the entries from `first` on in cells or chains."""
        guests, lodged = self._lodged(first) if self.guests is not None else (None, None)
        known = replace(self, guests=guests)
        if lodged is None:
            lodged = np.zeros(self.entries - first, bool)
        elif lodged.all():
            return known
        counts, places = self._counts, self._places
        rest = int((~lodged).sum())
        links = _roomy(self._arrays.links, counts.links, counts.links + kernels.MAX_CELLS * rest)
        arrays, heads = self._arrays._replace(links=links), self._heads.copy()
        linked = kernels.link(
            first, counts.entries, lodged, arrays.rows, arrays.attributes, arrays.lows, arrays.highs, places.samples,
            places.edges, heads, arrays.links, counts.links,
        )  # fmt: skip
        return replace(
            known, chained=self.chained + rest, _arrays=arrays, _heads=heads, _counts=counts._replace(links=int(linked))
        )

    def _lodged(self, first: int) -> tuple[Guests, Mask]:
        """The guests with the entries from `first` on, and which of those they are."""
        assert self.guests is not None
        arrays, last = self._arrays, self.entries
        start, end = (int(arrays.rows[entry - 1]) if entry else 0 for entry in (first, last))
        slots = arrays.slots[first:last]
        # A filter of several entries may be found twice, and one that is rechecked anyway is not worth a place.
        offered = ~arrays.rechecked[slots]
        if self._forms:
            offered &= np.array([slot not in self._forms for slot in slots.tolist()], bool)
        ends = arrays.rows[first:last].astype(np.int64) - start
        rooms = np.array(
            [self.guests.host.attributes.get(attribute.path, -1) for attribute in self.attributes], np.int64
        )
        wanted = np.repeat(offered, np.diff(ends, prepend=0))
        new = Newcomers(
            ends, np.where(wanted, rooms[arrays.attributes[start:end]], -1), arrays.lows[start:end],
            arrays.highs[start:end], arrays.texts[start:end], arrays.text_ends, arrays.text_data,
            np.arange(first, last, dtype=np.int32),
        )  # fmt: skip
        guests, taken, unclear = self.guests.with_added(new)
        arrays.rechecked[slots[unclear]] = True
        return guests, taken

    def _attribute(self, path: Path) -> _Attribute:
        type_ = self.domain.leaves[path]
        coder = (
            TextCoder(path, grid_of(np.empty(0, np.int64), False), None, None, celled=False)
            if type_ == types.STRING
            else Coder(path, grid_of(np.empty(0, np.int64), False), None, None)
        )
        edges = np.full(kernels.CELLS - 1, np.iinfo(np.int64).max)
        if self.sample is None:
            return _Attribute(coder, np.empty(0, np.int64), edges)
        codes = np.sort(encode(self.sample, [reading(coder, self._texts)]).codes[:, 0])
        if not coder.celled:
            return _Attribute(coder, codes, edges)
        most = (kernels.CELLS << kernels.CELL_SHIFT) - 2
        bounds = codes[np.linspace(0, len(codes) - 1, min(most, MAX_EDGES)).astype(np.int64)]
        coder = replace(coder, grid=grid_of(bounds, type_.name in ("float", "double")))
        step = 1 << kernels.CELL_SHIFT
        coarse = coder.grid.edges[step - 2 :: step]
        edges[: len(coarse)] = coarse
        return _Attribute(coder, codes, edges)

    # ------------------------------------------------------------------ removals

    def without(self, slots: npt.NDArray[np.int64]) -> Fresh:
        self._arrays.died[slots] = self.deaths + 1
        mark(self._arrays.marks, slots)
        return replace(self, deaths=self.deaths + 1, dead=self.dead + len(slots))

    def find(self, ids: ArrowArray) -> npt.NDArray[np.int64]:
        """The slots of those of these ids that are alive, -1 for the others."""
        found = np.array([self._slots.get(id_, -1) for id_ in _listed(ids)], np.int64)
        there = np.flatnonzero(found >= 0)
        found[there[self._arrays.died[found[there]] != NEVER]] = -1
        return found

    # ------------------------------------------------------------------ subscriptions

    def _place(self, slot: int) -> tuple[SubscriptionTable, int]:
        for table in self.tables:
            if slot < len(table):
                return table, slot
            slot -= len(table)
        raise IndexError(slot)

    def text(self, slot: int) -> str:
        table, row = self._place(slot)
        return str(table.filters[row].as_py())

    def living(self) -> npt.NDArray[np.int64]:
        """The slots that are alive."""
        return np.flatnonzero(self._arrays.died[: len(self)] > self.deaths)

    def filters(self, living: npt.NDArray[np.int64]) -> FilterTable:
        """The normal forms of these slots."""
        arrays, counts, builder = self._arrays, self._counts, Builder(self.domain)
        number = np.full(len(self), -1, np.int32)
        number[living] = np.arange(len(living), dtype=np.int32)
        single = np.ones(len(self), bool)
        single[[slot for slot in self._forms if slot < len(self)]] = False
        entries = np.flatnonzero(single[arrays.slots[: counts.entries]] & (number[arrays.slots[: counts.entries]] >= 0))
        boxes = np.full(counts.entries, -1, np.int32)
        boxes[entries] = builder.add_boxes(number[arrays.slots[entries]], np.full(len(entries), -1, np.int32))
        starts = np.concatenate([[0], arrays.rows[: counts.entries]])
        box_of = np.repeat(boxes, np.diff(starts))
        for slot in living[~single[living]].tolist():
            builder.add(int(number[slot]), self._forms[slot])
        texts = _texts(arrays, counts)
        waiting = []
        for k, attribute in enumerate(self.attributes):
            path = attribute.path
            rows = np.flatnonzero((arrays.attributes[: counts.rows] == k) & (box_of >= 0))
            type_ = self.domain.leaves[path]
            if attribute.is_text:
                constants = builder.constants(path, type_)
                waiting.append((path, rows, constants, constants.add(texts.take(pa.array(arrays.texts[rows])))))
            else:
                lows = np.where(arrays.lows[rows] == NULL + 1, NULL, arrays.lows[rows])  # as before NULL had a code
                builder.add_intervals(path, type_, box_of[rows], lows, arrays.highs[rows])
        builder.number_constants()
        for path, rows, constants, added in waiting:
            codes = 2 * constants.numbers(added)
            builder.add_intervals(path, constants.type, box_of[rows], codes, codes)
        return builder.build(len(living))

    # ------------------------------------------------------------------ matching

    def match(self, columns: Columns, visit: Visit | None = None) -> Found:
        """What is found in the chains, and of the guests by a visit to their host."""
        count, tried = columns.batch.count, 0
        odd = np.zeros(count, bool)
        events, entries = np.empty(0, np.int32), np.empty(0, np.int32)
        if self.chained:
            encoded = encode(columns, self._coders())
            odd |= encoded.odd
            events, entries, tried = self._chained(encoded)
        if visit is not None:
            odd |= visit.odd
            events = np.concatenate([events, visit.pairs.events[: visit.pairs.count]])
            entries = np.concatenate([entries, visit.pairs.outputs[: visit.pairs.count]])
        slots = self._arrays.slots[entries]
        if self.repeats:
            keys = np.unique(events.astype(np.int64) * len(self) + slots)
            events, slots = (keys // len(self)).astype(np.int32), (keys % len(self)).astype(np.int32)
        asked = self._arrays.rechecked[slots] | odd[events]
        if asked.any():
            kept = self._rechecked(events, slots, asked, columns)
            events, slots = events[kept], slots[kept]
        return Found(*by_event(events, slots, count), tried)

    def _chained(self, encoded: Encoded) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
        """The pairs (event, entry) that hold as far as codes tell, and how many were tried."""
        arrays = self._arrays
        events, entries = np.empty(_PAIRS, np.int32), np.empty(_PAIRS, np.int32)
        found, place, event, tried = (np.uint64(0),) * 4
        while True:
            found, place, event, tried = kernels.match(
                encoded.codes, encoded.cells, self._heads, arrays.links, arrays.rows, arrays.attributes, arrays.lows,
                arrays.highs, events, entries, found, place, event, tried,
            )  # fmt: skip
            if place > 2 * len(self.attributes):
                return events[:found], entries[:found], int(tried)
            events, entries = (np.concatenate([array, np.empty_like(array)]) for array in (events, entries))

    def _rechecked(
        self, events: npt.NDArray[np.int32], slots: npt.NDArray[np.int32], asked: Mask, columns: Columns
    ) -> Mask:
        """Which pairs hold, when the filters of those that ask for it are evaluated."""
        kept = ~asked
        order = np.flatnonzero(asked)
        order = order[np.argsort(slots[order], kind="stable")]
        for rows in np.split(order, np.flatnonzero(np.diff(slots[order])) + 1):
            tree = _tree(self.text(int(slots[rows[0]])), self.domain)
            kept[rows] = true_rows(tree, columns, events[rows].astype(np.int64))
        return kept


_tree = lru_cache(maxsize=4096)(parse_filter)


def _with_table(tables: tuple[SubscriptionTable, ...], table: SubscriptionTable) -> tuple[SubscriptionTable, ...]:
    """With one more; those of many changes are joined, first with each other and seldom with the first."""
    tables = (*tables, table)
    if len(tables) < _MAX_TABLES:
        return tables
    rest = joined(list(tables[1:]))
    return (tables[0], rest) if len(rest) < len(tables[0]) // 2 else (joined([tables[0], rest]),)


def _listed(ids: ArrowArray) -> list[Any]:
    """Ids as Python's; through numpy, which is much the faster way for numbers."""
    listed: list[Any] = ids.to_numpy().tolist() if pa.types.is_integer(ids.type) else ids.to_pylist()
    return listed


def _texts(arrays: _Arrays, counts: _Counts) -> ArrowArray:
    ends = np.concatenate([[0], arrays.text_ends[: counts.texts]]).astype(np.int32).tobytes()
    data = arrays.text_data[: counts.bytes].tobytes()
    return pa.Array.from_buffers(pa.binary(), counts.texts, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _with_room(arrays: _Arrays, counts: _Counts) -> _Arrays:
    """The arrays, those that are too short replaced by longer ones, but for the table and the links."""
    wanted = (
        *(counts.entries,) * 2, *(counts.rows,) * 4, counts.texts, counts.bytes, 0, 0, counts.slots,
        (counts.slots >> 3) + 1, counts.slots,
    )  # fmt: skip
    given: tuple[npt.NDArray[Any], ...] = arrays
    return _Arrays(*(_roomy(array, len(array), room) for array, room in zip(given, wanted, strict=True)))


def _roomy(array: npt.NDArray[Any], used: int, room: int) -> npt.NDArray[Any]:
    if len(array) >= room:
        return array
    result = np.zeros((max(_FIRST_ROOM, 2 * len(array), room), *array.shape[1:]), array.dtype)
    result[:used] = array[:used]
    return result
