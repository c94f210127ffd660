"""Which of many filters an event came nearest to without matching: by arrays, with the answer of `explain`.

Nearest is the fewest failing predicates, then the least distance, then the least id. Filters that share a plan have one
tree but for their names and literals. Each predicate of it is evaluated for all of them at once: first whether it
fails; then how far off it is, for the filters with the fewest failing predicates alone, and where these are many, for
those that can be near at all: likeness of texts is dear. All is carried through AND, OR and NOT as `explain` does it,
and comes to the same numbers to the last bit. What no plan serves is explained one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.filter.compile.filter_reader import FilterReader
from tidings.filter.compile.literal_columns import Hole, Likeness
from tidings.filter.compile.plan_execution import readable_paths
from tidings.filter.compile.plans import PlannedTree, literal_holes, path_holes, pattern_holes, plan_tree
from tidings.filter.compile.shapes import Served, served_by_plans
from tidings.filter.meaning.interpreter import evaluate
from tidings.filter.normal.filter_table import Rows
from tidings.filter.normal.residuals import column_dtype, emptied
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.tree import And, Comparison, Expression, In, Like, Literal, Not, Or, RLike, attributes_of, mapped
from tidings.matching.batch_columns import Column, Columns, Mask
from tidings.matching.evaluation import true_rows, values_of
from tidings.matching.explain.explanation import (
    FARTHEST,
    Explanation,
    explain,
    least_number_distances,
    least_text_distances,
    number_distances,
    text_distances,
)
from tidings.model import types
from tidings.model.arrow import ArrowArray, arrow_type
from tidings.model.domain import Domain
from tidings.model.event import EventBatch
from tidings.model.types import DataType, Path

Record: TypeAlias = Mapping[Path, Any]
Numbers: TypeAlias = npt.NDArray[np.int64]
Distances: TypeAlias = npt.NDArray[np.float64]

_MANY = 1_000  # filters, beyond which it pays to see first which of them can be near at all
_MANY_VALUES = 64  # of the event on one side of a predicate, each of which takes a pass


def nearest(ids: ArrowArray, texts: ArrowArray, domain: Domain, record: Record, limit: int = 5) -> list[Explanation]:
    """The filters, given as ids and texts, that the record comes nearest to without matching them."""
    if limit < 1 or not len(texts):
        return []
    return _Search(ids, texts, domain, record).nearest(limit)


class _Search:
    def __init__(self, ids: ArrowArray, texts: ArrowArray, domain: Domain, record: Record) -> None:
        self._ids = ids
        self._texts = texts
        self._domain = domain
        self._record = record
        self._failing = np.zeros(len(texts), np.int32)
        self._distance = np.zeros(len(texts))
        plans = served_by_plans(texts, domain, plan_tree)
        self._groups = [_Group(served, domain, record) for served in plans]
        known = np.zeros(len(texts), bool)
        for group in self._groups:
            self._failing[group.rows] = group.failing
            known[group.rows] = True
        self._explain_each(np.flatnonzero(~known))

    def _explain_each(self, rows: Numbers) -> None:
        reader = FilterReader(self._domain)
        for row in rows.tolist():
            text = self._texts[row].as_py()
            explained = explain(reader.read(text), self._record, text=text)
            self._failing[row], self._distance[row] = explained.failing, explained.distance

    def nearest(self, limit: int) -> list[Explanation]:
        misses = np.flatnonzero(self._failing)
        if len(misses) > limit:
            failing = self._failing[misses]
            misses = misses[failing <= np.partition(failing, limit - 1)[limit - 1]]
        if len(misses) > max(limit, _MANY):
            misses = self._contenders(misses, limit)
        self._measure(misses)
        keys: ArrowArray = pa.table(
            {
                "failing": pa.array(self._failing[misses]),
                "distance": pa.array(self._distance[misses]),
                "id": self._ids.take(pa.array(misses)),
            }
        )
        order = pc.select_k_unstable(keys, limit, [(key, "ascending") for key in keys.column_names])
        return [self._explained(row) for row in misses[order.to_numpy()].tolist()]

    def _contenders(self, misses: Numbers, limit: int) -> Numbers:
        """Those whose least distance is not more than the distance of enough others."""
        self._measure(misses, least=True)
        failing, least = self._failing[misses], self._distance[misses]
        first = misses[np.lexsort((least, failing))[: max(limit, _MANY)]]
        self._measure(first)
        worst = first[np.lexsort((self._distance[first], self._failing[first]))[limit - 1]]
        most, distance = self._failing[worst], self._distance[worst]
        return np.asarray(misses[(failing < most) | ((failing == most) & (least <= distance))])

    def _measure(self, rows: Numbers, *, least: bool = False) -> None:
        wanted = np.zeros(len(self._texts), bool)
        wanted[rows] = True
        for group in self._groups:
            asked = np.flatnonzero(wanted[group.rows])
            if len(asked):
                self._distance[group.rows[asked]] = group.distances(asked, least=least)

    def _explained(self, row: int) -> Explanation:
        id_, text = self._ids[row].as_py(), self._texts[row].as_py()
        return explain(parse_filter(text, self._domain), self._record, subscription=id_, text=text)


# ---------------------------------------------------------------------- filters that share a plan


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A predicate, and whether it has to be true or false; `number` is its place in the tree."""

    number: int
    predicate: Expression  # with holes
    needed: bool


@dataclass(frozen=True, slots=True)
class _Joint:
    """What has to turn in all parts, or in one of them."""

    all: bool
    parts: tuple[_Leaf | _Joint, ...]


class _Group:
    """The filters that one plan serves, but for those with a literal that is none; `rows` are their places."""

    def __init__(self, served: Served[PlannedTree], domain: Domain, record: Record) -> None:
        self._leaves: list[_Leaf] = []
        self._root = self._laid_out(served.plan.tree, needed=True)
        self._event = _Renaming(served, domain, record)
        self._literals = _Literals(served)
        for leaf in self._leaves:
            self._literals.read(leaf.predicate)
        kept = np.flatnonzero(self._literals.valid)
        self.rows: Rows = served.rows[kept]
        self._kept = kept
        self._fails = [self._failing(leaf, kept) for leaf in self._leaves]
        self.failing = self._count(self._root)

    def _laid_out(self, tree: Expression, *, needed: bool) -> _Leaf | _Joint:
        match tree:
            case Not(operand):
                return self._laid_out(operand, needed=not needed)
            case And(operands) | Or(operands):
                parts = tuple([self._laid_out(operand, needed=needed) for operand in operands])
                return _Joint(isinstance(tree, And) == needed, parts)
        leaf = _Leaf(len(self._leaves), tree, needed)
        self._leaves.append(leaf)
        return leaf

    def _count(self, part: _Leaf | _Joint) -> Rows:
        """Failing predicates."""
        if isinstance(part, _Leaf):
            return self._fails[part.number].astype(np.int32)
        return reduce(np.add if part.all else np.minimum, map(self._count, part.parts))

    # ------------------------------------------------------------------ what fails

    def _failing(self, leaf: _Leaf, rows: Numbers) -> Mask:
        if any(True for _ in pattern_holes(leaf.predicate)):
            return self._failing_by_pattern(leaf, rows)
        columns, which = self._event.columns(leaf.predicate)
        tree = mapped(leaf.predicate, emptied)
        tree = tree if leaf.needed else Not(tree)
        return ~true_rows(tree, columns, which[rows], self._literals.columns(leaf.predicate, rows))

    def _failing_by_pattern(self, leaf: _Leaf, rows: Numbers) -> Mask:
        """Interpreted once for each attribute and literals that filters have: a pattern is compiled, not compared."""
        records, which = self._event.records(leaf.predicate)
        key = which[rows]
        for codes in self._literals.codes(leaf.predicate):
            _, key = np.unique(key * (int(codes.max()) + 1) + codes[rows], return_inverse=True)
        _, firsts, numbers = np.unique(key, return_index=True, return_inverse=True)
        fails = [
            evaluate(self._literals.filled(leaf.predicate, row), records[which[row]]) is not leaf.needed
            for row in rows[firsts].tolist()
        ]
        return np.array(fails, bool)[numbers]

    # ------------------------------------------------------------------ how far it is off

    def distances(self, asked: Numbers, *, least: bool) -> Distances:
        """Of some of these filters, by their places among `rows`; `least`: what they are at least, sooner known."""
        return self._off(self._root, asked, least)[1]

    def _off(self, part: _Leaf | _Joint, asked: Numbers, least: bool) -> tuple[Rows, Distances]:
        """Failing predicates and their distance."""
        if isinstance(part, _Leaf):
            fails = self._fails[part.number][asked]
            distance = np.zeros(len(asked))
            distance[fails] = self._leaf_distances(part.predicate, self._kept[asked[fails]], least)
            return fails.astype(np.int32), distance
        return reduce(_both if part.all else _lesser, (self._off(inner, asked, least) for inner in part.parts))

    def _leaf_distances(self, predicate: Expression, rows: Numbers, least: bool) -> Distances:
        match predicate:
            case Comparison(_, left, right):
                return self._differences(left, right, rows, least)
            case In(operand, items):
                return reduce(np.minimum, (self._differences(operand, item, rows, least) for item in items))
        return np.full(len(rows), FARTHEST)

    def _differences(self, left: Expression, right: Expression, rows: Numbers, least: bool) -> Distances:
        if isinstance(left, Literal) and not isinstance(right, Literal):
            left, right = right, left
        type_ = left.type
        distances = np.full(len(rows), FARTHEST)
        if not (type_.name == "string" or type_.is_numeric or type_.is_datetime):
            return distances
        values, others = self._values(left, rows), self._values(right, rows)
        known = values.valid & others.valid
        measure = _least_distances if least else _distances
        distances[known] = measure(values.values[known], others.values[known], type_)
        return distances

    def _values(self, expression: Expression, rows: Numbers) -> Column:
        columns, which = self._event.columns(expression)
        literals = self._literals.columns(expression, rows)
        return values_of(mapped(expression, emptied), columns, which[rows], literals)


def _both(one: tuple[Rows, Distances], other: tuple[Rows, Distances]) -> tuple[Rows, Distances]:
    return one[0] + other[0], one[1] + other[1]


def _lesser(one: tuple[Rows, Distances], other: tuple[Rows, Distances]) -> tuple[Rows, Distances]:
    less = (other[0] < one[0]) | ((other[0] == one[0]) & (other[1] < one[1]))
    return np.where(less, other[0], one[0]), np.where(less, other[1], one[1])


def _distances(values: npt.NDArray[Any], others: npt.NDArray[Any], type_: DataType) -> Distances:
    if type_.name == "string":
        return text_distances(values.tolist(), others.tolist())
    return number_distances(values, others, type_)


def _least_distances(values: npt.NDArray[Any], others: npt.NDArray[Any], type_: DataType) -> Distances:
    if type_.name != "string":
        return least_number_distances(values, others, type_)
    distances = np.empty(len(values))
    encoded: ArrowArray = pa.array(values, pa.string()).dictionary_encode()
    which = encoded.indices.to_numpy(zero_copy_only=False)
    for number, value in enumerate(encoded.dictionary.to_pylist()[:_MANY_VALUES]):
        rows = np.flatnonzero(which == number)
        distances[rows] = least_text_distances(value, pa.array(others[rows], pa.string()))
    distances[which >= _MANY_VALUES] = 0.0
    return distances


# ---------------------------------------------------------------------- the event, and literals


class _Renaming:
    """The event as each filter sees it, whose attributes stand for those of the plan."""

    def __init__(self, served: Served[PlannedTree], domain: Domain, record: Record) -> None:
        self._count = len(served.rows)
        self._renamed = served.renamed
        self._domain = domain
        self._record = record

    def columns(self, expression: Expression) -> tuple[Columns, Numbers]:
        """The event once for each choice of attributes, and of each filter which of them it sees."""
        records, which = self.records(expression)
        columns = {
            path: pa.array([record[path] for record in records], arrow_type(self._domain.leaves[path]))
            for path in records[0]
        }
        return Columns(EventBatch(self._domain, len(records), columns, np.arange(len(records)), [], None)), which

    def records(self, expression: Expression) -> tuple[list[dict[Path, Any]], Numbers]:
        """The same as records."""
        paths = list(dict.fromkeys(reference.path for reference in attributes_of(expression)))
        if len(paths) == 1:
            renamed = self._renamed[paths[0]]
            return [{paths[0]: self._record.get(actual)} for actual in renamed.paths], renamed.which
        key = np.zeros(self._count, np.int64)
        for path in paths:
            key = key * len(self._renamed[path].paths) + self._renamed[path].which
        _, firsts, which = np.unique(key, return_index=True, return_inverse=True)
        return [{path: self._record.get(self._actual(path, row)) for path in paths} for row in firsts.tolist()], which

    def _actual(self, path: Path, row: int) -> Path:
        renamed = self._renamed[path]
        return renamed.paths[int(renamed.which[row])]


class _Literals:
    """The literals of filters that share a plan, each read once; `valid` says which filters have none that is odd."""

    def __init__(self, served: Served[PlannedTree]) -> None:
        self._holes = served.holes
        self._values: dict[tuple[Hole, DataType], npt.NDArray[Any]] = {}
        self._patterns: dict[tuple[Hole, str | None], ArrowArray] = {}
        self.valid: Mask = np.ones(len(served.rows), bool)

    def read(self, predicate: Expression) -> None:
        for item in literal_holes(predicate):
            if not isinstance(item, Literal) and item not in self._values:
                self._values[item], valid = self._holes.values(*item)
                self.valid &= valid
        for hole in path_holes(predicate):
            self.valid &= readable_paths(self._values[hole, types.STRING])
        for pattern in pattern_holes(predicate):
            if pattern not in self._patterns:
                self._patterns[pattern], valid = self._holes.patterns(*pattern)
                self.valid &= valid

    def columns(self, expression: Expression, rows: Numbers) -> list[npt.NDArray[Any]]:
        """In the order of the tree, what stands for each literal that is not NULL."""
        return [
            np.full(len(rows), item.value, column_dtype(item.type))
            if isinstance(item, Literal)
            else self._values[item][rows]
            for item in literal_holes(expression)
        ]

    def codes(self, expression: Expression) -> list[Numbers]:
        """Numbers for the texts in the holes of an expression, the same for the same."""
        holes = [item[0] for item in literal_holes(expression) if not isinstance(item, Literal)]
        holes += [hole for hole, _ in pattern_holes(expression)]
        return [self._holes.alike(Likeness(hole, "text")) for hole in dict.fromkeys(holes)]

    def filled(self, expression: Expression, row: int) -> Expression:
        """The expression as one filter has it."""

        def fill(leaf: Expression) -> Expression:
            match leaf:
                case Literal(Hole() as hole, type_):
                    return Literal(self._values[hole, type_].item(row), type_)
                case Like(operand, Hole() as hole, escape):
                    return Like(operand, self._patterns[hole, escape][row].as_py(), escape)
                case RLike(operand, Hole() as hole):
                    return RLike(operand, self._patterns[hole, None][row].as_py())
            return leaf

        return mapped(expression, fill)
