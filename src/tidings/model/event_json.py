"""Events from JSON, read strictly: see `tidings.model.strict_json`."""

from __future__ import annotations

from typing import Any

from tidings.errors import EventError
from tidings.model.event_values import kind_of, shown
from tidings.model.strict_json import MalformedError, is_array, read_array, read_lines, read_one, text_of

MAX_EVENT_BYTES = 1 << 20
MAX_BATCH_BYTES = 8 << 20


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
