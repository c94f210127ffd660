"""Peers that break the rules: what they send is refused, counted and logged, and the node goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.systems.protocols.test_process import Hosted
from tests.waiting import LAST_RESORT_SECONDS, until_async

from tidings.systems.bluedove.messages import Handover
from tidings.systems.protocols import link as link_module
from tidings.systems.protocols import listener as listener_module
from tidings.systems.protocols import process as process_module
from tidings.systems.protocols.effects import MAX_BODY, MAX_NAME, MAX_TEXT, Send
from tidings.systems.protocols.link import MAX_FRAME, Drops, split_address
from tidings.systems.protocols.ring_ids import ADDRESS_BITS as BITS
from tidings.systems.protocols.ring_ids import hashed

PEER = "127.0.0.1:1"  # where nobody is
ID = hashed(PEER, BITS)
AT = f'"from":{ID},"book":{{"{ID}":"{PEER}"}}'

BAD_FRAMES = [
    "no!", "", "{}", "[]", "5", "null", '"x"', "\x00\x01", "[" * 100_000, "{" + AT + ',"message":5}',
    '{"from":1,"book":{},"message":{"Notify":[]}}',
    '{"from":"1","book":{},"message":{"Notify":[]}}',
    '{"from":1.5,"book":{},"message":{"Notify":[]}}',
    '{"from":1,"book":{"1":"127.0.0.1:1"},"message":{"Notify":[]}}',
    '{"from":1,"book":[],"message":{"Notify":[]}}',
    '{"from":1,"message":{"Notify":[]}}',
    "{" + AT + ',"message":{"Notify":[]},"more":1}',
    "{" + AT.replace('"127', '"x":5,"127') + ',"message":{}}',
    json.dumps({"from": ID, "book": {str(ID): PEER, "7": "x" * 1_000_000}, "message": {"Notify": []}}),
    json.dumps({"from": ID, "book": {str(ID): PEER, str(hashed("h:-1", BITS)): "h:-1"}, "message": {"Notify": []}}),
    json.dumps({"from": ID, "book": {str(ID): PEER, "2": PEER, "3": PEER}, "message": {"Notify": []}}),
    json.dumps({"from": ID, "book": {str(ID): ["127.0.0.1", 1]}, "message": {"Notify": []}}),
    "{" + AT + ',"message":{"InDomain":["NETWORK",{"Notify":[NaN]}]}}',
]  # fmt: skip
BAD_MESSAGES = [
    {"Nonsense": [1]}, {"Notify": []}, {"InDomain": ["NETWORK", 5]}, {"InDomain": ["NETWORK", {"Notify": [1]}]},
    {"InDomain": ["NETWORK", {"FindSuccessor": ["x", [], None, "y"]}]}, {}, {"InDomain": ["x" * 300, {"Notify": []}]},
    {"InDomain": ["NETWORK", {"FindSuccessor": [1 << BITS, 1, "join", 0]}]},
    {"InDomain": ["NETWORK", {"FindSuccessor": [-1, 1, "join", 0]}]},
    {"InDomain": ["NETWORK", {"FindSuccessor": [1, 1, "join", -5]}]},
    {"InDomain": ["NETWORK", {"FindSuccessor": [1, 1, "j" * 1_000_000, 0]}]},
    {"InDomain": ["NETWORK", {"Leaving": [1, None, []]}]},
    {"InDomain": ["NETWORK", {"Copies": [[{"Entry": [1, 0, "price >", 0, 0]}], [1], False]}]},
    {"InDomain": ["NETWORK", {"Copies": [[], [1 << 39], False]}]},
    {"InDomain": ["NETWORK", {"Copies": [[], [1], False]}]},
]  # fmt: skip


def frame(text: str | bytes) -> bytes:
    body = text.encode() if isinstance(text, str) else text
    return struct.pack(">I", len(body)) + body


async def send(node: Hosted, *parts: bytes) -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection(*split_address(node.address))
    for part in parts:
        writer.write(part)
    await writer.drain()
    node.kept.append(writer)
    return reader


async def cut_off(reader: asyncio.StreamReader) -> None:
    """Wait until the node has ended the connection."""
    async with asyncio.timeout(LAST_RESORT_SECONDS):
        try:
            assert await reader.read() == b""
        except ConnectionError:
            return


class Peered(Hosted):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[asyncio.StreamWriter] = []

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.process.drops.counts)

    async def delivers(self) -> None:
        """It still does what it is there for."""
        self.wish(subscribe="s", filter="price > 1.0")
        self.wish(publish={"price": 2.0}, id="e")
        await until_async(lambda: any("delivered" in line for line in self.told))

    async def close(self) -> None:
        for writer in self.kept:
            writer.close()
        await super().close()


def with_node(play: Callable[[Peered], Awaitable[None]], system: str = "opchord") -> None:
    async def run() -> None:
        node = Peered()
        await node.open(system, None)
        try:
            await play(node)
            await node.delivers()
        finally:
            await node.close()

    asyncio.run(run())


@pytest.mark.parametrize("text", BAD_FRAMES, ids=range(len(BAD_FRAMES)))
def test_a_frame_that_is_none_ends_its_connection_and_no_other(text: str) -> None:
    async def play(node: Peered) -> None:
        network = node.process.node.networks["market"]
        other = await send(node)
        await cut_off(await send(node, frame(text.replace("NETWORK", network))))
        assert node.dropped == {"bad frame": 1}
        assert not other.at_eof()
        assert len(node.process._book) == 1

    with_node(play)


def test_a_frame_that_is_too_large_ends_its_connection_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def play(node: Peered) -> None:
        await cut_off(await send(node, struct.pack(">I", MAX_FRAME + 1)))
        await cut_off(await send(node, b"GET / HTTP/1.1\r\n\r\n"))
        assert node.dropped == {"bad frame": 2}

    with caplog.at_level(logging.WARNING):
        with_node(play)
    (line,) = caplog.messages
    assert "bad frame: 127.0.0.1:" in line
    assert "8,388,609 bytes, and 8,388,608 are the most" in line


@pytest.mark.parametrize("message", BAD_MESSAGES, ids=range(len(BAD_MESSAGES)))
def test_a_message_that_makes_no_sense_is_dropped_and_the_connection_goes_on(message: Any) -> None:
    async def play(node: Peered) -> None:
        text = json.dumps({"from": ID, "book": {str(ID): PEER}, "message": message})
        good = {"InDomain": ["NETWORK", {"AskState": ["stabilize"]}]}
        then = json.dumps({"from": ID, "book": {str(ID): PEER}, "message": good})
        network = node.process.node.networks["market"]
        await send(node, frame(text.replace("NETWORK", network)), frame(then.replace("NETWORK", network)))
        await until_async(lambda: ID in node.process._book)  # the second one was heard
        assert node.dropped == {"bad message": 1}

    with_node(play)


@pytest.mark.parametrize("table", [[5], [{"GossipMember": [1, 1, 1, False, ""]}], {}, "x"])
@pytest.mark.parametrize("member", [["1", 0, 0, False, ""], [1, "0", 0, False, ""], [1, 0, 0.5, False, ""],
                                    [1, 0, 0, "no", ""], [1, 0, 0, False, 7], [1, 0, 0, False, "x" * 1_000],
                                    [1 << BITS, 0, 0, False, ""], [-1, 0, 0, False, ""], [1, 1 << 62, 0, False, ""],
                                    [1, -1, 0, False, ""], [1, 0, 0, False], [None] * 5])  # fmt: skip
def test_an_ill_typed_member_is_neither_taken_nor_spread(member: list[Any], table: Any) -> None:
    async def play() -> None:
        first, second = Peered(), Hosted()
        await first.open("bluedove", None)
        network = first.process.node.networks["market"]
        for newer, state in (([{"GossipMember": member}], None), ([], table)):
            message = {"InDomain": [network, {"Ack": [newer, [], state, False]}]}
            await send(first, frame(json.dumps({"from": ID, "book": {str(ID): PEER}, "message": message})))
        await until_async(lambda: first.dropped == {"bad message": 2})
        await second.open("bluedove", first.address)
        await until_async(lambda: {"ready": second.address} in second.told)
        for node in (first, second):
            members = next(iter(node.process.node._nodes.values())).members  # type: ignore[attr-defined]
            assert members.keys() <= {first.process.node.id, second.process.node.id}
        for node in (first, second):
            await node.close()

    asyncio.run(play())


def test_half_a_frame_and_one_byte_at_a_time_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "FRAME_S", 0.3)

    async def play(node: Peered) -> None:
        await cut_off(await send(node))  # says nothing
        await cut_off(await send(node, frame("x" * 1_000)[:500]))
        reader, writer = await asyncio.open_connection(*split_address(node.address))
        node.kept.append(writer)

        async def drip() -> None:
            for byte in frame("x" * 100_000):
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        await cut_off(reader)
        dripping.cancel()
        assert node.dropped == {"slow frame": 3}

    with_node(play)


def test_of_too_many_connections_the_most_silent_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_CONNECTIONS", 10)

    async def play(node: Peered) -> None:
        readers = []
        for number in range(50):
            readers.append(await send(node))
            await until_async(lambda n=number: len(node.process._listener) == min(n + 1, 10))  # type: ignore[misc]
        for reader in readers[:40]:
            await cut_off(reader)
        assert not any(reader.at_eof() for reader in readers[40:])
        assert node.dropped == {"too many connections": 40}

    with_node(play)


def test_large_frames_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_READING_BYTES", 1 << 20)
    monkeypatch.setattr(listener_module, "FRAME_S", 1.0)

    async def play(node: Peered) -> None:
        holds = await send(node, frame("x" * (1 << 20))[:100_000])
        waits = await send(node, frame("x" * (1 << 20)))
        await cut_off(holds)
        await cut_off(waits)
        assert sum(node.dropped.values()) == 2

    with_node(play)


def test_what_is_too_large_to_be_sent_is_counted_and_the_link_goes_on() -> None:
    async def play() -> None:
        nodes = [Peered(), Peered()]
        await nodes[0].open("bluedove", None)
        await nodes[1].open("bluedove", nodes[0].address)
        await until_async(lambda: {"ready": nodes[1].address} in nodes[1].told)
        copies: Any = ("x" * MAX_FRAME,)
        large = nodes[0].process.node._of("market", [Send(nodes[1].process.node.id, Handover(0, 0, copies, None))])
        for _ in range(3):
            nodes[0].process._do(large)
        assert nodes[0].dropped == {"too large to send": 3}
        nodes[1].wish(subscribe="s", filter="price > 1.0")
        await until_async(lambda: {"active": "s"} in nodes[1].told)
        nodes[0].wish(publish={"price": 2.0}, id="e")
        await until_async(lambda: any("delivered" in line for line in nodes[1].told))
        for node in nodes:
            await node.close()

    asyncio.run(play())


@pytest.mark.parametrize(("wish", "complaint"), [
    ({"publish": {"symbol": "x" * MAX_BODY}}, "1,048,576 are the most"),
    ({"publish": {"symbol": "é" * (MAX_BODY // 6)}}, "1,048,576 are the most"),
    ({"publish": {"price": 2.0}, "id": "x" * (MAX_NAME + 1)}, "the event's id has 257 characters"),
    ({"subscribe": "x" * (MAX_NAME + 1), "filter": "price > 1.0"}, "the subscription's id has 257 characters"),
    ({"subscribe": "s", "filter": "price > 1.0" + " " * MAX_TEXT}, "the filter has 65,547 characters"),
])  # fmt: skip
def test_what_no_frame_could_carry_is_refused_where_it_is_wished(wish: dict[str, Any], complaint: str) -> None:
    async def play(node: Peered) -> None:
        node.wish(**wish)
        (told,) = [line for line in node.told if "error" in line]
        assert complaint in told["error"]

    for system in ("opchord", "bluedove"):
        with_node(play, system)


def test_an_event_of_the_most_bytes_arrives() -> None:
    """Every quote and backslash of it is written twice in a frame."""

    async def play() -> None:
        nodes = [Peered(), Peered()]
        await nodes[0].open("bluedove", None)
        await nodes[1].open("bluedove", nodes[0].address)
        await until_async(lambda: {"ready": nodes[1].address} in nodes[1].told)
        nodes[1].wish(subscribe="s", filter="price > 1.0")
        await until_async(lambda: {"active": "s"} in nodes[1].told)
        event = {"price": 2.0, "note": ""}
        event["note"] = "\\" * ((MAX_BODY - len(json.dumps(event))) // 2)
        nodes[0].wish(publish=event, id="large")
        await until_async(lambda: any("delivered" in line for line in nodes[1].told))
        assert not any(line for line in nodes[0].told if "error" in line)
        for node in nodes:
            assert not node.dropped
            await node.close()

    asyncio.run(play())


def test_a_peer_that_does_not_read_is_given_up_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SEND_S", 0.3)

    async def play() -> None:
        held = asyncio.Event()

        async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await held.wait()
            writer.close()

        deaf = await asyncio.start_server(never_reads, "127.0.0.1", 0)
        node = Peered()
        await node.open("bluedove", None)
        id = node.process.know(f"127.0.0.1:{deaf.sockets[0].getsockname()[1]}")
        copies: Any = ("x" * (1 << 20),)
        large = node.process.node._of("market", [Send(id, Handover(0, 0, copies, None))])
        for _ in range(40):
            node.process._do(large)
        assert node.dropped["peer reads too slowly"] > 0
        await until_async(lambda: "peer does not read" in node.dropped)
        assert not node.process._links[id].is_busy
        await node.delivers()
        held.set()
        deaf.close()
        await node.close()

    asyncio.run(play())


def test_a_timer_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(node: Peered) -> None:
        failing = node.process.node.on_timer
        failed = []

        def on_timer(tag: Any, now_ms: int) -> Any:
            if len(failed) < 20:
                failed.append(tag)
                raise TypeError("'<' not supported between instances of 'str' and 'int'")
            return failing(tag, now_ms)

        monkeypatch.setattr(node.process.node, "on_timer", on_timer)
        await until_async(lambda: len(failed) == 20)
        assert node.dropped["failed"] == 20

    with_node(play)


def test_a_reason_is_logged_once_in_a_while_with_how_often(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    drops = Drops(lambda: now)
    with caplog.at_level(logging.WARNING):
        for number in range(1_000):
            drops.note("bad message", f"{number}\n\x1b[31m" + "x" * 1_000)
        drops.note("slow frame", "other")
        now = 10.0
        drops.note("bad message", "last")
    assert [line[:40] for line in caplog.messages] == [
        "bad message: 0\\n\\x1b[31m" + "x" * 16,
        "slow frame: other",
        "bad message: last (1,000 times)",
    ]
    assert drops.counts == {"bad message": 1_001, "slow frame": 1}
    assert all(len(line) < 300 for line in caplog.messages)


def test_addresses_are_bounded_and_those_named_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "MAX_BOOK", 10)

    async def play(node: Peered) -> None:
        first = node.process.know("127.0.0.1:1000")
        for port in range(1_001, 1_100):
            node.process.know(f"127.0.0.1:{port}")
            node.process.know("127.0.0.1:1000")
        assert len(node.process._book) == 10
        assert {first, node.process.node.id} <= node.process._book.keys()

    with_node(play)


def test_a_node_says_what_it_dropped_when_it_is_asked() -> None:
    async def play(node: Peered) -> None:
        await cut_off(await send(node, frame("no!")))
        node.wish(status=True)
        assert node.told[-1] == {"status": node.address, "peers": 0, "dropped": {"bad frame": 1}}

    with_node(play)
