"""The normal form of one filter: a union of boxes, each with an exact residual.

A box asks of some attributes that their values lie in a set (`sets.ValueSet`), and of the
event that its residual, what no index can serve, is TRUE. An event matches the filter exactly
when it is in a box. SQL's NULL needs no special case: with every NOT pushed down to the
predicates, a filter is TRUE where enough of its predicates are TRUE, so each predicate is
replaced by the set of values that make it TRUE (or FALSE, under a NOT).

Boxes and their intervals are counted before they are expanded: past `MAX_BOXES` or
`MAX_INTERVALS` a part stays residual, and its hull, the least box around it, still narrows the
search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import and_, or_
from typing import TypeAlias

from tidings.filter.cost import node_count
from tidings.filter.normal.leaf_predicates import Leaf, solve
from tidings.filter.normal.value_sets import ValueSet, everything
from tidings.filter.tree import And, Expression, Literal, Not, Or, operands_of
from tidings.model.types import BOOLEAN, DataType, Path

MAX_BOXES = 256
MAX_INTERVALS = 10_000  # of all boxes together: no filter has as many but where long lists are multiplied
MAX_RESIDUAL_NODES = 20_000  # that boxes repeat in their residuals: more, and the filter stays one box

Combine: TypeAlias = Callable[[ValueSet, ValueSet], ValueSet]  # as the operators & and |
Solver: TypeAlias = Callable[[Expression, bool], Leaf | bool | None]  # as `leaves.solve`


@dataclass(frozen=True, slots=True)
class Box:
    """Sets by attribute, none of them empty, and a residual, if any."""

    sets: Mapping[Path, ValueSet]
    residual: Expression | None = None


@dataclass(frozen=True, slots=True)
class NormalForm:
    """No boxes: the filter never matches. One box that asks for nothing: it always does."""

    boxes: tuple[Box, ...]

    @property
    def never(self) -> bool:
        return not self.boxes

    @property
    def always(self) -> bool:
        return any(not box.sets and box.residual is None for box in self.boxes)


# A filter with its NOTs pushed down. Every part keeps the expression it stands for, so that it
# can stay residual.


@dataclass(frozen=True, slots=True)
class _Within:
    path: Path
    type: DataType
    values: ValueSet
    source: Expression


@dataclass(frozen=True, slots=True)
class _Rest:
    source: Expression


@dataclass(frozen=True, slots=True)
class _All:
    parts: tuple[_Part, ...]
    source: Expression
    boxes: int = 1


@dataclass(frozen=True, slots=True)
class _Any:
    parts: tuple[_Part, ...]
    source: Expression
    boxes: int = 1


_Part: TypeAlias = "_Within | _Rest | _All | _Any"
_TRUE = _All((), Literal(True, BOOLEAN))
_FALSE = _Any((), Literal(False, BOOLEAN), 0)


def normalise(expression: Expression, solver: Solver = solve) -> NormalForm:
    """The normal form of a filter's tree."""
    return NormalForm(tuple(_boxes(_push_down(expression, True, solver))))


def _push_down(expression: Expression, wanted: bool, solver: Solver) -> _Part:
    """The part that holds exactly where `expression` is `wanted`: TRUE, or FALSE."""
    if isinstance(expression, Not):
        return _push_down(expression.operand, not wanted, solver)
    if isinstance(expression, And | Or):
        parts = [_push_down(operand, wanted, solver) for operand in expression.operands]
        source: Expression = expression if wanted else Not(expression)
        return _all(parts, source) if isinstance(expression, And) == wanted else _any(parts, source)
    leaf = solver(expression, wanted)
    if leaf is None:
        return _Rest(expression if wanted else Not(expression))
    if isinstance(leaf, bool):
        return _TRUE if leaf else _FALSE
    return _within(leaf.path, leaf.type, leaf.values, expression if wanted else Not(expression))


def _within(path: Path, type_: DataType, values: ValueSet, source: Expression) -> _Part:
    if values.is_empty:
        return _FALSE
    if values == everything(type_):
        return _TRUE
    return _Within(path, type_, values, source)


def _all(parts: Iterable[_Part], source: Expression) -> _Part:
    """A conjunction: sets of one attribute meet in one set."""
    flat = _flatten(parts, _All)
    if any(part is _FALSE for part in flat):
        return _FALSE
    merged = _merge(flat, and_, And)
    if any(part is _FALSE for part in merged):
        return _FALSE
    if len(merged) == 1:
        return merged[0]
    return _All(tuple(merged), source, _product(merged)) if merged else _TRUE


def _any(parts: Iterable[_Part], source: Expression) -> _Part:
    """A disjunction: sets of one attribute join in one set."""
    flat = _flatten(parts, _Any)
    if any(part is _TRUE for part in flat):
        return _TRUE
    merged = _merge(flat, or_, Or)
    if any(part is _TRUE for part in merged):
        return _TRUE
    if len(merged) == 1:
        return merged[0]
    return _Any(tuple(merged), source, sum(map(_count, merged))) if merged else _FALSE


def _flatten(parts: Iterable[_Part], kind: type[_All] | type[_Any]) -> list[_Part]:
    flat: list[_Part] = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else (part,)
    return flat


def _combined(sets: list[ValueSet], combine: Combine) -> ValueSet:
    """All of these sets in one, pair by pair: one after the other would take quadratic time."""
    while len(sets) > 1:
        pairs = [combine(sets[i], sets[i + 1]) for i in range(0, len(sets) - 1, 2)]
        sets = pairs + sets[len(sets) - len(sets) % 2 :]
    return sets[0]


def _merge(parts: list[_Part], combine: Combine, node: type[And] | type[Or]) -> list[_Part]:
    by_path: dict[Path, list[_Within]] = {}
    others: list[_Part] = []
    for part in parts:
        if isinstance(part, _Within):
            by_path.setdefault(part.path, []).append(part)
        else:
            others.append(part)
    if len(others) > 1:
        others = list(dict.fromkeys(others))
    merged: list[_Part] = []
    for path, same in by_path.items():
        if len(same) == 1:
            merged.append(same[0])
            continue
        values = _combined([part.values for part in same], combine)
        source = node(tuple(part.source for part in same))
        merged.append(_within(path, same[0].type, values, source))
    return merged + others


def _count(part: _Part) -> int:
    return part.boxes if isinstance(part, _All | _Any) else 1


def _product(parts: Iterable[_Part]) -> int:
    result = 1
    for part in parts:
        result *= _count(part)
    return result


def _boxes(part: _Part) -> list[Box]:
    """Expand a part into at most MAX_BOXES boxes."""
    match part:
        case _Within(path, _, values, _):
            return [Box({path: values})]
        case _Rest(source):
            return [Box({}, source)]
        case _Any(parts, _, count) if count <= MAX_BOXES:
            return _distinct(box for inner in parts for box in _boxes(inner))
        case _Any():
            return _hull_box(part)
        case _All(parts, _, _):
            boxes, rest = [_plain_box(parts)], list[_Part]()
            for inner in sorted((inner for inner in parts if isinstance(inner, _All | _Any)), key=_count):
                if len(boxes) * _count(inner) <= MAX_BOXES and _fits(boxes, others := _boxes(inner)):
                    boxes = _distinct(_meet_each(boxes, others))
                else:
                    rest.append(inner)
            if not rest:
                return boxes
            # Met once, at the end: the rest may be hundreds of parts, and the boxes share what is left of them.
            left = _conjunction(rest)
            if sum(box.residual is not None for box in boxes) * node_count(left) > MAX_RESIDUAL_NODES:
                return _hull_box(part)
            return list(_meet_each(boxes, _hull_box(_All(tuple(rest), left))))


def _plain_box(parts: tuple[_Part, ...]) -> Box:
    """What a conjunction asks without alternatives: sets of different attributes, and residuals."""
    sets = {inner.path: inner.values for inner in parts if isinstance(inner, _Within)}
    sources = [conjunct for inner in parts if isinstance(inner, _Rest) for conjunct in _conjuncts(inner.source)]
    residuals = tuple(dict.fromkeys(sources))
    return Box(sets, And(residuals) if len(residuals) > 1 else residuals[0] if residuals else None)


def _fits(boxes: list[Box], others: list[Box]) -> bool:
    """Whether the boxes that are in one of each ask for few enough things."""
    return len(others) * _rows(boxes) + len(boxes) * _rows(others) <= MAX_INTERVALS


def _rows(boxes: list[Box]) -> int:
    """The intervals of all boxes, and the predicates of their residuals."""
    return sum(
        sum(values.size for values in box.sets.values()) + (len(_conjuncts(box.residual)) if box.residual else 0)
        for box in boxes
    )


def _meet_each(boxes: list[Box], others: list[Box]) -> Iterator[Box]:
    return (met for box in boxes for other in others if (met := _meet(box, other)) is not None)


def _conjunction(parts: list[_Part]) -> Expression:
    conjuncts = [conjunct for part in parts for conjunct in _conjuncts(part.source)]
    return And(tuple(conjuncts)) if len(conjuncts) > 1 else conjuncts[0]


def _distinct(boxes: Iterable[Box]) -> list[Box]:
    """Boxes without repeats; one that asks for nothing stands for them all."""
    distinct: list[Box] = []
    by_paths: dict[frozenset[Path], list[Box]] = {}  # boxes of different attributes differ: no need to look closer
    for box in boxes:
        if not box.sets and box.residual is None:
            return [box]
        alike = by_paths.setdefault(frozenset(box.sets), [])
        if box not in alike:
            alike.append(box)
            distinct.append(box)
    return distinct


def _meet(left: Box, right: Box) -> Box | None:
    """The box in both; None where it is empty."""
    sets = dict(left.sets)
    for path, values in right.sets.items():
        sets[path] = sets[path] & values if path in sets else values
        if sets[path].is_empty:
            return None
    if left.residual is None or right.residual is None:
        return Box(sets, left.residual or right.residual)
    residuals = [*_conjuncts(left.residual), *_conjuncts(right.residual)]
    return Box(sets, And(tuple(dict.fromkeys(residuals))) if len(set(residuals)) > 1 else residuals[0])


def _conjuncts(residual: Expression) -> tuple[Expression, ...]:
    return operands_of(residual) if isinstance(residual, And) else (residual,)


def _hull_box(part: _Part) -> list[Box]:
    """The part as one box: its hull narrows the search, its expression decides."""
    hull = _hull(part)
    return [] if any(values.is_empty for values in hull.values()) else [Box(hull, part.source)]


def _hull(part: _Part) -> dict[Path, ValueSet]:
    """The least box around a part: what every event in it satisfies."""
    match part:
        case _Within(path, _, values, _):
            return {path: values}
        case _Rest():
            return {}
        case _All(parts, _, _):
            met: dict[Path, ValueSet] = {}
            for hull in map(_hull, parts):
                for path, values in hull.items():
                    met[path] = met[path] & values if path in met else values
            return met
        case _Any(parts, _, _):
            hulls = [_hull(inner) for inner in parts]
            shared = set(hulls[0]).intersection(*hulls[1:])
            return {path: _combined([hull[path] for hull in hulls], or_) for path in hulls[0] if path in shared}
