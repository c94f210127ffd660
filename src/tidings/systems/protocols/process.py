"""A node as a process: the same classes as in the simulator, driven over TCP by asyncio.

A frame is its length in four bytes and then JSON: {"from": id, "book": {id: address}, "message": {…}}. A node's id is a
hash of its address, which nobody can turn back: so a message that names nodes says in its `book` where
they are, the sender always among them. Nodes that share a secret prove to each other who they are, and encrypt what
they send (`network_secret`); those that have none trust all who can connect to them. But nothing that is received is
believed to be what it should be:

    a frame        is bounded, and has to come within FRAME_S; another one ends its connection
    a message      is held to the types of its fields, and to what makes sense to the node; another one is dropped
    connections    are bounded (`listener`): where there are too many, the one that was silent for longest makes way
    what is sent   is bounded, frame by frame and peer by peer; what is too much comes back as undelivered

What is dropped is counted by reason and logged (`link.Drops`).

    client → node   {"subscribe": "id", "filter": "…"}   {"unsubscribe": "id"}   {"publish": {…}, "id": "…"}
                    a document of XML is published as its text: {"publish": "<rss>…"}
                    with "domain": "…" where the node has several
                    {"status": true}
    node → client   {"ready": "host:port"}   {"saturated": "host:port"}   {"active": "id"}   {"error": "…"}
                    {"delivered": "id", "event": {…}, "id": "…"}
                    {"status": "host:port", "peers": 3, "dropped": {"reason": 1}}
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from tidings.errors import EventError, SubscriptionError, TidingsError
from tidings.systems.protocols.effects import (
    MAX_BODY,
    MAX_NAME,
    MAX_TEXT,
    Active,
    Deliver,
    Effects,
    Event,
    Grow,
    Id,
    Message,
    Ready,
    Send,
    SetTimer,
)
from tidings.systems.protocols.link import (
    LENGTH,
    MAX_FRAME,
    MAX_QUEUE,
    OUT_OF_REACH,
    STRANGER,
    Drops,
    Link,
    split_address,
)
from tidings.systems.protocols.listener import Listener, Peer
from tidings.systems.protocols.many_domains import DomainsNode
from tidings.systems.protocols.message_codec import Codec, MessageError, plain, read_json
from tidings.systems.protocols.network_secret import NodeIdentity
from tidings.systems.protocols.ring_ids import ADDRESS_BITS, hashed

POLLED = 100  # events that one request asks for, where it does not say
MAX_BOOK = 65_536  # addresses that are remembered
MAX_EARLY = 16 << 20  # characters of requests that wait
TIMER_AGAIN_MS = 1_000  # after which a timer that failed is tried again
LEAVE_S = 5.0  # for peers to take what a node that leaves hands over
QUIET_S = 0.02  # between two looks at whether they have

Tell = Callable[[dict[str, Any]], None]


class NodeProcess:
    """Carries a node's effects out, and brings it messages, timers and the requests of a client."""

    def __init__(
        self,
        node: DomainsNode,
        address: str,
        codec: Codec,
        tell: Tell,
        *,
        pace: float = 1.0,
        host_of: Callable[[Id], Id] = lambda id: id,
        identity: NodeIdentity | None = None,
    ) -> None:
        self.node = node
        self.address = address
        self.drops = Drops(time.monotonic)
        self._codec = codec
        self._tell = tell
        self._host_of = host_of  # of an id in a message
        self._pace = pace  # of the node's clock: 0.5 lets it run twice as fast
        self._book: dict[Id, str] = {node.id: address}  # in the order in which they were last named
        self._links: dict[Id, Link] = {}
        self._began = time.time() - time.monotonic()
        self._events = 0
        self._early: list[str] | None = []  # requests that came before the node was ready; None: it is
        self._identity = identity
        self._listener = Listener(self._on_frame, self.drops, identity)
        self.stopped = asyncio.Event()

    def now_ms(self) -> int:
        """Of the wall, so that a node that comes back is newer than it was, but never backwards."""
        return int((self._began + time.monotonic()) * 1_000 / self._pace)

    def know(self, address: str) -> Id:
        """Remember where a node is; the one that was named longest ago makes way. Returns its id."""
        id = hashed(address, ADDRESS_BITS)
        if id != self.node.id:
            self._book.pop(id, None)
            if len(self._book) >= MAX_BOOK:
                del self._book[next(known for known in self._book if known != self.node.id)]
            self._book[id] = address
        return id

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
                case Grow():
                    self._tell({"saturated": self.address})
                case Ready():
                    self._tell({"ready": self.address})
                    early, self._early = self._early or [], None
                    for line in early:
                        loop.call_soon(self.on_line, line)

    def _try(self, what: str, act: Callable[[], Effects]) -> bool:
        """Let the node act; where it fails, that is counted and logged, and the process goes on. Whether it did not."""
        try:
            self._do(act())
        except Exception as error:
            self.drops.note("failed", f"{what}: {type(error).__name__}: {error}")
            return False
        return True

    def _on_timer(self, tag: Any) -> None:
        if self.stopped.is_set() or self._try(f"timer {tag}", lambda: self.node.on_timer(tag, self.now_ms())):
            return
        # What a node does again and again it would never do again: its timer is set where the last one ends.
        asyncio.get_running_loop().call_later(TIMER_AGAIN_MS * self._pace / 1_000, self._on_timer, tag)

    def _send(self, to: Id, message: Message) -> None:
        if to == self.node.id:  # a node may address itself: the network would bring it back
            loop = asyncio.get_running_loop()
            act = partial(self.node.on_message, to, message)
            loop.call_soon(lambda: self._try(_kind(message), lambda: act(self.now_ms())))
            return
        address = self._book.get(to)
        if address is None:
            self._undelivered(to, message)
            return
        frame = self._frame(message)
        if len(frame) > LENGTH.size + MAX_FRAME:
            self.drops.note("too large to send", f"{_kind(message)} for {address} has {len(frame):,} bytes")
            return
        if to not in self._links:
            self._links[to] = Link(address, partial(self._on_lost, to, address), self._identity)
        self._links[to].send(message, frame)

    def _on_lost(self, to: Id, address: str, messages: list[Message], why: str, detail: str) -> None:
        if why in (OUT_OF_REACH, STRANGER):
            self._links.pop(to, None)
        if why != OUT_OF_REACH:  # which nodes find out all the time, and repair
            more = f" ({detail})" if detail else ""
            self.drops.note(why, f"{address}{more}: {len(messages):,} messages for it are dropped")
        for message in messages:
            self._undelivered(to, message)

    def _undelivered(self, to: Id, message: Message) -> None:
        """Soon, not at once: the node is in the middle of something."""

        def tell() -> None:
            if not self.stopped.is_set():
                what = f"undelivered {_kind(message)}"
                self._try(what, lambda: self.node.on_undelivered(to, message, self.now_ms()))

        asyncio.get_running_loop().call_soon(tell)

    def _frame(self, message: Message) -> bytes:
        written = plain(message)
        ids = map(self._host_of, _numbers(written))
        named = {str(id): self._book[id] for id in ids if id in self._book}
        named[str(self.node.id)] = self.address
        body = json.dumps({"from": self.node.id, "book": named, "message": written}, separators=(",", ":")).encode()
        return LENGTH.pack(len(body)) + body

    # What comes in

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Coroutine[Any, Any, None]:
        """Reads the frames of a peer that has connected; what `asyncio.start_server` calls."""
        return self._listener.serve(reader, writer)

    def _on_frame(self, peer: Peer, body: bytes) -> None:
        frame = read_json(body)
        match frame:
            case {"from": int(sender), "book": dict(book), "message": dict(written)} if len(frame) == 3:
                known = _read_book(book)
            case _:
                raise MessageError('message: a frame is {"from": id, "book": {id: address}, "message": {…}}')
        if sender not in known:
            raise MessageError("message: the book of a frame says where its sender is")
        if peer.address is not None and known[sender] != peer.address:
            raise MessageError(f"message: a frame from {known[sender]} comes from {peer.address}")
        try:
            message = self._codec.from_plain(written)
            self.node.check(message, self.now_ms())
        except (TidingsError, ValueError) as error:
            self.drops.note("bad message", f"from {peer.shown} ({known[sender]}): {error}")
            return
        for address in known.values():
            self.know(address)
        act = partial(self.node.on_message, sender, message)
        self._try(f"{_kind(message)} from {known[sender]}", lambda: act(self.now_ms()))

    def on_line(self, line: str) -> None:
        """A request of the client; one that comes before the node is ready waits until then."""
        try:
            if self._early is not None:
                if len(self._early) == MAX_QUEUE or sum(map(len, self._early)) + len(line) > MAX_EARLY:
                    raise TidingsError(f"{len(self._early):,} requests wait until this node has joined; wait for it")
                self._early.append(line)
                return
            request = json.loads(line)
            domain = request.get("domain") if isinstance(request, dict) else None
            if not isinstance(domain, str | None):
                raise TidingsError(f'"domain" is a name, not {json.dumps(domain)}')
            match request:
                case {"subscribe": str(name), "filter": str(text)}:
                    _check_length("subscription's id", name, MAX_NAME)
                    _check_length("filter", text, MAX_TEXT)
                    self._do(self.node.subscribe(name, text, self.now_ms(), domain))
                case {"unsubscribe": str(name)}:
                    self._do(self.node.unsubscribe(name, self.now_ms()))
                case {"poll": str(name)}:
                    limit = request.get("limit", POLLED)
                    if not isinstance(limit, int) or limit < 1:
                        raise TidingsError(f'"limit" is a number of events, 1 or more, not {json.dumps(limit)}')
                    self._do(self.node.poll(name, limit))
                case {"publish": dict() | str() as record}:
                    self._do(self.node.publish(self._event(record, request.get("id")), self.now_ms(), domain))
                case {"status": _}:
                    self._tell({"status": self.address, "peers": len(self._links), "dropped": dict(self.drops.counts)})
                case _:
                    raise TidingsError(
                        'write {"subscribe": id, "filter": text}, {"unsubscribe": id}, {"publish": {…}}, {"poll": id} '
                        'or {"status": true}'
                    )
        except (TidingsError, ValueError, RecursionError) as error:
            self._tell({"error": " ".join(str(error).split("\n"))})

    def _event(self, record: Any, given: Any) -> Event:
        """The event that a client publishes; raises EventError where no frame could carry it."""
        self._events += 1
        id = str(given) if given is not None else f"{self.node.id:x}-{self.now_ms():x}-{self._events}"
        _check_length("event's id", id, MAX_NAME)
        body = json.dumps(record)
        if len(body) > MAX_BODY:
            raise EventError(
                f"the event has {len(body):,} bytes as JSON, and {MAX_BODY:,} are the most; make it smaller"
            )
        return Event(id, body)

    async def stop(self, *, grace_s: float = LEAVE_S) -> None:
        """Leave: hand over what there is to hand over, and wait until peers have taken it, but no longer than that."""
        self._try("leaving", lambda: self.node.leave(self.now_ms()))
        try:
            async with asyncio.timeout(grace_s):
                await self._hand_over()
        except TimeoutError:
            self.drops.note("left early", f"peers have not taken in {grace_s:g} s what was handed over to them")
        self.stopped.set()
        for link in self._links.values():
            link.close()
        self._listener.close()

    async def _hand_over(self) -> None:
        looks = 0  # that found nothing to send, in a row: what comes back undelivered is sent elsewhere
        while looks < 2:
            await asyncio.sleep(QUIET_S)
            looks = 0 if any(link.is_busy for link in self._links.values()) else looks + 1
        await asyncio.gather(*(link.finish() for link in self._links.values()))


def _read_book(book: dict[str, Any]) -> dict[Id, str]:
    """Where nodes are, by their ids, which follow from where they are."""
    known: dict[Id, str] = {}
    for written, address in book.items():
        if not isinstance(address, str):
            raise MessageError(f"message: the book says that a node is at a {type(address).__name__}")
        split_address(address)
        id = hashed(address, ADDRESS_BITS)
        if written != str(id):
            raise MessageError(f"message: the book says that node {written[:40]} is at {address}, which is node {id}")
        known[id] = address
    return known


def _check_length(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise SubscriptionError(f"the {what} has {len(text):,} characters, and {most:,} are the most")


def _kind(message: Message) -> str:
    """The names of a message and of those in it."""
    inner = next((item for item in message if hasattr(item, "_fields")), None)
    return type(message).__name__ + ("" if inner is None else f" {_kind(inner)}")


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


class FileLog:
    """What a node has published and not seen done, in a file of lines that are only ever added.

    An event is on the disk before `append` returns. What is done is struck out by a further line; opening the file
    again leaves both out.
    """

    def __init__(self, path: Path) -> None:
        self._pending: dict[str, Event] = {}
        if path.exists():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                self._read(path, number, line)
        kept = path.with_name(path.name + ".new")
        with kept.open("w", encoding="utf-8") as file:
            file.writelines(_log_line({"publish": event.id, "body": event.body}) for event in self._pending.values())
            file.flush()
            os.fsync(file.fileno())
        kept.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def _read(self, path: Path, number: int, line: str) -> None:
        try:
            match json.loads(line):
                case {"publish": str(id), "body": str(body)}:
                    self._pending[id] = Event(id, body)
                case {"done": str(id)}:
                    self._pending.pop(id, None)
                case _:
                    raise ValueError("it says neither what was published nor what is done")
        except ValueError as error:
            if number < sum(1 for _ in path.open(encoding="utf-8")):  # the last line may have been cut by a crash
                raise TidingsError(f"{path}, line {number}: {error}; move the file away to start again") from None

    def append(self, event: Event) -> None:
        self._pending[event.id] = event
        self._write({"publish": event.id, "body": event.body})
        os.fsync(self._file.fileno())

    def settle(self, event: str) -> None:
        if self._pending.pop(event, None) is not None:
            self._write({"done": event})  # if a crash loses this, the event is sent again, and told once

    def pending(self) -> list[Event]:
        return list(self._pending.values())

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, str]) -> None:
        self._file.write(_log_line(line))
        self._file.flush()


def _log_line(value: dict[str, str]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
