"""Filters of known shapes read in one pass over their bytes, without an object for any of them.

A recipe says how the literals of a filter of one shape become constraints. The shape of a text, with a mark
for each literal, is looked up by a hash and compared byte by byte. The scanner splits a text exactly as
`known_shapes` does, or not at all: a byte, a number or a string that is not plain leaves the filter
to be read in another way.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, assignment, arg-type"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.filter_table import Codes
from tidings.kernels.decorator import kernel
from tidings.kernels.hashing import hash_bytes, string_buffers
from tidings.matching.engines.entries import NULL
from tidings.model.arrow import ArrowArray

STRING_MARK, NUMBER_MARK = "\x01", "\x02"  # in shapes, for literals; no text that is scanned has them
OPS = ("=", "<", "<=", ">", ">=")  # of bounds, by number

TEXT, DOUBLE, WHOLE = 0, 1, 2  # what a step makes of its literals
_MAX_DIGITS = 18  # of a number, so that it is an int64
_POWERS = 10.0 ** np.arange(_MAX_DIGITS + 1)  # exact
_WHOLE_POWERS = 10 ** np.arange(_MAX_DIGITS + 1)
_EXACT = 1 << 53  # whole numbers up to this are doubles

_UNSURE, _OTHER, _WORD, _DIGIT, _QUOTE = range(5)
_POINT, _ESCAPE, _BLANK = ord("."), ord("\\"), ord(" ")


def _kinds() -> npt.NDArray[np.uint8]:
    """What a byte is outside of literals."""
    kinds = np.full(256, _UNSURE, np.uint8)
    for kind, members in (
        (_OTHER, b" \t\n\r=<>!+-*/%(),."),
        (_WORD, b"_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        (_DIGIT, b"0123456789"),
        (_QUOTE, b"'"),
    ):
        kinds[list(members)] = kind
    return kinds


_KINDS = _kinds()


class Bound(NamedTuple):
    """One end of a range, or both: where it is, by the literal in a hole."""

    op: int
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
    """Fills the output; answers how many entries, rows, texts and bytes of texts there are."""
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


@kernel(inline="always")
def scan_text(data: Any, start: Any, end: Any, shape: Any, spans: Any) -> Any:
    """Write the shape of a text and the spans of its literals; answers the shape's length, -1 if unsure."""
    length, literals, at = np.int64(0), np.int64(0), start
    while at < end:
        byte = data[at]
        kind = _KINDS[byte]
        if kind == _UNSURE:
            return np.int64(-1)
        after = at + 1
        if kind in (_DIGIT, _QUOTE):
            after = _number_end(data, start, at, end) if kind == _DIGIT else _string_end(data, start, at, end)
            if after < 0:
                return np.int64(-1)
            spans[literals, 0], spans[literals, 1] = at, after
            literals += 1
            byte = np.uint8(2) if kind == _DIGIT else np.uint8(1)
        shape[length] = byte
        length += 1
        at = after
        if kind == _WORD:
            while at < end and (_KINDS[data[at]] == _WORD or _KINDS[data[at]] == _DIGIT):
                shape[length] = data[at]
                length += 1
                at += 1
    return length


@kernel(inline="always")
def _number_end(data: Any, start: Any, at: Any, end: Any) -> Any:
    """The end of the number that begins here; -1 where a point or a letter is next to it."""
    if at > start and data[at - 1] == _POINT:
        return np.int64(-1)
    while at < end and _KINDS[data[at]] == _DIGIT:
        at += 1
    if at + 1 < end and data[at] == _POINT and _KINDS[data[at + 1]] == _DIGIT:
        at += 1
        while at < end and _KINDS[data[at]] == _DIGIT:
            at += 1
    if at < end and (data[at] == _POINT or _KINDS[data[at]] == _WORD):
        return np.int64(-1)
    return at


@kernel(inline="always")
def _string_end(data: Any, start: Any, at: Any, end: Any) -> Any:
    """The end of the string that begins here; -1 where it has escapes or a quote or a word is next to it."""
    if at > start and _KINDS[data[at - 1]] == _WORD:
        return np.int64(-1)  # r'…'
    at += 1
    while at < end and _KINDS[data[at]] != _QUOTE:
        if data[at] == _ESCAPE or data[at] < _BLANK:
            return np.int64(-1)
        at += 1
    if at == end or (at + 1 < end and _KINDS[data[at + 1]] == _QUOTE):
        return np.int64(-1)
    return at + 1


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
def _follow(
    recipe: Any, data: Any, spans: Any, recipes: Any, rows: Any, texts: Any, size: Any, out: Any
) -> Any:  # fmt: skip
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
