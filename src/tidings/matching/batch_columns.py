"""The columns of a batch of events, in the forms that matching needs, each made once.

`codes` are integers in the order of the attribute's type, comparable with the intervals of a
`FilterTable`; `values` are the values themselves, for what only an evaluation can decide.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.filter.compile.plan_execution import double_ordinals
from tidings.filter.normal.filter_table import Codes
from tidings.kernels.hashing import hashes_of
from tidings.matching.engines.path_answers import DocumentColumn
from tidings.model.arrow import ArrowArray
from tidings.model.event import EventBatch
from tidings.model.types import DataType, Path

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Column:
    """Values and which of them are not NULL.

    Whole numbers, dates and timestamps are int64; float and double are float32 and float64;
    boolean is bool; decimals, strings and arrays are Python objects. Where not valid, a value
    is anything.
    """

    values: npt.NDArray[Any]
    valid: Mask


@dataclass(slots=True)
class Columns:
    """A batch of events, column by column."""

    batch: EventBatch
    _values: dict[Path, Column] = field(default_factory=dict)
    _codes: dict[Path, Codes] = field(default_factory=dict)
    _hashes: dict[Path, npt.NDArray[np.uint64]] = field(default_factory=dict)
    _distinct: dict[Path, tuple[ArrowArray, Codes, Mask]] = field(default_factory=dict)
    _documents: dict[Path, DocumentColumn] = field(default_factory=dict)

    def part(self, start: int, end: int) -> Columns:
        return Columns(self.batch.part(start, end))

    def values(self, path: Path) -> Column:
        if path not in self._values:
            self._values[path] = _column(self.batch.columns[path], self.batch.domain.leaves[path])
        return self._values[path]

    def hashes(self, path: Path) -> npt.NDArray[np.uint64]:
        """Hashes of an attribute's texts; of NULL, anything."""
        if path not in self._hashes:
            self._hashes[path] = hashes_of(self.batch.columns[path])
        return self._hashes[path]

    def distinct(self, path: Path) -> tuple[ArrowArray, Codes, Mask]:
        """The distinct texts of an attribute, the number of each event's, -1 for NULL, and which are not NULL."""
        if path not in self._distinct:
            encoded = self.batch.columns[path].dictionary_encode()
            valid = encoded.is_valid().to_numpy(zero_copy_only=False)
            numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            self._distinct[path] = encoded.dictionary, numbers, valid
        return self._distinct[path]

    def documents(self, path: Path) -> DocumentColumn:
        """An attribute's texts as XML documents."""
        if path not in self._documents:
            self._documents[path] = DocumentColumn(self.batch.columns[path])
        return self._documents[path]

    def codes(self, path: Path, keys: ArrowArray | None = None) -> tuple[Codes, Mask]:
        """The codes of an attribute's values, among `keys` where those give them, and which are not NULL."""
        if keys is not None:
            return _codes_among(self.batch.columns[path], keys)
        column = self.values(path)
        if path not in self._codes:
            self._codes[path] = _codes(column.values, self.batch.domain.leaves[path])
        return self._codes[path], column.valid


def _codes(values: npt.NDArray[Any], type_: DataType) -> Codes:
    if type_.name in ("float", "double"):
        return double_ordinals(values.astype(np.float64))
    if type_.name == "decimal":
        digits = decimal.Context(prec=80)
        return np.array([int(value.scaleb(type_.scale, digits)) for value in values], np.int64)
    return values.astype(np.int64)


def _codes_among(array: ArrowArray, keys: ArrowArray) -> tuple[Codes, Mask]:
    """2i for the value of key i, the odd number between for a value between two keys."""
    encoded = (array.cast(pa.binary()) if pa.types.is_binary(keys.type) else array.cast(keys.type)).dictionary_encode()
    unique = encoded.dictionary
    merged = pa.concat_arrays([keys, unique])
    order = pc.sort_indices(merged).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    below = np.searchsorted(np.sort(rank[: len(keys)]), rank[len(keys) :])  # keys that sort before each value
    found = pc.index_in(unique, value_set=keys)
    equal = found.is_valid().to_numpy(zero_copy_only=False)
    codes = np.where(equal, 2 * found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64), 2 * below - 1)
    valid = encoded.is_valid().to_numpy(zero_copy_only=False)
    rows = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return (codes[rows] if len(codes) else np.zeros(len(array), np.int64)), valid


def _column(array: ArrowArray, type_: DataType) -> Column:
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    if type_.name in ("decimal", "string"):
        filler: Any = decimal.Decimal(0) if type_.name == "decimal" else ""
        return Column(_objects(array.fill_null(filler).to_pylist()), valid)
    if type_.name == "array":
        assert type_.element is not None
        element = type_.element
        if element.is_datetime:
            array = array.cast(pa.list_(pa.int32() if element.name == "date" else pa.int64()))
        return Column(_objects(array.to_pylist()), valid)
    if type_.name == "date":
        array = array.cast(pa.int32())
    elif type_.is_datetime:
        array = array.cast(pa.int64())
    filled = array.fill_null(False if type_.name == "boolean" else 0).to_numpy(zero_copy_only=False)
    if type_.name in ("boolean", "float", "double"):
        return Column(filled, valid)
    return Column(filled.astype(np.int64), valid)


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    result = np.empty(len(values), object)
    result[:] = values
    return result
