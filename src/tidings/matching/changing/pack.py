"""Some entries of a `Fresh` in the engines of an index, which answer with the entries' numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidings.matching.columns import Mask
from tidings.matching.engines.blocks import BLOCK, Blocks, blocks_of
from tidings.matching.engines.cells import Cells
from tidings.matching.engines.encode import Coder, Encoded, RowCells
from tidings.matching.engines.entries import Entries
from tidings.matching.engines.pairs import Pairs, Runs
from tidings.matching.engines.route import MIN_BLOCKS, Access, classes_of
from tidings.model.filter.columnar import Codes


@dataclass(frozen=True, slots=True)
class Pack:
    """The entries from `first` to `last`, but for those that were dead when it was made."""

    first: int
    last: int
    cells: Cells | None
    blocks: tuple[Blocks, ...]
    free: npt.NDArray[np.int32]  # entries that constrain nothing

    @property
    def bytes(self) -> int:
        cells = 0 if self.cells is None else self.cells.bytes
        return cells + sum(blocks.bytes for blocks in self.blocks) + self.free.nbytes

    def match(self, events: Encoded, pairs: Pairs, runs: Runs) -> int:
        """Add the pairs (event, entry) that match; answers how many candidates were verified."""
        before = pairs.count
        runs.clear()
        tried = self.cells.match(events, pairs, runs) if self.cells is not None else 0
        for blocks in self.blocks:
            blocks.match(events, runs)
        runs.move_to(pairs)
        if len(self.free):
            pairs.add(np.repeat(np.arange(events.count), len(self.free)), np.tile(self.free, events.count))
        return tried + pairs.count - before


def pack_of(first: int, last: int, entries: Entries, coders: list[Coder], sample: Codes | None, alive: Mask) -> Pack:
    """Pack those of some entries that are alive; the sampled events (events × attributes) choose the engines."""
    if sample is None or not len(sample):
        sample = np.zeros((1, len(coders)), np.int64)
    access = Access(entries, coders, RowCells(entries, coders), sample)
    constrained = (np.diff(entries.offsets) > 0) & alive
    blocks: list[Blocks] = []
    for members in classes_of(entries):
        living = members[alive[members]]
        if len(living) >= MIN_BLOCKS * BLOCK and access.blocks_ns(living) < access.cells_ns(living):
            blocks.append(blocks_of(living, entries, access.cells, entries.slots))
            constrained[living] = False
    chosen = np.flatnonzero(constrained)
    cells = access.file(chosen, entries.slots) if len(chosen) else None
    free = entries.slots[(np.diff(entries.offsets) == 0) & alive]
    return Pack(first, last, cells, tuple(blocks), free)
