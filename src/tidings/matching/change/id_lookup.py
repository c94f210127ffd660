"""Where an id is in a column of a million: a hash table of row numbers, beside the column itself."""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.kernels.decorator import kernel
from tidings.kernels.hashing import hash_bytes, string_buffers
from tidings.model.arrow import ArrowArray


class IdLookup:
    """The rows of a column of ids, all texts or all integers and no two alike: about 8 bytes an id."""

    def __init__(self, ids: ArrowArray) -> None:
        self._type = ids.type
        self._keys = _keys(ids)
        places = 1 << max(3, int(np.ceil(np.log2(max(1, 2 * len(ids))))))
        self._table = np.full(places, -1, np.int32)
        _fill(*self._keys, self._table)

    @property
    def bytes(self) -> int:
        return self._table.nbytes

    def rows(self, ids: ArrowArray) -> npt.NDArray[np.int32]:
        """The row of each of these ids, -1 for one that is not there."""
        found = np.full(len(ids), -1, np.int32)
        if ids.type == self._type:
            _find(*_keys(ids), *self._keys, self._table, found)
        return found


def _keys(ids: ArrowArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Ids as bytes: where each begins, and the bytes; integers are eight bytes each."""
    if pa.types.is_integer(ids.type):
        values = np.ascontiguousarray(ids.to_numpy(), np.int64)
        return np.empty(0, np.int32), values.view(np.uint8)
    return string_buffers(ids)


@kernel(inline="always")
def _span(offsets: Any, row: Any) -> Any:
    if len(offsets) == 0:
        return np.int64(8 * row), np.int64(8 * row + 8)
    return np.int64(offsets[row]), np.int64(offsets[row + 1])


@kernel
def _fill(offsets: Any, data: Any, table: Any) -> None:
    mask = np.uint64(len(table) - 1)
    count = len(data) // 8 if len(offsets) == 0 else len(offsets) - 1
    for row in range(count):
        start, end = _span(offsets, row)
        place = hash_bytes(data, start, end) & mask
        while table[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table[place] = row


@kernel
def _find(offsets: Any, data: Any, key_offsets: Any, key_data: Any, table: Any, found: Any) -> None:
    mask = np.uint64(len(table) - 1)
    for row in range(len(found)):
        start, end = _span(offsets, row)
        place = hash_bytes(data, start, end) & mask
        while table[place] >= 0:
            key_start, key_end = _span(key_offsets, table[place])
            same = key_end - key_start == end - start
            for i in range(end - start):
                if not same:
                    break
                same = data[start + i] == key_data[key_start + i]
            if same:
                found[row] = table[place]
                break
            place = (place + np.uint64(1)) & mask
