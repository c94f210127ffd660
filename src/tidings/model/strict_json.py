"""JSON from strangers, read strictly: what is doubtful is refused with its place, and numbers stay exact.

Integers are Python integers of 64 bits. Numbers with a point or an exponent are `Decimal`s, so that 8.40 is
exact for a decimal; for a float or double they stand for the nearest one. Most texts have nothing that could
be doubtful, and one look at the whole text shows it: the careful reading is for the others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import re2

from tidings.model.event_values import shown

MAX_DEPTH = 64  # of one value; its own braces are the first level

_SPACE = re.compile(r"[ \t\n\r]*")
LINE = re.compile(r"[^ \t\r\n][^\n]*")  # that is not empty, from its first character on
_LONGEST_WORD = 16  # that may be cut off: -Infinity, an escape
_SURROGATE = re.compile("[\ud800-\udfff]")
# A number that may be beyond 64 bits, or beyond a double: many digits before the point, or an exponent of three.
# By RE2, which looks at each byte once: the library's own takes ten times as long.
_ODD_NUMBER = re2.compile(rb"(?:^|[^0-9.])[0-9]{19}|[0-9][eE][+-]?[0-9]{3}")


class MalformedError(ValueError):
    """What is wrong with a text; `row` is the value of several that is at fault."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.row = row


class TooLongError(MalformedError):
    """A value with more characters than are taken."""


class JsonValue(NamedTuple):
    """A value, and where its text begins and ends."""

    value: Any
    start: int
    end: int


def text_of(body: bytes) -> str:
    """The text of a body; it is UTF-8 and nothing else."""
    if body.startswith(b"\xef\xbb\xbf"):
        raise MalformedError("the body begins with a byte order mark; send UTF-8 without one")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(f"the body is not UTF-8, at byte {error.start}") from None


def is_array(text: str) -> bool:
    return text.startswith("[", _skip(text, 0))


def read_one(text: str) -> JsonValue:
    """The one value of a text."""
    reader = _Reader(text)
    start = _skip(text, 0)
    if start == len(text):
        raise MalformedError("the body is empty; send JSON")
    found = reader.read(start, None)
    _expect_end(text, found.end)
    return found


def read_array(text: str, max_length: int | None = None) -> Iterator[JsonValue]:
    """The values of an array, one by one; raises TooLongError where one has more characters than `max_length`."""
    start = _skip(text, 0)
    if start == len(text):
        raise MalformedError("the body is empty; send an array")
    if text[start] != "[":
        raise MalformedError("this is no array; send several as an array")
    reader, row = _Reader(text, max_length), 0
    at = _skip(text, start + 1)
    closed = text.startswith("]", at)
    while not closed:
        found = reader.read(at, row)
        yield found
        at = _skip(text, found.end)
        closed = text.startswith("]", at)
        if not closed:
            if not text.startswith(",", at):
                raise MalformedError(f"malformed JSON: expected a comma or ] at character {at}", row)
            at = _skip(text, at + 1)
        row += 1
    _expect_end(text, at + 1)


def read_lines(text: str) -> Iterator[tuple[str, Any]]:
    """The values of a text with one a line, each with its line; empty lines are none."""
    for row, written in enumerate(LINE.finditer(text)):  # one by one: millions of empty lines take no memory
        line = written[0].rstrip(" \t\r")
        found = _Reader(line).read(0, row)
        if found.end < len(line):
            raise MalformedError("malformed JSON: there is more after the value in its line; send one a line", row)
        yield line, found.value


class _Reader:
    """Reads values off one text, as carefully as it needs."""

    def __init__(self, text: str, max_length: int | None = None) -> None:
        self._text = text
        self._max_length = len(text) if max_length is None else max_length
        # What is decoded: a part of the text, so that a value is given up as soon as it is too long.
        self._part, self._part_start = text, 0
        if 2 * self._max_length < len(text):
            self._part = text[: 2 * self._max_length]
        self._escapes = "\\" in text and "\\u" in text  # the one character is looked for ten times as fast
        odd = _ODD_NUMBER.search(text.encode("utf-8", "surrogatepass")) is not None
        self._decode: Callable[[str, int], tuple[Any, int]] = (_CAREFUL if odd else _QUICK).raw_decode

    def read(self, start: int, row: int | None) -> JsonValue:
        text = self._text
        if start - self._part_start > self._max_length:
            self._part_start, self._part = start, text[start : start + 2 * self._max_length]
        before = self._part_start
        try:
            value, end = self._decode(self._part, start - before)
        except json.JSONDecodeError as error:
            is_cut = before + len(self._part) < len(text)
            if is_cut and (error.pos >= len(self._part) - _LONGEST_WORD or "Unterminated" in error.msg):
                raise TooLongError(f"the value has more than {self._max_length} characters", row) from None
            raise MalformedError(f"malformed JSON: {error.msg} at character {before + error.pos}", row) from None
        except RecursionError:
            raise _too_deep(row) from None
        except _RefusedError as refused:
            raise MalformedError(str(refused), row) from None
        end += before
        # As many levels need as many brackets, so that few brackets need no count of levels.
        if text.count("{", start, end) + text.count("[", start, end) > MAX_DEPTH or self._escapes:
            _check_nested(value, row)
        return JsonValue(value, start, end)


def _skip(text: str, at: int) -> int:
    if text[at : at + 1] > " ":  # as nearly always
        return at
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


def _expect_end(text: str, at: int) -> None:
    end = _skip(text, at)
    if end < len(text):
        raise MalformedError(
            f"malformed JSON: there is more at character {end}, after what should be all; send several as an array"
        )


def _check_nested(value: Any, row: int | None) -> None:
    """Refuse what is too deep, and texts with half a character, level by level."""
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict | list):
                if depth > MAX_DEPTH:
                    raise _too_deep(row)
                inner += item
                if isinstance(item, dict):
                    inner += item.values()
            elif isinstance(item, str) and not item.isascii() and _SURROGATE.search(item):
                raise MalformedError(f"the text {shown(item)} has a lone surrogate, which is no character", row)
        level = inner


def _too_deep(row: int | None) -> MalformedError:
    return MalformedError(f"the JSON is more than {MAX_DEPTH} levels deep", row)


# ---------------------------------------------------------------------- the decoder's hooks


class _RefusedError(ValueError):
    """Raised inside the decoder, which knows no rows."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedError(f"the key {shown(key)} is there twice in one object")
            seen.add(key)
    return read


def _integer(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= (number := int(text)) < 2**63:
        raise _RefusedError(f"the integer {_short(text)} is beyond 64 bits; send a longer decimal as a text of digits")
    return number


def _fraction(text: str) -> Decimal:
    if math.isinf(float(text)):
        raise _RefusedError(f"the number {_short(text)} is beyond the range of a double")
    try:
        return Decimal(text)
    except InvalidOperation:
        raise _RefusedError(f"the number {_short(text)} has an exponent that is too long") from None


def _constant(text: str) -> None:
    raise _RefusedError(f"{text} is not JSON; leave the attribute out, or send null")


def _short(text: str) -> str:
    return text if len(text) <= 50 else text[:49] + "…"


_QUICK = json.JSONDecoder(object_pairs_hook=_object, parse_float=Decimal, parse_constant=_constant)
_CAREFUL = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_constant
)
