"""Webhooks: signed, tried again, given up with a reason; and receivers that misbehave in every way."""

from __future__ import annotations

import asyncio
import dataclasses
import email.utils
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
from tests.waiting import LAST_RESORT_SECONDS, until

from tidings.service.gateway import webhooks
from tidings.service.gateway.problems import Problem
from tidings.service.gateway.webhook_sending import Resolver, check_webhook_url, may_be_sent_to

from ..conftest import QUICK

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
    """Until the gateway hangs up."""
    connection.settimeout(LAST_RESORT_SECONDS)
    connection.recv(1)


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
    until(lambda: receiver.requests)
    headers, body = receiver.requests[0]
    payload = Webhook(secret).verify(body, headers)
    assert payload["type"] == "tidings.notification"
    assert payload["data"] == {
        "subscription": made["id"],
        "domain": "stocks",
        "position": position,
        "event": {"symbol": "OIL", "volume": 2**53 + 1},
    }
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
    until(lambda: len(receiver.requests) >= 100)
    assert receiver.positions() == positions


def test_a_failed_attempt_is_repeated_when_it_is_due_and_no_later(
    stocks: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_LOOK_SECONDS", 1e6)
    receiver.answers += [status("500 No"), status("500 No")]
    made = subscribe(stocks, receiver)
    stocks.load(stocks.publish_many(1), made["id"])
    until(lambda: len(receiver.requests) == 3)
    assert len(set(receiver.positions())) == 1


def test_a_domain_is_polled_as_long_as_it_has_webhooks(gateway: Any, receiver: Receiver) -> None:
    gateway.describe()
    key = f"{gateway.name}.stocks"
    made = [subscribe(gateway, receiver)["id"] for _ in range(2)]
    polled = lambda: key in gateway.context.watch.polled  # noqa: E731
    assert polled()
    gateway.client.delete(f"/v1/subscriptions/{made[0]}")
    gateway.client.patch(f"/v1/subscriptions/{made[1]}", json={"delivery": {"mode": "pull"}})
    until(lambda: not polled())
    again = {"mode": "webhook", "url": receiver.url}
    gateway.client.patch(f"/v1/subscriptions/{made[1]}", json={"delivery": again})
    stocks_positions = gateway.publish_many(1)
    gateway.load(stocks_positions, made[1])
    until(lambda: receiver.positions() == stocks_positions)


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


def test_what_fails_is_tried_again_and_holds_back_what_comes_after(make_gateway: Callable[..., Any]) -> None:
    # A busy machine may be too slow for the first attempts that would succeed, so there are many.
    stocks = make_gateway(webhooks=dataclasses.replace(QUICK, timeout_seconds=1.0, backoff_seconds=(0.05,) * 100))
    receivers = {name: Receiver(answer) for name, answer in FAILURES.items()}
    made = {name: subscribe(stocks, receiver)["id"] for name, receiver in receivers.items()}
    first, second = stocks.publish_many(2)
    stocks.load([first, second], *made.values())
    until(lambda: all(second in receiver.positions() for receiver in receivers.values()))
    for name, receiver in receivers.items():
        attempts = receiver.positions()
        assert attempts == sorted(attempts), name
        assert attempts[:2] == [first, first], name
        ids = [headers["webhook-id"] for headers, _ in receiver.requests]
        assert ids[0] == ids[1], name
        assert dead_letters(stocks, made[name]) == [], name
        receiver.close()


def test_what_fails_too_often_is_a_dead_letter_and_the_next_has_its_turn(stocks: Any, receiver: Receiver) -> None:
    receiver.answers = [status("500 No")] * 3
    made = subscribe(stocks, receiver)
    first, second = stocks.publish_many(2)
    stocks.load([first, second], made["id"])
    until(lambda: len(receiver.requests) >= 4)
    assert receiver.positions() == [first, first, first, second]
    (letter,) = until(lambda: dead_letters(stocks, made["id"]))
    assert (letter["position"], letter["attempts"]) == (first, 3)
    assert "500" in letter["reason"]
    again = stocks.client.post(f"/v1/subscriptions/{made['id']}/dead-letters:redrive", json={})
    assert again.json() == {"positions": [first]}
    until(lambda: receiver.positions() == [first, first, first, second, first])
    assert dead_letters(stocks, made["id"]) == []


def test_410_disables_a_subscription_until_its_delivery_is_changed(stocks: Any, receiver: Receiver) -> None:
    receiver.answers, failing = [status("410 Gone")], Receiver(status("500 No"))
    made, other = subscribe(stocks, receiver), subscribe(stocks, failing)
    first, second = stocks.publish_many(2)
    stocks.load([first, second], made["id"])
    path = f"/v1/subscriptions/{made['id']}"
    until(lambda: stocks.client.get(path).json()["state"] == "disabled")
    assert "410" in stocks.client.get(path).json()["disabled"]
    stocks.load([first, second], other["id"])
    until(lambda: failing.positions() == [first, first, second])  # so what failed before it would have come again
    failing.close()
    assert receiver.positions() == [first]
    stocks.client.patch(path, json={"delivery": {"url": receiver.url + "2"}})
    until(lambda: receiver.positions() == [first, first, second])


def test_a_slow_receiver_does_not_hold_up_another(stocks: Any, receiver: Receiver) -> None:
    slow = Receiver(hangs)
    one, other = subscribe(stocks, slow), subscribe(stocks, receiver)
    positions = stocks.publish_many(5)
    stocks.load(positions, one["id"], other["id"])
    until(lambda: receiver.positions() == positions)
    assert slow.positions() in ([], positions[:1])  # it has not answered
    stocks.client.delete(f"/v1/subscriptions/{one['id']}")
    slow.close()


def test_attempts_and_order_survive_a_restart(alone: Any, receiver: Receiver) -> None:
    receiver.answers = [OK, status("500 No")]
    made = subscribe(alone, receiver)
    positions = alone.publish_many(3)
    alone.load(positions, made["id"])
    until(lambda: len(receiver.requests) >= 2)
    alone.restart()
    until(lambda: receiver.positions()[-1] == 2)
    assert sorted(set(receiver.positions())) == positions
    assert receiver.positions()[0] == 0
    assert receiver.positions().count(0) == 1


def test_nothing_is_sent_while_paused(stocks: Any, receiver: Receiver) -> None:
    other = Receiver()
    made, running = subscribe(stocks, receiver, paused=True), subscribe(stocks, other)
    positions = stocks.publish_many(10)
    stocks.load(positions, made["id"], running["id"])
    until(lambda: other.positions() == positions)
    other.close()
    assert receiver.requests == []
    stocks.client.patch(f"/v1/subscriptions/{made['id']}", json={"paused": False})
    until(lambda: receiver.positions() == positions)


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
        check_webhook_url(url, dev_webhooks=False)
    assert (refused.value.status, refused.value.pointer) == (422, "/delivery/url")


def test_dev_webhooks_open_loopback_and_nothing_else() -> None:
    for url in ("http://127.0.0.1:8000/", "http://localhost/x", "https://[::1]/"):
        assert check_webhook_url(url, dev_webhooks=True) == url
    for url in ("http://example.com/", "http://10.0.0.1/", "https://10.0.0.1/"):
        with pytest.raises(Problem):
            check_webhook_url(url, dev_webhooks=True)
    assert not may_be_sent_to(ipaddress.ip_address("192.168.0.1"), dev_webhooks=True)


PUBLIC = "93.184.216.34"


@pytest.fixture
def lookup(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Looks up names that lead to addresses, or to a function that says them in its own time."""

    def look_up(names: dict[str, Any], *asked: tuple[str, str], seconds: float = 10.0, at_once: int = 8) -> list[Any]:
        def found(host: str, port: int, **options: Any) -> Any:
            if host not in names:  # of another test's gateway
                return known(host, port, **options)
            addresses = names[host]() if callable(names[host]) else names[host]
            return [(None, None, None, "", (address, port)) for address in addresses]

        async def ask() -> list[Any]:
            resolver = Resolver(seconds=seconds, at_once=at_once, dev_webhooks=False)
            answers = (resolver.addresses(host, 443, who=who) for host, who in asked)
            return await asyncio.gather(*answers, return_exceptions=True)

        known = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", found)
        return asyncio.run(ask())

    return look_up


def test_a_name_is_refused_when_any_of_its_addresses_is_not_public(lookup: Callable[..., Any]) -> None:
    assert lookup({"a.example": [PUBLIC, PUBLIC]}, ("a.example", "a")) == [[PUBLIC]]
    for addresses in ((PUBLIC, "127.0.0.1"), ("10.0.0.1",), ("::1",), ("fec0::1%2",), ()):
        (refused,) = lookup({"a.example": addresses}, ("a.example", "a"))
        assert isinstance(refused, OSError)
        assert "a.example" in str(refused)


def test_a_silent_name_server_holds_up_its_own_tenant_for_a_bounded_time(lookup: Callable[..., Any]) -> None:
    over = threading.Event()

    def quick() -> list[str]:
        over.set()  # so the others wait for this one, and if it waited for them, none would end
        return [PUBLIC]

    def silent() -> list[str]:
        over.wait(LAST_RESORT_SECONDS)
        return [PUBLIC]

    names: dict[str, Any] = {f"slow{number}.example": silent for number in range(20)} | {"quick.example": quick}
    asked = [*((name, "a") for name in names if name != "quick.example"), ("quick.example", "b")]
    *slow, found = lookup(names, *asked, seconds=LAST_RESORT_SECONDS, at_once=8)
    assert found == [PUBLIC]
    assert slow.count([PUBLIC]) == 4  # half of what is looked up at once
    assert sum("too many other lookups" in str(refused) for refused in slow) == 16
    over.clear()
    (late,) = lookup({"slow.example": silent}, ("slow.example", "a"), seconds=0.01)
    over.set()
    assert "no name server answered within 0.01 s" in str(late)


def test_without_dev_webhooks_a_webhook_to_this_machine_is_refused(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(dev_webhooks=False)
    for url in ("http://127.0.0.1:9/", "https://127.0.0.1:9/", "https://localhost/"):
        body = {"domain": "stocks", "filter": "TRUE", "delivery": {"mode": "webhook", "url": url}}
        assert gateway.client.post("/v1/subscriptions", json=body).json()["pointer"] == "/delivery/url"


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.9.9.9", "169.254.169.254", "172.16.0.1",
        "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
        "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "::8.8.8.8",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "::ffff:0:8.8.8.8", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::808:808", "100::1",
        "2001::1", "2001:0:808:808::1", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1",
        "3fff::1", "4000::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "feff::1",
        "ff02::1", "ff0e::1",
    ],
)  # fmt: skip
def test_what_is_no_public_address_is_sent_nothing(address: str) -> None:
    assert not may_be_sent_to(ipaddress.ip_address(address), dev_webhooks=False)


@pytest.mark.parametrize(
    "address", [PUBLIC, "8.8.8.8", "2606:4700::1111", "2a00::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_what_is_a_public_address_may_be_sent_to(address: str) -> None:
    assert may_be_sent_to(ipaddress.ip_address(address), dev_webhooks=False)


# -- fair shares, receivers that ask for time, secrets that change, endpoints that keep failing


def test_many_slow_receivers_of_one_tenant_do_not_hold_up_another(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(webhooks=dataclasses.replace(QUICK, at_once=32))
    over = threading.Event()
    slow = [Receiver(*[lambda _: over.wait(LAST_RESORT_SECONDS)] * 9) for _ in range(64)]
    quick = Receiver()
    other = gateway.other_tenant()
    try:
        made = [subscribe(gateway, receiver)["id"] for receiver in slow]
        gateway.load(gateway.publish_many(3), *made)
        until(lambda: sum(len(receiver.requests) for receiver in slow) == 16)  # half of them
        other.describe()
        theirs = subscribe(other, quick)["id"]
        positions = other.publish_many(20)
        other.load(positions, theirs)
        until(lambda: quick.positions() == positions)
        assert sum(len(receiver.requests) for receiver in slow) == 16
        ours = Receiver()  # nor one endpoint another of the same tenant, though all of its turns are taken
        fast = subscribe(gateway, ours)["id"]
        over.set()
        gateway.load(gateway.publish_many(1), fast)
        until(lambda: ours.requests)
        ours.close()
    finally:
        over.set()
        for receiver in (*slow, quick):
            receiver.close()


def test_one_slow_endpoint_does_not_hold_up_the_others_of_its_tenant(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(webhooks=dataclasses.replace(QUICK, at_once=32))
    over = threading.Event()
    slow, quick = Receiver(*[lambda _: over.wait(LAST_RESORT_SECONDS)] * 99), Receiver()
    try:
        made = [subscribe(gateway, slow)["id"] for _ in range(40)]
        other = subscribe(gateway, quick)["id"]
        gateway.load(gateway.publish_many(2), *made)
        until(lambda: len(slow.requests) == 8)  # a quarter
        positions = gateway.publish_many(20)
        gateway.load(positions, other)
        until(lambda: quick.positions() == positions)
        assert len(slow.requests) == 8
    finally:
        over.set()
        slow.close()
        quick.close()


def next_try(gateway: Any, id: str) -> float:
    """Seconds from now until what failed is tried again."""
    (attempt,) = gateway.context.deliveries.attempts(gateway.catalogue.get(gateway.name, id).key)
    return float(attempt.next_try) / 1e6 - time.time()


def in_two_hours() -> str:
    return email.utils.formatdate(time.time() + 7200, usegmt=True)


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ("120", 119, 121),
        (in_two_hours, 7198, 7201),
        ("99999999999999999999", 86_399, 86_401),  # a day at most
        ("0", 0, 1),
        ("-5", 0, 1),
        ("soon", 0, 1),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 1),
        ("Mon, 99 Foo 2026 99:99:99 GMT", 0, 1),
    ],
)
def test_a_receiver_may_ask_to_be_left_alone_for_a_while(
    make_gateway: Callable[..., Any],
    receiver: Receiver,
    given: str | Callable[[], str],
    least: float,
    most: float,
) -> None:
    gateway = make_gateway(webhooks=dataclasses.replace(QUICK, backoff_seconds=(0.2, 3600.0)))
    began = time.time()
    receiver.answers = [status("503 Busy", f"Retry-After: {given if isinstance(given, str) else given()}")] * 9
    made = subscribe(gateway, receiver)["id"]
    gateway.load(gateway.publish_many(1), made)
    key = gateway.catalogue.get(gateway.name, made).key
    until(lambda: gateway.context.deliveries.attempts(key))
    (attempt,) = gateway.context.deliveries.attempts(key)
    assert attempt.attempts > 1 or began + least < attempt.next_try / 1e6 < time.time() + most


def test_a_new_secret_signs_beside_the_old_one_for_a_while(
    make_gateway: Callable[..., Any], receiver: Receiver
) -> None:
    gateway = make_gateway(webhooks=dataclasses.replace(QUICK, overlap_seconds=3600.0))
    made = subscribe(gateway, receiver)
    path, old, new = f"/v1/subscriptions/{made['id']}", made["delivery"]["secret"], "whsec_" + "QUJD" * 8
    changed = gateway.client.patch(path, json={"delivery": {"secret": new}})
    assert changed.status_code == 200
    assert "old_secret_until" in changed.json()["delivery"]
    assert old not in changed.text
    assert new not in changed.text
    gateway.load(gateway.publish_many(1), made["id"])
    headers, body = until(lambda: receiver.requests)[0]
    for secret in (old, new):
        assert Webhook(secret).verify(body, headers)
    assert len(headers["webhook-signature"].split(" ")) == 2
    gateway.client.patch(path, json={"labels": {"a": "b"}})  # what has nothing to do with it leaves it alone
    assert "old_secret_until" in gateway.client.get(path).json()["delivery"]
    gateway.client.patch(path, json={"delivery": {"mode": "pull"}})
    row = gateway.catalogue.get(gateway.name, made["id"])
    assert (row.secret, row.old_secret, row.old_secret_until) == (None, None, None)


def test_an_old_secret_does_not_sign_after_its_time(make_gateway: Callable[..., Any], receiver: Receiver) -> None:
    gateway = make_gateway(webhooks=dataclasses.replace(QUICK, overlap_seconds=0.0))
    made = subscribe(gateway, receiver)
    new = "whsec_" + "QUJD" * 8
    changed = gateway.client.patch(f"/v1/subscriptions/{made['id']}", json={"delivery": {"secret": new}}).json()
    assert "old_secret_until" not in changed["delivery"]
    gateway.load(gateway.publish_many(1), made["id"])
    headers, body = until(lambda: receiver.requests)[0]
    assert len(headers["webhook-signature"].split(" ")) == 1
    assert Webhook(new).verify(body, headers)


def test_an_endpoint_that_keeps_failing_is_suspended_and_one_success_ends_that(
    make_gateway: Callable[..., Any], receiver: Receiver
) -> None:
    settings = dataclasses.replace(QUICK, suspended_after=2, probe_seconds=0.3, backoff_seconds=(0.05,) * 3)
    gateway = make_gateway(webhooks=settings)
    receiver.answers = [status("500 No")] * 3
    made = subscribe(gateway, receiver)["id"]
    positions = gateway.publish_many(5)
    gateway.load(positions, made)
    path = f"/v1/subscriptions/{made}"
    suspended = until(lambda: (found := gateway.client.get(path).json())["state"] == "suspended" and found)
    assert "500" in suspended["suspended"]
    assert "2 attempts" in suspended["suspended"]
    listed = gateway.client.get("/v1/subscriptions", params={"state": "suspended"}).json()["subscriptions"]
    assert [one["id"] for one in listed] == [made]
    until(lambda: receiver.positions() == [positions[0]] * 3 + positions)
    resumed = until(lambda: (found := gateway.client.get(path).json())["state"] == "active" and found)
    assert "suspended" not in resumed
    assert dead_letters(gateway, made) == []


def test_a_suspension_survives_a_restart_and_ends_when_the_delivery_is_changed(
    make_gateway: Callable[..., Any], receiver: Receiver
) -> None:
    settings = dataclasses.replace(QUICK, suspended_after=1, probe_seconds=3600.0)
    gateway = make_gateway(webhooks=settings)
    receiver.answers = [status("500 No")]
    made = subscribe(gateway, receiver)["id"]
    positions = gateway.publish_many(2)
    gateway.load(positions, made)
    path = f"/v1/subscriptions/{made}"
    until(lambda: gateway.client.get(path).json()["state"] == "suspended")
    until(lambda: gateway.context.deliveries.next_due(0))
    gateway.restart()
    assert gateway.client.get(path).json()["state"] == "suspended"
    assert next_try(gateway, made) > 3000
    changed = gateway.client.patch(path, json={"delivery": {"url": receiver.url}}).json()
    assert changed["state"] == "active"
    until(lambda: receiver.positions() == [positions[0], *positions])


def test_due_attempts_of_paused_subscriptions_delay_no_other(
    make_gateway: Callable[..., Any], receiver: Receiver
) -> None:
    gateway = make_gateway()
    paused = [subscribe(gateway, receiver, paused=True)["id"] for _ in range(3)]
    for id in paused:
        gateway.context.deliveries.failed(gateway.catalogue.get(gateway.name, id).key, 0, "500", next_try=0)
    receiver.answers = [status("500 No")]
    made = subscribe(gateway, receiver)["id"]
    positions = gateway.publish_many(1)
    gateway.load(positions, made)
    until(lambda: receiver.positions() == positions * 2)
