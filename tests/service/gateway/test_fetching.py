"""Streams: a notification is received when its client says so, and a client that does not read is not waited for."""

from __future__ import annotations

import dataclasses
import itertools
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tests.waiting import LAST_RESORT_SECONDS, until

from tidings.service.gateway.fetching import Window, WindowRoom

from ..conftest import SETTINGS, Server, made_certificate
from ..stream_reader import streaming
from .test_delivery_routes import ack, positions_of


def test_a_stream_has_what_waits_and_then_what_comes(stocks: Any) -> None:
    made = stocks.subscribe(delivery={"mode": "sse"})["id"]
    positions = stocks.publish_many(6)
    stocks.load(positions[:2], made)
    with streaming(stocks, made) as reading:
        assert reading.positions(2) == positions[:2]
        stocks.load(positions[2:5], made)
        assert reading.positions(5) == positions[:5]
        sent = reading.sent[0]
        assert (sent["id"], sent["event"]) == (str(positions[0]), "notification")
        assert json.loads(sent["data"]) == {"position": positions[0], "event": {"symbol": "OIL", "price": 0.0}}
        stocks.load(positions[5:], made)
        assert reading.positions(6) == positions


def test_a_stream_resumes_after_the_last_event_that_its_client_names(stocks: Any) -> None:
    made = stocks.subscribe()["id"]
    positions = stocks.publish_many(5)
    stocks.load(positions, made)
    with streaming(stocks, made) as reading:
        assert reading.positions(5) == positions
    with streaming(stocks, made) as reading:
        assert reading.positions(5) == positions  # a client that names none has none
    with streaming(stocks, made, **{"Last-Event-ID": str(positions[2])}) as reading:
        assert reading.positions(2) == positions[3:]
    assert positions_of(stocks.pull(made)) == positions[3:]  # what it named it has
    for named in ("odd", str(stocks.end)):
        refused = stocks.client.get(f"/v1/subscriptions/{made}/stream", headers={"Last-Event-ID": named})
        assert refused.status_code == 400


def test_a_silent_stream_is_kept_alive(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(keep_alive_seconds=0.05)
    made = gateway.subscribe()["id"]
    with streaming(gateway, made) as reading:
        reading.wait(lambda: reading.comments >= 3)


def test_a_stream_ends_when_its_subscription_is_deleted_or_the_service_stops(alone: Any) -> None:
    one, other = alone.subscribe()["id"], alone.subscribe()["id"]
    with streaming(alone, one) as reading:
        alone.client.delete(f"/v1/subscriptions/{one}")
        assert reading.ended.wait(LAST_RESORT_SECONDS)
        assert reading.sent[-1]["event"] == "end"
    with streaming(alone, other) as reading:
        alone.context.close()
        assert reading.ended.wait(LAST_RESORT_SECONDS)


def test_a_stream_follows_pauses_and_changed_filters(stocks: Any) -> None:
    made = stocks.subscribe("price < 10")["id"]
    path = f"/v1/subscriptions/{made}"
    positions = stocks.publish_many(1)
    stocks.load(positions, made)
    with streaming(stocks, made) as reading:
        reading.positions(1)
        stocks.client.patch(path, json={"paused": True})
        stocks.client.patch(path, json={"filter": "price < 20"})
        more = stocks.publish_many(2)
        stocks.load(more, made)
        assert len(reading.sent) == 1
        stocks.client.patch(path, json={"paused": False})
        assert reading.positions(3) == positions + more


# -- acknowledged by the client


def test_what_a_client_was_sent_and_has_not_acknowledged_is_not_received(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(stream_window_bytes=1 << 30)
    made = gateway.subscribe()["id"]
    positions = [gateway.publish({"symbol": "x" * 500_000})[0] for _ in range(40)]
    gateway.load(positions, made)
    with streaming(gateway, made) as reading:  # 20 MB are read
        assert reading.positions(40) == positions
    with streaming(gateway, made) as reading:
        assert reading.positions(40) == positions
        ack(gateway, made, str(positions[9]))
    assert positions_of(gateway.pull(made, limit=1)) == positions[10:11]
    assert dead_letters(gateway, made) == []


def test_a_full_window_is_announced_once_and_an_acknowledgement_resumes_the_stream(
    make_gateway: Callable[..., Any],
) -> None:
    gateway = make_gateway(stream_window_notifications=10, keep_alive_seconds=0.05)
    made = gateway.subscribe()["id"]
    positions = gateway.publish_many(40)
    gateway.load(positions, made)
    with streaming(gateway, made) as reading:
        reading.wait(lambda: reading.all("window"))
        reading.wait(lambda: reading.comments >= 2)  # it waits
        assert reading.positions(10) == positions[:10]
        (said,) = reading.all("window")
        assert said["unacknowledged"] == 10
        assert f"/v1/subscriptions/{made}/ack" in said["detail"]
        assert "id" not in next(sent for sent in reading.sent if sent["event"] == "window")
        ack(gateway, made, str(positions[2]))
        assert reading.positions(13) == positions[:13]
        ack(gateway, made, str(positions[12]))
        assert reading.positions(23) == positions[:23]
        reading.wait(lambda: len(reading.all("window")) == 2)
        ack(gateway, made, str(positions[22]))
        reading.positions(33)
        ack(gateway, made, str(positions[32]))
        assert reading.positions(40) == positions
    assert positions_of(gateway.pull(made)) == positions[33:]


def test_a_window_is_counted_in_bytes_too(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(stream_window_bytes=100_000)
    made = gateway.subscribe()["id"]
    positions = [gateway.publish({"symbol": "x" * 60_000})[0] for _ in range(4)]
    gateway.load(positions, made)
    with streaming(gateway, made) as reading:
        reading.wait(lambda: reading.all("window"))
        assert reading.positions(2) == positions[:2]
        ack(gateway, made, str(positions[1]))
        assert reading.positions(4) == positions


def test_a_dead_letter_over_a_stream_is_settled_when_it_is_acknowledged(stocks: Any) -> None:
    made = stocks.subscribe()["id"]
    positions = stocks.publish_many(5)
    stocks.load(positions, made, max_waiting=3)
    stocks.client.post(f"/v1/subscriptions/{made}/dead-letters:redrive", json={})
    for _ in range(2):
        with streaming(stocks, made) as reading:
            assert reading.positions(5) == positions[3:] + positions[:3]
            assert all("id" not in sent for sent in reading.sent[:2])
            cursors = [said["cursor"] for said in reading.all("notification")[:2]]
    with streaming(stocks, made) as reading:
        reading.positions(5)
        assert ack(stocks, made, cursors[0]).status_code == 204
        more = stocks.publish_many(1)
        stocks.load(more, made)
        assert reading.positions(6) == positions[3:] + positions[:3] + more  # nothing twice on one stream
    with streaming(stocks, made) as reading:
        assert reading.positions(5) == positions[4:] + positions[:3] + more
    assert ack(stocks, made, cursors[1]).status_code == 204
    with streaming(stocks, made) as reading:
        assert reading.positions(4) == positions[:3] + more


# -- acknowledged by the socket


def test_with_auto_what_was_written_counts_as_received(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(stream_window_notifications=10)
    made = gateway.subscribe()["id"]
    positions = gateway.publish_many(40)
    gateway.load(positions[:30], made, max_waiting=30)
    gateway.load(positions[30:35], made, max_waiting=30)
    gateway.client.post(f"/v1/subscriptions/{made}/dead-letters:redrive", json={})
    with streaming(gateway, made, ack="auto") as reading:
        reading.wait(lambda: len(reading.all("notification")) >= 35)
        assert sorted(reading.positions(35)) == positions[:35]
        assert reading.all("window") == []
        until(lambda: gateway.pull(made)["notifications"] == [])
    until(lambda: streams(gateway) == 0)  # else it would have what comes
    gateway.load(positions[35:], made)
    with streaming(gateway, made, ack="auto") as reading:
        assert reading.positions(5) == positions[35:]
    until(lambda: gateway.pull(made)["notifications"] == [])


def test_with_auto_a_client_that_names_its_last_event_gets_what_is_still_kept(stocks: Any) -> None:
    made = stocks.subscribe()["id"]
    positions = stocks.publish_many(6)
    stocks.load(positions, made)
    with streaming(stocks, made, ack="auto") as reading:
        reading.positions(6)
        until(lambda: stocks.pull(made)["notifications"] == [])
    with streaming(stocks, made, ack="auto", **{"Last-Event-ID": str(positions[2])}) as reading:
        assert reading.positions(3) == positions[3:]


@pytest.mark.parametrize("mode", ["", "none", "AUTO", "client,auto"])
def test_an_unknown_way_to_acknowledge_is_refused(stocks: Any, mode: str) -> None:
    made = stocks.subscribe()["id"]
    answer = stocks.client.get(f"/v1/subscriptions/{made}/stream", params={"ack": mode})
    assert answer.status_code == 422
    assert "auto" in answer.text


# -- clients that do not read


@contextmanager
def unread(gateway: Any, id: str, query: str = "") -> Iterator[socket.socket]:
    """A stream that was asked for, and of which nothing is read."""
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        path = f"/v1/subscriptions/{id}/stream{query}"
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {gateway.token}\r\n\r\n"
        connection.sendall(head.encode())
        yield connection


def streams(gateway: Any) -> float:
    found: float = gateway.context.metrics.registry.get_sample_value("tidings_streams")
    return found


def streams_that_open(gateway: Any) -> list[None]:
    """Has an entry for every stream that is opened from now on, however soon it ends."""
    opened: list[None] = []
    gauge = gateway.context.metrics.streams
    inc = gauge.inc

    def counted() -> None:
        inc()
        opened.append(None)

    gauge.inc = counted
    return opened


def dead_letters(gateway: Any, id: str) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = gateway.client.get(f"/v1/subscriptions/{id}/dead-letters").json()["dead_letters"]
    return letters


@pytest.mark.parametrize("query", ["", "?ack=auto"])
def test_a_client_that_does_not_read_is_disconnected_and_loses_nothing_unsent(
    make_gateway: Callable[..., Any], query: str
) -> None:
    gateway = make_gateway(stream_write_seconds=0.3, stream_window_bytes=1 << 30)
    made = gateway.subscribe()["id"]
    positions = [gateway.publish({"symbol": "x" * 900_000})[0] for _ in range(40)]
    gateway.load(positions, made)
    opened = streams_that_open(gateway)
    with unread(gateway, made, query) as connection:
        until(lambda: opened)
        until(lambda: streams(gateway) == 0)
        assert connection.fileno() >= 0  # it is the service that has hung up
    (left,) = positions_of(gateway.pull(made, limit=1))  # with auto, more than the socket took
    assert left == positions[0] or query
    assert dead_letters(gateway, made) == []


def test_a_stream_over_tls_goes_on_and_breaks_off_as_any_other(tmp_path: Path) -> None:
    certificate = made_certificate(tmp_path)
    settings = dataclasses.replace(SETTINGS, stream_write_seconds=2.0, stream_window_bytes=1 << 30)
    server = Server(tmp_path / "data", settings, certificate)
    gateway = server.first_tenant()
    try:
        gateway.describe()
        id = gateway.subscribe()["id"]
        positions = [gateway.publish({"symbol": "x" * 300_000})[0] for _ in range(40)]
        gateway.load(positions, id)
        with gateway.client.stream("GET", f"/v1/subscriptions/{id}/stream", params={"ack": "auto"}) as answer:
            data = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
            assert [said["position"] for said in itertools.islice(data, 40)] == positions
        until(lambda: streams(gateway) == 0)
        last = {"Last-Event-ID": str(positions[0])}
        opened = streams_that_open(gateway)
        with gateway.client.stream("GET", f"/v1/subscriptions/{id}/stream", headers=last) as answer:
            assert answer.status_code == 200
            until(lambda: opened)
            until(lambda: streams(gateway) == 0)  # nothing was read
    finally:
        gateway.close()
        server.stop()


# -- the window


def test_a_window_has_room_for_what_was_acknowledged() -> None:
    window = Window(4, 100)
    assert window.room == WindowRoom(4, 100)
    for position in (3, 5, 9):
        window.sent(position, 10)
    window.sent_again(1, 30)
    assert (window.is_full, len(window), window.room) == (True, 4, WindowRoom(0, 40))
    assert b"4 notifications" in window.announcement("mine")
    assert window.announcement("mine") == b""
    window.acknowledged(4)
    assert window.room == WindowRoom(1, 50)
    window.acknowledged(2)  # it never goes back
    window.sent(10, 60)
    assert (window.room, window.announcement("mine")) == (WindowRoom(0, 0), b"")  # it was never half empty
    window.settled(1)
    window.acknowledged(10)
    assert (len(window), window.room) == (0, WindowRoom(4, 100))
    window.sent(11, 100)
    assert b"1 notifications" in window.announcement("mine")


# -- several readers, changes and nonsense


def test_two_streams_of_a_subscription_both_get_what_is_not_acknowledged(stocks: Any) -> None:
    made = stocks.subscribe()["id"]
    positions = stocks.publish_many(6)
    stocks.load(positions[:2], made)
    with streaming(stocks, made) as one, streaming(stocks, made) as other:
        assert one.positions(2) == other.positions(2) == positions[:2]
        ack(stocks, made, str(positions[1]))
        stocks.load(positions[2:4], made)
        assert one.positions(4) == other.positions(4) == positions[:4]
        pulled = stocks.pull(made)  # and a poll beside them
        assert positions_of(pulled) == positions[2:4]
        ack(stocks, made, pulled["cursor"])
        with streaming(stocks, made) as third:
            stocks.load(positions[4:], made)
            assert third.positions(2) == positions[4:]
        assert one.positions(6) == other.positions(6) == positions


def test_what_another_reader_has_acknowledged_is_not_sent_by_a_stream_that_waited(
    make_gateway: Callable[..., Any],
) -> None:
    gateway = make_gateway(stream_window_notifications=2)
    made = gateway.subscribe()["id"]
    positions = gateway.publish_many(6)
    gateway.load(positions, made)
    with streaming(gateway, made) as reading:
        reading.wait(lambda: reading.all("window"))
        ack(gateway, made, str(positions[4]))
        assert reading.positions(3) == [*positions[:2], positions[5]]


def test_an_acknowledgement_covers_what_was_there_to_be_delivered(stocks: Any) -> None:
    made = stocks.subscribe()["id"]
    positions = stocks.publish_many(6)
    stocks.load(positions[:2], made)
    assert ack(stocks, made, str(positions[5])).status_code == 204  # none of these was delivered yet
    stocks.load(positions[2:4], made)
    assert positions_of(stocks.pull(made)) == positions[2:4]
    with streaming(stocks, made, **{"Last-Event-ID": str(positions[5])}) as reading:
        stocks.load(positions[4:], made)
        assert reading.positions(2) == positions[4:]
    assert ack(stocks, made, str(stocks.end)).status_code == 422


@pytest.mark.parametrize("named", ["odd", "-2", "1.5", "1e3", "9" * 30, "again:1", "٣", "1,2", "0x1", "null"])
def test_a_last_event_that_is_none_is_refused(stocks: Any, named: str) -> None:
    made = stocks.subscribe()["id"]
    headers = {b"Last-Event-ID": named.encode()}
    refused = stocks.client.get(f"/v1/subscriptions/{made}/stream", headers=headers)
    assert (refused.status_code, refused.headers["content-type"]) == (400, "application/problem+json")


def test_a_stream_with_a_full_window_ends_when_its_subscription_is_deleted(
    make_gateway: Callable[..., Any],
) -> None:
    gateway = make_gateway(stream_window_notifications=1)
    made = gateway.subscribe()["id"]
    gateway.load(gateway.publish_many(3), made)
    with streaming(gateway, made) as reading:
        reading.wait(lambda: reading.all("window"))
        gateway.client.delete(f"/v1/subscriptions/{made}")
        assert reading.ended.wait(LAST_RESORT_SECONDS)
        assert len(reading.all("end")) == 1
        assert ack(gateway, made, "0").status_code == 404


def test_a_stream_that_has_much_to_send_stops_when_its_subscription_is_paused(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(stream_window_notifications=10**6, keep_alive_seconds=0.05)
    made = gateway.subscribe()["id"]
    positions = gateway.publish_many(5_000)
    gateway.load(positions, made)
    with streaming(gateway, made, ack="auto") as reading:
        reading.positions(1)
        assert gateway.client.patch(f"/v1/subscriptions/{made}", json={"paused": True}).status_code == 200
        before = reading.comments
        reading.wait(lambda: reading.comments > before)
        stopped = len(reading.sent)
        gateway.client.patch(f"/v1/subscriptions/{made}", json={"paused": False})
        assert reading.positions(5_000) == positions
        assert stopped <= 5_000
