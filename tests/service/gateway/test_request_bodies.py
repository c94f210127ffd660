"""Bodies are received within their bounds, and quickly read JSON equals strictly read JSON."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.raw_http import Raw
from tests.waiting import until

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.model import strict_json
from tidings.model.domain import Attribute, Domain
from tidings.service.gateway import request_bodies as bodies
from tidings.service.gateway.gateway_settings import Quota, Quotas, ServiceLimits
from tidings.service.gateway.problems import Problem
from tidings.service.gateway.request_bodies import (
    BodyLimits,
    Events,
    event_lines,
    exact_paths,
    gunzipped,
    many_events,
    quick_array,
    quick_lines,
    received,
)

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

    from tidings.service.gateway import event_formats as xml_bodies

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


MAX = 1 << 20
LIMITS = BodyLimits(MAX, 8 << 20, 100_000)

texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    [":", '":', "},{", "a\\b", '"', "{", "[", " :"]
)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def objects(draw: st.DrawFn, value: st.SearchStrategy[Any] = values) -> str:
    """An object, written as somebody may write it: with spaces here and there, and a key twice now and then."""
    pairs = draw(st.lists(st.tuples(st.sampled_from(["a", "b", "c", "data"]) | texts, value), max_size=4))
    space = draw(st.sampled_from(["", " ", "\n"]))
    colon = draw(st.sampled_from([":", ": ", " :"]))
    ascii_ = draw(st.booleans())
    written = (
        json.dumps(key, ensure_ascii=ascii_) + colon + json.dumps(one, ensure_ascii=ascii_) for key, one in pairs
    )
    return "{" + f",{space}".join(written) + "}"


def in_doubles(value: Any) -> Any:
    match value:
        case dict():
            return {key: in_doubles(inner) for key, inner in value.items()}
        case list():
            return [in_doubles(inner) for inner in value]
        case Decimal():
            return float(value)
    return value


def strictly(body: str) -> Events | None:
    try:
        found = list(strict_json.read_array(body))
    except strict_json.MalformedError:
        return None
    return Events([in_doubles(one.value) for one in found], [body[one.start : one.end] for one in found])


@given(st.lists(objects() | objects(objects().map(json.loads)), max_size=4), st.sampled_from([",", ", ", ",\n"]))
def test_an_array_is_read_as_strictly_or_not_at_all(events: list[str], comma: str) -> None:
    body = "[" + comma.join(events) + "]"
    quick = quick_array(body.encode(), body, (), MAX)
    if quick is not None:
        assert Events(*quick) == strictly(body)


@given(st.text(alphabet='[]{},:"\\ \n01e.-atrue', max_size=40))
def test_what_is_no_json_is_never_read(body: str) -> None:
    quick = quick_array(body.encode(), body, (), MAX)
    if quick is not None:
        assert Events(*quick) == strictly(body)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_ordinary_events_are_read_quickly(separators: tuple[str, str]) -> None:
    data = [{"n": n, "price": n / 7, "name": f"Zürich {n}", "more": {"tags": ["a", None, True]}} for n in range(5)]
    clouds = [
        {"specversion": "1.0", "id": str(n), "source": "/s", "type": "t", "data": one} for n, one in enumerate(data)
    ]
    for events in (data, clouds):
        written = [json.dumps(event, separators=separators, ensure_ascii=False) for event in events]
        body = "[" + separators[0].join(written) + "]"
        assert quick_array(body.encode(), body, (("n",),), MAX) == (events, written)
        lines = "\r\n".join(written) + "\n"
        assert quick_lines(lines.encode(), lines, (("n",),), MAX) == (events, written)


@pytest.mark.parametrize(
    "event",
    [
        '{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', '{"a" :1,"a":2}', '{"data": {"a": 1}, "b": [{"c": 1, "c": 2}]}',
        '{"a": 9223372036854775808}', '{"a": 1e999}', '{"a": NaN}', '{"a": "\\ud800"}', '{"a": 1,}', "[1]", "7",
        '{"a": ' * 65 + "1" + "}" * 65, '{"a": "' + "x" * MAX + '"}', '{"a": 1} {"a": 2}', '{"a": "\t"}',
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_with_its_reason(event: str) -> None:
    body = f"[{event}]"
    assert quick_array(body.encode(), body, (), MAX) is None
    with pytest.raises(Problem):
        many_events(body.encode(), LIMITS, ())


def test_an_integer_or_a_decimal_with_a_point_is_read_digit_by_digit() -> None:
    domain = Domain(
        "d",
        [Attribute(name, type_) for name, type_ in {"n": "bigint", "in.fee": "decimal(10,2)", "x": "double"}.items()],
    )
    exact = exact_paths(domain)
    assert exact == (("n",), ("in", "fee"))
    for event in ('{"n":9007199254740993.0}', '{"in":{"fee":8.40}}', '{"specversion":"1.0","data":{"n":1.0}}'):
        for read, body in ((many_events, f"[{event}]"), (event_lines, event)):
            assert "Decimal" in repr(read(body.encode(), LIMITS, exact).objects)
    assert many_events(b'[{"n":1,"x":0.5,"in":{"fee":"8.40"}}]', LIMITS, exact).objects[0]["x"] == 0.5


def test_a_domain_with_integers_in_lists_is_read_digit_by_digit_always() -> None:
    for type_ in ("array<int>", "map<string,decimal(4,2)>", "array<struct<n:bigint>>"):
        assert exact_paths(Domain("d", [Attribute("a", type_)])) is None
    assert exact_paths(Domain("d", [Attribute("a", "array<double>")])) == ()
    assert exact_paths(Domain("d", [Attribute("specversion", "string")])) is None


def test_a_text_that_may_be_too_long_is_not_read_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """orjson would make all of it, with the interpreter's lock held."""
    read: list[str] = []

    def loads(text: str) -> Any:
        read.append(text)
        return json.loads(text)

    monkeypatch.setattr("orjson.loads", loads)
    long = '[{"a":[' + "1," * 200 + "1]}]"
    assert quick_array(long.encode(), long, (), 1000) is None
    assert read == []
    assert quick_array(long.encode(), long, (), 4000) is not None


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time passes only when a test says so."""

    seconds = 0.0

    def time(self) -> float:
        return self.seconds


class Slow:
    """A request whose body comes byte by byte, with so many seconds before each."""

    def __init__(self, clock: Clock, body: bytes, seconds: float) -> None:
        self.clock, self.body, self.seconds = clock, body, seconds

    async def stream(self) -> AsyncIterator[bytes]:
        for at in range(len(self.body)):
            self.clock.seconds += self.seconds
            for _ in range(2):  # to see that a time is over, and to act on it
                await asyncio.sleep(0)
            yield self.body[at : at + 1]


@pytest.mark.parametrize(("seconds", "status"), [(0.4, None), (0.6, 408)])
def test_a_body_has_more_time_for_as_long_as_it_comes_fast_enough(seconds: float, status: int | None) -> None:
    limits = ServiceLimits(body_seconds=0.5, min_bytes_per_second=2)  # so that every byte brings half a second
    body = b'{"price":1}' + b" " * 60
    with contextlib.closing(Clock()) as clock:
        reading = received(Slow(clock, body, seconds), 1000, Mock(), limits)  # type: ignore[arg-type]
        if status is None:
            assert clock.run_until_complete(reading) == body
        else:
            with pytest.raises(Problem) as refused:
                clock.run_until_complete(reading)
            assert refused.value.status == status
