"""The engine for selective subscriptions: each entry lies in one cell, and is tried by the events that look there.

An entry is filed under the constraint that the fewest events satisfy: an equality by its code, a
range by a cell of a grid so coarse that the range touches two cells at most, the one it begins in
and the next. Within a cell, entries are grouped by the attribute of their next most selective
constraint, which is tried first, as bytes, 32 entries at a time. What passes is verified in codes.
Entries that ask for nothing but the equality they are filed under are sure: they are copied out.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, call-arg"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidings.kernels.simd import LANES
from tidings.matching.engines import cell_kernels as kernels
from tidings.matching.engines.entries import Entries
from tidings.matching.engines.event_codes import Encoded, RowCells
from tidings.matching.engines.found_pairs import Pairs, Runs

MIN_GROUP = 3  # entries: fewer are verified without a look at their bytes
_LARGE = 128  # entries
_CANDIDATES = 1 << 13  # gathered before they are verified together
_NO_PAIRS = Pairs()  # of no guests


NOBODY = kernels.GuestTable(
    0,
    np.empty(0, np.int32),
    np.zeros(1, np.int32),
    np.empty(0, np.int16),
    np.empty((0, 2), np.int64),
    np.empty(0, np.int32),
)


class Visit:
    """What a batch of events finds of some guests, in the cells that have room for them: pairs (event, output)."""

    def __init__(self, cells: Cells, guests: kernels.GuestTable, events: int) -> None:
        self.cells = cells
        self.guests = guests
        self.pairs = Pairs()
        self.odd = np.zeros(events, bool)  # as in `Encoded`


class Cells(kernels.CellArrays):
    """Entries in the order of cells and groups, and a hash table of the cells."""

    __slots__ = ()

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self if isinstance(array, np.ndarray))

    def match(self, events: Encoded, pairs: Pairs, runs: Runs, visit: Visit | None = None) -> int:
        """Add the pairs and the runs that match, also those of guests. Returns how many candidates were verified."""
        values = np.empty((2 * events.cells.shape[0], events.count), np.uint8)
        kernels.event_bytes(events.codes, events.cells, values)
        room = 2 * self.longest + _CANDIDATES
        candidates = [np.empty(room, np.uint32) for _ in range(2)]
        guests, found = (NOBODY, _NO_PAIRS) if visit is None else (visit.guests, visit.pairs)
        group_ends = self.group_entries[1:] if visit is None else guests.ends
        visits = [np.empty(room if visit is not None else 0, np.uint32) for _ in range(2)]
        kind, event, tried = np.uint64(0), np.uint64(0), 0
        while kind < len(self.kinds):
            pairs.reserve(2 * room)
            runs.reserve(events.count, room)
            found.reserve(2 * len(visits[0]))
            buffers = (
                *candidates, *visits, pairs.events, pairs.outputs, runs.events, runs.starts, runs.outputs, found.events,
                found.outputs,
            )  # fmt: skip
            written = (np.uint64(count) for count in (pairs.count, runs.runs, runs.count, found.count))
            progress, more = kernels.match(
                tuple(self),
                group_ends,
                (events.codes, events.cells, values),
                tuple(guests),
                buffers,
                (*written, np.uint64(kind), np.uint64(event)),
            )
            pairs.count, runs.runs, runs.count, found.count = map(int, progress[:4])
            kind, event = progress[4:]
            tried += int(more)
        return tried

    def with_room(self) -> Roomy:
        """The same entries, and room for guests: empty places in each group, and cells that have no keys yet.

        A large group has some after the entries of each of its steps, so that events pass over most of them too, and
        some at its end.
        """
        spare = len(self.cell_kinds) // 8 + 64
        sizes = np.append(np.diff(self.group_entries), np.zeros(spare, np.int32))
        group_attributes = np.append(self.group_attributes, np.full(spare, kernels.ANY, np.int16))
        group_steps = np.append(self.group_steps, np.full(spare, -1, np.int32))
        cell_groups = np.append(self.cell_groups, self.cell_groups[-1] + 1 + np.arange(spare, dtype=np.int32))
        large = np.flatnonzero(group_steps >= 0)
        # Runs of entries, each with room behind it: small groups, the steps of large ones, and the ends of those.
        runs = np.where(group_steps >= 0, kernels.STEPS + 1, 1)
        first = np.cumsum(runs) - runs
        own = np.zeros(int(runs.sum()), np.int64)
        own[first] = sizes
        of_steps = first[large, None] + np.arange(kernels.STEPS)
        own[of_steps] = np.diff(self.steps.reshape(-1, kernels.STEPS + 1), axis=1)
        room = np.zeros_like(own)
        room[first] = sizes // 4 + 1
        room[first[cell_groups[1:] - 1]] += 4  # of a cell, so that hardly one is ever full
        room[first[group_attributes == kernels.SURE]] = 0
        room[of_steps[:, :-1]] = own[of_steps[:, :-1]] // 4 + 2
        room[first[large] + kernels.STEPS] = sizes[large] // 8 + 4
        starts = np.cumsum(own + room) - own - room
        total = int(own.sum() + room.sum())
        places = np.arange(len(self.outputs)) + np.repeat(np.cumsum(room) - room, own)
        is_own = np.zeros(total + 1, bool)
        is_own[places] = True
        steps = starts[first[large, None] + np.arange(kernels.STEPS + 1)]
        group_entries = np.append(starts[first], total).astype(np.int32)
        cells = self._replace(
            table_keys=self.table_keys.copy(),
            table_cells=self.table_cells.copy(),
            cell_kinds=np.append(self.cell_kinds, np.full(spare, -1, np.int32)),
            cell_groups=cell_groups,
            group_attributes=group_attributes,
            group_entries=group_entries,
            group_widths=np.append(self.group_widths, np.zeros(spare, np.uint8)),
            group_steps=group_steps,
            steps=steps.astype(np.int32).ravel(),
            low_bytes=_spread(self.low_bytes[: len(places)], places, total + LANES, 255),
            high_bytes=_spread(self.high_bytes[: len(places)], places, total + LANES, 0),
            outputs=_spread(self.outputs, places, total, np.iinfo(np.int32).max),
            checks=_spread(self.checks, places, total, 0x00FF),
            offsets=self.offsets[np.cumsum(is_own) - is_own],
            longest=int(np.diff(group_entries[cell_groups]).max()),
        )
        ends = (starts + own).astype(np.int32)
        return Roomy(cells, ends[first + runs - 1], ends[first[large, None] + np.arange(kernels.STEPS + 1)].ravel())


class Roomy(NamedTuple):
    """Cells with room for guests, and where that begins."""

    cells: Cells
    ends: npt.NDArray[np.int32]  # by group: of a large one, at its end
    step_ends: npt.NDArray[np.int32]  # as `steps` of the cells, of large groups


def cells_index(
    chosen: npt.NDArray[np.int64],
    filed: npt.NDArray[np.int64],
    second: npt.NDArray[np.int64],
    row_kinds: npt.NDArray[np.int32],
    row_keys: npt.NDArray[np.int64],
    row_order: npt.NDArray[np.int64],
    entries: Entries,
    cells: RowCells,
    outputs: npt.NDArray[np.int32],
) -> Cells:
    """File the chosen entries under their rows `filed`; `second` (-1: none) are the rows compared as bytes."""
    kinds, kind = np.unique(row_kinds[filed], return_inverse=True)
    keys = np.empty(len(chosen), np.uint64)
    kernels.cell_keys(kinds, kind, row_keys[filed], keys)
    exact = entries.lows[second] == entries.highs[second]
    sure = (second < 0) & (row_kinds[filed] % 16 == kernels.EXACT)
    group = np.where(second >= 0, 2 * entries.attributes[second] + exact, np.where(sure, kernels.SURE, kernels.ANY))
    order = np.lexsort((group, kind, keys))
    keys, group, kind, second, chosen = keys[order], group[order], kind[order], second[order], chosen[order]
    new_cell = _changes(keys) | _changes(kind)  # keys of two kinds may be the same number
    new_group = new_cell | _changes(group)
    small = np.diff(np.r_[np.flatnonzero(new_group), len(keys)])[np.cumsum(new_group) - 1] < MIN_GROUP
    group[small & (group >= 0)] = kernels.ANY  # a group is worth its visit only where it has some entries
    low_bytes, high_bytes = _byte_ranges(group, second, entries, cells)
    order = np.lexsort((low_bytes, group, kind, keys))
    keys, group, kind, chosen = keys[order], group[order], kind[order], chosen[order]
    low_bytes, high_bytes = low_bytes[order], high_bytes[order]
    new_cell = _changes(keys) | _changes(kind)
    new_group = new_cell | _changes(group)
    cell_starts, group_starts = np.flatnonzero(new_cell), np.flatnonzero(new_group)
    group_steps, steps = _steps(group[group_starts], group_starts, low_bytes)
    table_keys, table_cells = _table(keys[cell_starts])
    counts = entries.offsets[chosen + 1] - entries.offsets[chosen]
    ends = np.cumsum(counts)
    rows = row_order[np.repeat(entries.offsets[chosen] - ends + counts, counts) + np.arange(counts.sum())]
    # Who looks in a cell of equalities has the code that its entries ask for: nobody need ask again.
    asked = np.ones(len(entries.attributes), bool)
    asked[filed[row_kinds[filed] % 16 == kernels.EXACT]] = False
    others = rows[asked[rows]]
    return Cells(
        kinds=kinds.astype(np.int64),
        table_keys=table_keys,
        table_cells=table_cells,
        cell_kinds=kind[cell_starts].astype(np.int32),
        cell_groups=np.r_[np.searchsorted(group_starts, cell_starts), len(group_starts)].astype(np.int32),
        group_attributes=group[group_starts].astype(np.int16),
        group_entries=np.r_[group_starts, len(keys)].astype(np.int32),
        group_widths=np.maximum.reduceat(high_bytes - low_bytes, group_starts),
        group_steps=group_steps,
        steps=steps,
        # Vectors are read past the last entry.
        low_bytes=np.r_[low_bytes, np.zeros(LANES, np.uint8)],
        high_bytes=np.r_[high_bytes, np.zeros(LANES, np.uint8)],
        outputs=outputs[chosen],
        checks=_checks(rows[ends - counts], entries, cells),
        offsets=np.r_[0, np.cumsum(asked[rows])[ends - 1]].astype(np.int32),
        attributes=entries.attributes[others],
        bounds=np.column_stack([entries.lows[others], entries.highs[others]]),
        longest=int(np.diff(np.r_[cell_starts, len(keys)]).max()),
    )


def _spread(values: npt.NDArray[Any], places: npt.NDArray[np.int64], size: int, empty: int) -> npt.NDArray[Any]:
    result = np.full(size, empty, values.dtype)
    result[places] = values
    return result


def _changes(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a value is another than the one before; at the first."""
    return np.concatenate([[True], values[1:] != values[:-1]])


def _checks(rows: npt.NDArray[np.int64], entries: Entries, cells: RowCells) -> npt.NDArray[np.uint32]:
    groups = 2 * entries.attributes[rows].astype(np.int64) + (entries.lows[rows] == entries.highs[rows])
    low_bytes, high_bytes = _byte_ranges(groups, rows, entries, cells)
    return np.asarray((groups << 16 | high_bytes.astype(np.int64) << 8 | low_bytes).astype(np.uint32))


def _byte_ranges(
    group: npt.NDArray[np.int64], second: npt.NDArray[np.int64], entries: Entries, cells: RowCells
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The ranges of bytes by which the entries of a group are told apart."""
    low_bytes, high_bytes = (
        (ends[second] >> kernels.BYTE_SHIFT).astype(np.uint8) for ends in (cells.first, cells.last)
    )
    exact = (group >= 0) & (group % 2 == 1)
    hashed = np.empty(int(exact.sum()), np.uint8)
    kernels.hash_bytes_of(entries.lows[second[exact]], hashed)
    low_bytes[exact] = high_bytes[exact] = hashed
    low_bytes[group < 0] = high_bytes[group < 0] = 0
    return low_bytes, high_bytes


def _steps(
    groups: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], low_bytes: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Where in each large group, ordered by low bytes, those begin that are at least 0, 4, 8 …, and where they end."""
    ends = np.r_[starts[1:], len(low_bytes)]
    large = np.flatnonzero((ends - starts > _LARGE) & (groups >= 0))
    group_steps = np.full(len(starts), -1, np.int32)
    group_steps[large] = np.arange(len(large)) * (kernels.STEPS + 1)
    steps = np.empty((len(large), kernels.STEPS + 1), np.int32)
    for i, group in enumerate(large):
        inside = low_bytes[starts[group] : ends[group]]
        steps[i, :-1] = starts[group] + np.searchsorted(inside, np.arange(kernels.STEPS) * kernels.STEP)
        steps[i, -1] = ends[group]
    return group_steps, steps.ravel()


def _table(keys: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    places = 1 << int(np.ceil(np.log2(max(8, 2 * len(keys)))))
    table_keys, table_cells = np.zeros(places, np.uint64), np.full(places, -1, np.int32)
    kernels.fill(keys, table_keys, table_cells)
    return table_keys, table_cells
