"""How subscribers fetch: long polls, and acknowledgements of what they have.

A cursor is the last position that was handed over. What was dead and is delivered once more lies behind the
cursor, so that it comes apart, with a cursor of its own kind that names the positions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from starlette.responses import Response

from tidings.service.gateway.handing_over import HandingOver
from tidings.service.gateway.known_subscriptions import DELIVERED, expect_read_by_subscriber
from tidings.service.gateway.problems import Problem, invalid
from tidings.service.gateway.waiting_notifications import Waiting
from tidings.store.catalogue import SubscriptionRow

_REDRIVEN = "again:"


class Pulling(HandingOver):
    """Hands over what waits to who asks for it."""

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
                return redriven_cursor(waiting.position for waiting in again), again
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
            self._mailboxes.nudge(row.key)
            return
        position = read_cursor(cursor)
        if position >= end:
            raise invalid(f"the cursor {position} is beyond the last event", "/cursor")
        if position >= 0:
            await self._do(self._mailboxes.acknowledge, row, position)
            self._mailboxes.nudge(row.key)  # a stream whose window was full has room

    def _settle(self, key: int, positions: list[int]) -> None:
        for position in positions:
            self._deliveries.delivered(key, position)


def redriven_cursor(positions: Iterable[int]) -> str:
    """The cursor that acknowledges dead letters that were delivered once more."""
    return _REDRIVEN + ",".join(map(str, positions))


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
