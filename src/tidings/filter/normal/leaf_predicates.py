"""The predicates that an index can serve: those that ask where one attribute's value lies.

`solve` gives for such a predicate the set of values for which it is TRUE, or the set for which
it is FALSE (for the others it is NULL). Where Spark casts the attribute to meet the literal,
the literal's place is found on the attribute's own line: the casts are monotone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from tidings.filter.meaning.interpreter import evaluate
from tidings.filter.meaning.operators import cast, compare
from tidings.filter.normal.value_sets import (
    EMPTY,
    ONLY_NULL,
    Cut,
    ValueSet,
    around,
    from_ordinal,
    line,
    not_null,
    union,
)
from tidings.filter.tree import Cast, Comparison, Expression, In, IsNull, Like, Literal, Reference, Value, operands_of
from tidings.model import types
from tidings.model.types import DataType, Path

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<=>": "<=>"}
_DAY_US = 86_400_000_000
_EXACT = Context(prec=200)


class Leaf(NamedTuple):
    """One attribute's part in a filter: that its value is among these."""

    path: Path
    type: DataType
    values: ValueSet


def solve(predicate: Expression, wanted: bool) -> Leaf | bool | None:
    """Where an indexable predicate is `wanted`, TRUE or FALSE; None for one that no index can serve.

    A bool for one that no event can change: whether it is as wanted.
    """
    solver = _SOLVERS.get(type(predicate))
    solved = solver(predicate, wanted) if solver is not None else None
    if solved is None and not mentions_attributes(predicate):
        return evaluate(predicate, {}) is wanted
    return solved


def mentions_attributes(expression: Expression) -> bool:
    return type(expression) is Reference or any(map(mentions_attributes, operands_of(expression)))


def _solve_reference(predicate: Reference, wanted: bool) -> Leaf | None:
    return Leaf(predicate.path, predicate.type, _TRUE if wanted else _FALSE)


def _solve_is_null(predicate: IsNull, wanted: bool) -> Leaf | None:
    operand = predicate.operand
    if not isinstance(operand, Reference) or not operand.type.is_scalar:
        return None
    return Leaf(operand.path, operand.type, ONLY_NULL if wanted else not_null(operand.type))


def _solve_comparison(predicate: Comparison, wanted: bool) -> Leaf | bool | None:
    op: str = predicate.op
    left, right = predicate.left, predicate.right
    literal = _constant(right)
    if literal is None:
        literal = _constant(left)
        if literal is None:
            return _solve_alike(op, left, right, wanted)
        op, left = _FLIPPED[op], right
    reference = _attribute_in(left)
    if reference is None:
        return None
    return Leaf(reference.path, reference.type, _compared(op, reference.type, literal, wanted))


def _solve_alike(op: str, left: Expression, right: Expression, wanted: bool) -> Leaf | bool | None:
    """A value is equal to itself, NaN too, and NULL is not known to be, but for `<=>`."""
    if op == "<=>":
        return wanted if left == right else None
    if not (isinstance(left, Reference) and isinstance(right, Reference) and left.path == right.path):
        return None
    return Leaf(left.path, left.type, not_null(left.type) if (op in ("=", "<=", ">=")) == wanted else EMPTY)


def _compared(op: str, type_: DataType, literal: Literal, wanted: bool) -> ValueSet:
    value, target = literal.value, literal.type
    if value is None:
        if op == "<=>":
            return ONLY_NULL if wanted else not_null(type_)
        return EMPTY
    before, after = cuts(value, type_, target)
    if op == "<=>":
        same = _interval(before, after)
        return same if wanted else ValueSet(same.complement(*line(type_)).intervals, null=True)
    low, high = defined(type_, target)
    if op == "=":
        return _interval(before, after) if wanted else union([(low, before), (after, high)])
    cut = before if op in ("<", ">=") else after
    return _interval(low, cut) if (op in ("<", "<=")) == wanted else _interval(cut, high)


def _interval(low: Cut, high: Cut) -> ValueSet:
    return ValueSet(((low, high),)) if low < high else EMPTY


def _solve_in(predicate: In, wanted: bool) -> Leaf | None:
    literals = [literal for literal in map(_constant, predicate.items) if literal is not None]
    reference = _attribute_in(predicate.operand)
    if reference is None or len(literals) < len(predicate.items):
        return None
    type_ = reference.type
    found = union([cuts(item.value, type_, item.type) for item in literals if item.value is not None])
    if not wanted:
        if any(item.value is None for item in literals):
            found = EMPTY  # not found among NULLs is NULL
        else:
            found = found.complement(*defined(type_, literals[0].type))
    return Leaf(reference.path, type_, found)


def _solve_like(predicate: Like, wanted: bool) -> Leaf | None:
    operand = predicate.operand
    if not isinstance(operand, Reference):
        return None
    prefix, rest = like_prefix(predicate.pattern, predicate.escape)
    if rest == "":
        found = ValueSet((around(prefix, operand.type),))
    elif rest.strip("%") == "":
        found = ValueSet((prefix_interval(prefix),))
    else:
        return None
    return Leaf(operand.path, operand.type, found if wanted else found.complement(*line(operand.type)))


_TRUE, _FALSE = ValueSet(((1, 2),)), ValueSet(((0, 1),))
_SOLVERS: dict[type, Callable[[Any, bool], Leaf | bool | None]] = {
    Reference: _solve_reference,
    IsNull: _solve_is_null,
    Comparison: _solve_comparison,
    In: _solve_in,
    Like: _solve_like,
}


def like_prefix(pattern: str, escape: str) -> tuple[str, str]:
    """A LIKE pattern's literal beginning, and what follows it from the first wildcard on."""
    prefix: list[str] = []
    position = 0
    while position < len(pattern) and (pattern[position] not in "%_" or pattern[position] == escape):
        position += pattern[position] == escape
        prefix.append(pattern[position])
        position += 1
    return "".join(prefix), pattern[position:]


def prefix_interval(prefix: str) -> tuple[Cut, Cut]:
    """The strings that begin with `prefix`: up to the first bytes that sort after all of them."""
    data = prefix.encode()
    if not data:
        return line(types.STRING)
    return (data, 0), (data[:-1] + bytes([data[-1] + 1]), 0)  # UTF-8 has no byte 0xff to overflow


def _constant(expression: Expression) -> Literal | None:
    """The value of an expression that no event can change, such as 2 * 3.5."""
    if isinstance(expression, Literal):
        return expression
    if mentions_attributes(expression):
        return None
    return Literal(evaluate(expression, {}), expression.type)


def _attribute_in(operand: Expression) -> Reference | None:
    """The attribute, bare or under a cast whose order is the attribute's own."""
    if isinstance(operand, Reference) and operand.type.is_scalar:
        return operand
    if isinstance(operand, Cast) and isinstance(operand.operand, Reference) and operand.operand.type != types.STRING:
        return operand.operand
    return None


def cuts(value: Value, source: DataType, target: DataType) -> tuple[Cut, Cut]:
    """Where on the line of `source` the values begin that, cast to `target`, are >= and > `value`."""
    if source == target or (source == types.FLOAT and target == types.DOUBLE):
        return around(value, source)
    if not is_exact(source, target):
        return _search(value, source, target)
    low, high = line(source)
    if isinstance(value, float) and not math.isfinite(value):
        return (low, low) if value < 0 else (high, high)
    before, after = _ends(value, source)
    return min(max(before, low), high), min(max(after, low), high)


def _ends(value: Value, source: DataType) -> tuple[int, int]:
    """The ordinal at or after a literal, and the one after it: it may lie between ordinals."""
    assert isinstance(value, int | float | Decimal)
    if source == types.DATE:
        day, rest = divmod(int(value), _DAY_US)
        return day + (rest > 0), day + 1
    if source.name == "decimal":
        value = Decimal(value).scaleb(source.scale, _EXACT)
    return math.ceil(value), math.floor(value) + 1


def is_exact(source: DataType, target: DataType) -> bool:
    """Whether a cast keeps every value as it is, so that a literal's place can be computed."""
    if source.is_integral:
        return target.is_integral or target.name == "decimal" or (target == types.DOUBLE and source != types.BIGINT)
    if source.name == "decimal":
        return (
            target.name == "decimal"
            and target.scale >= source.scale
            and (target.precision - target.scale >= source.precision - source.scale)
        )
    return source.is_datetime


@lru_cache(maxsize=65_536)
def _search(value: Value, source: DataType, target: DataType) -> tuple[Cut, Cut]:
    """The same by bisection, for casts that round (bigint to double, decimal to double)."""

    def first(reached: int) -> int:
        low, high = defined(source, target)
        while low < high:
            middle = (low + high) // 2
            result = cast(from_ordinal(middle, source), source, target)
            assert result is not None
            if compare(result, value) >= reached:
                high = middle
            else:
                low = middle + 1
        return int(low)

    return first(0), first(1)


@lru_cache(maxsize=4096)
def defined(source: DataType, target: DataType) -> tuple[Cut, Cut]:
    """The part of a line on which a cast does not overflow: its ends may."""
    low, high = line(source)
    if source == target or is_exact(source, target) or source.name == "string":
        return low, high

    def fits(place: int) -> bool:
        return cast(from_ordinal(place, source), source, target) is not None

    def edge(inside: int, outside: int) -> int:
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            inside, outside = (middle, outside) if fits(middle) else (inside, middle)
        return inside

    last = high - 1 if fits(high - 1) else edge(0, high - 1)
    first = low if fits(low) else edge(0, low)
    return first, last + 1
