"""Reads filters for the delta: as entries, at once if their shape was seen before.

The plan of a shape (`tidings.filter.compile.plans`) whose predicates are all ranges of numbers and equalities of
strings gives a *recipe*: how the literals of a filter of that shape become constraints. Such filters are read in one
pass over their bytes, without an object for any of them. Every other filter, and whatever is not plain (a literal
with an exponent, a range that comes out empty), is read as a tree and brought to its normal form.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, assignment, arg-type"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import FilterError
from tidings.filter.compile.filter_reader import FilterReader
from tidings.filter.compile.literal_scanner import NUMBER_MARK, STRING_MARK, LiteralScanner, scan_text
from tidings.filter.compile.plans import Against, Combined, Constant, Plan, PlannedSet, plan
from tidings.filter.compile.shapes import QUOTED_HOLE, Attributes, Template, plan_of, template_of
from tidings.filter.normal.filter_table import Codes, has_ordinals
from tidings.filter.normal.normal_form import Box, NormalForm, normalise
from tidings.filter.normal.value_sets import ValueSet, line
from tidings.kernels.decorator import kernel
from tidings.kernels.hashing import hash_bytes, string_buffers
from tidings.matching.engines.entries import MAX_ENTRIES, NULL
from tidings.model import types
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.types import DataType, Path

# What an attribute's value has to be: a code from one to another, or a text.
Constraint: TypeAlias = "tuple[Path, int, int] | tuple[Path, bytes]"
Entry: TypeAlias = "list[Constraint]"

MAX_SHAPES = 100_000  # that are remembered
OPS = ("=", "<", "<=", ">", ">=")  # of bounds, by number
TEXT, DOUBLE, WHOLE = 0, 1, 2  # what a step makes of its literals
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_SAFE = (1 << 63) - 2  # codes within it can be moved by one
_MAX_DIGITS = 18  # of a number, so that it is an int64
_POWERS = 10.0 ** np.arange(_MAX_DIGITS + 1)  # exact
_WHOLE_POWERS = 10 ** np.arange(_MAX_DIGITS + 1)
_EXACT = 1 << 53  # whole numbers up to this are doubles
_POINT = ord(".")


class Reads(NamedTuple):
    """Filters as entries, in any order, and those as rows, one for each constraint."""

    filters: npt.NDArray[np.int32]  # of each entry, the filter
    ends: npt.NDArray[np.int64]  # where its rows end
    leaves: npt.NDArray[np.int64]  # of each row, the attribute by its number in the domain
    lows: Codes
    highs: Codes
    texts: npt.NDArray[np.int64]  # the number of the text that a row asks for; -1: it asks for codes
    text_ends: npt.NDArray[np.int64]
    text_data: npt.NDArray[np.uint8]
    exact: npt.NDArray[np.bool_]  # of each filter; the entries of others only bring candidates for the whole filter
    forms: dict[int, NormalForm]  # of the filters that are more than one entry of values


class DeltaReader:
    """Reads filters over one domain, and remembers their shapes. Not for several threads at a time."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.recipes = Recipes()
        self._reader = FilterReader(domain)
        self._names = Attributes(domain)
        self._seen: set[str] = set()  # shapes, with a recipe or without
        # Of each template the recipe of its first filter, and the attributes that filter has.
        self._templates: dict[Template, tuple[tuple[Path, ...], list[Step]]] = {}
        self._leaves = {path: number for number, path in enumerate(domain.leaves)}

    def read_all(self, texts: ArrowArray) -> tuple[Reads, list[tuple[int, FilterError]]]:
        """The entries of many filters, and the filters that cannot be read, each with its error."""
        scanned = self.recipes.scan(texts)
        if scanned.done.all():
            return Reads(*scanned[1:], np.ones(len(texts), bool), {}), []
        if self._learn(texts.take(pa.array(np.flatnonzero(~scanned.done)))):
            scanned = self.recipes.scan(texts)
        others = _Others(scanned, self._leaves)
        wrong: list[tuple[int, FilterError]] = []
        for row in np.flatnonzero(~scanned.done).tolist():
            try:
                others.add(row, normalise(self._reader.read(texts[row].as_py())), self.domain)
            except FilterError as error:
                wrong.append((row, error))
        return others.reads(), wrong

    def _learn(self, texts: ArrowArray) -> bool:
        """Remember the shapes of these filters; returns whether any of them gave a recipe."""
        known, scanner = len(self.recipes), LiteralScanner(texts)
        if len(self._seen) + len(scanner.plain_shapes) > MAX_SHAPES:
            self._seen.clear()
            self.recipes, known = Recipes(), 0
        for number, marked in enumerate(scanner.plain_shapes):
            if marked not in self._seen:
                self._seen.add(marked)
                first = int(np.argmax(scanner.plain_shape_of == number))
                if recipe := self._recipe(texts[first].as_py(), marked):
                    self.recipes.add(marked.encode(), recipe)
        return len(self.recipes) > known

    def _recipe(self, text: str, marked: str) -> list[Step]:
        """The recipe of a new shape, empty if it has none: that of its template, with its own attributes."""
        shape = marked.replace(STRING_MARK, QUOTED_HOLE).replace(NUMBER_MARK, "0")
        found = template_of(shape, self._names)
        if found is None:
            return []
        template, paths = found
        if template not in self._templates:
            planned = plan_of(text, shape, self.domain, plan)
            self._templates[template] = paths, [] if planned is None else recipe_of(planned, self._leaves)
        first, recipe = self._templates[template]
        renamed = {self._leaves[old]: self._leaves[new] for old, new in zip(first, paths, strict=True)}
        return [step._replace(leaf=renamed[step.leaf]) for step in recipe]


# ---------------------------------------------------------------------- recipes


class Bound(NamedTuple):
    """One end of a range, or both: where it is, by the literal in a hole."""

    op: int  # by number in OPS
    hole: int
    negative: bool


class Step(NamedTuple):
    """What a filter asks of one attribute: a text, or a range of codes."""

    leaf: int
    kind: int
    scale: int = 0  # of WHOLE: digits after the point that are part of the code
    low: int = 0  # the codes that are left by what has no literal
    high: int = 0
    least: int = 0  # of WHOLE: literals from here to there are plain
    most: int = 0
    bounds: tuple[Bound, ...] = ()  # of TEXT: one, for its hole


def recipe_of(found: Plan, leaves: dict[Path, int]) -> list[Step]:
    """The recipe of a plan that is one box of single intervals; empty for any other plan."""
    if len(found.boxes) != 1 or found.boxes[0].residual is not None:
        return []
    if any(likeness.what != "form" for likeness in found.likenesses):
        return []  # there is more to the literals than being plain
    steps: dict[int, Step] = {}
    for values in found.boxes[0].sets.values():
        for leaf in _conjuncts(values):
            step = None
            if isinstance(leaf, Against | Constant):
                number = leaves[leaf.path]
                step = _text_step(leaf, number) if leaf.type == types.STRING else _range_step(leaf, number)
                step = _narrowed(steps.get(number), step)
            if step is None:
                return []
            steps[step.leaf] = step
    return sorted(steps.values(), key=lambda step: step.kind != TEXT)


def _conjuncts(values: PlannedSet) -> Iterator[PlannedSet]:
    if isinstance(values, Combined) and values.all:
        for part in values.parts:
            yield from _conjuncts(part)
    else:
        yield values


def _text_step(leaf: Against | Constant, number: int) -> Step | None:
    if not isinstance(leaf, Against) or leaf.op != "=" or not leaf.wanted:
        return None
    return Step(number, TEXT, bounds=(Bound(0, leaf.holes[0].number, False),))


def _range_step(leaf: Against | Constant, number: int) -> Step | None:
    """The step of a predicate on a number; None if the predicate is not a single range."""
    if not has_ordinals(leaf.type):
        return None
    type_ = leaf.type
    first, last = line(type_)
    low, high, bounds = first, last - 1, ()
    if isinstance(leaf, Constant):
        if leaf.values.null or len(leaf.values.intervals) != 1:
            return None
        low, high = leaf.values.intervals[0][0], leaf.values.intervals[0][1] - 1
    else:
        op = leaf.op if leaf.wanted else _OPPOSITE.get(leaf.op, "")
        if op not in OPS or not type_.is_numeric:
            return None
        bounds = (Bound(OPS.index(op), leaf.holes[0].number, leaf.holes[0].negative),)
    return Step(
        leaf=number,
        kind=DOUBLE if type_.name in ("float", "double") else WHOLE,
        scale=type_.scale if type_.name == "decimal" else 0,
        low=max(low, NULL + 1),
        high=min(high, -NULL - 1),
        least=max(first, -_SAFE),
        most=min(last - 1, _SAFE),
        bounds=bounds,
    )


def _narrowed(before: Step | None, step: Step | None) -> Step | None:
    """One step for two predicates on an attribute; None for two texts."""
    if before is None or step is None:
        return step
    if TEXT in (before.kind, step.kind):
        return None
    low, high = max(before.low, step.low), min(before.high, step.high)
    return step._replace(low=low, high=high, bounds=before.bounds + step.bounds)


class Scanned(NamedTuple):
    """The filters that were read: of each one entry, of each entry rows."""

    done: npt.NDArray[np.bool_]  # of each filter, whether it was read
    filters: npt.NDArray[np.int32]  # of each entry
    ends: npt.NDArray[np.int64]  # where its rows end
    leaves: npt.NDArray[np.int64]
    lows: Codes
    highs: Codes
    texts: npt.NDArray[np.int64]  # the number of the text that a row asks for; -1: it asks for codes
    text_ends: npt.NDArray[np.int64]
    text_data: npt.NDArray[np.uint8]


class _Arrays(NamedTuple):
    """Shapes, each with its recipe: steps, and those with bounds. What grows has room at its end."""

    table: npt.NDArray[np.int32]  # a power of two of places; the number of a shape, or -1
    shape_ends: npt.NDArray[np.int64]
    shape_data: npt.NDArray[np.uint8]
    step_ends: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]  # by step, the first seven numbers of a `Step`
    bound_ends: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int64]  # by bound, its three numbers


class Recipes:
    """The recipes of shapes. Not for several threads at a time."""

    def __init__(self) -> None:
        self._count = self._steps = self._bounds = self._bytes = 0
        self._most_steps = 1  # of one recipe
        self._arrays = _Arrays(
            np.full(16, -1, np.int32), np.empty(8, np.int64), np.empty(256, np.uint8), np.empty(8, np.int64),
            np.empty((16, 7), np.int64), np.empty(16, np.int64), np.empty((16, 3), np.int64),
        )  # fmt: skip

    def __len__(self) -> int:
        return self._count

    def add(self, shape: bytes, recipe: Sequence[Step]) -> None:
        """A shape that is not there yet, with marks for its literals."""
        bounds = [bound for step in recipe for bound in step.bounds]
        end, steps_end, bounds_end = self._bytes + len(shape), self._steps + len(recipe), self._bounds + len(bounds)
        given: tuple[npt.NDArray[Any], ...] = self._arrays
        rooms = (0, self._count + 1, end, self._count + 1, steps_end, steps_end, bounds_end)
        arrays = _Arrays(*(_roomy(array, room) for array, room in zip(given, rooms, strict=True)))
        arrays.shape_ends[self._count] = end
        arrays.shape_data[self._bytes : end] = np.frombuffer(shape, np.uint8)
        arrays.step_ends[self._count] = steps_end
        arrays.steps[self._steps : steps_end] = [step[:7] for step in recipe]
        arrays.bound_ends[self._steps : steps_end] = self._bounds + np.cumsum([len(step.bounds) for step in recipe])
        arrays.bounds[self._bounds : bounds_end] = np.array(bounds, np.int64).reshape(-1, 3)
        first = self._count
        self._count, self._bytes, self._steps, self._bounds = first + 1, end, steps_end, bounds_end
        self._most_steps = max(self._most_steps, len(recipe))
        if 2 * self._count > len(arrays.table):
            arrays = arrays._replace(table=np.full(2 * len(arrays.table), -1, np.int32))
            first = 0
        _enter(first, self._count, arrays.shape_ends, arrays.shape_data, arrays.table)
        self._arrays = arrays

    def scan(self, texts: ArrowArray) -> Scanned:
        """Read those of some filters that are plain and of a shape that is there."""
        offsets, data = string_buffers(texts)
        count, size = len(texts), int(offsets[-1] - offsets[0])
        room = count * self._most_steps
        scanned = Scanned(
            np.zeros(count, bool), np.empty(count, np.int32), np.empty(count, np.int64),
            np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64),
            np.empty(room, np.int64), np.empty(size, np.uint8),
        )  # fmt: skip
        entries, rows, texts_found, size = _scan_all(
            offsets, data, np.empty(size, np.uint8), np.empty((size, 2), np.int64), self._arrays, scanned
        )
        return Scanned(
            scanned.done, scanned.filters[:entries], scanned.ends[:entries], scanned.leaves[:rows],
            scanned.lows[:rows], scanned.highs[:rows], scanned.texts[:rows], scanned.text_ends[:texts_found],
            scanned.text_data[:size],
        )  # fmt: skip


def _roomy(array: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    if len(array) >= room:
        return array
    result = np.empty((max(2 * len(array), room), *array.shape[1:]), array.dtype)
    result[: len(array)] = array
    return result


# ---------------------------------------------------------------------- filters that no recipe reads


class _Others:
    """Collects filters that were read one at a time, as rows after those that were scanned."""

    def __init__(self, scanned: Scanned, leaves: dict[Path, int]) -> None:
        self._scanned = scanned
        self._leaves = leaves
        self._filters: list[int] = []
        self._ends: list[int] = []
        self._rows: list[tuple[int, int, int, int]] = []  # leaf, low, high and text
        self._values: list[bytes] = []
        self._inexact: list[int] = []
        self._forms: dict[int, NormalForm] = {}

    def add(self, row: int, form: NormalForm, domain: Domain) -> None:
        texts = len(self._scanned.text_ends)
        entries, exact = entries_of_form(form, domain)
        for entry in entries:
            for constraint in entry:
                leaf = self._leaves[constraint[0]]
                if len(constraint) == 3:
                    self._rows.append((leaf, constraint[1], constraint[2], -1))
                else:
                    self._rows.append((leaf, 0, 0, texts + len(self._values)))
                    self._values.append(constraint[1])
            self._filters.append(row)
            self._ends.append(len(self._scanned.leaves) + len(self._rows))
        if not exact:
            self._inexact.append(row)
        if not exact or len(entries) != 1 or any(len(asked) == 3 and asked[1] == NULL for asked in entries[0]):
            self._forms[row] = form

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


def entries_of_form(form: NormalForm, domain: Domain) -> tuple[list[Entry], bool]:
    """The entries of a normal form, and whether they say all that it does."""
    entries: list[Entry] = []
    exact = True
    for box in form.boxes:
        found, whole = _entries(box, domain)
        entries += found
        exact = exact and whole
    return entries, exact


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
    """Whether the set divides the least ordinal of 64 bits from the next, which share a code."""
    if type_ == types.STRING or line(type_)[0] != NULL:
        return False
    return any(low == NULL + 1 or high == NULL + 1 for low, high in values.intervals)


# ---------------------------------------------------------------------- kernels


@kernel
def _enter(first: Any, last: Any, ends: Any, data: Any, table: Any) -> None:
    mask = np.uint64(len(table) - 1)
    for shape in range(first, last):
        place = hash_bytes(data, ends[shape - 1] if shape > 0 else 0, ends[shape]) & mask
        while table[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table[place] = shape


@kernel
def _scan_all(offsets: Any, data: Any, shape: Any, spans: Any, recipes: Any, out: Any) -> Any:
    """Fill the output. Returns how many entries, rows, texts and bytes of texts there are."""
    entries = rows = texts = size = np.int64(0)
    for number in range(len(offsets) - 1):
        length = scan_text(data, np.int64(offsets[number]), np.int64(offsets[number + 1]), shape, spans)
        recipe = _find(shape, length, recipes) if length >= 0 else np.int64(-1)
        if recipe < 0:
            continue
        done, more_rows, more_texts, more_size = _follow(recipe, data, spans, recipes, rows, texts, size, out)
        if done:
            rows, texts, size = more_rows, more_texts, more_size
            out.done[number] = True
            out.filters[entries] = number
            out.ends[entries] = rows
            entries += 1
    return entries, rows, texts, size


@kernel
def _find(shape: Any, length: Any, recipes: Any) -> Any:
    """The number of a shape, -1 where it is not there."""
    mask = np.uint64(len(recipes.table) - 1)
    place = hash_bytes(shape, 0, length) & mask
    while recipes.table[place] >= 0:
        known = recipes.table[place]
        begin = recipes.shape_ends[known - 1] if known > 0 else np.int64(0)
        if recipes.shape_ends[known] - begin == length:
            same = True
            for i in range(length):
                if recipes.shape_data[begin + i] != shape[i]:
                    same = False
                    break
            if same:
                return np.int64(known)
        place = (place + np.uint64(1)) & mask
    return np.int64(-1)


@kernel
def _follow(recipe: Any, data: Any, spans: Any, recipes: Any, rows: Any, texts: Any, size: Any, out: Any) -> Any:
    """Write a filter's rows after those that there are; whether its literals are plain, and how many there are then."""
    for step in range(recipes.step_ends[recipe - 1] if recipe > 0 else 0, recipes.step_ends[recipe]):
        kind, low, high = recipes.steps[step, 1], recipes.steps[step, 3], recipes.steps[step, 4]
        out.leaves[rows] = recipes.steps[step, 0]
        out.texts[rows] = -1
        for bound in range(recipes.bound_ends[step - 1] if step > 0 else 0, recipes.bound_ends[step]):
            op, hole, negative = recipes.bounds[bound, 0], recipes.bounds[bound, 1], recipes.bounds[bound, 2]
            begin, end = spans[hole, 0], spans[hole, 1]
            if kind == TEXT:
                if end - begin == 2:  # empty
                    return False, rows, texts, size
                for at in range(begin + 1, end - 1):
                    out.text_data[size] = data[at]
                    size += 1
                out.text_ends[texts] = size
                out.texts[rows] = texts
                texts += 1
                continue
            plain, place = _place(data, begin, end, kind, recipes.steps[step], negative)
            if not plain:
                return False, rows, texts, size
            if op == 0 or op >= 3:
                low = max(low, place + (op == 3))
            if op <= 2:
                high = min(high, place - (op == 1))
        if low > high:
            return False, rows, texts, size
        out.lows[rows], out.highs[rows] = max(low, NULL + 1), high
        rows += 1
    return True, rows, texts, size


@kernel(inline="always")
def _place(data: Any, begin: Any, end: Any, kind: Any, step: Any, negative: Any) -> Any:
    """Whether a number is plain, and its code."""
    digits, after, number = np.int64(0), np.int64(-1), np.int64(0)  # after the point, once there was one
    if end - begin > _MAX_DIGITS + 1:
        return False, number
    for at in range(begin, end):
        if data[at] == _POINT:
            after = 0
        else:
            number = 10 * number + np.int64(data[at] - 48)
            digits += 1
            after += after >= 0
    after = max(after, 0)
    if digits > _MAX_DIGITS:
        return False, number
    if kind == DOUBLE:
        if number > _EXACT:
            return False, number
        value = np.float64(number) / _POWERS[after]  # one rounding of exact numbers
        bits = np.float64(-value if negative else value).view(np.int64)
        return True, bits if bits >= 0 else (bits ^ np.int64(0x7FFF_FFFF_FFFF_FFFF)) + 1
    more = step[2] - after
    if more < 0 or digits + more > _MAX_DIGITS:
        return False, number
    place = number * _WHOLE_POWERS[more]
    place = -place if negative else place
    return step[5] < place < step[6], place
