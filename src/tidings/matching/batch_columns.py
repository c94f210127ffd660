"""The columns of a batch of events, in the forms that matching needs, each made once.

`codes` are integers in the order of the attribute's type, comparable with the intervals of a
`FilterTable`; `values` are the values themselves, for what only an evaluation can decide; `documents` are XML texts,
and which paths hold in them. A path that a filter mixes with other conditions is evaluated on the events that satisfy
those: the first such event brings the result for all paths that are indexed together with its own, and all events.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.filter.compile.plan_execution import double_ordinals
from tidings.filter.normal.filter_table import Codes
from tidings.kernels.hashing import hashes_of
from tidings.model.arrow import ArrowArray
from tidings.model.event import EventBatch
from tidings.model.types import DataType, Path
from tidings.xml.document_columns import Documents, read_documents
from tidings.xml.path_index import PathIndex, build_path_index

_PART_BYTES = 32 << 20  # of documents that are read together
_PART_DOCUMENTS = 1 << 12

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class KnownPaths:
    """An index, and the texts of its paths by number, none of them twice."""

    index: PathIndex
    texts: ArrowArray

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self.texts.to_pylist())}


class DocumentColumn:
    """A column of XML texts, read part by part when they are first asked for."""

    def __init__(self, column: ArrowArray) -> None:
        self._column = column
        self._known: list[KnownPaths] = []
        self._holding: dict[int, npt.NDArray[np.int64]] = {}  # by known paths: where they hold, ascending
        self._parts: dict[int, Documents] = {}

    @cached_property
    def _starts(self) -> list[int]:
        """Where parts start, and the last one ends."""
        lengths: ArrowArray = pc.binary_length(self._column)
        sizes = lengths.fill_null(0).to_numpy(zero_copy_only=False)
        starts, size = [0], 0
        for row, more in enumerate(sizes.tolist()):
            if row > starts[-1] and (size + more > _PART_BYTES or row - starts[-1] >= _PART_DOCUMENTS):
                starts.append(row)
                size = 0
            size += more
        return [*starts, len(sizes)]

    def part(self, number: int) -> Documents:
        if number not in self._parts:
            start, end = self._starts[number], self._starts[number + 1]
            texts = self._column.slice(start, end - start).cast(pa.binary()).to_pylist()
            self._parts[number] = read_documents(texts, text=True)
        return self._parts[number]

    def parts(self, start: int, end: int) -> Iterator[tuple[int, Documents, int, int]]:
        """The documents of some rows: the row of a part's first, the part, and from where to where in it."""
        for number, first in enumerate(self._starts[:-1]):
            last = self._starts[number + 1]
            if first < end and last > start:
                yield first, self.part(number), max(start, first) - first, min(end, last) - first

    @cached_property
    def readable(self) -> Mask:
        """Which rows are documents: NULL is none, nor what is refused."""
        readable: Mask = self._column.is_valid().to_numpy(zero_copy_only=False).copy()
        for first, documents, _, _ in self.parts(0, len(self._column)):
            readable[[first + row for row in documents.refused]] = False
        return readable

    def know(self, known: KnownPaths) -> None:
        """Have these paths looked up in their index."""
        if not any(one is known for one in self._known):
            self._known.append(known)

    def holds(self, rows: npt.NDArray[np.int64], paths: Sequence[str]) -> Mask:
        """Of each row, whether the path at the same place holds in its document."""
        self._learn(paths)
        result = np.zeros(len(rows), bool)
        for number, known in enumerate(self._known):
            numbers = np.array([known.numbers.get(path, -1) for path in paths], np.int64)
            asked = np.flatnonzero(numbers >= 0)
            if len(asked):
                holding = self._where(number, known)
                sought = rows[asked] * known.index.count + numbers[asked]
                places = np.searchsorted(holding, sought)
                found = places < len(holding)
                found[found] = holding[places[found]] == sought[found]
                result[asked] |= found
        return result

    def _learn(self, paths: Sequence[str]) -> None:
        """An index for those paths that are in none."""
        new = [path for path in dict.fromkeys(paths) if not any(path in known.numbers for known in self._known)]
        if new:
            self.know(_known_paths(tuple(new)))

    def _where(self, number: int, known: KnownPaths) -> npt.NDArray[np.int64]:
        if number not in self._holding:
            keys = [np.empty(0, np.int64)]
            for first, documents, start, end in self.parts(0, len(self._column)):
                offsets, paths = known.index.match(documents, start, end)
                rows = first + start + np.repeat(np.arange(end - start), np.diff(offsets))
                keys.append(np.sort(rows * known.index.count + paths))
            self._holding[number] = np.concatenate(keys)
        return self._holding[number]


@lru_cache(maxsize=64)
def _known_paths(texts: tuple[str, ...]) -> KnownPaths:
    column: Any = pa.array(texts, pa.string())
    return KnownPaths(build_path_index(texts), column)


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
