"""The residuals of many filters: trees, and beside them their literals in columns.

Residuals that differ only in their literals share a `Template`, whose tree is kept once. A
residual is a row of its template; no two residuals are the same. Templates that differ only in
their patterns share a *skeleton* while they are collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from tidings.filter.tree import (
    And,
    Expression,
    Like,
    Literal,
    Not,
    Or,
    RLike,
    Value,
    mapped,
    operands_of,
)
from tidings.model.types import DataType

Rows = npt.NDArray[np.int32]
Column = npt.NDArray[Any]

_DTYPES: dict[str, type] = {
    "boolean": np.bool_,
    "float": np.float64,
    "double": np.float64,
    "decimal": object,
    "string": object,
}


@dataclass(frozen=True, slots=True, eq=False)
class ResidualTemplate:
    """Residuals that differ only in their literals: one to a row of the columns."""

    tree: Expression  # with a literal that stands for all in the place of each that is not NULL
    literals: tuple[Column, ...]  # the values of those literals, in the order of the tree


@dataclass(frozen=True, slots=True, eq=False)
class Residuals(Sequence[Expression]):
    """As a sequence, the trees of the residuals with their literals in place."""

    template_of: Rows  # of each residual
    row_of: Rows  # of each residual, among those of its template
    templates: tuple[ResidualTemplate, ...]

    def __len__(self) -> int:
        return len(self.template_of)

    @overload
    def __getitem__(self, number: int) -> Expression: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[Expression, ...]: ...

    def __getitem__(self, number: int | slice) -> Expression | tuple[Expression, ...]:
        if isinstance(number, slice):
            return tuple(self[i] for i in range(*number.indices(len(self))))
        template, row = self.templates[self.template_of[number]], int(self.row_of[number])
        return with_literals(template.tree, [column.item(row) for column in template.literals])


NO_RESIDUALS = Residuals(np.empty(0, np.int32), np.empty(0, np.int32), ())


def with_literals(tree: Expression, values: Sequence[Value]) -> Expression:
    """A template's tree with these values for its literals."""
    rest = iter(values)

    def filled(leaf: Expression) -> Expression:
        return Literal(next(rest), leaf.type) if type(leaf) is Literal and leaf.value is not None else leaf

    return mapped(tree, filled)


def column_dtype(type_: DataType) -> type:
    """Of a column of literals: whole numbers, dates and times are int64; decimals and strings are objects."""
    return _DTYPES.get(type_.name, np.int64)


def emptied(leaf: Expression) -> Expression:
    """A leaf as a skeleton has it: references and NULL as they are."""
    match leaf:
        case Literal(value, type_) if value is not None:
            return standing_literal(type_)
        case Like(operand, _, escape):
            return Like(operand, "", escape)
        case RLike(operand, _):
            return RLike(operand, "")
    return leaf


@lru_cache(maxsize=1024)
def standing_literal(type_: DataType) -> Literal:
    """What stands in a template for every literal of this type."""
    if type_.name in ("decimal", "string"):
        return Literal(Decimal(1) if type_.name == "decimal" else "", type_)
    return Literal(column_dtype(type_)(1).item(), type_)


class ResidualBuilder:
    """Collects residuals, one by one or many at once, under numbers that hold until `build` gives others."""

    def __init__(self) -> None:
        self._skeletons: dict[Expression, int] = {}
        self._layouts: list[tuple[type, ...]] = []  # of each skeleton: the dtypes of its columns
        self._templates: dict[tuple[int, tuple[str, ...]], int] = {}  # by skeleton and patterns
        self._singles: dict[tuple[type, ...], list[tuple[int, int, list[Value]]]] = {}
        self._chunks: dict[tuple[type, ...], list[tuple[Rows, Rows, tuple[Column, ...]]]] = {}
        self._count = 0

    def skeleton(self, tree: Expression, types: Sequence[DataType]) -> int:
        """The number of a tree that has standing literals, of these types, and empty patterns."""
        number = self._skeletons.setdefault(tree, len(self._skeletons))
        if number == len(self._layouts):
            self._layouts.append(tuple(map(column_dtype, types)))
        return number

    def template(self, skeleton: int, patterns: tuple[str, ...]) -> int:
        """The number of a template, with these patterns in the order of the tree."""
        return self._templates.setdefault((skeleton, patterns), len(self._templates))

    def add(self, expression: Expression) -> int:
        tree, literals, patterns = _parts(expression)
        skeleton = self.skeleton(tree, [literal.type for literal in literals])
        values = [literal.value for literal in literals]
        single = self._count, self.template(skeleton, patterns), values
        self._singles.setdefault(self._layouts[skeleton], []).append(single)
        self._count += 1
        return self._count - 1

    def add_many(self, templates: Rows, literals: Sequence[Column]) -> Rows:
        """One residual for each row of columns, with the template of this number."""
        numbers = np.arange(self._count, self._count + len(templates), dtype=np.int32)
        self._count += len(templates)
        if len(templates):
            layout = tuple(column.dtype.type if column.dtype != object else object for column in literals)
            self._chunks.setdefault(layout, []).append((numbers, templates, tuple(literals)))
        return numbers

    def add_all(self, residuals: Residuals, chosen: npt.NDArray[np.integer[Any]]) -> Rows:
        """Residuals of a table, by their numbers there."""
        numbers = np.empty(len(chosen), np.int32)
        template_of = residuals.template_of[chosen]
        order = np.argsort(template_of, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(template_of[order])) + 1) if len(order) else ():
            template = residuals.templates[template_of[part[0]]]
            skeleton, literals, patterns = _parts(template.tree)
            number = self.template(self.skeleton(skeleton, [literal.type for literal in literals]), patterns)
            rows = residuals.row_of[chosen[part]]
            columns = [column[rows] for column in template.literals]
            numbers[part] = self.add_many(np.full(len(part), number, np.int32), columns)
        return numbers

    def build(self) -> tuple[Residuals, Rows]:
        """The distinct residuals, and for each number that was given out the one that it is now."""
        renumbered = np.empty(self._count, np.int32)
        template_of, row_of = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        built: list[ResidualTemplate | None] = [None] * len(self._templates)
        trees = self._trees()
        count = 0
        for layout in {**self._chunks, **self._singles}:
            numbers, templates, columns = self._all_of(layout)
            firsts, which = _distinct_rows(templates, columns)
            renumbered[numbers] = which + count
            count += len(firsts)
            templates, columns = templates[firsts], tuple(column[firsts] for column in columns)
            starts = np.flatnonzero(np.diff(templates, prepend=-1))
            rows = np.arange(len(firsts)) - np.repeat(starts, np.diff(starts, append=len(firsts)))
            template_of.append(templates)
            row_of.append(rows.astype(np.int32))
            ends = [*starts[1:].tolist(), len(firsts)]
            for number, start, end in zip(templates[starts].tolist(), starts.tolist(), ends, strict=True):
                built[number] = ResidualTemplate(trees[number], tuple([column[start:end] for column in columns]))
        # A template may have been asked for and not used.
        used = np.array([template is not None for template in built], bool)
        place = np.cumsum(used, dtype=np.int32) - 1
        residuals = Residuals(
            place[np.concatenate(template_of)] if len(place) else np.empty(0, np.int32),
            np.concatenate(row_of),
            tuple(template for template in built if template is not None),
        )
        return residuals, renumbered

    def _trees(self) -> list[Expression]:
        """The trees of the templates, by number."""
        fillers = [_pattern_filler(skeleton) for skeleton in self._skeletons]
        return [fillers[skeleton](iter(patterns)) for skeleton, patterns in self._templates]

    def _all_of(self, layout: tuple[type, ...]) -> tuple[Rows, Rows, tuple[Column, ...]]:
        chunks = list(self._chunks.get(layout, ()))
        if singles := self._singles.get(layout):
            numbers, templates, values = zip(*singles, strict=True)
            columns = (_column(column, dtype) for column, dtype in zip(zip(*values, strict=True), layout, strict=False))
            chunks.append((np.array(numbers, np.int32), np.array(templates, np.int32), tuple(columns)))
        return (
            np.concatenate([chunk[0] for chunk in chunks]),
            np.concatenate([chunk[1] for chunk in chunks]),
            tuple(np.concatenate([chunk[2][i] for chunk in chunks]) for i in range(len(layout))),
        )


def _parts(expression: Expression) -> tuple[Expression, list[Literal], tuple[str, ...]]:
    """The skeleton of an expression, and the literals and patterns that it lacks."""
    literals: list[Literal] = []
    patterns: list[str] = []

    def empty(leaf: Expression) -> Expression:
        match leaf:
            case Literal(value) if value is not None:
                literals.append(leaf)
            case Like(_, pattern) | RLike(_, pattern):
                patterns.append(pattern)
        return emptied(leaf)

    return mapped(expression, empty), literals, tuple(patterns)


def _pattern_filler(skeleton: Expression) -> Callable[[Iterator[str]], Expression]:
    """What puts patterns, in their order, into a skeleton; what has none is shared."""
    match skeleton:
        case Like(operand, _, escape) if not _has_patterns(operand):
            return lambda patterns: Like(operand, next(patterns), escape)
        case RLike(operand, _) if not _has_patterns(operand):
            return lambda patterns: RLike(operand, next(patterns))
        case Not(operand):
            fill = _pattern_filler(operand)
            return lambda patterns: Not(fill(patterns))
        case And(operands) | Or(operands):
            node = And if isinstance(skeleton, And) else Or
            fills = [_pattern_filler(operand) for operand in operands]
            return lambda patterns: node(tuple([fill(patterns) for fill in fills]))
    if not _has_patterns(skeleton):
        return lambda patterns: skeleton

    def fill_all(patterns: Iterator[str]) -> Expression:
        def filled(leaf: Expression) -> Expression:
            match leaf:
                case Like(operand, _, escape):
                    return Like(operand, next(patterns), escape)
                case RLike(operand, _):
                    return RLike(operand, next(patterns))
            return leaf

        return mapped(skeleton, filled)

    return fill_all


def _has_patterns(expression: Expression) -> bool:
    return isinstance(expression, Like | RLike) or any(map(_has_patterns, operands_of(expression)))


def _column(values: Sequence[Any], dtype: type) -> Column:
    column: Column = np.empty(len(values), dtype)
    column[:] = values
    return column


def _distinct_rows(templates: Rows, columns: Sequence[Column]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the distinct rows first occur, by template, and for each row which of them it is."""
    key: npt.NDArray[np.int64] = templates.astype(np.int64)
    for column in columns:
        codes = _codes(column)
        _, key = np.unique(key * (int(codes.max()) + 1) + codes, return_inverse=True)
    _, firsts, which = np.unique(key, return_index=True, return_inverse=True)
    return firsts, which


def _codes(column: Column) -> npt.NDArray[np.int64]:
    """A number for each value, the same for the same."""
    if column.dtype == object:
        seen: dict[Any, int] = {}
        return np.array([seen.setdefault(value, len(seen)) for value in column.tolist()], np.int64)
    bits = column.view(np.int64) if column.dtype == np.float64 else column
    codes: npt.NDArray[np.int64] = np.unique(bits, return_inverse=True)[1]
    return codes
