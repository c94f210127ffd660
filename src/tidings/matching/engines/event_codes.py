"""Events as numbers: the codes of their values, and the cells that the values lie in.

An index knows of each attribute the constants that filters name (`keys`, where strings or long
decimals are coded by them) and up to 4,094 edges that divide its line into cells, chosen at the
quantiles of the filters' own bounds. The cell of NULL is 0, those of values start at 1.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, call-arg"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.filter.normal.filter_table import Codes, FilterTable
from tidings.kernels.decorator import kernel
from tidings.kernels.hashing import hash_bytes, string_buffers
from tidings.kernels.simd import borrowed
from tidings.matching.batch_columns import Columns, Mask
from tidings.matching.engines.entries import NULL, Entries
from tidings.model.arrow import ArrowArray
from tidings.model.types import Path

CELL_BITS = 12  # cells are numbered below 1 << CELL_BITS: NULL's is 0, and there is one more than edges
MAX_EDGES = (1 << CELL_BITS) - 2
_PARTS = 2048  # that a line is cut into, to find edges faster


@dataclass(frozen=True, slots=True)
class Dictionary:
    """A hash table over an attribute's constants, read straight from Arrow's buffers."""

    offsets: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    table: npt.NDArray[np.int32]  # a power of two of places; the number of a key, or -1

    @property
    def bytes(self) -> int:
        return self.offsets.nbytes + self.data.nbytes + self.table.nbytes


@dataclass(frozen=True, slots=True)
class Grid:
    """The edges between the cells of a line, and how many of them lie before each of `_PARTS` equal parts of it."""

    edges: Codes
    before: npt.NDArray[np.uint16]
    start: float  # of the parts, as a value
    density: float  # parts to a unit of values
    floating: bool  # whether codes are ordinals of doubles

    @property
    def bytes(self) -> int:
        return self.edges.nbytes + self.before.nbytes

    def cells(self, codes: Codes) -> npt.NDArray[np.uint16]:
        """The cells of codes, NULL's included."""
        found = np.empty(len(codes), np.uint16)
        _cells(codes, self.edges, self.before, self.start, self.density, self.floating, found)
        return found


@dataclass(frozen=True, slots=True)
class Coder:
    """How one attribute's values become codes and cells."""

    path: Path
    grid: Grid
    dictionary: Dictionary | None  # of strings
    keys: ArrowArray | None  # of long decimals
    celled: bool = True  # whether anything asks for cells

    def codes(self, columns: Columns) -> tuple[Codes, Mask]:
        column = columns.batch.columns[self.path]
        if self.dictionary is None:
            return columns.codes(self.path, self.keys)
        offsets, data = string_buffers(column)
        found = np.empty(len(column), np.int64)
        keys = self.dictionary
        _look_up(offsets, data, columns.hashes(self.path), keys.offsets, keys.data, keys.table, found)
        return found, column.is_valid().to_numpy(zero_copy_only=False)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A batch in numbers: `codes` by event, `cells` by attribute."""

    codes: npt.NDArray[np.int64]  # events × attributes
    cells: npt.NDArray[np.uint16]  # attributes × events
    odd: npt.NDArray[np.bool_]  # events with a value whose ordinal is NULL's code: their matches are rechecked

    @property
    def count(self) -> int:
        return len(self.codes)

    def part(self, start: int, end: int) -> Encoded:
        return Encoded(self.codes[start:end], self.cells[:, start:end], self.odd[start:end])


def coders_of(table: FilterTable, entries: Entries) -> list[Coder]:
    """A coder for each attribute that the entries speak of."""
    coders = []
    for number, (path, intervals) in enumerate(table.intervals.items()):
        rows = entries.attributes == number
        bounds = np.concatenate([entries.lows[rows], entries.highs[rows]])
        keys, dictionary = intervals.keys, None
        if keys is not None and pa.types.is_binary(keys.type):
            keys, dictionary = None, _dictionary(keys)
        coders.append(Coder(path, grid_of(bounds, intervals.type.name in ("float", "double")), dictionary, keys))
    return coders


def grid_of(bounds: Codes, floating: bool) -> Grid:
    """A grid of at most MAX_EDGES of the bounds, such that about as many lie between any two."""
    ordered = np.sort(bounds)
    edges = ordered[np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)])]
    if len(edges) > MAX_EDGES:
        edges = np.unique(ordered[np.linspace(0, len(ordered) - 1, MAX_EDGES).astype(np.int64)])
    values = np.empty(len(edges))
    _values(edges, floating, values)
    values = values[np.isfinite(values)]
    start, density = 0.0, 1.0
    if len(values):  # but for some at either side, which are often the ends of the line
        aside = len(values) // 50
        start, end = float(values[aside]), float(values[-1 - aside])
        density = _PARTS / (end - start) if 0 < end - start < np.inf else 1.0
    parts = np.empty(len(edges), np.int64)
    _parts(edges, start, density, floating, parts)
    return Grid(edges, np.searchsorted(parts, np.arange(_PARTS + 1)).astype(np.uint16), start, density, floating)


class RowCells:
    """The cells that the rows of entries begin and end in."""

    def __init__(self, entries: Entries, coders: list[Coder]) -> None:
        self.first, self.last = (np.empty(len(entries.attributes), np.uint16) for _ in range(2))
        for number, coder in enumerate(coders):
            rows = np.flatnonzero(entries.attributes == number)
            self.first[rows] = coder.grid.cells(entries.lows[rows])
            self.last[rows] = coder.grid.cells(entries.highs[rows])


def encode(columns: Columns, coders: list[Coder]) -> Encoded:
    count = columns.batch.count
    codes = np.empty((count, len(coders)), np.int64)
    cells = np.empty((len(coders), count), np.uint16)
    odd = np.zeros(count, bool)
    for number, coder in enumerate(coders):
        values, valid = coder.codes(columns)
        grid = coder.grid
        _put(
            values, valid, grid.edges, grid.before, grid.start, grid.density, grid.floating, coder.celled, codes,
            cells[number], odd, number,
        )  # fmt: skip
    return Encoded(codes, cells, odd)


@kernel(inline="always")
def _value(code: Any, floating: bool) -> Any:
    """A code as a double, in the order of codes but for NaN."""
    if floating:
        return np.int64(code if code >= 0 else (code - 1) ^ 0x7FFF_FFFF_FFFF_FFFF).view(np.float64)
    return np.float64(code)


@kernel(inline="always")
def _part(code: Any, start: float, density: float, floating: bool) -> Any:
    """The part of the line that a code lies in, by rounding that keeps the order; NaN in the last."""
    place = (_value(code, floating) - start) * density
    if place < _PARTS - 1:
        return np.uint64(place) if place > 0 else np.uint64(0)
    return np.uint64(_PARTS - 1)


@kernel
def _values(codes: Any, floating: bool, values: Any) -> None:
    for i in range(len(codes)):
        values[i] = _value(codes[i], floating)


@kernel
def _parts(codes: Any, start: float, density: float, floating: bool, parts: Any) -> None:
    for i in range(len(codes)):
        parts[i] = _part(codes[i], start, density, floating)


@kernel(inline="always")
def _cell(code: Any, edges: Any, before: Any, start: float, density: float, floating: bool) -> Any:
    """1 more than how many edges are at or below the code."""
    one, part = np.uint64(1), _part(code, start, density, floating)
    low, high = np.uint64(before[part]), np.uint64(before[part + one])
    while low < high:
        middle = (low + high) >> one
        if edges[middle] <= code:
            low = middle + one
        else:
            high = middle
    return low + one


@kernel
def _cells(codes: Any, edges: Any, before: Any, start: float, density: float, floating: bool, cells: Any) -> None:
    for row in range(len(codes)):
        if codes[row] == NULL:
            cells[row] = np.uint64(0)
        else:
            cells[row] = _cell(codes[row], edges, before, start, density, floating)


@kernel
def _put(
    values: Any, valid: Any, edges: Any, before: Any, start: float, density: float, floating: bool, celled: bool,
    codes: Any, cells: Any, odd: Any, number: int,
) -> None:  # fmt: skip
    for event in range(len(values)):
        code = values[event]
        if not valid[event]:
            codes[event, number] = NULL
            cells[event] = 0
            continue
        if code == NULL:
            odd[event] = True
            code += 1
        codes[event, number] = code
        if celled:
            cells[event] = _cell(code, edges, before, start, density, floating)


def _dictionary(keys: ArrowArray) -> Dictionary:
    offsets, data = string_buffers(keys)
    places = 1 << max(3, int(np.ceil(np.log2(max(1, 2 * len(keys))))))
    table = np.full(places, -1, np.int32)
    _fill(offsets, data, table)
    return Dictionary(offsets, data, table)


@kernel
def _fill(offsets: Any, data: Any, table: Any) -> None:
    mask = np.uint64(len(table) - 1)
    for key in range(len(offsets) - 1):
        place = hash_bytes(data, offsets[key], offsets[key + 1]) & mask
        while table[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table[place] = key


@kernel
def _compare(left: Any, left_start: int, left_end: int, right: Any, right_start: int, right_end: int) -> Any:
    """As memcmp: negative, zero or positive, a prefix first."""
    shorter = min(left_end - left_start, right_end - right_start)
    for i in range(shorter):
        difference = np.int64(left[left_start + i]) - np.int64(right[right_start + i])
        if difference != 0:
            return difference
    return (left_end - left_start) - (right_end - right_start)


@kernel
def _look_up(offsets: Any, data: Any, hashes: Any, key_offsets: Any, key_data: Any, table: Any, codes: Any) -> None:
    data, key_offsets, key_data, table = borrowed(data), borrowed(key_offsets), borrowed(key_data), borrowed(table)
    for row in range(len(codes)):
        codes[row] = _text_code(data, offsets[row], offsets[row + 1], hashes[row], key_offsets, key_data, table)


@kernel
def _text_code(data: Any, start: Any, end: Any, hashed: Any, key_offsets: Any, key_data: Any, table: Any) -> Any:
    """2i for key i; for other strings the odd number between the keys around it."""
    mask = np.uint64(len(table) - 1)
    place = hashed & mask
    while table[place] >= 0:
        key = table[place]
        if _compare(data, start, end, key_data, key_offsets[key], key_offsets[key + 1]) == 0:
            return np.int64(2 * key)
        place = (place + np.uint64(1)) & mask
    low, high = 0, len(key_offsets) - 1
    while low < high:
        middle = (low + high) >> 1
        if _compare(key_data, key_offsets[middle], key_offsets[middle + 1], data, start, end) < 0:
            low = middle + 1
        else:
            high = middle
    return np.int64(2 * low - 1)


@kernel
def text_code(data: Any, start: Any, end: Any, key_offsets: Any, key_data: Any, table: Any) -> Any:
    """The code of one string, by the constants that an attribute's dictionary has."""
    return _text_code(data, start, end, hash_bytes(data, start, end), key_offsets, key_data, table)
