"""Webhooks: signed, tried again, given up with a reason; and receivers that misbehave in every way."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from standardwebhooks import Webhook

from tidings.service.problems import Problem
from tidings.service.security import check_webhook_url, may_be_sent_to, resolved

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def status(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {line}", *headers, "Content-Length: 0", "", ""]).encode()


class Receiver:
    """A server of few words: for every request the next answer, which may be a function of the connection."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/hook"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reading:
            try:
                while head := reading.readline():
                    assert head.startswith(b"POST ")
                    headers = {}
                    while (line := reading.readline().strip()) and b":" in line:
                        name, _, value = line.decode().partition(":")
                        headers[name.lower()] = value.strip()
                    self.requests.append((headers, reading.read(int(headers["content-length"]))))
                    answer = self.answers.pop(0) if self.answers else OK
                    if callable(answer):
                        answer(connection)
                        return
                    connection.sendall(answer)
            except OSError:
                pass

    def close(self) -> None:
        self._socket.close()

    def positions(self) -> list[int]:
        return [json.loads(body)["data"]["position"] for _, body in self.requests]


def hangs(connection: socket.socket) -> None:
    time.sleep(3)


def drips(connection: socket.socket) -> None:
    for byte in status("200 OK"):
        connection.sendall(bytes([byte]))
        time.sleep(0.2)


def drips_after_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(1000):
        connection.sendall(b"x")
        time.sleep(0.1)


def never_ends(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")


def breaks_off(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 ")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.close()


@pytest.fixture(scope="module")
def stocks(server: Any) -> Iterator[Any]:
    """One tenant for all: a gateway looks into the mailboxes of every domain that has a webhook."""
    tenant = server.new_tenant()
    tenant.describe()
    yield tenant
    tenant.close()


def wait_for(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


def subscribe(gateway: Any, receiver: Receiver, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = gateway.subscribe(delivery={"mode": "webhook", "url": receiver.url}, **fields)
    return made


def dead_letters(gateway: Any, id: str) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = gateway.client.get(f"/v1/subscriptions/{id}/dead-letters").json()["dead_letters"]
    return letters


def test_a_webhook_is_signed_and_has_the_event_as_it_was_published(stocks: Any, receiver: Receiver) -> None:
    made = subscribe(stocks, receiver)
    secret = made["delivery"]["secret"]
    (position,) = stocks.publish({"symbol": "OIL", "volume": 2**53 + 1})
    stocks.load([position], made["id"])
    wait_for(lambda: receiver.requests)
    headers, body = receiver.requests[0]
    payload = Webhook(secret).verify(body, headers)
    assert payload["type"] == "tidings.notification"
    assert payload["data"] == {
        "subscription": made["id"], "domain": "stocks", "position": position,
        "event": {"symbol": "OIL", "volume": 2**53 + 1},
    }  # fmt: skip
    assert headers["webhook-id"] == f"{made['id']}.{position}"


def test_a_secret_is_told_once_and_never_again(stocks: Any, receiver: Receiver) -> None:
    made = subscribe(stocks, receiver)
    assert made["delivery"]["secret"].startswith("whsec_")
    path = f"/v1/subscriptions/{made['id']}"
    assert "secret" not in stocks.client.get(path).text
    assert "secret" not in stocks.client.get("/v1/subscriptions").text
    assert "secret" not in stocks.client.patch(path, json={"labels": {"a": "b"}}).text
    own = "whsec_" + "QUJD" * 8
    given = {"mode": "webhook", "url": receiver.url, "secret": own}
    assert own not in stocks.client.patch(path, json={"delivery": given}).text


def test_notifications_come_in_order_one_after_the_other(stocks: Any, receiver: Receiver) -> None:
    made = subscribe(stocks, receiver)
    positions = stocks.publish_many(100)  # more than are read at a time
    stocks.load(positions[:70], made["id"])
    stocks.load(positions[70:], made["id"])
    wait_for(lambda: len(receiver.requests) >= 100)
    assert receiver.positions() == positions


def test_what_failed_is_tried_again_when_its_time_has_come_and_not_at_the_next_full_second(
    stocks: Any, receiver: Receiver
) -> None:
    receiver.answers += [status("500 No"), status("500 No")]
    made = subscribe(stocks, receiver)
    stocks.load(stocks.publish_many(1), made["id"])
    wait_for(lambda: receiver.requests)
    began = time.monotonic()
    wait_for(lambda: len(receiver.requests) == 3)
    assert time.monotonic() - began < 0.8  # two pauses of 0.05 s


def test_a_domain_is_looked_at_for_as_long_as_it_has_webhooks(gateway: Any, receiver: Receiver) -> None:
    gateway.describe()
    key = f"{gateway.name}.stocks"
    made = [subscribe(gateway, receiver)["id"] for _ in range(2)]
    looked_at = lambda: key in gateway.context.mailboxes.looked_at  # noqa: E731
    assert looked_at()
    gateway.client.delete(f"/v1/subscriptions/{made[0]}")
    gateway.client.patch(f"/v1/subscriptions/{made[1]}", json={"delivery": {"mode": "pull"}})
    wait_for(lambda: not looked_at())
    again = {"mode": "webhook", "url": receiver.url}
    gateway.client.patch(f"/v1/subscriptions/{made[1]}", json={"delivery": again})
    stocks_positions = gateway.publish_many(1)
    gateway.load(stocks_positions, made[1])
    wait_for(lambda: receiver.positions() == stocks_positions)


FAILURES = {
    "500": status("500 Internal Server Error"),
    "404": status("404 Not Found"),
    "redirect": status("302 Found", "Location: http://169.254.169.254/"),
    "redirect here": status("307 Temporary Redirect", "Location: /elsewhere"),
    "hangs": hangs,
    "a byte now and then": drips,
    "a body of a byte now and then": drips_after_headers,
    "endless": never_ends,
    "cut off": breaks_off,
    "nonsense": b"nonsense\r\n\r\n",
}


def test_what_fails_is_tried_again_and_holds_back_what_comes_after(stocks: Any) -> None:
    receivers = {name: Receiver(answer) for name, answer in FAILURES.items()}
    made = {name: subscribe(stocks, receiver)["id"] for name, receiver in receivers.items()}
    first, second = stocks.publish_many(2)
    stocks.load([first, second], *made.values())
    wait_for(lambda: all(len(receiver.requests) >= 3 for receiver in receivers.values()))
    for name, receiver in receivers.items():
        assert receiver.positions() == [first, first, second], name
        ids = [headers["webhook-id"] for headers, _ in receiver.requests]
        assert ids[0] == ids[1], name
        assert dead_letters(stocks, made[name]) == [], name
        receiver.close()


def test_what_fails_too_often_is_a_dead_letter_and_the_next_has_its_turn(stocks: Any, receiver: Receiver) -> None:
    receiver.answers = [status("500 No")] * 3
    made = subscribe(stocks, receiver)
    first, second = stocks.publish_many(2)
    stocks.load([first, second], made["id"])
    wait_for(lambda: len(receiver.requests) >= 4)
    assert receiver.positions() == [first, first, first, second]
    (letter,) = wait_for(lambda: dead_letters(stocks, made["id"]))
    assert (letter["position"], letter["attempts"]) == (first, 3)
    assert "500" in letter["reason"]
    again = stocks.client.post(f"/v1/subscriptions/{made['id']}/dead-letters:redrive", json={})
    assert again.json() == {"positions": [first]}
    wait_for(lambda: receiver.positions() == [first, first, first, second, first])
    assert dead_letters(stocks, made["id"]) == []


def test_410_disables_a_subscription_until_its_delivery_is_changed(stocks: Any, receiver: Receiver) -> None:
    receiver.answers = [status("410 Gone")]
    made = subscribe(stocks, receiver)
    first, second = stocks.publish_many(2)
    stocks.load([first, second], made["id"])
    path = f"/v1/subscriptions/{made['id']}"
    wait_for(lambda: stocks.client.get(path).json()["state"] == "disabled")
    assert "410" in stocks.client.get(path).json()["disabled"]
    time.sleep(0.1)  # longer than it takes until what failed is tried again
    assert receiver.positions() == [first]
    stocks.client.patch(path, json={"delivery": {"url": receiver.url + "2"}})
    wait_for(lambda: receiver.positions() == [first, first, second])


def test_a_slow_receiver_does_not_hold_up_another(stocks: Any, receiver: Receiver) -> None:
    slow = Receiver(*[hangs] * 10)
    one, other = subscribe(stocks, slow), subscribe(stocks, receiver)
    positions = stocks.publish_many(5)
    began = time.monotonic()
    stocks.load(positions, one["id"], other["id"])
    wait_for(lambda: receiver.positions() == positions)
    assert time.monotonic() - began < 1.0
    slow.close()


def test_attempts_and_order_survive_a_restart(alone: Any, receiver: Receiver) -> None:
    receiver.answers = [OK, status("500 No")]
    made = subscribe(alone, receiver)
    positions = alone.publish_many(3)
    alone.load(positions, made["id"])
    wait_for(lambda: len(receiver.requests) >= 2)
    alone.restart()
    wait_for(lambda: receiver.positions()[-1] == 2)
    assert sorted(set(receiver.positions())) == positions
    assert receiver.positions()[0] == 0
    assert receiver.positions().count(0) == 1


def test_nothing_is_sent_while_paused(stocks: Any, receiver: Receiver) -> None:
    other = Receiver()
    made, running = subscribe(stocks, receiver, paused=True), subscribe(stocks, other)
    positions = stocks.publish_many(10)
    stocks.load(positions, made["id"], running["id"])
    wait_for(lambda: other.positions() == positions)
    other.close()
    assert receiver.requests == []
    stocks.client.patch(f"/v1/subscriptions/{made['id']}", json={"paused": False})
    wait_for(lambda: receiver.positions() == positions)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/", "ftp://example.com/", "https://", "https:///x", "https://user:word@example.com/",
        "https://example.com/#part", "https://localhost/", "https://127.0.0.1/", "https://[::1]/", "https://10.0.0.1/",
        "https://192.168.1.1/", "https://169.254.169.254/latest/meta-data", "https://[fe80::1]/", "https://0.0.0.0/",
        "https://[::ffff:127.0.0.1]/", "https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/", "https://224.0.0.1/",
        "https://100.64.0.1/", "https://exämple.com/", "https://example.com:99999/", "https://a b/",
        "javascript:alert(1)", "", 5, None, "https://example.com/" + "x" * 3000,
    ],
)  # fmt: skip
def test_a_webhook_goes_to_public_addresses_by_https_alone(url: object) -> None:
    with pytest.raises(Problem) as refused:
        check_webhook_url(url, development=False)
    assert (refused.value.status, refused.value.pointer) == (422, "/delivery/url")


def test_development_opens_loopback_and_nothing_else() -> None:
    for url in ("http://127.0.0.1:8000/", "http://localhost/x", "https://[::1]/"):
        assert check_webhook_url(url, development=True) == url
    for url in ("http://example.com/", "http://10.0.0.1/", "https://10.0.0.1/"):
        with pytest.raises(Problem):
            check_webhook_url(url, development=True)
    assert not may_be_sent_to(ipaddress.ip_address("192.168.0.1"), development=True)


def test_a_name_is_refused_when_any_of_its_addresses_is_not_public(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*addresses: str) -> list[str]:
        loop = asyncio.get_running_loop()

        async def found(*_: Any, **__: Any) -> Any:
            return [(None, None, None, "", (address, 443)) for address in addresses]

        monkeypatch.setattr(loop, "getaddrinfo", found)
        return await resolved("rebinding.example", 443, development=False)

    assert asyncio.run(ask("93.184.216.34", "93.184.216.34")) == ["93.184.216.34"]
    for addresses in (("93.184.216.34", "127.0.0.1"), ("10.0.0.1",), ("::1",), ()):
        with pytest.raises(OSError, match="rebinding"):
            asyncio.run(ask(*addresses))


def test_without_development_a_webhook_to_this_machine_is_refused(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(development=False)
    for url in ("http://127.0.0.1:9/", "https://127.0.0.1:9/", "https://localhost/"):
        body = {"domain": "stocks", "filter": "TRUE", "delivery": {"mode": "webhook", "url": url}}
        assert gateway.client.post("/v1/subscriptions", json=body).json()["pointer"] == "/delivery/url"
