"""Delivery to who fetches: long polls, acknowledgements, dead letters; nothing lost, in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.waiting import until

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from ..stream_reader import streaming


def positions_of(pulled: dict[str, Any]) -> list[int]:
    return [one["position"] for one in pulled["notifications"]]


def ack(gateway: Any, id: str, cursor: object) -> Any:
    return gateway.client.post(f"/v1/subscriptions/{id}/ack", json={"cursor": cursor})


def wait_for_a_poll(gateway: Any) -> None:
    """Until somebody waits for notifications."""
    until(lambda: gateway.context.metrics.registry.get_sample_value("tidings_polls"))


def test_what_is_not_acknowledged_comes_again_and_what_is_does_not(alone: Any) -> None:
    made = alone.subscribe()["id"]
    positions = alone.publish({"symbol": "OIL", "price": 8.5}, {"symbol": "GAS", "paid": 1.10}, {"volume": 3})
    alone.load(positions, made)
    first = alone.pull(made, limit=2)
    assert first["notifications"][0] == {"position": 0, "event": {"symbol": "OIL", "price": 8.5}}
    assert positions_of(first) == positions_of(alone.pull(made, limit=2)) == [0, 1]
    assert ack(alone, made, first["cursor"]).status_code == 204
    assert positions_of(alone.pull(made)) == [2]
    alone.restart()
    assert positions_of(alone.pull(made)) == [2]
    assert ack(alone, made, "0").status_code == 204  # backwards: nothing comes back
    assert positions_of(alone.pull(made)) == [2]
    assert positions_of(alone.pull(made, after="-1")) == [0, 1, 2]


@pytest.mark.parametrize("cursor", [5, None, "x", "", "999999999", "-2", "again:x"])
def test_a_cursor_that_is_none_is_refused(stocks: Any, cursor: object) -> None:
    made = stocks.subscribe()["id"]
    answer = ack(stocks, made, cursor)
    assert (answer.status_code, answer.json()["pointer"]) == (422, "/cursor")


def test_a_long_poll_is_answered_by_every_load(stocks: Any) -> None:
    made = stocks.subscribe()["id"]
    positions = stocks.publish_many(4)
    stocks.load(positions[:1], made)
    ack(stocks, made, str(positions[0]))
    with ThreadPoolExecutor(1) as pool:
        for position in positions[1:]:
            waiting = pool.submit(stocks.pull, made, wait=60)
            wait_for_a_poll(stocks)
            stocks.load([position], made)
            assert positions_of(waiting.result()) == [position]
            ack(stocks, made, str(position))


def test_a_long_poll_is_answered_from_mailboxes_that_come_to_be_while_it_waits(stocks: Any) -> None:
    made = stocks.subscribe()["id"]
    positions = stocks.publish_many(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stocks.pull, made, wait=60)
        wait_for_a_poll(stocks)
        stocks.load(positions, made)
        assert positions_of(waiting.result()) == positions


def test_a_long_poll_ends_with_nothing_when_its_time_is_over(stocks: Any) -> None:
    made = stocks.subscribe()["id"]
    began = time.monotonic()
    assert stocks.pull(made, wait=0.2) == {"notifications": [], "cursor": "-1"}
    assert time.monotonic() - began > 0.15


def test_an_answer_has_no_more_than_so_many_bytes(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(max_answer_bytes=1000)
    made = gateway.subscribe()["id"]
    positions = gateway.publish(*({"symbol": "x" * 300} for _ in range(80)))
    gateway.load(positions, made)
    seen: list[int] = []
    while pulled := gateway.pull(made, limit=1000)["notifications"]:
        assert len(pulled) < 10
        seen += [one["position"] for one in pulled]
        ack(gateway, made, str(seen[-1]))
    assert seen == positions


def test_only_the_subscription_that_was_matched_is_told(stocks: Any) -> None:
    one, other = stocks.subscribe()["id"], stocks.subscribe()["id"]
    positions = stocks.publish_many(2)
    stocks.load(positions, one)
    assert positions_of(stocks.pull(one)) == positions
    assert positions_of(stocks.pull(other)) == []


# -- dead letters


def test_what_overflows_a_mailbox_is_a_dead_letter_that_can_be_redriven(alone: Any) -> None:
    made = alone.subscribe()["id"]
    positions = alone.publish_many(10)
    alone.load(positions, made, max_waiting=4)
    assert positions_of(alone.pull(made)) == positions[:4]
    path = f"/v1/subscriptions/{made}/dead-letters"
    page = alone.client.get(path, params={"limit": 4}).json()
    assert [letter["position"] for letter in page["dead_letters"]] == positions[4:8]
    assert "full" in page["dead_letters"][0]["reason"]
    assert page["dead_letters"][0]["event"] == {"symbol": "OIL", "price": 4.0}
    rest = alone.client.get(path, params={"limit": 4, "after": page["next"]}).json()
    assert ([letter["position"] for letter in rest["dead_letters"]], rest["next"]) == (positions[8:], None)
    again = alone.client.post(f"{path}:redrive", json={"positions": [4, 5, 777]})
    assert again.json() == {"positions": [4, 5]}
    pulled = alone.pull(made)
    assert positions_of(pulled) == [4, 5]
    assert positions_of(alone.pull(made)) == [4, 5]
    assert ack(alone, made, pulled["cursor"]).status_code == 204
    assert positions_of(alone.pull(made)) == positions[:4]
    alone.restart()
    left = alone.client.get(path).json()["dead_letters"]
    assert [letter["position"] for letter in left] == positions[6:]
    alone.client.post(f"{path}:redrive", json={})
    with streaming(alone, made) as reading:
        assert reading.positions(8) == positions[6:] + positions[:4]
    assert alone.client.get(path).json()["dead_letters"] == []


def test_an_event_that_retention_has_removed_is_a_dead_letter(alone: Any) -> None:
    made = alone.subscribe()["id"]
    first = alone.publish_many(1)
    second = alone.publish_many(1)
    alone.load(first + second, made)
    alone.context.log.retain(from_position=second[0])
    assert positions_of(alone.pull(made)) == second
    (letter,) = alone.client.get(f"/v1/subscriptions/{made}/dead-letters").json()["dead_letters"]
    assert (letter["position"], letter["event"]) == (first[0], None)
    assert "retention" in letter["reason"]


def test_a_poll_of_a_webhook_is_refused(stocks: Any) -> None:
    made = stocks.subscribe(delivery={"mode": "webhook", "url": "https://example.com/hook"})["id"]
    for path in ("notifications", "stream"):
        assert stocks.client.get(f"/v1/subscriptions/{made}/{path}").status_code == 409


def test_large_events_of_another_tenant_between_two_of_ours_cost_us_neither(server: Any) -> None:
    ours, theirs = server.new_tenant(), server.new_tenant()
    try:
        for tenant in (ours, theirs):
            tenant.describe()
        made = ours.subscribe()["id"]
        first = ours.publish({"symbol": "first"})
        for _ in range(42):
            theirs.publish({"symbol": "x" * 1_000_000})
        last = ours.publish({"symbol": "last"})
        ours.load(first + last, made)
        assert positions_of(ours.pull(made)) == first + last
        assert ours.client.get(f"/v1/subscriptions/{made}/dead-letters").json()["dead_letters"] == []
    finally:
        ours.close()
        theirs.close()


def test_many_large_events_are_all_delivered_and_listed_page_by_page(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway(max_answer_bytes=100_000)
    made, other = gateway.subscribe()["id"], gateway.subscribe()["id"]
    positions = [gateway.publish({"symbol": "x" * 60_000})[0] for _ in range(12)]
    gateway.load(positions, made)
    gateway.load(positions, other, max_waiting=0)
    path = f"/v1/subscriptions/{other}/dead-letters"
    listed: list[int] = []
    after = None
    while True:
        page = gateway.client.get(path, params={"after": after} if after else {}).json()
        assert len(page["dead_letters"]) <= 2
        assert all(letter["event"] for letter in page["dead_letters"])
        listed += [letter["position"] for letter in page["dead_letters"]]
        if (after := page["next"]) is None:
            break
    assert listed == positions
    gateway.client.post(f"{path}:redrive", json={})
    for id in (made, other):
        seen: list[int] = []
        while (pulled := gateway.pull(id, limit=1000))["notifications"]:
            assert len(pulled["notifications"]) <= 2
            seen += positions_of(pulled)
            assert ack(gateway, id, pulled["cursor"]).status_code == 204
        assert seen == positions


def test_what_was_acknowledged_and_then_removed_does_not_become_a_dead_letter(alone: Any) -> None:
    made = alone.subscribe()["id"]
    first, second = alone.publish_many(1), alone.publish_many(1)
    alone.load(first + second, made)
    ack(alone, made, str(first[0]))
    alone.context.log.retain(from_position=second[0])
    assert positions_of(alone.pull(made, after="-1")) == second
    assert alone.client.get(f"/v1/subscriptions/{made}/dead-letters").json()["dead_letters"] == []
