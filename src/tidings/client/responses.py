"""What the service sends back, typed: its errors, and its responses, which keep the whole JSON for later versions."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidings.errors import TidingsError
from tidings.model.domain import Domain

_HINTS = {
    401: "give a token: token=…, TIDINGS_TOKEN, or the file `token` of the service's data directory",
    421: "the service takes requests for the hosts that it was started with; see `tidings serve --help`",
}


class ServiceError(TidingsError):
    """The service refused the request.

    `status` is HTTP's, the others are those of `application/problem+json`; `pointer` is a JSON pointer to what is
    wrong in the request. `published` has the positions of the events that were accepted before the refused one.
    """

    def __init__(
        self, status: int, title: str, detail: str = "", *, pointer: str | None = None, type: str = "about:blank",
        retry_after: float | None = None, problem: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.status = status
        self.title = title
        self.detail = detail
        self.pointer = pointer
        self.type = type
        self.retry_after = retry_after
        self.problem = problem or {}
        self.published: list[int] = []
        place = f" (at {pointer})" if pointer else ""
        hint = f"; {_HINTS[status]}" if status in _HINTS else ""
        super().__init__(f"{status} {title}{f': {detail}' if detail else ''}{place}{hint}")

    @property
    def column(self) -> int | None:
        """The 1-based column of the error in a filter's text; None if something else is wrong."""
        column = self.problem.get("column")
        return column if isinstance(column, int) else None


class UnreachableError(TidingsError):
    """No response came. `sent` says that the request may have arrived, and may have been carried out."""

    def __init__(self, url: str, reason: str, *, sent: bool) -> None:
        self.url = url
        self.reason = reason
        self.sent = sent
        self.published: list[int] = []
        done = "; the request may have been carried out" if sent else "; is `tidings serve` running there?"
        super().__init__(f"no response from {url}: {reason}{done}")


def problem_of(status: int, headers: dict[str, str], body: bytes) -> ServiceError:
    """The error of an response, whether the service or something in between wrote it."""
    problem: dict[str, Any] = {}
    if "json" in headers.get("content-type", ""):
        try:
            read = json_module.loads(body)
        except ValueError:
            read = None
        problem = read if isinstance(read, dict) else {}
    title = problem.get("title")
    detail = problem.get("detail")
    if not isinstance(detail, str):
        detail = "" if title else " ".join(body[:300].decode("utf-8", "replace").split())
    pointer = problem.get("pointer")
    return ServiceError(
        status,
        title if isinstance(title, str) else "the service refuses",
        detail,
        pointer=pointer if isinstance(pointer, str) else None,
        type=str(problem.get("type", "about:blank")),
        retry_after=seconds_of(headers.get("retry-after")),
        problem=problem,
    )


def seconds_of(retry_after: str | None) -> float | None:
    """The header Retry-After in seconds; None for its other form, a date, which needs a shared clock."""
    try:
        return None if retry_after is None else max(0.0, float(retry_after))
    except ValueError:
        return None


# ---------------------------------------------------------------------- responses


REDRIVEN = "again:"  # what the cursor of a dead letter that is delivered once more begins with


@dataclass(frozen=True)
class Response:
    """A response as it came over the wire; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def json(self) -> Any:
        try:
            return json_module.loads(self.body)
        except ValueError:
            raise ServiceError(
                self.status, "the response is not JSON", self.body[:200].decode("utf-8", "replace")
            ) from None

    @property
    def error(self) -> ServiceError | None:
        return None if 200 <= self.status < 300 else problem_of(self.status, self.headers, self.body)


@dataclass(frozen=True)
class DomainState:
    """A domain as the service has it; `inferred` until its attributes, read off the first events, are confirmed."""

    domain: Domain
    inferred: bool
    json: dict[str, Any] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.domain.name

    @property
    def placement(self) -> str:
        """Where its events meet its subscriptions; `auto`: as the service chooses."""
        return str(self.json.get("placement", "auto"))


@dataclass(frozen=True)
class SubscriptionState:
    """A subscription as the service has it."""

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
    secret: str | None = field(repr=False)  # of a webhook; only the response to its creation has it
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
    """What waited; `ack` with the cursor acknowledges it."""

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
    matches: bool | None  # None is NULL: the filter is neither true nor false for the event, and so does not match it
    text: str  # why, for people
    explanation: dict[str, Any]


@dataclass(frozen=True)
class BacktestResult:
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


def read_domain(response: Response) -> DomainState:
    return domain_of(response.json)


def domain_of(json: dict[str, Any]) -> DomainState:
    known: dict[str, Any] = {key: json[key] for key in ("name", "attributes", "indices") if key in json}
    return DomainState(Domain.from_json(known), bool(json.get("inferred", False)), json)


def read_subscription(response: Response, *, secret: str | None = None) -> SubscriptionState:
    return subscription_of(response.json, secret=secret)


def subscription_of(json: dict[str, Any], *, secret: str | None = None) -> SubscriptionState:
    delivery = json.get("delivery") or {}
    return SubscriptionState(
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


def read_positions(response: Response) -> list[int]:
    positions: list[int] = response.json["positions"]
    return positions


def read_pulled(response: Response) -> Pulled:
    json = response.json
    return Pulled(tuple(map(notification_of, json["notifications"])), json.get("cursor"))


def notification_of(json: dict[str, Any], *, cursor: str | None = None) -> Notification:
    """A notification; on a stream its id is the cursor, unless it brings another."""
    nodes = None if json.get("nodes") is None else tuple(json["nodes"])
    return Notification(json["position"], json.get("event") or {}, nodes, json.get("cursor", cursor))


def dead_letter_of(json: dict[str, Any]) -> DeadLetter:
    return DeadLetter(json["position"], json.get("reason", ""), json)


def read_filter_test(response: Response) -> FilterTest:
    json = response.json
    return FilterTest(json["matches"], json.get("text", ""), json.get("explanation") or {})


def read_backtest(response: Response) -> BacktestResult:
    json = response.json
    return BacktestResult(
        count=json["count"],
        events=json["events"],
        rate=tuple((one["time"], one["count"]) for one in json.get("rate") or ()),
        samples=tuple(json.get("samples") or ()),
        difference=json.get("difference"),
        json=json,
    )


def read_event_matches(response: Response) -> EventMatches:
    json = response.json
    nearly = tuple(NearMiss(near["subscription"], near["failing"], near["text"]) for near in json.get("nearly") or ())
    return EventMatches(json["position"], json["event"], tuple(json["matched"]), nearly)


def read_health(response: Response) -> Health:
    json = response.json
    return Health(response.status == 200 and json.get("status", "ok") == "ok", json)


def read_nothing(response: Response) -> None:
    """Reads a response without a body."""
