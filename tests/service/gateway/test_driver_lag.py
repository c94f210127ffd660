"""How many events of a domain wait to be matched: known from its mailboxes, whether a driver is up or not."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tidings.service.data.data_directory import replace_json

from ..conftest import Gateway

MAX = 10

STATUSES: dict[str, dict[str, Any] | None] = {
    "no driver has ever said anything": None,
    "the last driver was stopped": {"pid": 7, "time": 1.0, "state": "stopped", "domains": {}},
    "the driver is starting": {"pid": 7, "time": time.time(), "state": "starting", "domains": {}},
    "its stream is opening": {"pid": 7, "time": time.time(), "domains": {"default.stocks": {"reached": 0}}},
    "the last driver was killed long before": {"pid": 7, "time": 1.0, "domains": {"default.stocks": {"reached": 3}}},
    "it makes no sense": {"pid": 7, "time": "?", "domains": {"default.stocks": {"reached": None}}},
}


@pytest.fixture
def bounded(make_gateway: Callable[..., Any]) -> Gateway:
    gateway: Gateway = make_gateway(max_lag_events=MAX)
    return gateway


def waiting(gateway: Gateway, domain: str = "stocks") -> int:
    found: int = gateway.client.get("/v1/health").json()["domains"][domain]["lag_events"]
    return found


def post(gateway: Gateway, domain: str = "stocks") -> int:
    return gateway.client.post(f"/v1/domains/{domain}/events", json={"price": 1.0}).status_code


@pytest.mark.parametrize("status", STATUSES.values(), ids=STATUSES.keys())
def test_matched_events_do_not_count_as_waiting_after_a_restart(
    bounded: Gateway, status: dict[str, Any] | None
) -> None:
    bounded.load(bounded.publish_many(3 * MAX))
    if status is not None:
        replace_json(bounded.data.driver_status, status)
    bounded.restart()
    assert waiting(bounded) == 0
    assert post(bounded) == 200


def test_what_was_not_matched_waits_after_a_restart(bounded: Gateway) -> None:
    bounded.load(bounded.publish_many(5))
    bounded.publish_many(2 * MAX)
    bounded.restart()
    assert waiting(bounded) == 2 * MAX
    assert post(bounded) == 429


def test_events_of_other_domains_after_the_last_one_of_a_domain_do_not_wait_for_it(bounded: Gateway) -> None:
    bounded.load(bounded.publish_many(2 * MAX))
    bounded.describe("others")
    batch = [{"price": 1.0}] * (2 * MAX)
    assert bounded.client.post("/v1/domains/others/events", json=batch).status_code == 200
    bounded.restart()
    assert (waiting(bounded), waiting(bounded, "others")) == (0, 2 * MAX)
    assert (post(bounded), post(bounded, "others")) == (200, 429)


def test_events_of_a_domain_without_mailboxes_all_wait(bounded: Gateway) -> None:
    bounded.publish_many(2 * MAX)
    bounded.restart()
    assert (waiting(bounded), post(bounded)) == (2 * MAX, 429)


def test_a_domain_that_was_deleted_and_recreated_continues_after_what_was_matched(bounded: Gateway) -> None:
    bounded.load(bounded.publish_many(2 * MAX))
    assert bounded.client.delete("/v1/domains/stocks").status_code == 204
    bounded.describe()
    bounded.restart()
    assert (waiting(bounded), post(bounded)) == (0, 200)


def test_mailboxes_that_cannot_be_read_do_not_keep_the_gateway_from_starting(bounded: Gateway) -> None:
    bounded.publish_many(5)
    bounded.mailboxes.write_bytes(b"not a database, but long enough to be looked at" * 100)
    bounded.restart()
    assert (waiting(bounded), post(bounded)) == (5, 200)


def test_a_driver_that_ends_takes_nothing_back(bounded: Gateway) -> None:
    bounded.publish_many(2 * MAX)
    lag = bounded.context.lag
    replace_json(bounded.data.driver_status, {"time": 1e12, "domains": {"default.stocks": {"reached": 2 * MAX}}})
    lag.read()
    assert lag.of("default.stocks") == 0
    replace_json(bounded.data.driver_status, {"time": 1e12, "state": "stopped", "domains": {}})
    lag.read()
    assert lag.of("default.stocks") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="open files are looked up in /proc")
def test_a_start_keeps_no_files_open_however_many_domains_there_are(bounded: Gateway) -> None:
    for number in range(20):
        bounded.describe(f"d{number}")
        bounded.load_numbers([], [], domain=f"d{number}")
    bounded.restart()
    theirs = str(bounded.data.domains)
    assert not [path for path in map(os.readlink, open_files()) if path.startswith(theirs)]


def open_files() -> list[str]:
    return [path for one in os.listdir("/proc/self/fd") if os.path.lexists(path := f"/proc/self/fd/{one}")]
