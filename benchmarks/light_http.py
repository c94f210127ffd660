"""A client that costs little: keep-alive connections on bare sockets, answers read no further than they must be.

The load comes from the same machine as the service that it is for, so that what the client takes, the service
lacks. An ordinary client would take more than the gateway does.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_ID = re.compile(rb"^id: ([0-9]+)\n", re.MULTILINE)
_LONGEST_LINE = 24  # of those that matter: "id: " and a position


def request(method: str, path: str, host: str, token: str, body: bytes | None = None, media_type: str = "") -> bytes:
    """The bytes of a request, made once and sent often."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", f"authorization: Bearer {token}"]
    if body is not None:
        lines += [f"content-type: {media_type or 'application/json'}", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._read = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def to(cls, host: str, port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request; status and body of its answer."""
        assert self._transport is not None
        assert self._answer is None, "an answer is waited for already"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._read += data
        head = self._read.find(b"\r\n\r\n")
        if head < 0 or self._answer is None:
            return
        length = _LENGTH.search(self._read, 0, head + 2)
        end = head + 4 + (int(length.group(1)) if length else 0)
        if len(self._read) >= end:
            answer, self._answer = self._answer, None
            status, body = int(self._read[9:12]), self._read[head + 4 : end]
            self._read = self._read[end:]
            answer.set_result((status, body))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the service closed the connection"))

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


class Stream(asyncio.Protocol):
    """One stream of Server-Sent Events: tells the position of each and when it came."""

    def __init__(self, request: bytes, told: Callable[[int, float], None]) -> None:
        self._request = request
        self._told = told
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self.begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.time()
        if not self.begun.done():
            self.begun.set_result(int(data[9:12]))
        data = self._rest + data
        at = 0
        for found in _ID.finditer(data):
            self._told(int(found.group(1)), now)
            at = found.end()
        self._rest = data[max(at, len(data) - _LONGEST_LINE) :]

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        if not self.begun.done():
            self.begun.set_exception(error or ConnectionError("the service closed the stream"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def as_fast_as_possible(
    host: str, port: int, requests: Sequence[bytes], connections: int, seconds: float
) -> Sent:
    """Send requests in turn over connections, each of which waits for its answers, for a while."""
    sent = Sent([], 0, 0.0)
    opened = [await Connection.to(host, port) for _ in range(connections)]
    loop = asyncio.get_running_loop()
    numbers = iter(range(1 << 62))
    began = loop.time()

    async def one(connection: Connection) -> None:
        while (called := loop.time()) - began < seconds:
            number = next(numbers)
            if number >= len(requests):
                return
            status, body = await connection.ask(requests[number])
            sent.took.append(loop.time() - called)
            if status != 200:
                sent.refused += 1
                sent.last_refusal = body[:500]

    await asyncio.gather(*map(one, opened))
    sent.seconds = loop.time() - began
    for connection in opened:
        connection.close()
    return sent


class Sent:
    """What became of requests."""

    def __init__(self, took: list[float], refused: int, seconds: float) -> None:
        self.took = took  # seconds from each request to its answer
        self.refused = refused
        self.seconds = seconds  # of all together
        self.last_refusal = b""
