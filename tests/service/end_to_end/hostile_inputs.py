"""Two hundred inputs that nobody should send, and the answer to each: one table, by what they attack."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

EVENTS = "/v1/domains/stocks/events"
JSON, LINES, XML = "application/json", "application/x-ndjson", "application/xml"
RSS, ATOM = "application/rss+xml", "application/atom+xml"
ONE, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
CLOUD = {"specversion": "1.0", "id": "1", "source": "/test", "type": "quote"}
WHOLE = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}


class Input(NamedTuple):
    """A request and the status that it is answered with."""

    name: str
    status: int
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})


def event(name: str, status: int, body: bytes | str, kind: str = JSON, **headers: str) -> Input:
    given = {"content-type": kind, **{key.replace("_", "-"): value for key, value in headers.items()}}
    return Input(name, status, "POST", EVENTS, body.encode() if isinstance(body, str) else body, given)


def sent(name: str, status: int, method: str, path: str, value: Any) -> Input:
    return Input(name, status, method, path, json.dumps(value).encode(), {"content-type": JSON})


def filter_(name: str, status: int, text: Any) -> Input:
    return sent(f"filter: {name}", status, "POST", "/v1/subscriptions", {"domain": "stocks", "filter": text})


def subscription(name: str, status: int, /, **fields: Any) -> Input:
    body = {"domain": "stocks", "filter": "TRUE", **fields}
    return sent(f"subscription: {name}", status, "POST", "/v1/subscriptions", body)


def domain(name: str, status: int, attributes: Any, /, **fields: Any) -> Input:
    return sent(f"domain: {name}", status, "PUT", "/v1/domains/hostile", {"attributes": attributes, **fields})


def get(name: str, status: int, path: str, **headers: str) -> Input:
    return Input(name, status, "GET", path, b"", {key.replace("_", "-"): value for key, value in headers.items()})


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def members(count: int) -> bytes:
    return gzip.compress(b"") * count


JSON_BODIES = [
    event("nothing", 400, b""),
    event("spaces", 400, "  \n\t "),
    event("a NUL byte", 400, b"\x00"),
    event("a NUL after the event", 400, b"{}\x00"),
    event("a form feed for a space", 400, b"\x0c{}"),
    event("a no-break space for a space", 400, "\u00a0{}"),
    event("a byte order mark", 400, b"\xef\xbb\xbf{}"),
    event("UTF-16", 400, '{"price": 1}'.encode("utf-16")),
    event("UTF-32", 400, '{"price": 1}'.encode("utf-32")),
    event("Latin-1", 400, '{"symbol": "é"}'.encode("latin-1")),
    event("an overlong slash", 400, b'{"symbol": "\xc0\xaf"}'),
    event("beyond Unicode", 400, b'{"symbol": "\xf4\x90\x80\x80"}'),
    event("a surrogate in UTF-8", 400, b'{"symbol": "\xed\xa0\x80"}'),
    event("a lone high surrogate", 400, '{"symbol": "\\ud800"}'),
    event("a lone low surrogate", 400, '{"symbol": "\\udfff x"}'),
    event("surrogates the wrong way round", 400, '{"symbol": "\\ude00\\ud83d"}'),
    event("a lone surrogate in a key", 400, '{"\\ud83d": 1}'),
    event("half an escape", 400, '{"symbol": "\\u12"}'),
    event("an unknown escape", 400, '{"symbol": "\\x41"}'),
    event("a line break in a text", 400, '{"symbol": "a\nb"}'),
    event("an unquoted key", 400, "{price: 1}"),
    event("single quotes", 400, "{'price': 1}"),
    event("a comma too many", 400, '{"price": 1,}'),
    event("a comma too few", 400, '{"price": 1 "volume": 2}'),
    event("a colon too many", 400, '{"price":: 1}'),
    event("a comment", 400, '{"price": 1 /* dear */}'),
    event("an open text", 400, '{"symbol": "OIL'),
    event("an open object", 400, '{"price": 1'),
    event("a closed array that was none", 400, '{"price": 1]'),
    event("two events in a row", 400, '{"price": 1}{"price": 2}'),
    event("a word", 400, "price"),
    event("True of Python", 400, '{"price": True}'),
    event("undefined", 400, '{"price": undefined}'),
    event("NaN", 400, '{"price": NaN}'),
    event("minus infinity", 400, '{"price": -Infinity}'),
    event("a plus sign", 400, '{"price": +1}'),
    event("leading zeros", 400, '{"price": 007}'),
    event("a point and no digit", 400, '{"price": 1.}'),
    event("no digit and a point", 400, '{"price": .5}'),
    event("hexadecimal", 400, '{"volume": 0x10}'),
    event("an exponent without digits", 400, '{"price": 1e}'),
    event("1e400", 400, '{"price": 1e400}'),
    event("a hundred thousand digits", 400, '{"other": ' + "9" * 100_000 + "}"),
    event("a hundred thousand decimals", 400, '{"paid": 0.' + "1" * 100_000 + "}"),
    event("an exponent beyond all", 400, '{"price": 1e99999999999999999999}'),
    event("2^63", 400, '{"volume": 9223372036854775808}'),
    event("below -2^63", 400, '{"volume": -9223372036854775809}'),
    event("a key twice", 400, '{"price": 1, "price": 1}'),
    event("a key twice by an escape", 400, '{"price": 1, "pric\\u0065": 2}'),
    event("a key twice deep inside", 400, '{"other": [[{"a": 1, "a": 2}]]}'),
    event("65 levels", 400, deep(65)),
    event("100,000 levels", 400, deep(100_000)),
    event("a million levels", 413, deep(1_000_000)),
    event("a million brackets", 400, "[" * 1_000_000),
    event("65 arrays", 400, '{"a":' + "[" * 65 + "]" * 65 + "}"),
    event("a number for an event", 400, "42"),
    event("null for an event", 400, "null"),
    event("a text for an event", 400, '"OIL"'),
    event("an array in an array", 400, "[[{}]]"),
    event("null among events", 400, "[{}, null]"),
    event("over 1 MiB", 413, '{"symbol": "' + "x" * (1 << 20) + '"}'),
    event("over 1 MiB of keys", 413, "{" + ",".join(f'"k{n}":1' for n in range(120_000)) + "}"),
    event("over 8 MiB", 413, "[" + " " * (8 << 20) + "]"),
    event("over 1 MiB in a line", 413, '{}\n{"symbol": "' + "x" * (1 << 20) + '"}', LINES),
    event("a line that is none", 400, "{}\n{\n{}", LINES),
    event("an array for lines", 400, "[{}]", LINES),
]

VALUES = [
    event("a text for a double", 400, '{"price": "1.5"}'),
    event("a boolean for a double", 400, '{"price": true}'),
    event("an array for a double", 400, '{"price": [1]}'),
    event("an object for a double", 400, '{"price": {"$numberDouble": "1"}}'),
    event("a fraction for a bigint", 400, '{"volume": 1.5}'),
    event("a text for a bigint", 400, '{"volume": "1"}'),
    event("too many decimals", 400, '{"paid": 0.001}'),
    event("too many digits", 400, '{"paid": 123456789.00}'),
    event("a number for a text", 400, '{"symbol": 1}'),
    event("a number for a time", 400, '{"time": 1767225600}'),
    event("a time without an offset", 400, '{"time": "2026-01-01T00:00:00"}'),
    event("the 30th of February", 400, '{"time": "2026-02-30T00:00:00Z"}'),
    event("the 25th hour", 400, '{"time": "2026-01-01T25:00:00Z"}'),
    event("the year 10,000", 400, '{"time": "10000-01-01T00:00:00Z"}'),
    event("an offset of a day", 400, '{"time": "2026-01-01T00:00:00+24:00"}'),
    event("a time in other digits", 400, '{"time": "２０２６-01-01T00:00:00Z"}'),
    event("a text for a struct", 400, '{"venue": "Paris"}'),
    event("an array for a struct", 400, '{"venue": []}'),
    event("a number inside a struct", 400, '{"venue": {"city": 75}}'),
    event("2^53 + 1 is exact", 200, '{"volume": 9007199254740993}'),
]

CLOUD_EVENTS = [
    sent("CloudEvent: nothing of it", 400, "POST", EVENTS, {"specversion": "1.0"}),
    event("CloudEvent: no id", 400, json.dumps({**CLOUD, "id": None}), ONE),
    event("CloudEvent: an empty id", 400, json.dumps({**CLOUD, "id": ""}), ONE),
    event("CloudEvent: a number for an id", 400, json.dumps({**CLOUD, "id": 1}), ONE),
    event("CloudEvent: an object for an id", 400, json.dumps({**CLOUD, "id": {}}), ONE),
    event("CloudEvent: an empty source", 400, json.dumps({**CLOUD, "source": ""}), ONE),
    event("CloudEvent: no type", 400, json.dumps({k: v for k, v in CLOUD.items() if k != "type"}), ONE),
    event("CloudEvent: version 0.3", 400, json.dumps({**CLOUD, "specversion": "0.3"}), ONE),
    event("CloudEvent: version 1 as a number", 400, json.dumps({**CLOUD, "specversion": 1.0}), ONE),
    event("CloudEvent: a time without an offset", 400, json.dumps({**CLOUD, "time": "2026-01-01T00:00:00"}), ONE),
    event("CloudEvent: data in base64", 400, json.dumps({**CLOUD, "data_base64": "e30="}), ONE),
    event("CloudEvent: data that is text", 400, json.dumps({**CLOUD, "data": "{}"}), ONE),
    event("CloudEvent: data that is an array", 400, json.dumps({**CLOUD, "data": []}), ONE),
    event("CloudEvent: a batch of one kind as one", 400, json.dumps([CLOUD]), ONE),
    event("CloudEvent: one as a batch", 400, json.dumps(CLOUD), BATCH),
    event("CloudEvent: a number in a batch", 400, json.dumps([CLOUD, 1]), BATCH),
    event("CloudEvent: XML data that is none", 400,
          json.dumps({**CLOUD, "datacontenttype": "application/xml", "data": "<a>"}), ONE),
    event("CloudEvent: a doctype in XML data", 400,
          json.dumps({**CLOUD, "datacontenttype": "application/xml", "data": "<!DOCTYPE a><a/>"}), ONE),
    Input("binary: an empty id", 400, "POST", EVENTS, b"{}", {**WHOLE, "ce-id": "", "content-type": JSON}),
    Input("binary: version 2", 400, "POST", EVENTS, b"{}", {**WHOLE, "ce-specversion": "2", "content-type": JSON}),
    Input("binary: a name of capitals", 400, "POST", EVENTS, b"{}", {**WHOLE, "ce-a_b": "x", "content-type": JSON}),
    Input("binary: half a percent escape", 400, "POST", EVENTS, b"{}", {**WHOLE, "ce-id": "%ff", "content-type": JSON}),
    Input("binary: a time of no calendar", 400, "POST", EVENTS, b"{}",
          {**WHOLE, "ce-time": "2026-13-01T00:00:00Z", "content-type": JSON}),
    Input("binary: lines", 415, "POST", EVENTS, b"{}", {**WHOLE, "content-type": LINES}),
]  # fmt: skip

MARKUP = [
    event("XML: nothing", 400, b"", XML),
    event("XML: text", 400, "price", XML),
    event("XML: an open element", 400, "<a><b></a>", XML),
    event("XML: two roots", 400, "<a/><b/>", XML),
    event("XML: a doctype", 400, "<!DOCTYPE a><a/>", XML),
    event("XML: a billion laughs", 400,
          '<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;">]><l>&c;</l>', XML),
    event("XML: an external entity", 400, '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', XML),
    event("XML: an external doctype", 400, '<!DOCTYPE a SYSTEM "http://127.0.0.1:1/a.dtd"><a/>', XML),
    event("XML: an unknown entity", 400, "<a>&nbsp;</a>", XML),
    event("XML: XInclude", 400,
          '<a xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="/etc/passwd" parse="text"/></a>', XML),
    event("XML: 257 levels", 400, "<a>" * 257 + "</a>" * 257, XML),
    event("XML: 100,000 levels", 400, "<a>" * 100_000 + "</a>" * 100_000, XML),
    event("XML: 1,001 attributes", 400, "<a " + " ".join(f'b{n}="1"' for n in range(1001)) + "/>", XML),
    event("XML: an attribute twice", 400, '<a b="1" b="2"/>', XML),
    event("XML: an unbound prefix", 400, "<x:a/>", XML),
    event("XML: a NUL", 400, b"<a>\x00</a>", XML),
    event("XML: a control character", 400, "<a>&#1;</a>", XML),
    event("XML: a surrogate", 400, "<a>&#xD800;</a>", XML),
    event("XML: another encoding than it says", 400, '<?xml version="1.0" encoding="utf-8"?><a>é</a>'.encode("latin-1"),
          XML),
    event("XML: an unknown encoding", 400, '<?xml version="1.0" encoding="klingon"?><a/>', XML),
    event("XML: over 1 MiB", 413, "<a>" + "x" * (1 << 20) + "</a>", XML),
    event("feed: no feed", 400, "<a/>", RSS),
    event("feed: malformed", 400, "<rss><channel><item>", RSS),
    event("feed: a doctype", 400, "<!DOCTYPE rss><rss><channel/></rss>", RSS),
    event("feed: Atom that is none", 400, "<entry/>", ATOM),
    event("feed: a head for every item", 413,
          f"<rss><channel><title>{'x' * 200_000}</title>{'<item><guid>a</guid></item>' * 4000}</channel></rss>", RSS),
]  # fmt: skip

ENCODINGS = [
    event("no media type", 415, "{}", ""),
    event("plain text", 415, "{}", "text/plain"),
    event("a form", 415, "price=1", "application/x-www-form-urlencoded"),
    event("several parts", 415, "--x--", "multipart/form-data; boundary=x"),
    event("another charset", 415, "{}", "application/json; charset=utf-16"),
    event("a media type of 8,000 characters", 415, "{}", "application/" + "x" * 8000),
    event("Brotli", 415, "{}", content_encoding="br"),
    event("gzip of gzip", 415, gzip.compress(gzip.compress(b"{}")), content_encoding="gzip, gzip"),
    event("gzip that is none", 400, "{}", content_encoding="gzip"),
    event("gzip cut short", 400, gzip.compress(b"{}" * 1000)[:-9], content_encoding="gzip"),
    event("gzip with a wrong sum", 400, gzip.compress(b'{"price": 1}')[:-8] + b"\x00" * 8, content_encoding="gzip"),
    event("gzip and more", 400, gzip.compress(b"{}") + b"more", content_encoding="gzip"),
    event("a gzip bomb", 413, gzip.compress(b" " * (64 << 20)), content_encoding="gzip"),
    event("gzip of many empty members", 400, members(1000), content_encoding="gzip"),
]

FILTERS = [
    filter_("nothing", 422, ""),
    filter_("spaces", 422, "   "),
    filter_("a number", 422, 7),
    filter_("a NUL", 422, "price < 1\0"),
    filter_("over 100,000 characters", 422, "price < 1" + " " * 100_000),
    filter_("10,001 tokens", 422, " AND ".join(["price < 1"] * 3000)),
    filter_("201 levels", 422, "(" * 201 + "price < 1" + ")" * 201),
    filter_("100,000 levels", 422, "(" * 49_000 + "price < 1" + ")" * 49_000),
    filter_("201 NOTs", 422, "NOT " * 201 + "TRUE"),
    filter_("201 minus signs", 422, "price > " + "-" * 201 + "1"),
    filter_("an unknown attribute", 422, "prise < 1"),
    filter_("a qualified attribute", 422, "stocks.price < 1"),
    filter_("a struct compared", 422, "venue = 1"),
    filter_("no condition", 422, "price + 1"),
    filter_("an assignment", 422, "price := 1"),
    filter_("two statements", 422, "TRUE; DROP TABLE subscriptions"),
    filter_("a comment that hides the end", 422, "price < 1 -- AND"),
    filter_("an open comment", 422, "price < 1 /*"),
    filter_("an open text", 422, "symbol = 'OIL"),
    filter_("an open back-quote", 422, "`price < 1"),
    filter_("a subquery", 422, "price IN (SELECT max(price) FROM stocks)"),
    filter_("EXISTS", 422, "EXISTS (SELECT 1)"),
    filter_("java_method", 422, "java_method('java.lang.System', 'exit', 1) IS NULL"),
    filter_("reflect", 422, "reflect('java.lang.Runtime', 'getRuntime') IS NULL"),
    filter_("input_file_name", 422, "input_file_name() = ''"),
    filter_("a random number", 422, "rand() < 0.5"),
    filter_("now", 422, "time < now()"),
    filter_("an aggregate", 422, "max(price) > 1"),
    filter_("a window", 422, "row_number() OVER (ORDER BY price) = 1"),
    filter_("a lambda", 422, "exists(array(1), x -> x > 1)"),
    filter_("a parameter", 422, "price < :limit"),
    filter_("a question mark", 422, "price < ?"),
    filter_("a regex that is none", 422, "symbol RLIKE '('"),
    filter_("a regex that looks back", 422, "symbol RLIKE '(?<=a)b'"),
    filter_("a regex that refers back", 422, "symbol RLIKE '(a)\\\\1'"),
    filter_("a regex too large", 422, "symbol RLIKE '((((a{1,100}){1,100}){1,100}){1,100})'"),
    filter_("LIKE that ends in its escape", 422, "symbol LIKE 'a\\\\'"),
    filter_("LIKE with an escape of two", 422, "symbol LIKE 'a' ESCAPE '!!'"),
    filter_("a path that is none", 422, "xpath_boolean(symbol, '//[')"),
    filter_("a path by position", 422, "xpath_boolean(symbol, '/a[1]')"),
    filter_("a path by another axis", 422, "xpath_boolean(symbol, '/a/following-sibling::b')"),
    filter_("a path with an unknown prefix", 422, "xpath_boolean(symbol, '/p:a')"),
    filter_("a path from an attribute", 422, "xpath_boolean(symbol, symbol)"),
    filter_("a date of no calendar", 422, "time > TIMESTAMP '2026-02-30 00:00:00Z'"),
    filter_("a cast that cannot be", 422, "CAST(venue AS INT) = 1"),
]

SUBSCRIPTIONS = [
    sent("subscription: an array", 422, "POST", "/v1/subscriptions", []),
    sent("subscription: a text", 422, "POST", "/v1/subscriptions", "TRUE"),
    sent("subscription: without a domain", 422, "POST", "/v1/subscriptions", {"filter": "TRUE"}),
    subscription("a domain that is not there", 404, domain="nowhere"),
    subscription("a domain that leads away", 404, domain="../../etc/passwd"),
    subscription("a domain of another tenant", 404, domain="other.stocks"),
    subscription("an unknown field", 422, tenant="default"),
    subscription("a state of one's own", 422, state="active"),
    subscription("an id that leads away", 422, id="../x"),
    subscription("an id of 300 characters", 422, id="x" * 300),
    subscription("an id with a line break", 422, id="a\nb"),
    subscription("an id that begins with a dash", 422, id="-rf"),
    subscription("an unknown mode", 422, delivery={"mode": "pigeon"}),
    subscription("a URL to pull", 422, delivery={"mode": "pull", "url": "https://example.org"}),
    subscription("a webhook to a file", 422, delivery={"mode": "webhook", "url": "file:///etc/passwd"}),
    subscription("a webhook by gopher", 422, delivery={"mode": "webhook", "url": "gopher://example.org"}),
    subscription("a webhook with a password", 422, delivery={"mode": "webhook", "url": "https://a:b@example.org/"}),
    subscription("a webhook without a host", 422, delivery={"mode": "webhook", "url": "https:///x"}),
    subscription("a webhook to port 0", 422, delivery={"mode": "webhook", "url": "https://example.org:0/"}),
    subscription(
        "a webhook to the link's own", 422, delivery={"mode": "webhook", "url": "https://169.254.169.254/latest"}
    ),
    subscription(
        "a webhook with a line break", 422, delivery={"mode": "webhook", "url": "https://example.org/\r\nX: y"}
    ),
    subscription("a short secret", 422, delivery={"mode": "webhook", "url": "https://example.org", "secret": "whsec_"}),
    subscription("a start in words", 422, start="yesterday"),
    subscription("a start below 0", 422, start={"position": -1}),
    subscription("a start beyond the log", 422, start={"position": 10**12}),
    subscription("a start of 2^70", 400, start={"position": 2**70}),
    subscription("two starts", 422, start={"position": 1, "time": "2026-01-01T00:00:00Z"}),
    subscription("an end that is past", 422, expires="2001-01-01T00:00:00Z"),
    subscription("an end without an offset", 400, expires="2099-01-01T00:00:00"),
    subscription("65 labels", 422, labels={f"l{n}": "x" for n in range(65)}),
    subscription("a label of 256 characters", 422, labels={"a": "x" * 256}),
    subscription("a label with a NUL", 422, labels={"a": "\0"}),
    subscription("nodes of no path", 422, select="nodes"),
]

DOMAINS = [
    sent("domain: an array", 422, "PUT", "/v1/domains/hostile", []),
    domain("no attributes", 422, []),
    domain("attributes as an object", 422, {"a": "int"}),
    domain("an attribute without a type", 422, [{"name": "a"}]),
    domain("an empty name", 422, [{"name": "", "type": "int"}]),
    domain("a number for a name", 422, [{"name": 1, "type": "int"}]),
    domain("an unknown type", 422, [{"name": "a", "type": "dubble"}]),
    domain("a decimal of 39 digits", 422, [{"name": "a", "type": "decimal(39,0)"}]),
    domain("an open type", 422, [{"name": "a", "type": "struct<b:int"}]),
    domain("a type of 10,000 levels", 422, [{"name": "a", "type": "array<" * 10_000 + "int" + ">" * 10_000}]),
    domain("a name twice", 422, [{"name": "a", "type": "int"}, {"name": "a", "type": "bigint"}]),
    domain("an unknown field", 422, [{"name": "a", "type": "int"}], colour="red"),
    domain("another name than the address", 422, [{"name": "a", "type": "int"}], name="other"),
    sent("domain: a name of capitals", 422, "PUT", "/v1/domains/Stocks",
         {"attributes": [{"name": "a", "type": "int"}]}),
    sent("domain: a name with a point", 422, "PUT", "/v1/domains/a.b", {"attributes": [{"name": "a", "type": "int"}]}),
    sent("domain: a name of 300 characters", 422, "PUT", f"/v1/domains/{'a' * 300}",
         {"attributes": [{"name": "a", "type": "int"}]}),
    sent("domain: a name that leads away", 404, "PUT", "/v1/domains/..%2F..%2Fx",
         {"attributes": [{"name": "a", "type": "int"}]}),
]  # fmt: skip

ADDRESSES = [
    get("no such page", 404, "/v1/nothing"),
    get("a page that leads away", 404, "/v1/../../etc/passwd"),
    get("a page that leads away in disguise", 404, "/v1/%2e%2e/%2e%2e/token"),
    get("a subscription with a NUL", 404, "/v1/subscriptions/%00"),
    get("a subscription of 1,000 characters", 404, f"/v1/subscriptions/{'x' * 1000}"),
    get("a limit of 0", 422, "/v1/subscriptions?limit=0"),
    get("a limit of 10^30", 422, f"/v1/subscriptions?limit={10**30}"),
    get("a wait below 0", 422, "/v1/subscriptions/none/notifications?wait=-1"),
    get("a wait without end", 422, "/v1/subscriptions/none/notifications?wait=inf"),
    get("a wait that is no number", 422, "/v1/subscriptions/none/notifications?wait=nan"),
    get("the position -1", 404, "/v1/events/-1/matches"),
    get("the position 10^20", 404, f"/v1/events/{10**20}/matches"),
    get("a job that leads away", 404, "/v1/jobs/..%2F..%2Ftoken"),
    get("no token", 401, "/v1/subscriptions", authorization=""),
    get("a token of another kind", 401, "/v1/subscriptions", authorization="Basic YTpi"),
    get("a wrong token", 401, "/v1/subscriptions", authorization="Bearer tk_wrong"),
    get("a token of 10,000 characters", 401, "/v1/subscriptions", authorization="Bearer " + "x" * 10_000),
    get("a host that is not ours", 421, "/v1/health", host="evil.example"),
    get("a host that begins as ours", 421, "/v1/health", host="localhost.evil.example"),
    sent("an ack of nothing", 404, "POST", "/v1/subscriptions/none/ack", {"cursor": "1"}),
    sent("a body where none is", 405, "POST", "/v1/health", {}),
    sent("a backtest of no domain", 404, "POST", "/v1/filters:backtest", {"domain": "none", "filter": "TRUE"}),
    sent("a test of no event", 422, "POST", "/v1/filters:test", {"domain": "stocks", "filter": "TRUE"}),
    Input("a change of what is only read", 405, "PATCH", "/v1/health"),
    Input("TRACE", 405, "TRACE", "/v1/health"),
]

INPUTS = [
    *JSON_BODIES, *VALUES, *CLOUD_EVENTS, *MARKUP, *ENCODINGS, *FILTERS, *SUBSCRIPTIONS, *DOMAINS, *ADDRESSES,
]  # fmt: skip
