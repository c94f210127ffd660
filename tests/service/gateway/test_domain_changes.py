"""Describing domains: what filters and waiting events need stays, and no tenant waits for another."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tests.waiting import until

from tidings.service.data.data_directory import replace_json
from tidings.service.gateway import domain_changes

from ..conftest import STOCKS, Gateway

PRICES = {"attributes": [{"name": "symbol", "type": "string"}, {"name": "price", "type": "double"}]}
WORDS = {"attributes": [{"name": "symbol", "type": "string"}, {"name": "price", "type": "string"}]}


class Blocked:
    """`compile_filters`, which does not return for filters with a word in them until it is let."""

    def __init__(self, patch: pytest.MonkeyPatch, word: str) -> None:
        self._compile = domain_changes.compile_filters
        self._word = word
        self.calls = 0
        self.go_on = threading.Event()
        patch.setattr(domain_changes, "compile_filters", self)

    def __call__(self, filters: list[str], *given: Any, **named: Any) -> Any:
        if any(self._word in filter for filter in filters):
            self.calls += 1
            assert self.go_on.wait(60)
        return self._compile(filters, *given, **named)


def put(gateway: Gateway, form: dict[str, Any], name: str = "stocks") -> int:
    return answer_to(gateway, form, name).status_code


def answer_to(gateway: Gateway, form: dict[str, Any], name: str = "stocks") -> httpx2.Response:
    with gateway.client_of(gateway.token) as client:
        return client.put(f"/v1/domains/{name}", json=form, timeout=60)


def test_a_tenant_that_changes_large_domains_stops_no_other_tenant(
    stocks: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    stocks.subscribe("symbol = 'costly'")
    other = stocks.other_tenant()
    other.describe()
    other.subscribe("symbol = 'OIL'")
    blocked = Blocked(monkeypatch, "costly")
    with ThreadPoolExecutor(12) as threads:
        costly = [threads.submit(put, stocks, PRICES) for _ in range(12)]
        until(lambda: blocked.calls)
        try:
            assert other.client.post("/v1/domains/fresh/events", json=[{"x": 1}]).status_code == 200
            assert put(other, PRICES) == 200
            assert put(other, STOCKS, "new") == 201
            assert not any(one.done() for one in costly)
        finally:
            blocked.go_on.set()
        assert {one.result() for one in costly} == {200}


def test_a_filter_that_comes_while_a_domain_is_checked_is_checked_too(
    stocks: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    stocks.subscribe("symbol = 'costly'")
    blocked = Blocked(monkeypatch, "costly")
    with ThreadPoolExecutor(1) as threads:
        changing = threads.submit(put, stocks, PRICES)
        until(lambda: blocked.calls)
        stocks.subscribe("volume > 3", id="late")
        blocked.go_on.set()
        assert changing.result() == 409
    assert stocks.client.get("/v1/domains/stocks").json()["attributes"] == STOCKS["attributes"]


def test_a_domain_that_many_make_at_once_counts_once(make_gateway: Any) -> None:
    gateway = make_gateway()
    before = gateway.context.use.used(gateway.name, "domains")
    with ThreadPoolExecutor(8) as threads:
        made = [threads.submit(put, gateway, PRICES, "quotes") for _ in range(8)]
        assert sorted(one.result() for one in made) == [200] * 7 + [201]
    assert gateway.context.use.used(gateway.name, "domains") == before + 1


def matched(gateway: Gateway, domain: str = "stocks") -> None:
    """A driver says that all events of a domain are matched."""
    domains = {f"{gateway.name}.{domain}": {"state": "running", "reached": gateway.end}}
    replace_json(gateway.data.driver_status, {"pid": 7, "time": time.time(), "state": "running", "domains": domains})
    gateway.context.lag.read()


def test_a_domain_is_not_changed_so_that_a_waiting_event_does_not_fit_it(alone: Gateway) -> None:
    alone.subscribe("symbol = 'OIL'")
    position = alone.publish({"symbol": "GAS"}, {"symbol": "OIL", "price": 1.5})[1]
    refused = answer_to(alone, WORDS)
    assert refused.status_code == 409
    assert (
        f"2 events of the domain 'stocks' wait to be matched, and the one at position {position} does not fit"
        in (refused.json()["detail"])
    )
    assert put(alone, PRICES) == 200  # attributes that nobody asks for, and that the events need not have
    matched(alone)
    assert put(alone, WORDS) == 200


def test_events_that_no_filter_waits_for_do_not_stop_a_change_of_domain(stocks: Gateway) -> None:
    stocks.publish({"symbol": "OIL", "price": 1.5})
    assert put(stocks, WORDS) == 200
    stocks.subscribe("price = 'high'")
    assert put(stocks, STOCKS) == 409  # the filter


def test_a_filter_that_has_ended_is_checked_while_events_of_its_time_wait(alone: Gateway) -> None:
    alone.subscribe("price > 1", id="ended")
    alone.publish({"symbol": "OIL"})
    assert alone.client.delete("/v1/subscriptions/ended").status_code == 204
    alone.publish({"symbol": "OIL"})
    assert put(alone, {"attributes": [{"name": "symbol", "type": "string"}]}) == 409
    matched(alone)
    assert put(alone, {"attributes": [{"name": "symbol", "type": "string"}]}) == 200


def test_more_waiting_events_than_can_be_checked_are_waited_for(
    alone: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(domain_changes, "MAX_CHECKED_EVENTS", 5)
    alone.subscribe("symbol = 'OIL'")
    alone.publish_many(6)
    assert "6 events of the domain 'stocks' wait to be matched, too many" in answer_to(alone, PRICES).json()["detail"]
    assert put(alone, STOCKS) == 200  # as it is


def publish(gateway: Gateway, event: dict[str, Any]) -> int:
    with gateway.client_of(gateway.token) as client:
        return client.post("/v1/domains/stocks/events", json=event, timeout=60).status_code


def test_an_event_published_during_a_change_of_its_domain_must_fit_the_new_one(
    alone: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone.subscribe("symbol = 'OIL'")
    catalogue, writing, go_on = alone.context.catalogue, threading.Event(), threading.Event()
    put_domain = catalogue.put_domain

    def blocking(*given: Any, **named: Any) -> Any:
        writing.set()
        assert go_on.wait(60)
        return put_domain(*given, **named)

    monkeypatch.setattr(catalogue, "put_domain", blocking)
    with ThreadPoolExecutor(3) as threads:
        changing = threads.submit(put, alone, WORDS)
        assert writing.wait(60)
        end = alone.end
        uploading = '{"symbol":"OIL","price":1.5}', '{"symbol":"OIL"}'
        misfit, fit = (threads.submit(publish, alone, json.loads(event)) for event in uploading)
        until(lambda: alone.context.use.used(alone.name, "uploading_bytes") == sum(map(len, uploading)))
        assert alone.end == end
        go_on.set()
        assert (changing.result(), misfit.result(), fit.result()) == (200, 400, 200)
        assert alone.end == end + 1  # what was refused is not in the log


def test_a_change_of_domain_waits_for_events_that_are_being_appended(
    alone: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone.subscribe("symbol = 'OIL'")
    log, appending, go_on = alone.context.stores.log, threading.Event(), threading.Event()
    submit = log.submit

    def slowly(*given: Any, **named: Any) -> Future[list[int]]:
        appended: Future[list[int]] = Future()

        def append() -> None:
            assert go_on.wait(60)
            appended.set_result(submit(*given, **named).result())

        threading.Thread(target=append).start()
        appending.set()
        return appended

    monkeypatch.setattr(log, "submit", slowly)
    with ThreadPoolExecutor(2) as threads:
        publishing = threads.submit(publish, alone, {"symbol": "OIL", "price": 1.5})
        assert appending.wait(60)
        changing = threads.submit(put, alone, WORDS)
        other = alone.other_tenant()
        other.describe()
        assert put(other, WORDS) == 200  # and has waited for nobody
        go_on.set()
        assert (publishing.result(), changing.result()) == (200, 409)


def test_a_domain_that_was_read_before_a_change_is_not_remembered_after_it(
    stocks: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise events that do not fit it would be taken, as long as the gateway runs."""
    stocks.context.domains.forget(stocks.name, "stocks")
    catalogue, read, go_on = stocks.context.catalogue, threading.Event(), threading.Event()
    domain = catalogue.domain

    def slowly(*given: Any) -> Any:
        found = domain(*given)
        if not read.is_set():
            read.set()
            assert go_on.wait(60)
        return found

    monkeypatch.setattr(catalogue, "domain", slowly)
    with ThreadPoolExecutor(1) as threads:
        publishing = threads.submit(publish, stocks, {"symbol": "OIL", "price": 1.5})
        assert read.wait(60)
        assert put(stocks, WORDS) == 200
        go_on.set()
        assert publishing.result() == 400
    assert publish(stocks, {"symbol": "OIL", "price": 1.5}) == 400


def test_a_domain_may_name_its_placement(gateway: Gateway) -> None:
    assert put(gateway, STOCKS) == 201
    assert gateway.client.get("/v1/domains/stocks").json()["placement"] == "auto"
    named = answer_to(gateway, {**STOCKS, "placement": "opchord"})
    assert (named.status_code, named.json()["placement"]) == (200, "opchord")
    assert gateway.client.get("/v1/domains/stocks").json()["placement"] == "opchord"
    wrong = answer_to(gateway, {**STOCKS, "placement": "opcord"})
    assert (wrong.status_code, wrong.json()["pointer"]) == (422, "/placement")
    assert "did you mean 'opchord'" in wrong.json()["detail"]
    for number in range(3):
        assert put(gateway, {**STOCKS, "placement": "bluedove"}, f"more{number}") == 201
    refused = answer_to(gateway, {**STOCKS, "placement": "bluedove"}, "toomany")
    assert (refused.status_code, refused.json()["limit"], refused.json()["value"]) == (429, "placements", 4)
    assert put(gateway, {**STOCKS, "placement": "chord"}) == 200  # it has one already
    assert named_placements(gateway) == 4
    assert answer_to(gateway, STOCKS).json()["placement"] == "auto"
    assert named_placements(gateway) == 3
    assert put(gateway, {**STOCKS, "placement": "bluedove"}, "toomany") == 201
    gateway.restart()
    assert named_placements(gateway) == 4
    assert gateway.client.delete("/v1/domains/toomany").status_code == 204
    assert named_placements(gateway) == 3


def named_placements(gateway: Gateway) -> int:
    used: int = gateway.client.get("/v1/health").json()["quotas"]["placements"]["used"]
    return used
