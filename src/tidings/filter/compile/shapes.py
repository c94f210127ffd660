"""Filters of one shape: the same text but for its literals.

A scanner finds the literals in a whole column of filters by two regular expressions; what is
left of a text is its *shape*. Shapes that differ only in the names of attributes of the same
types share a *template*. The scanner only guesses: a plan is made from a filter that the lexer
has read, and only where both see the same literals.

Filters of one template that are alike in the literals that matter share a *plan*. The caller defines what a plan is:
`plans.plan` gives the normal form of a shape, `plans.plan_tree` its tree. Both are made from one filter of a template
and serve all that are like it; a filter that no plan serves is to be read by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import DomainError, FilterError
from tidings.filter.compile.literal_columns import Hole, Holes, Likeness
from tidings.filter.normal.filter_table import Rows
from tidings.filter.syntax.lexer import KEYWORDS, TYPED_LITERALS, Lexed, lex
from tidings.filter.syntax.parser import resolve
from tidings.filter.tree import Expression
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.types import DataType, Path

_STRING = r"""\b[rR]'[^']*'|\b[rR]"[^"]*"|'(?:[^'\\]|\\(?s:.)|'')*'|"(?:[^"\\]|\\(?s:.)|"")*\""""
_PLAIN_STRING = r"'[^'\\]*'"
_NUMBER = r"\b[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?:[lLsSyYfFdD]|[bB][dD])?\b"
_LITERAL = re.compile(f"({_STRING}|{_NUMBER})", re.ASCII)
_HOLE = re.compile(r"('s'|\b0\b)", re.ASCII)
_PART = r"(?:[A-Za-z_][A-Za-z0-9_]*|`[^`]+`)"
_ANY_NAME = rf"{_PART}(?:\s*\.\s*{_PART})*"
_NAME = re.compile(f"'s'|{_ANY_NAME}")
QUOTED_HOLE = "'s'"
_MARK = "\x01"  # stands before the number of a name in a template: no text that is read has it


def shapes_of(texts: ArrowArray) -> ArrowArray:
    """The shape of each text: its strings replaced by 's', its numbers by 0."""
    shapes = pc.replace_substring_regex(texts, _STRING, QUOTED_HOLE)
    return pc.replace_substring_regex(shapes, _NUMBER, "0").dictionary_encode()


def texts_in_holes(template: str, texts: ArrowArray) -> list[ArrowArray]:
    """The texts in the holes of filters of one template, a column for each hole."""
    found: ArrowArray = pc.extract_regex(texts, pattern=_pattern(template, _PLAIN_STRING))
    columns = [found.field(i) for i in range(found.type.num_fields)]
    if found.null_count:  # strings with quotes and escapes in them: their pattern is much the slower one
        odd: ArrowArray = pc.is_null(found)
        general = pc.extract_regex(texts.filter(odd), pattern=_pattern(template, _STRING))
        columns = [pc.replace_with_mask(column, odd, general.field(i)) for i, column in enumerate(columns)]
    return columns


def _pattern(template: str, string: str) -> str:
    pattern = ""
    for i, piece in enumerate(_HOLE.split(template)):
        if i % 2:
            pattern += f"(?P<h{i // 2}>{string if piece == QUOTED_HOLE else _NUMBER})"
        else:
            pattern += _ANY_NAME.join(map(re.escape, re.split(f"{_MARK}.", piece)))
    return f"^{pattern}$"


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


def holes_of(text: str, shape: str, lexed: Lexed) -> dict[int, Hole] | None:
    """The holes of a filter by the columns of its literals; None where scanner and lexer see different literals.

    Next to a point a number's extent depends on its digits (1 . 5 and 1.5), so no hole is there.
    """
    if re.search(r"\.\s*\b0\b|\b0\b\s*\.", shape, re.ASCII):
        return None
    spans = [match.span() for match in _LITERAL.finditer(text)]
    written = {literal.written: i for i, literal in enumerate(lexed.literals)}
    if any(span not in written for span in spans):
        return None
    holes: dict[int, Hole] = {}
    for number, span in enumerate(spans):
        literal = lexed.literals[written[span]]
        before = lexed.before(written[span])
        holes[literal.at] = Hole(number, literal.kind, lowered=before == "ILIKE", escape=before == "ESCAPE")
        sign = lexed.sign_of(written[span])
        if sign is not None:
            holes[sign] = Hole(number, literal.kind, negative=True)
    return holes


Numbers = npt.NDArray[np.int64]

_MOSTLY_NEW = 0.9  # shapes to a filter, beyond which it is not worth looking for those that differ only in names
_WORTH_KERNELS = 2_000  # filters, below which regular expressions are as fast as loading the kernels
_WORTH_A_PLAN = 8  # filters of one shape, below which arrays cost more than they save
_MAX_PLANS = 256  # of one template
_MAX_FAILURES = 8  # filters of one template that give no plan, before the others are given up too


class AnyPlan(Protocol):
    @property
    def likenesses(self) -> frozenset[Likeness]: ...


P = TypeVar("P", bound=AnyPlan)

# Of a filter's text, its shape, its tokens and its tree, a plan; None where it can give none.
Planner = Callable[[str, str, Lexed, Expression], "P | None"]


@dataclass(frozen=True, slots=True)
class Renamed:
    """The attributes that stand in each filter for one of the plan's: `paths[which[row]]`."""

    paths: list[Path]
    which: Numbers


@dataclass(frozen=True, slots=True)
class Served(Generic[P]):
    """The filters `rows` of a column, which one plan serves."""

    plan: P
    rows: Rows
    holes: Holes
    renamed: dict[Path, Renamed]


class Scanner(Protocol):
    """Finds the literals in a column of texts."""

    def shapes(self) -> tuple[Numbers, list[str]]:
        """The number of each text's shape, and the shapes."""

    def in_holes(self, template: str, rows: Rows) -> list[ArrowArray]:
        """The texts in the holes of filters of one template, a column for each hole."""


class RegularExpressions:
    """The scanner that says what shapes and literals are."""

    def __init__(self, texts: ArrowArray) -> None:
        self._texts = texts

    def shapes(self) -> tuple[Numbers, list[str]]:
        shapes = shapes_of(self._texts)
        return shapes.indices.to_numpy(zero_copy_only=False).astype(np.int64), shapes.dictionary.to_pylist()

    def in_holes(self, template: str, rows: Rows) -> list[ArrowArray]:
        return texts_in_holes(template, self._texts.take(pa.array(rows)))


@dataclass(frozen=True, slots=True)
class _SameShape:
    shape: str
    template: tuple[Template, tuple[Path, ...]]
    rows: Rows


def _scanner(texts: ArrowArray) -> Scanner:
    """The scanner for a column: for a small one that which loads no compiler."""
    if len(texts) < _WORTH_KERNELS:
        return RegularExpressions(texts)
    from tidings.filter.compile.literal_scanner import LiteralScanner  # loads numba: half a second, once

    return LiteralScanner(texts)


def served_by_plans(texts: ArrowArray, domain: Domain, planner: Planner[P]) -> Iterator[Served[P]]:
    """The templates that many filters share, each with the plan of its first filter."""
    if len(texts) < _WORTH_A_PLAN:
        return
    scanner = _scanner(texts)
    alike: dict[Template, list[_SameShape]] = {}
    for same in _by_shape(scanner, domain):
        template, _ = same.template
        alike.setdefault(template, []).append(same)
    for template, group in alike.items():
        if sum(len(same.rows) for same in group) >= _WORTH_A_PLAN:
            yield from _of_template(template.text, group, texts, scanner, domain, planner)


def _of_template(
    template: str, group: list[_SameShape], texts: ArrowArray, scanner: Scanner, domain: Domain, planner: Planner[P]
) -> Iterator[Served[P]]:
    """Plans for filters of one template: each serves those that are like the one it was made from."""
    rows = np.concatenate([same.rows for same in group])
    shape = np.repeat(np.arange(len(group)), [len(same.rows) for same in group])
    holes: Holes | None = None
    left = np.arange(len(rows))
    plans = failures = 0
    while len(left) >= _WORTH_A_PLAN and plans < _MAX_PLANS and failures < _MAX_FAILURES:
        first = left[0]
        found = plan_of(texts[int(rows[first])].as_py(), group[shape[first]].shape, domain, planner)
        if found is None:
            failures += 1
            left = left[1:]
            continue
        if holes is None:
            holes = Holes(scanner.in_holes(template, rows))
        alike = np.ones(len(left), bool)
        for likeness in found.likenesses:
            codes = holes.alike(likeness)
            alike &= codes[left] == codes[first]
        served, left = left[alike], left[~alike]
        plans += 1
        if len(served) >= _WORTH_A_PLAN:
            paths = group[shape[first]].template[1]
            renamed = _renamed(paths, group, shape[served])
            part = holes if len(served) == len(rows) else holes.take(served)
            yield Served(found, rows[served], part, renamed)


def plan_of(text: str, shape: str, domain: Domain, planner: Planner[P]) -> P | None:
    """The plan that a filter gives; None if it gives none or cannot be read."""
    try:
        lexed = lex(text)
        return planner(text, shape, lexed, resolve(lexed, domain))
    except FilterError:
        return None  # each filter of the shape says for itself what is wrong


def _by_shape(scanner: Scanner, domain: Domain) -> Iterator[_SameShape]:
    attributes = Attributes(domain)
    codes, shapes = scanner.shapes()
    order = np.argsort(codes, kind="stable").astype(np.int32)
    ends = np.cumsum(np.bincount(codes, minlength=len(shapes)))
    mostly_new = len(shapes) > _MOSTLY_NEW * len(codes)
    for rows, shape in zip(np.split(order, ends[:-1]), shapes, strict=True):
        if mostly_new and len(rows) < _WORTH_A_PLAN:
            continue
        template = template_of(shape, attributes)
        if template is not None:
            yield _SameShape(shape, template, rows)


def _renamed(planned: tuple[Path, ...], group: list[_SameShape], shape: Numbers) -> dict[Path, Renamed]:
    """What stands for each of a plan's attributes in filters of these shapes."""
    shapes, which = np.unique(shape, return_inverse=True)
    renamed = {}
    for number, path in enumerate(planned):
        paths: dict[Path, int] = {}
        actual = [paths.setdefault(group[one].template[1][number], len(paths)) for one in shapes]
        renamed[path] = Renamed(list(paths), np.array(actual)[which])
    return renamed
