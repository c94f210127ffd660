"""The client that waits for its responses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2

from tidings.client import calls, responses
from tidings.client.calls import (
    BATCH_BYTES,
    BATCH_EVENTS,
    BacktestOptions,
    DomainForm,
    Event,
    EventFields,
    NewSubscriptionOptions,
    SubscriptionOptions,
    SubscriptionQuery,
    SubscriptionUpdate,
)
from tidings.client.connection_settings import ConnectionSettings, Retries
from tidings.client.flows import Flow, Flows, Give, LostResponse, Open, Read, SendCall, Sleep, Step
from tidings.client.transport import STREAM_SECONDS, losses, options, request_of, response_of

T = TypeVar("T")


class Client:
    """Speaks to a service; close it, or use it in `with`. Threads may share one.

    `url` is by default TIDINGS_URL, else http://127.0.0.1:8080. The token is `token`, else the first line of
    `token_file`, else TIDINGS_TOKEN, else the file TIDINGS_TOKEN_FILE, else, for a service on this machine,
    the file tidings-data/token. What the service refuses is a `ServiceError`; if it does not respond within
    `retries`, an `UnreachableError`.
    """

    def __init__(
        self, url: str | None = None, *, token: str | None = None, token_file: str | os.PathLike[str] | None = None,
        source: str | None = None, timeout: float = 30.0, retries: Retries | None = None,
        transport: httpx2.BaseTransport | None = None, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        settings = ConnectionSettings.find(url, token, token_file)
        self.url = settings.url
        self._timeout = timeout
        self._sleep = sleep
        self._flows = Flows(settings.url, retries or Retries(), source)
        self._http = httpx2.Client(**options(settings, timeout, transport))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ domains

    def put_domain(self, name: str, domain: DomainForm, *, placement: str | None = None) -> responses.DomainState:
        """Describe the events of a domain: a `Domain`, its JSON form, or its attributes.

        With `placement`, its events and subscriptions meet so, in a stream of its own; else as the service chooses.
        """
        return self._run(self._flows.ask(calls.put_domain(name, domain, placement)))

    def domain(self, name: str) -> responses.DomainState:
        return self._run(self._flows.ask(calls.domain(name)))

    def domains(self) -> list[responses.DomainState]:
        return self._run(self._flows.ask(calls.domains()))

    def delete_domain(self, name: str) -> None:
        self._run(self._flows.ask(calls.delete_domain(name)))

    # ------------------------------------------------------------------ events

    def publish(self, domain: str, event: Event, **fields: Unpack[EventFields]) -> int:
        """Publish one event, a record or a CloudEvent, and return its position in the log.

        Options: `source`, `id`, `type`, `subject` and `time`, as CloudEvents has them. An event without a source and an
        id is given them, so that it is stored once however often it is sent.
        """
        return self._run(self._flows.publish(domain, event, **fields))

    def publish_many(
        self, domain: str, events: Iterable[Event], *, batch_events: int = BATCH_EVENTS, batch_bytes: int = BATCH_BYTES
    ) -> list[int]:
        """Publish events in order, in batches, each wholly or not at all; returns their positions."""
        return self._run(self._flows.publish_many(domain, events, max_events=batch_events, max_bytes=batch_bytes))

    def publish_batches(
        self, domain: str, events: Iterable[Event], *, batch_events: int = BATCH_EVENTS, batch_bytes: int = BATCH_BYTES
    ) -> Iterator[list[int]]:
        """As `publish_many`, for events without an end: yields the positions of each batch."""
        return self._each(self._flows.publish_batches(domain, events, max_events=batch_events, max_bytes=batch_bytes))

    def event_matches(self, position: int) -> responses.EventMatches:
        """Returns who gets the event at a position, and who nearly does."""
        return self._run(self._flows.ask(calls.matches(position)))

    # ------------------------------------------------------------------ subscriptions

    def subscribe(
        self, domain: str, filter: str, **options: Unpack[NewSubscriptionOptions]
    ) -> responses.SubscriptionState:
        """Subscribe to the events that satisfy a filter. Every event published after this returned is covered.

        Options: `id`, `mode` ("pull", "sse" or "webhook"), `url` and `secret` of a webhook, `start` (where in the past
        to begin: "earliest", a position or a time), `expires` (a time, or how long from now), `labels`, `paused`, and
        `select="nodes"`, which delivers what the filter's paths over XML select, and not the event.
        """
        body = calls.subscription_body(domain, filter, **options)
        return self._run(self._flows.ask(calls.create(body)))

    def replace_subscription(
        self, id: str, domain: str, filter: str, **options: Unpack[SubscriptionOptions]
    ) -> responses.SubscriptionState:
        """Create the subscription, or replace the one with this id."""
        calls.check_names(options, SubscriptionOptions)
        body = calls.subscription_body(domain, filter, **options)
        return self._run(self._flows.ask(calls.replace(id, body)))

    def subscription(self, id: str) -> responses.SubscriptionState:
        return self._run(self._flows.ask(calls.subscription(id)))

    def subscriptions(self, **wanted: Unpack[SubscriptionQuery]) -> Iterator[responses.SubscriptionState]:
        """Yields subscriptions, page by page, by `domain`, `label` ("key" or "key=value"), `search` and `state`."""
        return self._each(self._flows.subscriptions(**wanted))

    def change(self, id: str, **changes: Unpack[SubscriptionUpdate]) -> responses.SubscriptionState:
        """Change what is given and keep the rest.

        Options: `filter`, `mode` with `url` and `secret`, `paused`, `select`, `labels` and `expires`. A label of None
        is removed, and so is an expiry of None.
        """
        return self._run(self._flows.ask(calls.change(id, **changes)))

    def pause(self, id: str) -> responses.SubscriptionState:
        """Stop deliveries; what matches meanwhile waits."""
        return self.change(id, paused=True)

    def resume(self, id: str) -> responses.SubscriptionState:
        return self.change(id, paused=False)

    def delete(self, id: str) -> None:
        self._run(self._flows.ask(calls.delete(id)))

    # ------------------------------------------------------------------ delivery

    def pull(self, id: str, *, limit: int = 100, wait: float = 0.0) -> responses.Pulled:
        """Returns what waits for a subscription; `wait` is how many seconds to wait for a first notification."""
        return self._run(self._flows.ask(calls.pull(id, limit=limit, wait=wait)))

    def ack(self, id: str, cursor: str) -> None:
        """Acknowledge everything up to a cursor."""
        self._run(self._flows.ask(calls.ack(id, cursor)))

    def notifications(
        self, id: str, *, limit: int = 100, wait: float = 20.0, follow: bool = True
    ) -> Iterator[responses.Notification]:
        """Yields notifications as they arrive, and acknowledges each batch when you ask for the one after it.

        If you stop in the middle of a batch, all of it comes again. Without `follow` it ends when nothing waits.
        """
        return self._each(self._flows.notifications(id, limit=limit, wait=wait, follow=follow))

    def stream(self, id: str, *, last_event_id: str = "", ack: bool = True) -> Iterator[responses.Notification]:
        """Yields notifications pushed as Server-Sent Events, resumed after the last one if the connection breaks.

        A notification is dealt with when the next one is asked for; about every second those are acknowledged.
        The one that you stop at is not: acknowledge it with `ack` and its `cursor`, or it comes again. With
        `ack=False` you acknowledge all of them yourself; the service sends 1,000 and then waits for that. The stream
        ends when the subscription is deleted.
        """
        return self._each(self._flows.stream(id, last_id=last_event_id, ack=ack))

    def dead_letters(self, id: str) -> Iterator[responses.DeadLetter]:
        """Yields what could not be delivered, and why."""
        return self._each(self._flows.dead_letters(id))

    def redrive(self, id: str, positions: Iterable[int] | None = None) -> None:
        """Try to deliver dead letters once more: those at these positions, or all."""
        self._run(self._flows.ask(calls.redrive(id, positions)))

    # ------------------------------------------------------------------ filters

    def test_filter(self, domain: str, filter: str, event: Event) -> responses.FilterTest:
        """Returns whether an event matches a filter, and why."""
        return self._run(self._flows.test_filter(domain, filter, event))

    def backtest(self, domain: str, filter: str, **options: Unpack[BacktestOptions]) -> responses.BacktestResult:
        """Returns what a filter would have delivered from the log, and how that differs from a subscription.

        Options: `start` and `end`, positions or times, and `compare`, the id of a subscription.
        """
        return self._run(self._flows.backtest(calls.backtest(domain, filter, **options)))

    def health(self) -> responses.Health:
        return self._run(self._flows.ask(calls.health()))

    # ------------------------------------------------------------------ carrying out

    def _run(self, flow: Flow[T]) -> T:
        """Carry out a flow that gives nothing before its end."""
        reply: Any = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as ended:
                result: T = ended.value
                return result
            reply = self._carry_out(step)

    def _each(self, flow: Flow[None]) -> Iterator[Any]:
        """Carry out a flow and yield what it gives. Closed early, it closes an open response."""
        reply: Any = None
        opened: httpx2.Response | None = None
        pieces: Iterator[bytes] = iter(())
        try:
            while True:
                try:
                    step = flow.send(reply)
                except StopIteration:
                    return
                reply = None
                match step:
                    case Give(items):
                        yield from items
                    case Open(call):
                        if opened is not None:
                            opened.close()
                        with losses() as lost:
                            request = request_of(self._http, call, STREAM_SECONDS)
                            opened = self._http.send(request, stream=True)
                            pieces = opened.iter_bytes()
                            reply = response_of(opened, b"" if opened.is_success else opened.read())
                        reply = lost[0] if lost else reply
                    case Read():
                        with losses() as lost:
                            reply = next(pieces, None)
                        reply = lost[0] if lost else reply
                    case _:
                        reply = self._carry_out(step)
        finally:
            flow.close()
            if opened is not None:
                opened.close()

    def _carry_out(self, step: Step) -> responses.Response | LostResponse | None:
        match step:
            case Sleep(seconds):
                self._sleep(seconds)
                return None
            case SendCall(call):
                with losses() as lost:
                    response = self._http.send(request_of(self._http, call, self._timeout))
                return lost[0] if lost else response_of(response, response.content)
        raise AssertionError(f"no step of such a flow: {step}")
