"""An immutable index over a table of filters: which engine serves which entries, and matching a batch.

Classes of entries (those that constrain the same attributes) are divided among the engines by what
an event would cost in each, estimated from sampled events: `cells` verifies the entries that an
event's own keys lead to, `blocks` compares whole blocks of similar entries. Entries that constrain
nothing hold every event. Residuals are evaluated on what is left.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.filter_table import FilterTable
from tidings.matching.batch_columns import Columns
from tidings.matching.engines.blocks import BLOCK, Blocks, blocks_of
from tidings.matching.engines.cells import Cells, Visit
from tidings.matching.engines.engine_choice import MIN_BLOCKS, Access, SampledEvents, classes_of
from tidings.matching.engines.entries import Entries, entries_of
from tidings.matching.engines.event_codes import Coder, Encoded, RowCells, coders_of, encode
from tidings.matching.engines.found_pairs import Pairs, Rows, Runs
from tidings.matching.engines.path_engine import AskedPaths, PathEngine, asked_paths, served_by_paths
from tidings.matching.engines.residual_matching import Asking, ResidualDecision, asking_of
from tidings.model.arrow import ArrowArray

SAMPLE = 2_000  # events

_STRETCH = 8192  # events that are encoded together
_FIRST_CHUNK = 2048  # events
_FIRST_PATHS = 64  # events, where there are paths: a document may match half of all
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
class FilterIndex:
    """The engines, and what they leave open."""

    slots: int  # how many filters there are
    coders: list[Coder]
    cells: Cells | None
    blocks: tuple[Blocks, ...]
    free: npt.NDArray[np.int32]  # the outputs of entries that constrain nothing
    asking: Asking
    repeated: npt.NDArray[np.bool_]  # which filters may be found twice; empty where none
    engines: tuple[EngineStats, ...]
    paths: tuple[PathEngine, ...] = ()
    asked: tuple[AskedPaths, ...] = ()

    @property
    def bytes(self) -> int:
        """Of everything that matching reads, but for residuals' trees."""
        coding = sum(coder.grid.bytes + (coder.dictionary.bytes if coder.dictionary else 0) for coder in self.coders)
        coding += sum(asked.known.index.bytes for asked in self.asked)
        return coding + self.asking.bytes + sum(engine.bytes for engine in self.engines)

    def match(self, columns: Columns, texts: ArrowArray, visit: Visit | None = None) -> Found:
        """The slots that each event matches; a visit takes what it finds of the cells' guests.

        `texts` are the filters by slot, for the few that have to be evaluated whole.
        """
        count = columns.batch.count
        rows, tried = Rows(count), 0
        seen = np.zeros(self.slots if len(self.repeated) else 0, np.int32)
        for start in range(0, count, _STRETCH):
            stretch = columns if count <= _STRETCH else columns.part(start, min(start + _STRETCH, count))
            tried += self._match_stretch(stretch, texts, rows, seen, visit, start)
        return Found(rows.offsets, rows.slots, tried)

    def _match_stretch(
        self, columns: Columns, texts: ArrowArray, rows: Rows, seen: npt.NDArray[np.int32], visit: Visit | None, at: int
    ) -> int:
        events = encode(columns, self.coders)
        if visit is not None:
            visit.odd[at : at + events.count] = events.odd
        asks = len(self.asking) > 0 or bool(events.odd.any())
        decision = ResidualDecision(self.asking, columns, events, texts) if asks else None
        for asked in self.asked:
            columns.documents(asked.path).know(asked.known)
        pairs, runs = _buffer.pairs, _buffer.runs
        start, size, tried = 0, _FIRST_PATHS if self.paths else _FIRST_CHUNK, 0
        while start < events.count:
            chunk = events.part(start, min(start + size, events.count))
            pairs.count = 0
            runs.clear()
            tried += self._find(chunk, pairs, runs, visit, at + start)
            for paths in self.paths:
                tried += paths.match(columns, start, start + chunk.count, runs)
            found = pairs.count + runs.count
            if decision is not None:
                decision.settle(pairs, runs, start, chunk.count)
            rows.add(chunk.count, pairs.events[: pairs.count], pairs.outputs[: pairs.count], runs)
            if len(self.repeated):
                rows.drop_repeats(chunk.count, self.repeated, seen)
            start += chunk.count
            # What a chunk finds should fit the cache, and a chunk be long enough to be worth a walk through the tables.
            size = int(np.clip(_PAIRS_A_CHUNK * chunk.count / max(1, found), *_CHUNK_SIZES))
        return tried

    def _find(self, events: Encoded, pairs: Pairs, runs: Runs, visit: Visit | None, at: int) -> int:
        before = 0 if visit is None else visit.pairs.count
        cells = self.cells if visit is None else visit.cells
        tried = cells.match(events, pairs, runs, visit) if cells is not None else 0
        if visit is not None:
            visit.pairs.events[before : visit.pairs.count] += np.int32(at)
        for blocks in self.blocks:
            blocks.match(events, runs)
        if len(self.free):
            pairs.add(np.repeat(np.arange(events.count), len(self.free)), np.tile(self.free, events.count))
            tried += len(self.free) * events.count
        return tried + runs.count


def build_index(filters: FilterTable, sample: Columns | None = None) -> FilterIndex:
    """Build an index, its engines chosen by the sampled events; without any, by the filters' own constants."""
    entries, by_path, paths = served_by_paths(entries_of(filters))
    coders = coders_of(filters, entries)
    sampled = SampledEvents(coders, _sample_codes(entries, coders, sample))
    access = Access(entries, RowCells(entries, coders), sampled)
    counts = np.diff(entries.offsets)
    asking, outputs = asking_of(entries, filters.count)
    free = outputs[(counts == 0) & ~by_path]
    engines = [
        EngineStats(
            "paths",
            one.index.count,
            1,
            one.bytes,
            one.estimated_ns(sample),
            f"one path over {'.'.join(one.path)}: walked together",
        )
        for one in paths
    ]
    blocks: list[Blocks] = []
    in_cells = counts > 0
    for members in classes_of(entries):
        cells_ns, blocks_ns = access.cells_ns(members), access.blocks_ns(members)
        if len(members) >= MIN_BLOCKS * BLOCK and blocks_ns < cells_ns:
            built = blocks_of(members, entries, access.cells, outputs)
            blocks.append(built)
            in_cells[members] = False
            names = ", ".join(".".join(coders[d].path) for d in built.dimensions)
            reason = f"ranges on {names}: {blocks_ns:,.0f} ns an event, {cells_ns:,.0f} by cells"
            engines.append(EngineStats("blocks", len(members), 1, built.bytes, blocks_ns, reason))
    cells = None
    chosen = np.flatnonzero(in_cells)
    if len(chosen):
        cells = access.file(chosen, outputs)
        reason = f"selective: filed in {len(cells.cell_kinds):,} cells, each for the events that few others are like"
        engines.append(EngineStats("cells", len(chosen), 0, cells.bytes, access.cells_ns(chosen), reason))
    if len(free):
        engines.append(
            EngineStats("free", len(free), 1, free.nbytes, float(len(free)), "nothing to look up: every event")
        )
    in_blocks = {int(d) for built in blocks for d in built.dimensions}
    ranged = set(np.unique(entries.attributes[entries.lows != entries.highs]).tolist()) | in_blocks
    return FilterIndex(
        slots=filters.count,
        coders=[replace(coder, celled=number in ranged) for number, coder in enumerate(coders)],
        cells=cells,
        blocks=tuple(blocks),
        free=free,
        asking=asking,
        repeated=entries.repeated,
        engines=tuple(engines),
        paths=paths,
        asked=asked_paths(entries),
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
