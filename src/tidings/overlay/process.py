"""A node as a process: the same classes as in the simulator, driven over TCP by asyncio.

A frame is its length in four bytes and then JSON: {"from": id, "book": {id: address}, "message": {…}}. A node's id is a
hash of its address, which nobody can turn back: so whoever names nodes in a message tells in its `book` where
they are. Frames, queues and books are bounded; a peer that breaks the rules is cut off. There is no secrecy and no
proof of identity here: nodes trust the network that they listen on.

    client → node   {"subscribe": "id", "filter": "…"}   {"unsubscribe": "id"}   {"publish": {…}, "id": "…"}
                    a document of XML is published as its text: {"publish": "<rss>…"}
                    with "domain": "…" where the node has several
    node → client   {"ready": "host:port"}   {"active": "id"}   {"error": "…"}
                    {"delivered": "id", "event": {…}, "id": "…"}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tidings.errors import TidingsError
from tidings.overlay.codec import Codec, MessageError, plain
from tidings.overlay.core import Active, Deliver, Effects, Event, Id, Message, Ready, Send, SetTimer
from tidings.overlay.domains import DomainsNode

MAX_FRAME = 1 << 20
MAX_QUEUE = 4_096  # frames to one peer
POLLED = 100  # events that one wish asks for, where it does not say
MAX_BOOK = 65_536  # addresses that are remembered
CONNECT_S = 2.0
_LENGTH = struct.Struct(">I")

Tell = Callable[[dict[str, Any]], None]


class NodeProcess:
    """Carries a node's effects out, and brings it messages, timers and the wishes of a client."""

    def __init__(
        self,
        node: DomainsNode,
        address: str,
        codec: Codec,
        tell: Tell,
        *,
        pace: float = 1.0,
        host_of: Callable[[Id], Id] = lambda id: id,
    ) -> None:
        self.node = node
        self.address = address
        self._codec = codec
        self._tell = tell
        self._host_of = host_of  # of an id in a message
        self._pace = pace  # of the node's clock: 0.5 lets it run twice as fast
        self._book: dict[Id, str] = {node.id: address}
        self._links: dict[Id, _Link] = {}
        self._began = time.time() - time.monotonic()
        self._events = 0
        self._early: list[str] | None = []  # wishes that came before the node was ready; None: it is
        self._incoming: set[asyncio.StreamWriter] = set()
        self.stopped = asyncio.Event()

    def now_ms(self) -> int:
        """Of the wall, so that a node that comes back is newer than it was, but never backwards."""
        return int((self._began + time.monotonic()) * 1_000 / self._pace)

    def know(self, id: Id, address: str) -> None:
        if id not in self._book and len(self._book) < MAX_BOOK:
            self._book[id] = address

    # Effects

    def start(self, contact: Id | None) -> None:
        self._do(self.node.start(contact, self.now_ms()))

    def _do(self, effects: Effects) -> None:
        loop = asyncio.get_running_loop()
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._send(to, message)
                case SetTimer(after_ms, tag):
                    loop.call_later(after_ms * self._pace / 1_000, self._on_timer, tag)
                case Deliver(subscription, event):
                    self._tell({"delivered": subscription, "event": json.loads(event.body), "id": event.id})
                case Active(subscription):
                    self._tell({"active": subscription})
                case Ready():
                    self._tell({"ready": self.address})
                    early, self._early = self._early or [], None
                    for line in early:
                        loop.call_soon(self.on_line, line)

    def _on_timer(self, tag: Any) -> None:
        if not self.stopped.is_set():
            self._do(self.node.on_timer(tag, self.now_ms()))

    def _send(self, to: Id, message: Message) -> None:
        if to == self.node.id:  # a node may address itself: the network would bring it back
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: self._do(self.node.on_message(to, message, self.now_ms())))
            return
        address = self._book.get(to)
        if address is None:
            self._undelivered(to, message)
            return
        link = self._links.get(to)
        if link is None:
            link = self._links[to] = _Link(address, self._frame, lambda lost: self._undelivered(to, lost))
        link.send(message)

    def _undelivered(self, to: Id, message: Message) -> None:
        """Soon, not at once: the node is in the middle of something."""

        def tell() -> None:
            if not self.stopped.is_set():
                self._do(self.node.on_undelivered(to, message, self.now_ms()))

        asyncio.get_running_loop().call_soon(tell)

    def _frame(self, message: Message) -> bytes:
        written = plain(message)
        ids = map(self._host_of, _numbers(written))
        named = {str(id): self._book[id] for id in ids if id in self._book}
        named[str(self.node.id)] = self.address
        body = json.dumps({"from": self.node.id, "book": named, "message": written}, separators=(",", ":")).encode()
        if len(body) > MAX_FRAME:
            raise MessageError(f"message: {len(body):,} bytes, and {MAX_FRAME:,} are the most")
        return _LENGTH.pack(len(body)) + body

    # What comes in

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Frames of one peer, until it goes or breaks the rules."""
        self._incoming.add(writer)
        try:
            while not self.stopped.is_set():
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if length > MAX_FRAME:
                    return
                self._on_frame(await reader.readexactly(length))
        except (MessageError, asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._incoming.discard(writer)
            writer.close()

    def _on_frame(self, body: bytes) -> None:
        try:
            frame = json.loads(body)
            sender, book = int(frame["from"]), frame["book"]
            message = self._codec.from_plain(frame["message"])
            known = {int(id): str(address) for id, address in book.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise MessageError(f"message: a frame that is none: {error}") from None
        for id, address in known.items():
            self.know(id, address)
        try:
            self._do(self.node.on_message(sender, message, self.now_ms()))
        except (TidingsError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise MessageError(f"message: {type(message).__name__} makes no sense: {error}") from None

    def on_line(self, line: str) -> None:
        """A wish of the client; one that comes before the node is ready waits until then."""
        try:
            if self._early is not None:
                if len(self._early) == MAX_QUEUE:
                    raise TidingsError(f"{MAX_QUEUE:,} wishes wait until this node has joined; wait for it")
                self._early.append(line)
                return
            wish = json.loads(line)
            domain = wish.get("domain") if isinstance(wish, dict) else None
            if not isinstance(domain, str | None):
                raise TidingsError(f'"domain" is a name, not {json.dumps(domain)}')
            match wish:
                case {"subscribe": str(name), "filter": str(text)}:
                    self._do(self.node.subscribe(name, text, self.now_ms(), domain))
                case {"unsubscribe": str(name)}:
                    self._do(self.node.unsubscribe(name, self.now_ms()))
                case {"poll": str(name)}:
                    limit = wish.get("limit", POLLED)
                    if not isinstance(limit, int) or limit < 1:
                        raise TidingsError(f'"limit" is a number of events, 1 or more, not {json.dumps(limit)}')
                    self._do(self.node.poll(name, limit))
                case {"publish": dict() | str() as record}:
                    self._events += 1
                    id = str(wish.get("id", f"{self.node.id:x}-{self.now_ms():x}-{self._events}"))
                    self._do(self.node.publish(Event(id, json.dumps(record)), self.now_ms(), domain))
                case _:
                    raise TidingsError(
                        'write {"subscribe": id, "filter": text}, {"unsubscribe": id}, {"publish": {…}} or {"poll": id}'
                    )
        except (TidingsError, ValueError) as error:
            self._tell({"error": " ".join(str(error).split("\n"))})

    async def stop(self, *, grace_s: float = 1.0) -> None:
        """Leave: hand over what there is to hand over, and wait a moment for it to be sent."""
        self._do(self.node.leave(self.now_ms()))
        until = time.monotonic() + grace_s
        while time.monotonic() < until and any(link.is_busy for link in self._links.values()):
            await asyncio.sleep(0.02)
        self.stopped.set()
        for link in self._links.values():
            link.close()
        for writer in list(self._incoming):
            writer.close()


class _Link:
    """The way to one peer: one connection at a time, made when there is something to send."""

    def __init__(self, address: str, frame: Callable[[Message], bytes], undelivered: Callable[[Message], None]) -> None:
        self._host, self._port = split_address(address)
        self._frame = frame
        self._undelivered = undelivered
        self._queue: deque[Message] = deque()
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self._queue) or (self._task is not None and not self._task.done())

    def send(self, message: Message) -> None:
        if len(self._queue) >= MAX_QUEUE:
            self._undelivered(message)
            return
        self._queue.append(message)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._queue:
            try:
                if self._writer is None or self._writer.is_closing():
                    await self._connect()
                assert self._writer is not None
                self._writer.write(self._frame(self._queue[0]))
                await asyncio.wait_for(self._writer.drain(), CONNECT_S)
                self._queue.popleft()
            except (OSError, TimeoutError):
                self.close()
                lost, self._queue = self._queue, deque()
                for message in lost:
                    self._undelivered(message)

    async def _connect(self) -> None:
        opened = asyncio.open_connection(self._host, self._port)
        reader, writer = await asyncio.wait_for(opened, CONNECT_S)
        self._writer = writer
        self._watching = asyncio.get_running_loop().create_task(self._watch(reader, writer))

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Peers do not answer on this connection: whatever can be read of it is its end."""
        with contextlib.suppress(OSError):
            await reader.read(1)
        writer.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise TidingsError(f"{address!r} is no address; write host:port")
    return host, int(port)


def _numbers(written: Any) -> Iterable[int]:
    """Every integer of a message: some are ids of nodes."""
    if isinstance(written, int):
        yield written
    elif isinstance(written, list):
        for item in written:
            yield from _numbers(item)
    elif isinstance(written, dict):
        for item in written.values():
            yield from _numbers(item)
