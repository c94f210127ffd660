"""Events as JSON: read strictly (see `tidings.model.strict_json`), and written with exact numbers."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from tidings.errors import EventError
from tidings.model.event_values import kind_of, shown
from tidings.model.strict_json import MalformedError, is_array, read_array, read_lines, read_one, text_of

MAX_EVENT_BYTES = 1 << 20
MAX_BATCH_BYTES = 8 << 20

# JSON's numbers have no Python type that the encoder writes digit by digit, so a decimal passes it as a text
# that nobody else can have written, and loses its quotes afterwards.
_MARK = f"decimal {secrets.token_hex(16)} "
_MARKED = re.compile(f'"{_MARK}([^"]*)"')


def parse_events(body: bytes | str, *, lines: bool = False) -> list[dict[str, Any]]:
    """The events of a body: one object, an array of objects, or with `lines` one object a line.

    Raises `EventError` for the whole body, with the row (from 0) where one event is at fault.
    """
    try:
        text = text_of(_limited(body))
        if lines:
            return [_event(line, value, row) for row, (line, value) in enumerate(read_lines(text))]
        if is_array(text):
            found = enumerate(read_array(text))
            return [_event(text[one.start : one.end], one.value, row) for row, one in found]
        only = read_one(text)
        return [_event(text[only.start : only.end], only.value, None)]
    except MalformedError as malformed:
        raise EventError(str(malformed), row=malformed.row) from None


def _limited(body: bytes | str) -> bytes:
    if isinstance(body, str):
        try:
            body = body.encode()
        except UnicodeEncodeError:
            raise EventError("the body has a lone surrogate, which is no character") from None
    if len(body) > MAX_BATCH_BYTES:
        raise EventError(f"the body has {len(body)} bytes, and at most {MAX_BATCH_BYTES} are taken; send fewer events")
    return body


def _event(text: str, value: Any, row: int | None) -> dict[str, Any]:
    size = len(text.encode())
    if size > MAX_EVENT_BYTES:
        raise EventError(f"the event has {size} bytes, and at most {MAX_EVENT_BYTES} are taken", row=row)
    if not isinstance(value, dict):
        raise EventError(f"an event is an object, and this is {kind_of(value)}: {shown(value)}", row=row)
    return value


def texts_of(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each event as one line of JSON, numbers exact; `EventError` with the row where JSON has no such value."""
    texts = []
    for row, event in enumerate(events):
        if not isinstance(event, Mapping):
            raise EventError(f"an event is an object, and this is {kind_of(event)}", row=row)
        try:
            text = _ENCODER.encode(event if type(event) is dict else dict(event))
            text.encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise EventError(f"this event cannot be written as JSON: {error}", row=row) from None
        texts.append(_MARKED.sub(r"\1", text) if _MARK in text else text)
    return texts


def _plain(value: object) -> Any:
    """What the encoder does not know, in the form that `tidings.model.event_values` reads back."""
    match value:
        case Decimal():
            if not value.is_finite():
                raise ValueError(f"{value} is no JSON number; leave it out, or send null")
            return f"{_MARK}{value}"
        case dt.datetime() | dt.date():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode("ascii")
        case np.generic():
            return value.item()
        case np.ndarray():
            return value.tolist()
        case Mapping():
            return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
