"""The engine for selective subscriptions: each entry lies in one cell, and is tried by the events that look there.

An entry is filed under the constraint that the fewest events satisfy: an equality by its code, a
range by a cell of a grid so coarse that the range touches two cells at most, the one it begins in
and the next. Within a cell, entries are grouped by the attribute of their next most selective
constraint, which is tried first, as bytes, 32 entries at a time. What passes is verified in codes.
Entries that ask for nothing but the equality they are filed under are sure: they are copied out.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, call-arg"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from tidings.matching.engines.encode import CELL_BITS, Encoded, RowCells
from tidings.matching.engines.entries import Entries
from tidings.matching.engines.pairs import Pairs, Runs
from tidings.matching.engines.simd import LANES, lowest_bit, prefetch, ranges_holding

EXACT = 15  # the grid of equalities: a key is a code
# The other grids: a key is a cell's number shifted right by 0, 3, 6, 9 or 12 bits. More grids would have fewer
# ranges in a cell, and cost every event more cells to look in.
LEVEL_STEP, MAX_LEVEL = 3, 12
MIN_GROUP = 3  # entries: fewer are verified without a look at their bytes
_SHIFT = CELL_BITS - 8
_STEP = 4  # of bytes: large groups know where the ranges begin that begin at every fourth
_STEPS = 256 // _STEP + 1
_LARGE = 128  # entries
_ANY = -1  # the attribute of a group whose entries are not compared as bytes
_SURE = -2  # and of one whose entries match whoever looks there: the first of its cell
_CANDIDATES = 1 << 13  # gathered before they are verified together
_LOOKED = 64  # events that look for their cells together
_PRIME = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Cells:
    """Entries in the order of cells and groups, and a hash table of the cells."""

    kinds: npt.NDArray[np.int64]  # of keys: attribute × 16 + grid
    table_keys: npt.NDArray[np.uint64]
    table_cells: npt.NDArray[np.int32]  # -1: empty
    cell_kinds: npt.NDArray[np.int32]  # by number among the kinds
    cell_groups: npt.NDArray[np.int32]  # where each cell's groups begin
    group_attributes: npt.NDArray[
        np.int16
    ]  # twice the attribute, and 1 more where codes are hashed to bytes; or as above
    group_entries: npt.NDArray[np.int32]  # where each group's entries begin: in the order of their low bytes
    group_widths: npt.NDArray[np.uint8]  # of its widest range of bytes
    group_steps: npt.NDArray[np.int32]  # where in `steps` a large group's are; -1: the group is not large
    steps: npt.NDArray[np.int32]  # the first entries whose low bytes are 0, 4, 8 … and more
    low_bytes: npt.NDArray[np.uint8]
    high_bytes: npt.NDArray[np.uint8]
    outputs: npt.NDArray[np.int32]
    # Of each entry the constraint that is checked first, as bytes: a row of `values`, the low and the high byte in one
    # number, so that the entries of a cell lie near to each other.
    checks: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.int32]  # and where its constraints are, in codes
    attributes: npt.NDArray[np.int16]
    bounds: npt.NDArray[np.int64]
    longest: int  # cell

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for name in self.__slots__ if isinstance(array := getattr(self, name), np.ndarray))

    def match(self, events: Encoded, pairs: Pairs, runs: Runs) -> int:
        """Add the pairs and the runs that match; answers how many candidates were verified."""
        attributes = events.cells.shape[0]
        values = np.empty((2 * attributes, events.count), np.uint8)
        _bytes(events.codes, events.cells, values)
        room = 2 * self.longest + _CANDIDATES
        candidate_events, candidate_entries = (np.empty(room, np.uint32) for _ in range(2))
        kind, event, tried = np.uint64(0), np.uint64(0), 0
        while kind < len(self.kinds):
            pairs.reserve(2 * room)
            runs.reserve(events.count, room)
            count, run, run_count, kind, event, more = _match(
                self.kinds, events.codes, events.cells, values, self.table_keys, self.table_cells, self.cell_kinds,
                self.cell_groups, self.group_attributes, self.group_entries, self.group_widths, self.group_steps,
                self.steps, self.low_bytes, self.high_bytes, self.outputs, self.checks, self.offsets,
                self.attributes, self.bounds, candidate_events, candidate_entries, np.uint64(self.longest),
                pairs.events, pairs.outputs, np.uint64(pairs.count), runs.events, runs.starts, runs.outputs,
                np.uint64(runs.runs), np.uint64(runs.count), np.uint64(kind), np.uint64(event),
            )  # fmt: skip
            pairs.count, runs.runs, runs.count = int(count), int(run), int(run_count)
            tried += int(more)
        return tried


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
    _cell_keys(kinds, kind, row_keys[filed], keys)
    exact = entries.lows[second] == entries.highs[second]
    sure = (second < 0) & (row_kinds[filed] % 16 == EXACT)
    group = np.where(second >= 0, 2 * entries.attributes[second] + exact, np.where(sure, _SURE, _ANY))
    order = np.lexsort((group, kind, keys))
    keys, group, kind, second, chosen = keys[order], group[order], kind[order], second[order], chosen[order]
    new_cell = _changes(keys) | _changes(kind)  # keys of two kinds may be the same number
    new_group = new_cell | _changes(group)
    small = np.diff(np.r_[np.flatnonzero(new_group), len(keys)])[np.cumsum(new_group) - 1] < MIN_GROUP
    group[small & (group >= 0)] = _ANY  # a group is worth its visit only where it has some entries
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
    asked[filed[row_kinds[filed] % 16 == EXACT]] = False
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
    low_bytes, high_bytes = ((ends[second] >> _SHIFT).astype(np.uint8) for ends in (cells.first, cells.last))
    exact = (group >= 0) & (group % 2 == 1)
    hashed = np.empty(int(exact.sum()), np.uint8)
    _hash_bytes(entries.lows[second[exact]], hashed)
    low_bytes[exact] = high_bytes[exact] = hashed
    low_bytes[group < 0] = high_bytes[group < 0] = 0
    return low_bytes, high_bytes


def _steps(
    groups: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], low_bytes: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Where in each large group, ordered by low bytes, those begin that are at least 0, 4, 8 …"""
    ends = np.r_[starts[1:], len(low_bytes)]
    large = np.flatnonzero((ends - starts > _LARGE) & (groups >= 0))
    group_steps = np.full(len(starts), -1, np.int32)
    group_steps[large] = np.arange(len(large)) * _STEPS
    steps = np.empty((len(large), _STEPS), np.int32)
    for i, group in enumerate(large):
        inside = low_bytes[starts[group] : ends[group]]
        steps[i] = starts[group] + np.searchsorted(inside, np.arange(_STEPS) * _STEP)
    return group_steps, steps.ravel()


def _table(keys: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    places = 1 << int(np.ceil(np.log2(max(8, 2 * len(keys)))))
    table_keys, table_cells = np.zeros(places, np.uint64), np.full(places, -1, np.int32)
    _fill(keys, table_keys, table_cells)
    return table_keys, table_cells


@numba.njit(cache=True, nogil=True, inline="always")
def _mix(value: Any) -> Any:
    """A permutation of the 64-bit numbers that leaves no pattern."""
    value = (value ^ (value >> np.uint64(32))) * _PRIME
    return value ^ (value >> np.uint64(29))


@numba.njit(cache=True, nogil=True, inline="always")
def _cell_key(number: Any, level: Any, key: Any) -> Any:
    """A cell's key: of grids no two alike, so that an event that looks in two cells finds no entry twice."""
    if level == EXACT:
        return _mix(np.uint64(key) ^ ((np.uint64(number) + np.uint64(1)) * _PRIME))
    return _mix((np.uint64(number) << np.uint64(32)) | np.uint64(key))


@numba.njit(cache=True, nogil=True)
def _cell_keys(kinds: Any, kind: Any, keys: Any, out: Any) -> None:
    for i in range(len(out)):
        out[i] = _cell_key(kind[i], kinds[kind[i]] & 15, keys[i])


@numba.njit(cache=True, nogil=True, inline="always")
def _hash_byte(code: Any) -> Any:
    return np.uint8(_mix(np.uint64(code)) >> np.uint64(56))


@numba.njit(cache=True, nogil=True)
def _hash_bytes(codes: Any, out: Any) -> None:
    for i in range(len(out)):
        out[i] = _hash_byte(codes[i])


@numba.njit(cache=True, nogil=True)
def _fill(keys: Any, table_keys: Any, table_cells: Any) -> None:
    mask = np.uint64(len(table_keys) - 1)
    for cell in range(len(keys)):
        place = keys[cell] & mask
        while table_cells[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table_keys[place] = keys[cell]
        table_cells[place] = cell


@numba.njit(cache=True, nogil=True)
def _bytes(codes: Any, cells: Any, values: Any) -> None:
    """Of each attribute the high bits of its cells, and its codes hashed."""
    for attribute in range(cells.shape[0]):
        for event in range(cells.shape[1]):
            values[2 * attribute, event] = np.uint8(cells[attribute, event] >> _SHIFT)
            values[2 * attribute + 1, event] = _hash_byte(codes[event, attribute])


@numba.njit(cache=True, nogil=True)
def _verify(
    candidates: Any, candidate_events: Any, candidate_entries: Any, codes: Any, values: Any, checks: Any,
    offsets: Any, attributes: Any, bounds: Any, outputs: Any, out_events: Any, out_outputs: Any, count: Any,
) -> Any:  # fmt: skip
    """Write the candidates that hold: first one check of each, without a branch to mispredict, then all in codes."""
    one_more = np.uint64(1)
    left = np.uint64(0)
    for i in range(candidates):
        event, entry = np.uint64(candidate_events[i]), np.uint64(candidate_entries[i])
        check = checks[entry]
        value = values[np.uint64(check >> np.uint32(16)), event]
        candidate_events[left] = np.uint32(event)
        candidate_entries[left] = np.uint32(entry)
        left += np.uint64((value >= np.uint8(check)) & (value <= np.uint8(check >> np.uint32(8))))
    for i in range(left):
        event, entry = np.uint64(candidate_events[i]), np.uint64(candidate_entries[i])
        inside = True
        for row in range(np.uint64(offsets[entry]), np.uint64(offsets[entry + one_more])):
            code = codes[event, np.uint64(attributes[row])]
            if code < bounds[row, 0] or code > bounds[row, 1]:
                inside = False
                break
        out_events[count] = event
        out_outputs[count] = outputs[entry]
        count += np.uint64(inside)
    return count


@numba.njit(cache=True, nogil=True)
def _gather(
    first: Any, last: Any, event: Any, values: Any, group_attributes: Any, group_entries: Any,
    group_widths: Any, group_steps: Any, steps: Any, low_bytes: Any, high_bytes: Any, checks: Any,
    candidate_events: Any, candidate_entries: Any, candidates: Any,
) -> Any:  # fmt: skip
    """The entries of some groups that an event may satisfy, as far as bytes tell."""
    one, one_more, lanes = np.uint32(1), np.uint64(1), np.uint64(LANES)
    low_base, high_base = np.uint64(low_bytes.ctypes.data), np.uint64(high_bytes.ctypes.data)
    checks_base = np.uint64(checks.ctypes.data)
    for group in range(first, last):
        entry, end = np.uint64(group_entries[group]), np.uint64(group_entries[group + one_more])
        attribute = group_attributes[group]
        if attribute == _ANY:
            while entry < end:
                candidate_events[candidates] = np.uint32(event)
                candidate_entries[candidates] = np.uint32(entry)
                candidates += one_more
                entry += one_more
            continue
        value = values[np.uint64(attribute), event]
        if group_steps[group] >= 0:  # only ranges that begin at the value, or less than the widest before it
            least = np.uint64(value - min(value, group_widths[group]))
            first_step = np.uint64(group_steps[group])
            entry = np.uint64(steps[first_step + least // np.uint64(_STEP)])
            end = np.uint64(steps[first_step + np.uint64(value) // np.uint64(_STEP) + one_more])
        while entry < end:
            matched: Any = ranges_holding(low_base + entry, high_base + entry, value)
            if end - entry < lanes:
                matched = np.uint32(matched & ((one << np.uint32(end - entry)) - one))
            while matched != 0:
                candidate_events[candidates] = np.uint32(event)
                candidate = entry + np.uint64(lowest_bit(matched))
                candidate_entries[candidates] = np.uint32(candidate)
                prefetch(checks_base + candidate * np.uint64(4))
                candidates += one_more
                matched = np.uint32(matched & (matched - one))
            entry += lanes
    return candidates


@numba.njit(cache=True, nogil=True)
def _find(
    kind: Any, attribute: Any, level: Any, probes: Any, event: Any, last: Any, codes: Any, cells: Any,
    table_keys: Any, table_cells: Any, cell_kinds: Any, cell_groups: Any, group_entries: Any, low_bytes: Any,
    high_bytes: Any, keys: Any, found: Any,
) -> None:  # fmt: skip
    """The cells in which some events look, -1 for none: step by step for all, so that they wait for memory together."""
    one_more, mask = np.uint64(1), np.uint64(len(table_keys) - 1)
    keys_base, cells_base = np.uint64(table_keys.ctypes.data), np.uint64(table_cells.ctypes.data)
    kinds_base, groups_base = np.uint64(cell_kinds.ctypes.data), np.uint64(cell_groups.ctypes.data)
    entries_base = np.uint64(group_entries.ctypes.data)
    low_base, high_base = np.uint64(low_bytes.ctypes.data), np.uint64(high_bytes.ctypes.data)
    looked = np.uint64(0)
    while event < last:
        for probe in range(probes):
            key = codes[event, attribute]
            if level != EXACT:
                key = (np.int64(cells[attribute, event]) >> level) - probe
            found[looked] = 0 if key >= 0 or level == EXACT else -1
            keys[looked] = _cell_key(kind, level, key)
            place = keys[looked] & mask
            prefetch(keys_base + place * np.uint64(8))
            prefetch(cells_base + place * np.uint64(4))
            looked += one_more
        event += one_more
    for i in range(looked):
        if found[i] < 0:
            continue
        place = keys[i] & mask
        while table_cells[place] >= 0 and table_keys[place] != keys[i]:
            place = (place + one_more) & mask
        found[i] = table_cells[place]
        if found[i] >= 0:
            prefetch(kinds_base + np.uint64(found[i]) * np.uint64(4))
            prefetch(groups_base + np.uint64(found[i]) * np.uint64(4))
    for i in range(looked):
        if found[i] < 0:
            continue
        if np.uint64(cell_kinds[np.uint64(found[i])]) != kind:  # another kind's cell has the same key
            found[i] = _next_of_kind(kind, keys[i], table_keys, table_cells, cell_kinds)
            if found[i] < 0:
                continue
        prefetch(entries_base + np.uint64(cell_groups[np.uint64(found[i])]) * np.uint64(4))
    for i in range(looked):
        if found[i] >= 0:
            entry = np.uint64(group_entries[np.uint64(cell_groups[np.uint64(found[i])])])
            prefetch(low_base + entry)
            prefetch(high_base + entry)


@numba.njit(cache=True, nogil=True)
def _next_of_kind(kind: Any, key: Any, table_keys: Any, table_cells: Any, cell_kinds: Any) -> Any:
    mask = np.uint64(len(table_keys) - 1)
    place = key & mask
    while table_cells[place] >= 0:
        if table_keys[place] == key and np.uint64(cell_kinds[np.uint64(table_cells[place])]) == kind:
            break
        place = (place + np.uint64(1)) & mask
    return table_cells[place]


@numba.njit(cache=True, nogil=True)
def _match(
    kinds: Any, codes: Any, cells: Any, values: Any, table_keys: Any, table_cells: Any, cell_kinds: Any,
    cell_groups: Any, group_attributes: Any, group_entries: Any, group_widths: Any, group_steps: Any, steps: Any,
    low_bytes: Any, high_bytes: Any, outputs: Any, checks: Any, offsets: Any, attributes: Any, bounds: Any,
    candidate_events: Any, candidate_entries: Any, longest: Any,
    out_events: Any, out_outputs: Any, count: Any, run_events: Any, run_starts: Any, run_outputs: Any, run: Any,
    run_count: Any, kind: Any, event: Any,
) -> Any:  # fmt: skip
    """Fills the output from (kind, event) on; stops where it might not hold the candidates that come next."""
    one_more = np.uint64(1)
    capacity, room = np.uint64(len(candidate_events)), np.uint64(len(out_events))
    most_runs, run_room = np.uint64(len(run_events)), np.uint64(len(run_outputs))
    events = np.uint64(codes.shape[0])
    candidates = tried = np.uint64(0)
    keys, found = np.empty(2 * _LOOKED, np.uint64), np.empty(2 * _LOOKED, np.int64)
    while kind < np.uint64(len(kinds)):
        attribute, level = np.uint64(kinds[kind] >> 4), kinds[kind] & 15
        # A range is filed under the cell it begins in: an event looks in its own cell, and in the one before.
        probes = np.uint64(1 if level == EXACT else 2)
        first_event = last_event = event
        while event < events:
            if event == last_event:
                first_event, last_event = event, min(events, event + np.uint64(_LOOKED))
                _find(
                    kind, attribute, level, probes, event, last_event, codes, cells, table_keys, table_cells,
                    cell_kinds, cell_groups, group_entries, low_bytes, high_bytes, keys, found,
                )  # fmt: skip
            full = run == most_runs or run_room - run_count < longest
            if full or candidates + probes * longest > capacity:
                tried += candidates
                count = _verify(
                    candidates, candidate_events, candidate_entries, codes, values, checks, offsets, attributes,
                    bounds, outputs, out_events, out_outputs, count,
                )  # fmt: skip
                candidates = np.uint64(0)
                if full or room - count < capacity:
                    return count, run, run_count, kind, event, tried
            looked = (event - first_event) * probes
            for i in range(looked, looked + probes):
                if found[i] < 0:
                    continue
                cell = np.uint64(found[i])
                first, last = np.uint64(cell_groups[cell]), np.uint64(cell_groups[cell + one_more])
                if group_attributes[first] == _SURE:
                    run_events[run], run_starts[run] = event, run_count
                    run += one_more
                    for entry in range(np.uint64(group_entries[first]), np.uint64(group_entries[first + one_more])):
                        run_outputs[run_count] = outputs[entry]
                        run_count += one_more
                    first += one_more
                candidates = _gather(
                    first, last, event, values, group_attributes, group_entries, group_widths, group_steps,
                    steps, low_bytes, high_bytes, checks, candidate_events, candidate_entries, candidates,
                )  # fmt: skip
            event += one_more
        event = np.uint64(0)
        kind += one_more
    tried += candidates
    count = _verify(
        candidates, candidate_events, candidate_entries, codes, values, checks, offsets,
        attributes, bounds, outputs, out_events, out_outputs, count,
    )  # fmt: skip
    return count, run, run_count, kind, event, tried
