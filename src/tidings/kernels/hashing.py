"""Strings by their bytes, read straight from Arrow's buffers, and hashes of them and of numbers.

The hashes are the same in every process, on every machine and in every version: placements write
them down.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.kernels.decorator import kernel
from tidings.model.arrow import ArrowArray

PRIME = np.uint64(0x100000001B3)
_SEED = np.uint64(0xCBF29CE484222325)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def string_buffers(column: ArrowArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """The offsets and bytes of a string column, without a copy."""
    _, offsets, data = column.buffers()
    starts = (
        np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
        if offsets
        else np.zeros(1, np.int32)
    )
    return starts, np.frombuffer(data, np.uint8) if data is not None and len(data) else np.empty(0, np.uint8)


def hashes_of(column: ArrowArray) -> npt.NDArray[np.uint64]:
    """A hash of each string of a column."""
    hashes = np.empty(len(column), np.uint64)
    _hash_all(*string_buffers(column), hashes)
    return hashes


def hash_text(text: str, seed: int = 0) -> int:
    """A hash of one text: of an attribute's name, to begin those of its values with."""
    return int(hash_numbers(hashes_of(pa.array([text])).view(np.int64), seed)[0])


def hash_numbers(values: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.uint64]:
    """A hash of each integer, another one for another seed: splitmix64 (Steele et al., 2014)."""
    with np.errstate(over="ignore"):
        mixed = values.view(np.uint64) + np.uint64(seed) * _GOLDEN + _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)))


@kernel(inline="always")
def hash_bytes(data: Any, start: Any, end: Any) -> Any:
    """Fowler, Noll and Vo's, with its high bits folded into the low ones, which tables look at."""
    value = _SEED
    for i in range(start, end):
        value = (value ^ np.uint64(data[i])) * PRIME
    return value ^ (value >> np.uint64(29))


@kernel
def _hash_all(offsets: Any, data: Any, hashes: Any) -> None:
    for row in range(len(hashes)):
        hashes[row] = hash_bytes(data, offsets[row], offsets[row + 1])


@kernel
def hash_lists(offsets: Any, numbers: Any, hashes: Any) -> None:
    """A hash of each list of numbers from 0."""
    for row in range(len(hashes)):
        value = _SEED
        for i in range(offsets[row], offsets[row + 1]):
            value = (value ^ np.uint64(numbers[i] + 1)) * PRIME
        hashes[row] = value
