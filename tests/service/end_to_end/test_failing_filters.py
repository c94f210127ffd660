"""A filter that breaks matching: its owner sees it, what it missed are dead letters, and a repair loses nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.waiting import until

from tidings.service.data.data_directory import FailedFilter, SetAside, replace_json
from tidings.store.catalogue import SubscriptionRow

from ..conftest import Gateway

REASON = "ArrowInvalid: the pattern is too large"


def driver_says(gateway: Gateway, **said: Any) -> None:
    domain = {"state": "running", "since": time.time(), "problem": None, "reached": gateway.end, **said}
    status = {"pid": 1, "time": time.time(), "state": "running", "domains": {"default.stocks": domain}}
    replace_json(gateway.data.driver_status, status)


def row_of(gateway: Gateway, id: str) -> SubscriptionRow:
    found = gateway.catalogue.get("default", id)
    assert found is not None
    return found


@pytest.fixture
def failing(alone: Gateway) -> Gateway:
    """A subscription that matched one event, and whose filter the driver has set aside at the second."""
    alone.describe()
    alone.subscribe("price > 8", id="bad")
    alone.subscribe("price > 0", id="good")
    positions = alone.publish_many(4)
    alone.load(positions[:1], "bad")
    number = row_of(alone, "bad").filters[-1].number
    aside = SetAside({number: FailedFilter(number, positions[1], REASON)}, {positions[3]: "RuntimeError: poison"})
    aside.write(alone.data.domain("default", "stocks").aside)
    driver_says(alone, set_aside=2)
    until(lambda: alone.client.get("/v1/subscriptions/bad").json()["state"] == "failed")
    return alone


def dead_letters(gateway: Gateway, id: str, **query: Any) -> list[tuple[int, str]]:
    found = gateway.client.get(f"/v1/subscriptions/{id}/dead-letters", params=query).json()["dead_letters"]
    return [(letter["position"], letter["reason"]) for letter in found]


def test_a_failed_filter_is_shown_with_its_reason_and_what_it_missed(failing: Gateway) -> None:
    shown = failing.client.get("/v1/subscriptions/bad").json()
    assert (shown["state"], shown["failed"]) == ("failed", REASON)
    listed = failing.client.get("/v1/subscriptions", params={"state": "failed"}).json()["subscriptions"]
    assert [one["id"] for one in listed] == ["bad"]
    first = failing.end - 4
    missed = [(first + at, f"the filter could not be matched: {REASON}") for at in (1, 2, 3)]
    assert dead_letters(failing, "bad")[:2] == missed[:2]
    assert dead_letters(failing, "bad", after=first + 1, limit=1) == missed[1:2]
    assert [at for at, _ in dead_letters(failing, "bad")] == [at for at, _ in missed]
    assert dead_letters(failing, "good") == [(first + 3, "the event could not be matched: RuntimeError: poison")]
    pulled = failing.pull("bad")["notifications"]
    assert [one["position"] for one in pulled] == [first]  # what it matched before is delivered


@pytest.mark.parametrize("filter", ["price > 9", "price > 8"], ids=["another", "the same again"])
def test_a_repaired_filter_is_matched_with_what_it_missed(failing: Gateway, filter: str) -> None:
    first = failing.end - 4
    changed = failing.client.patch("/v1/subscriptions/bad", json={"filter": filter}).json()
    assert changed["state"] == "replaying"
    (job,) = failing.open_jobs()
    assert (job.request["from"], job.request["to"], job.request["filter"]) == (first + 1, failing.end, filter)
    assert dead_letters(failing, "bad") == [(first + 3, "the event could not be matched: RuntimeError: poison")]
    number = row_of(failing, "bad").filters[-1].number
    failing.load_numbers([first + 1, first + 2], [number])
    replace_json(failing.data.answer(job.id), {"done": True, "matches": 2})
    until(lambda: failing.client.get("/v1/subscriptions/bad").json()["state"] == "active")
    assert [one["position"] for one in failing.pull("bad")["notifications"]] == [first, first + 1, first + 2]


def test_a_repair_that_fails_too_loses_nothing(failing: Gateway) -> None:
    first = failing.end - 4
    failing.client.patch("/v1/subscriptions/bad", json={"filter": "price > 9"})
    (job,) = failing.open_jobs()
    more = failing.publish_many(2)
    replace_json(failing.data.answer(job.id), {"done": False, "kind": "request", "reason": REASON})
    until(lambda: failing.client.get("/v1/subscriptions/bad").json()["state"] == "disabled")
    missed = f"the filter could not be matched: its history cannot be replayed: {REASON}"
    assert dead_letters(failing, "bad")[:2] == [(first + 1, missed), (first + 2, missed)]
    assert [at for at, _ in dead_letters(failing, "bad")] == [first + 1, first + 2, first + 3]
    failing.load_numbers(more[:1], [row_of(failing, "bad").filters[-1].number])  # the stream matches it all the same
    moved = {"delivery": {"mode": "sse"}}
    assert failing.client.patch("/v1/subscriptions/bad", json=moved).json()["state"] == "disabled"

    changed = failing.client.patch("/v1/subscriptions/bad", json={"filter": "price > 7"}).json()
    assert changed["state"] == "replaying"
    (job,) = failing.open_jobs()
    assert (job.request["from"], job.request["to"]) == (first + 1, failing.end)
    number = row_of(failing, "bad").filters[-1].number
    failing.load_numbers([first + 1, first + 2, *more], [number])
    replace_json(failing.data.answer(job.id), {"done": True, "matches": 4})
    until(lambda: failing.client.get("/v1/subscriptions/bad").json()["state"] == "active")
    failing.client.patch("/v1/subscriptions/bad", json={"delivery": {"mode": "pull"}})
    pulled = [one["position"] for one in failing.pull("bad")["notifications"]]
    assert pulled == [first, first + 1, first + 2, *more]  # and none of them twice


@pytest.mark.parametrize("said", [{"state": "failed"}, {"state": "isolating"}, {"state": "opening", "since": 0.0}])
def test_health_is_degraded_with_the_reason_while_a_stream_does_not_run(alone: Gateway, said: dict[str, Any]) -> None:
    alone.describe()
    driver_says(alone)
    until(lambda: alone.client.get("/v1/health").json()["status"] == "ok")
    driver_says(alone, problem="the disk is full", **said)
    until(lambda: alone.client.get("/v1/health").json()["status"] == "degraded")
    shown = alone.client.get("/v1/health").json()
    assert f"default.stocks: its stream is {said['state']}: the disk is full" in shown["reasons"]
    assert alone.stranger().get("/v1/health").json()["reasons"] == [
        "the streams of 1 domains are not running, or have a problem"
    ]
    driver_says(alone)
    until(lambda: alone.client.get("/v1/health").json()["status"] == "ok")
