"""Entries that are added to the cells of an index when it is built already: its *guests*.

Events find guests where they look anyway, which costs them far less than to look in a second index. For guests
the index is copied once, with some empty places in each group of entries. A guest takes one as an entry of the
index would have it, in the cell and the group that together cost events least of those that have a place left;
an entry that finds none is not taken in.

Only the newest of the `Guests` that share their arrays may be added to. The others see a place that is taken
since, and pass it over by the guest's number.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, call-arg"

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidings.kernels.decorator import kernel
from tidings.kernels.simd import borrowed
from tidings.matching.batch_columns import Columns
from tidings.matching.engines.cell_kernels import (
    BYTE_SHIFT,
    EXACT,
    LEVEL_STEP,
    MAX_LEVEL,
    STEP,
    SURE,
    CellArrays,
    GuestTable,
    cell_of,
    hash_byte,
    name_cell,
)
from tidings.matching.engines.cells import NOBODY, Cells, Roomy
from tidings.matching.engines.engine_choice import BYTE_NS, CANDIDATE_NS, GRID_FACTOR, SampledEvents
from tidings.matching.engines.entries import NULL
from tidings.matching.engines.event_codes import Coder, encode, text_code
from tidings.model.types import Path

_FIRST_ROOM = 1024


@dataclass(frozen=True, eq=False)
class Host:
    """An index' cells with room for guests, and all that files them there, in arrays that one kernel reads."""

    given: Cells
    roomy: Roomy  # the same, with room
    attributes: dict[Path, int]  # that the index has codes for
    sampled: SampledEvents
    celled: npt.NDArray[np.bool_]  # attributes of which events have cells
    edges: npt.NDArray[np.int64]  # between those, attribute after attribute
    edge_ends: npt.NDArray[np.int64]
    # The constants of strings, attribute after attribute: a table of each, its keys' places, and their bytes.
    tables: npt.NDArray[np.int32]
    table_ends: npt.NDArray[np.int64]
    key_places: npt.NDArray[np.int64]
    key_ends: npt.NDArray[np.int64]
    key_data: npt.NDArray[np.uint8]

    @property
    def cells(self) -> Cells:
        """Where guests are found."""
        return self.roomy.cells


def host_of(cells: Cells, coders: list[Coder], sample: Columns | None) -> Host:
    """What it takes to add to these cells."""
    tables, places, data = [np.empty(0, np.int32)], [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
    table_ends, key_ends, base = [], [], 0
    for coder in coders:
        if coder.dictionary is not None:
            known = coder.dictionary
            tables.append(known.table)
            places.append(known.offsets.astype(np.int64) + base)
            data.append(known.data)
            base += len(known.data)
        table_ends.append(sum(map(len, tables)))
        key_ends.append(sum(map(len, places)))
    codes = np.empty((0, len(coders)), np.int64) if sample is None else encode(sample, coders).codes
    return Host(
        given=cells,
        roomy=cells.with_room(),
        attributes={coder.path: number for number, coder in enumerate(coders) if coder.keys is None},
        sampled=SampledEvents(coders, codes),
        celled=np.array([coder.celled for coder in coders], bool),
        edges=np.concatenate([coder.grid.edges for coder in coders]),
        edge_ends=np.cumsum([len(coder.grid.edges) for coder in coders]),
        tables=np.concatenate(tables),
        table_ends=np.array(table_ends, np.int64),
        key_places=np.concatenate(places),
        key_ends=np.array(key_ends, np.int64),
        key_data=np.concatenate(data),
    )


class Newcomers(NamedTuple):
    """Entries as rows of constraints, which the entries' `ends` divide; a row asks for codes, or for a text."""

    ends: npt.NDArray[np.int64]
    attributes: npt.NDArray[np.int64]  # by the host's number, -1: it has none
    lows: npt.NDArray[np.int64]
    highs: npt.NDArray[np.int64]
    texts: npt.NDArray[np.int32]  # -1: none
    text_ends: npt.NDArray[np.int32]
    text_data: npt.NDArray[np.uint8]
    outputs: npt.NDArray[np.int32]  # what is found when an entry is


@dataclass(frozen=True, eq=False)
class Guests:
    """Those of one host."""

    host: Host
    table: GuestTable
    step_ends: npt.NDArray[np.int32]  # of large groups, where the places end that are taken in each step
    named: int  # cells, of those that had no keys too
    rows: int = 0

    @property
    def bytes(self) -> int:
        own = sum(array.nbytes for array in self.table if isinstance(array, np.ndarray))
        return own + self.host.cells.bytes

    def with_added(self, new: Newcomers) -> tuple[Guests, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """With those that a cell is found for; which they are, and which of them a match has to be rechecked of.

        A text that the host does not know has no code of its own: events with any text between the same two that it
        knows have the same.
        """
        host, cells = self.host, self.host.cells
        entries, rows = len(new.ends), len(new.lows)
        lows, highs, first_cells, last_cells = (np.empty(rows, np.int64) for _ in range(4))
        unclear = np.zeros(entries, bool)
        constants = (host.tables, host.table_ends, host.key_places, host.key_ends, host.key_data)
        coded = (lows, highs, first_cells, last_cells)
        _code(tuple(new[:7]), constants, host.edges, host.edge_ends, coded, unclear)
        placed = np.zeros(entries, bool)
        named = _place(
            new.ends, (new.attributes, *coded), (host.celled, host.sampled.ordered, host.sampled.below), tuple(cells),
            self.table.ends, self.step_ends, self.table.size, self.named, placed,
        )  # fmt: skip
        known = replace(self._with_rows(new, placed, lows, highs), named=int(named))
        return known, placed, unclear & placed

    def _with_rows(self, new: Newcomers, placed: npt.NDArray[np.bool_], lows: Any, highs: Any) -> Guests:
        lengths = np.diff(new.ends, prepend=0)
        kept = np.repeat(placed, lengths)
        first, start = self.table.size, self.rows
        last, end = first + int(placed.sum()), start + int(kept.sum())
        table = GuestTable(
            last,
            self.table.ends,
            with_room(self.table.offsets, last + 1),
            with_room(self.table.attributes, end),
            with_room(self.table.bounds, end),
            with_room(self.table.outputs, last),
        )
        table.offsets[first + 1 : last + 1] = start + np.cumsum(lengths[placed])
        table.attributes[start:end] = new.attributes[kept]
        table.bounds[start:end, 0] = lows[kept]
        table.bounds[start:end, 1] = highs[kept]
        table.outputs[first:last] = new.outputs[placed]
        return replace(self, table=table, rows=end)


def guests_of(host: Host) -> Guests:
    """Nobody yet; the host may have no other guests."""
    roomy = host.roomy
    nobody = NOBODY._replace(ends=roomy.ends.copy())
    return Guests(host, nobody, roomy.step_ends.copy(), int((roomy.cells.cell_kinds >= 0).sum()))


def with_room(array: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    """The array, or a longer copy of one that is too short."""
    if len(array) >= room:
        return array
    result = np.zeros((max(_FIRST_ROOM, 2 * len(array), room), *array.shape[1:]), array.dtype)
    result[: len(array)] = array
    return result


@kernel
def _code(new: Any, constants: Any, edges: Any, edge_ends: Any, coded: Any, unclear: Any) -> None:
    """Write rows in the host's codes and cells. Records come as plain tuples: see `cell_kernels.match`."""
    ends, attributes, lows, highs, texts, text_ends, text_data = new
    tables, table_ends, key_places, key_ends, key_data = constants
    low_codes, high_codes, first_cells, last_cells = coded
    text_data, tables, key_places = borrowed(text_data), borrowed(tables), borrowed(key_places)
    key_data, edges = borrowed(key_data), borrowed(edges)
    row = 0
    for entry in range(len(ends)):
        while row < ends[entry]:
            attribute, text = attributes[row], texts[row]
            low_codes[row], high_codes[row] = lows[row], highs[row]
            if attribute >= 0:
                if text >= 0:
                    table = tables[table_ends[attribute - 1] if attribute > 0 else 0 : table_ends[attribute]]
                    places = key_places[key_ends[attribute - 1] if attribute > 0 else 0 : key_ends[attribute]]
                    start = text_ends[text - 1] if text > 0 else 0
                    code = text_code(text_data, start, text_ends[text], places, key_data, table)
                    low_codes[row] = high_codes[row] = code
                    unclear[entry] |= code & 1 != 0
                own_edges = edges[edge_ends[attribute - 1] if attribute > 0 else 0 : edge_ends[attribute]]
                first_cells[row] = _cell(low_codes[row], own_edges)
                last_cells[row] = _cell(high_codes[row], own_edges)
            row += 1


@kernel(inline="always")
def _cell(code: Any, edges: Any) -> Any:
    return 0 if code == NULL else 1 + np.searchsorted(edges, code, side="right")


@kernel
def _place(
    ends: Any, rows: Any, sampled: Any, cells: Any, group_ends: Any, step_ends: Any, guest: Any, named: Any, placed: Any
) -> Any:
    """Put entries into the groups that cost events least of those that have a place; guests are numbered on.

    Records come as plain tuples. Returns how many cells have keys then.
    """
    attributes, lows, highs, first_cells, last_cells = rows
    celled, ordered, below = sampled
    host = CellArrays(*cells)
    group_attributes, group_entries, group_widths = host.group_attributes, host.group_entries, host.group_widths
    group_steps, steps, cell_groups = host.group_steps, host.steps, host.cell_groups
    low_bytes, high_bytes, checks, outputs = host.low_bytes, host.high_bytes, host.checks, host.outputs
    attributes, lows, highs = borrowed(attributes), borrowed(lows), borrowed(highs)
    first_cells, last_cells, ordered, below = (
        borrowed(first_cells),
        borrowed(last_cells),
        borrowed(ordered),
        borrowed(below),
    )
    kinds, table_keys, table_cells, cell_kinds = (
        borrowed(host.kinds),
        borrowed(host.table_keys),
        borrowed(host.table_cells),
        borrowed(host.cell_kinds),
    )
    shares = np.empty(len(attributes))
    begin = 0
    for entry in range(len(ends)):
        end, known, least = ends[entry], True, np.inf
        chosen, filed, tried, step = -1, -1, -1, -1
        for row in range(begin, end):
            known &= attributes[row] >= 0
        for row in range(begin, end if known else begin):
            shares[row] = _share(row, attributes, lows, highs, first_cells, last_cells, ordered, below)
        for row in range(begin, end if known else begin):
            attribute, cell, share, factor = attributes[row], np.int32(-1), 0.0, 1.0
            if lows[row] == highs[row]:
                cell = cell_of(attribute, EXACT, lows[row], kinds, table_keys, table_cells, cell_kinds)
                share = shares[row]
            elif celled[attribute]:
                level, factor = 0, GRID_FACTOR
                while level <= MAX_LEVEL and cell < 0:
                    key = first_cells[row] >> level
                    if (last_cells[row] >> level) - key <= 1:
                        cell = cell_of(attribute, level, key, kinds, table_keys, table_cells, cell_kinds)
                        last = min((key + 2) << level, below.shape[1] - 1)
                        looking = below[attribute, last] - below[attribute, min(key << level, last)]
                        share = (looking + 0.5) / (ordered.shape[1] + 1)
                    level += LEVEL_STEP
            if cell < 0:
                continue
            for group in range(cell_groups[cell], cell_groups[cell + 1]):
                full = group_ends[group] == group_entries[group + 1]
                if group_attributes[group] == SURE or (full and group_steps[group] < 0):
                    continue
                second, passing = -1, 1.0
                for other in range(begin, end):
                    exact = lows[other] == highs[other]
                    if other != row and group_attributes[group] == 2 * attributes[other] + exact:
                        second, passing = other, shares[other]
                cost = share * (BYTE_NS + min(1.0, passing + 2 / 256) * CANDIDATE_NS) * factor
                if cost < least:
                    free = -1
                    if group_steps[group] >= 0:
                        bytes_ = _check(second, attributes, lows, highs, first_cells, last_cells)
                        free = _free_step(bytes_, group_widths[group], group_steps[group], steps, step_ends)
                    if free >= 0 or not full:
                        chosen, least, filed, tried, step = group, cost, row, second, free
        # For an equality that no cell is there for, one can be had; more than half of the table stays empty.
        for row in range(begin, end if known else begin):
            least_free = chosen < 0 and named < len(cell_kinds) and 2 * named < len(table_cells)
            if least_free and lows[row] == highs[row]:
                cell = cell_of(attributes[row], EXACT, lows[row], kinds, table_keys, table_cells, cell_kinds)
                if cell < 0 and name_cell(
                    named, attributes[row], EXACT, lows[row], kinds, table_keys, table_cells, cell_kinds
                ):
                    chosen, filed = cell_groups[named], row
                    named += 1
        if chosen >= 0:
            third, fewest = -1, np.inf
            for row in range(begin, end):
                told = celled[attributes[row]] or lows[row] == highs[row]
                if row != filed and row != tried and told and shares[row] < fewest:
                    third, fewest = row, shares[row]
            place = group_ends[chosen] if step < 0 else step_ends[step]
            # Who sees some of this and not the rest finds no guest here, or one that is not its own yet.
            outputs[place] = guest
            checks[place] = _check(third, attributes, lows, highs, first_cells, last_cells)
            bytes_ = _check(tried, attributes, lows, highs, first_cells, last_cells)
            high_bytes[place] = bytes_ >> np.uint32(8)
            low_bytes[place] = bytes_
            if step < 0:
                group_ends[chosen] = place + 1
            else:
                step_ends[step] = place + 1
            placed[entry] = True
            guest += 1
        begin = end
    return named


@kernel
def _free_step(bytes_: Any, width: Any, first: Any, steps: Any, step_ends: Any) -> Any:
    """A step of a large group that has a place left and that every event passes which the range of bytes holds.

    Events look from the step of their value, less the widest range, to the step of their value; -1: there is none.
    """
    low, high = np.int64(bytes_ & np.uint32(255)), np.int64(bytes_ >> np.uint32(8) & np.uint32(255))
    least = np.maximum(high - np.int64(width), 0) // STEP
    step = low // STEP if high - low <= width else -1
    while step >= least:
        if step_ends[first + step] < steps[first + step + 1]:
            return first + step
        step -= 1
    return -1


@kernel
def _share(
    row: Any, attributes: Any, lows: Any, highs: Any, first_cells: Any, last_cells: Any, ordered: Any, below: Any
) -> Any:
    """Of sampled events, those that satisfy a constraint."""
    attribute = attributes[row]
    if lows[row] == highs[row]:
        inside = np.searchsorted(ordered[attribute], lows[row], side="right") - np.searchsorted(
            ordered[attribute], lows[row]
        )
    else:
        inside = below[attribute, last_cells[row] + 1] - below[attribute, first_cells[row]]
    return (inside + 0.5) / (ordered.shape[1] + 1)


@kernel
def _check(row: Any, attributes: Any, lows: Any, highs: Any, first_cells: Any, last_cells: Any) -> Any:
    """A constraint in bytes: which row of values, the high and the low byte; without one, a range that all pass."""
    if row < 0:
        return np.uint32(0xFF00)
    values = 2 * attributes[row]
    if lows[row] == highs[row]:
        hashed = np.int64(hash_byte(lows[row]))
        return np.uint32((values + 1) << 16 | hashed << 8 | hashed)
    return np.uint32(values << 16 | (last_cells[row] >> BYTE_SHIFT) << 8 | first_cells[row] >> BYTE_SHIFT)
