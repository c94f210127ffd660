"""The client for asyncio: `Client`, awaited. What its methods mean is said there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
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


class AsyncClient:
    """As `Client`, whose arguments it takes; close it with `aclose`, or use it in `async with`."""

    def __init__(
        self, url: str | None = None, *, token: str | None = None, token_file: str | os.PathLike[str] | None = None,
        source: str | None = None, timeout: float = 30.0, retries: Retries | None = None,
        transport: httpx2.AsyncBaseTransport | None = None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        settings = ConnectionSettings.find(url, token, token_file)
        self.url = settings.url
        self._timeout = timeout
        self._sleep = sleep
        self._flows = Flows(settings.url, retries or Retries(), source)
        self._http = httpx2.AsyncClient(**options(settings, timeout, transport))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # ------------------------------------------------------------------ domains

    async def put_domain(self, name: str, domain: DomainForm, *, placement: str | None = None) -> responses.DomainState:
        return await self._run(self._flows.ask(calls.put_domain(name, domain, placement)))

    async def domain(self, name: str) -> responses.DomainState:
        return await self._run(self._flows.ask(calls.domain(name)))

    async def domains(self) -> list[responses.DomainState]:
        return await self._run(self._flows.ask(calls.domains()))

    async def delete_domain(self, name: str) -> None:
        await self._run(self._flows.ask(calls.delete_domain(name)))

    # ------------------------------------------------------------------ events

    async def publish(self, domain: str, event: Event, **fields: Unpack[EventFields]) -> int:
        return await self._run(self._flows.publish(domain, event, **fields))

    async def publish_many(
        self, domain: str, events: Iterable[Event], *, batch_events: int = BATCH_EVENTS, batch_bytes: int = BATCH_BYTES
    ) -> list[int]:
        return await self._run(self._flows.publish_many(domain, events, max_events=batch_events, max_bytes=batch_bytes))

    def publish_batches(
        self, domain: str, events: Iterable[Event], *, batch_events: int = BATCH_EVENTS, batch_bytes: int = BATCH_BYTES
    ) -> AsyncIterator[list[int]]:
        return self._each(self._flows.publish_batches(domain, events, max_events=batch_events, max_bytes=batch_bytes))

    async def event_matches(self, position: int) -> responses.EventMatches:
        return await self._run(self._flows.ask(calls.matches(position)))

    # ------------------------------------------------------------------ subscriptions

    async def subscribe(
        self, domain: str, filter: str, **options: Unpack[NewSubscriptionOptions]
    ) -> responses.SubscriptionState:
        body = calls.subscription_body(domain, filter, **options)
        return await self._run(self._flows.ask(calls.create(body)))

    async def replace_subscription(
        self, id: str, domain: str, filter: str, **options: Unpack[SubscriptionOptions]
    ) -> responses.SubscriptionState:
        calls.check_names(options, SubscriptionOptions)
        body = calls.subscription_body(domain, filter, **options)
        return await self._run(self._flows.ask(calls.replace(id, body)))

    async def subscription(self, id: str) -> responses.SubscriptionState:
        return await self._run(self._flows.ask(calls.subscription(id)))

    def subscriptions(self, **wanted: Unpack[SubscriptionQuery]) -> AsyncIterator[responses.SubscriptionState]:
        return self._each(self._flows.subscriptions(**wanted))

    async def change(self, id: str, **changes: Unpack[SubscriptionUpdate]) -> responses.SubscriptionState:
        return await self._run(self._flows.ask(calls.change(id, **changes)))

    async def pause(self, id: str) -> responses.SubscriptionState:
        return await self.change(id, paused=True)

    async def resume(self, id: str) -> responses.SubscriptionState:
        return await self.change(id, paused=False)

    async def delete(self, id: str) -> None:
        await self._run(self._flows.ask(calls.delete(id)))

    # ------------------------------------------------------------------ delivery

    async def pull(self, id: str, *, limit: int = 100, wait: float = 0.0) -> responses.Pulled:
        return await self._run(self._flows.ask(calls.pull(id, limit=limit, wait=wait)))

    async def ack(self, id: str, cursor: str) -> None:
        await self._run(self._flows.ask(calls.ack(id, cursor)))

    def notifications(
        self, id: str, *, limit: int = 100, wait: float = 20.0, follow: bool = True
    ) -> AsyncIterator[responses.Notification]:
        return self._each(self._flows.notifications(id, limit=limit, wait=wait, follow=follow))

    def stream(self, id: str, *, last_event_id: str = "", ack: bool = True) -> AsyncIterator[responses.Notification]:
        return self._each(self._flows.stream(id, last_id=last_event_id, ack=ack))

    def dead_letters(self, id: str) -> AsyncIterator[responses.DeadLetter]:
        return self._each(self._flows.dead_letters(id))

    async def redrive(self, id: str, positions: Iterable[int] | None = None) -> None:
        await self._run(self._flows.ask(calls.redrive(id, positions)))

    # ------------------------------------------------------------------ filters

    async def test_filter(self, domain: str, filter: str, event: Event) -> responses.FilterTest:
        return await self._run(self._flows.test_filter(domain, filter, event))

    async def backtest(self, domain: str, filter: str, **options: Unpack[BacktestOptions]) -> responses.BacktestResult:
        return await self._run(self._flows.backtest(calls.backtest(domain, filter, **options)))

    async def health(self) -> responses.Health:
        return await self._run(self._flows.ask(calls.health()))

    # ------------------------------------------------------------------ carrying out

    async def _run(self, flow: Flow[T]) -> T:
        reply: Any = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as ended:
                result: T = ended.value
                return result
            reply = await self._carry_out(step)

    async def _each(self, flow: Flow[None]) -> AsyncIterator[Any]:
        reply: Any = None
        opened: httpx2.Response | None = None
        pieces: AsyncIterator[bytes] | None = None
        try:
            while True:
                try:
                    step = flow.send(reply)
                except StopIteration:
                    return
                reply = None
                match step:
                    case Give(items):
                        for item in items:
                            yield item
                    case Open(call):
                        if opened is not None:
                            await opened.aclose()
                        with losses() as lost:
                            request = request_of(self._http, call, STREAM_SECONDS)
                            opened = await self._http.send(request, stream=True)
                            pieces = opened.aiter_bytes()
                            reply = response_of(opened, b"" if opened.is_success else await opened.aread())
                        reply = lost[0] if lost else reply
                    case Read():
                        assert pieces is not None
                        with losses() as lost:
                            reply = await anext(pieces, None)
                        reply = lost[0] if lost else reply
                    case _:
                        reply = await self._carry_out(step)
        finally:
            flow.close()
            if opened is not None:
                await opened.aclose()

    async def _carry_out(self, step: Step) -> responses.Response | LostResponse | None:
        match step:
            case Sleep(seconds):
                await self._sleep(seconds)
                return None
            case SendCall(call):
                with losses() as lost:
                    response = await self._http.send(request_of(self._http, call, self._timeout))
                return lost[0] if lost else response_of(response, response.content)
        raise AssertionError(f"no step of such a flow: {step}")
