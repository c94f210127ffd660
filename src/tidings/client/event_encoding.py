"""Events as CloudEvents, each with a source and an id: the service takes an event that it has once more for
what it is, so that a publish whose answer was lost can be sent again."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tidings.errors import EventError
from tidings.model.event_json import texts_of
from tidings.model.event_values import kind_of

SOURCE = "/tidings/client"  # ids are unique by themselves
BATCH_EVENTS = 1000
BATCH_BYTES = 4 << 20  # half of what the service takes

Event = Mapping[str, Any]
Batch = tuple[int, bytes]  # how many events, and the body


def cloud_event(event: Event, *, domain: str, source: str | None = None, **fields: Any) -> dict[str, Any]:
    """A record, or a CloudEvent that lacks some of its fields, as a whole one."""
    if not isinstance(event, Mapping):
        raise EventError(f"an event is an object, and this is {kind_of(event)}")
    given = {key: value for key, value in fields.items() if value is not None}
    if isinstance(moment := given.get("time"), dt.datetime):
        given["time"] = timestamp(moment)
    whole = dict(event) if "specversion" in event else {"data": event}
    if source is not None:
        given["source"] = source
    usual = {"specversion": "1.0", "id": str(uuid.uuid4()), "source": SOURCE, "type": f"tidings.{domain}"}
    return usual | whole | given


def one_body(event: Event, **around: Any) -> bytes:
    return texts_of([cloud_event(event, **around)])[0].encode()


def batches(
    events: Iterable[Event], *, max_events: int = BATCH_EVENTS, max_bytes: int = BATCH_BYTES, **around: Any
) -> Iterator[Batch]:
    """The events in bodies of at most so many events and bytes, in order; read only as far as they are asked for."""
    waiting: list[str] = []
    size = 0
    for row, event in enumerate(events):
        try:
            text = texts_of([cloud_event(event, **around)])[0]
        except EventError as error:
            raise EventError(error.reason, row=row) from None
        bytes_ = len(text.encode())
        if waiting and (len(waiting) == max_events or size + bytes_ > max_bytes):
            yield _joined(waiting)
            waiting, size = [], 0
        waiting.append(text)
        size += bytes_ + 1
    if waiting:
        yield _joined(waiting)


def _joined(texts: list[str]) -> Batch:
    return len(texts), f"[{','.join(texts)}]".encode()


def timestamp(moment: dt.datetime) -> str:
    """RFC 3339; a time without an offset could be any."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone; give it one, such as tzinfo=datetime.UTC")
    return moment.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
