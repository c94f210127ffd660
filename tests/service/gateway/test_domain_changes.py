"""Describing domains: what filters and waiting events need stays, and no tenant waits for another."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.service.gateway import domain_changes

from ..conftest import STOCKS, Gateway, until

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
    with gateway.client_of(gateway.token) as client:
        return client.put(f"/v1/domains/{name}", json=form, timeout=60).status_code


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
