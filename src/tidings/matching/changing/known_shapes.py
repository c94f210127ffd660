"""Filters one at a time, as constraints on codes: at once where their shape was seen before.

A filter of a shape that was planned before, all of whose predicates are ranges of numbers and
equalities of strings, is read without parsing: its literals are cut out of the text and put into
the places that the plan names. The rules are those of `planned`, and whatever is not plain
(a literal with an exponent, a range that comes out empty) is left to the full parse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import FilterError
from tidings.matching.engines.entries import MAX_ENTRIES, NULL
from tidings.model import types
from tidings.model.domain import Domain
from tidings.model.filter.columnar import has_ordinals
from tidings.model.filter.lexer import lex
from tidings.model.filter.normal import Box, NormalForm, normalise
from tidings.model.filter.parse import parse_filter, resolve
from tidings.model.filter.planned import double_ordinals
from tidings.model.filter.plans import Against, Combined, Constant, Plan, PlannedSet, plan
from tidings.model.filter.sets import ValueSet, double_ordinal, line
from tidings.model.filter.shapes import QUOTED_HOLE, Attributes, Template, shapes_of, template_of
from tidings.model.filter.tree import Path
from tidings.model.types import DataType

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
    values: list[bytes]  # the texts
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
        self._flat: dict[_Key, _Flat | None] = {}
        self._leaves = {path: number for number, path in enumerate(domain.leaves)}

    def read_all(self, texts: Sequence[str]) -> tuple[Reads, list[tuple[int, FilterError]]]:
        """Many filters; and which of them cannot be read, and why."""
        wrong: list[tuple[int, FilterError]] = []
        batch = _Batch(self._leaves)
        for row, text in enumerate(texts):
            pieces = _LITERAL.split(text)
            literals = pieces[1::2]
            key = tuple(pieces[::2]), "".join([literal[0] if literal[0] == "'" else "0" for literal in literals])
            found = self._flat[key] if key in self._flat else self._learn_flat(key, text)
            if found is None or not text.isascii():
                batch.others.append(row)
            else:
                batch.add(row, found, literals)
        batch.put_aside_unless_plain()
        for row in batch.others:
            try:
                batch.add_read(row, self.read(texts[row]))
            except FilterError as error:
                wrong.append((row, error))
        return batch.reads(len(texts)), wrong

    def _learn_flat(self, key: _Key, text: str) -> _Flat | None:
        recipe = self._recipes[key] if key in self._recipes else self._learn(key, text)
        self._flat[key] = found = None if recipe is None else _flat(recipe, self._leaves)
        return found

    def read(self, text: str) -> _Read:
        """A filter's entries; raises FilterError where it cannot be read."""
        pieces = _LITERAL.split(text)
        literals = pieces[1::2]
        key = tuple(pieces[::2]), "".join([literal[0] if literal[0] == "'" else "0" for literal in literals])
        try:
            recipe = self._recipes[key]
        except KeyError:
            recipe = self._learn(key, text)
        if recipe is not None and text.isascii() and (entry := _follow(recipe, literals)) is not None:
            return _Read([entry], True, None)
        form = normalise(parse_filter(text, self.domain))
        return _in_full(form, self.domain)

    def _learn(self, key: _Key, text: str) -> _Recipe | None:
        """The recipe of a new shape: that of its template with other names, where the template was seen before."""
        if len(self._recipes) >= MAX_SHAPES:
            self._recipes.clear()
            self._flat.clear()
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
        return recipe

    def _plan(self, text: str, shape: str) -> _Recipe | None:
        try:
            lexed = lex(text)
            found = plan(text, shape, lexed, resolve(lexed, self.domain))
        except FilterError:
            return None  # each filter says for itself what is wrong
        return None if found is None else _recipe(found)


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


# ---------------------------------------------------------------------- many at once


class _Flat(NamedTuple):
    """A recipe of doubles and strings as rows: of each, two bounds among the literals and what follows them."""

    rows: tuple[int, ...]  # of each row five numbers: leaf, sign and step of its low end, sign and step of its high
    bounds: tuple[int, ...]  # of each row two holes
    texts: tuple[int, ...]  # the holes of the strings, which come first


_NO_LOW, _NO_HIGH, _NO_BOUND = "-inf", "nan", "0"  # after the literals; NaN is above all doubles
_PLAIN = re.compile(r"(?:(?:[0-9]{1,15}(?:\.[0-9]{1,15})?|-inf|nan) )*")


def _flat(recipe: _Recipe, leaves: dict[Path, int]) -> _Flat | None:
    """None where another number than a double is compared, or one with more than one literal on a side."""
    rows: list[int] = []
    bounds: list[int] = []
    texts: list[int] = []
    for step in recipe:
        if isinstance(step, _Equality):
            rows += (leaves[step.path], 1, 0, 1, 0)
            bounds += (-1, -1)
            texts.append(step.hole)
            continue
        low, high = (
            [bound for bound in step.bounds if bound.op in ops] for ops in ((">", ">=", "="), ("<", "<=", "="))
        )
        first, last = line(step.type)
        whole = (step.low, step.high) == (first, last - 1)
        if step.type.name not in ("float", "double") or not whole or len(low) > 1 or len(high) > 1:
            return None
        rows += (leaves[step.path], *_end(low), *_end(high))
        bounds += (low[0].hole if low else -3, high[0].hole if high else -2)
    return _Flat(tuple(rows), tuple(bounds), tuple(texts))


def _end(bounds: list[_Bound]) -> tuple[int, int]:
    """The sign before a literal, and the step from its code to the end of the range."""
    if not bounds:
        return 1, 0
    return -1 if bounds[0].negative else 1, {">": 1, "<": -1}.get(bounds[0].op, 0)


class _Batch:
    """Filters that were read, in the making."""

    def __init__(self, leaves: dict[Path, int]) -> None:
        self._leaves = leaves
        self.others: list[int] = []  # filters that are read one at a time
        self._filters: list[int] = []
        self._counts: list[int] = []  # rows of each entry
        self._rows: list[int] = []
        self._bounds: list[str] = []
        self._texts: list[str] = []
        self._text_counts: list[int] = []
        self._codes = np.empty((0, 2), np.int64)
        self._more: list[tuple[int, int, int, int]] = []  # rows of the others: leaf, low, high and text
        self._values: list[bytes] = []
        self._inexact: list[int] = []
        self._forms: dict[int, NormalForm] = {}

    def add(self, row: int, flat: _Flat, literals: list[str]) -> None:
        given = [*literals, _NO_LOW, _NO_HIGH, _NO_BOUND]
        self._filters.append(row)
        self._counts.append(len(flat.bounds) >> 1)
        self._rows += flat.rows
        self._bounds += [given[hole] for hole in flat.bounds]
        self._texts += [literals[hole] for hole in flat.texts]
        self._text_counts.append(len(flat.texts))

    def put_aside_unless_plain(self) -> None:
        """Compute the codes of what was added, or leave all of it to be read one at a time."""
        plain = _PLAIN.fullmatch("".join([bound + " " for bound in self._bounds])) and "''" not in self._texts
        rows = np.array(self._rows, np.int64).reshape(-1, 5)
        if plain:
            values = np.array([float(bound) for bound in self._bounds]).reshape(-1, 2)
            self._codes = double_ordinals(values * rows[:, [1, 3]]) + rows[:, [2, 4]]
        if not plain or (self._codes[:, 0] > self._codes[:, 1]).any():
            self.others = sorted([*self.others, *self._filters])
            self._filters, self._counts, self._rows, self._texts, self._text_counts = [], [], [], [], []
            self._codes = np.empty((0, 2), np.int64)
        self._values = [text[1:-1].encode() for text in self._texts]

    def add_read(self, row: int, read: _Read) -> None:
        for entry in read.entries:
            self._filters.append(row)
            self._counts.append(len(entry))
            for constraint in entry:
                leaf = self._leaves[constraint[0]]
                if len(constraint) == 3:
                    self._more.append((leaf, constraint[1], constraint[2], -1))
                else:
                    self._more.append((leaf, 0, 0, len(self._values)))
                    self._values.append(constraint[1])
        if not read.exact:
            self._inexact.append(row)
        if read.form is not None:
            self._forms[row] = read.form

    def reads(self, count: int) -> Reads:
        leaves = np.array(self._rows[::5], np.int64)
        more = np.array(self._more, np.int64).reshape(-1, 4)
        # The strings of an entry are its first rows.
        ends = np.cumsum(self._counts, dtype=np.int64)
        texts = np.full(len(leaves), -1, np.int64)
        having = np.array(self._text_counts, np.int64)
        starts = ends[: len(having)] - np.array(self._counts[: len(having)], np.int64)
        before = np.cumsum(having) - having
        places = np.repeat(starts - before, having) + np.arange(having.sum())
        texts[places] = np.arange(len(places))
        exact = np.ones(count, bool)
        exact[self._inexact] = False
        return Reads(
            np.array(self._filters, np.int32),
            ends,
            np.concatenate([leaves, more[:, 0]]),
            np.concatenate([self._codes[:, 0], more[:, 1]]),
            np.concatenate([self._codes[:, 1], more[:, 2]]),
            np.concatenate([texts, more[:, 3]]),
            self._values,
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
