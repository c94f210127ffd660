"""How events come over HTTP: CloudEvents 1.0 (binary, structured, batched), plain JSON, JSON lines, and XML.

    application/cloudevents+json                one CloudEvent
    application/cloudevents-batch+json          an array of them
    application/json with ce- headers           a CloudEvent whose data is the body and whose attributes are the headers
    application/json                            one event, or an array of events: records, or CloudEvents
    application/x-ndjson                        one event a line
    application/xml, text/xml, …+xml            one document: an event with one attribute, `document`
    the same with ce- headers                   a CloudEvent whose data is the document
    application/rss+xml, application/atom+xml   the items of a feed, each a CloudEvent with an id of its own

Each becomes the event as an object and as the text that the log keeps. XML that cannot be read, has a document type or
exceeds a limit is refused here and never reaches the log.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from lxml import etree
from starlette.datastructures import Headers

from tidings.errors import EventError
from tidings.filter.xpath_dialect import ATTRIBUTE
from tidings.model.event_values import Misfit, fit, shown
from tidings.model.types import TIMESTAMP
from tidings.service.gateway.gateway_settings import BodyLimits
from tidings.service.gateway.problems import Problem, pointer_to
from tidings.service.gateway.request_bodies import (
    Events,
    Exact,
    event_lines,
    large_event,
    many_events,
    one_event,
    too_large,
)
from tidings.xml.document import check_document
from tidings.xml.feed import FeedSizeError, Item, split_feed

ONE, BATCH, PLAIN = "application/cloudevents+json", "application/cloudevents-batch+json", "application/json"
XML = "application/xml"
LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
FEEDS = ("application/rss+xml", "application/atom+xml")
ITEM_TYPE = "feed.item"  # of the CloudEvents that a feed's items become
MEDIA_TYPES = (PLAIN, ONE, BATCH, LINES[0], XML)

_NAME = re.compile(r"[a-z0-9]{1,20}")
_REQUIRED = ("id", "source", "type")


def read_published(kind: str, headers: Headers, body: bytes, limits: BodyLimits, exact: Exact = None) -> Events:
    """Returns the events of a body, strictly read; only numbers of the attributes in `exact` keep every digit."""
    if kind == PLAIN or kind in LINES:
        if "ce-specversion" in headers:
            if kind != PLAIN:
                raise _binary_type(kind)
            return _binary(headers, body, limits)
        if kind in LINES:
            events = event_lines(body, limits, exact)
            many = True
        else:
            many = body.lstrip(b" \t\r\n").startswith(b"[")
            events = many_events(body, limits, exact) if many else one_event(body, limits)
        for row, event in enumerate(events.objects):
            if "specversion" in event and "time" in event:
                _check_time(event, row if many else None)
        return events
    if kind == ONE:
        events = one_event(body, limits)
        check_cloud_event(events.objects[0], None)
        return with_xml_data(events, many=False)
    if kind == BATCH:
        events = many_events(body, limits, exact)
        for row, event in enumerate(events.objects):
            check_cloud_event(event, row)
        return with_xml_data(events, many=True)
    if is_xml(kind):
        attributes = _attributes(headers, kind) if "ce-specversion" in headers else None
        return xml_events(kind, body, attributes, limits)
    if "ce-specversion" in headers:
        raise _binary_type(kind)
    raise Problem(
        415, "media-type", f"the media type '{kind[:80]}' is not supported; send one of {', '.join(MEDIA_TYPES)}"
    )


def check_cloud_event(event: Mapping[str, Any], row: int | None) -> None:
    """Raises Problem unless an event has what a CloudEvent must have."""
    if event.get("specversion") != "1.0":
        raise _wrong("specversion", f"a CloudEvent has specversion '1.0', not {shown(event.get('specversion'))}", row)
    for name in _REQUIRED:
        if not isinstance(event.get(name), str) or not event[name]:
            raise _wrong(name, f"a CloudEvent needs '{name}', a text that is not empty", row)
    if "time" in event:
        _check_time(event, row)


def _check_time(event: Mapping[str, Any], row: int | None) -> None:
    time = event["time"]
    if time is None:
        return
    try:
        if not isinstance(time, str):
            raise Misfit(f"{shown(time)} is no time")
        # CloudEvents' times may be finer than ours; only what they mean has to be clear.
        fit(re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", time), TIMESTAMP)
    except Misfit as misfit:
        raise _wrong("time", f"a CloudEvent's time is RFC 3339 with an offset: {misfit}", row) from None


def _binary(headers: Headers, body: bytes, limits: BodyLimits) -> Events:
    """Returns the CloudEvent whose attributes are in headers and whose data is the body."""
    event = _attributes(headers, PLAIN)
    data = one_event(body, limits)
    head = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    event["data"] = data.objects[0]
    return Events([event], [f'{head[:-1]},"data":{data.texts[0]}}}'])


def _attributes(headers: Headers, kind: str) -> dict[str, Any]:
    """Returns the attributes of a CloudEvent in headers named ce-…, percent-encoded if not ASCII."""
    event: dict[str, Any] = {}
    for name, value in headers.items():
        if not name.startswith("ce-"):
            continue
        attribute = name[3:]
        if not _NAME.fullmatch(attribute) or attribute == "data":
            raise _header(name, "no CloudEvents attribute has such a name")
        try:
            event[attribute] = unquote(value, errors="strict")
        except UnicodeDecodeError:
            raise _header(name, "its percent-encoding is not UTF-8") from None
        if not event[attribute].isprintable():
            raise _header(name, "it has characters that cannot be printed")
    event["datacontenttype"] = kind
    try:
        check_cloud_event(event, None)
    except Problem as problem:
        problem.detail += f" (the header ce-{(problem.pointer or '/')[1:]})"
        raise
    return event


def _binary_type(kind: str) -> Problem:
    return Problem(415, "media-type", f"a CloudEvent's data is a JSON object or XML here, and this is '{kind[:80]}'")


def _header(name: str, why: str) -> Problem:
    return Problem(400, "event", f"the header {name[:60]}: {why}", pointer=pointer_to(name[3:63]))


def _wrong(name: str, detail: str, row: int | None) -> Problem:
    return Problem(400, "event", detail, pointer=pointer_to(name) if row is None else pointer_to(row, name))


# -- XML ---------------------------------------------------------------------------------------------


def is_xml(kind: str) -> bool:
    return kind in (XML, "text/xml") or kind.endswith("+xml")


def xml_events(kind: str, body: bytes, attributes: dict[str, Any] | None, limits: BodyLimits) -> Events:
    """Returns the events of a body; with attributes of a CloudEvent, the one that they and the document make."""
    max_event_bytes = limits.event_bytes
    is_feed = attributes is None and kind in FEEDS
    if not is_feed and len(body) > max_event_bytes:  # before a tree is made of it
        raise large_event(len(body), max_event_bytes)
    try:
        if is_feed:
            items = split_feed(body, max_items=limits.events, max_bytes=limits.batch_bytes)
            return _texts([_item(item) for item in items], max_event_bytes)
        record = {ATTRIBUTE: _document_text(body)}
    except FeedSizeError as error:
        large = f"{error.reason}; send fewer items at a time, or shorten the feed's own head"
        raise too_large(large, error.limit, error.most) from None
    except EventError as error:
        raise Problem(400, "event", error.reason) from None
    if attributes is None:
        return _texts([record], max_event_bytes)
    return _texts([attributes | {"datacontenttype": kind, "data": record}], max_event_bytes)


def _document_text(body: bytes) -> str:
    """Returns the text of a document, which is parsed once; raises EventError if it cannot be read."""
    root = check_document(body)
    if (root.getroottree().docinfo.encoding or "utf-8").lower() == "utf-8":
        with contextlib.suppress(UnicodeDecodeError):  # of UTF-16, which need not be declared
            text = body.decode("utf-8-sig")
            if "\0" not in text:
                return text
    return str(etree.tostring(root, encoding="unicode"))  # without a declaration, which would name another encoding


def with_xml_data(events: Events, many: bool) -> Events:
    """Returns CloudEvents with the document as their record where their data is XML in a string."""
    for row, event in enumerate(events.objects):
        kind, data = event.get("datacontenttype"), event.get("data")
        if isinstance(kind, str) and isinstance(data, str) and is_xml(kind.partition(";")[0].strip().lower()):
            try:
                check_document(data)
            except EventError as error:
                pointer = pointer_to(row, "data") if many else pointer_to("data")
                raise Problem(400, "event", error.reason, pointer=pointer) from None
            event["data"] = {ATTRIBUTE: data}
            events.texts[row] = _dumped(event)
    return events


def _item(item: Item) -> dict[str, Any]:
    """Returns an item as a CloudEvent; the same version of it has the same id, and so is in the log once."""
    return {
        "specversion": "1.0",
        "id": f"{item.id}#{item.version}",
        "source": item.feed,
        "type": ITEM_TYPE,
        "datacontenttype": XML,
        "data": {ATTRIBUTE: item.document},
    }


def _texts(objects: list[dict[str, Any]], max_event_bytes: int) -> Events:
    texts = [_dumped(event) for event in objects]
    for row, text in enumerate(texts):
        if (size := len(text.encode())) > max_event_bytes:
            place = row if len(texts) > 1 else None
            raise large_event(size, max_event_bytes, place)
    return Events(objects, texts)


def _dumped(event: dict[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))
