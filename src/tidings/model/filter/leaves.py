"""The predicates that an index can serve: those that ask where one attribute's value lies.

`solve` gives for such a predicate the set of values for which it is TRUE and the set for which
it is FALSE (for the others it is NULL). Where Spark casts the attribute to meet the literal,
the literal's place is found on the attribute's own line: the casts are monotone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from tidings.model import types
from tidings.model.filter.interpret import evaluate
from tidings.model.filter.sets import EMPTY, ONLY_NULL, Cut, ValueSet, around, from_ordinal, line, not_null, union
from tidings.model.filter.tree import (
    Cast,
    Comparison,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Path,
    Reference,
    Value,
    attributes_of,
)
from tidings.model.filter.values import cast, compare
from tidings.model.types import DataType

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<=>": "<=>"}
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Leaf:
    """One attribute's part in a predicate."""

    path: Path
    type: DataType
    when_true: ValueSet
    when_false: ValueSet


def solve(predicate: Expression) -> Leaf | None:
    """The leaf of an indexable predicate; None for any other."""
    match predicate:
        case Reference(path, type_) if type_ == types.BOOLEAN:
            return Leaf(path, type_, ValueSet(((1, 2),)), ValueSet(((0, 1),)))
        case IsNull(Reference(path, type_)) if type_.is_scalar:
            return Leaf(path, type_, ONLY_NULL, not_null(type_))
        case Comparison(op, Reference(path, type_), Reference() as other) if other.path == path and op != "<=>":
            # A value is equal to itself, NaN too, and NULL is not known to be.
            always = op in ("=", "<=", ">=")
            return Leaf(path, type_, not_null(type_) if always else EMPTY, EMPTY if always else not_null(type_))
        case Comparison(op, left, right):
            if (literal := _constant(right)) is not None:
                return _comparison(op, left, literal.value, literal.type)
            if (literal := _constant(left)) is not None:
                return _comparison(_FLIPPED[op], right, literal.value, literal.type)
        case In(operand, items):
            literals = [literal for literal in map(_constant, items) if literal is not None]
            return _in(operand, literals) if len(literals) == len(items) else None
        case Like(Reference(path, type_), pattern, escape):
            return _like(path, type_, pattern, escape)
    return None


def _comparison(op: str, operand: Expression, value: Value, target: DataType) -> Leaf | None:
    reference = _attribute_in(operand)
    if reference is None:
        return None
    path, type_ = reference.path, reference.type
    if value is None:
        return Leaf(path, type_, ONLY_NULL, not_null(type_)) if op == "<=>" else Leaf(path, type_, EMPTY, EMPTY)
    low, high = defined(type_, target)
    before, after = cuts(value, type_, target)
    if op == "<=>":
        same = union([(before, after)])
        others = same.complement(*line(type_))
        return Leaf(path, type_, same, ValueSet(others.intervals, null=True))
    match op:
        case "=":
            return Leaf(path, type_, union([(before, after)]), union([(low, before), (after, high)]))
        case "<" | ">=":
            below, rest = union([(low, before)]), union([(before, high)])
        case _:
            below, rest = union([(low, after)]), union([(after, high)])
    return Leaf(path, type_, below, rest) if op in ("<", "<=") else Leaf(path, type_, rest, below)


def _in(operand: Expression, literals: list[Literal]) -> Leaf | None:
    reference = _attribute_in(operand)
    if reference is None:
        return None
    type_ = reference.type
    found = union(cuts(item.value, type_, item.type) for item in literals if item.value is not None)
    if any(item.value is None for item in literals):
        return Leaf(reference.path, type_, found, EMPTY)  # not found among NULLs is NULL
    return Leaf(reference.path, type_, found, found.complement(*defined(type_, literals[0].type)))


def _like(path: Path, type_: DataType, pattern: str, escape: str) -> Leaf | None:
    prefix, rest = like_prefix(pattern, escape)
    if rest == "":
        found = ValueSet((around(prefix, type_),))
    elif rest.strip("%") == "":
        found = ValueSet((prefix_interval(prefix),))
    else:
        return None
    return Leaf(path, type_, found, found.complement(*line(type_)))


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
    if any(True for _ in attributes_of(expression)):
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
    place = _rational(value, source, target)
    before, after = math.ceil(place), math.floor(place) + 1
    return min(max(before, low), high), min(max(after, low), high)


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


def _rational(value: Value, source: DataType, target: DataType) -> Fraction:
    """A literal's place on the line of `source`, between its ordinals where it is no value of it."""
    assert isinstance(value, int | float | Decimal)
    if source == types.DATE:
        return Fraction(int(value), _DAY_US)
    if source.is_datetime:
        return Fraction(int(value))
    return Fraction(value) * Fraction(10**source.scale)


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
