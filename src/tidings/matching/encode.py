"""Events as numbers: the codes of their values, and the cells that the values lie in.

An index knows of each attribute the constants that filters name (`keys`, where strings or long
decimals are coded by them) and up to 4,095 edges that divide its line into cells, chosen at the
quantiles of the filters' own bounds. The cell of NULL is 0, those of values start at 1.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.matching.columns import Columns, Mask
from tidings.matching.entries import NULL, Entries
from tidings.model.filter.columnar import ArrowArray, Codes, FilterTable
from tidings.model.filter.tree import Path

MAX_EDGES = 4095
CELL_BITS = 12  # cells are numbered below 1 << CELL_BITS
_HASH_SEED = np.uint64(0xCBF29CE484222325)
_HASH_PRIME = np.uint64(0x100000001B3)


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
class Coder:
    """How one attribute's values become codes and cells."""

    path: Path
    edges: Codes
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
        _look_up(offsets, data, keys.offsets, keys.data, keys.table, found)
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
        coders.append(Coder(path, edges_of(bounds), dictionary, keys))
    return coders


def edges_of(bounds: Codes) -> Codes:
    """At most MAX_EDGES of the bounds, such that about as many lie between any two."""
    distinct = np.unique(bounds)
    if len(distinct) <= MAX_EDGES:
        return distinct
    return np.unique(np.sort(bounds)[np.linspace(0, len(bounds) - 1, MAX_EDGES).astype(np.int64)])


def encode(columns: Columns, coders: list[Coder]) -> Encoded:
    count = columns.batch.count
    codes = np.empty((count, len(coders)), np.int64)
    cells = np.empty((len(coders), count), np.uint16)
    odd = np.zeros(count, bool)
    for number, coder in enumerate(coders):
        values, valid = coder.codes(columns)
        _put(values, valid, coder.edges, coder.celled, codes, cells[number], odd, number)
    return Encoded(codes, cells, odd)


@numba.njit(cache=True, nogil=True)
def _put(
    values: Any, valid: Any, edges: Any, celled: bool, codes: Any, cells: Any, odd: Any, number: int
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
        if not celled:
            continue
        low, size = 0, len(edges)
        while size > 0:  # how many edges are at or below the code
            half = size >> 1
            if edges[low + half] <= code:
                low += half + 1
                size -= half + 1
            else:
                size = half
        cells[event] = low + 1


def cells_of(codes: Codes, edges: Codes) -> npt.NDArray[np.int64]:
    """The cells of codes, NULL's included."""
    return np.where(codes == NULL, 0, np.searchsorted(edges, codes, side="right") + 1)


def string_buffers(column: ArrowArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """The offsets and bytes of a string column, without a copy."""
    _, offsets, data = column.buffers()
    starts = (
        np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
        if offsets
        else np.zeros(1, np.int32)
    )
    return starts, np.frombuffer(data, np.uint8) if data is not None and len(data) else np.empty(0, np.uint8)


def _dictionary(keys: ArrowArray) -> Dictionary:
    offsets, data = string_buffers(keys)
    places = 1 << max(3, int(np.ceil(np.log2(max(1, 2 * len(keys))))))
    table = np.full(places, -1, np.int32)
    _fill(offsets, data, table)
    return Dictionary(offsets, data, table)


@numba.njit(cache=True, nogil=True)
def _hash(data: Any, start: int, end: int) -> Any:
    value = _HASH_SEED
    for i in range(start, end):
        value = (value ^ np.uint64(data[i])) * _HASH_PRIME
    return value ^ (value >> np.uint64(29))


@numba.njit(cache=True, nogil=True)
def _fill(offsets: Any, data: Any, table: Any) -> None:
    mask = np.uint64(len(table) - 1)
    for key in range(len(offsets) - 1):
        place = _hash(data, offsets[key], offsets[key + 1]) & mask
        while table[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table[place] = key


@numba.njit(cache=True, nogil=True)
def _compare(left: Any, left_start: int, left_end: int, right: Any, right_start: int, right_end: int) -> Any:
    """As memcmp: negative, zero or positive, a prefix first."""
    shorter = min(left_end - left_start, right_end - right_start)
    for i in range(shorter):
        difference = np.int64(left[left_start + i]) - np.int64(right[right_start + i])
        if difference != 0:
            return difference
    return (left_end - left_start) - (right_end - right_start)


@numba.njit(cache=True, nogil=True)
def _look_up(offsets: Any, data: Any, key_offsets: Any, key_data: Any, table: Any, codes: Any) -> None:
    """2i for key i; for other strings the odd number between the keys around it."""
    mask = np.uint64(len(table) - 1)
    for row in range(len(codes)):
        start, end = offsets[row], offsets[row + 1]
        place = _hash(data, start, end) & mask
        code = np.int64(-2)
        while table[place] >= 0:
            key = table[place]
            if _compare(data, start, end, key_data, key_offsets[key], key_offsets[key + 1]) == 0:
                code = np.int64(2 * key)
                break
            place = (place + np.uint64(1)) & mask
        if code == -2:
            low, high = 0, len(key_offsets) - 1
            while low < high:
                middle = (low + high) >> 1
                if _compare(key_data, key_offsets[middle], key_offsets[middle + 1], data, start, end) < 0:
                    low = middle + 1
                else:
                    high = middle
            code = np.int64(2 * low - 1)
        codes[row] = code
