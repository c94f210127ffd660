"""Filters that share a plan: of one template, and alike in the literals that make a difference to it.

What a plan is is for who asks to say: `plans.plan` gives the normal form of a shape, `plans.plan_tree` its tree. Both
are made from one filter of a template and serve all that are like it; what no plan serves is to be read one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import FilterError
from tidings.filter.compile.literal_columns import Holes, Likeness
from tidings.filter.compile.shapes import Attributes, Template, shapes_of, template_of, texts_in_holes
from tidings.filter.normal.filter_table import Rows
from tidings.filter.syntax.lexer import Lexed, lex
from tidings.filter.syntax.parser import resolve
from tidings.filter.tree import Expression
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.types import Path

Numbers = npt.NDArray[np.int64]

_MOSTLY_NEW = 0.9  # shapes to a filter, beyond which it is not worth looking for those that differ only in names
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


Scan = Callable[[ArrowArray], Scanner]


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


def served_by_plans(
    texts: ArrowArray, domain: Domain, planner: Planner[P], scan: Scan = RegularExpressions
) -> Iterator[Served[P]]:
    """The templates that many filters share, each with the plan of its first filter."""
    if len(texts) < _WORTH_A_PLAN:
        return
    scanner = scan(texts)
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
        found = _plan_of(texts[int(rows[first])].as_py(), group[shape[first]].shape, domain, planner)
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


def _plan_of(text: str, shape: str, domain: Domain, planner: Planner[P]) -> P | None:
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
