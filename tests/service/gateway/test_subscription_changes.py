"""Subscriptions that are made together are as those made one by one, and nobody pays for another's mistake."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

MANY = 60


def post(gateway: Any, body: dict[str, Any]) -> Any:
    return gateway.client.post("/v1/subscriptions", json={"domain": "stocks", "filter": "price > 1", **body})


def test_many_at_once_are_all_made_and_are_as_they_were_answered(stocks: Any) -> None:
    stocks.publish_many(3)
    with ThreadPoolExecutor(16) as pool:
        bodies = [{"id": f"s{n}", "labels": {"n": str(n)}, "paused": n % 2 == 0} for n in range(MANY)]
        answers = list(pool.map(lambda body: post(stocks, body), bodies))
    assert [answer.status_code for answer in answers] == [201] * MANY
    for answer in answers:
        assert stocks.client.get(answer.headers["Location"]).json() == answer.json()
    assert {answer.json()["filter_from"] for answer in answers} == {stocks.end}


def test_of_many_at_once_only_those_are_refused_that_cannot_be(stocks: Any) -> None:
    assert post(stocks, {"id": "taken"}).status_code == 201
    bodies = [{"id": "taken"} if n % 5 == 0 else {"id": f"s{n}"} for n in range(MANY)]
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda body: post(stocks, body).status_code, bodies))
    assert statuses == [409 if n % 5 == 0 else 201 for n in range(MANY)]


def test_of_those_who_want_the_same_id_at_once_one_gets_it(stocks: Any) -> None:
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda _: post(stocks, {"id": "one"}).status_code, range(30)))
    assert sorted(statuses) == [201] + [409] * 29


def test_a_history_is_asked_for_with_the_subscription(stocks: Any) -> None:
    first = stocks.publish_many(3)[0]
    made = post(stocks, {"start": {"position": first}}).json()
    assert made["state"] == "replaying"
    assert stocks.client.get(f"/v1/subscriptions/{made['id']}").json() == made
    nothing = post(stocks, {"start": {"position": stocks.end}}).json()
    assert nothing["state"] == "active"
