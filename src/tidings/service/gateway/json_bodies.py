"""JSON in the bodies of requests: strictly read, its events with their texts, and a status for each way of being wrong.

The text of an event is kept as it came, so that the log need not write it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tidings.model import strict_json
from tidings.model.event_values import kind_of
from tidings.service.gateway.problems import Problem, pointer_to
from tidings.service.gateway.quick_json import Exact, quick_array, quick_lines


class Events(NamedTuple):
    """Events as objects, and the text of each."""

    objects: list[dict[str, Any]]
    texts: list[str]


class BodyLimits(NamedTuple):
    """What one request may bring."""

    event_bytes: int
    batch_bytes: int  # decompressed
    events: int


def text_of(body: bytes) -> str:
    with _refused():
        return strict_json.text_of(body)


def object_of(body: bytes) -> dict[str, Any]:
    """The one object of a body."""
    with _refused():
        value = strict_json.read_one(strict_json.text_of(body)).value
    if not isinstance(value, dict):
        raise Problem(422, "invalid", f"an object is wanted, and this is {kind_of(value)}", pointer="")
    return value


def one_event(body: bytes, limits: BodyLimits) -> Events:
    """A body that is one event."""
    if (size := len(body.strip(b" \t\r\n"))) > limits.event_bytes:  # before anything is made of it
        raise too_large(f"the event has {size} bytes, and at most {limits.event_bytes} are taken")
    text = text_of(body)
    with _refused():
        found = strict_json.read_one(text)
    return _events([(text[found.start : found.end], found.value)], limits, many=False)


def many_events(body: bytes, limits: BodyLimits, exact: Exact = None) -> Events:
    """A body that is an array of events."""
    text = text_of(body)
    few = body.count(b"{") <= limits.events  # else they are counted one by one, as they are read
    if few and exact is not None and (quick := quick_array(body, text, exact, limits.event_bytes)) is not None:
        return Events(*quick)
    found = ((text[one.start : one.end], one.value) for one in strict_json.read_array(text, limits.event_bytes))
    return _events(found, limits)


def event_lines(body: bytes, limits: BodyLimits, exact: Exact = None) -> Events:
    """A body with one event a line; empty lines are none."""
    text = text_of(body)
    few = body.count(b"\n") < limits.events
    if few and exact is not None and (quick := quick_lines(body, text, exact, limits.event_bytes)) is not None:
        return Events(*quick)
    return _events(strict_json.read_lines(text), limits)


def malformed(detail: str, row: int | None = None) -> Problem:
    return Problem(400, "malformed", detail, pointer=_place(row))


def too_large(detail: str, row: int | None = None) -> Problem:
    return Problem(413, "too-large", detail, pointer=_place(row))


def too_many_events(limits: BodyLimits) -> Problem:
    return too_large(f"one request has at most {limits.events:,} events, and this one has more; send fewer at a time")


def _events(found: Iterable[tuple[str, Any]], limits: BodyLimits, *, many: bool = True) -> Events:
    events = Events([], [])
    max_bytes = limits.event_bytes
    with _refused():
        for number, (text, value) in enumerate(found):
            row = number if many else None
            if number == limits.events:
                raise too_many_events(limits)
            # No character has more than four bytes: only long texts need be counted in bytes.
            if len(text) * 4 > max_bytes and (size := len(text.encode())) > max_bytes:
                raise too_large(f"the event has {size} bytes, and at most {max_bytes} are taken", row)
            if not isinstance(value, dict):
                detail = f"an event is an object, and this is {kind_of(value)}"
                raise Problem(400, "event", detail, pointer=_place(row))
            events.objects.append(value)
            events.texts.append(text)
    return events


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except strict_json.TooLongError as error:
        raise too_large(f"{error}, and an event has no more bytes; send smaller ones", error.row) from None
    except strict_json.MalformedError as error:
        raise malformed(str(error), error.row) from None


def _place(row: int | None) -> str | None:
    return None if row is None else pointer_to(row)
