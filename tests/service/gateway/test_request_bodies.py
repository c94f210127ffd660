"""Small bodies that stand for huge ones, and large ones that never come: bounded as they are made, by tenant."""

from __future__ import annotations

import gzip
import json
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tests.service.conftest import until
from tests.service.raw_http import Raw

from tidings.service.gateway import request_bodies as bodies
from tidings.service.gateway.problems import Problem
from tidings.service.gateway.quotas import Quota, Quotas, ServiceLimits
from tidings.service.gateway.request_bodies import gunzipped

EVENTS = "POST /v1/domains/stocks/events"
LINES = "application/x-ndjson"
EMPTY = gzip.compress(b"")
HEAD = "<title>" + "t" * 200_000 + "</title>"
RSS = f"<rss version='2.0'><channel>{HEAD}{{}}</channel></rss>"
ATOM = f"<feed xmlns='http://www.w3.org/2005/Atom'>{HEAD}{{}}</feed>"


def post(gateway: Any, body: bytes, kind: str = "application/json", *, compressed: bool = True) -> Any:
    headers = {"Content-Type": kind}
    if compressed:
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    return gateway.client.post("/v1/domains/news/events", content=body, headers=headers)


# -- feeds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "feed"),
    [
        ("application/rss+xml", RSS.format("<item/>" * 4000)),
        ("application/atom+xml", ATOM.format("<entry/>" * 4000)),
        ("application/rss+xml", RSS.replace("t" * 200_000, "<!--" + "-x" * 100_000 + "-->").format("<item/>" * 4000)),
        ("application/rss+xml", "<rss><channel><title>t</title>" + "<item/>" * 200_000 + "</channel></rss>"),
        ("application/rss+xml", "<rss><channel/>" + "<channel><item/></channel>" * 4000 + "</rss>"),
    ],
    ids=["RSS", "Atom", "a comment for a head", "many empty items", "a channel for each item"],
)
def test_a_feed_whose_items_come_to_too_much_is_413(gateway: Any, kind: str, feed: str) -> None:
    end = gateway.end
    answer = post(gateway, feed.encode(), kind)
    assert answer.status_code == 413, answer.text
    assert answer.json()["type"].endswith("too-large")
    assert gateway.end == end


def test_no_more_of_a_feed_is_made_than_is_taken() -> None:
    from tidings.xml.feed import FeedSizeError, split_feed

    feed = RSS.format("<item/>" * 4000)
    tracemalloc.start()
    try:
        with pytest.raises(FeedSizeError, match="first 6 of the feed's 4,000 items"):
            split_feed(feed, max_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_feeds_and_gzip_are_read_in_threads(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            threads.add(threading.current_thread().name.rpartition("_")[0])
            return work(*given, **named)

        return wrapped

    from tidings.service.gateway import xml_bodies

    monkeypatch.setattr(bodies, "gunzipped", noted(gunzipped))
    monkeypatch.setattr(xml_bodies, "split_feed", noted(xml_bodies.split_feed))
    assert post(gateway, b"<rss><channel><item><guid>1</guid></item></channel></rss>", "application/rss+xml").is_success
    assert threads == {"tidings-read"}


# -- gzip -----------------------------------------------------------------------------------------------


class Counted:
    """zlib, and how many bytes it is given."""

    def __init__(self) -> None:
        self.given = 0
        self.MAX_WBITS, self.error = zlib.MAX_WBITS, zlib.error

    def decompressobj(self, wbits: int) -> Any:
        return _Member(self, zlib.decompressobj(wbits))


class _Member:
    def __init__(self, counted: Counted, member: Any) -> None:
        self._counted, self._member = counted, member

    def decompress(self, data: Any, most: int) -> bytes:
        self._counted.given += len(data)
        found: bytes = self._member.decompress(data, most)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)


@pytest.mark.parametrize(
    "body",
    [
        EMPTY * 10_000,
        gzip.compress(b"{}\n") * 10_000,
        (EMPTY * 500 + gzip.compress(bytes(range(256)) * 300)) * 20,
        gzip.compress(b"\0" * (1 << 20)) * 7,
    ],
    ids=["empty members", "small members", "small and large", "members that grow"],
)
def test_every_byte_of_gzip_is_read_a_few_times_however_many_members(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted()
    monkeypatch.setattr(bodies, "zlib", counted)
    made = gunzipped(body, 8 << 20)
    assert made == gzip.decompress(body)
    # A member of 20 bytes is given 512; what is not yet used is given again for every 64 KiB that are made.
    assert counted.given <= 30 * len(body) + 2 * len(made)


def test_members_are_bounded_together(gateway: Any) -> None:
    member = gzip.compress(b" " * (1 << 20))
    assert len(gunzipped(member * 8, 8 << 20)) == 8 << 20
    with pytest.raises(Problem) as refused:
        gunzipped(member * 9, 8 << 20)
    assert refused.value.status == 413
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    for body, status in ((member * 9, 413), (EMPTY * 150_000, 400), (EMPTY + b"x", 400), (EMPTY[:-1], 400)):
        answer = gateway.client.post("/v1/domains/news/events", content=body, headers=headers)
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize("encoding", ["deflate", "br", "zstd", "gzip, gzip", "compress"])
def test_other_encodings_are_415(gateway: Any, encoding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    answer = gateway.client.post("/v1/domains/news/events", content=zlib.compress(b"{}"), headers=headers)
    assert answer.status_code == 415


# -- JSON -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"[" * 8_000_000, "application/json", 400),
        (b'{"a":' * 300_000, "application/json", 413),
        (b'{"a":' * 100_000, "application/json", 400),
        (b"\n" * (8 << 20), LINES, 200),
        (b" \r\n" * 2_000_000, LINES, 200),
        (b"{}\n" * 2_000_000, LINES, 413),
        (b"[" + b"{}," * 2_000_000 + b"{}]", "application/json", 413),
        (b'{"a":[' + b"[]," * 600_000 + b"[]]}", "application/json", 413),
        (b"--x\r\n" * 100, "multipart/form-data; boundary=x", 415),
        (b"<a>" + b"<b/>" * 1_000_000 + b"</a>", "application/xml", 413),
    ],
    ids=["arrays in arrays", "large and deep", "deep", "empty lines", "lines of spaces", "two million lines",
         "an array of two million", "a large event of small arrays", "multipart", "a large document"],
)  # fmt: skip
def test_large_json_in_little_gzip_is_refused_or_nothing(gateway: Any, body: bytes, kind: str, status: int) -> None:
    answer = post(gateway, body, kind)
    assert answer.status_code == status, answer.text
    if status == 200:
        assert answer.json() == {"positions": []}


def test_one_request_has_so_many_events_and_no_more(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(max_batch_events=100)
    event = {"price": 1.0, "venue": {"country": "CH"}}
    feed = "<rss><channel>{}</channel></rss>"
    for count, status in ((100, 200), (101, 413)):
        for body, kind in (
            (json.dumps([event] * count), "application/json"),
            ("\n".join([json.dumps(event)] * count), LINES),
            (feed.format("".join(f"<item><guid>{n}</guid></item>" for n in range(count))), "application/rss+xml"),
        ):
            domain = "news" if "rss" in kind else "stocks"
            answer = gateway.client.post(f"/v1/domains/{domain}/events", content=body, headers={"Content-Type": kind})
            assert answer.status_code == status, (kind, answer.text)


# -- stalled uploads --------------------------------------------------------------------------------------


def test_one_tenants_stalled_uploads_stop_nobody_else(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway()
    other = gateway.stranger()
    limit = Quota().uploading_bytes
    with ExitStack() as opened:
        for _ in range(13):
            raw = opened.enter_context(Raw(gateway))
            raw.request(EVENTS, b" " * (7 << 20), Content_Length=str(8 << 20), Content_Type="application/json")
        use = gateway.context.use
        until(lambda: use.refusals[gateway.name, "uploading_bytes"] == 9)  # four fit
        assert 4 * (7 << 20) <= use.used(gateway.name, "uploading_bytes") <= limit
        batch = [{"price": float(n), "symbol": "x" * 90} for n in range(20_000)]
        answer = other.post("/v1/domains/stocks/events", json=batch)
        assert answer.status_code == 200, answer.text
        refused = gateway.client.post("/v1/domains/stocks/events", json=batch * 3)
        assert refused.status_code == 429
        said = refused.json()
        assert (said["limit"], said["value"]) == ("uploading_bytes", limit)
        assert refused.headers["Retry-After"]
    until(lambda: use.used(gateway.name, "uploading_bytes") == 0)
    assert gateway.publish({"price": 1.0})


def test_what_is_shared_may_run_out_and_a_tenants_tenth_never(make_gateway: Callable[..., Any]) -> None:
    quotas = Quotas(Quota(uploading_bytes=1_000_000), service=ServiceLimits(max_bodies_bytes=1_500_000))
    gateway = make_gateway(quotas=quotas)
    tenants = [gateway, *(gateway._server.new_tenant() for _ in range(2))]
    with ExitStack() as opened:
        for tenant in tenants[:2]:
            opened.callback(tenant.close)
            raw = opened.enter_context(Raw(tenant))
            raw.request(EVENTS, b" " * 840_000, Content_Length="990000", Content_Type="application/json")
            until(lambda: gateway.context.use.used(tenant.name, "uploading_bytes") == 840_000)  # noqa: B023
        third = tenants[2]
        opened.callback(third.close)
        content = b'{"symbol":"%s"}' % (b"x" * 90_000)
        headers = {"Content-Type": "application/json"}
        assert third.client.post("/v1/domains/a/events", content=content, headers=headers).status_code == 200
        large = third.client.post("/v1/domains/a/events", content=content + b" " * 200_000, headers=headers)
        assert large.status_code == 503
        assert large.json()["limit"] == "uploading_bytes"
        assert large.headers["Retry-After"]
