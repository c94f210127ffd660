"""Evaluate a tree over the columns of many events: the meaning of `interpret`, by arrays.

Whole numbers, floats and doubles are computed by numpy; decimals, texts and what may overflow
go value by value through the scalar rules of `tidings.filter.meaning.operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.filter.compile.plan_execution import double_ordinals
from tidings.filter.meaning import operators as values
from tidings.filter.meaning.interpreter import evaluate_path
from tidings.filter.meaning.patterns import MAX_ARROW_LIKE, Finder, like_size
from tidings.filter.tree import (
    And,
    Arithmetic,
    ArrayContains,
    Call,
    Cast,
    Comparison,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Reference,
    RLike,
    XPathBoolean,
)
from tidings.matching.batch_columns import Column, Columns, Mask
from tidings.model.arrow import ArrowArray
from tidings.model.types import DataType

Rows = npt.NDArray[np.int64]

_DTYPES = {"boolean": np.bool_, "float": np.float32, "double": np.float64, "decimal": object, "string": object}
_DAY_US = 86_400_000_000


def true_rows(
    expression: Expression, columns: Columns, rows: Rows | None = None, literals: Sequence[npt.NDArray[Any]] = ()
) -> Mask:
    """Which of these events, or of all, make the expression TRUE.

    `literals`, where given, has for each literal of the expression that is not NULL, in the order of the tree, the
    value to take in its place, row by row: many filters that differ only in their literals are evaluated at once.
    """
    result = values_of(expression, columns, rows, literals)
    return np.asarray(result.values & result.valid)


def values_of(
    expression: Expression, columns: Columns, rows: Rows | None = None, literals: Sequence[npt.NDArray[Any]] = ()
) -> Column:
    """The values of any expression for these events, with literals as above."""
    with np.errstate(all="ignore"):
        return _Evaluation(columns, rows, literals).of(expression)


class _Evaluation:
    def __init__(self, columns: Columns, rows: Rows | None, literals: Sequence[npt.NDArray[Any]]) -> None:
        self._columns = columns
        self._rows = slice(None) if rows is None else rows
        self._count = columns.batch.count if rows is None else len(rows)
        self._literals = iter(literals) if literals else None

    def of(self, expression: Expression) -> Column:
        match expression:
            case And(operands):
                return reduce(_and, map(self.of, operands))
            case Or(operands):
                return _not(reduce(_and, (_not(self.of(operand)) for operand in operands)))
            case Not(operand):
                return _not(self.of(operand))
            case IsNull(operand):
                return Column(~self.of(operand).valid, self._all(True))
            case Reference(path, _):
                return self._of_events(self._columns.values(path))
            case Literal(value, type_):
                return self._literal(value, type_)
            case Comparison(op, left, right):
                return _compare(op, self._comparable(left), self._comparable(right))
            case In(operand, items):
                sought = self._comparable(operand)
                found = [_compare("=", sought, self._comparable(item)) for item in items]
                return _not(reduce(_and, map(_not, found)))
            case ArrayContains(array, item):
                return self._array_contains(self.of(array), self.of(item))
            case Like(operand, pattern, escape):
                text = values.contained_text(pattern, escape)
                if text is not None and isinstance(operand, Reference):
                    return self._found(operand, pc.match_substring, text)  # a search needs no automaton
                as_re2 = values.like_to_re2(pattern, escape) if like_size(pattern) <= MAX_ARROW_LIKE else None
                return self._find(operand, values.compile_like(pattern, escape), as_re2)
            case RLike(operand, pattern):
                return self._find(operand, values.compile_re2(pattern), pattern)
            case XPathBoolean(operand, path):
                return self._path_holds(operand, path)
            case Cast(operand, type_):
                return _cast(self.of(operand), operand.type, type_)
            case Arithmetic(op, left, right, type_):
                return _arithmetic(op, self.of(left), self.of(right), type_)
            case Negate(operand, type_):
                return _each(lambda value: values.negate(value, type_), type_, self.of(operand))
            case Call("abs", operand, type_):
                return _each(lambda value: values.absolute(value, type_), type_, self.of(operand))
            case Call(function, operand, type_):
                return _each(_TEXT_FUNCTIONS[function], type_, self.of(operand))

    def _comparable(self, expression: Expression) -> Column:
        """Values in numpy's order of them: of floats the ordinals, in which NaN is last and -0.0 is 0.0."""
        if expression.type.name not in ("float", "double"):
            return self.of(expression)
        if isinstance(expression, Reference):
            return self._of_events(Column(*self._columns.codes(expression.path)))
        column = self.of(expression)
        return Column(double_ordinals(column.values.astype(np.float64)), column.valid)

    def _of_events(self, column: Column) -> Column:
        return Column(column.values[self._rows], column.valid[self._rows])

    def _all(self, value: bool) -> Mask:
        return np.full(self._count, value)

    def _literal(self, value: Any, type_: DataType) -> Column:
        if self._literals is not None and value is not None:
            return Column(next(self._literals).astype(_dtype(type_)), self._all(True))
        result = np.empty(self._count, _dtype(type_))
        if value is not None:
            result[:] = value
        return Column(result, self._all(value is not None))

    def _find(self, operand: Expression, pattern: Finder, as_re2: str | None) -> Column:
        """Where a pattern is found; `as_re2` is its text for RE2, where Arrow may run it."""

        def find_each(texts: ArrowArray, _: str) -> ArrowArray:
            return pa.array([bool(pattern.search(text)) for text in texts.to_pylist()], pa.bool_())

        if not isinstance(operand, Reference):
            return _each(lambda text: bool(pattern.search(text)), None, self.of(operand))
        # Arrow has the same RE2, without a call a value.
        return self._found(operand, find_each if as_re2 is None else pc.match_substring_regex, as_re2 or "")

    def _found(self, operand: Reference, search: Callable[[ArrowArray, str], ArrowArray], sought: str) -> Column:
        texts, number, valid = self._columns.distinct(operand.path)
        matched = np.append(search(texts, sought).to_numpy(zero_copy_only=False), False)  # NULL has the number -1
        return Column(matched[number[self._rows]], valid[self._rows])

    def _path_holds(self, operand: Expression, path: Expression) -> Column:
        if not isinstance(operand, Reference):
            return _each(evaluate_path, None, self.of(operand), self.of(path))
        documents = self._columns.documents(operand.path)
        rows = np.arange(self._columns.batch.count)[self._rows]
        return Column(documents.holds(rows, self.of(path).values.tolist()), documents.readable[rows])

    def _array_contains(self, arrays: Column, items: Column) -> Column:
        def contains(array: list[Any], item: Any) -> bool | None:
            if any(value is not None and values.compare(value, item) == 0 for value in array):
                return True
            return None if None in array else False

        return _each(contains, None, arrays, items)


_TEXT_FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "lower": values.lower,
    "upper": values.upper,
    "length": values.length,
}


def _dtype(type_: DataType | None) -> Any:
    return np.bool_ if type_ is None else _DTYPES.get(type_.name, object if type_.name == "array" else np.int64)


def _not(operand: Column) -> Column:
    return Column(~operand.values.astype(np.bool_), operand.valid)


def _and(left: Column, right: Column) -> Column:
    """Kleene: FALSE where either is FALSE, else NULL where either is NULL."""
    one, other = left.values.astype(np.bool_), right.values.astype(np.bool_)
    false = (left.valid & ~one) | (right.valid & ~other)
    return Column(one & other & ~false, false | (left.valid & right.valid))


def _compare(op: str, left: Column, right: Column) -> Column:
    a, b = left.values, right.values
    both = left.valid & right.valid
    if a.dtype == object:  # only where both are values: fillers need not compare
        result = np.zeros(len(a), np.bool_)
        result[both] = _OPERATORS[op](a[both], b[both])
    else:
        result = _OPERATORS[op](a, b)
    if op == "<=>":
        return Column(np.where(both, result, left.valid == right.valid), np.ones_like(both))
    return Column(result, both)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": np.equal, "<=>": np.equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip


def _cast(operand: Column, source: DataType, target: DataType) -> Column:
    if source.is_integral and target.is_integral:
        return operand  # implicit casts only widen
    if (source.is_integral or source.name == "float") and target.name in ("float", "double"):
        return Column(operand.values.astype(_dtype(target)), operand.valid)
    if source.is_datetime:
        factor = _DAY_US if source.name == "date" else 1  # events lie within the years 1 to 9999: no overflow
        return Column(operand.values * factor, operand.valid)
    return _each(lambda value: values.cast(value, source, target), target, operand)


def _arithmetic(op: str, left: Column, right: Column, type_: DataType) -> Column:
    a, b = left.values, right.values
    both = left.valid & right.valid
    if type_.name in ("float", "double"):
        if op in "/%":
            both = both & (b != 0)
            return Column(a / b if op == "/" else np.fmod(a, b), both)
        return Column(_FLOATING[op](a, b), both)
    if type_.is_integral and op in "+-*" and _fits_int64(op, a, b):
        result = _FLOATING[op](a, b)
        low, high = type_.integer_range
        return Column(result, both & (result >= low) & (result <= high))
    return _each(lambda one, other: values.arithmetic(op, one, other, type_), type_, left, right)


_FLOATING: dict[str, Callable[[Any, Any], Any]] = {"+": np.add, "-": np.subtract, "*": np.multiply}


def _fits_int64(op: str, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Whether no result can leave 64 bits."""
    if not len(a):
        return True
    largest_a, largest_b = (max(abs(int(side.min())), abs(int(side.max()))) for side in (a, b))
    return (largest_a * largest_b if op == "*" else largest_a + largest_b) < 1 << 63


def _each(function: Callable[..., Any], type_: DataType | None, *operands: Column) -> Column:
    """A scalar rule, value by value; NULL where an operand is NULL or the rule says so."""
    valid = reduce(np.logical_and, (operand.valid for operand in operands))
    result = np.zeros(len(valid), _dtype(type_))
    valid = valid.copy()
    arguments = [operand.values[valid].tolist() for operand in operands]
    for row, value in zip(np.flatnonzero(valid).tolist(), map(function, *arguments), strict=True):
        if value is None:
            valid[row] = False
        else:
            result[row] = value
    return Column(result, valid)
