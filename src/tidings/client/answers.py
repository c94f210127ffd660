"""What the service says, typed. Each keeps the whole answer in `json`, with what later versions add to it."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidings.client.service_errors import ServiceError, problem_of
from tidings.model.domain import Domain

REDRIVEN = "again:"  # what the cursor of a dead letter that is delivered once more begins with


@dataclass(frozen=True)
class Answer:
    """An answer as it came over the wire; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def json(self) -> Any:
        try:
            return json_module.loads(self.body)
        except ValueError:
            raise ServiceError(
                self.status, "the answer is no JSON", self.body[:200].decode("utf-8", "replace")
            ) from None

    @property
    def error(self) -> ServiceError | None:
        return None if 200 <= self.status < 300 else problem_of(self.status, self.headers, self.body)


@dataclass(frozen=True)
class DomainState:
    """A domain as the service has it; `inferred` until somebody confirms what was read off the first events."""

    domain: Domain
    inferred: bool
    json: dict[str, Any] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.domain.name


@dataclass(frozen=True)
class Subscription:
    id: str
    domain: str
    filter: str
    select: str  # "document", or "nodes": those that the filter's paths select are delivered in the event's place
    mode: str  # "pull", "sse" or "webhook"
    url: str | None  # of a webhook
    state: str  # "active", "paused", "replaying", "suspended", "disabled" or "expired"
    paused: bool
    labels: Mapping[str, str]
    expires: str | None
    filter_from: int | None  # the position from which on this filter holds
    secret: str | None = field(repr=False)  # of a webhook, known to who creates it and to nobody after
    json: dict[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Notification:
    """An event that a subscription asked for, and where it is in the log."""

    position: int
    event: dict[str, Any]  # empty where nodes are delivered in its place
    nodes: tuple[str, ...] | None = None  # elements as XML, attributes and texts as they are
    cursor: str | None = field(default=None, compare=False)  # of a stream: acknowledges it, and those before it

    @property
    def data(self) -> dict[str, Any]:
        """The event's own attributes, without what CloudEvents puts around them."""
        inner = self.event.get("data")
        return inner if "specversion" in self.event and isinstance(inner, dict) else self.event

    @property
    def redriven(self) -> bool:
        """Whether it was a dead letter; its cursor acknowledges no others then."""
        return self.cursor is not None and self.cursor.startswith(REDRIVEN)


@dataclass(frozen=True)
class Pulled:
    """What waited; `ack` with the cursor says that it need not come again."""

    notifications: tuple[Notification, ...]
    cursor: str | None


@dataclass(frozen=True)
class DeadLetter:
    """A notification that could not be delivered, and why."""

    position: int
    reason: str
    json: dict[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class FilterTest:
    matches: bool | None  # None is NULL: the filter has no answer for the event, and so does not match it
    text: str  # why, for people
    explanation: dict[str, Any]


@dataclass(frozen=True)
class Backtest:
    """What a filter would have delivered of the events between two positions of the log."""

    count: int
    events: int
    rate: tuple[tuple[str, int], ...]  # times and how many from each to the next
    samples: tuple[dict[str, Any], ...]
    difference: dict[str, Any] | None  # from the subscription it was compared with
    json: dict[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class NearMiss:
    """A subscription that an event nearly matched."""

    subscription: str
    failing: int  # predicates
    text: str


@dataclass(frozen=True)
class EventMatches:
    """Who got an event, and who nearly did."""

    position: int
    event: dict[str, Any]
    matched: tuple[str, ...]
    nearly: tuple[NearMiss, ...]


@dataclass(frozen=True)
class Health:
    ok: bool
    json: dict[str, Any]


def read_domain(answer: Answer) -> DomainState:
    return domain_of(answer.json)


def domain_of(json: dict[str, Any]) -> DomainState:
    known: dict[str, Any] = {key: json[key] for key in ("name", "attributes", "indices") if key in json}
    return DomainState(Domain.from_json(known), bool(json.get("inferred", False)), json)


def read_subscription(answer: Answer, *, secret: str | None = None) -> Subscription:
    return subscription_of(answer.json, secret=secret)


def subscription_of(json: dict[str, Any], *, secret: str | None = None) -> Subscription:
    delivery = json.get("delivery") or {}
    return Subscription(
        id=json["id"],
        domain=json["domain"],
        filter=json["filter"],
        select=json.get("select", "document"),
        mode=delivery.get("mode", "pull"),
        url=delivery.get("url"),
        state=json.get("state", "active"),
        paused=bool(json.get("paused", False)),
        labels=json.get("labels") or {},
        expires=json.get("expires"),
        filter_from=json.get("filter_from"),
        secret=delivery.get("secret") or secret,
        json=json,
    )


def read_positions(answer: Answer) -> list[int]:
    positions: list[int] = answer.json["positions"]
    return positions


def read_pulled(answer: Answer) -> Pulled:
    json = answer.json
    return Pulled(tuple(map(notification_of, json["notifications"])), json.get("cursor"))


def notification_of(json: dict[str, Any], *, cursor: str | None = None) -> Notification:
    """A notification; on a stream its id is the cursor, unless it brings another."""
    nodes = None if json.get("nodes") is None else tuple(json["nodes"])
    return Notification(json["position"], json.get("event") or {}, nodes, json.get("cursor", cursor))


def dead_letter_of(json: dict[str, Any]) -> DeadLetter:
    return DeadLetter(json["position"], json.get("reason", ""), json)


def read_filter_test(answer: Answer) -> FilterTest:
    json = answer.json
    return FilterTest(json["matches"], json.get("text", ""), json.get("explanation") or {})


def read_backtest(answer: Answer) -> Backtest:
    json = answer.json
    return Backtest(
        count=json["count"],
        events=json["events"],
        rate=tuple((one["time"], one["count"]) for one in json.get("rate") or ()),
        samples=tuple(json.get("samples") or ()),
        difference=json.get("difference"),
        json=json,
    )


def read_event_matches(answer: Answer) -> EventMatches:
    json = answer.json
    nearly = tuple(NearMiss(near["subscription"], near["failing"], near["text"]) for near in json.get("nearly") or ())
    return EventMatches(json["position"], json["event"], tuple(json["matched"]), nearly)


def read_health(answer: Answer) -> Health:
    json = answer.json
    return Health(answer.status == 200 and json.get("status", "ok") == "ok", json)


def read_nothing(answer: Answer) -> None:
    """Of an answer that only says that it was done."""
