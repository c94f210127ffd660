"""A response of Server-Sent Events that waits for its client, and not without end.

A server of HTTP buffers what a client does not read, and closes a connection only when all of that is sent: one whose
client never reads would stay open for ever. Here a piece that is yielded was written to the socket when the next one is
asked for, and a client that reads nothing is disconnected after some seconds. Until then one piece is in memory, and at
most so many bytes of it in the transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tidings.service.gateway.security import CONNECTION

BUFFERED_BYTES = 64 << 10  # of a stream, in the transport
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_ABORT_SECONDS = 5.0  # until the server has noticed that a connection is gone
_logger = logging.getLogger(__name__)


class EventStream(StreamingResponse):
    """Sends pieces for as long as there are any and the client reads them."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], *, name: str, write_seconds: float) -> None:
        super().__init__(pieces, headers=_HEADERS, media_type="text/event-stream")
        self._pieces = pieces
        self._name = name
        self._seconds = write_seconds
        self._transport: asyncio.Transport | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._transport = getattr(scope.get(CONNECTION), "transport", None)  # of our own server alone
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=1, low=0)  # what is written waits until the socket has it all
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._pieces) as pieces:
            async for piece in pieces:
                if not await self._written(send, piece):
                    return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _written(self, send: Send, piece: bytes) -> bool:
        """Whether the socket has a piece."""
        parts = [piece[at : at + BUFFERED_BYTES] for at in range(0, len(piece), BUFFERED_BYTES)]
        try:
            for part in (*parts, b""):  # to send waits for what was sent before
                async with asyncio.timeout(self._seconds):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:
            _logger.warning(
                "the stream of %s is broken off: its client has read nothing for %g s", self._name, self._seconds
            )
            await self._abort()
            return False
        return self._transport is None or not self._transport.is_closing()

    async def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        await asyncio.sleep(_ABORT_SECONDS)  # the disconnect ends it sooner
