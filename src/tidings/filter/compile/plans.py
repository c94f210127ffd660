"""The plan of a shape: the normal form of its first filter, with holes where filters differ.

The filter is read in full, its literals are marked as holes, and its tree is brought to normal
form by the same rules as any other (`normal.normalise`), on sets that are yet to be computed. What
these rules decide by a literal's value becomes a `Likeness` that other filters must share to be
served by the plan, or is looked at filter by filter when the plan is carried out (`planned`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from tidings.filter.compile.literal_columns import PREFIX, Hole, Likeness, kind_of_pattern, plain_form
from tidings.filter.compile.shapes import holes_of
from tidings.filter.cost import always_affordable
from tidings.filter.normal.filter_table import has_ordinals
from tidings.filter.normal.leaf_predicates import Leaf, mentions_attributes, solve
from tidings.filter.normal.normal_form import MAX_INTERVALS, normalise
from tidings.filter.normal.residuals import emptied
from tidings.filter.normal.value_sets import ValueSet, line
from tidings.filter.syntax.lexer import Lexed
from tidings.filter.tree import (
    And,
    Cast,
    Comparison,
    Expression,
    In,
    Like,
    Literal,
    Not,
    Or,
    Reference,
    RLike,
    XPathBoolean,
    attributes_of,
    mapped,
    operands_of,
)
from tidings.model import types
from tidings.model.types import DataType, Path

MAX_PLANNED_BOXES = 16
_MAX_WIDTH = 64  # intervals of one set, beside one for each literal
_MAX_PARTS = 64  # predicates of a residual
_MAX_SCALE = 15  # of a decimal literal that is compared with whole numbers as it is
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class PlannedSet:
    """A set of one attribute's values, computed when the plan is carried out; as a `ValueSet` to the normal form."""

    __slots__ = ()

    @property
    def is_empty(self) -> bool:
        return False  # as far as the plan can tell

    @property
    def size(self) -> int:
        return 0  # not known yet: `plan` sees to it that it makes no difference

    def __and__(self, other: PlannedSet) -> PlannedSet:
        return Combined(True, (self, other))

    def __or__(self, other: PlannedSet) -> PlannedSet:
        return Combined(False, (self, other))


@dataclass(frozen=True, slots=True)
class Combined(PlannedSet):
    """The values in all, or in any, of the parts."""

    all: bool
    parts: tuple[PlannedSet, ...]


@dataclass(frozen=True, slots=True)
class Against(PlannedSet):
    """A comparison (op "=", "<=>", "<" …), IN or LIKE with plain literals."""

    path: Path
    type: DataType
    op: str
    wanted: bool
    holes: tuple[Hole, ...]


@dataclass(frozen=True, slots=True)
class Constant(PlannedSet):
    """The same set for all filters."""

    path: Path
    type: DataType
    values: ValueSet


@dataclass(frozen=True, slots=True)
class Solved(PlannedSet):
    """Any other predicate on one attribute, solved for every filter by itself."""

    path: Path
    type: DataType
    predicate: Expression  # with holes
    wanted: bool


class PlannedBox(NamedTuple):
    sets: Mapping[Path, PlannedSet]
    residual: Expression | None  # with holes


class Plan(NamedTuple):
    """The boxes of every filter that is like the first one in all that matters."""

    boxes: tuple[PlannedBox, ...]
    likenesses: frozenset[Likeness]


class PlannedTree(NamedTuple):
    """The tree of every filter that is like the first one in all that matters."""

    tree: Expression  # with holes
    likenesses: frozenset[Likeness]


class _CannotPlanError(Exception):
    """The filter, and maybe all of its shape, wants the full parse."""


def plan(text: str, shape: str, lexed: Lexed, expression: Expression) -> Plan | None:
    """The plan of a shape from one of its filters; None where that cannot give one."""
    holes = holes_of(text, shape, lexed)
    if holes is None or not always_affordable(expression):
        return None
    planner = _Planner(lexed, holes)
    try:
        form = normalise(planner.marked(expression), planner.solve)
        boxes = tuple(PlannedBox(cast(Any, box.sets), box.residual) for box in form.boxes)
        if not 0 < len(boxes) <= MAX_PLANNED_BOXES or not all(map(_is_small, boxes)):
            return None
        if len(boxes) > 1 and 2 * len(boxes) * len(lexed.literals) > MAX_INTERVALS:
            return None
        for box in boxes:
            if box.residual is not None:
                planner.require_of_literals(box.residual)
    except _CannotPlanError:
        return None
    return Plan(boxes, frozenset(planner.likenesses)) if planner.saw_all else None


def _is_small(box: PlannedBox) -> bool:
    """Whether a plan's arrays stay in proportion to the filters' texts, although every interval meets every other."""
    parts = len(operands_of(box.residual)) if isinstance(box.residual, And | Or) else 1
    return parts <= _MAX_PARTS and all(_width(values) <= _MAX_WIDTH + _holes(values) for values in box.sets.values())


def _width(values: PlannedSet) -> int:
    """How many intervals a set is computed as, at most."""
    match values:
        case Combined(True, parts):
            return math.prod(map(_width, parts))
        case Combined(False, parts):
            return sum(map(_width, parts))
        case Constant(_, _, known):
            return len(known.intervals)
    return _holes(values) + 1


def _holes(values: PlannedSet) -> int:
    match values:
        case Combined(_, parts):
            return sum(map(_holes, parts))
        case Against(_, _, _, _, holes):
            return len(holes)
        case Solved(_, _, predicate, _):
            return sum(1 for _ in literal_holes(predicate))
    return 0


def plan_tree(text: str, shape: str, lexed: Lexed, expression: Expression) -> PlannedTree | None:
    """The tree of a shape from one of its filters, as it is and not as a normal form; None where that gives no plan."""
    holes = holes_of(text, shape, lexed)
    if holes is None or not always_affordable(expression):
        return None
    planner = _Planner(lexed, holes)
    tree = planner.marked(expression)
    try:
        for predicate in predicates_of(tree):
            planner.require_of_predicate(predicate)
    except _CannotPlanError:
        return None
    return PlannedTree(tree, frozenset(planner.likenesses)) if planner.saw_all else None


def predicates_of(expression: Expression) -> Iterator[Expression]:
    """What AND, OR and NOT join, in the order of the text."""
    if isinstance(expression, And | Or | Not):
        for operand in operands_of(expression):
            yield from predicates_of(operand)
    else:
        yield expression


def literal_holes(expression: Expression) -> Iterator[tuple[Hole, DataType] | Literal]:
    """The literals that are not NULL, in the order of the tree: a hole and the type it is read as, or as it is."""
    if isinstance(expression, Literal):
        if isinstance(expression.value, Hole):
            yield expression.value, expression.type
        elif expression.value is not None:
            yield expression
    for operand in operands_of(expression):
        yield from literal_holes(operand)


def pattern_holes(expression: Expression) -> Iterator[tuple[Hole, str | None]]:
    """The holes of patterns, in the order of the tree, with the escape of a LIKE; None for an RLIKE."""
    for operand in operands_of(expression):
        yield from pattern_holes(operand)
    if isinstance(expression, Like | RLike) and isinstance(expression.pattern, Hole):
        yield expression.pattern, expression.escape if isinstance(expression, Like) else None


def path_holes(expression: Expression) -> Iterator[Hole]:
    """The holes of paths over XML, which have to be read one by one."""
    match expression:
        case XPathBoolean(_, Literal(Hole() as hole)):
            yield hole
    for operand in operands_of(expression):
        yield from path_holes(operand)


class _Planner:
    def __init__(self, lexed: Lexed, holes: dict[int, Hole]) -> None:
        self._holes = holes
        self._literals = {holes[literal.at].number: literal for literal in lexed.literals if literal.at in holes}
        self._values: dict[tuple[Hole, DataType], Any] = {}
        self.likenesses: set[Likeness] = set()
        self.seen: set[int] = set()
        for hole in holes.values():
            if hole.escape:
                self._require(hole, "text")

    @property
    def saw_all(self) -> bool:
        """Whether no hole was lost sight of: such a one might make a difference in another filter."""
        return self.seen == {hole.number for hole in self._holes.values()}

    def marked(self, expression: Expression) -> Expression:
        """The tree with holes for values, so that no two literals are the same by chance."""

        def mark(leaf: Expression) -> Expression:
            if isinstance(leaf, Reference) or leaf.at not in self._holes:  # type: ignore[union-attr]
                return leaf
            hole: Any = self._holes[leaf.at]  # type: ignore[union-attr]
            if isinstance(leaf, Literal):
                if leaf.value is None:
                    return leaf
                self._values[hole, leaf.type] = leaf.value
                return Literal(hole, leaf.type, leaf.at)
            assert isinstance(leaf, Like | RLike)
            self._values[hole, types.STRING] = leaf.pattern
            if isinstance(leaf, Like):
                return Like(leaf.operand, hole, leaf.escape, leaf.at)
            return RLike(leaf.operand, hole, leaf.at)

        return mapped(expression, mark)

    def _unmarked(self, expression: Expression) -> Expression:
        def unmark(leaf: Expression) -> Expression:
            if isinstance(leaf, Literal) and isinstance(leaf.value, Hole):
                return Literal(self._values[leaf.value, leaf.type], leaf.type, leaf.at)
            if isinstance(leaf, Like) and isinstance(leaf.pattern, Hole):
                return Like(leaf.operand, self._values[leaf.pattern, types.STRING], leaf.escape)
            if isinstance(leaf, RLike) and isinstance(leaf.pattern, Hole):
                return RLike(leaf.operand, self._values[leaf.pattern, types.STRING])
            return leaf

        return mapped(expression, unmark)

    def solve(self, predicate: Expression, wanted: bool) -> Leaf | bool | None:
        """As `leaves.solve`, for all filters that are like this one."""
        solved = solve(self._unmarked(predicate), wanted)
        literals = [item for item in literal_holes(predicate) if not isinstance(item, Literal)]
        patterns = list(pattern_holes(predicate))
        if isinstance(solved, bool):
            if (literals or patterns) and mentions_attributes(predicate):
                raise _CannotPlanError  # equal on both sides by chance
            for hole, _ in [*literals, *patterns]:
                self._require(hole, "text")
            return solved
        if solved is None:
            if isinstance(predicate, Like) and isinstance(predicate.operand, Reference):
                for hole, _ in patterns:
                    self._require(hole, "pattern", predicate.escape)
            if _may_be_the_same(predicate):
                raise _CannotPlanError
            return None
        path, type_, values = solved
        planned: PlannedSet
        if not literals and not patterns:
            if not has_ordinals(type_) and values.intervals not in ((), (line(type_),)):
                raise _CannotPlanError
            planned = Constant(path, type_, values)
            return False if values.is_empty else Leaf(path, type_, cast(Any, planned))
        return Leaf(path, type_, cast(Any, self._planned(path, type_, predicate, wanted)))

    def _planned(self, path: Path, type_: DataType, predicate: Expression, wanted: bool) -> PlannedSet:
        op, holes = _against(predicate)
        if op == "LIKE":
            (hole,) = holes
            if kind_of_pattern(self._literals[hole.number].text, "\\") != PREFIX:
                raise _CannotPlanError
            self._require(hole, "pattern", "\\")
            return Against(path, type_, op, wanted, holes)
        if holes and (has_ordinals(type_) or type_ == types.STRING) and self._require_plain(holes, type_):
            return Against(path, type_, op, wanted, holes)
        if not has_ordinals(type_) or any(True for _ in pattern_holes(predicate)):
            raise _CannotPlanError
        self.require_of_literals(predicate)
        return Solved(path, type_, predicate, wanted)

    def _require_plain(self, holes: tuple[Hole, ...], type_: DataType) -> bool:
        """That these literals are plain ones of an attribute's type, if this filter's are."""
        fit = all(self._fits(hole, type_) for hole in holes)
        for hole in holes if fit else ():
            self._require(hole, "form", plain_form(type_))
        return fit

    def _fits(self, hole: Hole, type_: DataType) -> bool:
        kinds = _KINDS.get(type_.name, ("number",) if type_.is_numeric else ())
        return hole.kind in kinds and re.fullmatch(plain_form(type_), self._literals[hole.number].text) is not None

    def require_of_predicate(self, predicate: Expression) -> None:
        """That the predicate says the same of all literals that it may have."""
        op, holes = _against(predicate)
        if not holes or op == "LIKE" or not self._require_plain(holes, next(attributes_of(predicate)).type):
            self.require_of_literals(predicate)

    def require_of_literals(self, expression: Expression) -> None:
        """That the tree's types are the same for all."""
        for hole, _ in pattern_holes(expression):
            self.seen.add(hole.number)
        for item in literal_holes(expression):
            if isinstance(item, Literal):
                continue
            hole, type_ = item
            self.seen.add(hole.number)
            if hole.kind == "number":
                # Digits matter to the tree where the literal is a decimal in it: else a number's kind is enough.
                source = self._literals[hole.number].value(negative=hole.negative).type
                if source.name == "decimal" and (type_.is_integral or source.scale > _MAX_SCALE):
                    raise _CannotPlanError  # a bound that was rounded, or may be
                exact = type_.name == "decimal" or (source.name == "decimal" and type_.name != "double")
                self._require(hole, "type" if exact else "class")

    def _require(self, hole: Hole, what: str, form: str = "") -> None:
        self.seen.add(hole.number)
        self.likenesses.add(Likeness(hole, what, form))


_KINDS = {
    "string": ("string",),
    "date": ("string", "DATE"),
    "timestamp": ("string", "TIMESTAMP", "TIMESTAMP_LTZ"),
    "timestamp_ntz": ("string", "TIMESTAMP_NTZ"),
}


def _against(predicate: Expression) -> tuple[str, tuple[Hole, ...]]:
    """The operator and the holes of a predicate that holds an attribute against nothing else; no holes for another."""
    match predicate:
        case Comparison(op, left, right):
            if isinstance(left, Literal):
                return _FLIPPED.get(op, op), _holes_against(right, (left,))
            return op, _holes_against(left, (right,))
        case In(operand, items):
            return "IN", _holes_against(operand, items)
        case Like(Reference(), Hole() as pattern, "\\"):
            return "LIKE", (pattern,)
    return "", ()


def _holes_against(operand: Expression, items: tuple[Expression, ...]) -> tuple[Hole, ...]:
    if not isinstance(operand, Reference | Cast) or (
        isinstance(operand, Cast) and not isinstance(operand.operand, Reference)
    ):
        return ()
    holes = [item.value for item in items if isinstance(item, Literal)]
    return tuple(holes) if len(holes) == len(items) and all(isinstance(hole, Hole) for hole in holes) else ()  # type: ignore[arg-type]


def _may_be_the_same(predicate: Expression) -> bool:
    """Whether both sides of a `<=>` differ at most in literals: then they are the same in some filters."""
    if not (isinstance(predicate, Comparison) and predicate.op == "<=>"):
        return False
    return mapped(predicate.left, emptied) == mapped(predicate.right, emptied)
