"""Strings by their bytes, read straight from Arrow's buffers, and hashes of them."""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from tidings.model.filter.columnar import ArrowArray

PRIME = np.uint64(0x100000001B3)
_SEED = np.uint64(0xCBF29CE484222325)


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


@numba.njit(cache=True, nogil=True, inline="always")
def hash_bytes(data: Any, start: Any, end: Any) -> Any:
    """Fowler, Noll and Vo's, with its high bits folded into the low ones, which tables look at."""
    value = _SEED
    for i in range(start, end):
        value = (value ^ np.uint64(data[i])) * PRIME
    return value ^ (value >> np.uint64(29))


@numba.njit(cache=True, nogil=True)
def _hash_all(offsets: Any, data: Any, hashes: Any) -> None:
    for row in range(len(hashes)):
        hashes[row] = hash_bytes(data, offsets[row], offsets[row + 1])
