"""Shapes and literals of many filters, found in one pass over their bytes.

Finds what the regular expressions of `shapes` find, several times as fast, in texts that are plain; the other texts
are left to the regular expressions. A text is split exactly as they split it, or not at all: a byte, a number or a
string that is not plain makes the whole text odd.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.filter.compile.shapes import QUOTED_HOLE, Numbers, RegularExpressions
from tidings.filter.normal.filter_table import Rows
from tidings.kernels.decorator import kernel
from tidings.kernels.hashing import hash_bytes, string_buffers
from tidings.model.arrow import ArrowArray

STRING_MARK, NUMBER_MARK = "\x01", "\x02"  # in shapes, for literals; no text that is scanned has them
_HOLES = ((STRING_MARK, QUOTED_HOLE), (NUMBER_MARK, "0"))

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


class LiteralScanner:
    """Finds the shapes of a column of filters, and the texts in their holes.

    `plain_shapes` are the distinct shapes of the plain texts, with a mark for each literal, and `plain_shape_of` is
    the number of each text's shape among them, -1 for a text that is not plain.
    """

    def __init__(self, texts: ArrowArray) -> None:
        self._others = RegularExpressions(texts)
        self._texts = texts
        offsets, self._data = string_buffers(texts)
        count, size = len(texts), int(offsets[-1] - offsets[0])
        self.plain_shape_of: Rows = np.empty(count, np.int32)
        self._starts = np.zeros(count + 1, np.int64)  # of each text's literals
        # As much as there could be: what is not written to takes no memory.
        spans, shapes = np.empty((size + 1, 2), np.int32), np.empty(size + 1, np.uint8)
        ends = np.zeros(count + 1, np.int64)
        table = np.full(1 << (2 * count + 1).bit_length(), -1, np.int32)
        found = _split_all(offsets, self._data, table, shapes, ends, spans, self.plain_shape_of, self._starts)
        self._spans = spans[: self._starts[-1]].copy()
        self.plain_shapes = [shapes[ends[i] : ends[i + 1]].tobytes().decode() for i in range(found)]

    def shapes(self) -> tuple[Numbers, list[str]]:
        """The number of each text's shape, and the shapes."""
        known: dict[str, int] = {}
        for shape in self.plain_shapes:
            for mark, hole in _HOLES:
                shape = shape.replace(mark, hole)
            known[shape] = len(known)
        codes = self.plain_shape_of.astype(np.int64)
        odd = np.flatnonzero(codes < 0)
        if len(odd):
            odd_codes, odd_shapes = RegularExpressions(self._texts.take(pa.array(odd))).shapes()
            codes[odd] = np.array([known.setdefault(shape, len(known)) for shape in odd_shapes])[odd_codes]
        return codes, list(known)

    def in_holes(self, template: str, rows: Rows) -> list[ArrowArray]:
        """The texts in the holes of filters of one template, a column for each hole."""
        plain = self.plain_shape_of[rows] >= 0
        if not plain.any():
            return self._others.in_holes(template, rows)
        first = rows[plain][0]
        starts = self._starts[rows[plain]]
        columns = [self._written(starts + hole) for hole in range(self._starts[first + 1] - self._starts[first])]
        if plain.all():
            return columns
        odd = self._others.in_holes(template, rows[~plain])
        place = np.argsort(np.concatenate([np.flatnonzero(plain), np.flatnonzero(~plain)]))
        return [pa.concat_arrays(pair).take(pa.array(place)) for pair in zip(columns, odd, strict=True)]

    def _written(self, literals: Numbers) -> ArrowArray:
        spans = self._spans[literals]
        offsets: Any = np.zeros(len(spans) + 1, np.int32)
        np.cumsum(spans[:, 1] - spans[:, 0], out=offsets[1:])
        data: Any = np.empty(int(offsets[-1]), np.uint8)
        _copy(self._data, spans, offsets, data)
        return pa.StringArray.from_buffers(len(spans), pa.py_buffer(offsets), pa.py_buffer(data))


@kernel
def _split_all(
    offsets: Any, data: Any, table: Any, shapes: Any, ends: Any, spans: Any, shape_of: Any, starts: Any
) -> Any:
    """Write shapes, each once, and spans of literals, text by text. Returns how many shapes there are."""
    found = literals = np.int64(0)
    mask = np.uint64(len(table) - 1)
    for text in range(len(shape_of)):
        end = ends[found]
        length = scan_text(data, np.int64(offsets[text]), np.int64(offsets[text + 1]), shapes[end:], spans[literals:])
        shape_of[text] = -1
        if length >= 0:
            place = hash_bytes(shapes, end, end + length) & mask
            while table[place] >= 0 and not _same(shapes, ends, table[place], end, length):
                place = (place + np.uint64(1)) & mask
            if table[place] < 0:
                table[place] = found
                found += 1
                ends[found] = end + length
            shape_of[text] = table[place]
            for i in range(end, end + length):
                literals += shapes[i] == 1 or shapes[i] == 2
        starts[text + 1] = literals
    return found


@kernel
def _same(shapes: Any, ends: Any, known: Any, start: Any, length: Any) -> Any:
    same = np.int64(0) if ends[known + 1] - ends[known] == length else length + 1
    while same < length and shapes[ends[known] + same] == shapes[start + same]:
        same += 1
    return same == length


@kernel
def _copy(data: Any, spans: Any, offsets: Any, out: Any) -> None:
    for literal in range(len(spans)):
        for i in range(spans[literal, 1] - spans[literal, 0]):
            out[offsets[literal] + i] = data[spans[literal, 0] + i]


@kernel(inline="always")
def scan_text(data: Any, start: Any, end: Any, shape: Any, spans: Any) -> Any:
    """Write the shape of a text and the spans of its literals. Returns the shape's length, -1 for an odd text."""
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
