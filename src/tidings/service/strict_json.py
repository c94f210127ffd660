"""JSON from strangers: what is doubtful is refused with its place, numbers stay exact, texts are kept as they came.

The same rules as `tidings.model.event_json`, with what an interface needs besides: the text of each event,
which the log then need not write again, and a status for each way of being wrong. Most bodies have nothing
that could be doubtful, and a look at the whole text tells: the careful reading is for the others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from tidings.model.event_json import MAX_DEPTH
from tidings.model.event_values import kind_of
from tidings.service.problems import Problem, pointer_to, shown

_SPACE = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
# A number that may be beyond 64 bits, or beyond a double: many digits, or an exponent of three.
_ODD_NUMBER = re.compile(r"[0-9]{19}|[0-9][eE][+-]?[0-9]{3}")


class Events(NamedTuple):
    """Events as objects, and the text of each."""

    objects: list[dict[str, Any]]
    texts: list[str]


def text_of(body: bytes) -> str:
    """The text of a body; it is UTF-8 and nothing else."""
    if body.startswith(b"\xef\xbb\xbf"):
        raise malformed("the body begins with a byte order mark; send UTF-8 without one")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed(f"the body is not UTF-8, at byte {error.start}") from None


def document(body: bytes) -> Any:
    """The one value of a body."""
    return document_of(text_of(body))


def document_of(text: str) -> Any:
    reader = _Reader(text, 0)
    start = reader.skip(0)
    if start == len(text):
        raise malformed("the body is empty; send JSON")
    value, end = reader.value(start, None)
    reader.expect_end(end)
    return value


def object_of(body: bytes) -> dict[str, Any]:
    """The one object of a body."""
    value = document(body)
    if not isinstance(value, dict):
        raise Problem(422, "invalid", f"an object is wanted, and this is {kind_of(value)}", pointer="")
    return value


def one_event(text: str, max_bytes: int) -> Events:
    """A body that is one event."""
    reader = _Reader(text, max_bytes)
    start = reader.skip(0)
    if start == len(text):
        raise malformed("the body is empty; send an event")
    event, end = reader.event(start, None)
    reader.expect_end(end)
    return Events([event], [text[start:end]])


def many_events(text: str, max_bytes: int) -> Events:
    """A body that is an array of events."""
    reader = _Reader(text, max_bytes)
    start = reader.skip(0)
    if not text.startswith("[", start):
        raise malformed("a batch is an array of events" if start < len(text) else "the body is empty; send an array")
    events = Events([], [])
    at = reader.skip(start + 1)
    closed = text.startswith("]", at)
    while not closed:
        row = len(events.objects)
        event, end = reader.event(at, row)
        events.objects.append(event)
        events.texts.append(text[at:end])
        at = reader.skip(end)
        closed = text.startswith("]", at)
        if not closed:
            if not text.startswith(",", at):
                raise malformed(f"malformed JSON: expected a comma or ] at character {at}", row)
            at = reader.skip(at + 1)
    reader.expect_end(at + 1)
    return events


def event_lines(text: str, max_bytes: int) -> Events:
    """A body with one event a line; empty lines are none."""
    events = Events([], [])
    for line in text.split("\n"):
        line = line.strip(" \t\r")
        if not line:
            continue
        row = len(events.objects)
        reader = _Reader(line, max_bytes)
        event, end = reader.event(0, row)
        if end < len(line):
            raise malformed("malformed JSON: there is more after the event in its line; send one event a line", row)
        events.objects.append(event)
        events.texts.append(line)
    return events


def is_array(text: str) -> bool:
    return text.startswith("[", _skip(text, 0))


def malformed(detail: str, row: int | None = None) -> Problem:
    return Problem(400, "malformed", detail, pointer=None if row is None else pointer_to(row))


class _Reader:
    """Reads values off one text, as carefully as it needs."""

    def __init__(self, text: str, max_bytes: int) -> None:
        self._text = text
        self._max_bytes = max_bytes
        self._short = len(text) * 4 <= max_bytes  # no event of it can be too long
        self._escapes = "\\u" in text
        odd = _ODD_NUMBER.search(text) is not None
        self._decode: Callable[[str, int], tuple[Any, int]] = (_CAREFUL if odd else _QUICK).raw_decode

    def skip(self, at: int) -> int:
        return _skip(self._text, at)

    def expect_end(self, at: int) -> None:
        end = self.skip(at)
        if end < len(self._text):
            raise malformed(f"malformed JSON: there is more at character {end}, after what should be all")

    def event(self, start: int, row: int | None) -> tuple[dict[str, Any], int]:
        """One event and where it ends."""
        event, end = self.value(start, row)
        if not self._short and (size := len(self._text[start:end].encode())) > self._max_bytes:
            raise too_large(f"the event has {size} bytes, and at most {self._max_bytes} are taken", row)
        if not isinstance(event, dict):
            detail = f"an event is an object, and this is {kind_of(event)}"
            raise Problem(400, "event", detail, pointer=None if row is None else pointer_to(row))
        return event, end

    def value(self, start: int, row: int | None) -> tuple[Any, int]:
        text = self._text
        try:
            value, end = self._decode(text, start)
        except json.JSONDecodeError as error:
            raise malformed(f"malformed JSON: {error.msg} at character {error.pos}", row) from None
        except RecursionError:
            raise _too_deep(row) from None
        except _RefusedError as refused:
            raise malformed(str(refused), row) from None
        # As many levels need as many brackets, so that few brackets need no count of levels.
        if text.count("{", start, end) + text.count("[", start, end) > MAX_DEPTH or self._escapes:
            _check_nested(value, row)
        return value, end


def too_large(detail: str, row: int | None = None) -> Problem:
    return Problem(413, "too-large", detail, pointer=None if row is None else pointer_to(row))


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


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
                raise malformed(f"the text {shown(item)} has a lone surrogate, which is no character", row)
        level = inner


def _too_deep(row: int | None) -> Problem:
    return malformed(f"the JSON is more than {MAX_DEPTH} levels deep", row)


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
        raise _RefusedError(f"the integer {shown(text)} is beyond 64 bits; send a longer decimal as a text of digits")
    return number


def _fraction(text: str) -> Decimal:
    if math.isinf(float(text)):
        raise _RefusedError(f"the number {shown(text)} is beyond the range of a double")
    try:
        return Decimal(text)
    except InvalidOperation:
        raise _RefusedError(f"the number {shown(text)} has an exponent that is too long") from None


def _constant(text: str) -> None:
    raise _RefusedError(f"{text} is not JSON; leave the attribute out, or send null")


_QUICK = json.JSONDecoder(object_pairs_hook=_object, parse_float=Decimal, parse_constant=_constant)
_CAREFUL = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_constant
)
