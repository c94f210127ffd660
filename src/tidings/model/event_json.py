"""JSON from publishers, read strictly: what is doubtful is refused, and numbers stay exact.

Integers are Python integers. Numbers with a point or an exponent are `Decimal`s, so that 8.40 is
exact for a decimal; for a float or double they stand for the nearest one.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

from tidings.errors import EventError
from tidings.model.event_values import kind_of, shown

MAX_EVENT_BYTES = 1 << 20
MAX_BATCH_BYTES = 8 << 20
MAX_DEPTH = 64  # of one event; its own braces are the first level

_SPACE = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_events(body: bytes | str, *, lines: bool = False) -> list[dict[str, Any]]:
    """The events of a body: one object, an array of objects, or with `lines` one object a line.

    Raises `EventError` for the whole body, with the row (from 0) where one event is at fault.
    """
    text = _text_of(body)
    if lines:
        written = [line for line in text.split("\n") if line.strip(" \t\r")]
        return [_parse_line(line, row) for row, line in enumerate(written)]
    start = _skip(text, 0)
    if start == len(text):
        raise EventError("the body is empty; send an object, or an array of objects")
    if text[start] == "[":
        return _parse_array(text, start)
    event, end = _parse_event(text, start, None)
    end = _skip(text, end)
    if end < len(text):
        raise EventError(f"malformed JSON: there is more after the event, at character {end}; send events as an array")
    return [event]


def _text_of(body: bytes | str) -> str:
    if isinstance(body, str):
        try:
            body = body.encode()
        except UnicodeEncodeError:
            raise EventError("the body has a lone surrogate, which is no character") from None
    if len(body) > MAX_BATCH_BYTES:
        raise EventError(f"the body has {len(body)} bytes, and at most {MAX_BATCH_BYTES} are taken; send fewer events")
    if body.startswith(b"\xef\xbb\xbf"):
        raise EventError("the body begins with a byte order mark; send UTF-8 without one")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EventError(f"the body is not UTF-8, at byte {error.start}") from None


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


def _parse_line(line: str, row: int) -> dict[str, Any]:
    event, end = _parse_event(line, _skip(line, 0), row)
    if _skip(line, end) < len(line):
        raise EventError("there is more after the event in its line; send one event a line", row=row)
    return event


def _parse_array(text: str, start: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    at = _skip(text, start + 1)
    closed = text.startswith("]", at)
    while not closed:
        event, at = _parse_event(text, at, len(events))
        events.append(event)
        at = _skip(text, at)
        closed = text.startswith("]", at)
        if not closed:
            if not text.startswith(",", at):
                raise EventError(f"malformed JSON: expected a comma or ] at character {at}", row=len(events) - 1)
            at = _skip(text, at + 1)
    end = _skip(text, at + 1)
    if end < len(text):
        raise EventError(f"malformed JSON: there is more after the array, at character {end}")
    return events


def _parse_event(text: str, start: int, row: int | None) -> tuple[dict[str, Any], int]:
    """One event and where it ends."""
    try:
        event, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise EventError(f"malformed JSON: {error.msg} at character {error.pos}", row=row) from None
    except RecursionError:
        raise _too_deep(row) from None
    except _RefusedError as refused:
        raise EventError(str(refused), row=row) from None
    size = len(text[start:end].encode())
    if size > MAX_EVENT_BYTES:
        raise EventError(f"the event has {size} bytes, and at most {MAX_EVENT_BYTES} are taken", row=row)
    if not isinstance(event, dict):
        raise EventError(f"an event is an object, and this is {kind_of(event)}: {shown(event)}", row=row)
    _check_nested(event, row)
    return event, end


def _check_nested(event: dict[str, Any], row: int | None) -> None:
    """Refuse what is too deep, and texts with lone surrogates, level by level."""
    level: list[Any] = [event]
    depth = 0
    while level:
        depth += 1
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict | list):
                if depth > MAX_DEPTH:
                    raise _too_deep(row)
                inner += value
                if isinstance(value, dict):
                    inner += value.values()
            elif isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
                raise EventError(f"the text {shown(value)} has a lone surrogate, which is no character", row=row)
        level = inner


def _too_deep(row: int | None) -> EventError:
    return EventError(f"the event is more than {MAX_DEPTH} levels deep", row=row)


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
    return Decimal(text)


def _constant(text: str) -> None:
    raise _RefusedError(f"{text} is not JSON; leave the attribute out, or send null")


def _short(text: str) -> str:
    return text if len(text) <= 50 else text[:49] + "…"


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_constant
)
