"""The newest subscriptions, in an index that grows: made to be added to at once, and to be merged later.

Strings are coded by a hash of their bytes, and those that pass are compared: so codes do not change with what
is added. The last entries are *chained*: filed under the constraint that the fewest sampled events satisfy, an
equality in a hash table, a range in each of the cells of a coarse grid that it touches, where the places of a
table are heads of chains to which a new entry is linked. From time to time those are packed, in the
background, into the engines that a segment has, only over codes that all packs share.

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

from tidings.matching.changing import fresh_kernels as kernels
from tidings.matching.changing.known_shapes import Reads
from tidings.matching.changing.pack import Pack, pack_of
from tidings.matching.changing.segment import joined
from tidings.matching.changing.tombstones import NEVER, mark
from tidings.matching.columns import Columns, Mask
from tidings.matching.engines.encode import MAX_EDGES, Coder, Encoded, encode, grid_of
from tidings.matching.engines.entries import NULL, Entries
from tidings.matching.engines.pairs import Pairs, Runs, by_event
from tidings.matching.evaluate import true_rows
from tidings.matching.hashing import string_buffers
from tidings.matching.index import Found
from tidings.model import types
from tidings.model.domain import Domain
from tidings.model.filter.columnar import ArrowArray, Builder, Codes, FilterTable
from tidings.model.filter.normal import NormalForm
from tidings.model.filter.parse import parse_filter
from tidings.model.filter.tree import Path
from tidings.model.subscription import SubscriptionTable

CHAINED = 1 << 12  # entries, from which they are packed
_PACK_RATIO = 4  # a pack stays by itself if the one before it is this many times as large
_FIRST_ROOM = 1024
_PAIRS = 1 << 14
_MAX_TABLES = 64
_NO_TEXTS = np.empty(0, np.int32), np.empty(0, np.uint8)


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
    links: npt.NDArray[np.int64]
    died: npt.NDArray[np.int32]  # of each slot, with which change: those that came later see it
    marks: npt.NDArray[np.uint8]  # a bit for each slot that died
    rechecked: Mask  # slots whose entries only bring candidates


def _no_arrays() -> _Arrays:
    def none(type_: Any, *shape: int) -> npt.NDArray[Any]:
        return np.empty((0, *shape), type_)

    return _Arrays(
        none(np.int32), none(np.int32), none(np.int16), none(np.int64), none(np.int64), none(np.int32), none(np.int32),
        none(np.uint8), none(np.int64, 4), none(np.int32), none(np.uint8), none(np.bool_),
    )  # fmt: skip


class _Counts(NamedTuple):
    """How much of each array is read."""

    entries: int = 0
    rows: int = 0
    texts: int = 0
    bytes: int = 0
    links: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True)
class _TextCoder(Coder):
    """Codes strings by a hash of their bytes."""

    def codes(self, columns: Columns) -> tuple[Codes, Mask]:
        column = columns.batch.columns[self.path]
        codes = np.empty(len(column), np.int64)
        kernels.text_codes(columns.hashes(self.path), codes)
        return codes, _valid(column)


class _Attribute(NamedTuple):
    coder: Coder
    sample: Codes  # the codes of sampled events, ascending
    edges: Codes  # between the cells of the grid for chains

    @property
    def path(self) -> Path:
        return self.coder.path

    @property
    def is_text(self) -> bool:
        return isinstance(self.coder, _TextCoder)


@dataclass(frozen=True, eq=False)
class Fresh:
    """Only the newest of those that share their arrays may be changed."""

    domain: Domain
    sample: Columns | None
    attributes: tuple[_Attribute, ...] = ()
    tables: tuple[SubscriptionTable, ...] = ()
    packs: tuple[Pack, ...] = ()  # of the first entries; the others are chained
    repeats: bool = False  # a slot has several entries
    deaths: int = 0  # changes that removed some of these
    dead: int = 0
    _counts: _Counts = field(default_factory=_Counts)
    _arrays: _Arrays = field(default_factory=_no_arrays)
    _heads: npt.NDArray[np.int32] = field(default_factory=lambda: _no_heads())
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
        return own + sum(pack.bytes for pack in self.packs)

    @property
    def died(self) -> npt.NDArray[np.int32]:
        return self._arrays.died

    @property
    def marks(self) -> npt.NDArray[np.uint8]:
        return self._arrays.marks

    # ------------------------------------------------------------------ changes

    def with_added(self, table: SubscriptionTable, reads: Reads) -> Fresh:
        """With these subscriptions, whose filters were read, after the others."""
        first, counts = len(self), self._counts
        known, numbers = self._numbered(reads.leaves)
        data = np.frombuffer(b"".join(reads.values), np.uint8)
        grown = _Counts(
            counts.entries + len(reads.filters), counts.rows + len(reads.lows), counts.texts + len(reads.values),
            counts.bytes + len(data), counts.links, first + len(table),
        )  # fmt: skip
        arrays = _with_room(self._arrays, grown)
        arrays.slots[counts.entries : grown.entries] = reads.filters + np.int32(first)
        arrays.rows[counts.entries : grown.entries] = reads.ends + counts.rows
        arrays.attributes[counts.rows : grown.rows] = numbers
        arrays.lows[counts.rows : grown.rows] = reads.lows
        arrays.highs[counts.rows : grown.rows] = reads.highs
        arrays.texts[counts.rows : grown.rows] = np.where(reads.texts < 0, -1, reads.texts + counts.texts)
        lengths = [len(text) for text in reads.values]
        arrays.text_ends[counts.texts : grown.texts] = counts.bytes + np.cumsum(lengths, dtype=np.int64)
        arrays.text_data[counts.bytes : grown.bytes] = data
        arrays.died[first : grown.slots] = NEVER
        arrays.rechecked[first : grown.slots] = ~reads.exact
        kernels.hash_rows(
            arrays.texts, arrays.text_ends, arrays.text_data, arrays.lows, arrays.highs, counts.rows, grown.rows
        )
        arrays, heads, links = self._linked(arrays, counts, grown, known)
        several = self.repeats or len(np.unique(reads.filters)) < len(reads.filters)
        ids: list[Any] = table.ids.to_pylist()
        self._slots.update(zip(ids, range(first, grown.slots), strict=True))
        self._forms.update((first + row, form) for row, form in reads.forms.items())
        return replace(
            self, attributes=known, tables=_with_table(self.tables, table), repeats=several,
            _counts=grown._replace(links=links), _arrays=arrays, _heads=heads,
        )  # fmt: skip

    def _numbered(self, leaves: npt.NDArray[np.int64]) -> tuple[tuple[_Attribute, ...], npt.NDArray[np.int16]]:
        """The attributes that are used now, and the numbers of the domain's leaves among them."""
        paths = list(self.domain.leaves)
        number = {attribute.path: k for k, attribute in enumerate(self.attributes)}
        used = [paths[leaf] for leaf in np.flatnonzero(np.bincount(leaves, minlength=len(paths)))]
        added = [path for path in used if path not in number]
        number |= {path: len(number) + k for k, path in enumerate(added)}
        known = (*self.attributes, *(self._attribute(path) for path in added))
        return known, np.array([number.get(path, -1) for path in paths], np.int16)[leaves]

    def _linked(
        self, arrays: _Arrays, counts: _Counts, grown: _Counts, attributes: tuple[_Attribute, ...]
    ) -> tuple[_Arrays, npt.NDArray[np.int32], int]:
        """The arrays, heads and number of links with the new entries linked."""
        added = kernels.MAX_CELLS * (grown.entries - counts.entries)
        arrays = arrays._replace(
            links=_roomy(arrays.links, counts.links, counts.links + added),
        )
        heads = np.full(kernels.HASHED + 1 + kernels.CELLS * len(attributes), -1, np.int32)
        heads[: len(self._heads)] = self._heads
        samples = np.stack([attribute.sample for attribute in attributes]) if attributes else np.empty((0, 0), np.int64)
        edges = _edges(attributes)
        links = kernels.link(
            counts.entries, grown.entries, arrays.rows, arrays.attributes, arrays.lows, arrays.highs, samples, edges,
            heads, arrays.links, counts.links,
        )  # fmt: skip
        return arrays, heads, int(links)

    def _attribute(self, path: Path) -> _Attribute:
        type_ = self.domain.leaves[path]
        coder = (
            _TextCoder(path, grid_of(np.empty(0, np.int64), False), None, None, celled=False)
            if type_ == types.STRING
            else Coder(path, grid_of(np.empty(0, np.int64), False), None, None)
        )
        edges = np.full(kernels.CELLS - 1, np.iinfo(np.int64).max)
        if self.sample is None:
            return _Attribute(coder, np.empty(0, np.int64), edges)
        codes = np.sort(encode(self.sample, [coder]).codes[:, 0])
        if not coder.celled:
            return _Attribute(coder, codes, edges)
        most = (kernels.CELLS << kernels.CELL_SHIFT) - 2
        bounds = codes[np.linspace(0, len(codes) - 1, min(most, MAX_EDGES)).astype(np.int64)]
        coder = replace(coder, grid=grid_of(bounds, type_.name in ("float", "double")))
        step = 1 << kernels.CELL_SHIFT
        coarse = coder.grid.edges[step - 2 :: step]
        edges[: len(coarse)] = coarse
        return _Attribute(coder, codes, edges)

    # ------------------------------------------------------------------ packing

    @property
    def _packed(self) -> int:
        """How many entries are in packs."""
        return self.packs[-1].last if self.packs else 0

    @property
    def to_pack(self) -> bool:
        return self._counts.entries - self._packed >= CHAINED

    def packed(self) -> Pack:
        """What is chained as a pack, together with packs before that are not much larger."""
        arrays, last = self._arrays, self._counts.entries
        first, size = self._packed, last - self._packed
        for pack in reversed(self.packs):
            if pack.last - pack.first >= _PACK_RATIO * size:
                break
            first, size = pack.first, last - pack.first
        start, end = int(arrays.rows[first - 1]) if first else 0, int(arrays.rows[last - 1])
        entries = Entries(
            paths=tuple(attribute.path for attribute in self.attributes),
            offsets=np.concatenate([[0], arrays.rows[first:last].astype(np.int64) - start]),
            attributes=arrays.attributes[start:end],
            lows=arrays.lows[start:end],
            highs=arrays.highs[start:end],
            slots=np.arange(first, last, dtype=np.int32),
            residual_of=np.full(last - first, -1, np.int32),
            residuals=(),
            repeated=np.empty(0, bool),
        )
        coders = [attribute.coder for attribute in self.attributes]
        sample = encode(self.sample, coders).codes if self.sample is not None else None
        alive = arrays.died[arrays.slots[first:last]] > self.deaths
        return pack_of(first, last, entries, coders, sample, alive)

    def with_pack(self, pack: Pack) -> Fresh:
        """With a pack that was made of an earlier one of those that share these arrays; what came since is chained."""
        kept = tuple(before for before in self.packs if before.first < pack.first)
        bare = replace(
            self, packs=(*kept, pack), _heads=_no_heads(), _counts=self._counts._replace(links=0),
            _arrays=self._arrays._replace(links=np.empty((0, 4), np.int64)),
        )  # fmt: skip
        arrays, heads, links = bare._linked(
            bare._arrays, bare._counts._replace(entries=pack.last), bare._counts, bare.attributes
        )
        return replace(bare, _arrays=arrays, _heads=heads, _counts=bare._counts._replace(links=links))

    def is_before(self, other: Fresh) -> bool:
        """Whether the other came of this one by changes."""
        return self._slots is other._slots

    # ------------------------------------------------------------------ removals

    def without(self, slots: npt.NDArray[np.int64]) -> Fresh:
        self._arrays.died[slots] = self.deaths + 1
        mark(self._arrays.marks, slots)
        return replace(self, deaths=self.deaths + 1, dead=self.dead + len(slots))

    def find(self, ids: ArrowArray) -> npt.NDArray[np.int64]:
        """The slots of those of these ids that are alive, -1 for the others."""
        wanted: list[Any] = ids.to_pylist()
        found = np.array([self._slots.get(id_, -1) for id_ in wanted], np.int64)
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

    def match(self, columns: Columns) -> Found:
        count = columns.batch.count
        encoded = encode(columns, [attribute.coder for attribute in self.attributes])
        events, entries, tried = self._chained(encoded)
        pairs, runs = Pairs(), Runs()
        for pack in self.packs:
            tried += pack.match(encoded, pairs, runs)
        if pairs.count:
            events = np.concatenate([events, pairs.events[: pairs.count]])
            entries = np.concatenate([entries, pairs.outputs[: pairs.count]])
        if len(events):
            kept = self._with_same_texts(events, entries, columns)
            events, entries = events[kept], entries[kept]
        slots = self._arrays.slots[entries]
        if self.repeats:
            keys = np.unique(events.astype(np.int64) * len(self) + slots)
            events, slots = (keys // len(self)).astype(np.int32), (keys % len(self)).astype(np.int32)
        asked = self._arrays.rechecked[slots] | encoded.odd[events]
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

    def _with_same_texts(self, events: npt.NDArray[np.int32], entries: npt.NDArray[np.int32], columns: Columns) -> Mask:
        """Which pairs' events have the texts that the entries ask for, and not only others of the same hash."""
        arrays = self._arrays
        buffers = [
            string_buffers(columns.batch.columns[attribute.path]) if attribute.is_text else _NO_TEXTS
            for attribute in self.attributes
        ]
        addresses = np.array([[buffer.ctypes.data for buffer in pair] for pair in buffers], np.uint64).reshape(-1, 2)
        kept = np.empty(len(events), bool)
        kernels.same_texts(
            events, entries, arrays.rows, arrays.attributes, arrays.texts, arrays.text_ends, arrays.text_data,
            addresses[:, 0].copy(), addresses[:, 1].copy(), kept,
        )  # fmt: skip
        return kept

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


def _valid(column: ArrowArray) -> Mask:
    return column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else np.ones(len(column), bool)


def _with_table(tables: tuple[SubscriptionTable, ...], table: SubscriptionTable) -> tuple[SubscriptionTable, ...]:
    """With one more; those of many changes are joined, first with each other and seldom with the first."""
    tables = (*tables, table)
    if len(tables) < _MAX_TABLES:
        return tables
    rest = joined(list(tables[1:]))
    return (tables[0], rest) if len(rest) < len(tables[0]) // 2 else (joined([tables[0], rest]),)


def _no_heads() -> npt.NDArray[np.int32]:
    return np.full(kernels.HASHED + 1, -1, np.int32)


def _edges(attributes: tuple[_Attribute, ...]) -> npt.NDArray[np.int64]:
    if not attributes:
        return np.empty((0, kernels.CELLS - 1), np.int64)
    return np.stack([attribute.edges for attribute in attributes])


def _texts(arrays: _Arrays, counts: _Counts) -> ArrowArray:
    ends = np.concatenate([[0], arrays.text_ends[: counts.texts]]).astype(np.int32).tobytes()
    data = arrays.text_data[: counts.bytes].tobytes()
    return pa.Array.from_buffers(pa.binary(), counts.texts, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _with_room(arrays: _Arrays, counts: _Counts) -> _Arrays:
    """The arrays, those that are too short replaced by longer ones; links are counted later."""
    wanted = (
        *(counts.entries,) * 2, *(counts.rows,) * 4, counts.texts, counts.bytes, 0, counts.slots,
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
