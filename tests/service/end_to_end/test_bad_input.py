"""Bad input, row by row: what is answered, with a problem that says where, and nothing half done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

CLOUD = {"specversion": "1.0", "id": "1", "source": "/test", "type": "quote"}
PLAIN = "application/json"
ONE = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
LINES = "application/x-ndjson"


def check_problem(answer: Any, status: int, pointer: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert {"type", "title", "status", "detail"} <= set(problem)
    assert problem["status"] == status
    assert problem["detail"]
    assert "Traceback" not in answer.text
    if pointer is not None:
        assert problem.get("pointer") == pointer, problem
    return problem


def deep(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


BODIES = [
    ("over 1 MiB an event", PLAIN, b'{"symbol":"' + b"x" * (1 << 20) + b'"}', 413, None),
    ("over 1 MiB an event of a batch", PLAIN, b'[{},{"symbol":"' + b"x" * (1 << 20) + b'"}]', 413, "/1"),
    ("over 8 MiB a batch", PLAIN, b"[" + b" " * (8 << 20) + b"]", 413, None),
    ("over 1 MiB a line", LINES, b'{}\n{"symbol":"' + b"x" * (1 << 20) + b'"}', 413, "/1"),
    ("media type", "text/plain", b"{}", 415, None),
    ("malformed XML", "application/xml", b"<a>", 400, None),
    ("XML with a document type", "application/xml", b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", 400, None),
    ("no media type", "", b"{}", 415, None),
    ("charset", "application/json; charset=latin-1", b"{}", 415, None),
    ("empty", PLAIN, b"", 400, None),
    ("spaces alone", PLAIN, b" \n ", 400, None),
    ("malformed", PLAIN, b'{"price": }', 400, None),
    ("malformed in a batch", PLAIN, b'[{"price": 1}, {"price": ]', 400, "/1"),
    ("cut off", PLAIN, b'[{"price": 1}', 400, None),
    ("more after the event", PLAIN, b'{"price": 1} {"price": 2}', 400, None),
    ("more after the batch", PLAIN, b"[{}] []", 400, None),
    ("more in a line", LINES, b"{} {}", 400, "/0"),
    ("single quotes", PLAIN, b"{'price': 1}", 400, None),
    ("trailing comma", PLAIN, b'{"price": 1,}', 400, None),
    ("comment", PLAIN, b'{"price": 1} // yes', 400, None),
    ("control character", PLAIN, b'{"symbol": "a\x01b"}', 400, None),
    ("byte order mark", PLAIN, b"\xef\xbb\xbf{}", 400, None),
    ("UTF-16", PLAIN, '{"price": 1}'.encode("utf-16"), 400, None),
    ("invalid UTF-8", PLAIN, b'{"symbol": "\xff"}', 400, None),
    ("overlong UTF-8", PLAIN, b'{"symbol": "\xc0\xaf"}', 400, None),
    ("surrogates in UTF-8", PLAIN, b'{"symbol": "\xed\xa0\x80"}', 400, None),
    ("duplicate key", PLAIN, b'{"price": 1, "price": 2}', 400, None),
    ("duplicate key inside", PLAIN, b'[{}, {"venue": {"city": "a", "city": "b"}}]', 400, "/1"),
    ("too deep", PLAIN, deep(65), 400, None),
    ("far too deep", PLAIN, deep(100_000), 400, None),
    ("too deep in arrays", PLAIN, b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", 400, None),
    ("NaN", PLAIN, b'{"price": NaN}', 400, None),
    ("Infinity", PLAIN, b'{"price": Infinity}', 400, None),
    ("-Infinity", PLAIN, b'{"price": -Infinity}', 400, None),
    ("1e400", PLAIN, b'{"price": 1e400}', 400, None),
    ("-1E+400", PLAIN, b'{"price": -1E+400}', 400, None),
    ("1e400 where nobody looks", PLAIN, b'{"other": [1e400]}', 400, None),
    ("an endless exponent", PLAIN, b'{"price": 1e-99999999999999999999}', 400, None),
    ("integer beyond 64 bits", PLAIN, b'{"volume": 9223372036854775808}', 400, None),
    ("integer below 64 bits", PLAIN, b'{"other": -9223372036854775809}', 400, None),
    ("integer of 10,000 digits", PLAIN, b'{"other": ' + b"9" * 10_000 + b"}", 400, None),
    ("lone surrogate", PLAIN, b'{"symbol": "\\ud800"}', 400, None),
    ("lone surrogate in a key", PLAIN, b'{"\\udc00": 1}', 400, None),
    ("no object", PLAIN, b"1", 400, None),
    ("no object in a batch", PLAIN, b"[{}, 1]", 400, "/1"),
    ("a time without offset", PLAIN, b'{"time": "2026-01-01T00:00:00"}', 400, "/time"),
    ("no time of the calendar", PLAIN, b'{"time": "2026-02-30T00:00:00Z"}', 400, "/time"),
    ("a text for a number", PLAIN, b'{"price": "1"}', 400, "/price"),
    ("a fraction for an integer", PLAIN, b'{"volume": 1.5}', 400, "/volume"),
    ("a lost digit", PLAIN, b'{"paid": 1.005}', 400, "/paid"),
    ("a number for a struct", PLAIN, b'[{}, {"venue": 1}]', 400, "/1/venue"),
    ("a number inside a struct", PLAIN, b'{"venue": {"city": 1}}', 400, "/venue/city"),
    ("CloudEvent's data", ONE, {**CLOUD, "data": {"price": "dear"}}, 400, "/data/price"),
    ("CloudEvent without id", ONE, {**CLOUD, "id": None}, 400, "/id"),
    ("CloudEvent without source", ONE, {k: v for k, v in CLOUD.items() if k != "source"}, 400, "/source"),
    ("CloudEvent with an empty type", ONE, {**CLOUD, "type": ""}, 400, "/type"),
    ("CloudEvent of another version", ONE, {**CLOUD, "specversion": "0.3"}, 400, "/specversion"),
    ("a record for a CloudEvent", ONE, {"price": 1}, 400, "/specversion"),
    ("CloudEvent in a batch without id", BATCH, [CLOUD, {**CLOUD, "id": 2}], 400, "/1/id"),
    ("CloudEvent among records without type", PLAIN, [{}, {**CLOUD, "type": 1}], 400, "/1/type"),
    ("CloudEvent with a time without offset", ONE, {**CLOUD, "time": "2026-01-01T00:00:00"}, 400, "/time"),
    ("CloudEvent with bytes", ONE, {**CLOUD, "data_base64": "AAAA"}, 400, "/data_base64"),
    ("CloudEvent whose data is text", ONE, {**CLOUD, "data": "x"}, 400, "/data"),
    ("a batch that is none", BATCH, CLOUD, 400, None),
    ("one that is a batch", ONE, [CLOUD], 400, None),
]


@pytest.fixture(scope="module")
def shared(server: Any) -> Iterator[Any]:
    """One tenant for all rows: each leaves nothing behind."""
    tenant = server.new_tenant()
    tenant.describe()
    yield tenant
    tenant.close()


@pytest.mark.parametrize(
    ("kind", "body", "status", "pointer"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES]
)
def test_a_bad_body_is_refused_with_its_place_and_appends_nothing(
    shared: Any, kind: str, body: Any, status: int, pointer: str | None
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    end = shared.end
    answer = shared.client.post("/v1/domains/stocks/events", content=content, headers={"Content-Type": kind})
    check_problem(answer, status, pointer)
    assert shared.end == end


@pytest.mark.parametrize(
    ("headers", "status", "pointer"),
    [
        ({"ce-id": ""}, 400, "/id"),
        ({"ce-source": ""}, 400, "/source"),
        ({"ce-type": ""}, 400, "/type"),
        ({"ce-specversion": "2"}, 400, "/specversion"),
        ({"ce-time": "2026-01-01T00:00:00"}, 400, "/time"),
        ({"ce-Bad_Name": "x"}, 400, "/bad_name"),
        ({"ce-town": "%ff"}, 400, "/town"),
        ({"Content-Type": "text/plain"}, 415, None),
        ({"Content-Type": "application/x-ndjson"}, 415, None),
    ],
)
def test_a_bad_binary_cloud_event_is_refused(
    shared: Any, headers: dict[str, str], status: int, pointer: str | None
) -> None:
    whole = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t", "Content-Type": PLAIN, **headers}
    answer = shared.client.post("/v1/domains/stocks/events", content=b"{}", headers=whole)
    check_problem(answer, status, pointer)


@pytest.mark.parametrize(
    "body",
    [deep(64), b'{"symbol": "\\ud83d\\ude00"}', b'{"volume": 9223372036854775807}', b'{"volume": -9223372036854775808}',
     b'{"price": 1e-400}', b'{"other": 1e308}', b'{"venue": null}', b'{"time": "2026-01-01T00:00:00.5+23:59"}'],
)  # fmt: skip
def test_what_is_just_within_bounds_is_taken(shared: Any, body: bytes) -> None:
    answer = shared.client.post("/v1/domains/stocks/events", content=body, headers={"Content-Type": PLAIN})
    assert answer.status_code == 200, answer.text


FILTERS = [
    ("unknown attribute", "prise < 1", "price"),
    ("type error", "venue = 1", None),
    ("no condition", "price + 1", None),
    ("syntax", "price <", None),
    ("two statements", "TRUE; DROP TABLE subscriptions", None),
    ("quotes", "'); --", None),
    ("back-quotes", "`price", None),
    ("java_method", "java_method('java.lang.Runtime', 'getRuntime') = 1", None),
    ("subquery", "price IN (SELECT 1)", None),
    ("regex that is none", "symbol RLIKE '('", None),
    ("regex too large", "symbol RLIKE '((((a{1,100}){1,100}){1,100}){1,100})'", None),
    ("10,001 tokens", " AND ".join(["price < 1"] * 3000), None),
    ("201 levels", "(" * 201 + "price < 1" + ")" * 201, None),
]


@pytest.mark.parametrize(("text", "hint"), [row[1:] for row in FILTERS], ids=[row[0] for row in FILTERS])
def test_a_bad_filter_is_refused_wherever_it_is_given(shared: Any, text: str, hint: str | None) -> None:
    for path, body in (
        ("/v1/subscriptions", {"domain": "stocks", "filter": text}),
        ("/v1/filters:test", {"domain": "stocks", "filter": text, "event": {}}),
        ("/v1/filters:backtest", {"domain": "stocks", "filter": text}),
    ):
        problem = check_problem(shared.client.post(path, json=body), 422, "/filter")
        assert hint is None or hint in problem["detail"]
    assert shared.client.get("/v1/subscriptions").json()["subscriptions"] == []


def test_a_bad_filter_says_at_which_column_it_is_wrong(shared: Any) -> None:
    answer = shared.client.post("/v1/subscriptions", json={"domain": "stocks", "filter": "price < 1 AND prise > 2"})
    assert check_problem(answer, 422, "/filter")["column"] == 15


def test_a_costly_regex_and_a_filter_of_many_boxes_are_taken_for_they_cost_little(shared: Any) -> None:
    boxes = " AND ".join(f"(price < {n} OR volume > {n})" for n in range(20))
    for text in ("symbol RLIKE '(a+)+$'", boxes):
        event = {"symbol": "a" * 27 + "!", "price": 1.0}
        answer = shared.client.post("/v1/filters:test", json={"domain": "stocks", "filter": text, "event": event})
        assert answer.json()["matches"] in (True, False, None), answer.text


SUBSCRIPTIONS = [
    ({"filter": "TRUE"}, 422, "/domain"),
    ({"domain": "stocks"}, 422, "/filter"),
    ({"domain": "stocks", "filter": ""}, 422, "/filter"),
    ({"domain": "stocks", "filter": 1}, 422, "/filter"),
    ({"domain": "nowhere", "filter": "TRUE"}, 404, "/domain"),
    ({"domain": "../../etc", "filter": "TRUE"}, 404, "/domain"),
    ({"domain": "stocks", "filter": "TRUE", "filtre": 1}, 422, "/filtre"),
    ({"domain": "stocks", "filter": "TRUE", "state": "active"}, 422, "/state"),
    ({"domain": "stocks", "filter": "TRUE", "id": ""}, 422, "/id"),
    ({"domain": "stocks", "filter": "TRUE", "id": "a/b"}, 422, "/id"),
    ({"domain": "stocks", "filter": "TRUE", "id": "x" * 300}, 422, "/id"),
    ({"domain": "stocks", "filter": "TRUE", "delivery": "pull"}, 422, "/delivery"),
    ({"domain": "stocks", "filter": "TRUE", "delivery": {"mode": "pigeon"}}, 422, "/delivery/mode"),
    ({"domain": "stocks", "filter": "TRUE", "delivery": {"mode": "pull", "url": "https://a.b"}}, 422, "/delivery/url"),
    ({"domain": "stocks", "filter": "TRUE", "delivery": {"mode": "webhook"}}, 422, "/delivery/url"),
    ({"domain": "stocks", "filter": "TRUE", "delivery": {"mode": "webhook", "url": "https://a.b", "secret": "short"}},
     422, "/delivery/secret"),
    ({"domain": "stocks", "filter": "TRUE", "delivery": {"mode": "pull", "more": 1}}, 422, "/delivery/more"),
    ({"domain": "stocks", "filter": "TRUE", "start": "yesterday"}, 422, "/start"),
    ({"domain": "stocks", "filter": "TRUE", "start": {"position": -1}}, 422, "/start/position"),
    ({"domain": "stocks", "filter": "TRUE", "start": {"position": 10**9}}, 422, "/start/position"),
    ({"domain": "stocks", "filter": "TRUE", "start": {"time": "2026-01-01T00:00:00"}}, 400, "/start/time"),
    ({"domain": "stocks", "filter": "TRUE", "expires": "2099-01-01T00:00:00"}, 400, "/expires"),
    ({"domain": "stocks", "filter": "TRUE", "expires": "2001-01-01T00:00:00Z"}, 422, "/expires"),
    ({"domain": "stocks", "filter": "TRUE", "expires": 5}, 422, "/expires"),
    ({"domain": "stocks", "filter": "TRUE", "labels": {"a": 1}}, 422, "/labels/a"),
    ({"domain": "stocks", "filter": "TRUE", "labels": {"a=b": "c"}}, 422, "/labels/a=b"),
    ({"domain": "stocks", "filter": "TRUE", "labels": [1]}, 422, "/labels"),
    ({"domain": "stocks", "filter": "TRUE", "labels": []}, 422, "/labels"),
    ({"domain": "stocks", "filter": "TRUE", "paused": "yes"}, 422, "/paused"),
    ([], 422, ""),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "pointer"), SUBSCRIPTIONS)
def test_a_bad_subscription_is_refused_with_its_place(shared: Any, body: Any, status: int, pointer: str) -> None:
    check_problem(shared.client.post("/v1/subscriptions", json=body), status, pointer)
    assert shared.client.get("/v1/subscriptions").json()["subscriptions"] == []


DOMAINS = [
    ("stocks2", {}, "/attributes"),
    ("stocks2", {"attributes": []}, "/attributes"),
    ("stocks2", {"attributes": [{"name": "a"}]}, "/attributes"),
    ("stocks2", {"attributes": [{"name": "a", "type": "dubble"}]}, "/attributes"),
    ("stocks2", {"attributes": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}, "/attributes"),
    ("stocks2", {"attributes": [{"name": "_tidings_position", "type": "int"}]}, "/attributes"),
    ("stocks2", {"attributes": [{"name": "_Tidings_x", "type": "int"}]}, "/attributes"),
    ("stocks2", {"attributes": [{"name": "", "type": "int"}]}, "/attributes"),
    ("stocks2", {"attributes": [{"name": "a", "type": "int"}], "colour": 1}, "/colour"),
    ("stocks2", {"attributes": [{"name": "a", "type": "int"}], "name": "other"}, "/name"),
    ("Stocks", {"attributes": [{"name": "a", "type": "int"}]}, None),
    ("a.b", {"attributes": [{"name": "a", "type": "int"}]}, None),
]


@pytest.mark.parametrize("name", ["_tidings_position", "_TIDINGS_x", ""])
def test_events_with_a_name_that_no_attribute_has_give_no_domain(shared: Any, name: str) -> None:
    check_problem(shared.client.post("/v1/domains/new/events", json={name: 1, "a": 2}), 422)
    check_problem(shared.client.get("/v1/domains/new"), 404)


@pytest.mark.parametrize("name", ["position", "time", "subscriptions_version", "subscriptions", "rejected", "source"])
def test_names_of_the_services_own_are_names_of_attributes_too(shared: Any, name: str) -> None:
    body = {"attributes": [{"name": name, "type": "int"}]}
    assert shared.client.put(f"/v1/domains/with-{name.replace('_', '-')}", json=body).status_code < 300


@pytest.mark.parametrize(("name", "body", "pointer"), DOMAINS)
def test_a_bad_domain_is_refused(shared: Any, name: str, body: Any, pointer: str | None) -> None:
    check_problem(shared.client.put(f"/v1/domains/{name}", json=body), 422, pointer)
    check_problem(shared.client.get(f"/v1/domains/{name}"), 404)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/health", 404),
        ("GET", "/v1/subscriptions/", 404),
        ("GET", "/v1/domains/stocks/events", 405),
        ("DELETE", "/v1/subscriptions", 405),
        ("GET", "/v1/subscriptions?limit=0", 422),
        ("GET", "/v1/subscriptions?limit=x", 422),
        ("GET", "/v1/subscriptions?after=x", 422),
        ("GET", "/v1/subscriptions?state=odd", 422),
        ("GET", "/v1/subscriptions?search=%00", 422),
        ("GET", "/v1/subscriptions/none/notifications?wait=-1", 422),
        ("GET", "/v1/subscriptions/none/notifications?wait=nan", 422),
        ("GET", "/v1/subscriptions/none/notifications?limit=100000", 422),
        ("GET", "/v1/subscriptions/none", 404),
        ("GET", "/v1/subscriptions/%00", 404),
        ("GET", "/v1/events/x/matches", 404),
        ("GET", "/v1/events/-1/matches", 404),
        ("GET", "/v1/events/99999999999999999999/matches", 404),
        ("GET", "/v1/jobs/..%2F..%2Ftoken", 404),
        ("GET", "/v1/jobs/job_none", 404),
    ],
)
def test_what_the_framework_refuses_is_a_problem_too(shared: Any, method: str, path: str, status: int) -> None:
    check_problem(shared.client.request(method, path), status)


def test_a_mistake_of_our_own_says_so_without_a_stack_trace(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(shared.context.catalogue, "list", fail)
    answer = shared.client.get("/v1/subscriptions")
    check_problem(answer, 500)
    assert "secret" not in answer.text
