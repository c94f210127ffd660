"""An immutable index of many paths: which of them hold in each of some documents."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tidings.xml import path_kernels as kernels
from tidings.xml.document_columns import Documents
from tidings.xml.path_parser import parse_path
from tidings.xml.path_trie import Symbols, TrieBuilder, alternatives_of

_FIRST_ROOM = 1 << 16

_parsed = lru_cache(maxsize=4096)(parse_path)


class _Scratches(threading.local):
    """What each thread's walks write to."""

    def __init__(self) -> None:
        self.of_index: weakref.WeakKeyDictionary[PathIndex, kernels.Scratch] = weakref.WeakKeyDictionary()


_scratches = _Scratches()


@dataclass(frozen=True, eq=False)
class PathIndex:
    """Paths by number. Those in `verified` are only candidates where the index finds them."""

    count: int
    arrays: kernels.Arrays
    symbols: Symbols
    verified: dict[int, str] = field(default_factory=dict)  # the texts of paths that the trie only approximates

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def match(
        self, documents: Documents, start: int = 0, end: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """The paths of documents from `start` to `end`: of the i-th `paths[offsets[i]:offsets[i + 1]]`, in no order."""
        trie, count = self.arrays, (len(documents) if end is None else end) - start
        nodes = kernels.NodeColumns(
            documents.node_names, documents.ends, documents.starts, documents.stops, documents.text,
            documents.roots[start : start + count + 1],
            documents.numbers, self.symbols.of_names(documents.names),
        )  # fmt: skip
        scratch = self._scratch()._replace(
            literals=np.full(len(documents.ends), -2, np.int32),
            first=np.empty(documents.largest + 1, np.int32),
            second=np.empty(documents.largest + 1, np.int32),
        )
        offsets, paths = np.zeros(count + 1, np.int64), np.empty(_FIRST_ROOM, np.int32)
        first = 0
        while first < count:
            reached = int(kernels.match(nodes, trie, scratch, first, offsets, paths))
            if reached < 0:
                first = -1 - reached
                scratch = scratch._replace(active=np.empty(2 * len(scratch.active), np.int32))
                _scratches.of_index[self] = scratch
            else:
                first = reached
                if first < count:
                    # Room for all, guessed from those that there are: fresh memory costs when it is written.
                    guess = int(1.2 * offsets[first] / max(1, first) * count)
                    more = np.empty(max(2 * len(paths), guess), np.int32)
                    more[: offsets[first]] = paths[: offsets[first]]
                    paths = more
        paths = paths[: offsets[-1]]
        return self._verified(documents, start, offsets, paths) if self.verified else (offsets, paths)

    def _verified(
        self, documents: Documents, start: int, offsets: npt.NDArray[np.int64], paths: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Without the candidates that do not hold."""
        approximate = np.zeros(self.count, bool)
        approximate[list(self.verified)] = True
        document_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        kept = np.ones(len(paths), bool)
        document, number = None, -1
        for pair in np.flatnonzero(approximate[paths]).tolist():
            if document is None or number != document_of[pair]:
                number = int(document_of[pair])
                document = documents.document(start + number)
            kept[pair] = document.holds(_parsed(self.verified[int(paths[pair])]))
        counts = np.bincount(document_of[kept], minlength=len(offsets) - 1)
        return np.concatenate([[0], np.cumsum(counts)]), paths[kept]

    def _scratch(self) -> kernels.Scratch:
        scratch = _scratches.of_index.get(self)
        if scratch is None:
            scratch = _scratches.of_index[self] = kernels.scratch_of(self.arrays, self.count)
        return scratch


def build_path_index(texts: Sequence[str]) -> PathIndex:
    """An index of paths, numbered as they come; all of them can be read."""
    builder = TrieBuilder()
    verified: dict[int, str] = {}
    numbers: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        numbers.setdefault(text, []).append(number)
    for text, same in numbers.items():
        paths, exact = alternatives_of(parse_path(text))
        for path in paths:
            builder.add(path, same)
        if not exact:
            verified.update(dict.fromkeys(same, text))
    return PathIndex(len(texts), *builder.build(len(texts)), verified)
