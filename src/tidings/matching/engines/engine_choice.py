"""The router: which entries are served by which engine, and where selective ones are filed.

Sampled events show how many of them satisfy each constraint; from that follows what an entry would
cost an event in each engine. The estimates only choose: whatever they say, matching is exact.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.kernels.decorator import kernel
from tidings.kernels.hashing import hash_lists
from tidings.matching.engines.blocks import BLOCK
from tidings.matching.engines.cell_kernels import EXACT, LEVEL_STEP, MAX_LEVEL
from tidings.matching.engines.cells import Cells, cells_index
from tidings.matching.engines.entries import Entries
from tidings.matching.engines.event_codes import CELL_BITS, Coder, RowCells

# What things cost an event, in nanoseconds on one core: measured, and only their ratios matter.
BYTE_NS = 0.04  # of an entry in an event's cell, found by its bytes or passed over
GRID_FACTOR = 20.0
CANDIDATE_NS = 8.0  # of an entry that is verified
SURE_NS = 0.5  # of an entry that an event's key settles
COMPARE_NS = 0.05  # of one entry on one dimension in a block that is visited
BOX_NS = 0.06  # of passing a block over, a dimension
MATCH_NS = 1.5  # of writing a match that a block finds
MIN_BLOCKS = 2  # of a class, below which blocks are not worth a table

_CELLS = (1 << CELL_BITS + 1) + 2  # more than there are, and so that the last cell has a next one in every grid


def classes_of(entries: Entries) -> list[npt.NDArray[np.int64]]:
    """Entries by the set of attributes they constrain, those apart that constrain nothing."""
    signature = np.empty(entries.count, np.uint64)
    hash_lists(entries.offsets, entries.attributes, signature)
    order = np.argsort(signature, kind="stable")
    ends = np.flatnonzero(np.diff(signature[order])) + 1
    groups = np.split(order, ends) if len(order) else []
    return [group for group in groups if entries.offsets[group[0] + 1] > entries.offsets[group[0]]]


class SampledEvents:
    """Sampled events by attribute: their codes, and how many lie in the cells below each."""

    def __init__(self, coders: list[Coder], codes: npt.NDArray[np.int64]) -> None:
        """`codes` are by event × attribute."""
        self.ordered = np.sort(codes.T, axis=1)
        self.below = np.zeros((len(coders), _CELLS + 1), np.int64)
        for number, own in enumerate(self.ordered):
            self.below[number, 1:] = np.cumsum(np.bincount(coders[number].grid.cells(own), minlength=_CELLS))


class Access:
    """How likely events satisfy each constraint, and what follows for each entry."""

    def __init__(self, entries: Entries, cells: RowCells, sampled: SampledEvents) -> None:
        self.cells = cells
        self._entries = entries
        rows = len(entries.attributes)
        self._share = np.empty(rows)  # of events within the interval
        filed_share = np.empty(rows)  # of events that look where the row is filed
        self._kinds = np.empty(rows, np.int32)
        self._keys = np.empty(rows, np.int64)
        _estimate(
            entries.attributes, entries.lows, entries.highs, cells.first, cells.last, sampled.ordered, sampled.below,
            self._share, filed_share, self._kinds, self._keys,
        )  # fmt: skip
        self._best = np.empty(entries.count, np.int64)
        self._second = np.empty(entries.count, np.int64)
        self._costs = np.empty(entries.count)
        _best_two(
            entries.offsets, self._kinds % 16 == EXACT, filed_share, self._share, self._best, self._second, self._costs
        )

    def cells_ns(self, members: npt.NDArray[np.int64]) -> float:
        """What these entries cost an event in cells: bytes compared in its own cells, and what passes verified."""
        return float(self._costs[members].sum())

    def blocks_ns(self, members: npt.NDArray[np.int64], scale: float = 1.0) -> float:
        """What these entries cost an event in blocks: boxes passed over, and entries compared in the others.

        Each may stand for `scale` of its like.
        """
        width = int(self._entries.offsets[members[0] + 1] - self._entries.offsets[members[0]])
        rows = self._entries.offsets[members][:, None] + np.arange(width)
        blocks = max(1.0, len(members) * scale / BLOCK)
        extent = blocks ** (-1 / width)  # of a block's box on each dimension, as a share of the line
        visited = float(np.minimum(1, self._share[rows].mean(axis=0) + extent).prod())
        matches = float(self._share[rows].prod(axis=1).sum()) * scale
        return blocks * width * BOX_NS + visited * len(members) * scale * width * COMPARE_NS + matches * MATCH_NS

    def file(self, chosen: npt.NDArray[np.int64], outputs: npt.NDArray[np.int32]) -> Cells:
        """The cells of these entries; of a candidate's rows those come first that it was not chosen by."""
        entries = self._entries
        rank = self._share.copy()
        rank[self._best[chosen]] += np.where(self._kinds[self._best[chosen]] % 16 == EXACT, 3, 2)
        seconds = self._second[chosen]
        rank[seconds[seconds >= 0]] += 1
        order = _row_order(entries.offsets, rank)
        return cells_index(
            chosen, self._best[chosen], seconds, self._kinds, self._keys, order, entries, self.cells, outputs
        )


@kernel
def _estimate(
    attributes: Any, lows: Any, highs: Any, first: Any, last: Any, ordered: Any, below: Any, share: Any,
    filed_share: Any, kinds: Any, keys: Any,
) -> None:  # fmt: skip
    size = ordered.shape[1] + 1
    for row in range(len(attributes)):
        attribute = attributes[row]
        if lows[row] == highs[row]:
            events = ordered[attribute]
            inside = np.searchsorted(events, highs[row], side="right") - np.searchsorted(events, lows[row])
            share[row] = filed_share[row] = (inside + 0.5) / size
            kinds[row] = attribute * 16 + EXACT
            keys[row] = lows[row]
            continue
        begin, end = np.int64(first[row]), np.int64(last[row])
        share[row] = (below[attribute, end + 1] - below[attribute, begin] + 0.5) / size
        level = 0  # of the finest grid of which the range touches two cells at most
        while level < MAX_LEVEL and (end >> level) - (begin >> level) > 1:
            level += LEVEL_STEP
        key = begin >> level
        looking = below[attribute, min((key + 2) << level, _CELLS)] - below[attribute, min(key << level, _CELLS)]
        filed_share[row] = (looking + 0.5) / size
        kinds[row] = attribute * 16 + level
        keys[row] = key


@kernel
def _best_two(offsets: Any, exact: Any, filed_share: Any, share: Any, best: Any, second: Any, costs: Any) -> None:
    """Of each entry the row to file it under and the row to compare as bytes (-1: none) that together cost least."""
    for entry in range(len(best)):
        best[entry] = second[entry] = -1
        costs[entry] = np.inf
        for one in range(offsets[entry], offsets[entry + 1]):
            two = -1
            for row in range(offsets[entry], offsets[entry + 1]):
                if row != one and (two < 0 or share[row] < share[two]):
                    two = row
            if two < 0 and exact[one]:
                cost = filed_share[one] * SURE_NS
            else:
                passing = 1.0 if two < 0 else min(1.0, share[two] + 2 / 256)
                cost = filed_share[one] * (BYTE_NS + passing * CANDIDATE_NS)
                if not exact[one]:  # looked for twice as often, and in cells whose entries have less in common
                    cost *= GRID_FACTOR
            if cost < costs[entry]:
                best[entry], second[entry], costs[entry] = one, two, cost


@kernel
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
