"""What a user asks for, as steps that somebody else carries out.

A flow is a generator: it yields a step, is sent what came of it, and returns its response. `Client` carries steps
out one after the other, `AsyncClient` awaits them; neither decides anything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, Unpack

from tidings.client import calls, responses
from tidings.client.calls import (
    Batch,
    Event,
    EventFields,
    ServiceCall,
    SubscriptionQuery,
    batches,
    check_names,
    one_body,
)
from tidings.client.connection_settings import BUSY, Retries
from tidings.client.responses import Notification, Response, ServiceError, UnreachableError
from tidings.client.server_sent import ServerSent, ServerSentParser
from tidings.model.event_json import texts_of

T = TypeVar("T")

PAGE = 100
ACK_SECONDS = 1.0  # between acknowledgements of what a stream has brought
_GATEWAYS = frozenset({502, 504})  # of proxies in between, whose service may have done it


@dataclass(frozen=True)
class SendCall:
    """SendCall a request; the reply is an `Response`, or `LostResponse`."""

    call: ServiceCall[Any]


@dataclass(frozen=True)
class Sleep:
    seconds: float


@dataclass(frozen=True)
class Give:
    """Hand these over to the user; the flow goes on when the user wants more."""

    items: Sequence[Any]


@dataclass(frozen=True)
class Open:
    """SendCall a request and keep its response open; the reply is a `Response` without its body, or `LostResponse`."""

    call: ServiceCall[Any]


@dataclass(frozen=True)
class Read:
    """Bytes of the open response; None at its end, or `LostResponse`."""


@dataclass(frozen=True)
class LostResponse:
    """No response, or not all of it; `sent` if the request may have arrived."""

    reason: str
    sent: bool


Step: TypeAlias = SendCall | Sleep | Give | Open | Read
Flow: TypeAlias = Generator[Step, Any, T]


@dataclass(frozen=True)
class Flows:
    """The flows of one client."""

    url: str
    retries: Retries
    source: str | None = None
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random

    def ask(self, call: ServiceCall[T]) -> Flow[T]:
        """One request, sent again while that is safe and there is time."""
        started = self.clock()
        attempt, maybe_done = 0, False
        while True:
            attempt += 1
            reply = yield SendCall(call)
            if isinstance(reply, LostResponse):
                error: ServiceError | UnreachableError = UnreachableError(self.url, reply.reason, sent=reply.sent)
                again = call.repeatable or not reply.sent
                maybe_done |= reply.sent
                asked = None
            else:
                refused = None if reply.status in call.accepts else reply.error
                if refused is None:
                    return call.read(reply)
                if maybe_done and reply.status == call.done_already:
                    return call.read(reply) if call.then is None else (yield from self.ask(call.then))
                error, asked = refused, refused.retry_after
                again = reply.status in BUSY or (call.repeatable and reply.status in _GATEWAYS)
                maybe_done |= reply.status in _GATEWAYS
            pause = self._pause(attempt, started, asked) if again else None
            if pause is None:
                raise error
            yield Sleep(pause)

    def _pause(self, attempt: int, since: float, asked: float | None) -> float | None:
        elapsed = self.clock() - since
        return self.retries.pause(attempt, elapsed=elapsed, asked=asked, chance=self.chance())

    # ------------------------------------------------------------------ publishing

    def publish(self, domain: str, event: Event, **fields: Unpack[EventFields]) -> Flow[int]:
        check_names(fields, EventFields)
        body = one_body(self._sourced(event), domain=domain, **fields)
        positions = yield from self.ask(calls.publish(domain, body, many=False))
        return positions[0]

    def publish_batches(self, domain: str, events: Iterable[Event], **limits: int) -> Flow[None]:
        """Gives the positions of each batch; the next is sent when the last is acknowledged, which keeps the order."""
        for batch in self._batches(domain, events, **limits):
            yield Give([(yield from self._publish_batch(domain, batch))])

    def publish_many(self, domain: str, events: Iterable[Event], **limits: int) -> Flow[list[int]]:
        positions: list[int] = []
        try:
            for batch in self._batches(domain, events, **limits):
                positions += yield from self._publish_batch(domain, batch)
        except (ServiceError, UnreachableError) as error:
            error.published = positions
            raise
        return positions

    def _batches(self, domain: str, events: Iterable[Event], **limits: int) -> Iterable[Batch]:
        if isinstance(events, Mapping):
            raise ValueError("publish_many takes events one after the other, and this is one; call publish")
        return batches((self._sourced(event) for event in events), domain=domain, **limits)

    def _sourced(self, event: Event) -> Event:
        """With the client's own source, where the event has none."""
        if self.source is None or not isinstance(event, Mapping):
            return event
        if "specversion" in event:
            return {"source": self.source, **event}
        return {"specversion": "1.0", "source": self.source, "data": event}

    def _publish_batch(self, domain: str, batch: Batch) -> Flow[list[int]]:
        count, body = batch
        positions = yield from self.ask(calls.publish(domain, body, many=True))
        if len(positions) != count:
            raise ServiceError(200, "an impossible response", f"{len(positions)} positions for {count} events")
        return positions

    # ------------------------------------------------------------------ lists

    def subscriptions(self, **wanted: Unpack[SubscriptionQuery]) -> Flow[None]:
        yield from self._pages(
            lambda after: calls.page_of_subscriptions(after, PAGE, **wanted), "subscriptions", responses.subscription_of
        )

    def dead_letters(self, id: str) -> Flow[None]:
        yield from self._pages(
            lambda after: calls.page_of_dead_letters(id, after, PAGE), "dead_letters", responses.dead_letter_of
        )

    def _pages(
        self,
        page: Callable[[str | None], ServiceCall[dict[str, Any]]],
        name: str,
        read: Callable[[dict[str, Any]], Any],
    ) -> Flow[None]:
        after: str | None = None
        while True:
            found = yield from self.ask(page(after))
            yield Give(list(map(read, found[name])))
            after = found.get("next")
            if after is None:
                return
            after = str(after)

    # ------------------------------------------------------------------ delivery

    def notifications(self, id: str, *, limit: int, wait: float, follow: bool) -> Flow[None]:
        """Pull, hand over, and acknowledge when the user comes back for more than was handed over."""
        while True:
            pulled: responses.Pulled = yield from self.ask(calls.pull(id, limit=limit, wait=wait if follow else 0.0))
            if pulled.notifications:
                yield Give(pulled.notifications)
                assert pulled.cursor is not None
                yield from self.ask(calls.ack(id, pulled.cursor))
            elif not follow:
                return

    def stream(self, id: str, *, last_id: str, ack: bool) -> Flow[None]:
        """The stream, opened again with the last id whenever it breaks; its end is that of the subscription.

        What the user came back for more after is dealt with. That is acknowledged about every second, and at once
        where the service says that it waits for it.
        """
        since, attempt = self.clock(), 0
        dealt_with, acked_at = _DealtWith(last_id), since
        while True:
            attempt += 1
            parser = ServerSentParser()
            parser.last_id = dealt_with.last_id
            # To name the last event acknowledges it, which without `ack` is for the user to do.
            reply = yield Open(calls.open_stream(id, dealt_with.last_id if ack else last_id))
            if isinstance(reply, Response) and (refused := reply.error) is not None:
                if refused.status not in BUSY | _GATEWAYS:
                    raise refused
                error: ServiceError | UnreachableError = refused
                asked = refused.retry_after
            else:
                piece: bytes | LostResponse | None = None if isinstance(reply, Response) else reply
                if isinstance(reply, Response):
                    while isinstance(piece := (yield Read()), bytes):
                        since, attempt = self.clock(), 0  # it lives, if only by a comment
                        full = False
                        for sent in parser.feed(piece):
                            if sent.event == "end":
                                return
                            full |= sent.event == "window"
                            notification = _notification(sent)
                            if notification is not None and (ack or not dealt_with.has(notification)):
                                yield Give([notification])
                                dealt_with.add(notification, sent.id)
                        if ack and (full or self.clock() - acked_at >= ACK_SECONDS):
                            for cursor in dealt_with.cursors():
                                yield from self._ack_if_there(id, cursor)
                            acked_at = self.clock()
                reason = piece.reason if isinstance(piece, LostResponse) else "the stream ended"
                error = UnreachableError(self.url, reason, sent=False)
                asked = parser.retry_seconds
            pause = self._pause(max(1, attempt), since, asked)
            if pause is None:
                raise error
            yield Sleep(pause)

    def _ack_if_there(self, id: str, cursor: str) -> Flow[None]:
        """Acknowledge, unless the subscription was deleted: its stream says so."""
        try:
            yield from self.ask(calls.ack(id, cursor))
        except ServiceError as error:
            if error.status != 404:
                raise

    # ------------------------------------------------------------------ filters

    def test_filter(self, domain: str, filter: str, event: Event) -> Flow[responses.FilterTest]:
        return (yield from self.ask(calls.test_filter(domain, filter, texts_of([event])[0])))

    def backtest(self, call: ServiceCall[Response]) -> Flow[responses.BacktestResult]:
        """Ask, and ask again where it is said to be found, until it is ready."""
        response = yield from self.ask(call)
        location = response.headers.get("location")
        while response.status == 202:
            location = response.headers.get("location", location)
            if location is None or not location.startswith("/v1/"):  # elsewhere the token has no business
                raise ServiceError(202, "an impossible response", "it is not ready, and does not say where it will be")
            yield Sleep(0.5)
            response = yield from self.ask(calls.follow(location))
        return responses.read_backtest(response)


class _DealtWith:
    """What the user has dealt with of a stream."""

    def __init__(self, last_id: str) -> None:
        self.last_id = last_id
        self._acked = last_id
        self._position = -1
        self._redriven: list[int] = []  # not acknowledged yet

    def has(self, notification: Notification) -> bool:
        return not notification.redriven and notification.position <= self._position

    def add(self, notification: Notification, id: str) -> None:
        if notification.redriven:
            self._redriven.append(notification.position)
        else:
            self.last_id, self._position = id, notification.position

    def cursors(self) -> list[str]:
        """What acknowledges all of it that was not before."""
        cursors = [self.last_id] if self.last_id != self._acked else []
        if self._redriven:
            cursors.append(responses.REDRIVEN + ",".join(map(str, self._redriven)))
        self._acked, self._redriven = self.last_id, []
        return cursors


def _notification(sent: ServerSent) -> Notification | None:
    """None for what the stream says besides notifications."""
    if sent.event not in ("message", "notification"):
        return None
    return responses.notification_of(Response(200, {}, sent.data.encode()).json, cursor=sent.id or None)
