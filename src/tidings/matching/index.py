"""An immutable index over a table of filters: which engine serves which entries, and matching a batch.

Classes of entries (those that constrain the same attributes) are divided among the engines by what
an event would cost in each, estimated from sampled events: `cells` verifies the entries that an
event's own keys lead to, `blocks` compares whole blocks of similar entries. Entries that constrain
nothing hold every event. Residuals are evaluated on what is left.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from tidings.matching import first_use as first_use  # it listens from here on
from tidings.matching.blocks import BLOCK, Blocks, blocks_of
from tidings.matching.cells import EXACT, LEVELS, Cells, cells_index
from tidings.matching.columns import Columns
from tidings.matching.encode import Coder, Encoded, cells_of, coders_of, encode
from tidings.matching.entries import Entries, Residual, entries_of
from tidings.matching.evaluate import literals_of, true_rows
from tidings.matching.pairs import Pairs, by_event
from tidings.model.filter.columnar import FilterTable
from tidings.model.filter.tree import Expression

# What things cost an event, in nanoseconds on one core: measured, and only their ratios matter.
BYTE_NS = 0.04  # of an entry in an event's cell, found by its bytes or passed over
GRID_FACTOR = 20.0
CANDIDATE_NS = 8.0  # of an entry that is verified
COMPARE_NS = 0.05  # of one entry on one dimension in a block that is visited
BOX_NS = 0.06  # of passing a block over, a dimension
MIN_BLOCKS = 2  # of a class, below which blocks are not worth a table

SAMPLE = 2_000  # events

Pairing = npt.NDArray[np.int32]
Recheck = Callable[[int], Expression]  # the tree of a slot's filter, for the few that are evaluated whole

_FIRST_CHUNK = 2048  # events
_CHUNK_SIZES = (512, 8192)
_PAIRS_A_CHUNK = 1 << 18


class Found(NamedTuple):
    """The slots of each event: those of event i are `slots[offsets[i]:offsets[i + 1]]`, in no order."""

    offsets: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    tried: int  # candidates that were verified


class Templates(NamedTuple):
    """Residuals that differ only in their literals, to be evaluated together."""

    of_residual: npt.NDArray[np.int64]  # -1: one that is more than an expression
    number: npt.NDArray[np.int64]  # of each residual among those of its template
    trees: list[Expression]
    literals: list[list[npt.NDArray[Any]]]  # of each template, for each of its literals the values by number


class _Buffer(threading.local):
    """Each thread's pairs, kept between batches: fresh memory costs more than what is written to it."""

    def __init__(self) -> None:
        self.pairs = Pairs()


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
    """Engines answer with outputs: a slot, or `slots` and the number of an entry whose residual is to be evaluated."""

    slots: int  # how many filters there are
    coders: list[Coder]
    cells: Cells | None
    blocks: tuple[Blocks, ...]
    free: npt.NDArray[np.int32]  # the outputs of entries that constrain nothing
    asking: npt.NDArray[np.int32]  # entries with a residual, ascending
    asking_slots: npt.NDArray[np.int32]
    asking_residuals: npt.NDArray[np.int32]
    residuals: tuple[Residual, ...]
    templates: Templates
    repeated: npt.NDArray[np.bool_]  # which filters may be found twice; empty where none
    engines: tuple[EngineStats, ...]

    @property
    def bytes(self) -> int:
        """Of everything that matching reads, but for residuals' trees."""
        coding = sum(coder.edges.nbytes + (coder.dictionary.bytes if coder.dictionary else 0) for coder in self.coders)
        asking = self.asking.nbytes + self.asking_slots.nbytes + self.asking_residuals.nbytes
        return coding + asking + sum(engine.bytes for engine in self.engines)

    def match(self, columns: Columns, recheck: Recheck) -> Found:
        """The slots that each event matches."""
        events = encode(columns, self.coders)
        pairs = _buffer.pairs
        counts, slots, tried = [np.zeros(1, np.int64)], [np.empty(0, np.int32)], 0
        start, size = 0, _FIRST_CHUNK
        while start < events.count:
            chunk = events.part(start, min(start + size, events.count))
            pairs.count = 0
            tried += self._find(chunk, pairs)
            found_events, outputs = pairs.events[: pairs.count], pairs.outputs[: pairs.count]
            if len(self.asking) or chunk.odd.any():
                found_events, outputs = self._decide(found_events, outputs, chunk, start, columns, recheck)
            if len(self.repeated):
                found_events, outputs = self._once(found_events, outputs)
            counted, ordered = by_event(found_events, outputs, chunk.count)
            counts.append(np.diff(counted))
            slots.append(ordered)
            start += chunk.count
            # Pairs of a chunk should fit the cache, and a chunk be long enough to be worth a walk through the tables.
            size = int(np.clip(_PAIRS_A_CHUNK * chunk.count / max(1, pairs.count), *_CHUNK_SIZES))
        offsets = np.cumsum(np.concatenate(counts))
        return Found(offsets, np.concatenate(slots), tried)

    def _find(self, events: Encoded, pairs: Pairs) -> int:
        tried = self.cells.match(events, pairs) if self.cells is not None else 0
        before = pairs.count
        for blocks in self.blocks:
            blocks.match(events, pairs)
        if len(self.free):
            pairs.add(np.repeat(np.arange(events.count), len(self.free)), np.tile(self.free, events.count))
        return tried + pairs.count - before

    def _decide(
        self, events: Pairing, outputs: Pairing, encoded: Encoded, start: int, columns: Columns, recheck: Recheck
    ) -> tuple[Pairing, Pairing]:
        """Evaluate residuals: outputs that ask for it become slots where theirs holds, and are dropped else."""
        odd = encoded.odd[events]
        asked = np.flatnonzero((outputs >= self.slots) | odd)
        at, slots = events[asked].astype(np.int64), outputs[asked].copy()
        residual = np.full(len(asked), -1, np.int64)
        entry = slots >= self.slots
        position = np.searchsorted(self.asking, slots[entry] - self.slots)
        slots[entry] = self.asking_slots[position]
        residual[entry] = self.asking_residuals[position]
        whole = odd[asked] | np.array([*(one.recheck for one in self.residuals), False])[residual]
        holds = np.ones(len(asked), bool)
        asking = np.where(whole, -1, residual)
        templates = np.where(asking >= 0, self.templates.of_residual[asking], -1)
        for rows in _groups(templates):
            holds[rows] = self._template_holds(
                templates[rows[0]], asking[rows], at[rows], encoded.count, start, columns
            )
        for rows in _groups(np.where(templates < 0, asking, -1)):
            holds[rows] = self._holds(self.residuals[asking[rows[0]]], at[rows], encoded, start, columns)
        for rows in _groups(np.where(whole, slots, -1)):
            holds[rows] = true_rows(recheck(int(slots[rows[0]])), columns, at[rows] + start)
        outputs = outputs.copy()
        outputs[asked] = np.where(holds, slots, -1)
        kept = outputs >= 0
        return events[kept], outputs[kept]

    def _once(self, events: Pairing, slots: Pairing) -> tuple[Pairing, Pairing]:
        """Pairs without repeats: a filter may hold an event in several of its boxes."""
        twice = self.repeated[slots]
        keys = np.unique(events[twice].astype(np.int64) * self.slots + slots[twice])
        again = (keys // self.slots).astype(np.int32), (keys % self.slots).astype(np.int32)
        return np.concatenate([events[~twice], again[0]]), np.concatenate([slots[~twice], again[1]])

    def _template_holds(
        self, template: int, residuals: npt.NDArray[np.int64], at: npt.NDArray[np.int64], count: int, start: int,
        columns: Columns,
    ) -> npt.NDArray[np.bool_]:  # fmt: skip
        tree = self.templates.trees[template]
        literals = [values[self.templates.number[residuals]] for values in self.templates.literals[template]]
        if literals:
            return true_rows(tree, columns, at + start, literals)
        holds = np.zeros(count, bool)  # the same for every filter: once an event is enough
        holds[at] = True
        holds[holds] = true_rows(tree, columns, np.flatnonzero(holds) + start)
        return holds[at]

    def _holds(
        self, residual: Residual, rows: npt.NDArray[np.int64], encoded: Encoded, start: int, columns: Columns
    ) -> npt.NDArray[np.bool_]:
        holds = np.ones(len(rows), bool)
        for membership in residual.memberships:
            codes = encoded.codes[rows, membership.attribute]
            place = np.searchsorted(membership.lows, codes, side="right") - 1
            holds &= (place >= 0) & (codes <= membership.highs[np.maximum(place, 0)])
        if residual.expression is not None and holds.any():
            holds[holds] = true_rows(residual.expression, columns, rows[holds] + start)
        return holds


def _templates(residuals: tuple[Residual, ...]) -> Templates:
    of_residual, number = np.full(len(residuals), -1), np.zeros(len(residuals), np.int64)
    trees: dict[Expression, int] = {}
    values: list[list[tuple[Any, ...]]] = []
    for i, residual in enumerate(residuals):
        if residual.expression is None or residual.memberships:
            continue
        tree, literals = literals_of(residual.expression)
        template = trees.setdefault(tree, len(trees))
        if template == len(values):
            values.append([])
        of_residual[i], number[i] = template, len(values[template])
        values[template].append(literals)
    columns = [[_objects(column) for column in zip(*rows, strict=True)] for rows in values]
    return Templates(of_residual, number, list(trees), columns)


def _objects(values: Sequence[Any]) -> npt.NDArray[Any]:
    result = np.empty(len(values), object)
    result[:] = values
    return result


def _groups(numbers: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.int64]]:
    """The rows that have the same number, by number; negative ones left out."""
    rows = np.flatnonzero(numbers >= 0)
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    if len(rows):
        yield from np.split(rows, np.flatnonzero(np.diff(numbers[rows])) + 1)


def build_index(filters: FilterTable, sample: Columns | None = None) -> Index:
    """Build an index, its engines chosen by the sampled events; without any, by the filters' own constants."""
    entries = entries_of(filters)
    coders = coders_of(filters, entries)
    access = _Access(entries, coders, _sample_codes(entries, coders, sample))
    counts = np.diff(entries.offsets)
    asking = np.flatnonzero(entries.residual_of >= 0).astype(np.int32)
    outputs = entries.slots.copy()
    outputs[asking] = filters.count + asking
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
        asking_slots=entries.slots[asking],
        asking_residuals=entries.residual_of[asking],
        residuals=entries.residuals,
        templates=_templates(entries.residuals),
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
