"""The engine for filters that are one path over an attribute, and what others ask of paths.

Such a filter needs nothing but its path: the index of all of them gives their slots. Paths that are mixed with other
conditions stay residuals, which look the result up in an index that is built here as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.filter.normal.residuals import ResidualBuilder, Residuals
from tidings.filter.tree import Expression, Literal, Reference, XPathBoolean, operands_of
from tidings.matching.batch_columns import Columns, KnownPaths
from tidings.matching.engines.entries import Entries
from tidings.matching.engines.found_pairs import Runs
from tidings.model.types import Path
from tidings.xml.path_index import PathIndex, build_path_index

# What reading a node costs, walking the trie there for each doubling of the paths, and noting a path that holds: about
# what the XML workloads were measured to take.
_READ_NS, _WALK_NS, _FOUND_NS = 1_300.0, 500.0, 3.0
_SAMPLE = 64  # documents
_NODES = 50  # of a document, where none is known


@dataclass(frozen=True, slots=True)
class PathEngine:
    """Filters that are one path over this attribute."""

    path: Path
    index: PathIndex
    slots: npt.NDArray[np.int32]  # of each path; empty where they are numbered alike

    @property
    def bytes(self) -> int:
        return self.index.bytes + self.slots.nbytes

    def estimated_ns(self, sample: Columns | None) -> float:
        """What an event costs, by the nodes of sampled documents and the paths that hold in them."""
        node_ns = _READ_NS + _WALK_NS * math.log2(1 + self.index.count)
        count = 0 if sample is None else min(_SAMPLE, sample.batch.count)
        if sample is None or not count:
            return _NODES * node_ns
        nodes = found = 0
        for _, documents, start, end in Columns(sample.batch.part(0, count)).documents(self.path).parts(0, count):
            nodes += int(documents.roots[end] - documents.roots[start])
            found += int(self.index.match(documents, start, end)[0][-1])
        return (nodes * node_ns + found * _FOUND_NS) / count

    def match(self, columns: Columns, start: int, end: int, runs: Runs) -> int:
        """Add the slots of the events from `start` to `end`, which are numbered from `start`. Returns how many."""
        before = runs.count
        for first, documents, low, high in columns.documents(self.path).parts(start, end):
            offsets, paths = self.index.match(documents, low, high)
            runs.reserve(high - low, len(paths))
            place = slice(runs.runs, runs.runs + high - low)
            runs.events[place] = np.arange(first + low - start, first + high - start)
            runs.starts[place] = offsets[:-1] + runs.count
            runs.outputs[runs.count : runs.count + len(paths)] = self.slots[paths] if len(self.slots) else paths
            runs.runs += high - low
            runs.count += len(paths)
        return runs.count - before


@dataclass(frozen=True, slots=True)
class AskedPaths:
    """The paths over one attribute that residuals ask for."""

    path: Path
    known: KnownPaths


def served_by_paths(entries: Entries) -> tuple[Entries, npt.NDArray[np.bool_], tuple[PathEngine, ...]]:
    """The entries, less the residuals of those that are one path and nothing else; which those are; their engines."""
    plain = entries.plain
    pure = [_pure_path(template.tree) for template in plain.templates]
    served = np.zeros(entries.count, bool)
    engines = []
    if not any(pure):
        return entries, served, ()
    template_of = np.append(plain.template_of, np.int32(-1))  # of what is no plain residual
    free = np.diff(entries.offsets) == 0
    of_entry = template_of[np.where(entries.residual_of < len(plain), entries.residual_of, -1)]
    for path in dict.fromkeys(path for path in pure if path is not None):
        own = np.array([one == path for one in [*pure, None]], bool)[of_entry] & free
        chosen = np.flatnonzero(own)
        texts = _texts(plain, entries.residual_of[chosen])
        slots = entries.slots[chosen]
        alike = len(slots) == slots.max(initial=-1) + 1 and bool((slots == np.arange(len(slots))).all())
        engines.append(PathEngine(path, build_path_index(texts), np.empty(0, np.int32) if alike else slots))
        served |= own
    return _without(entries, served), served, tuple(engines)


def asked_paths(entries: Entries) -> tuple[AskedPaths, ...]:
    """What the residuals that are left ask of paths."""
    texts: dict[Path, dict[str, None]] = {}
    for template in entries.plain.templates:
        for path, column in _literals(template.tree):
            texts.setdefault(path, {}).update(dict.fromkeys(template.literals[column].tolist()))
    for residual in entries.residuals:
        if residual.expression is not None:
            for path, text in _written(residual.expression):
                texts.setdefault(path, {})[text] = None
    return tuple(
        AskedPaths(path, KnownPaths(build_path_index(list(own)), pa.array(list(own), pa.string())))
        for path, own in texts.items()
    )


def _pure_path(tree: Expression) -> Path | None:
    match tree:
        case XPathBoolean(Reference(path), Literal()):
            return path
    return None


def _texts(plain: Residuals, numbers: npt.NDArray[np.int32]) -> list[str]:
    texts = np.empty(len(numbers), object)
    templates = plain.template_of[numbers]
    for template in np.unique(templates).tolist():
        own = templates == template
        texts[own] = plain.templates[template].literals[0][plain.row_of[numbers[own]]]
    return texts.tolist()


def _without(entries: Entries, served: npt.NDArray[np.bool_]) -> Entries:
    """Without the residuals of entries that are served, and renumbered."""
    plain, residual_of = entries.plain, np.where(served, -1, entries.residual_of)
    used = np.unique(residual_of[(residual_of >= 0) & (residual_of < len(plain))])
    builder = ResidualBuilder()
    added = builder.add_all(plain, used)
    left, renumbered = builder.build()
    numbers = np.full(len(plain) + len(entries.residuals) + 1, -1, np.int32)  # the last for none
    numbers[used] = renumbered[added] if len(added) else added
    numbers[len(plain) : -1] = len(left) + np.arange(len(entries.residuals))
    return replace(entries, plain=left, residual_of=numbers[residual_of])


def _literals(tree: Expression) -> Iterator[tuple[Path, int]]:
    """The attributes of paths over XML in a template's tree, each with the column that has its path."""
    column = 0
    pending: list[Expression] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, XPathBoolean) and isinstance(node.operand, Reference):
            yield node.operand.path, column
        if isinstance(node, Literal) and node.value is not None:
            column += 1
        pending.extend(reversed(operands_of(node)))


def _written(tree: Expression) -> Iterator[tuple[Path, str]]:
    pending: list[Expression] = [tree]
    while pending:
        node = pending.pop()
        match node:
            case XPathBoolean(Reference(path), Literal(str(text))):
                yield path, text
        pending.extend(operands_of(node))
