"""The delta: the newest subscriptions, in an index that grows, to be merged into a segment later.

Strings are coded by their number among the texts that were asked for, in the order in which they came: so codes do not
change with what is added. Most entries are *guests* in the cells of the largest segment, where events look anyway:
without them 10,000 changes a second on a million alerts cost 57 % of matching instead of 18 %. The others are
*chained*: filed under the constraint that the fewest sampled events satisfy, an equality in a hash table, a range in
each of the cells of a coarse grid that it touches, where the places of a table are heads of chains to which a new
entry is linked.

A `Delta` is immutable to its readers. One that was added to shares the arrays of the one before, written past the end
of what that one reads, and has heads of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.filter.normal.filter_table import Codes, FilterTable, FilterTableBuilder
from tidings.filter.normal.normal_form import NormalForm
from tidings.kernels.hashing import string_buffers
from tidings.matching.batch_columns import Columns, Mask
from tidings.matching.change import delta_kernels as kernels
from tidings.matching.change.delta_reader import Reads
from tidings.matching.change.removed import Removed, Slots
from tidings.matching.engines.cells import Visit
from tidings.matching.engines.entries import NULL
from tidings.matching.engines.event_codes import MAX_EDGES, Coder, Encoded, encode, grid_of
from tidings.matching.engines.found_pairs import by_event
from tidings.matching.engines.guests import Guests, Host, Newcomers, guests_of, with_room
from tidings.matching.engines.residual_matching import filter_tree
from tidings.matching.evaluation import true_rows
from tidings.matching.index import Found
from tidings.model import types
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.subscription import SubscriptionTable, joined_tables
from tidings.model.types import Path

_FIRST_ROOM = 1024
_PAIRS = 1 << 14
_MAX_TABLES = 64


# ---------------------------------------------------------------------- texts


class Texts(NamedTuple):
    """Texts by number, and a hash table of them, to which more are added at the end while these are read."""

    ends: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    table: npt.NDArray[np.int32]  # a power of two of places, -1: empty
    known: int = 0  # how many of them there are
    size: int = 0  # bytes

    def with_added(self, ends: npt.NDArray[Any], data: npt.NDArray[np.uint8]) -> tuple[Texts, npt.NDArray[np.int32]]:
        """With these texts, those that are new after the others; and their numbers, after which comes -1."""
        numbers = np.empty(len(ends) + 1, np.int32)
        numbers[-1] = -1
        known = self._replace(
            ends=with_room(self.ends, self.known + len(ends)), data=with_room(self.data, self.size + len(data))
        )
        if 2 * (self.known + len(ends)) > len(self.table):
            places = 1 << int(np.ceil(np.log2(4 * (self.known + len(ends)))))
            known = known._replace(table=np.full(places, -1, np.int32))
            kernels.fill_table(tuple(known))
        count, size = kernels.number_texts(ends, data, tuple(known), numbers)
        return known._replace(known=int(count), size=int(size)), numbers

    def arrow(self) -> ArrowArray:
        ends = np.concatenate([[0], self.ends[: self.known]]).astype(np.int32).tobytes()
        data = self.data[: self.size].tobytes()
        return pa.Array.from_buffers(pa.binary(), self.known, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _no_texts() -> Texts:
    return Texts(np.empty(0, np.int32), np.empty(0, np.uint8), np.full(_FIRST_ROOM, -1, np.int32))


@dataclass(frozen=True, slots=True)
class TextCoder(Coder):
    """Codes strings by their numbers, -1 for those that no filter asks for."""

    texts: Texts | None = None

    def codes(self, columns: Columns) -> tuple[Codes, Mask]:
        assert self.texts is not None
        column = columns.batch.columns[self.path]
        codes = np.empty(len(column), np.int64)
        kernels.text_codes(*string_buffers(column), columns.hashes(self.path), tuple(self.texts), codes)
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else np.ones(len(column), bool)
        return codes, valid


def _reading(coder: Coder, texts: Texts) -> Coder:
    """The coder with these texts, if it codes strings."""
    return replace(coder, texts=texts) if isinstance(coder, TextCoder) else coder


# ---------------------------------------------------------------------- entries


class EntryRows(NamedTuple):
    """Entries as rows, one for each constraint; arrays that grow at their end."""

    slots: npt.NDArray[np.int32]  # of each entry
    ends: npt.NDArray[np.int32]  # where its rows end
    attributes: npt.NDArray[np.int16]  # of each row, by number among those used
    lows: Codes
    highs: Codes
    texts: npt.NDArray[np.int32]  # the text that a row asks for, -1: none


def _no_rows() -> EntryRows:
    dtypes: tuple[Any, ...] = (np.int32, np.int32, np.int16, np.int64, np.int64, np.int32)
    return EntryRows(*(np.empty(0, dtype) for dtype in dtypes))


class _Counts(NamedTuple):
    """How much of each array is read."""

    entries: int = 0
    rows: int = 0
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


class Places(NamedTuple):
    """What says where an entry is filed."""

    numbers: npt.NDArray[np.int16]  # of the domain's leaves among the attributes, -1: nothing asks for it yet
    samples: Codes  # attributes × sampled events
    edges: Codes  # attributes × edges


def _no_places() -> Places:
    return Places(np.empty(0, np.int16), np.empty((0, 0), np.int64), np.empty((0, kernels.CELLS - 1), np.int64))


def _no_links() -> npt.NDArray[np.int64]:
    return np.empty((0, 4), np.int64)


def _no_heads() -> npt.NDArray[np.int32]:
    return np.full(kernels.HASHED + 1, -1, np.int32)


def _nothing_rechecked() -> Mask:
    return np.empty(0, bool)


@dataclass(frozen=True, eq=False)
class Delta:
    """Only the newest of those that share their arrays may be changed."""

    domain: Domain
    sample: Columns | None
    attributes: tuple[_Attribute, ...] = ()
    tables: tuple[SubscriptionTable, ...] = ()
    removed: Removed = field(default_factory=Removed)
    guests: Guests | None = None  # those entries that are in a segment's cells
    chained: int = 0  # entries that are not
    repeats: bool = False  # a slot has several entries
    texts: Texts = field(default_factory=_no_texts)
    _counts: _Counts = field(default_factory=_Counts)
    _rows: EntryRows = field(default_factory=_no_rows)
    _places: Places = field(default_factory=_no_places)
    _heads: npt.NDArray[np.int32] = field(default_factory=_no_heads)
    _links: npt.NDArray[np.int64] = field(default_factory=_no_links)
    _unclear: Mask = field(default_factory=_nothing_rechecked)  # slots whose entries only bring candidates
    # These two are shared by all, and only read by the one that changes the newest.
    _slots: dict[str | int, int] = field(default_factory=dict)
    _forms: dict[int, NormalForm] = field(default_factory=dict)  # of those that are more than one entry

    def __len__(self) -> int:
        return self._counts.slots

    @property
    def alive(self) -> int:
        return len(self) - self.removed.count

    @property
    def entries(self) -> int:
        return self._counts.entries

    @property
    def bytes(self) -> int:
        arrays = (*self._rows, self.texts.ends, self.texts.data, self.texts.table, self._links, self._heads)
        own = sum(array.nbytes for array in arrays) + self._unclear.nbytes + self.removed.bytes
        return own + (0 if self.guests is None else self.guests.bytes)

    # ------------------------------------------------------------------ changes

    def with_added(self, table: SubscriptionTable, reads: Reads) -> Delta:
        """With these subscriptions, whose filters were read, after the others."""
        known = self._with_attributes(reads.leaves)
        texts, numbers = known.texts.with_added(reads.text_ends, reads.text_data)
        return replace(known, texts=texts)._with_read(table, reads, numbers[reads.texts])

    def _with_read(self, table: SubscriptionTable, reads: Reads, texts: npt.NDArray[np.int32]) -> Delta:
        first, counts = len(self), self._counts
        grown = counts._replace(
            entries=counts.entries + len(reads.filters), rows=counts.rows + len(reads.lows), slots=first + len(table)
        )
        rooms = (grown.entries, grown.entries, *(grown.rows,) * 4)
        given: tuple[npt.NDArray[Any], ...] = self._rows
        rows = EntryRows(*(with_room(array, room) for array, room in zip(given, rooms, strict=True)))
        entry_part, row_part = slice(counts.entries, grown.entries), slice(counts.rows, grown.rows)
        rows.slots[entry_part] = reads.filters + np.int32(first)
        rows.ends[entry_part] = reads.ends + counts.rows
        rows.attributes[row_part] = self._places.numbers[reads.leaves]
        rows.lows[row_part] = np.where(texts < 0, reads.lows, texts)
        rows.highs[row_part] = np.where(texts < 0, reads.highs, texts)
        rows.texts[row_part] = texts
        rechecked = with_room(self._unclear, grown.slots)
        rechecked[first : grown.slots] = ~reads.exact
        several = self.repeats or (bool(reads.forms) and len(np.unique(reads.filters)) < len(reads.filters))
        self._slots.update(zip(_listed(table.ids), range(first, grown.slots), strict=True))
        self._forms.update((first + row, form) for row, form in reads.forms.items())
        known = replace(
            self, tables=_with_table(self.tables, table), removed=self.removed.with_room(grown.slots), repeats=several,
            _counts=grown, _rows=rows, _unclear=rechecked,
        )  # fmt: skip
        return known._with_filed(counts.entries)

    def _with_attributes(self, leaves: npt.NDArray[np.int64]) -> Delta:
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
                texts, _ = known.texts.with_added(offsets[1:] - offsets[0], data[offsets[0] : offsets[-1]])
                known = replace(known, texts=texts)
            attributes.append(known._attribute(paths[leaf]))
        heads = np.full(kernels.HASHED + 1 + kernels.CELLS * len(attributes), -1, np.int32)
        heads[: len(self._heads)] = self._heads
        samples, edges = (
            np.stack(one) for one in zip(*((each.sample, each.edges) for each in attributes), strict=True)
        )
        return replace(known, attributes=tuple(attributes), _places=Places(numbers, samples, edges), _heads=heads)

    def _coders(self) -> list[Coder]:
        return [_reading(attribute.coder, self.texts) for attribute in self.attributes]

    def with_host(self, host: Host | None) -> Delta:
        """With all entries that it has places for as guests of a segment, and of no other."""
        bare = replace(
            self,
            guests=None if host is None else guests_of(host),
            chained=0,
            _heads=np.full_like(self._heads, -1),
            _counts=self._counts._replace(links=0),
            _links=_no_links(),
        )
        return bare._with_filed(0)

    def _with_filed(self, first: int) -> Delta:
        """With the entries from `first` on in cells or chains."""
        guests, lodged = self._lodged(first) if self.guests is not None else (None, None)
        known = replace(self, guests=guests)
        if lodged is None:
            lodged = np.zeros(self.entries - first, bool)
        elif lodged.all():
            return known
        counts, rest = self._counts, int((~lodged).sum())
        links, heads = with_room(self._links, counts.links + kernels.MAX_CELLS * rest), self._heads.copy()
        linked = kernels.link(
            first, counts.entries, lodged, tuple(self._rows), tuple(self._places), heads, links, counts.links
        )
        return replace(
            known, chained=self.chained + rest, _links=links, _heads=heads, _counts=counts._replace(links=int(linked))
        )

    def _lodged(self, first: int) -> tuple[Guests, Mask]:
        """The guests with the entries from `first` on, and which of those they are."""
        assert self.guests is not None
        rows, last = self._rows, self.entries
        start, end = (int(rows.ends[entry - 1]) if entry else 0 for entry in (first, last))
        slots = rows.slots[first:last]
        # A filter of several entries may be found twice, and one that is rechecked anyway is not worth a place.
        offered = ~self._unclear[slots]
        if self._forms:
            offered &= np.array([slot not in self._forms for slot in slots.tolist()], bool)
        ends = rows.ends[first:last].astype(np.int64) - start
        rooms = np.array(
            [self.guests.host.attributes.get(attribute.path, -1) for attribute in self.attributes], np.int64
        )
        wanted = np.repeat(offered, np.diff(ends, prepend=0))
        new = Newcomers(
            ends, np.where(wanted, rooms[rows.attributes[start:end]], -1), rows.lows[start:end], rows.highs[start:end],
            rows.texts[start:end], self.texts.ends, self.texts.data, np.arange(first, last, dtype=np.int32),
        )  # fmt: skip
        guests, taken, unclear = self.guests.with_added(new)
        self._unclear[slots[unclear]] = True
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
        codes = np.sort(encode(self.sample, [_reading(coder, self.texts)]).codes[:, 0])
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

    def without(self, slots: Slots) -> Delta:
        return replace(self, removed=self.removed.with_more(slots, len(self)))

    def find(self, ids: ArrowArray) -> Slots:
        """The slots of these ids, -1 for an id that is not there or was removed."""
        return self.removed.without_removed(np.array([self._slots.get(id_, -1) for id_ in _listed(ids)], np.int64))

    # ------------------------------------------------------------------ subscriptions

    def text(self, slot: int) -> str:
        for table in self.tables:
            if slot < len(table):
                return str(table.filters[slot].as_py())
            slot -= len(table)
        raise IndexError(slot)

    def living(self) -> Slots:
        """The slots that are not removed."""
        return self.removed.left(len(self))

    def filters(self, living: Slots) -> FilterTable:
        """The normal forms of these slots."""
        entry_rows, counts, builder = self._rows, self._counts, FilterTableBuilder(self.domain)
        number = np.full(len(self), -1, np.int32)
        number[living] = np.arange(len(living), dtype=np.int32)
        single = np.ones(len(self), bool)
        single[[slot for slot in self._forms if slot < len(self)]] = False
        entries = np.flatnonzero(
            single[entry_rows.slots[: counts.entries]] & (number[entry_rows.slots[: counts.entries]] >= 0)
        )
        boxes = np.full(counts.entries, -1, np.int32)
        boxes[entries] = builder.add_boxes(number[entry_rows.slots[entries]], np.full(len(entries), -1, np.int32))
        starts = np.concatenate([[0], entry_rows.ends[: counts.entries]])
        box_of = np.repeat(boxes, np.diff(starts))
        for slot in living[~single[living]].tolist():
            builder.add(int(number[slot]), self._forms[slot])
        texts = self.texts.arrow()
        waiting = []
        for k, attribute in enumerate(self.attributes):
            path = attribute.path
            rows = np.flatnonzero((entry_rows.attributes[: counts.rows] == k) & (box_of >= 0))
            type_ = self.domain.leaves[path]
            if attribute.is_text:
                constants = builder.constants(path, type_)
                waiting.append((path, rows, constants, constants.add(texts.take(pa.array(entry_rows.texts[rows])))))
            else:
                lows = np.where(
                    entry_rows.lows[rows] == NULL + 1, NULL, entry_rows.lows[rows]
                )  # as before NULL had a code
                builder.add_intervals(path, type_, box_of[rows], lows, entry_rows.highs[rows])
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
        slots = self._rows.slots[entries]
        if self.repeats:
            keys = np.unique(events.astype(np.int64) * len(self) + slots)
            events, slots = (keys // len(self)).astype(np.int32), (keys % len(self)).astype(np.int32)
        asked = self._unclear[slots] | odd[events]
        if asked.any():
            kept = self._rechecked(events, slots, asked, columns)
            events, slots = events[kept], slots[kept]
        return Found(*by_event(events, slots, count), tried)

    def _chained(self, encoded: Encoded) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
        """The pairs (event, entry) that hold as far as codes tell, and how many were tried."""
        events, entries = np.empty(_PAIRS, np.int32), np.empty(_PAIRS, np.int32)
        found, place, event, tried = (np.uint64(0),) * 4
        while True:
            stopped = kernels.match(
                encoded.codes, encoded.cells, self._heads, self._links, tuple(self._rows), events, entries, found,
                place, event, tried,
            )  # fmt: skip
            found, place, event, tried = map(np.uint64, stopped)  # they come as Python's integers, which are signed
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
            tree = filter_tree(self.text(int(slots[rows[0]])), self.domain)
            kept[rows] = true_rows(tree, columns, events[rows].astype(np.int64))
        return kept


def _with_table(tables: tuple[SubscriptionTable, ...], table: SubscriptionTable) -> tuple[SubscriptionTable, ...]:
    """With one more; those of many changes are joined, first with each other and seldom with the first."""
    tables = (*tables, table)
    if len(tables) < _MAX_TABLES:
        return tables
    rest = joined_tables(tables[1:])
    return (tables[0], rest) if len(rest) < len(tables[0]) // 2 else (joined_tables([tables[0], rest]),)


def _listed(ids: ArrowArray) -> list[Any]:
    """Ids as Python's; through numpy, which is much the faster way for numbers."""
    listed: list[Any] = ids.to_numpy().tolist() if pa.types.is_integer(ids.type) else ids.to_pylist()
    return listed
