"""What matching costs an event, expected from samples: of any of the subscriptions, for any of the events.

By the estimates that the matcher's router chooses its engines by, for as many subscriptions as the sample stands for.
They are made for the very events that visit a shard. An event's own keys lead the matcher to the entries that are filed
under them: to take others away, which a placement by the same attributes does, spares next to nothing. Only what is
looked through whatever the event, as blocks of boxes are, is spared in proportion.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.filter_table import FilterTable
from tidings.matching.batch_columns import Columns
from tidings.matching.engines.blocks import BLOCK
from tidings.matching.engines.engine_choice import MIN_BLOCKS, Access, SampledEvents, classes_of
from tidings.matching.engines.entries import Entries, entries_of
from tidings.matching.engines.event_codes import Coder, RowCells, coders_of, encode
from tidings.matching.engines.path_engine import served_by_paths
from tidings.model.event import EventBatch
from tidings.systems.interface import Numbers

# What a look into one shard costs an event on one core, whatever is found: measured, as are the router's.
LOOK_NS = 250.0
NUMBER_NS, TEXT_NS = 40.0, 200.0  # of coding one attribute
RESIDUAL_NS = 50.0  # of evaluating one residual, for all that ask it

_DRAWN = 500  # events that are made of the filters' constants where none are known


class MatchCosts:
    """Of the filters of a sample, each of which stands for `scale` subscriptions."""

    def __init__(self, filters: FilterTable, events: EventBatch | None, scale: float) -> None:
        known = Columns(events) if events is not None and events.count else None
        self._entries, self._by_path, paths = served_by_paths(entries_of(filters))
        self._coders = coders_of(filters, self._entries)
        self._coding_ns = np.array([TEXT_NS if coder.dictionary else NUMBER_NS for coder in self._coders])
        self._cells = RowCells(self._entries, self._coders)
        self._codes = _drawn(self._entries, self._coders) if known is None else encode(known, self._coders).codes
        self._classes = classes_of(self._entries)
        self._free = (np.diff(self._entries.offsets) == 0) & ~self._by_path
        self._paths_ns = sum(one.estimated_ns(known) for one in paths)
        self._count = filters.count
        self._scale = scale
        self._whole = self._access(self._codes)

    def an_event(self, filters: Numbers, events: Numbers | None = None) -> float:
        """Nanoseconds that an event takes in a shard of these filters; with `events`, one of those."""
        chosen = np.zeros(self._count, bool)
        chosen[filters] = True
        mine = chosen[self._entries.slots]
        if not mine.any():
            return 0.0
        access = self._whole if events is None or not len(events) else self._access(self._codes[events])
        asked = np.zeros(len(self._coders), bool)
        asked[self._entries.attributes[np.repeat(mine, np.diff(self._entries.offsets))]] = True
        residuals = self._entries.residual_of[mine]
        expected = LOOK_NS + float(self._coding_ns[asked].sum())
        expected += RESIDUAL_NS * len(np.unique(residuals[residuals >= 0]))
        expected += float((self._free & mine).sum()) * self._scale
        if self._by_path.any():
            expected += self._paths_ns * float((self._by_path & mine).sum()) / float(self._by_path.sum())
        return expected + sum(self._class_ns(access, members[mine[members]]) for members in self._classes)

    def _class_ns(self, access: Access, members: npt.NDArray[np.int64]) -> float:
        if not len(members):
            return 0.0
        cells_ns = access.cells_ns(members) * self._scale
        if len(members) * self._scale < MIN_BLOCKS * BLOCK:
            return cells_ns
        return min(cells_ns, access.blocks_ns(members, self._scale))

    def _access(self, codes: npt.NDArray[np.int64]) -> Access:
        return Access(self._entries, self._cells, SampledEvents(self._coders, codes))


def _drawn(entries: Entries, coders: list[Coder]) -> npt.NDArray[np.int64]:
    """Codes of events as the filters' own constants would have them, events × attributes."""
    rng = np.random.default_rng(0)
    codes = np.empty((_DRAWN, len(coders)), np.int64)
    for number in range(len(coders)):
        codes[:, number] = entries.lows[rng.choice(np.flatnonzero(entries.attributes == number), _DRAWN)]
    return codes
