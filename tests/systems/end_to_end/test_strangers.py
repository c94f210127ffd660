"""Peers that have not the secret of a network: nothing that they send is read, and what they cost is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.systems.end_to_end.test_hostile_peers import AT, ID, PEER, Peered, cut_off, frame, send
from tests.systems.protocols.test_process import until_all_deliver
from tests.waiting import LAST_RESORT_SECONDS, until_async

from tidings.systems.protocols import link as link_module
from tidings.systems.protocols import listener as listener_module
from tidings.systems.protocols.effects import Send
from tidings.systems.protocols.link import split_address
from tidings.systems.protocols.network_secret import NodeIdentity
from tidings.systems.protocols.ring import AskState

SECRET, OTHER = b"the secret of a network of nodes", b"another secret of another network"
SYSTEM = "opchord"
CHUNK = 1 << 16


class Relay:
    """A place on the way to a node: passes on what comes, unless `turn` makes something else of a connection."""

    def __init__(self) -> None:
        self.target = ""
        self.sent: list[bytearray] = []  # by those who connected, a connection each
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self.turn, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def turn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection(*split_address(self.target))
        self.sent.append(bytearray())
        await asyncio.gather(pass_on(reader, back, self.sent[-1]), pass_on(onward, writer, bytearray()))

    async def close(self) -> None:
        self._server.close()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray) -> None:
    with contextlib.suppress(OSError, asyncio.CancelledError):
        while data := await reader.read(CHUNK):
            seen += data
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


class Echo(Relay):
    """Says what it is told."""

    async def turn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await pass_on(reader, writer, bytearray())


class Silent(Relay):
    """Takes connections, and says nothing."""

    async def turn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await reader.read()
        writer.transport.abort()


def lenient(server_side: bool, certified_by: bytes | None = None) -> ssl.SSLContext:
    """TLS of a stranger, who trusts everybody; with a certificate of another secret, or with none."""
    if certified_by is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        identity = NodeIdentity(certified_by, PEER)
        context = identity._accepting if server_side else identity._connecting
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class InTheMiddle(Relay):
    """Speaks TLS with both sides, under certificates of its own, and passes on what it reads."""

    async def turn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sent.append(bytearray())
        try:
            await writer.start_tls(lenient(True, OTHER))
            onward, back = await asyncio.open_connection(*split_address(self.target))
            await back.start_tls(lenient(False, OTHER))
            await asyncio.gather(pass_on(reader, back, self.sent[-1]), pass_on(onward, writer, bytearray()))
        except (OSError, AttributeError):  # the latter by asyncio, if the connection ends in the middle of a handshake
            return


def with_member(play: Callable[[Peered], Awaitable[None]]) -> None:
    """Plays with a node that has the secret, which works as before when it is over, and has let nothing fail."""
    failed: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        node = Peered()
        await node.open(SYSTEM, None, secret=SECRET)
        try:
            await play(node)
            await node.delivers()
        finally:
            await node.close()
        gc.collect()  # a task that has failed says so when it is forgotten

    asyncio.run(run())
    assert failed == []


def knock(node: Peered, address: str) -> None:
    """Have the node send something to an address."""
    node.process._do(node.process.node._of("market", [Send(node.process.know(address), AskState("stabilize"))]))


def forged(node: Peered, sender: str = AT) -> bytes:
    """A frame that a node without a secret takes."""
    network = node.process.node.networks["market"]
    return frame("{" + sender + ',"message":' + json.dumps({"InDomain": [network, {"AskState": ["stabilize"]}]}) + "}")


def heard(node: Peered) -> bool:
    """Whether the node has taken a frame from the peer that the forged ones are from."""
    return ID in node.process._book


@pytest.mark.parametrize("system", ["opchord", "digests", "bluedove"])
def test_nodes_that_share_a_secret_join_and_deliver(system: str) -> None:
    async def play() -> None:
        nodes = [Peered() for _ in range(3)]
        await nodes[0].open(system, None, secret=SECRET)
        for node in nodes[1:]:
            await node.open(system, nodes[0].address, secret=SECRET)
        await until_async(lambda: all({"ready": node.address} in node.told for node in nodes))
        nodes[1].wish(subscribe="dear", filter="price > 50.0")
        await until_async(lambda: {"active": "dear"} in nodes[1].told)
        await until_all_deliver(nodes)
        nodes[2].wish(publish={"price": 60.0}, id="e")
        await until_async(lambda: any(line.get("delivered") == "dear" for line in nodes[1].told))
        assert [node.dropped for node in nodes] == [{}, {}, {}]
        for node in nodes:
            await node.close()

    asyncio.run(play())


@pytest.mark.parametrize("secret", [None, SECRET], ids=["plain", "secret"])
def test_what_nodes_send_can_be_read_on_the_way_only_if_they_have_no_secret(secret: bytes | None) -> None:
    async def play() -> None:
        relay, first, second = Relay(), Peered(), Peered()
        await relay.open()
        await first.open(SYSTEM, None, secret=secret, advertise=relay.address)
        relay.target = first.listens
        await second.open(SYSTEM, first.address, secret=secret)
        await until_async(lambda: {"ready": second.address} in second.told)
        sent = b"".join(relay.sent)
        assert sent
        assert (b"FindSuccessor" in sent) == (secret is None)
        for node in (first, second):
            await node.close()
        await relay.close()

    asyncio.run(play())


def test_a_frame_from_a_peer_without_a_secret_is_not_read() -> None:
    async def play(node: Peered) -> None:
        await cut_off(await send(node, forged(node)))
        assert node.dropped == {"stranger": 1}
        assert not heard(node)

    with_member(play)


def test_the_forged_frame_would_be_taken_from_a_member_of_a_network_without_a_secret() -> None:
    async def play() -> None:
        node = Peered()
        await node.open(SYSTEM, None)
        await send(node, forged(node))
        await until_async(lambda: heard(node))
        await node.close()

    asyncio.run(play())


@pytest.mark.parametrize("certified_by", [None, OTHER], ids=["none", "other"])
def test_a_frame_that_follows_the_handshake_of_a_stranger_at_once_is_not_read(certified_by: bytes | None) -> None:
    """In TLS 1.3 a client has finished, and may send, before its certificate is judged."""

    async def play(node: Peered) -> None:
        reader, writer = await asyncio.open_connection(*split_address(node.address), ssl=lenient(False, certified_by))
        writer.write(forged(node))
        await cut_off(reader)
        writer.close()
        assert node.dropped == {"stranger": 1}
        assert not heard(node)

    with_member(play)


def test_a_node_with_another_secret_is_let_in_by_nobody() -> None:
    async def play(node: Peered) -> None:
        other = Peered()
        await other.open(SYSTEM, node.address, secret=OTHER)
        await until_async(lambda: node.dropped.get("stranger", 0) > 1 and other.dropped.get("stranger", 0) > 1)
        known, refused = len(other.process._book), node.dropped["stranger"]
        knock(node, other.address)
        await until_async(lambda: node.dropped["stranger"] > refused)
        assert not other.told
        assert len(other.process._book) == known == 2  # itself, and the one that it was to join
        await other.close()

    with_member(play)


@pytest.mark.parametrize("secrets", [(None, SECRET), (SECRET, None)], ids=["joins a secret one", "joins a plain one"])
def test_a_node_with_a_secret_and_one_without_do_not_meet(secrets: tuple[bytes | None, bytes | None]) -> None:
    async def play() -> None:
        first, second = Peered(), Peered()
        await first.open(SYSTEM, None, secret=secrets[1])
        await second.open(SYSTEM, first.address, secret=secrets[0])
        await until_async(lambda: sum(first.dropped.values()) > 2)
        assert not second.told
        assert set(first.dropped) == {"stranger" if secrets[1] else "bad frame"}
        assert len(first.process._book) == 1
        for node in (first, second):
            await node.close()

    asyncio.run(play())


def test_what_a_node_has_sent_proves_nothing_when_it_is_sent_again() -> None:
    async def play(member: Peered) -> None:
        relay, node = Relay(), Peered()
        await relay.open()
        await node.open(SYSTEM, None, secret=SECRET, advertise=relay.address)
        relay.target = node.listens
        knock(member, relay.address)
        await until_async(lambda: member.process.node.id in node.process._book)
        before = len(node.process._listener)
        again, writer = await asyncio.open_connection(*split_address(node.listens))
        writer.write(bytes(relay.sent[0]))
        await cut_off(again)
        writer.close()
        assert node.dropped == {"stranger": 1}
        assert len(node.process._listener) == before
        await node.close()
        await relay.close()

    with_member(play)


@pytest.mark.parametrize("kind", [Echo, InTheMiddle], ids=["its own words", "other certificates"])
def test_a_node_sends_nothing_to_who_only_says(kind: type[Relay]) -> None:
    async def play(node: Peered) -> None:
        member, relay = Peered(), kind()
        await relay.open()
        await member.open(SYSTEM, None, secret=SECRET, advertise=relay.address)
        relay.target = member.listens
        knock(node, relay.address)
        await until_async(lambda: "stranger" in node.dropped)
        assert not any(relay.sent)
        assert len(member.process._book) == 1
        await member.close()
        await relay.close()

    with_member(play)


@pytest.mark.parametrize("leads_back", [True, False], ids=["to itself", "to another member"])
def test_a_connection_that_is_led_to_another_node_is_refused(leads_back: bool) -> None:
    """Whoever can lead connections elsewhere cannot make a member take what was meant for another one."""

    async def play(node: Peered) -> None:
        relay, other = Relay(), Peered()
        await relay.open()
        await other.open(SYSTEM, None, secret=SECRET)
        relay.target = node.address if leads_back else other.address
        knock(node, relay.address)
        await until_async(lambda: "stranger" in node.dropped)
        assert len(other.process._book) == 1
        await other.close()
        await relay.close()

    with_member(play)


def test_a_member_cannot_send_frames_from_another_one() -> None:
    async def play(node: Peered) -> None:
        member = NodeIdentity(SECRET, "127.0.0.1:2")
        _, writer = await asyncio.open_connection(*split_address(node.address))
        secured = await member.connect(writer, node.address, LAST_RESORT_SECONDS)
        secured.writer.write(forged(node))
        await cut_off(secured.reader)
        assert node.dropped == {"bad frame": 1}
        assert not heard(node)

    with_member(play)


def test_a_connection_that_ends_in_the_middle_of_its_handshake_is_forgotten() -> None:
    async def play(node: Peered) -> None:
        for part in (b"", b"\x16", b"\x16\x03\x01\x00\x40"):
            _, writer = await asyncio.open_connection(*split_address(node.address))
            writer.write(part)
            writer.write_eof()
            await writer.drain()
            writer.close()
        await until_async(lambda: node.dropped == {"stranger": 3})
        assert len(node.process._listener) == 0

    with_member(play)


def test_a_stranger_that_does_not_go_on_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "FRAME_S", 0.3)

    async def play(node: Peered) -> None:
        await cut_off(await send(node))
        await cut_off(await send(node, b"\x16\x03\x01\x10\x00\x01\x00"))
        reader, writer = await asyncio.open_connection(*split_address(node.address))
        node.kept.append(writer)

        async def drip() -> None:
            for byte in b"\x16\x03\x01\x10\x00\x01\x00\x0f\xfc" + bytes(100_000):
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        await cut_off(reader)
        dripping.cancel()
        assert node.dropped == {"stranger": 3}

    with_member(play)


def test_a_hello_without_an_end_is_cut_off_before_it_takes_memory() -> None:
    async def play(node: Peered) -> None:
        reader, writer = await asyncio.open_connection(*split_address(node.address))
        record = b"\x16\x03\x01\x40\x00"  # 16 KiB of a handshake
        hello = record + b"\x01\xff\xff\xff" + bytes((1 << 14) - 4)  # a hello of 16 MiB
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 64 << 20:
                writer.write(hello if not sent else record + bytes(1 << 14))
                await writer.drain()
                sent += len(hello)
        await cut_off(reader)
        writer.close()
        assert sent < 16 << 20  # what the kernel takes for a connection that nobody reads any more
        assert node.dropped == {"stranger": 1}

    with_member(play)


def test_strangers_make_way_for_each_other_and_not_members_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_UNPROVEN", 10)

    async def play(node: Peered) -> None:
        host, port = split_address(node.address)
        member, known = NodeIdentity(SECRET, PEER), len(node.process._listener)
        _, proven = await asyncio.open_connection(host, port)
        first = await member.connect(proven, node.address, LAST_RESORT_SECONDS)
        _, late = await asyncio.open_connection(host, port, local_addr=("127.0.0.3", 0))
        strangers = []
        for number in range(50):
            _, writer = await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0))
            strangers.append(writer)
            most = known + 1 + min(number + 2, 10)
            await until_async(lambda most=most: len(node.process._listener) == most)  # type: ignore[misc]
        assert node.dropped == {"too many strangers": 41}
        second = await member.connect(late, node.address, LAST_RESORT_SECONDS)
        assert not first.writer.is_closing()
        second.writer.write(forged(node))
        await until_async(lambda: heard(node))
        for writer in (*strangers, first.writer, second.writer):
            writer.transport.abort()

    with_member(play)


def test_a_node_does_not_wait_for_ever_for_a_peer_to_prove_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SEND_S", 0.3)

    async def play(node: Peered) -> None:
        silent = Silent()
        await silent.open()
        knock(node, silent.address)
        await until_async(lambda: "stranger" in node.dropped)
        await silent.close()

    with_member(play)


def test_a_node_that_has_a_secret_can_stop_while_strangers_are_connected() -> None:
    async def play() -> None:
        node = Peered()
        await node.open(SYSTEM, None, secret=SECRET)
        reader = await send(node, b"\x16\x03")
        await until_async(lambda: len(node.process._listener) == 1)
        await node.process.stop()
        await cut_off(reader)
        assert node.dropped == {}
        await node.close()

    asyncio.run(play())
