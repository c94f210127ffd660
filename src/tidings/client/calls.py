"""Every request to the service, and how its response is read.

Events are sent as CloudEvents, each with a source and an id: the service stores an event with an id it has seen once,
so that a publish whose response was lost can be sent again.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from tidings.client import responses
from tidings.client.responses import Response
from tidings.errors import EventError, did_you_mean
from tidings.model.domain import Attribute, Domain
from tidings.model.event_json import texts_of
from tidings.model.event_values import kind_of

T = TypeVar("T")

Mode: TypeAlias = Literal["pull", "sse", "webhook"]
Selection: TypeAlias = Literal["document", "nodes"]  # what is delivered
Start: TypeAlias = "Literal['latest', 'earliest'] | int | dt.datetime"
Expiry: TypeAlias = "dt.datetime | dt.timedelta | str | None"
DomainForm: TypeAlias = "Domain | Mapping[str, Any] | Iterable[Attribute | Mapping[str, Any]]"

JSON = "application/json"
ONE_EVENT = "application/cloudevents+json"
MANY_EVENTS = "application/cloudevents-batch+json"
MERGE_PATCH = "application/merge-patch+json"

SOURCE = "/tidings/client"  # ids are unique by themselves
BATCH_EVENTS = 1000
BATCH_BYTES = 4 << 20  # half of what the service takes

Event = Mapping[str, Any]
Batch = tuple[int, bytes]  # how many events, and the body


class EventFields(TypedDict, total=False):
    """What CloudEvents says of an event; without a source and an id it is given them."""

    source: str | None
    id: str | None
    type: str | None
    subject: str | None
    time: dt.datetime | str | None


class SubscriptionOptions(TypedDict, total=False):
    """What a subscription can have besides its domain and filter."""

    mode: Mode  # how it is delivered, by default "pull"
    url: str | None  # of a webhook
    secret: str | None  # that a webhook is signed with; made up if it is not given
    expires: Expiry  # a time, or how long from now
    labels: Mapping[str, str] | None
    paused: bool
    select: Selection  # the event, or the nodes of its XML that the filter's paths select


class NewSubscriptionOptions(SubscriptionOptions, total=False):
    id: str | None  # made up if it is not given
    start: Start  # where in the past to begin, by default "latest"


class SubscriptionUpdate(TypedDict, total=False):
    """What of a subscription to change; what is not given stays."""

    filter: str | None
    mode: Mode | None
    url: str | None
    secret: str | None
    paused: bool | None
    expires: Expiry  # None removes it
    labels: Mapping[str, str | None] | None  # a label of None is removed
    select: Selection | None


class SubscriptionQuery(TypedDict, total=False):
    domain: str | None
    label: str | None  # "key" or "key=value"
    search: str | None  # a part of the filter or id
    state: str | None


class BacktestOptions(TypedDict, total=False):
    start: int | dt.datetime | None  # a position or a time
    end: int | dt.datetime | None
    compare: str | None  # the id of a subscription


def check_names(options: Mapping[str, Any], form: Any) -> None:
    """Raise TypeError for an unknown option, as a call with an unknown keyword does."""
    known: frozenset[str] = form.__optional_keys__
    for name in options.keys() - known:
        raise TypeError(f"unexpected option '{name}'; {did_you_mean(name, known)}")


@dataclass(frozen=True)
class ServiceCall(Generic[T]):
    """One request, and whether it may be sent again after its response was lost."""

    method: str
    path: str
    read: Callable[[Response], T]
    query: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    repeatable: bool = True
    seconds: float = 0.0  # that the service may take on purpose, as a long poll does
    done_already: int | None = None  # the status of a repeat whose first attempt was done after all
    then: ServiceCall[T] | None = None  # the request that then brings the response
    accepts: frozenset[int] = frozenset()  # statuses besides 2xx that are no errors


# ---------------------------------------------------------------------- events as CloudEvents


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


# ---------------------------------------------------------------------- domains


def put_domain(name: str, form: DomainForm, placement: str | None) -> ServiceCall[responses.DomainState]:
    if isinstance(form, Domain):
        form = form.to_dict()
    if not isinstance(form, Mapping):
        form = {"attributes": [one.to_dict() if isinstance(one, Attribute) else dict(one) for one in form]}
    body = {key: value for key, value in form.items() if key != "name"}  # the path has it
    body |= {} if placement is None else {"placement": placement}
    return ServiceCall("PUT", f"/v1/domains/{_part(name)}", responses.read_domain, body=_json(body))


def domain(name: str) -> ServiceCall[responses.DomainState]:
    return ServiceCall("GET", f"/v1/domains/{_part(name)}", responses.read_domain)


def domains() -> ServiceCall[list[responses.DomainState]]:
    return ServiceCall("GET", "/v1/domains", lambda response: list(map(responses.domain_of, response.json["domains"])))


def delete_domain(name: str) -> ServiceCall[None]:
    return ServiceCall("DELETE", f"/v1/domains/{_part(name)}", responses.read_nothing, done_already=404)


# ---------------------------------------------------------------------- events


def publish(domain: str, body: bytes, *, many: bool) -> ServiceCall[list[int]]:
    path = f"/v1/domains/{_part(domain)}/events"
    kind = MANY_EVENTS if many else ONE_EVENT
    return ServiceCall("POST", path, responses.read_positions, body=body, content_type=kind)


def matches(position: int) -> ServiceCall[responses.EventMatches]:
    return ServiceCall("GET", f"/v1/events/{position:d}/matches", responses.read_event_matches)


# ---------------------------------------------------------------------- subscriptions


def new_id() -> str:
    return "sub_" + base64.b32encode(os.urandom(10)).decode().lower()


def new_secret() -> str:
    """As Standard Webhooks writes them."""
    return "whsec_" + base64.b64encode(os.urandom(32)).decode()


def subscription_body(domain: str, filter: str, **options: Unpack[NewSubscriptionOptions]) -> dict[str, Any]:
    check_names(options, NewSubscriptionOptions)
    delivery = delivery_body(options.get("mode", "pull"), options.get("url"), options.get("secret"))
    body: dict[str, Any] = {"domain": domain, "filter": filter, "delivery": delivery}
    if (id_ := options.get("id")) is not None:
        body["id"] = id_
    if (start := options.get("start", "latest")) != "latest":
        body["start"] = _start(start)
    if (expires := options.get("expires")) is not None:
        body["expires"] = _expiry(expires)
    if labels := options.get("labels"):
        body["labels"] = dict(labels)
    if options.get("paused"):
        body["paused"] = True
    if (select := options.get("select", "document")) != "document":
        body["select"] = select
    return body


def delivery_body(mode: Mode, url: str | None, secret: str | None) -> dict[str, str]:
    if (mode == "webhook") != (url is not None):
        raise ValueError("a webhook, and nothing else, has a url; give mode='webhook' and url='https://…'")
    given = {"mode": mode, "url": url, "secret": secret}
    return {key: value for key, value in given.items() if value is not None}


def create(body: dict[str, Any]) -> ServiceCall[responses.SubscriptionState]:
    """Creates a subscription with an id from here, so that the service answers a repeat with 409.

    A webhook's secret comes from here too: the service shows one of its own only once, and that response may be lost.
    """
    body = {"id": new_id(), **body}
    delivery = body["delivery"]
    if delivery["mode"] == "webhook":
        delivery = body["delivery"] = {"secret": new_secret(), **delivery}
    read = partial(responses.read_subscription, secret=delivery.get("secret"))
    there = ServiceCall("GET", _subscription(body["id"]), read)
    return ServiceCall("POST", "/v1/subscriptions", read, body=_json(body), done_already=409, then=there)


def replace(id: str, body: dict[str, Any]) -> ServiceCall[responses.SubscriptionState]:
    return ServiceCall("PUT", _subscription(id), responses.read_subscription, body=_json(body))


def subscription(id: str) -> ServiceCall[responses.SubscriptionState]:
    return ServiceCall("GET", _subscription(id), responses.read_subscription)


def change(id: str, **changes: Unpack[SubscriptionUpdate]) -> ServiceCall[responses.SubscriptionState]:
    check_names(changes, SubscriptionUpdate)
    given = {name: changes.get(name) for name in ("filter", "paused", "labels", "select")}
    patch: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if (mode := changes.get("mode")) is not None:
        patch["delivery"] = delivery_body(mode, changes.get("url"), changes.get("secret"))
    if "expires" in changes:
        patch["expires"] = None if (expires := changes["expires"]) is None else _expiry(expires)
    if not patch:
        raise ValueError("a change changes something: give filter, select, mode, paused, expires or labels")
    return ServiceCall(
        "PATCH", _subscription(id), responses.read_subscription, body=_json(patch), content_type=MERGE_PATCH
    )


def delete(id: str) -> ServiceCall[None]:
    return ServiceCall("DELETE", _subscription(id), responses.read_nothing, done_already=404)


def page_of_subscriptions(
    after: str | None, limit: int, **wanted: Unpack[SubscriptionQuery]
) -> ServiceCall[dict[str, Any]]:
    check_names(wanted, SubscriptionQuery)
    query = {key: str(value) for key, value in wanted.items() if value is not None} | {"limit": str(limit)}
    return ServiceCall("GET", "/v1/subscriptions", lambda response: response.json, query=query | _after(after))


# ---------------------------------------------------------------------- delivery


def pull(id: str, *, limit: int, wait: float) -> ServiceCall[responses.Pulled]:
    query = {"limit": str(limit), "wait": f"{wait:g}"}
    return ServiceCall("GET", f"{_subscription(id)}/notifications", responses.read_pulled, query=query, seconds=wait)


def ack(id: str, cursor: str) -> ServiceCall[None]:
    return ServiceCall("POST", f"{_subscription(id)}/ack", responses.read_nothing, body=_json({"cursor": cursor}))


def open_stream(id: str, last_id: str) -> ServiceCall[None]:
    headers = {"accept": "text/event-stream", "cache-control": "no-store"}
    if last_id:
        headers["last-event-id"] = last_id
    return ServiceCall("GET", f"{_subscription(id)}/stream", responses.read_nothing, headers=headers)


def page_of_dead_letters(id: str, after: str | None, limit: int) -> ServiceCall[dict[str, Any]]:
    query = {"limit": str(limit)} | _after(after)
    return ServiceCall("GET", f"{_subscription(id)}/dead-letters", lambda response: response.json, query=query)


def redrive(id: str, positions: Iterable[int] | None) -> ServiceCall[Any]:
    body = {} if positions is None else {"positions": list(positions)}
    return ServiceCall(
        "POST",
        f"{_subscription(id)}/dead-letters:redrive",
        lambda response: response.json if response.body else None,
        body=_json(body),
    )


# ---------------------------------------------------------------------- filters


def test_filter(domain: str, filter: str, body: str) -> ServiceCall[responses.FilterTest]:
    """`body` is the event's JSON, whose numbers are exact."""
    head = json.dumps({"domain": domain, "filter": filter}, ensure_ascii=False)
    return ServiceCall(
        "POST", "/v1/filters:test", responses.read_filter_test, body=f'{head[:-1]},"event":{body}}}'.encode()
    )


def backtest(domain: str, filter: str, **options: Unpack[BacktestOptions]) -> ServiceCall[Response]:
    check_names(options, BacktestOptions)
    body: dict[str, Any] = {"domain": domain, "filter": filter}
    for name, place in (("from", options.get("start")), ("to", options.get("end"))):
        if place is not None:
            body[name] = timestamp(place) if isinstance(place, dt.datetime) else place
    if (compare := options.get("compare")) is not None:
        body["compare"] = compare
    return ServiceCall("POST", "/v1/filters:backtest", lambda response: response, body=_json(body), seconds=30.0)


def follow(location: str) -> ServiceCall[Response]:
    return ServiceCall("GET", location, lambda response: response, seconds=30.0)


# ---------------------------------------------------------------------- the service


def health() -> ServiceCall[responses.Health]:
    """503 is no error here: it says what is wrong."""
    return ServiceCall("GET", "/v1/health", responses.read_health, accepts=frozenset({503}))


def _subscription(id: str) -> str:
    return f"/v1/subscriptions/{_part(id)}"


def _part(name: str) -> str:
    """A name as a part of a path; one that is empty or dots would be another path."""
    if not name or set(name) == {"."}:
        raise ValueError(f"{name!r} is not a name")
    return quote(name, safe="")


def _json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, default=str).encode()


def _after(after: str | None) -> dict[str, str]:
    return {} if after is None else {"after": after}


def _start(start: Start) -> Any:
    match start:
        case dt.datetime():
            return {"time": timestamp(start)}
        case int():
            return {"position": start}
    return start


def _expiry(expires: dt.datetime | dt.timedelta | str) -> str:
    match expires:
        case dt.timedelta():
            return timestamp(dt.datetime.now(dt.UTC) + expires)
        case dt.datetime():
            return timestamp(expires)
    return expires
