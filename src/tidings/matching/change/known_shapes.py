"""Filters one at a time, as constraints on codes: at once where their shape was seen before.

A filter of a shape that was planned before, all of whose predicates are ranges of numbers and
equalities of strings, is read without parsing: its literals are cut out of the text and put into
the places that the plan names. Most are read by `scanning`, many at a time; what follows here is the
same for one filter, and how recipes are learnt. The rules are those of `planned`, and whatever is not
plain (a literal with an exponent, a range that comes out empty) is left to the full parse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import FilterError
from tidings.filter.compile.plans import Against, Combined, Constant, Plan, PlannedSet, plan
from tidings.filter.compile.shapes import QUOTED_HOLE, Attributes, Template, shapes_of, template_of
from tidings.filter.normal.filter_table import has_ordinals
from tidings.filter.normal.normal_form import Box, NormalForm, normalise
from tidings.filter.normal.value_sets import ValueSet, double_ordinal, line
from tidings.filter.syntax.lexer import lex
from tidings.filter.syntax.parser import parse_filter, resolve
from tidings.matching.change.shape_scanner import (
    DOUBLE,
    NUMBER_MARK,
    OPS,
    STRING_MARK,
    TEXT,
    WHOLE,
    Bound,
    Recipes,
    Scanned,
    Step,
)
from tidings.matching.engines.entries import MAX_ENTRIES, NULL
from tidings.model import types
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.types import DataType, Path

# What an attribute's value has to be: a code from one to another, or a text.
Constraint: TypeAlias = "tuple[Path, int, int] | tuple[Path, bytes]"
Entry: TypeAlias = "list[Constraint]"

MAX_SHAPES = 100_000
_SAFE = (1 << 63) - 2  # codes within it can be moved by one
_LITERAL = re.compile(
    r"('[^'\\]*'|\b[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?:[lLsSyYfFdD]|[bB][dD])?\b)", re.ASCII
)  # as the shapes have it
_WHOLE = re.compile(r"[0-9]{1,18}")
_FRACTION = re.compile(r"[0-9]{1,15}(?:\.([0-9]{1,15}))?")


class Reads(NamedTuple):
    """Filters as entries, in any order, and those as rows, one for each constraint."""

    filters: npt.NDArray[np.int32]  # of each entry, the filter
    ends: npt.NDArray[np.int64]  # where its rows end
    leaves: npt.NDArray[np.int64]  # of each row, the attribute by its number in the domain
    lows: npt.NDArray[np.int64]
    highs: npt.NDArray[np.int64]
    texts: npt.NDArray[np.int64]  # the number of the text that a row asks for; -1: it asks for codes
    text_ends: npt.NDArray[np.int64]
    text_data: npt.NDArray[np.uint8]
    exact: npt.NDArray[np.bool_]  # of each filter; the entries of others only bring candidates for the whole filter
    forms: dict[int, NormalForm]  # of the filters that are more than one entry


@dataclass(frozen=True, slots=True)
class _Read:
    """One filter as entries."""

    entries: list[Entry]
    exact: bool
    form: NormalForm | None  # None: the one entry is all there is to the filter


@dataclass(frozen=True, slots=True)
class _Bound:
    """One end of a range, or both: where it is, by the literal in a hole."""

    op: str
    hole: int
    negative: bool


@dataclass(frozen=True, slots=True)
class _Range:
    path: Path
    type: DataType
    low: int
    high: int
    bounds: tuple[_Bound, ...]


@dataclass(frozen=True, slots=True)
class _Equality:
    path: Path
    hole: int


_Recipe: TypeAlias = "tuple[_Range | _Equality, ...]"
_Key: TypeAlias = "tuple[tuple[str, ...], str]"


class KnownShapes:
    """Reads filters over one domain, and remembers their shapes. Not for several threads at a time."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._names = Attributes(domain)
        # Of each template the recipe of its first filter, and the attributes that filter has.
        self._templates: dict[Template, tuple[tuple[Path, ...], _Recipe | None]] = {}
        self._recipes: dict[_Key, _Recipe | None] = {}
        self._scanner = Recipes()  # those of them that there are
        self._leaves = {path: number for number, path in enumerate(domain.leaves)}

    def read_all(self, texts: ArrowArray) -> tuple[Reads, list[tuple[int, FilterError]]]:
        """Many filters; and which of them cannot be read, and why."""
        scanned = self._scanner.scan(texts)
        if scanned.done.all():
            return Reads(*scanned[1:], np.ones(len(texts), bool), {}), []
        known = len(self._scanner)
        for row in np.flatnonzero(~scanned.done).tolist():
            key, _ = _split(texts[row].as_py())
            if key not in self._recipes:
                self._learn(key, texts[row].as_py())
        if len(self._scanner) != known:
            scanned = self._scanner.scan(texts)
        others = _Others(scanned, self._leaves)
        wrong: list[tuple[int, FilterError]] = []
        for row in np.flatnonzero(~scanned.done).tolist():
            try:
                others.add(row, self.read(texts[row].as_py()))
            except FilterError as error:
                wrong.append((row, error))
        return others.reads(), wrong

    def read(self, text: str) -> _Read:
        """A filter's entries; raises FilterError where it cannot be read."""
        key, literals = _split(text)
        recipe = self._recipes[key] if key in self._recipes else self._learn(key, text)
        if recipe is not None and text.isascii() and (entry := _follow(recipe, literals)) is not None:
            return _Read([entry], True, None)
        form = normalise(parse_filter(text, self.domain))
        return _in_full(form, self.domain)

    def _learn(self, key: _Key, text: str) -> _Recipe | None:
        """The recipe of a new shape: that of its template with other names, where the template was seen before."""
        if len(self._recipes) >= MAX_SHAPES:
            self._recipes.clear()
            self._scanner = Recipes()
        pieces, kinds = key
        holes = [QUOTED_HOLE if kind == "'" else "0" for kind in kinds]
        shape = "".join(part for pair in zip(pieces, [*holes, ""], strict=True) for part in pair)
        recipe = None
        if shapes_of(pa.array([text])).dictionary[0].as_py() == shape and (found := template_of(shape, self._names)):
            template, paths = found
            if template not in self._templates:
                self._templates[template] = paths, self._plan(text, shape)
            planned, recipe = self._templates[template]
            if recipe is not None:
                renamed = dict(zip(planned, paths, strict=True))
                recipe = tuple(replace(step, path=renamed[step.path]) for step in recipe)
        self._recipes[key] = recipe
        if recipe is not None:
            self._scanner.add(_shape(key), _steps(recipe, self._leaves))
        return recipe

    def _plan(self, text: str, shape: str) -> _Recipe | None:
        try:
            lexed = lex(text)
            found = plan(text, shape, lexed, resolve(lexed, self.domain))
        except FilterError:
            return None  # each filter says for itself what is wrong
        return None if found is None else _recipe(found)


def _split(text: str) -> tuple[_Key, list[str]]:
    """What a text is but for its literals, and those."""
    pieces = _LITERAL.split(text)
    literals = pieces[1::2]
    return (tuple(pieces[::2]), "".join([literal[0] if literal[0] == "'" else "0" for literal in literals])), literals


def _recipe(found: Plan) -> _Recipe | None:
    """The recipe of a plan, where it is one box of single intervals."""
    if len(found.boxes) != 1 or found.boxes[0].residual is not None:
        return None
    if any(likeness.what != "form" for likeness in found.likenesses):
        return None  # there is more to the literals than being plain
    ranges: dict[Path, _Range] = {}
    equalities: dict[Path, _Equality] = {}
    for leaf in (part for values in found.boxes[0].sets.values() for part in _conjuncts(values)):
        if not isinstance(leaf, Against | Constant) or leaf.path in equalities:
            return None
        if leaf.type == types.STRING:
            if not isinstance(leaf, Against) or leaf.op != "=" or not leaf.wanted:
                return None
            equalities[leaf.path] = _Equality(leaf.path, leaf.holes[0].number)
            continue
        range_ = _range(leaf, ranges.get(leaf.path))
        if range_ is None:
            return None
        ranges[leaf.path] = range_
    return (*equalities.values(), *ranges.values()) or None


def _conjuncts(values: PlannedSet) -> Iterator[PlannedSet]:
    if isinstance(values, Combined) and values.all:
        for part in values.parts:
            yield from _conjuncts(part)
    else:
        yield values


_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def _range(leaf: Against | Constant, before: _Range | None) -> _Range | None:
    """What a predicate on a number adds to what others ask of it."""
    first, last = line(leaf.type) if has_ordinals(leaf.type) else (0, 0)
    low, high, bounds = (first, last - 1, ()) if before is None else (before.low, before.high, before.bounds)
    if isinstance(leaf, Constant):
        if leaf.values.null or len(leaf.values.intervals) != 1:
            return None
        ((start, end),) = leaf.values.intervals
        return _Range(leaf.path, leaf.type, max(low, start), min(high, end - 1), bounds)
    op = leaf.op if leaf.wanted else _OPPOSITE.get(leaf.op, "")
    if op not in ("=", *_OPPOSITE) or not leaf.type.is_numeric or not has_ordinals(leaf.type):
        return None
    hole = leaf.holes[0]
    return _Range(leaf.path, leaf.type, low, high, (*bounds, _Bound(op, hole.number, hole.negative)))


def _follow(recipe: _Recipe, literals: list[str]) -> Entry | None:
    """The constraints of a filter; None where one of its literals wants the full parse."""
    entry: Entry = []
    for step in recipe:
        if isinstance(step, _Equality):
            text = literals[step.hole][1:-1]
            if not text:
                return None
            entry.append((step.path, text.encode()))
            continue
        low, high = step.low, step.high
        for bound in step.bounds:
            place = _place(literals[bound.hole], step.type, bound.negative)
            if place is None:
                return None
            match bound.op:
                case "<":
                    high = min(high, place - 1)
                case "<=":
                    high = min(high, place)
                case ">":
                    low = max(low, place + 1)
                case ">=":
                    low = max(low, place)
                case _:
                    low, high = max(low, place), min(high, place)
        if low > high:
            return None
        entry.append((step.path, max(low, NULL + 1), high))
    return entry


def _place(literal: str, type_: DataType, negative: bool) -> int | None:
    """The ordinal of a plain number; None for any other."""
    if type_.is_integral:
        if _WHOLE.fullmatch(literal) is None:
            return None
        place = -int(literal) if negative else int(literal)
    elif (found := _FRACTION.fullmatch(literal)) is None:
        return None
    elif type_.name == "decimal":
        digits = found[1] or ""
        if len(digits) > type_.scale:
            return None
        place = int(literal.replace(".", "")) * 10 ** (type_.scale - len(digits)) * (-1 if negative else 1)
    else:
        return double_ordinal(-float(literal) if negative else float(literal))
    first, last = line(type_)
    return place if max(first, -_SAFE) < place < min(last - 1, _SAFE) else None


# ---------------------------------------------------------------------- for the scanner


def _shape(key: _Key) -> bytes:
    pieces, kinds = key
    marks = [STRING_MARK if kind == "'" else NUMBER_MARK for kind in kinds]
    return "".join(part for pair in zip(pieces, [*marks, ""], strict=True) for part in pair).encode()


def _steps(recipe: _Recipe, leaves: dict[Path, int]) -> list[Step]:
    steps = []
    for step in recipe:
        leaf = leaves[step.path]
        if isinstance(step, _Equality):
            steps.append(Step(leaf, TEXT, bounds=(Bound(0, step.hole, False),)))
            continue
        first, last = line(step.type)
        floating = step.type.name in ("float", "double")
        bounds = tuple(Bound(OPS.index(bound.op), bound.hole, bound.negative) for bound in step.bounds)
        scale = step.type.scale if step.type.name == "decimal" else 0
        least, most = max(first, -_SAFE), min(last - 1, _SAFE)
        kind = DOUBLE if floating else WHOLE
        steps.append(Step(leaf, kind, scale, max(step.low, NULL + 1), min(step.high, -NULL - 1), least, most, bounds))
    return steps


class _Others:
    """Filters that were read one at a time, as rows after those that were scanned."""

    def __init__(self, scanned: Scanned, leaves: dict[Path, int]) -> None:
        self._scanned = scanned
        self._leaves = leaves
        self._filters: list[int] = []
        self._ends: list[int] = []
        self._rows: list[tuple[int, int, int, int]] = []  # leaf, low, high and text
        self._values: list[bytes] = []
        self._inexact: list[int] = []
        self._forms: dict[int, NormalForm] = {}

    def add(self, row: int, read: _Read) -> None:
        texts = len(self._scanned.text_ends)
        for entry in read.entries:
            for constraint in entry:
                leaf = self._leaves[constraint[0]]
                if len(constraint) == 3:
                    self._rows.append((leaf, constraint[1], constraint[2], -1))
                else:
                    self._rows.append((leaf, 0, 0, texts + len(self._values)))
                    self._values.append(constraint[1])
            self._filters.append(row)
            self._ends.append(len(self._scanned.leaves) + len(self._rows))
        if not read.exact:
            self._inexact.append(row)
        if read.form is not None:
            self._forms[row] = read.form

    def reads(self) -> Reads:
        done, filters, ends, leaves, lows, highs, texts, text_ends, text_data = self._scanned
        exact = np.ones(len(done), bool)
        exact[self._inexact] = False
        more = np.array(self._rows, np.int64).reshape(-1, 4)
        lengths = [len(text) for text in self._values]
        return Reads(
            np.concatenate([filters, np.array(self._filters, np.int32)]),
            np.concatenate([ends, np.array(self._ends, np.int64)]),
            np.concatenate([leaves, more[:, 0]]),
            np.concatenate([lows, more[:, 1]]),
            np.concatenate([highs, more[:, 2]]),
            np.concatenate([texts, more[:, 3]]),
            np.concatenate([text_ends, len(text_data) + np.cumsum(lengths, dtype=np.int64)]),
            np.concatenate([text_data, np.frombuffer(b"".join(self._values), np.uint8)]),
            exact,
            self._forms,
        )


# ---------------------------------------------------------------------- what was parsed in full


def _in_full(form: NormalForm, domain: Domain) -> _Read:
    entries: list[Entry] = []
    exact = True
    for box in form.boxes:
        found, whole = _entries(box, domain)
        entries += found
        exact = exact and whole
    return _Read(entries, exact, form)


def _entries(box: Box, domain: Domain) -> tuple[list[Entry], bool]:
    """The entries of a box, and whether they say all that it does."""
    exact = box.residual is None
    choices: list[list[Constraint]] = []
    count = 1
    for path, values in box.sets.items():
        type_ = domain.leaves[path]
        chosen = _texts(path, values) if type_ == types.STRING else _codes(path, values, type_)
        if chosen is None or count * len(chosen) > MAX_ENTRIES:
            exact = False
            continue
        exact = exact and not _unclear(values, type_)
        count *= len(chosen)
        choices.append(chosen)
    return [list(chosen) for chosen in product(*choices)], exact


def _texts(path: Path, values: ValueSet) -> list[Constraint] | None:
    """Texts that are asked for one by one; None for ranges of them."""
    chosen: list[Constraint] = [(path, NULL, NULL)] if values.null else []
    for low, high in values.intervals:
        if low[1] or high != (low[0], 1):
            return None
        chosen.append((path, low[0]))
    return chosen


def _codes(path: Path, values: ValueSet, type_: DataType) -> list[Constraint] | None:
    if not has_ordinals(type_):
        return None
    spans = [(max(low, NULL + 1), max(high - 1, NULL + 1)) for low, high in values.intervals]
    if values.null:
        if spans and values.intervals[0][0] == line(type_)[0]:
            spans[0] = (NULL, spans[0][1])
        else:
            spans.insert(0, (NULL, NULL))
    return [(path, low, high) for low, high in spans]


def _unclear(values: ValueSet, type_: DataType) -> bool:
    """Whether the set tells the least ordinal of 64 bits from the next, which share a code."""
    if type_ == types.STRING or line(type_)[0] != NULL:
        return False
    return any(low == NULL + 1 or high == NULL + 1 for low, high in values.intervals)
