"""How subscribers fetch: long polls and acknowledgements, and streams of Server-Sent Events.

A cursor is the last position that was handed over. What was dead and is delivered once more lies behind the
cursor, so that it comes apart, with a cursor of its own kind that names the positions.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import Any

from starlette.responses import Response

from tidings.service.known_subscriptions import DELIVERED, KnownSubscriptions, expect_read_by_subscriber
from tidings.service.mailbox import Mailboxes, Taken, Waiting
from tidings.service.metrics import Metrics
from tidings.service.problems import Problem, invalid
from tidings.service.settings import Settings
from tidings.store.catalogue import SubscriptionRow
from tidings.store.deliveries import Deliveries

_REDRIVEN = "again:"
_RETRY = b"retry: 1000\n\n"
_KEEP_ALIVE = b": still here\n\n"
_AT_ONCE = 256  # notifications that a stream reads at a time
_MARKS = 64  # that a window is divided into, where it is noted what was written


class Pulling:
    """Hands over what waits to who asks for it."""

    def __init__(
        self, subscriptions: KnownSubscriptions, mailboxes: Mailboxes, deliveries: Deliveries, metrics: Metrics,
        settings: Settings, executor: Executor,
    ) -> None:  # fmt: skip
        self._subscriptions = subscriptions
        self._mailboxes = mailboxes
        self._deliveries = deliveries
        self._metrics = metrics
        self._settings = settings
        self._executor = executor
        self.closing = False

    def close(self) -> None:
        """Let streams and polls end: the service stops."""
        self.closing = True
        self._mailboxes.nudge_all()

    async def _do(self, work: Callable[..., Any], *values: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *values)

    # -- long polls ----------------------------------------------------------------------------------

    async def poll(self, tenant: str, id: str, *, limit: int, wait: float, after: int | None) -> Response:
        """The next notifications, those not acknowledged first; waits for some where there are none."""
        deadline = time.monotonic() + wait
        row = await self._subscriptions.required(tenant, id)
        expect_read_by_subscriber(row)
        while True:
            with self._mailboxes.waiting(row) as woken:
                cursor, waiting = await self._next(row, limit, after)
                left = deadline - time.monotonic()
                if waiting or left <= 0 or self.closing:
                    self._metrics.delivered("pull", f"{tenant}/{id}", len(waiting))
                    return _page(waiting, cursor)
                with self._metrics.polls.track_inprogress():
                    try:
                        await asyncio.wait_for(woken.wait(), left)
                    except TimeoutError:
                        continue
            row = await self._subscriptions.required(tenant, id)

    async def _next(self, row: SubscriptionRow, limit: int, after: int | None) -> tuple[str, list[Waiting]]:
        if row.state not in DELIVERED:
            return str(await self._do(self._deliveries.cursor, row.key)), []
        cursor: str
        waiting: list[Waiting]
        cursor, waiting = await self._do(self._read, row, limit, after)
        return cursor, waiting

    def _read(self, row: SubscriptionRow, limit: int, after: int | None) -> tuple[str, list[Waiting]]:
        if after is None:
            again = self._mailboxes.redriven(row, min(limit, 100))
            if again:
                return _REDRIVEN + ",".join(str(waiting.position) for waiting in again), again
            after = self._deliveries.cursor(row.key)
        taken = self._mailboxes.take(row, after, limit)
        if not taken.waiting and taken.after > after:  # all of it was removed by retention, and is dead
            self._deliveries.acknowledge(row.key, taken.after)
        return str(taken.after), taken.waiting

    async def acknowledge(self, tenant: str, id: str, cursor: object, end: int) -> None:
        """Note that all up to a cursor need not come again."""
        row = await self._subscriptions.required(tenant, id)
        expect_read_by_subscriber(row)
        if not isinstance(cursor, str):
            raise invalid("a cursor is a text that came with notifications", "/cursor")
        if cursor.startswith(_REDRIVEN):
            positions = [read_cursor(part) for part in cursor.removeprefix(_REDRIVEN).split(",")[:1000]]
            await self._do(self._settle, row.key, positions)
            return
        position = read_cursor(cursor)
        if position >= end:
            raise invalid(f"the cursor {position} is beyond the last event", "/cursor")
        if position >= 0:
            await self._do(self._deliveries.acknowledge, row.key, position)

    def _settle(self, key: int, positions: list[int]) -> None:
        for position in positions:
            self._deliveries.delivered(key, position)

    # -- streams -------------------------------------------------------------------------------------

    async def stream(self, tenant: str, id: str, last: int | None) -> AsyncIterator[bytes]:
        """Notifications as Server-Sent Events for as long as both sides like; the first piece is there at once.

        What a client names as its last event it has. Besides, what was written so long ago that no buffer
        between the two can hold it counts as received, so that a stream that never breaks fills no mailbox.
        """
        row = await self._subscriptions.required(tenant, id)
        expect_read_by_subscriber(row)
        if last is not None:
            await self._do(self._deliveries.acknowledge, row.key, last)
        after: int = last if last is not None else await self._do(self._deliveries.cursor, row.key)
        return self._pieces(row, after)

    async def _pieces(self, row: SubscriptionRow, after: int) -> AsyncIterator[bytes]:
        settings, name = self._settings, f"{row.tenant}/{row.id}"
        key = row.key
        received = Received(settings)
        self._metrics.streams.inc()
        try:
            yield _RETRY
            while not self.closing:
                with self._mailboxes.waiting(row) as woken:
                    taken = Taken([], after)
                    if row.state in DELIVERED:
                        again = await self._do(self._mailboxes.redriven, row, _AT_ONCE)
                        if again:
                            yield b"".join(_sent(waiting, with_id=False) for waiting in again)
                            await self._do(self._settle, key, [waiting.position for waiting in again])
                        taken = await self._do(self._mailboxes.take, row, after, _AT_ONCE)
                    if taken.waiting:
                        piece = b"".join(map(_sent, taken.waiting))
                        yield piece
                        self._metrics.delivered("sse", name, len(taken.waiting))
                        passed = received.written(taken.after, len(taken.waiting), len(piece))
                        if passed is not None:
                            await self._do(self._deliveries.acknowledge, key, passed)
                    after = taken.after
                    if not taken.waiting:
                        try:
                            await asyncio.wait_for(woken.wait(), settings.keep_alive_seconds)
                        except TimeoutError:
                            yield _KEEP_ALIVE
                now = await self._subscriptions.find(row.tenant, row.id)
                if now is None or now.key != key:
                    yield b'event: end\ndata: {"reason":"the subscription was deleted"}\n\n'
                    return
                row = now
        finally:
            self._metrics.streams.dec()


class Received:
    """Which of the positions that a stream has written its reader must have by now."""

    def __init__(self, settings: Settings) -> None:
        self._bytes, self._count = settings.stream_window_bytes, settings.stream_window_notifications
        self._sent: deque[tuple[int, int, int]] = deque()  # position, bytes and notifications written up to it
        self._totals = (0, 0)

    def written(self, position: int, count: int, size: int) -> int | None:
        """Note what was written, and answer the last position that counts as received now, if it is another."""
        self._totals = (self._totals[0] + size, self._totals[1] + count)
        if len(self._sent) > 1 and self._is_near(self._sent[-2]):
            self._sent.pop()  # so that a thousand streams of many small notifications need little memory
        self._sent.append((position, *self._totals))
        passed = None
        while self._totals[0] - self._sent[0][1] >= self._bytes or self._totals[1] - self._sent[0][2] >= self._count:
            passed = self._sent.popleft()[0]
        return passed

    def _is_near(self, earlier: tuple[int, int, int]) -> bool:
        _, size, count = earlier
        return (self._totals[0] - size) * _MARKS < self._bytes and (self._totals[1] - count) * _MARKS < self._count


def read_cursor(text: str, pointer: str = "/cursor") -> int:
    """The position in a cursor."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19) or int(text) < -1:
        raise invalid("this is no cursor; give one that came with notifications", pointer)
    return int(text)


def read_last_event_id(text: str | None) -> int | None:
    """Where a stream goes on; None where it is a new one."""
    if text is None or not text.strip():
        return None
    try:
        return read_cursor(text.strip())
    except Problem:
        raise Problem(400, "last-event-id", "Last-Event-ID is the id of an event of this stream") from None


def _page(waiting: list[Waiting], cursor: str) -> Response:
    listed = ",".join(f'{{"position":{one.position},{one.member}}}' for one in waiting)
    return Response(f'{{"notifications":[{listed}],"cursor":"{cursor}"}}', media_type="application/json")


def _sent(waiting: Waiting, *, with_id: bool = True) -> bytes:
    # The log keeps each text in one line; a carriage return would end a line of the stream, and in JSON is but a space.
    member = waiting.member.replace("\r", " ")
    id_ = f"id: {waiting.position}\n" if with_id else ""
    return f'{id_}event: notification\ndata: {{"position":{waiting.position},{member}}}\n\n'.encode()
