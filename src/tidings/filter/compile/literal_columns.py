"""The literals of many filters of one shape, read as columns.

A *hole* is where such filters differ: a literal. What a text in a hole is worth is what the
lexer and the resolver's casts make of it (`LiteralText.value`, `values.cast`); the forms that
most filters use are read here by Arrow, all at once, and every other text goes through those two.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import FilterError
from tidings.filter.meaning.operators import cast, fit_decimal
from tidings.filter.meaning.patterns import MAX_SHORT_LENGTH, PLAIN_PATTERN, is_short_rlike, like_to_re2
from tidings.filter.normal.leaf_predicates import like_prefix
from tidings.filter.normal.residuals import Column, column_dtype
from tidings.filter.syntax.lexer import LiteralText, string_value
from tidings.model import types
from tidings.model.types import DataType

ArrowArray: TypeAlias = Any  # pyarrow's stubs lose an array's type in its compute functions
Mask: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64]

_WHOLE = r"^[0-9]{1,18}$"
_SMALL_WHOLE = r"^[0-9]{1,9}$"  # an int, whatever its sign
_FRACTION = r"^[0-9]{1,15}\.[0-9]{1,15}$"
_DOUBLE = r"^[0-9]{1,15}(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?$"
_PREFIX = r"^[^%_\\]+%?$"
_ONLY_AT_THE_END = r"^[^%_\\]*%*$"
_PLAIN_STRING = r"^'[^'\\]*'$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"


@dataclass(frozen=True, slots=True)
class Hole:
    """A literal that differs from filter to filter."""

    number: int  # among the shape's holes
    kind: str  # of LiteralText
    negative: bool = False  # a minus sign before it belongs to it
    lowered: bool = False  # a pattern of ILIKE
    escape: bool = False  # the escape of a pattern


class Likeness(NamedTuple):
    """What filters have to have in common in one hole for one plan to serve them all."""

    hole: Hole
    what: str  # the "class" or the "type" of a number; having a "form"; what LIKE makes of a "pattern"; the very "text"
    form: str = ""  # a regular expression, or a pattern's escape


def plain_form(type_: DataType) -> str:
    """The form of the texts that are exactly one value of a type, and that Arrow reads."""
    match type_.name:
        case "date":
            return _DATE
        case "timestamp" | "timestamp_ntz":
            return _TIME
        case "float" | "double":
            return _DOUBLE
        case "decimal":
            fraction = rf"(\.[0-9]{{1,{type_.scale}}})?" if type_.scale else ""
            return rf"^[0-9]{{1,{max(1, min(15, type_.precision - type_.scale))}}}{fraction}$"
        case "string":
            return "(?s)^.+$"
    return _WHOLE


class Holes:
    """The texts in the holes of some filters, each read once in every way that is asked for."""

    def __init__(self, texts: list[ArrowArray]) -> None:
        self._texts = texts
        self._codes: dict[Likeness, Numbers] = {}
        self._strings: dict[int, tuple[ArrowArray, Mask]] = {}

    def take(self, rows: Numbers) -> Holes:
        chosen = pa.array(rows)
        return Holes([texts.take(chosen) for texts in self._texts])

    def alike(self, likeness: Likeness) -> Numbers:
        """A number for each filter, the same for those that are alike."""
        if likeness not in self._codes:
            self._codes[likeness] = self._read_codes(likeness)
        return self._codes[likeness]

    def _read_codes(self, likeness: Likeness) -> Numbers:
        hole, what, form = likeness
        match what:
            case "text":
                return _numpy(self._texts[hole.number].dictionary_encode().indices).astype(np.int64)
            case "form":
                return _numpy(pc.match_substring_regex(self.texts(hole)[0], form)).astype(np.int64)
            case "pattern":
                return _kinds_of_patterns(self.texts(hole)[0], form)
        codes = _number_types(self._texts[hole.number], hole.negative)
        return codes if what == "type" else codes >> _CLASS_SHIFT

    def texts(self, hole: Hole) -> tuple[ArrowArray, Mask]:
        """The digits of numbers, the values of strings; and which of them can be read."""
        if hole.kind == "number":
            texts = self._texts[hole.number]
            return texts, np.ones(len(texts), bool)
        if hole.number not in self._strings:
            self._strings[hole.number] = _strings(self._texts[hole.number])
        return self._strings[hole.number]

    def values(self, hole: Hole, type_: DataType) -> tuple[Column, Mask]:
        """The literals as values of the type that the tree has them in; and which of them are one."""
        texts, readable = self.texts(hole)
        if hole.kind == "string" and type_ == types.STRING:
            return _numpy(texts), readable
        if hole.kind == "number":
            if type_.name == "double" and self._all_match(hole, _DOUBLE):
                return _doubles(texts, hole.negative), readable
            if type_.is_integral and self._all_match(hole, _SMALL_WHOLE):
                values = _numpy(texts.cast(pa.int64()))
                return -values if hole.negative else values, readable
            if type_.name == "decimal" and (self._all_match(hole, _FRACTION) or self._all_match(hole, _WHOLE)):
                sign = "-" if hole.negative else ""
                return _each(lambda text: fit_decimal(Decimal(sign + text), type_), texts, type_)

        def read(text: str) -> Any:
            literal = LiteralText(hole.kind, text, 1, (0, 0)).value(negative=hole.negative)
            return cast(literal.value, literal.type, type_)

        values, valid = _each(read, texts, type_)
        return values, valid & readable

    def _all_match(self, hole: Hole, form: str) -> bool:
        return bool(self.alike(Likeness(hole, "form", form)).all())

    def patterns(self, hole: Hole, escape: str | None) -> tuple[ArrowArray, Mask]:
        """Patterns of LIKE, or of RLIKE where there is no escape; and which of them are short ones that can be run."""
        texts, readable = self.texts(hole)
        encoded = texts.dictionary_encode()
        distinct = encoded.dictionary
        if hole.lowered:
            distinct = pa.array([text.lower() for text in distinct.to_pylist()], pa.string())
        valid = _numpy(pc.utf8_length(distinct)) <= MAX_SHORT_LENGTH
        if escape is None:
            suspect = ~_numpy(pc.match_substring_regex(distinct, PLAIN_PATTERN))
        else:
            suspect = _numpy(pc.match_substring(distinct, escape))
        for number in np.flatnonzero(suspect & valid).tolist():
            text = distinct[number].as_py()
            valid[number] = is_short_rlike(text) if escape is None else _is_read(like_to_re2, text, escape)
        return distinct.take(encoded.indices), readable & valid[_numpy(encoded.indices)]


# What LIKE makes of a pattern: a prefix without further ado, something else that an index serves, or what none does.
# One that is long may cost too much, and is left to the full parse.
PREFIX, SERVED, UNSERVED, LONG = 1, 2, 0, 3


def kind_of_pattern(text: str, escape: str) -> int:
    if len(text) > MAX_SHORT_LENGTH:
        return LONG
    if escape == "\\" and re.fullmatch(_PREFIX, text):
        return PREFIX
    try:
        return UNSERVED if like_prefix(text, escape)[1].strip("%") else SERVED
    except IndexError:  # ends in its escape
        return SERVED


def _kinds_of_patterns(texts: ArrowArray, escape: str) -> Numbers:
    prefix, at_the_end = (_numpy(pc.match_substring_regex(texts, form)) for form in (_PREFIX, _ONLY_AT_THE_END))
    kinds = np.select([prefix, at_the_end], [PREFIX, SERVED], UNSERVED)
    if escape != "\\":
        kinds[prefix] = SERVED
    odd = pc.or_(pc.match_substring(texts, escape), pc.match_substring(texts, "\\"))
    for row in np.flatnonzero(_numpy(odd)).tolist():
        kinds[row] = kind_of_pattern(texts[row].as_py(), escape)
    kinds[_numpy(pc.utf8_length(texts)) > MAX_SHORT_LENGTH] = LONG
    return kinds


def _is_read(read: Callable[..., object], *arguments: str) -> bool:
    try:
        read(*arguments)
    except ValueError:
        return False
    return True


def _numpy(array: ArrowArray) -> npt.NDArray[Any]:
    result: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return result


def _doubles(texts: ArrowArray, negative: bool) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = _numpy(texts.cast(pa.float64()))
    if not negative:
        return values
    exponents = _numpy(pc.match_substring_regex(texts, "[eE]"))
    return np.where(exponents, -values, 0.0 - values)  # a zero that was a decimal has no sign


def _strings(written: ArrowArray) -> tuple[ArrowArray, Mask]:
    """The strings that are written so, with their quotes; and which of them are valid Unicode."""
    plain = pc.match_substring_regex(written, _PLAIN_STRING)
    strings = pc.utf8_slice_codeunits(written, 1, -1)
    valid = np.ones(len(written), bool)
    if not pc.all(plain).as_py() and len(written):
        values = strings.to_pylist()
        for row in np.flatnonzero(~_numpy(plain)).tolist():
            try:
                values[row] = string_value(written[row].as_py(), 1)
            except FilterError:
                values[row], valid[row] = "", False
        strings = pa.array(values, pa.string())
    return strings, valid


def _each(read: Callable[[str], Any], texts: ArrowArray, type_: DataType) -> tuple[Column, Mask]:
    """What each distinct text reads as; None and what the language refuses are not valid."""
    encoded = texts.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    values: Column = np.zeros(len(distinct), column_dtype(type_))
    valid = np.zeros(len(distinct), bool)
    for number, text in enumerate(distinct):
        try:
            value = read(text)
        except FilterError:
            continue
        if value is not None:
            values[number], valid[number] = value, True
    which = _numpy(encoded.indices)
    return values[which], valid[which]


_CLASS_SHIFT = 24
_INT, _DECIMAL, _OTHER = 0, 1, 2


def _number_types(texts: ArrowArray, negative: bool) -> Numbers:
    """A number for each type that numbers have, with the digits of whole ones; past the shift, one for its name."""
    small = _numpy(pc.match_substring_regex(texts, _SMALL_WHOLE))
    fractional = _numpy(pc.match_substring_regex(texts, _FRACTION))
    significant = pc.utf8_ltrim(texts, "0")
    length = _numpy(pc.utf8_length(significant)).astype(np.int64)
    point = _numpy(pc.find_substring(significant, ".")).astype(np.int64)
    codes = np.where(
        small,
        (_INT << _CLASS_SHIFT) + np.maximum(1, length),
        (_DECIMAL << _CLASS_SHIFT) + (point << 8) + length - point - 1,
    )
    others = np.flatnonzero(~(small | fractional))
    if len(others):
        names: dict[str, int] = {}
        known: dict[Any, int] = {}
        for row, text in zip(others.tolist(), texts.take(pa.array(others)).to_pylist(), strict=True):
            try:
                literal = LiteralText("number", text, 1, (0, 0)).value(negative=negative)
            except FilterError:
                codes[row] = -1
                continue
            digits = len(str(abs(literal.value))) if isinstance(literal.value, int) else 0
            name = _OTHER + names.setdefault(literal.type.name, len(names))
            codes[row] = (name << _CLASS_SHIFT) + known.setdefault((literal.type, digits), len(known))
    return codes
