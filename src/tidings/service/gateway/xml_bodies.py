"""XML over HTTP: a document is an event with one attribute, `document`; a feed is an event for each of its items.

    application/xml, text/xml, …+xml            one document
    the same with ce- headers                   a CloudEvent whose data is the document
    application/rss+xml, application/atom+xml   the items of a feed, each a CloudEvent with an id of its own

Whatever cannot be read, has a document type or is past a limit is refused here, and never in the log.
"""

from __future__ import annotations

import json
from typing import Any

from tidings.errors import EventError
from tidings.filter.dialects.xpath import ATTRIBUTE
from tidings.service.gateway.json_bodies import BodyLimits, Events, too_large
from tidings.service.gateway.problems import Problem, pointer_to
from tidings.xml.document import Nodes, document_text, parse_document
from tidings.xml.feed import FeedSizeError, split_feed

XML = "application/xml"
FEEDS = ("application/rss+xml", "application/atom+xml")
ITEM_TYPE = "feed.item"  # of the CloudEvents that a feed's items become


def is_xml(kind: str) -> bool:
    return kind in (XML, "text/xml") or kind.endswith("+xml")


def xml_events(kind: str, body: bytes, attributes: dict[str, Any] | None, limits: BodyLimits) -> Events:
    """The events of a body; with the attributes of a CloudEvent, that one."""
    max_event_bytes = limits.event_bytes
    is_feed = attributes is None and kind in FEEDS
    if not is_feed and len(body) > max_event_bytes:  # before a tree is made of it
        raise too_large(f"the event has {len(body)} bytes, and at most {max_event_bytes} are taken")
    try:
        text = document_text(body)
        if is_feed:
            items = split_feed(text, max_items=limits.events, max_bytes=limits.batch_bytes)
            return _texts([_item(item) for item in items], max_event_bytes)
        record = xml_record(text)
    except FeedSizeError as error:
        raise too_large(f"{error.reason}; send fewer items at a time, or shorten the feed's own head") from None
    except EventError as error:
        raise Problem(400, "event", error.reason) from None
    if attributes is None:
        return _texts([record], max_event_bytes)
    return _texts([attributes | {"datacontenttype": kind, "data": record}], max_event_bytes)


def xml_record(text: str) -> dict[str, Any]:
    """The record of a document; raises EventError where it cannot be read."""
    Nodes().add(parse_document(text))
    return {ATTRIBUTE: text}


def with_xml_data(events: Events, many: bool) -> Events:
    """CloudEvents whose data is XML in a string, with that as their record."""
    for row, event in enumerate(events.objects):
        kind, data = event.get("datacontenttype"), event.get("data")
        if isinstance(kind, str) and isinstance(data, str) and is_xml(kind.partition(";")[0].strip().lower()):
            try:
                event["data"] = xml_record(data)
            except EventError as error:
                pointer = pointer_to(row, "data") if many else pointer_to("data")
                raise Problem(400, "event", error.reason, pointer=pointer) from None
            events.texts[row] = _dumped(event)
    return events


def _item(item: Any) -> dict[str, Any]:
    """An item as a CloudEvent; the same version of it has the same id, and so is in the log once."""
    return {
        "specversion": "1.0", "id": f"{item.id}#{item.version}", "source": item.feed, "type": ITEM_TYPE,
        "datacontenttype": XML, "data": {ATTRIBUTE: item.document},
    }  # fmt: skip


def _texts(objects: list[dict[str, Any]], max_event_bytes: int) -> Events:
    texts = [_dumped(event) for event in objects]
    for row, text in enumerate(texts):
        if (size := len(text.encode())) > max_event_bytes:
            place = row if len(texts) > 1 else None
            raise too_large(f"the event has {size} bytes, and at most {max_event_bytes} are taken", place)
    return Events(objects, texts)


def _dumped(event: dict[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))
