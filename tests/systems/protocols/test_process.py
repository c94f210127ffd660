"""The driver of a node over TCP: several in one event loop, and peers that break the rules."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.waiting import LAST_RESORT_SECONDS, until_async

from tidings.errors import TidingsError
from tidings.model.domain import Attribute, Domain
from tidings.simulator.workload import DOMAIN
from tidings.systems.bluedove.messages import Handover
from tidings.systems.overlay import MemoryLog, overlay_named, overlays
from tidings.systems.protocols.effects import Effects, Event, Id, Message, Send
from tidings.systems.protocols.link import split_address
from tidings.systems.protocols.many_domains import codec_of, node_of
from tidings.systems.protocols.network_secret import NodeIdentity
from tidings.systems.protocols.process import FileLog, NodeProcess
from tidings.systems.protocols.ring import AskState
from tidings.systems.protocols.ring_ids import ADDRESS_BITS, hashed

PACE = 0.05
SYSTEMS = [name for name, one in overlays().items() if one.system.needs == "records" and not one.variant]


class Hosted:
    """A node, its server, and what it told its client."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.process: NodeProcess
        self.server: asyncio.Server

    async def open(
        self,
        system: str,
        join: str | None,
        *domains: Domain,
        queued: bool = False,
        secret: bytes | None = None,
        advertise: str | None = None,
    ) -> None:
        self.server = await asyncio.start_server(lambda r, w: self.process.serve(r, w), "127.0.0.1", 0)
        self.listens = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        self.address = advertise or self.listens
        id, given = hashed(self.address, ADDRESS_BITS), domains or (DOMAIN,)
        node = node_of(overlay_named(system), id, given, Random(self.address), lambda _: MemoryLog(), queued=queued)
        identity = None if secret is None else NodeIdentity(secret, self.address)
        codec = codec_of(overlay_named(system))
        self.process = NodeProcess(node, self.address, codec, self.told.append, pace=PACE, identity=identity)
        self.process.start(None if join is None else self.process.know(join))

    def wish(self, **what: Any) -> None:
        self.process.on_line(json.dumps(what))

    def delivered(self) -> set[str]:
        return {line["id"] for line in self.told if "delivered" in line}

    async def close(self) -> None:
        self.server.close()
        await self.process.stop(grace_s=0.2)


PROBE = {"symbol": "PROBE", "price": 1.0, "volume": 1, "rating": 1}
PROBES = count()


async def until_all_deliver(nodes: Sequence[Hosted], **domain: str) -> None:
    """Waits until the network has settled: an event that any of these nodes publishes reaches all of them."""
    names = [f"probe {node.address}" for node in nodes]
    for name, node in zip(names, nodes, strict=True):
        if {"active": name} not in node.told:
            node.wish(subscribe=name, filter="symbol = 'PROBE'", **domain)
    await until_async(lambda: all({"active": name} in node.told for name, node in zip(names, nodes, strict=True)))
    for attempt in count():
        wanted = {f"probe{next(PROBES)}" for _ in nodes}
        for id, node in zip(sorted(wanted), nodes, strict=True):
            node.wish(publish=PROBE, id=id, **domain)
        with contextlib.suppress(TimeoutError):  # what a network loses while nodes join does not come later
            async with asyncio.timeout(20 * PACE):
                await until_async(lambda: all(wanted <= node.delivered() for node in nodes))  # noqa: B023
            return
        assert attempt < LAST_RESORT_SECONDS / (20 * PACE)


def no_probe(told: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in told if not str(line.get("delivered", "")).startswith("probe")]


@pytest.mark.parametrize("system", SYSTEMS)
def test_nodes_over_tcp_join_and_deliver(system: str) -> None:
    async def play() -> list[dict[str, Any]]:
        nodes = [Hosted() for _ in range(4)]
        await nodes[0].open(system, None)
        for node in nodes[1:]:
            await node.open(system, nodes[0].address)
        await until_async(lambda: all({"ready": node.address} in node.told for node in nodes))
        await until_all_deliver(nodes)
        nodes[1].wish(subscribe="dear", filter="price > 50.0")
        nodes[2].wish(subscribe="alpha", filter="symbol = 'ALPHA' AND rating < 5")
        await until_async(lambda: {"active": "dear"} in nodes[1].told and {"active": "alpha"} in nodes[2].told)
        nodes[3].wish(publish={"symbol": "ALPHA", "price": 75.5, "volume": 1, "rating": 3}, id="both")
        nodes[0].wish(publish={"symbol": "BETA", "price": 20.0, "volume": 1, "rating": 3}, id="none")
        nodes[2].wish(publish={"symbol": "BETA", "price": 60.0, "volume": 1, "rating": None}, id="one")
        told = lambda: no_probe(line for node in nodes for line in node.told)  # noqa: E731
        await until_async(lambda: sum("delivered" in line for line in told()) >= 3)
        await until_all_deliver(nodes)  # so that what should not have come would have come by now
        for node in nodes:
            await node.close()
        return [line for line in told() if "delivered" in line or "error" in line]

    told = asyncio.run(play())
    assert sorted((line["delivered"], line["id"]) for line in told) == [
        ("alpha", "both"), ("dear", "both"), ("dear", "one"),
    ]  # fmt: skip


def test_a_node_that_queues_delivers_when_it_is_polled() -> None:
    async def play() -> tuple[list[dict[str, Any]], ...]:
        patient, prompt = Hosted(), Hosted()
        await patient.open("bluedove", None, queued=True)
        await prompt.open("bluedove", patient.address)
        await until_async(lambda: {"ready": prompt.address} in prompt.told)
        await until_all_deliver([prompt])
        patient.wish(subscribe="dear", filter="price > 50.0")
        prompt.wish(subscribe="dear too", filter="price > 50.0")
        await until_async(lambda: {"active": "dear"} in patient.told and {"active": "dear too"} in prompt.told)
        for number in range(3):
            prompt.wish(publish={"symbol": "ALPHA", "price": 60.5, "volume": 1, "rating": 3}, id=f"e{number}")
        await until_async(lambda: sum("delivered" in line for line in no_probe(prompt.told)) == 3)
        await until_all_deliver([prompt])  # so that what comes without being polled would have come by now
        waiting = [line for line in patient.told if "delivered" in line]
        patient.wish(poll="dear", limit=2)
        some = [line for line in patient.told if "delivered" in line]
        patient.wish(poll="dear")
        patient.wish(poll="dear")
        patient.wish(poll="dear", limit=0)
        patient.wish(poll="cheap")
        prompt.wish(poll="dear too")
        for node in (patient, prompt):
            await node.close()
        return waiting, some, patient.told, prompt.told

    waiting, some, patient, prompt = asyncio.run(play())
    assert waiting == []
    assert [line["id"] for line in some] == ["e0", "e1"]
    assert [line["id"] for line in patient if "delivered" in line] == ["e0", "e1", "e2"]
    errors = [line["error"] for line in (*patient, *prompt) if "error" in line]
    assert len(errors) == 3
    assert '"limit" is a number of events' in errors[0]
    assert "no subscription 'cheap'" in errors[1]
    assert "start it with --queued" in errors[2]


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - {"bluedove"}))
def test_a_system_that_cannot_queue_says_which_can(system: str) -> None:
    with pytest.raises(TidingsError, match="only bluedove keeps notifications"):
        node_of(overlay_named(system), 1, [DOMAIN], Random(1), lambda _: MemoryLog(), queued=True)


def test_a_node_of_several_domains_is_told_which_is_meant() -> None:
    wines = Domain("wines", [Attribute("price", "double", min=0.0, max=10.0, precision=0.5)])

    async def play() -> list[dict[str, Any]]:
        nodes = [Hosted(), Hosted()]
        await nodes[0].open("opchord", None, DOMAIN, wines)
        await nodes[1].open("opchord", nodes[0].address, DOMAIN, wines)
        await until_async(lambda: {"ready": nodes[1].address} in nodes[1].told)
        await until_all_deliver(nodes, domain="market")
        nodes[1].wish(subscribe="s", filter="price > 5", domain="market")
        nodes[1].wish(subscribe="w", filter="price > 5", domain="wines")
        await until_async(lambda: {"active": "s"} in nodes[1].told and {"active": "w"} in nodes[1].told)
        nodes[0].wish(publish={"price": 6.0}, id="share", domain="market")
        nodes[0].wish(publish={"price": 7.0}, id="bottle", domain="wines")
        nodes[0].wish(publish={"price": 8.0}, id="what")
        nodes[0].wish(publish={"price": 8.0}, id="what", domain=["wines"])
        await until_async(lambda: sum("delivered" in line for line in no_probe(nodes[1].told)) == 2)
        for node in nodes:
            await node.close()
        return no_probe(line for node in nodes for line in node.told)

    told = asyncio.run(play())
    assert sorted((line["delivered"], line["id"]) for line in told if "delivered" in line) == [
        ("s", "share"), ("w", "bottle"),
    ]  # fmt: skip
    assert [line["error"] for line in told if "error" in line] == [
        'this node has the domains market, wines; say which: "domain": "…"',
        '"domain" is a name, not ["wines"]',
    ]


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_node_that_stops_has_left_the_network(system: str) -> None:
    """The others need not find out: what is published next misses nothing."""

    async def play() -> None:
        nodes = [Hosted() for _ in range(3)]
        await nodes[0].open(system, None)
        for node in nodes[1:]:
            await node.open(system, nodes[0].address)
        await until_async(lambda: all({"ready": node.address} in node.told for node in nodes))
        nodes[1].wish(subscribe="s", filter="price > 50.0")
        await until_async(lambda: {"active": "s"} in nodes[1].told)
        await nodes[2].close()
        number = 0
        while not any("delivered" in line for line in nodes[1].told):
            nodes[0].wish(publish={"price": 75.5}, id=f"e{number}")
            number += 1
            await asyncio.sleep(10 * PACE)  # before the next one
            assert number < LAST_RESORT_SECONDS / (10 * PACE)
        for node in nodes[:2]:
            await node.close()

    asyncio.run(play())


@pytest.mark.parametrize("secret", [None, b"the secret of a network of nodes"], ids=["plain", "secret"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_all_that_a_leaving_node_hands_over_arrives(
    system: str, secret: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[tuple[Id, Message]] = []
    arrived: list[tuple[Id, Message]] = []

    def watched(to: Id, act: Callable[..., Effects]) -> Callable[..., Effects]:
        def on_message(sender: Id, message: Message, now_ms: int) -> Effects:
            arrived.append((to, message))
            return act(sender, message, now_ms)

        return on_message

    async def play() -> None:
        nodes = [Hosted() for _ in range(3)]
        await nodes[0].open(system, None, secret=secret)
        for node in nodes[1:]:
            await node.open(system, nodes[0].address, secret=secret)
        await until_async(lambda: all({"ready": node.address} in node.told for node in nodes))
        await until_all_deliver(nodes)
        *others, leaver = (node.process for node in nodes)
        for peer in others:
            monkeypatch.setattr(peer.node, "on_message", watched(peer.node.id, peer.node.on_message))
        leave = leaver.node.leave

        def leaving(now_ms: int) -> Effects:
            effects = leave(now_ms)
            handed.extend(
                (one.to, one.message) for one in effects if isinstance(one, Send) and one.to != leaver.node.id
            )
            return effects

        monkeypatch.setattr(leaver.node, "leave", leaving)
        nodes[2].server.close()
        await leaver.stop(grace_s=LAST_RESORT_SECONDS)
        assert handed
        await until_async(lambda: all(one in arrived for one in handed))
        for node in nodes[:2]:
            await node.close()

    asyncio.run(play())


class Slow:
    """A peer that reads nothing until it is let go, and then everything."""

    async def open(self) -> None:
        self.read, self.go, self.ended = bytearray(), asyncio.Event(), asyncio.Event()
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 10)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.go.wait()
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.read += data
        writer.close()
        self.ended.set()


async def handing_over() -> tuple[Hosted, Slow, int]:
    """A node that has sent frames to a peer that does not read, the last of them still in a buffer; and their bytes."""
    node, slow = Hosted(), Slow()
    await slow.open()
    await node.open("bluedove", None)
    copies: Any = ("x" * (1 << 15),)
    (effect,) = node.process.node._of("market", [Send(node.process.know(slow.address), Handover(0, 0, copies, None))])
    link, count = None, 0
    while link is None or link._writer is None or not link._writer.transport.get_write_buffer_size():
        node.process._do([effect])
        count += 1
        (link,) = node.process._links.values()
        await until_async(lambda: not link.is_busy)  # noqa: B023
    assert isinstance(effect, Send)
    return node, slow, count * len(node.process._frame(effect.message))


def test_a_node_that_leaves_waits_until_its_peers_have_taken_everything() -> None:
    async def play() -> None:
        node, slow, size = await handing_over()
        (link,) = node.process._links.values()
        stopping = asyncio.create_task(node.process.stop(grace_s=LAST_RESORT_SECONDS))
        await until_async(lambda: stopping.done() or (link._writer is not None and link._writer.is_closing()))
        slow.go.set()
        await stopping
        await slow.ended.wait()
        assert len(slow.read) >= size
        assert node.process.drops.counts == {}
        slow.server.close()
        node.server.close()

    asyncio.run(play())


def test_a_node_that_leaves_does_not_wait_for_ever_and_says_so() -> None:
    async def play() -> None:
        node, slow, size = await handing_over()
        await node.process.stop(grace_s=0.3)
        assert node.process.drops.counts == {"left early": 1}
        slow.go.set()
        await slow.ended.wait()
        assert len(slow.read) < size
        slow.server.close()
        node.server.close()

    asyncio.run(play())


def test_what_cannot_be_handed_over_to_one_peer_is_handed_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        node, next_one = Hosted(), Hosted()
        await node.open("opchord", None)
        await next_one.open("opchord", None)
        gone, there = node.process.know("127.0.0.1:1"), node.process.know(next_one.address)
        ask = node.process.node._of("market", [Send(there, AskState("stabilize"))])
        monkeypatch.setattr(node.process.node, "leave", lambda now_ms: [Send(gone, ask[0].message)])
        monkeypatch.setattr(node.process.node, "on_undelivered", lambda to, message, now_ms: ask)
        await node.process.stop(grace_s=LAST_RESORT_SECONDS)
        await until_async(lambda: node.process.node.id in next_one.process._book)
        node.server.close()
        await next_one.close()

    asyncio.run(play())


def test_a_wish_that_comes_before_the_node_has_joined_waits_until_then() -> None:
    async def play() -> None:
        first, second = Hosted(), Hosted()
        await first.open("opchord", None)
        await second.open("opchord", first.address)
        second.wish(subscribe="s", filter="price > 1.0")
        second.wish(publish={"price": 2.0}, id="e")
        assert not second.told
        await until_async(lambda: {"active": "s"} in second.told)
        assert second.told[0] == {"ready": second.address}
        for node in (first, second):
            await node.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [("{", "error"), ('{"sing": 1}', "write"), ('{"subscribe": "s", "filter": "prise > 1"}', "did you mean 'price'"),
     ('{"unsubscribe": "x"}', "there is no subscription 'x'"), ('{"publish": {"price": "dear"}}', "price")],
)  # fmt: skip
def test_a_wish_that_cannot_be_fulfilled_is_told_and_changes_nothing(wish: str, complaint: str) -> None:
    async def play() -> None:
        for system in SYSTEMS:
            node = Hosted()
            await node.open(system, None)
            node.process.on_line(wish)
            (told,) = [line for line in node.told if "error" in line]
            assert complaint in str(told)
            await node.close()

    asyncio.run(play())


@pytest.mark.parametrize("address", ["nowhere", "host:", ":70", "host:99999", "host:x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(TidingsError, match="host:port"):
        split_address(address)


def test_the_log_of_a_dispatcher_keeps_what_is_not_done(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = FileLog(path)
    for number in range(3):
        log.append(Event(f"e{number}", f'{{"x": {number}}}'))
    log.settle("e1")
    log.close()
    with path.open("a") as file:
        file.write('{"publish": "e9", "bo')  # a crash in the middle of a line
    again = FileLog(path)
    assert [event.id for event in again.pending()] == ["e0", "e2"]
    again.close()


def test_a_log_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('nonsense\n{"done": "x"}\n')
    with pytest.raises(TidingsError, match="line 1"):
        FileLog(path)
