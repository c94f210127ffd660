"""Compile many filters of one shape at once: the same text but for its literals.

A scanner finds the simplest literals ('…' without escapes, plain numbers) in a whole column of
filters by two regular expressions; what is left of a text is its *shape*. Shapes that differ
only in the names of attributes of the same types share a *template*. The first filter of a
template is read in full. Where its boolean structure is plain, that gives a `Plan` by which the
sets of all others are computed as arrays, with the same laws as `sets.ValueSet`. Rows and
shapes that are out of the ordinary in any way are left to the full parse, so the two agree by
construction: a plan never decides anything the full parse would see differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from tidings.errors import DomainError
from tidings.model import types
from tidings.model.domain import Domain
from tidings.model.filter.columnar import ArrowArray, has_ordinals
from tidings.model.filter.leaves import solve
from tidings.model.filter.lexer import KEYWORDS, TYPED_LITERALS, Lexed
from tidings.model.filter.sets import ValueSet
from tidings.model.filter.tree import (
    And,
    Cast,
    Comparison,
    Expression,
    In,
    Like,
    Literal,
    Not,
    Or,
    Path,
    Reference,
    RLike,
    operands_of,
)
from tidings.model.types import DataType

_STRING = r"'[^'\\]*'"
_NUMBER = r"\b[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?:[lLsSyYfFdD]|[bB][dD])?\b"
_LITERAL = re.compile(f"({_STRING}|{_NUMBER})", re.ASCII)
_HOLE = re.compile(r"('s'|\b0\b)", re.ASCII)
_PART = r"(?:[A-Za-z_][A-Za-z0-9_]*|`[^`]+`)"
_ANY_NAME = rf"{_PART}(?:\s*\.\s*{_PART})*"
_NAME = re.compile(f"'s'|{_ANY_NAME}")
QUOTED_HOLE = "'s'"
_MARK = "\x01"  # stands before the number of a name in a template: no text that is read has it
MAX_PLANNED_BOXES = 16


def shapes_of(texts: ArrowArray) -> ArrowArray:
    """The shape of each text: its strings replaced by 's', its numbers by 0."""
    shapes = pc.replace_substring_regex(texts, _STRING, "'s'")
    return pc.replace_substring_regex(shapes, _NUMBER, "0").dictionary_encode()


class Template(NamedTuple):
    """A shape less the names of its attributes: filters with the same template have the same tree but for names."""

    text: str  # with a mark and a letter for each name, the same letter for the same attribute
    types: tuple[DataType, ...]  # of the attributes, by letter


def template_of(shape: str, attributes: Attributes) -> tuple[Template, tuple[Path, ...]] | None:
    """A shape's template and the attributes it has names of; None where a name is not known."""
    if _MARK in shape:
        return None
    names: dict[Path, DataType] = {}
    letters: dict[Path, str] = {}
    pieces: list[str] = []
    position = 0
    for match in _NAME.finditer(shape):
        word = match.group()
        if word == QUOTED_HOLE or word in KEYWORDS:
            continue
        after = shape[match.end() : match.end() + 8].lstrip()[:3]
        upper = word.upper()
        if upper in KEYWORDS or after[:1] == "(" or (upper in TYPED_LITERALS and after == QUOTED_HOLE):
            continue
        found = attributes[word]
        if found is None:
            return None
        path, type_ = found
        if path not in names:
            names[path] = type_
            letters[path] = chr(ord("A") + len(letters))
        pieces += [shape[position : match.start()], _MARK, letters[path]]
        position = match.end()
    return Template("".join([*pieces, shape[position:]]), tuple(names.values())), tuple(names)


class Attributes(dict[str, "tuple[Path, DataType] | None"]):
    """The attributes of a domain by the names that filters have written, each found once."""

    def __init__(self, domain: Domain) -> None:
        super().__init__()
        self._domain = domain

    def __missing__(self, name: str) -> tuple[Path, DataType] | None:
        try:
            self[name] = self._domain.find(tuple(part.strip("`") for part in re.findall(_PART, name)))
        except DomainError:  # ambiguous
            self[name] = None
        return self[name]


@dataclass(frozen=True, slots=True)
class Hole:
    """A literal that differs from filter to filter."""

    number: int  # among the shape's holes
    kind: str  # of LiteralText
    negative: bool = False


@dataclass(frozen=True, slots=True)
class PlannedLeaf:
    """A predicate on one attribute: `op` against holes, or a set that is the same for all."""

    path: Path
    type: DataType
    wanted: bool
    op: str = ""  # a comparison, "IN" or "LIKE"
    holes: tuple[Hole, ...] = ()
    constant: ValueSet | None = None


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """All or any of the parts."""

    all: bool
    parts: tuple[PlannedLeaf | PlannedNode, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to compute the boxes of every filter of a shape, or a template, from its holes."""

    template: str
    root: PlannedLeaf | PlannedNode  # with the attributes of the filter it was made from
    residual: Expression | None  # of the filter it was made from
    residual_holes: tuple[int, ...]  # those that the residual has: filters with the same texts there share a residual

    def literals(self, texts: ArrowArray) -> list[ArrowArray]:
        """The texts in the holes, a column for each."""
        pattern = ""
        for i, piece in enumerate(_HOLE.split(self.template)):
            if i % 2:
                pattern += f"(?P<h{i // 2}>{_STRING if piece == QUOTED_HOLE else _NUMBER})"
            else:
                pattern += _ANY_NAME.join(map(re.escape, re.split(f"{_MARK}.", piece)))
        found: ArrowArray = pc.extract_regex(texts, pattern=f"^{pattern}$")
        return [found.field(i) for i in range(found.type.num_fields)]


def plan(text: str, shape: str, template: str, lexed: Lexed, expression: Expression) -> Plan | None:
    """The plan of a template from its first filter; None where every filter of it wants the full parse."""
    holes = _holes(text, shape, lexed)
    if not holes:
        return None
    planner = _Planner(holes)
    conditions = expression.operands if isinstance(expression, And) else (expression,)
    rest = [condition for condition in conditions if planner.leaf(condition, True) is None and _is_rest(condition)]
    kept = [condition for condition in conditions if condition not in rest]
    if not kept:
        return None
    root = planner.node(And(tuple(kept)) if len(kept) > 1 else kept[0], True)
    if root is None or _count(root) > MAX_PLANNED_BOXES:
        return None
    in_rest = {number for condition in rest for number in planner.holes_of(condition)}
    if _used(root) | in_rest != {hole.number for hole in holes.values()} or _used(root) & in_rest:
        return None
    rest = list(dict.fromkeys(rest))
    residual = None if not rest else rest[0] if len(rest) == 1 else And(tuple(rest))
    return Plan(template, root, residual, tuple(sorted(in_rest)))


def _is_rest(condition: Expression) -> bool:
    return not isinstance(condition, And | Or | Not)


def _holes(text: str, shape: str, lexed: Lexed) -> dict[int, Hole]:
    """The holes by column, if the scanner and the lexer see the same literals; else none.

    Next to a point a number's extent depends on its digits (1 . 5 and 1.5), so no hole is there.
    """
    if re.search(r"\.\s*\b0\b|\b0\b\s*\.", shape, re.ASCII) or not text.isascii():
        return {}
    spans = [match.span() for match in _LITERAL.finditer(text)]
    written = {literal.written: i for i, literal in enumerate(lexed.literals)}
    if any(span not in written for span in spans):
        return {}
    holes: dict[int, Hole] = {}
    for number, span in enumerate(spans):
        literal = lexed.literals[written[span]]
        holes[literal.at] = Hole(number, literal.kind)
        sign = lexed.sign_of(written[span])
        if sign is not None:
            holes[sign] = Hole(number, literal.kind, negative=True)
    return holes


class _Planner:
    def __init__(self, holes: dict[int, Hole]) -> None:
        self._holes = holes

    def node(self, expression: Expression, wanted: bool) -> PlannedLeaf | PlannedNode | None:
        """The NOTs pushed down to the leaves; None where something cannot be planned."""
        match expression:
            case Not(operand):
                return self.node(operand, not wanted)
            case And(operands) | Or(operands):
                every = isinstance(expression, And) == wanted
                parts: list[PlannedLeaf | PlannedNode] = []
                for operand in operands:
                    part = self.node(operand, wanted)
                    if part is None:
                        return None
                    parts += part.parts if isinstance(part, PlannedNode) and part.all == every else (part,)
                return PlannedNode(every, tuple(parts))
        return self.leaf(expression, wanted)

    def leaf(self, predicate: Expression, wanted: bool) -> PlannedLeaf | None:
        if not self.holes_in(predicate):
            solved = solve(predicate)
            if solved is None:
                return None
            values = solved.when_true if wanted else solved.when_false
            if values.is_empty or not has_ordinals(solved.type):
                return None
            return PlannedLeaf(solved.path, solved.type, wanted, constant=values)
        match predicate:
            case Comparison(op, left, right) if op != "<=>":
                if isinstance(left, Literal):
                    op = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(op, op)  # type: ignore[assignment]
                    left, right = right, left
                return self._against(left, [right], op, wanted)
            case In(operand, items):
                return self._against(operand, list(items), "IN", wanted)
            case Like(Reference(path, type_), _, "\\", at):
                hole = self._holes[at]
                return PlannedLeaf(path, type_, wanted, "LIKE", (hole,)) if hole.kind == "string" else None
        return None

    def _against(self, operand: Expression, literals: list[Expression], op: str, wanted: bool) -> PlannedLeaf | None:
        reference = operand.operand if isinstance(operand, Cast) else operand
        if not isinstance(reference, Reference):
            return None
        holes = [self._holes.get(item.at) if isinstance(item, Literal) else None for item in literals]
        if any(hole is None or not _fits(hole.kind, reference.type) for hole in holes):
            return None
        return PlannedLeaf(
            reference.path, reference.type, wanted, op, tuple(hole for hole in holes if hole is not None)
        )

    def holes_in(self, expression: Expression) -> bool:
        return any(True for _ in self.holes_of(expression))

    def holes_of(self, expression: Expression) -> Iterator[int]:
        if isinstance(expression, Literal | Like | RLike) and expression.at in self._holes:
            yield self._holes[expression.at].number
        for operand in operands_of(expression):
            yield from self.holes_of(operand)


_KINDS = {
    "string": ("string",),
    "date": ("string", "DATE"),
    "timestamp": ("string", "TIMESTAMP", "TIMESTAMP_LTZ"),
    "timestamp_ntz": ("string", "TIMESTAMP_NTZ"),
}


def _fits(kind: str, type_: DataType) -> bool:
    if not has_ordinals(type_) and type_ != types.STRING:
        return False
    return kind in _KINDS.get(type_.name, ("number",) if type_.is_numeric else ())


def _used(part: PlannedLeaf | PlannedNode) -> set[int]:
    """The holes that a plan looks at: all of them, or it would miss a difference."""
    if isinstance(part, PlannedLeaf):
        return {hole.number for hole in part.holes}
    return set().union(*map(_used, part.parts))


def _count(part: PlannedLeaf | PlannedNode) -> int:
    if isinstance(part, PlannedLeaf):
        return 1
    counts = [_count(inner) for inner in part.parts]
    return int(np.prod(counts)) if part.all else sum(counts)
