"""Subscribers that fetch: long polls, acknowledgements, and streams of Server-Sent Events.

A cursor is the last position that was handed over. Dead letters that are delivered again lie before the cursor, so they
come separately, with a cursor of another form that lists their positions.

    mailbox   …  40    41    42    43    44    45  …
    cursor       ▲                                       acknowledged: POST …/ack, or Last-Event-ID
    window             ├─── sent ──────┤                 at most so many notifications and bytes
    next                                     ▲

With `ack=client`, the default, a notification is received when the client says so. A full window is announced on the
stream, which then waits. With `ack=auto`, for clients that can only read, what the socket has taken counts as received:
what is lost after that does not come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tidings.service.gateway.catalogue_cache import DELIVERED, KnownSubscriptions, expect_read_by_subscriber
from tidings.service.gateway.gateway_metrics import Metrics
from tidings.service.gateway.gateway_stores import Stores
from tidings.service.gateway.mailbox_reading import Mailboxes, Waiting
from tidings.service.gateway.mailbox_watch import MailboxWatch
from tidings.service.gateway.problems import Problem, invalid
from tidings.service.gateway.security import CONNECTION
from tidings.store.catalogue import SubscriptionRow

AckMode: TypeAlias = Literal["client", "auto"]

BUFFERED_BYTES = 64 << 10  # of a stream, in the transport
_AT_ONCE = 256  # notifications that a stream reads at a time
_AT_ONCE_BYTES = 256 << 10  # and their bytes, exceeded by one notification at most
_REDRIVEN = "again:"  # begins the cursor of dead letters that are delivered again
_RETRY = b"retry: 1000\n\n"
_KEEP_ALIVE = b": still here\n\n"
_DELETED = b'event: end\ndata: {"reason":"the subscription was deleted"}\n\n'
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_ABORT_SECONDS = 5.0  # until the server has noticed that a connection is gone
_logger = logging.getLogger(__name__)


# -- cursors -----------------------------------------------------------------------------------------


def redriven_cursor(positions: Iterable[int]) -> str:
    """Returns the cursor that acknowledges dead letters that were delivered again."""
    return _REDRIVEN + ",".join(map(str, positions))


def read_cursor(text: str, pointer: str = "/cursor") -> int:
    """Returns the position in a cursor."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19) or int(text) < -1:
        raise invalid("this is no cursor; give one that came with notifications", pointer)
    return int(text)


def read_last_event_id(text: str | None) -> int | None:
    """Returns where a stream continues; None for a new stream."""
    if text is None or not text.strip():
        return None
    try:
        return read_cursor(text.strip())
    except Problem:
        raise Problem(400, "last-event-id", "Last-Event-ID is the id of an event of this stream") from None


# -- a stream's window -------------------------------------------------------------------------------


class WindowRoom(NamedTuple):
    """What may be sent."""

    notifications: int
    bytes: int


class Window:
    """What a stream has sent and its client has not acknowledged."""

    def __init__(self, notifications: int, bytes_: int) -> None:
        self._max = WindowRoom(notifications, bytes_)
        self._sent: deque[tuple[int, int]] = deque()  # positions and bytes, in order
        self._redriven: dict[int, int] = {}
        self._bytes = 0
        self._announced = False

    def __len__(self) -> int:
        return len(self._sent) + len(self._redriven)

    @property
    def room(self) -> WindowRoom:
        return WindowRoom(max(0, self._max.notifications - len(self)), max(0, self._max.bytes - self._bytes))

    @property
    def is_full(self) -> bool:
        return 0 in self.room

    @property
    def redriven(self) -> frozenset[int]:
        """The positions of the dead letters that were sent."""
        return frozenset(self._redriven)

    def sent(self, position: int, size: int) -> None:
        self._sent.append((position, size))
        self._bytes += size

    def sent_again(self, position: int, size: int) -> None:
        self._redriven[position] = size
        self._bytes += size

    def acknowledged(self, cursor: int) -> None:
        while self._sent and self._sent[0][0] <= cursor:
            self._bytes -= self._sent.popleft()[1]
        self._has_shrunk()

    def settled(self, position: int) -> None:
        self._bytes -= self._redriven.pop(position)
        self._has_shrunk()

    def clear(self) -> None:
        self._sent.clear()
        self._redriven.clear()
        self._bytes = 0

    def _has_shrunk(self) -> None:
        if len(self) * 2 <= self._max.notifications and self._bytes * 2 <= self._max.bytes:
            self._announced = False

    def announcement(self, id: str) -> bytes:
        """Returns an event that says that the window is full and what to do; empty if it is not, or that was said."""
        if self._announced or not self.is_full:
            return b""
        self._announced = True
        said = {
            "unacknowledged": len(self),
            "bytes": self._bytes,
            "detail": f"{len(self)} notifications are not acknowledged, and no more are sent until they are: "
            f"POST /v1/subscriptions/{id}/ack with the id of the last that you have as the cursor, or open the stream "
            "with ack=auto",
        }
        return f"event: window\ndata: {json.dumps(said)}\n\n".encode()


@dataclass
class _Place:
    """How far a stream has come."""

    after: int  # the next notification is after this position
    cursor: int  # what was acknowledged, here or elsewhere, when it was last read


class _Next(NamedTuple):
    """What a stream sends next."""

    redriven: Sequence[Waiting]
    waiting: Sequence[Waiting]

    def __len__(self) -> int:
        return len(self.redriven) + len(self.waiting)


# -- polls and streams -------------------------------------------------------------------------------


class Fetching:
    """Hands over what waits, to long polls and to streams; both end when the service stops."""

    def __init__(
        self,
        stores: Stores,
        subscriptions: KnownSubscriptions,
        mailboxes: Mailboxes,
        watch: MailboxWatch,
        metrics: Metrics,
    ) -> None:
        self._subscriptions = subscriptions
        self._mailboxes = mailboxes
        self._watch = watch
        self._metrics = metrics
        self._deliveries = stores.deliveries
        self._settings = stores.settings
        self._threads = stores.delivering
        self.closing = False

    def close(self) -> None:
        """Ends requests that wait: the service stops."""
        self.closing = True
        self._watch.nudge_all()

    async def poll(self, tenant: str, id: str, *, limit: int, wait: float, after: int | None) -> Response:
        """Returns the next notifications, unacknowledged ones first; waits for some if there are none."""
        deadline = time.monotonic() + wait
        row = await self._readable(tenant, id)
        while True:
            with self._watch.waiting(row) as woken:
                cursor, waiting = await self._threads.run(self._read, row, limit, after)
                left = deadline - time.monotonic()
                if waiting or left <= 0 or self.closing:
                    self._metrics.delivered("pull", f"{tenant}/{id}", len(waiting))
                    return _page(waiting, cursor)
                with self._metrics.polls.track_inprogress(), contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), left)
            row = await self._subscriptions.required(tenant, id)

    async def acknowledge(self, tenant: str, id: str, cursor: str, end: int) -> None:
        """Notes that everything up to a cursor need not come again."""
        row = await self._readable(tenant, id)
        if cursor.startswith(_REDRIVEN):
            positions = [read_cursor(part) for part in cursor.removeprefix(_REDRIVEN).split(",")[:1000]]
            await self._threads.run(self._settle, row.key, positions)
        else:
            position = read_cursor(cursor)
            if position >= end:
                raise invalid(f"the cursor {position} is beyond the last event", "/cursor")
            if position >= 0:
                await self._threads.run(self._mailboxes.acknowledge, row, position)
        self._watch.nudge(row.key)  # a stream whose window was full has room

    async def stream(self, tenant: str, id: str, last: int | None, ack: AckMode) -> AsyncGenerator[bytes, None]:
        """Returns notifications until either side ends it. `last` is the last event that the client has."""
        row = await self._readable(tenant, id)
        place = await self._threads.run(self._begin, row, last)
        self._watch.nudge(row.key)
        return self._pieces(row, place, ack)

    async def _readable(self, tenant: str, id: str) -> SubscriptionRow:
        row = await self._subscriptions.required(tenant, id)
        expect_read_by_subscriber(row)
        return row

    async def _pieces(self, row: SubscriptionRow, place: _Place, ack: AckMode) -> AsyncGenerator[bytes, None]:
        settings, key = self._settings, row.key
        window = Window(settings.stream_window_notifications, settings.stream_window_bytes)
        self._metrics.streams.inc()
        try:
            yield _RETRY
            while not self.closing:
                with self._watch.waiting(row) as woken:
                    next_ = _Next((), ())
                    if row.state in DELIVERED:
                        next_ = await self._threads.run(self._next, row, place, window)
                    if piece := _piece(next_, window):
                        yield piece
                        self._metrics.delivered("sse", f"{row.tenant}/{row.id}", len(next_))
                        if ack == "auto":
                            await self._threads.run(self._received, row, next_)
                            window.clear()
                    if announced := window.announcement(row.id):
                        yield announced
                    if window.is_full or not piece:
                        try:
                            await asyncio.wait_for(woken.wait(), settings.keep_alive_seconds)
                        except TimeoutError:
                            yield _KEEP_ALIVE
                now = await self._subscriptions.find(row.tenant, row.id)
                if now is None or now.key != key:
                    yield _DELETED
                    return
                row = now
        finally:
            self._metrics.streams.dec()

    # -- in threads: polls ---------------------------------------------------------------------------

    def _read(self, row: SubscriptionRow, limit: int, after: int | None) -> tuple[str, list[Waiting]]:
        if row.state not in DELIVERED:
            return str(self._deliveries.cursor(row.key)), []
        if after is None:
            again = self._mailboxes.redriven(row, min(limit, 100))
            if again:
                return redriven_cursor(waiting.position for waiting in again), again
            after = self._deliveries.cursor(row.key)
        taken = self._mailboxes.take(row, after, limit)
        if not taken.waiting and taken.after > after:  # all of it was removed by retention, and is dead
            self._deliveries.acknowledge(row.key, taken.after)
        return str(taken.after), taken.waiting

    def _settle(self, key: int, positions: list[int]) -> None:
        for position in positions:
            self._deliveries.delivered(key, position)

    # -- in threads: streams -------------------------------------------------------------------------

    def _begin(self, row: SubscriptionRow, last: int | None) -> _Place:
        """Returns where a stream begins: after what was acknowledged, or earlier if its client says it has less."""
        if last is not None:
            self._mailboxes.acknowledge(row, last)
        cursor = self._deliveries.cursor(row.key)
        return _Place(cursor if last is None else min(last, cursor), cursor)

    def _next(self, row: SubscriptionRow, place: _Place, window: Window) -> _Next:
        """Returns what there is room for, after what was sent and what was acknowledged here or elsewhere."""
        cursor = self._deliveries.cursor(row.key)
        if cursor > place.cursor:
            place.cursor, place.after = cursor, max(place.after, cursor)
        window.acknowledged(cursor)
        again = self._redriven(row, window)
        room = window.room
        left = WindowRoom(room.notifications - len(again), room.bytes - sum(len(one.text) for one in again))
        if min(left) <= 0:
            return _Next(again, ())
        notifications, size = min(_AT_ONCE, left.notifications), min(_AT_ONCE_BYTES, left.bytes)
        taken = self._mailboxes.take(row, place.after, notifications, size)
        place.after = taken.after
        if place.after > cursor and not taken.waiting and not len(window):  # what lies between is dead
            self._deliveries.acknowledge(row.key, place.after)
        return _Next(again, taken.waiting)

    def _redriven(self, row: SubscriptionRow, window: Window) -> list[Waiting]:
        """Returns dead letters to be delivered again that were not sent on this stream."""
        sent = window.redriven
        limit = len(sent) + _AT_ONCE
        wanted = self._deliveries.redriven(row.key, limit=limit)
        known_to = wanted[-1] if len(wanted) == limit else None  # what lies beyond was not read
        for position in sent.difference(wanted):
            if known_to is None or position < known_to:
                window.settled(position)
        room = window.room
        new = [position for position in wanted if position not in sent][: min(_AT_ONCE, room.notifications)]
        return self._mailboxes.redriven_at(row, new, min(_AT_ONCE_BYTES, room.bytes)) if room.bytes else []

    def _received(self, row: SubscriptionRow, sent: _Next) -> None:
        self._settle(row.key, [one.position for one in sent.redriven])
        if sent.waiting:
            self._deliveries.acknowledge(row.key, sent.waiting[-1].position)


def _page(waiting: list[Waiting], cursor: str) -> Response:
    listed = ",".join(f'{{"position":{one.position},{one.member}}}' for one in waiting)
    return Response(f'{{"notifications":[{listed}],"cursor":"{cursor}"}}', media_type="application/json")


def _piece(next_: _Next, window: Window) -> bytes:
    """Returns what there is to send, and notes it as sent."""
    pieces = []
    for one in next_.redriven:
        pieces.append(_event(one, redriven=True))
        window.sent_again(one.position, len(pieces[-1]))
    for one in next_.waiting:
        pieces.append(_event(one))
        window.sent(one.position, len(pieces[-1]))
    return b"".join(pieces)


def _event(one: Waiting, *, redriven: bool = False) -> bytes:
    # The log keeps each text in one line. A carriage return would end a line of the stream, and in JSON is a space.
    member = one.member.replace("\r", " ")
    # What is redriven lies before the cursor. It has no id, which would send a client that reconnects back there.
    id_ = "" if redriven else f"id: {one.position}\n"
    cursor = f',"cursor":"{redriven_cursor([one.position])}"' if redriven else ""
    return f'{id_}event: notification\ndata: {{"position":{one.position},{member}{cursor}}}\n\n'.encode()


class EventStream(StreamingResponse):
    """Sends pieces while there are any and the client reads them; disconnects a client that reads nothing.

    An HTTP server buffers what a client does not read, and closes a connection only when all of that is sent: one whose
    client never reads would stay open forever. Here the next piece is taken when the socket has the one before, so that
    one piece is in memory and at most `BUFFERED_BYTES` of it in the transport.
    """

    media_type = "text/event-stream"

    def __init__(self, pieces: AsyncGenerator[bytes, None], *, name: str, write_seconds: float) -> None:
        super().__init__(pieces, headers=_HEADERS)
        self._pieces = pieces
        self._name = name
        self._seconds = write_seconds
        self._transport: asyncio.Transport | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._transport = getattr(scope.get(CONNECTION), "transport", None)  # only our own server has it
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=1, low=0)  # a write waits until the socket has it all
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._pieces) as pieces:
            async for piece in pieces:
                if not await self._written(send, piece):
                    return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _written(self, send: Send, piece: bytes) -> bool:
        """Whether the socket has taken a piece."""
        ends = len(piece) + BUFFERED_BYTES  # with an empty part at last: a send waits for what was sent before
        try:
            for at in range(0, ends, BUFFERED_BYTES):
                part = piece[at : at + BUFFERED_BYTES]
                async with asyncio.timeout(self._seconds):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:
            _logger.warning("stream of %s closed: its client has read nothing for %g s", self._name, self._seconds)
            await self._abort()
            return False
        return self._transport is None or not self._transport.is_closing()

    async def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        await asyncio.sleep(_ABORT_SECONDS)  # the disconnect ends it sooner
