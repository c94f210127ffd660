"""The connections that peers open to a node: the frames of each in their order, within bounds.

A frame is its length in four bytes and then so many bytes. Where the nodes of a network share a secret, a peer proves
that it has it before anything it sends is read as a frame. Connections that have not proved it yet have a bound of
their own, so that strangers cannot take the places of nodes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tidings.errors import TidingsError
from tidings.systems.protocols.link import LENGTH, MAX_FRAME, Drops, cut_off
from tidings.systems.protocols.message_codec import MessageError
from tidings.systems.protocols.network_secret import NodeIdentity, Secured, StrangerError

MAX_CONNECTIONS = 512  # of peers
MAX_UNPROVEN = 64  # connections of those that have not proved the secret yet
FRAME_S = 10.0  # from the first byte of a frame to its last, to the first frame of a connection, and for a proof
MAX_READING_BYTES = 4 * MAX_FRAME  # of frames that are under way
SMALL_FRAME = 1 << 16  # bytes, of which every connection may have as many under way


class Peer(NamedTuple):
    """The other end of a connection."""

    shown: str  # where it connects from
    address: str | None  # as it has proved; None: the network has no secret


class Listener:
    """Reads frames from all connections, and hands each with its peer to `on_frame`."""

    def __init__(self, on_frame: Callable[[Peer, bytes], None], drops: Drops, identity: NodeIdentity | None) -> None:
        self._on_frame = on_frame
        self._drops = drops
        self._identity = identity
        self._unproven: dict[asyncio.StreamWriter, str] = {}  # and the hosts that they are of, the oldest first
        self._connections: dict[asyncio.StreamWriter, None] = {}  # in the order of their last frames
        self._reading = _Budget(MAX_READING_BYTES)
        self._closed = False

    def __len__(self) -> int:
        return len(self._connections) + len(self._unproven)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Coroutine[Any, Any, None]:
        """The frames of one peer, until it goes or breaks the rules."""
        if self._identity is not None:
            assert isinstance(writer.transport, asyncio.Transport)
            writer.transport.pause_reading()  # what comes is for TLS, which resumes it
        return self._serve(reader, writer)

    def close(self) -> None:
        self._closed = True
        for writer in (*self._connections, *self._unproven):
            cut_off(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = (writer.get_extra_info("peername") or ("?", "?"))[:2]
        shown = f"{host}:{port}"
        try:
            if self._identity is None:
                await self._read(Peer(shown, None), reader, writer)
            else:
                secured = await self._prove(self._identity, writer, host)
                await self._read(Peer(shown, secured.address), secured.reader, secured.writer)
        except StrangerError as error:
            self._drops.note("stranger", f"{shown} is cut off: {error}")
        except TidingsError as error:
            self._drops.note("bad frame", f"{shown} is cut off: {error}")
        except TimeoutError:
            self._drops.note("slow frame", f"{shown} is cut off: a frame has to come within {FRAME_S:g} s")
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            return  # the peer is gone, or the node: asyncio would log what it cancels itself
        finally:
            cut_off(writer)

    async def _prove(self, identity: NodeIdentity, writer: asyncio.StreamWriter, host: str) -> Secured:
        if len(self._unproven) >= MAX_UNPROVEN:
            self._cut_off_unproven()
        self._unproven[writer] = host
        try:
            return await identity.accept(writer, FRAME_S)
        except ConnectionError:
            if self._closed or writer not in self._unproven:
                raise
            raise StrangerError("it left without having proved the secret; it may have another one") from None
        finally:
            self._unproven.pop(writer, None)

    async def _read(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._make_room()
        self._connections[writer] = None
        try:
            async with asyncio.timeout(FRAME_S):
                first = await reader.readexactly(1)
            while not self._closed:
                self._on_frame(peer, await self._read_frame(reader, first))
                if writer in self._connections:  # else it was closed for others
                    self._connections[writer] = self._connections.pop(writer)
                first = await reader.readexactly(1)
        finally:
            self._connections.pop(writer, None)
            cut_off(writer)

    async def _read_frame(self, reader: asyncio.StreamReader, first: bytes) -> bytes:
        async with asyncio.timeout(FRAME_S):
            (length,) = LENGTH.unpack(first + await reader.readexactly(LENGTH.size - 1))
            if length > MAX_FRAME:
                raise MessageError(f"message: a frame of {length:,} bytes, and {MAX_FRAME:,} are the most")
            if length <= SMALL_FRAME:
                return await reader.readexactly(length)
            async with self._reading.of(length):
                return await reader.readexactly(length)

    def _make_room(self) -> None:
        while len(self._connections) >= MAX_CONNECTIONS:
            silent = next(iter(self._connections))
            del self._connections[silent]
            cut_off(silent)
            self._drops.note("too many connections", f"{MAX_CONNECTIONS} are the most; the most silent one is cut off")

    def _cut_off_unproven(self) -> None:
        """Cut off the oldest of the host that has the most: a stranger makes way for itself, and not a node for it."""
        ((busiest, _),) = Counter(self._unproven.values()).most_common(1)
        oldest = next(writer for writer, host in self._unproven.items() if host == busiest)
        del self._unproven[oldest]
        cut_off(oldest)
        self._drops.note("too many strangers", f"{MAX_UNPROVEN} are the most; one of {busiest} is cut off")


class _Budget:
    """Bytes that may be read at a time; who wants more waits."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def of(self, wanted: int) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: self._left >= wanted)
            self._left -= wanted
        try:
            yield
        finally:
            self._left += wanted
            async with self._changed:
                self._changed.notify_all()
