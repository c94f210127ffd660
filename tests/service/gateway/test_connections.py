"""Limits before anybody is known: on heads, bodies, time, and connections. A real gateway, and raw sockets."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tests.service.raw_http import Raw
from tests.waiting import until

from tidings.service.gateway.connections import Connections
from tidings.service.gateway.gateway_settings import Quota, Quotas, ServiceLimits
from tidings.service.gateway.tenant_use import TenantUse

from ..conftest import SETTINGS, Gateway, Server, made_certificate

EVENTS = "POST /v1/domains/stocks/events"
JSON = {"Content_Type": "application/json"}


@pytest.fixture
def limited(make_gateway: Callable[..., Any]) -> Callable[..., Any]:
    """Gateways with other limits than most; a quota by its name, what concerns the service as `service`."""

    def make(service: dict[str, Any] | None = None, **quota: int) -> Any:
        return make_gateway(quotas=Quotas(Quota(**quota), service=ServiceLimits(**service or {})))

    return make


def serves(gateway: Any) -> bool:
    with gateway.client_of(None) as client:
        return bool(client.get("/v1/health").status_code == 200)


# -- heads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"x-%d: %s\r\n" % (number, b"y" * 90) for number in range(1000)),
        b"x: " + b"y" * 100_000 + b"\r\n",
        b"".join(b"cookie: a%d=1\r\n" % number for number in range(10_000)),
    ],
    ids=["many headers", "one long header", "many cookies"],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_headers_beyond_their_limit_are_431(gateway: Any, head: bytes, at_once: bool) -> None:
    with Raw(gateway) as raw:
        whole = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n" + head
        for piece in [whole + b"\r\n"] if at_once else [whole[:40_000], whole[40_000:]]:
            raw.send(piece)
        said = raw.problem()
        assert (said["status"], said["limit"], said["value"]) == (431, "max_head_bytes", 32 << 10)
        assert raw.is_closed()
    assert serves(gateway)


@pytest.mark.parametrize("line", ["GET /" + "a" * 50_000, "GET /v1/subscriptions?search=" + "a" * 50_000])
def test_a_huge_path_or_query_is_431(gateway: Any, line: str) -> None:
    with Raw(gateway) as raw:
        raw.request(line)
        assert raw.problem()["status"] == 431


def test_headers_after_a_body_are_not_kept(gateway: Any) -> None:
    with Raw(gateway) as raw:
        raw.request(EVENTS, b"0\r\n", Transfer_Encoding="chunked", **JSON)
        raw.send(b"".join(b"x-%d: y\r\n" % number for number in range(10_000)) + b"\r\n")
        assert raw.problem()["status"] == 400  # an empty body
        raw.request("GET /v1/health")
        assert raw.answer()[0] == 200


def half_a_request_is_refused(gateway: Any, *, first: bool) -> bool:
    """With 408, and then closed; False where the half came too late, on a busy machine, to be seen as one."""
    with Raw(gateway) as raw, contextlib.suppress(ConnectionError):
        if first:
            raw.request("GET /v1/health")
            assert raw.answer()[0] == 200
        raw.send(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nx-")
        said = raw.problem()
        assert (said["status"], said["limit"]) == (408, "head_seconds")
        return raw.is_closed()
    return False


def test_half_a_request_is_408_and_nothing_at_all_is_closed(limited: Callable[..., Any]) -> None:
    gateway = limited({"head_seconds": 0.3})
    until(lambda: half_a_request_is_refused(gateway, first=False))
    until(lambda: half_a_request_is_refused(gateway, first=True))
    with Raw(gateway) as silent, Raw(gateway) as empty_lines:
        with contextlib.suppress(ConnectionError):
            empty_lines.send(b"\r\n" * 100)
        assert silent.is_closed()
        assert empty_lines.is_closed()
    until(lambda: len(gateway.context.connections) <= 1)  # the client's own


def test_what_is_not_http_is_400(gateway: Any) -> None:
    for sent in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"):
        with Raw(gateway) as raw:
            raw.send(sent)
            assert raw.problem()["status"] == 400
            assert raw.is_closed()


def test_http_1_0_and_100_continue_are_served(stocks: Any) -> None:
    with Raw(stocks) as raw:
        raw.send(b"GET /v1/health HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert raw.answer()[0] == 200
        assert raw.is_closed()
    with Raw(stocks) as raw:
        raw.request(EVENTS, Content_Length="12", Expect="100-continue", **JSON)
        assert raw.answer()[0] == 100
        raw.send(b'{"price":1} ')
        assert raw.answer()[0] == 200
    with Raw(stocks) as raw:  # refused before the body is sent
        raw.request(EVENTS, Content_Length=str(9 << 20), Expect="100-continue", **JSON)
        assert raw.problem()["status"] == 413


def test_requests_that_wait_behind_another_are_few(gateway: Any) -> None:
    one = f"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {gateway.token}\r\n\r\n".encode()
    with Raw(gateway) as raw:
        raw.send(one * 10)
        assert [raw.answer()[0] for _ in range(10)] == [200] * 10
    with Raw(gateway) as raw:
        raw.send(one * 1000)
        assert raw.is_closed()
    assert serves(gateway)


# -- bodies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b'{"price"'], ids=["nothing", "a part"])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_that_does_not_come_is_408(limited: Callable[..., Any], sent: bytes, chunked: bool) -> None:
    gateway = limited({"body_seconds": 0.3})
    with Raw(gateway) as raw:
        if chunked:
            raw.request(
                EVENTS, b"%x\r\n%s\r\n" % (len(sent), sent) if sent else b"", Transfer_Encoding="chunked", **JSON
            )
        else:
            raw.request(EVENTS, sent, Content_Length="100", **JSON)
        said = raw.problem()
        assert (said["status"], said["limit"], said["value"]) == (408, "body_seconds", 0.3)
        assert raw.is_closed()
    assert gateway.context.use.used(gateway.name, "uploading_bytes") == 0


def test_a_body_that_is_refused_early_may_not_go_on_for_ever(limited: Callable[..., Any]) -> None:
    gateway = limited({"head_seconds": 0.3})
    with Raw(gateway) as raw:
        raw.request(EVENTS, b"{", token=False, Content_Length="1000000", **JSON)
        assert raw.problem()["status"] == 401
        with contextlib.suppress(ConnectionError):
            raw.send(b" " * 1000)
        assert raw.is_closed()


def test_a_client_that_never_reads_its_answer_is_disconnected(limited: Callable[..., Any]) -> None:
    gateway = limited({"write_seconds": 0.3})
    positions = [gateway.publish({"symbol": "x" * 1_000_000})[0] for _ in range(8)]
    made = gateway.subscribe()
    gateway.load(positions, made["id"])
    opened = gateway.context.connections._open
    before = set(opened)  # they may close meanwhile, when nobody asks anything on them
    with Raw(gateway, receive_buffer=4096) as raw:
        until(lambda: opened.keys() - before)
        raw.request(f"GET /v1/subscriptions/{made['id']}/notifications?limit=100")
        until(lambda: not opened.keys() - before)
    assert gateway.context.use.used(gateway.name, "connections") <= len(before)


# -- how many -------------------------------------------------------------------------------------------


def test_half_requests_keep_nobody_out(limited: Callable[..., Any]) -> None:
    """Whoever is there without a request makes way, the oldest first, for those that come."""
    gateway = limited({"max_connections": 20, "head_seconds": 600}, connections=20)
    with ExitStack() as opened:
        halves = [opened.enter_context(Raw(gateway)) for _ in range(50)]
        for half in halves[-10:]:
            half.send(b"GET /v1/health HTTP/1.1\r\n")
        until(lambda: gateway.context.connections.made_way >= 30)
        assert all(serves(gateway) for _ in range(30))
        assert gateway.publish({"price": 1.0})
        assert len(gateway.context.connections) <= 20


def test_connections_with_requests_under_way_are_not_given_up_for_others(limited: Callable[..., Any]) -> None:
    gateway = limited({"max_connections": 4}, connections=40)
    gateway.client.close()
    with ExitStack() as opened:
        polls = [opened.enter_context(Raw(gateway)) for _ in range(4)]
        for poll in polls:
            poll.request(EVENTS, b"{", Content_Length="11", **JSON)
        until(lambda: gateway.context.use.used(gateway.name, "uploading_bytes") == 4)
        with Raw(gateway) as fifth:
            said = fifth.problem()
            assert (said["status"], said["limit"], said["value"]) == (503, "max_connections", 4)
        for poll in polls:
            poll.send(b'"price":1}')
            assert poll.answer()[0] == 200
    gateway.client = gateway.client_of(gateway.token)


def test_a_tenant_has_so_many_connections_and_is_told_so(limited: Callable[..., Any]) -> None:
    gateway = limited(connections=3)
    gateway.client.close()
    with ExitStack() as opened:
        kept = [opened.enter_context(Raw(gateway)) for _ in range(3)]
        for raw in kept:
            raw.request("GET /v1/domains")
            assert raw.answer()[0] == 200
        with Raw(gateway) as fourth:
            fourth.request("GET /v1/domains")
            said = fourth.problem()
            assert (said["status"], said["limit"], said["value"]) == (429, "connections", 3)
            assert fourth.is_closed()
        assert gateway.stranger().get("/v1/domains").status_code == 200
    until(lambda: gateway.context.use.used(gateway.name, "connections") == 0)
    gateway.client = gateway.client_of(gateway.token)
    assert gateway.client.get("/v1/domains").status_code == 200


class Pretended:
    """A connection that is none."""

    def __init__(self) -> None:
        self.tenant: str | None = None
        self.transport = self
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_one_address_has_its_share_of_connections() -> None:
    limits = ServiceLimits(max_connections=10, max_connections_per_address=3)
    connections: Any = Connections(limits, TenantUse(Quotas(), {}))
    theirs = [Pretended() for _ in range(3)]
    for one in theirs:
        assert connections.opened(one, "2001:db8::1") is None
        connections.begun(one)
    refused = connections.opened(Pretended(), "2001:db8::2")  # of the same network
    assert (refused.status, refused.more["limit"]) == (503, "max_connections_per_address")
    assert connections.opened(Pretended(), "2001:db8:1::1") is None
    connections.ended(theirs[1])
    assert connections.opened(Pretended(), "2001:db8::2") is None
    assert [one.aborted for one in theirs] == [False, True, False]
    for _ in range(6):
        assert connections.opened(Pretended(), "127.0.0.1") is None  # programs of this machine are not one client
    assert len(connections) == 10


def test_streams_are_counted_by_tenant_and_given_back(limited: Callable[..., Any]) -> None:
    gateway = limited(streams=2)
    id = gateway.subscribe()["id"]
    with ExitStack() as opened:
        for _ in range(2):
            raw = opened.enter_context(Raw(gateway))
            raw.request(f"GET /v1/subscriptions/{id}/stream")
            assert raw.answer()[0] == 200
        answer = gateway.client.get(f"/v1/subscriptions/{id}/stream")
        assert (answer.status_code, answer.json()["limit"], answer.json()["value"]) == (429, "streams", 2)
        assert answer.headers["Retry-After"]
        assert gateway.client.get("/v1/health").json()["quotas"]["streams"] == {"used": 2, "limit": 2}
    until(lambda: gateway.context.use.used(gateway.name, "streams") == 0)
    with gateway.client.stream("GET", f"/v1/subscriptions/{id}/stream") as answer:
        assert answer.status_code == 200


# -- TLS ------------------------------------------------------------------------------------------------


@pytest.fixture
def over_tls(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A gateway over TLS, with limits."""
    servers: list[Server] = []

    def make(**limits: Any) -> Gateway:
        settings = dataclasses.replace(SETTINGS, quotas=Quotas(service=ServiceLimits(**limits)))
        servers.append(Server(tmp_path / "data", settings, made_certificate(tmp_path)))
        return servers[-1].first_tenant()

    yield make
    for server in servers:
        server.stop()


def test_connections_that_never_shake_hands_count_and_make_way_for_others(over_tls: Callable[..., Any]) -> None:
    gateway = over_tls(max_connections=20, head_seconds=600)
    connections = gateway.context.connections
    with ExitStack() as opened:
        silent = [opened.enter_context(Raw(gateway)) for _ in range(60)]
        for one in silent[-10:]:
            one.send(b"\x16\x03\x01")  # the beginning of a handshake
        until(lambda: connections.made_way >= 40)
        assert len(connections) <= 20
        assert all(one.is_closed() for one in silent[:40])
        assert serves(gateway)
        assert gateway.client.get("/v1/domains").status_code == 200
        assert len(connections) <= 20
    gateway.close()
    until(lambda: len(connections) == 0)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"GET /v1/health HTTP/1.1\r\n\r\n"])
def test_a_handshake_has_so_much_time(over_tls: Callable[..., Any], sent: bytes) -> None:
    gateway = over_tls(head_seconds=0.3)
    with Raw(gateway) as raw:
        raw.send(sent)
        assert raw.is_closed()
    until(lambda: len(gateway.context.connections) == 0)
    gateway.close()
