"""Asking about filters: one event explained, the past on Spark, and who got an event."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.service.data.data_directory import replace_json
from tidings.service.gateway import filter_evaluation


@pytest.mark.parametrize(
    ("filter", "matches"), [("price < 10", True), ("price > 10", False), ("volume > 1", None), ("TRUE", True)]
)
def test_a_filter_is_tested_against_one_event_and_explained(stocks: Any, filter: str, matches: bool | None) -> None:
    body = {"domain": "stocks", "filter": filter, "event": {"price": 8.5}}
    answer = stocks.client.post("/v1/filters:test", json=body).json()
    assert answer["matches"] is matches
    assert answer["explanation"]["filter"] == filter
    assert ("matches" if matches else "does not match") in answer["text"]


def test_a_filter_can_be_tested_without_a_domain(gateway: Any) -> None:
    body = {"filter": "price < 10", "event": {"price": 8}}
    assert gateway.client.post("/v1/filters:test", json=body).json()["matches"] is True


def test_a_tested_event_that_does_not_fit_says_where(stocks: Any) -> None:
    body = {"domain": "stocks", "filter": "TRUE", "event": {"venue": {"city": 5}}}
    answer = stocks.client.post("/v1/filters:test", json=body)
    assert (answer.status_code, answer.json()["pointer"]) == (400, "/event/venue/city")


def test_who_got_an_event_and_who_nearly_did(stocks: Any) -> None:
    stocks.subscribe("price < 10", id="cheap")
    stocks.subscribe("price < 8", id="cheaper")
    stocks.subscribe("price < 8 AND volume > 5", id="far")
    position = stocks.publish({"symbol": "OIL", "price": 8.5, "volume": 2})[0]
    stocks.subscribe("price < 10", id="late")
    answer = stocks.client.get(f"/v1/events/{position}/matches").json()
    assert answer["event"] == {"symbol": "OIL", "price": 8.5, "volume": 2}
    assert answer["matched"] == ["cheap"]
    assert [(miss["subscription"], miss["failing"]) for miss in answer["nearly"]] == [("cheaper", 1), ("far", 2)]
    assert "price" in answer["nearly"][0]["text"]
    stocks.client.patch("/v1/subscriptions/cheaper", json={"filter": "price < 9"})
    again = stocks.publish({"price": 8.5})[0]
    assert stocks.client.get(f"/v1/events/{again}/matches").json()["matched"] == ["cheap", "cheaper", "late"]
    assert stocks.client.get(f"/v1/events/{position}/matches").json()["matched"] == ["cheap"]
    assert stocks.client.get(f"/v1/events/{stocks.end}/matches").status_code == 404


def answer_jobs(gateway: Any, answer: dict[str, Any]) -> threading.Thread:
    """Answer the next job as the driver does."""

    def run() -> None:
        jobs = until(gateway.open_jobs)
        gateway.job = jobs[0]
        replace_json(gateway.data.answer(jobs[0].id), answer)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_backtest_is_passed_to_the_driver_and_answered_when_it_is_done(stocks: Any) -> None:
    first = stocks.publish_many(5)[0]
    stocks.subscribe("price < 1", id="now")
    told = {"done": True, "count": 3, "events": 5, "rate": [], "samples": [], "difference": None}
    driver = answer_jobs(stocks, told)
    asked = {"domain": "stocks", "filter": "price < 3", "from": first + 1}
    body = {**asked, "to": "2099-01-01T00:00:00Z", "compare": "now"}
    answer = stocks.client.post("/v1/filters:backtest", json=body)
    driver.join()
    if answer.status_code == 202:  # a slow machine: ask where it says
        answer = stocks.client.get(answer.headers["location"])
    assert answer.status_code == 200, answer.text
    assert answer.json() == {name: value for name, value in told.items() if name != "done"}
    assert stocks.job.request == {**asked, "to": first + 5, "against": "price < 1"}
    assert not stocks.data.answer(stocks.job.id).exists()
    assert stocks.client.get(f"/v1/jobs/{stocks.job.id}").json()["count"] == 3


def test_filters_that_no_longer_fit_their_domain_do_not_stop_queries(stocks: Any) -> None:
    changed = stocks.subscribe("volume > 5", id="changed")["id"]
    stocks.client.delete(f"/v1/subscriptions/{stocks.subscribe('volume > 6')['id']}")
    stocks.client.patch(f"/v1/subscriptions/{changed}", json={"filter": "price > 5"})
    attributes = [{"name": "symbol", "type": "string"}, {"name": "price", "type": "double"}]
    stocks.describe(form={"attributes": attributes})
    (position,) = stocks.publish({"symbol": "OIL", "price": 6})
    assert stocks.client.get(f"/v1/events/{position}/matches").json()["matched"] == ["changed"]


def test_a_backtest_that_takes_long_is_found_later(stocks: Any) -> None:
    answer = stocks.client.post("/v1/filters:backtest", json={"domain": "stocks", "filter": "TRUE"})
    assert answer.status_code == 202
    location = answer.headers["location"]
    assert stocks.client.get(location).status_code == 202
    (job,) = stocks.open_jobs()
    replace_json(stocks.data.answer(job.id), {"done": False, "kind": "request", "reason": "it cannot be"})
    refused = stocks.client.get(location)
    assert (refused.status_code, refused.json()["detail"]) == (422, "it cannot be")


@pytest.mark.parametrize(
    ("more", "status", "pointer"),
    [({"from": -1}, 422, "/from"), ({"from": 3, "to": 2}, 422, "/to"), ({"to": "2026-01-01T00:00:00"}, 400, "/to"),
     ({"compare": "none"}, 404, "/compare"), ({"colour": 1}, 422, "/colour")],
)  # fmt: skip
def test_a_bad_backtest_is_refused(stocks: Any, more: dict[str, Any], status: int, pointer: str) -> None:
    stocks.publish_many(5)
    answer = stocks.client.post("/v1/filters:backtest", json={"domain": "stocks", "filter": "TRUE", **more})
    assert (answer.status_code, answer.json()["pointer"]) == (status, pointer)
    assert stocks.open_jobs() == []


def matches(gateway: Any, position: int) -> Any:
    with gateway.client_of(gateway.token) as client:
        return client.get(f"/v1/events/{position}/matches", timeout=60)


def test_a_tenant_that_asks_for_matches_of_costly_filters_stops_no_other(
    stocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stocks.subscribe("symbol = 'costly'")
    other = stocks.other_tenant()
    other.describe()
    made = other.subscribe("symbol = 'OIL'")
    mine, theirs = stocks.publish({"symbol": "OIL"})[0], other.publish({"symbol": "OIL"})[0]
    called, go_on = threading.Event(), threading.Event()
    compile_filters = filter_evaluation.compile_filters

    def blocking(filters: list[str], *given: Any, **named: Any) -> Any:
        if "symbol = 'costly'" in filters:
            called.set()
            assert go_on.wait(60)
        return compile_filters(filters, *given, **named)

    monkeypatch.setattr(filter_evaluation, "compile_filters", blocking)
    with ThreadPoolExecutor(12) as threads:
        costly = [threads.submit(matches, stocks, mine) for _ in range(12)]
        try:
            assert called.wait(60)
            assert matches(other, theirs).json()["matched"] == [made["id"]]
            assert other.client.post("/v1/domains/fresh/events", json={"x": 1}).status_code == 200
            assert not any(one.done() for one in costly)
        finally:
            go_on.set()
        assert {one.result().status_code for one in costly} == {200}


def test_matches_are_refused_when_the_filters_of_a_domain_are_too_long(
    stocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stocks.subscribe("symbol = 'OIL'")
    position = stocks.publish({"symbol": "OIL"})[0]
    monkeypatch.setattr(filter_evaluation, "MAX_CHARACTERS", len("symbol = 'OIL'"))
    assert len(matches(stocks, position).json()["matched"]) == 1
    stocks.subscribe("TRUE")
    refused = matches(stocks, position)
    assert (refused.status_code, refused.json()["limit"]) == (422, "matches_filter_characters")
    assert "have 18 characters" in refused.json()["detail"]


def test_a_tenant_whose_backtest_is_being_added_stops_no_other(stocks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = stocks.other_tenant()
    other.describe()
    called, go_on = threading.Event(), threading.Event()
    catalogue = stocks.context.catalogue
    add_job = catalogue.add_job

    def blocking(kind: str, tenant: str, *given: Any) -> Any:
        if tenant == stocks.name:
            called.set()
            assert go_on.wait(LAST_RESORT_SECONDS)
        return add_job(kind, tenant, *given)

    def backtest(gateway: Any) -> int:
        with gateway.client_of(gateway.token) as client:
            return int(client.post("/v1/filters:backtest", json={"domain": "stocks", "filter": "TRUE"}).status_code)

    monkeypatch.setattr(catalogue, "add_job", blocking)
    with ThreadPoolExecutor(1) as threads:
        blocked = threads.submit(backtest, stocks)
        try:
            assert called.wait(LAST_RESORT_SECONDS)
            assert backtest(other) == 202
            assert not blocked.done()
        finally:
            go_on.set()
        assert blocked.result() == 202
