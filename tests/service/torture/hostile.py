"""What a tenant may try on purpose, with its own token and nobody's help: each is a function over a connection.

Whatever the service answers is right; that others are served as before is what is judged.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx2

HELD_SECONDS = 15.0
MISSED = frozenset((404, 405))  # statuses of a request that reaches nothing
FULL = frozenset((413, 429))  # and of one that is too much, after which others may reach nothing


@dataclass
class Attacker:
    """A tenant's connection to the service, and what it holds open."""

    port: int
    token: str
    held: list[socket.socket] = field(default_factory=list)
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)  # requests, numbers left out, with their status

    def request(self, method: str, path: str, content: bytes, kind: str = "application/json", **headers: str) -> bytes:
        """Returns what is answered, with whatever status; nothing where no answer comes."""
        status, answer = 0, b""
        with contextlib.suppress(httpx2.HTTPError), httpx2.Client(trust_env=False, timeout=60) as http:
            url = f"http://127.0.0.1:{self.port}{path}"
            given = {"authorization": f"Bearer {self.token}", "content-type": kind, **headers}
            answered = http.request(method, url, content=content, headers=given)
            status, answer = answered.status_code, answered.content
        self.answers[f"{method} {re.sub('[0-9]+', 'N', path.removeprefix('/v1'))}", status] += 1
        return answer

    def publish(self, domain: str, events: list[dict[str, object]]) -> list[int]:
        """Returns the positions of events of its own; none where they are not taken."""
        answer = self.request("POST", f"/v1/domains/{domain}/events", json.dumps(events).encode())
        with contextlib.suppress(ValueError):
            found = json.loads(answer).get("positions", [])
            return [int(position) for position in found]
        return []

    def useless(self) -> Iterator[str]:
        """Requests that reached nothing every time: an attack that attacks nothing.

        Where something was too much or failed, what was to be reached may never have been made.
        """
        if any(status in FULL or status == 0 or status >= 500 for _, status in self.answers):
            return
        for request in {request for request, _ in self.answers}:
            statuses = {status for one, status in self.answers if one == request}
            if statuses <= MISSED:
                yield f"{request} was answered {' and '.join(map(str, sorted(statuses)))} every time"

    def connect(self) -> socket.socket | None:
        with contextlib.suppress(OSError):
            one = socket.create_connection(("127.0.0.1", self.port), timeout=5)
            self.held.append(one)
            return one
        return None

    def hold(self) -> None:
        """Keep what is open, for a while."""
        time.sleep(HELD_SECONDS)
        for one in self.held:
            one.close()
        self.held.clear()


def feed_bomb(one: Attacker) -> None:
    """A feed of many items, each of which would repeat a long head."""
    head = "x" * 200_000
    items = "<item><guid>a</guid></item>" * 4000
    feed = f"<rss><channel><title>{head}</title>{items}</channel></rss>".encode()
    one.request(
        "POST", "/v1/domains/bombs/events", gzip.compress(feed), "application/rss+xml", **{"content-encoding": "gzip"}
    )


def gzip_members(one: Attacker) -> None:
    """Gzip of very many empty members."""
    body = gzip.compress(b"") * 100_000
    one.request("POST", "/v1/domains/members/events", body, **{"content-encoding": "gzip"})


def stalled_uploads(one: Attacker) -> None:
    """Large bodies that are begun and never finished."""
    for _ in range(13):
        upload = one.connect()
        if upload is not None:
            head = (
                f"POST /v1/domains/uploads/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {one.token}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {8 << 20}\r\n\r\n"
            )
            with contextlib.suppress(OSError):
                upload.sendall(head.encode() + b" " * ((8 << 20) - 1))
    one.hold()


def half_requests(one: Attacker) -> None:
    """Connections that say half of what they want, without a token."""
    for _ in range(300):
        half = one.connect()
        if half is not None:
            with contextlib.suppress(OSError):
                half.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ")
    one.hold()


def long_headers(one: Attacker) -> None:
    """Megabytes of headers."""
    line = one.connect()
    if line is not None:
        with contextlib.suppress(OSError):
            line.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            for number in range(20_000):
                line.sendall(b"X-%d: %s\r\n" % (number, b"y" * 1000))
    one.hold()


def many_domains(one: Attacker) -> None:
    """A domain for every request."""
    for number in range(30):
        one.request("POST", f"/v1/domains/flood{number}/events", b'{"a": 1}')


def unread_streams(one: Attacker) -> None:
    """Streams that nobody reads."""
    one.request("PUT", "/v1/domains/unread", b'{"attributes": [{"name": "a", "type": "bigint"}]}')
    for number in range(20):
        body = b'{"id": "unread-%d", "domain": "unread", "filter": "TRUE", "delivery": {"mode": "sse"}}' % number
        one.request("POST", "/v1/subscriptions", body)
        stream = one.connect()
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.sendall(
                    f"GET /v1/subscriptions/unread-{number}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                    f"Authorization: Bearer {one.token}\r\n\r\n".encode()
                )
    for _ in range(8):
        one.request("POST", "/v1/domains/unread/events", b'{"a": 1, "pad": "' + b"z" * 1_000_000 + b'"}')
    one.hold()


def slow_receivers(one: Attacker) -> None:
    """Webhooks whose receiver takes each connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as silent:
        port = silent.getsockname()[1]
        one.request("PUT", "/v1/domains/slow", b'{"attributes": [{"name": "a", "type": "bigint"}]}')
        for number in range(70):
            body = (
                b'{"id": "slow-%d", "domain": "slow", "filter": "TRUE", "delivery": {"mode": "webhook", '
                b'"url": "http://127.0.0.1:%d/"}}' % (number, port)
            )
            one.request("POST", "/v1/subscriptions", body)
        for _ in range(3):
            one.request("POST", "/v1/domains/slow/events", b'{"a": 1}')
        one.hold()


def many_subscriptions(one: Attacker) -> None:
    """Costly filters, as many as are taken."""
    one.request("PUT", "/v1/domains/costly", b'{"attributes": [{"name": "s", "type": "string"}]}')
    for number in range(100):
        parts = " OR ".join(f"length(s) * {number} - {part} = 3" for part in range(40))
        body = b'{"domain": "costly", "filter": "%s"}' % parts.encode()
        one.request("POST", "/v1/subscriptions", body)
    for _ in range(5):
        one.request("POST", "/v1/domains/costly/events", b"[%s]" % b",".join([b'{"s": "abc"}'] * 1000))


def _past(one: Attacker) -> None:
    """A domain with some thousand events, to be read again."""
    form = b'{"attributes": [{"name": "price", "type": "bigint"}]}'
    one.request("PUT", "/v1/domains/past", form)
    for _ in range(5):
        one.publish("past", [{"price": number % 9} for number in range(1000)])


def backtests(one: Attacker) -> None:
    """Many backtests at once."""
    _past(one)
    body = b'{"domain": "past", "filter": "price > 3"}'
    _at_once(lambda _: one.request("POST", "/v1/filters:backtest", body), 10)


def full_speed(one: Attacker) -> None:
    """As many events as the service takes, into many domains."""
    until = time.monotonic() + HELD_SECONDS
    body = b"[%s]" % b",".join([b'{"a": 1, "pad": "%s"}' % (b"z" * 500)] * 1000)

    def publish(number: int) -> None:
        while time.monotonic() < until:
            one.request("POST", f"/v1/domains/speed{number % 20}/events", body)

    _at_once(publish, 4)


def domains_described_again(one: Attacker) -> None:
    """A domain with costly filters described over and over: each time all of them are read again."""
    form = b'{"attributes": [{"name": "s", "type": "string"}, {"name": "a%d", "type": "bigint"}]}'
    one.request("PUT", "/v1/domains/described", form % 0)
    parts = " OR ".join(f"length(s) * {part} - {part} = 3" for part in range(200))
    for _ in range(24):
        one.request("POST", "/v1/subscriptions", b'{"domain": "described", "filter": "%s"}' % parts.encode())
    _at_once(lambda number: one.request("PUT", "/v1/domains/described", form % number), 8)


def asks_who_matched(one: Attacker) -> None:
    """Who got an event, asked of a domain with costly filters."""
    many_subscriptions(one)
    for position in one.publish("costly", [{"s": "abc"}] * 20):
        one.request("GET", f"/v1/events/{position}/matches", b"")


def histories(one: Attacker) -> None:
    """Many subscriptions that want all of the past."""
    _past(one)
    for _ in range(60):
        body = b'{"domain": "past", "filter": "price > 3", "start": "earliest"}'
        one.request("POST", "/v1/subscriptions", body)


def _at_once(work: Callable[[int], object], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


_ALL: tuple[Callable[[Attacker], None], ...] = (
    feed_bomb, gzip_members, stalled_uploads, half_requests, long_headers, many_domains, unread_streams, slow_receivers,
    many_subscriptions, backtests, full_speed, domains_described_again, asks_who_matched, histories,
)  # fmt: skip
ATTACKS = {attack.__name__: attack for attack in _ALL}
KINDS = tuple(ATTACKS)
