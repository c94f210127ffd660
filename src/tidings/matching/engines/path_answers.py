"""The documents of one attribute of a batch, and which paths hold in them, for filters to look up.

A path that a filter mixes with other conditions is evaluated on the events that satisfy those. The first such
event brings the answers for all paths that are indexed together with its own, and for all events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.model.arrow import ArrowArray
from tidings.xml.index.document_columns import Documents, read_documents
from tidings.xml.index.path_index import PathIndex, build_path_index

_PART_BYTES = 32 << 20  # of documents that are read together
_PART_DOCUMENTS = 1 << 12

Mask = npt.NDArray[np.bool_]


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
