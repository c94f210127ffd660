"""An immutable index over a table of filters: which engine serves which entries, and matching a batch.

Classes of entries (those that constrain the same attributes) are divided among the engines by what
an event would cost in each, estimated from sampled events: `cells` verifies the entries that an
event's own keys lead to, `blocks` compares whole blocks of similar entries. Entries that constrain
nothing hold every event. Residuals are evaluated on what is left.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from tidings.matching import first_use as first_use  # it listens from here on
from tidings.matching.blocks import BLOCK, Blocks, blocks_of
from tidings.matching.cells import EXACT, LEVELS, Cells, cells_index
from tidings.matching.columns import Columns
from tidings.matching.decide import Asking, Decision, Recheck, asking_of
from tidings.matching.encode import Coder, Encoded, cells_of, coders_of, encode
from tidings.matching.entries import Entries, entries_of
from tidings.matching.pairs import Pairs, Rows, Runs
from tidings.model.filter.columnar import FilterTable

# What things cost an event, in nanoseconds on one core: measured, and only their ratios matter.
BYTE_NS = 0.04  # of an entry in an event's cell, found by its bytes or passed over
GRID_FACTOR = 20.0
CANDIDATE_NS = 8.0  # of an entry that is verified
COMPARE_NS = 0.05  # of one entry on one dimension in a block that is visited
BOX_NS = 0.06  # of passing a block over, a dimension
MIN_BLOCKS = 2  # of a class, below which blocks are not worth a table

SAMPLE = 2_000  # events

_STRETCH = 8192  # events that are encoded together
_FIRST_CHUNK = 2048  # events
_CHUNK_SIZES = (512, 8192)
_PAIRS_A_CHUNK = 1 << 18


class Found(NamedTuple):
    """The slots of each event: those of event i are `slots[offsets[i]:offsets[i + 1]]`, in no order."""

    offsets: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    tried: int  # candidates that were verified


class _Buffer(threading.local):
    """What each thread's engines find, kept between batches: fresh memory costs more than what is written to it."""

    def __init__(self) -> None:
        self.pairs = Pairs()
        self.runs = Runs()


_buffer = _Buffer()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What an engine serves, and why."""

    engine: str
    entries: int
    classes: int
    bytes: int
    estimated_ns: float  # an event
    reason: str


@dataclass(frozen=True, slots=True)
class Index:
    """The engines, and what they leave open."""

    slots: int  # how many filters there are
    coders: list[Coder]
    cells: Cells | None
    blocks: tuple[Blocks, ...]
    free: npt.NDArray[np.int32]  # the outputs of entries that constrain nothing
    asking: Asking
    repeated: npt.NDArray[np.bool_]  # which filters may be found twice; empty where none
    engines: tuple[EngineStats, ...]

    @property
    def bytes(self) -> int:
        """Of everything that matching reads, but for residuals' trees."""
        coding = sum(coder.edges.nbytes + (coder.dictionary.bytes if coder.dictionary else 0) for coder in self.coders)
        return coding + self.asking.bytes + sum(engine.bytes for engine in self.engines)

    def match(self, columns: Columns, recheck: Recheck) -> Found:
        """The slots that each event matches."""
        count = columns.batch.count
        rows, tried = Rows(count), 0
        seen = np.zeros(self.slots if len(self.repeated) else 0, np.int32)
        for start in range(0, count, _STRETCH):
            stretch = columns if count <= _STRETCH else columns.part(start, min(start + _STRETCH, count))
            tried += self._match_stretch(stretch, recheck, rows, seen)
        return Found(rows.offsets, rows.slots, tried)

    def _match_stretch(self, columns: Columns, recheck: Recheck, rows: Rows, seen: npt.NDArray[np.int32]) -> int:
        events = encode(columns, self.coders)
        decision = Decision(self.asking, columns, events, recheck) if len(self.asking) or events.odd.any() else None
        pairs, runs = _buffer.pairs, _buffer.runs
        start, size, tried = 0, _FIRST_CHUNK, 0
        while start < events.count:
            chunk = events.part(start, min(start + size, events.count))
            pairs.count = 0
            runs.clear()
            tried += self._find(chunk, pairs, runs)
            found = pairs.count + runs.count
            if decision is not None:
                runs.move_to(pairs)
                decision.settle(pairs, start, chunk.count)
            rows.add(chunk.count, pairs.events[: pairs.count], pairs.outputs[: pairs.count], runs)
            if len(self.repeated):
                rows.drop_repeats(chunk.count, self.repeated, seen)
            start += chunk.count
            # What a chunk finds should fit the cache, and a chunk be long enough to be worth a walk through the tables.
            size = int(np.clip(_PAIRS_A_CHUNK * chunk.count / max(1, found), *_CHUNK_SIZES))
        return tried

    def _find(self, events: Encoded, pairs: Pairs, runs: Runs) -> int:
        tried = self.cells.match(events, pairs) if self.cells is not None else 0
        for blocks in self.blocks:
            blocks.match(events, runs)
        if len(self.free):
            pairs.add(np.repeat(np.arange(events.count), len(self.free)), np.tile(self.free, events.count))
            tried += len(self.free) * events.count
        return tried + runs.count


def build_index(filters: FilterTable, sample: Columns | None = None) -> Index:
    """Build an index, its engines chosen by the sampled events; without any, by the filters' own constants."""
    entries = entries_of(filters)
    coders = coders_of(filters, entries)
    access = _Access(entries, coders, _sample_codes(entries, coders, sample))
    counts = np.diff(entries.offsets)
    asking, outputs = asking_of(entries, filters.count)
    free = outputs[counts == 0]
    engines: list[EngineStats] = []
    blocks: list[Blocks] = []
    in_cells = counts > 0
    for members in _classes(entries):
        cells_ns, blocks_ns = access.cells_ns(members), access.blocks_ns(members)
        if len(members) >= MIN_BLOCKS * BLOCK and blocks_ns < cells_ns:
            built = blocks_of(members, entries, outputs, coders)
            blocks.append(built)
            in_cells[members] = False
            names = ", ".join(".".join(coders[d].path) for d in built.dimensions)
            reason = f"ranges on {names}: {blocks_ns:,.0f} ns an event, {cells_ns:,.0f} by cells"
            engines.append(EngineStats("blocks", len(members), 1, built.bytes, blocks_ns, reason))
    cells = None
    chosen = np.flatnonzero(in_cells)
    if len(chosen):
        cells = access.file(chosen, outputs, coders)
        reason = f"selective: filed in {len(cells.cell_kinds):,} cells, each for the events that few others are like"
        engines.append(EngineStats("cells", len(chosen), 0, cells.bytes, access.cells_ns(chosen), reason))
    if len(free):
        engines.append(
            EngineStats("free", len(free), 1, free.nbytes, float(len(free)), "nothing to look up: every event")
        )
    in_blocks = {int(d) for built in blocks for d in built.dimensions}
    ranged = set(np.unique(entries.attributes[entries.lows != entries.highs]).tolist()) | in_blocks
    return Index(
        slots=filters.count,
        coders=[replace(coder, celled=number in ranged) for number, coder in enumerate(coders)],
        cells=cells,
        blocks=tuple(blocks),
        free=free,
        asking=asking,
        repeated=entries.repeated,
        engines=tuple(engines),
    )


def _sample_codes(entries: Entries, coders: list[Coder], sample: Columns | None) -> npt.NDArray[np.int64]:
    """Codes of sampled events, events × attributes."""
    if sample is not None and sample.batch.count:
        return encode(sample, coders).codes
    rng = np.random.default_rng(0)
    codes = np.empty((SAMPLE // 4, len(coders)), np.int64)
    for number in range(len(coders)):
        rows = np.flatnonzero(entries.attributes == number)
        codes[:, number] = entries.lows[rng.choice(rows, len(codes))]
    return codes


def _classes(entries: Entries) -> list[npt.NDArray[np.int64]]:
    """Entries by the set of attributes they constrain."""
    signature = np.empty(entries.count, np.uint64)
    _attribute_sets(entries.offsets, entries.attributes, signature)
    order = np.argsort(signature, kind="stable")
    ends = np.flatnonzero(np.diff(signature[order])) + 1
    groups = np.split(order, ends) if len(order) else []
    return [group for group in groups if entries.offsets[group[0] + 1] > entries.offsets[group[0]]]


@numba.njit(cache=True, nogil=True)
def _attribute_sets(offsets: Any, attributes: Any, out: Any) -> None:
    for entry in range(len(out)):
        value = np.uint64(0xCBF29CE484222325)
        for row in range(offsets[entry], offsets[entry + 1]):
            value = (value ^ np.uint64(attributes[row] + 1)) * np.uint64(0x100000001B3)
        out[entry] = value


class _Access:
    """How likely events satisfy each constraint, and what follows for each entry."""

    def __init__(self, entries: Entries, coders: list[Coder], sample: npt.NDArray[np.int64]) -> None:
        self._entries = entries
        rows = len(entries.attributes)
        self._share = np.empty(rows)  # of events within the interval
        self._filed_share = np.empty(rows)  # of events that look where the row is filed
        self._kinds = np.empty(rows, np.int32)
        self._keys = np.empty(rows, np.int64)
        for number, coder in enumerate(coders):
            self._estimate(number, coder, np.sort(sample[:, number]))
        self._best = np.empty(entries.count, np.int64)
        self._second = np.empty(entries.count, np.int64)
        self._costs = np.empty(entries.count)
        # A range is looked for twice as often as an equality, and in cells whose entries have less in common.
        filed = self._filed_share * np.where(self._kinds % 16 == EXACT, 1, GRID_FACTOR)
        _best_two(entries.offsets, filed, self._share, self._best, self._second, self._costs)

    def _estimate(self, number: int, coder: Coder, sample: npt.NDArray[np.int64]) -> None:
        rows = np.flatnonzero(self._entries.attributes == number)
        lows, highs = self._entries.lows[rows], self._entries.highs[rows]
        size = len(sample) + 1
        inside = np.searchsorted(sample, highs, side="right") - np.searchsorted(sample, lows, side="left")
        self._share[rows] = (inside + 0.5) / size
        first, last = cells_of(lows, coder.edges), cells_of(highs, coder.edges)
        level = np.searchsorted(LEVELS, _levels_needed(first, last))
        shift = LEVELS[np.minimum(level, len(LEVELS) - 1)]
        exact = lows == highs
        key = first >> shift
        below = np.concatenate([[0], np.cumsum(np.bincount(cells_of(sample, coder.edges), minlength=(1 << 13) + 2))])
        looking = below[np.minimum((key + 2) << shift, 1 << 13)] - below[np.minimum(key << shift, 1 << 13)]
        self._filed_share[rows] = np.where(exact, self._share[rows], (looking + 0.5) / size)
        self._kinds[rows] = number * 16 + np.where(exact, EXACT, shift)
        self._keys[rows] = np.where(exact, lows, key)

    def cells_ns(self, members: npt.NDArray[np.int64]) -> float:
        """What these entries cost an event in cells: those in its own are told by bytes, what passes is verified."""
        return float(self._costs[members].sum())

    def blocks_ns(self, members: npt.NDArray[np.int64]) -> float:
        """What these entries cost an event in blocks: boxes passed over, and entries compared in the others."""
        width = int(self._entries.offsets[members[0] + 1] - self._entries.offsets[members[0]])
        rows = self._entries.offsets[members][:, None] + np.arange(width)
        blocks = max(1.0, len(members) / BLOCK)
        extent = blocks ** (-1 / width)  # of a block's box on each dimension, as a share of the line
        visited = float(np.minimum(1, self._share[rows].mean(axis=0) + extent).prod())
        return blocks * width * BOX_NS + visited * len(members) * width * COMPARE_NS

    def file(self, chosen: npt.NDArray[np.int64], outputs: npt.NDArray[np.int32], coders: list[Coder]) -> Cells:
        """The cells of these entries; of a candidate's rows those come first that it was not chosen by."""
        entries = self._entries
        rank = self._share.copy()
        rank[self._best[chosen]] += np.where(self._kinds[self._best[chosen]] % 16 == EXACT, 3, 2)
        seconds = self._second[chosen]
        rank[seconds[seconds >= 0]] += 1
        order = _row_order(entries.offsets, rank)
        return cells_index(
            chosen, self._best[chosen], seconds, self._kinds, self._keys, order, entries, outputs, coders
        )  # fmt: skip


def _levels_needed(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """By how many bits cells are shifted until the last is at most one past the first."""
    level = np.zeros(len(first), np.int64)
    for shift in LEVELS[:-1]:
        level[(last >> shift) - (first >> shift) > 1] = shift + 1
    return level


@numba.njit(cache=True, nogil=True)
def _best_two(offsets: Any, filed_ns: Any, share: Any, best: Any, second: Any, costs: Any) -> None:
    """Of each entry the row to file it under and the row to compare as bytes (-1: none) that together cost least."""
    for entry in range(len(best)):
        best[entry] = second[entry] = -1
        costs[entry] = np.inf
        for one in range(offsets[entry], offsets[entry + 1]):
            two = -1
            for row in range(offsets[entry], offsets[entry + 1]):
                if row != one and (two < 0 or share[row] < share[two]):
                    two = row
            passing = 1.0 if two < 0 else min(1.0, share[two] + 2 / 256)
            cost = filed_ns[one] * (BYTE_NS + passing * CANDIDATE_NS)
            if cost < costs[entry]:
                best[entry], second[entry], costs[entry] = one, two, cost


@numba.njit(cache=True, nogil=True)
def _row_order(offsets: Any, rank: Any) -> Any:
    """The rows of each entry by rank."""
    order = np.arange(len(rank))
    for entry in range(len(offsets) - 1):
        for i in range(offsets[entry] + 1, offsets[entry + 1]):
            row, j = order[i], i
            while j > offsets[entry] and rank[order[j - 1]] > rank[row]:
                order[j] = order[j - 1]
                j -= 1
            order[j] = row
    return order
