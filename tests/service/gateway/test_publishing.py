"""Publishing over HTTP: every form that events come in, exactly kept, once each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.waiting import until

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.service.data.data_directory import replace_json

CLOUD = {"specversion": "1.0", "id": "1", "source": "/test", "type": "quote"}
ONE = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"


def post(gateway: Any, body: Any, kind: str = "application/json", **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return gateway.client.post("/v1/domains/stocks/events", content=content, headers={"Content-Type": kind, **headers})


def event_at(gateway: Any, position: int) -> Any:
    return json.loads(gateway.client.get(f"/v1/events/{position}/matches").text, parse_float=str)["event"]


@pytest.mark.parametrize(
    ("kind", "body", "count"),
    [
        ("application/json", {"symbol": "OIL", "price": 1.5}, 1),
        ("application/json", [{"symbol": "OIL"}, {"symbol": "GAS"}], 2),
        ("application/json; charset=utf-8", {"symbol": "OIL"}, 1),
        ("application/json", [], 0),
        ("application/json", {**CLOUD, "data": {"symbol": "OIL"}}, 1),
        (ONE, {**CLOUD, "data": {"symbol": "OIL"}}, 1),
        (ONE, CLOUD, 1),
        (BATCH, [{**CLOUD, "data": {"symbol": "OIL"}}, {**CLOUD, "id": "2", "data": {}}], 2),
        ("application/x-ndjson", b'{"symbol":"OIL"}\n\n{"symbol":"GAS"}\r\n{"price":1}', 3),
    ],
)
def test_every_form_of_events_is_answered_with_positions(stocks: Any, kind: str, body: Any, count: int) -> None:
    end = stocks.end
    answer = post(stocks, body, kind)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"positions": list(range(end, end + count))}


def test_positions_go_up_by_one_from_request_to_request(stocks: Any) -> None:
    end = stocks.end
    published = [stocks.publish_many(count) for count in (1, 20, 3)]
    assert [len(positions) for positions in published] == [1, 20, 3]
    assert [position for positions in published for position in positions] == list(range(end, end + 24))


def test_a_binary_cloud_event_has_its_attributes_in_headers(stocks: Any) -> None:
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "b-1",
        "ce-source": "/s%20t",
        "ce-type": "quote",
        "ce-town": "K%C3%B6ln",
    }
    (position,) = post(stocks, {"symbol": "OIL", "price": 2}, **headers).json()["positions"]
    event = event_at(stocks, position)
    assert event["data"] == {"symbol": "OIL", "price": 2}
    assert (event["id"], event["source"], event["town"]) == ("b-1", "/s t", "Köln")
    assert event["datacontenttype"] == "application/json"


def test_what_was_published_is_kept_to_the_last_digit(stocks: Any) -> None:
    body = b'{"volume": 9007199254740993, "paid": 8.40, "price": 0.1, "symbol": "K\\u00f6ln", "more": {"a": 1e2}}'
    (position,) = post(stocks, body).json()["positions"]
    event = event_at(stocks, position)
    assert event["volume"] == 2**53 + 1
    assert (event["paid"], event["price"], event["symbol"]) == ("8.40", "0.1", "Köln")


@pytest.mark.parametrize("zero", ["0", "-0", "0.0", "-0.0", "0E0"])
def test_one_is_one_and_zero_is_zero_however_they_are_written(stocks: Any, zero: str) -> None:
    for filter, event in (
        ("price = 0", f'{{"price": {zero}}}'),
        ("volume = 1", '{"volume": 1.0}'),
        ("price = 0.1", '{"price": 0.10}'),
    ):
        body = f'{{"domain": "stocks", "filter": "{filter}", "event": {event}}}'
        answer = stocks.client.post("/v1/filters:test", content=body, headers={"Content-Type": "application/json"})
        assert answer.json()["matches"] is True, answer.text


def test_times_are_compared_as_instants(stocks: Any) -> None:
    body = {
        "domain": "stocks",
        "filter": "time = TIMESTAMP'2026-01-01 00:00:00Z'",
        "event": {"time": "2026-01-01T01:00:00+01:00"},
    }
    assert stocks.client.post("/v1/filters:test", json=body).json()["matches"] is True


def test_an_event_that_is_sent_again_has_the_position_of_the_first(alone: Any) -> None:
    event = {**CLOUD, "data": {"symbol": "OIL", "price": 1.0}}
    again = {"data": {"price": 1.00, "symbol": "OIL"}, **CLOUD}
    assert [post(alone, one, ONE).json()["positions"] for one in (event, again, {**event, "id": "2"})] == [
        [0],
        [0],
        [1],
    ]
    alone.restart()
    assert post(alone, event, ONE).json()["positions"] == [0]


def test_another_event_with_the_same_id_is_refused_with_its_whole_batch(stocks: Any) -> None:
    (first,) = post(stocks, {**CLOUD, "data": {"price": 1}}, ONE).json()["positions"]
    answer = post(stocks, [{**CLOUD, "id": "9", "data": {}}, {**CLOUD, "data": {"price": 2}}], BATCH)
    assert answer.status_code == 409
    assert answer.json()["pointer"] == "/1"
    assert answer.json()["position"] == first
    assert stocks.publish_many(1) == [first + 1]


def test_a_batch_with_one_bad_event_appends_none(stocks: Any) -> None:
    end = stocks.end
    events = [{"price": 1.0}] * 30 + [{"price": "dear"}]
    answer = post(stocks, events)
    assert answer.status_code == 400
    assert answer.json()["pointer"] == "/30/price"
    assert stocks.publish_many(1) == [end]


def test_gzip_is_read_and_counted_decompressed(stocks: Any) -> None:
    end = stocks.end
    small = gzip.compress(json.dumps([{"price": 1.0}] * 100).encode())
    assert post(stocks, small, **{"Content-Encoding": "gzip"}).json()["positions"] == list(range(end, end + 100))
    two = gzip.compress(b'{"price":') + gzip.compress(b"1.5}")
    assert post(stocks, two, **{"Content-Encoding": "gzip"}).status_code == 200
    bomb = gzip.compress(b" " * (9 << 20))
    assert len(bomb) < 1 << 17
    assert post(stocks, bomb, **{"Content-Encoding": "gzip"}).status_code == 413
    for broken in (small[:-20], b"no gzip at all"):
        assert post(stocks, broken, **{"Content-Encoding": "gzip"}).status_code == 400
    assert post(stocks, b"{}", **{"Content-Encoding": "br"}).status_code == 415


def test_a_domain_is_inferred_from_the_first_events_and_confirmed(gateway: Any) -> None:
    end = gateway.end
    answer = gateway.client.post("/v1/domains/trades/events", json=[{"price": 1}, {"price": 2.5, "symbol": "OIL"}])
    assert answer.json() == {"positions": [end, end + 1]}
    domain = gateway.client.get("/v1/domains/trades").json()
    assert domain["inferred"] is True
    assert {a["name"]: a["type"] for a in domain["attributes"]} == {"price": "double", "symbol": "string"}
    confirmed = gateway.client.put("/v1/domains/trades", json={"attributes": domain["attributes"]})
    assert (confirmed.status_code, confirmed.json()["inferred"]) == (200, False)
    mixed = gateway.client.post("/v1/domains/odd/events", json=[{"price": 1}, {"price": "dear"}])
    assert mixed.status_code == 422
    assert gateway.client.get("/v1/domains/odd").status_code == 404


def test_publishers_are_slowed_when_the_driver_is_too_far_behind(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(max_lag_events=50)
    gateway.publish_many(51)
    answer = post(gateway, {"price": 1})
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1
    said = {"time": 1e12, "domains": {"default.stocks": {"reached": 51}}}
    replace_json(gateway.data.driver_status, said)
    until(lambda: post(gateway, {"price": 1}).status_code == 200)


def test_the_lag_survives_a_restart_of_the_gateway(
    make_gateway: Callable[..., Any],
) -> None:
    gateway = make_gateway(max_lag_events=50)
    for _ in range(3):
        gateway.publish_many(20)
    replace_json(gateway.data.driver_status, {"time": 1e12, "domains": {"default.stocks": {"reached": 5}}})
    gateway.restart()
    assert gateway.client.get("/v1/health").json()["domains"]["stocks"]["lag_events"] == 55
    assert post(gateway, {"price": 1}).status_code == 429
    replace_json(gateway.data.driver_status, {"time": 1e12, "domains": {"default.stocks": {"reached": 40}}})
    until(lambda: gateway.client.get("/v1/health").json()["domains"]["stocks"]["lag_events"] == 20)
    assert post(gateway, {"price": 1}).status_code == 200


def test_many_publishers_at_once_share_the_log_in_order(stocks: Any) -> None:
    end = stocks.end

    def publish(publisher: int) -> list[int]:
        return [stocks.publish({"symbol": f"p{publisher}", "volume": n})[0] for n in range(20)]

    with ThreadPoolExecutor(8) as pool:
        positions = list(pool.map(publish, range(8)))
    assert all(theirs == sorted(theirs) for theirs in positions)
    assert sorted(position for theirs in positions for position in theirs) == list(range(end, end + 160))
