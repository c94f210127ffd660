"""The way from a node's process to one peer: frames in a bounded queue, one connection at a time; and what it drops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import struct
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from tidings.errors import TidingsError
from tidings.systems.protocols.effects import Message
from tidings.systems.protocols.network_secret import NodeIdentity, Secured, StrangerError

MAX_FRAME = 8 << 20  # bytes
MAX_QUEUE = 4_096  # frames to one peer
MAX_QUEUED_BYTES = 2 * MAX_FRAME
CONNECT_S = 2.0
SEND_S = 10.0  # that a peer may take for what fills the connection's buffers, or to prove who it is
OUT_OF_REACH, STRANGER = "peer out of reach", "stranger"  # why frames are lost with their link
LENGTH = struct.Struct(">I")
LOG_EVERY_S = 10.0
MAX_SHOWN = 200  # characters of what a peer sent, in a line of the log

log = logging.getLogger("tidings.node")

_HOST = re.compile(r"[A-Za-z0-9._:%\[\]-]{1,253}")


class _Queued(NamedTuple):
    message: Message
    frame: bytes


class Link:
    """Sends frames in their order; `lost` is called with what could not be sent, why, and more about that.

    With an identity the two ends prove to each other who they are before the first frame.
    """

    def __init__(
        self, address: str, lost: Callable[[list[Message], str, str], None], identity: NodeIdentity | None = None
    ) -> None:
        self._address = address
        self._host, self._port = split_address(address)
        self._lost = lost
        self._identity = identity
        self._queue: deque[_Queued] = deque()
        self._bytes = 0
        self._writer: asyncio.StreamWriter | None = None
        self._secured: Secured | None = None
        self._task: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self._queue) or (self._task is not None and not self._task.done())

    def send(self, message: Message, frame: bytes) -> None:
        if len(self._queue) >= MAX_QUEUE or self._bytes + len(frame) > MAX_QUEUED_BYTES:
            self._lost([message], "peer reads too slowly", "")
            return
        self._queue.append(_Queued(message, frame))
        self._bytes += len(frame)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._queue:
            try:
                if self._writer is None or self._writer.is_closing():
                    await self._connect()
                assert self._writer is not None
                self._writer.write(self._queue[0].frame)
                await asyncio.wait_for(self._writer.drain(), SEND_S)
            except StrangerError as error:
                self._give_up(STRANGER, str(error))
            except (OSError, ValueError) as error:  # ValueError: of an address that is none after all
                slow = isinstance(error, TimeoutError) and self._writer is not None
                self._give_up("peer does not read" if slow else OUT_OF_REACH)
            else:
                self._bytes -= len(self._queue.popleft().frame)

    def _give_up(self, why: str, detail: str = "") -> None:
        self.close()
        lost, self._queue, self._bytes = self._queue, deque(), 0
        self._lost([queued.message for queued in lost], why, detail)

    async def _connect(self) -> None:
        opened = asyncio.open_connection(self._host, self._port)
        reader, writer = await asyncio.wait_for(opened, CONNECT_S)
        if self._identity is not None:
            try:
                self._secured = await self._identity.connect(writer, self._address, SEND_S)
            except BaseException:
                cut_off(writer)
                raise
            reader, writer = self._secured.reader, self._secured.writer
        self._writer = writer
        self._watching = asyncio.get_running_loop().create_task(_watch(reader, writer))

    async def finish(self) -> None:
        """End the connection once the peer has been sent everything that was written."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    def close(self) -> None:
        """Without waiting for what the peer has not read."""
        if self._writer is not None:
            cut_off(self._writer)
            self._writer = None


def cut_off(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, whatever is left to be sent."""
    with contextlib.suppress(AttributeError):  # by asyncio, for one that was closed, and sent what was left since
        writer.transport.abort()


async def _watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Peers do not answer on this connection: whatever can be read of it is its end."""
    with contextlib.suppress(OSError):
        await reader.read(1)
    writer.close()


def split_address(address: str) -> tuple[str, int]:
    """The host and the port of an address; an IPv6 address may be in brackets."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not _HOST.fullmatch(host) or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise TidingsError(f"{address[:300]!r} is no address; write host:port")
    return host, int(port)


class Drops:
    """Counts what a process drops by reason, and logs the first of a reason and then at most one in LOG_EVERY_S."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}  # when, and what the count was

    def note(self, reason: str, detail: str) -> None:
        self.counts[reason] += 1
        now, count = self._clock(), self.counts[reason]
        at, before = self._logged.get(reason, (now - LOG_EVERY_S, 0))
        if now - at < LOG_EVERY_S:
            return
        self._logged[reason] = (now, count)
        shown = detail.encode("unicode_escape").decode()[:MAX_SHOWN]
        more = f" ({count - before:,} times)" if count - before > 1 else ""
        log.warning("%s: %s%s", reason, shown, more)
