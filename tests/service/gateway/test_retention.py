"""The log is cut where the operator wants it, and never before what somebody needs."""

from __future__ import annotations

import datetime as dt
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

from tidings.service.data.data_directory import replace_json
from tidings.service.gateway.gateway_settings import (
    KEPT_BY_DEFAULT,
    HeldLimits,
    Limits,
    Quota,
    Quotas,
    RetentionError,
    ServiceLimits,
    read_limits,
)

from ..conftest import Gateway

NOTHING = Limits(max_bytes=0)


@pytest.fixture
def strict(make_gateway: Any) -> Gateway:
    """A gateway that keeps only what is needed, and looks when it is told to."""
    gateway: Gateway = make_gateway(retain=NOTHING, retain_seconds=3600.0)
    return gateway


def told_by_driver(gateway: Gateway, reached: int, *, pid: int = 7, state: str = "running") -> None:
    """A driver that says how far it is."""
    domains = {f"{gateway.name}.stocks": {"state": state, "reached": reached}}
    status = {"pid": pid, "time": time.time(), "state": "running", "domains": domains}
    replace_json(gateway.data.driver_status, status)
    gateway.context.lag.read()


def matched(gateway: Gateway) -> None:
    """All that was published is matched, and was a while ago."""
    told_by_driver(gateway, gateway.end)
    gateway.context.retention.once()


def one_by_one(gateway: Gateway, count: int) -> list[int]:
    """Events in pages of their own: the log is cut between pages."""
    return [gateway.publish_many(1)[0] for _ in range(count)]


def test_what_nobody_needs_is_removed(strict: Gateway) -> None:
    one_by_one(strict, 5)
    matched(strict)
    assert strict.context.retention.once() == 5
    assert strict.client.get("/v1/events/4/matches").status_code == 404
    assert one_by_one(strict, 1) == [5]


def test_what_a_stream_has_not_matched_stays(strict: Gateway) -> None:
    one_by_one(strict, 5)
    told_by_driver(strict, 3)
    strict.context.retention.once()
    assert strict.context.retention.once() == 3


def test_a_restarted_stream_may_read_again_what_it_had_reported(strict: Gateway) -> None:
    one_by_one(strict, 5)
    told_by_driver(strict, 5, pid=7)
    strict.context.retention.once()
    told_by_driver(strict, 5, pid=8)  # another driver: what it does first is not known yet
    assert strict.context.retention.once() == 0
    told_by_driver(strict, 5, pid=8, state="failed")
    assert strict.context.retention.once() == 0
    matched(strict)
    assert strict.context.retention.once() == 5


def test_without_a_driver_everything_stays(strict: Gateway) -> None:
    one_by_one(strict, 2)
    for _ in range(3):
        assert strict.context.retention.once() == 0


def test_unacknowledged_events_are_kept_and_the_operator_sees_who_holds_them(strict: Gateway) -> None:
    made = strict.subscribe(id="slow")["id"]
    positions = one_by_one(strict, 6)
    strict.load(positions[2:5], made)
    matched(strict)
    assert strict.context.retention.once() == positions[2]
    until(lambda: strict.client.get("/v1/health").json()["log"]["start"] == positions[2])
    held = strict.client.get("/v1/health").json()["log"]["held"]
    assert (held["position"], "slow" in held["by"]) == (positions[2], True)
    assert "held" not in strict.stranger().get("/v1/health").json()["log"]
    pulled = strict.pull(made, limit=2)
    assert [each["position"] for each in pulled["notifications"]] == positions[2:4]
    strict.client.post(f"/v1/subscriptions/{made}/ack", json={"cursor": pulled["cursor"]})
    assert strict.context.retention.once() == positions[4]
    strict.client.delete(f"/v1/subscriptions/{made}")
    assert strict.context.retention.once() == 6
    assert strict.client.get("/v1/health").json()["log"]["held"] is None


def test_what_was_matched_outside_of_a_filters_validity_holds_nothing(strict: Gateway) -> None:
    before = one_by_one(strict, 1)
    made = strict.subscribe()["id"]
    strict.load(before, made)  # as where it entered the index before it was promised
    one_by_one(strict, 2)
    matched(strict)
    assert strict.context.retention.once() == 3


def test_a_dead_letter_that_is_to_be_delivered_once_more_stays(strict: Gateway) -> None:
    made = strict.subscribe()["id"]
    positions = one_by_one(strict, 4)
    key = strict.catalogue.get(strict.name, made).key  # type: ignore[union-attr]
    strict.context.deliveries.dead(key, positions[1], "nobody was there")
    strict.client.post(f"/v1/subscriptions/{made}/dead-letters:redrive", json={})
    matched(strict)
    assert strict.context.retention.once() == positions[1]
    pulled = strict.pull(made)
    strict.client.post(f"/v1/subscriptions/{made}/ack", json={"cursor": pulled["cursor"]})
    assert strict.context.retention.once() == 4


def test_a_history_that_is_to_be_replayed_stays_until_it_is(strict: Gateway) -> None:
    one_by_one(strict, 4)
    strict.subscribe(start={"position": 1}, id="historian")
    matched(strict)
    assert strict.context.retention.once() == 1
    (job,) = strict.open_jobs()
    replace_json(strict.data.answer(job.id), {"done": True})
    until(lambda: not strict.open_jobs())
    assert strict.context.retention.once() == 4


def test_a_history_is_asked_for_while_the_needs_of_others_are_looked_up_and_stays(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(strict, 4)
    matched(strict)
    retention = strict.context.retention
    looking, go_on = threading.Event(), threading.Event()

    def blocking(wanted: int) -> Iterator[Any]:
        looking.set()
        assert go_on.wait(LAST_RESORT_SECONDS)
        return iter(())

    monkeypatch.setattr(retention, "_waiting", blocking)
    with ThreadPoolExecutor(1) as threads:
        removing = threads.submit(retention.once)
        try:
            assert looking.wait(LAST_RESORT_SECONDS)
            strict.subscribe(start={"position": 1}, id="historian")
        finally:
            go_on.set()
        assert removing.result() == 1


def test_a_backtest_that_is_under_way_has_its_events(strict: Gateway) -> None:
    one_by_one(strict, 4)
    asked = strict.client.post("/v1/filters:backtest", json={"domain": "stocks", "filter": "TRUE", "from": 2})
    assert asked.status_code == 202
    matched(strict)
    assert strict.context.retention.once() == 2


def test_the_log_is_looked_at_by_itself(make_gateway: Any) -> None:
    gateway = make_gateway(retain=NOTHING, retain_seconds=0.02)
    one_by_one(gateway, 3)
    told_by_driver(gateway, 3)
    until(lambda: gateway.context.log.start == 3)


def test_by_default_a_week_is_kept_and_nothing_is_lost_before() -> None:
    assert Limits(max_age=dt.timedelta(days=7)) == KEPT_BY_DEFAULT


# -- nobody holds the log for ever


def large(gateway: Gateway, count: int) -> list[int]:
    """Events of about 10 kB, in pages of their own, that do not get smaller."""
    return [gateway.publish({"symbol": secrets.token_hex(5_000)})[0] for _ in range(count)]


@pytest.fixture
def capped(make_gateway: Any) -> Gateway:
    """A gateway that holds about 50 kB for a tenant beyond what it wants to keep, which is nothing."""
    held, quotas = HeldLimits(grace_seconds=0.0), Quotas(Quota(held_log_bytes=50_000))
    gateway: Gateway = make_gateway(retain=NOTHING, held=held, quotas=quotas, retain_seconds=3600.0)
    return gateway


def dead_letters(gateway: Gateway, id: str) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = gateway.client.get(f"/v1/subscriptions/{id}/dead-letters").json()["dead_letters"]
    return letters


def test_beyond_the_bytes_that_a_subscriber_may_hold_the_oldest_are_dead_letters(capped: Gateway) -> None:
    away, also, here = (capped.subscribe(id=id)["id"] for id in ("away", "also", "here"))
    positions = large(capped, 20)
    capped.load(positions, away, here)
    capped.load(positions[:2], also)
    pulled = capped.pull(here)
    capped.client.post(f"/v1/subscriptions/{here}/ack", json={"cursor": pulled["cursor"]})
    matched(capped)
    assert dead_letters(capped, away) == [], (
        "the stream was not known to have matched them yet: nothing was to be gained"
    )
    kept = capped.context.retention.once()
    assert positions[5] < kept < positions[-1]
    log = capped.client.get("/v1/health").json()["log"]
    assert (log["held"]["position"], log["held_bytes"][capped.name]) == (kept, pytest.approx(100_000, rel=0.2))
    letters = dead_letters(capped, away)
    assert [letter["position"] for letter in letters] == [position for position in positions if position < kept]
    assert "too much" in letters[0]["reason"]
    assert [letter["position"] for letter in dead_letters(capped, also)] == positions[:2]
    assert dead_letters(capped, here) == []
    assert [one["position"] for one in capped.pull(away)["notifications"]] == [
        position for position in positions if position >= kept
    ]
    assert capped.context.retention.once() == kept  # and no more of them than has to be


def test_what_one_tenant_holds_is_counted_for_it_alone(capped: Gateway) -> None:
    other = capped.other_tenant()
    other.describe()
    theirs = other.subscribe()["id"]
    ours = capped.subscribe()["id"]
    first = large(capped, 12)
    capped.load(first, ours)
    last = large(other, 2)
    other.load(last, theirs)
    statuses = {f"{one.name}.stocks": {"state": "running", "reached": one.end} for one in (capped, other)}
    for _ in range(2):
        told = {"pid": 7, "time": time.time(), "state": "running", "domains": statuses}
        replace_json(capped.data.driver_status, told)
        capped.context.lag.read()
        capped.context.retention.once()
    held = capped.client.get("/v1/health").json()["log"]["held_bytes"]
    assert held[capped.name] > held[other.name] > 0
    assert dead_letters(other, theirs) == []
    assert len(dead_letters(capped, ours)) > 0


def flooded(gateway: Gateway) -> tuple[Gateway, str]:
    """A tenant with a notification that waits, after which another has published 200 kB."""
    other = gateway.other_tenant()
    other.describe()
    made: str = other.subscribe()["id"]
    other.load(other.publish({"symbol": "OIL"}), made)
    large(gateway, 20)
    statuses = {f"{one.name}.stocks": {"state": "running", "reached": one.end} for one in (gateway, other)}
    for _ in range(2):
        told = {"pid": 7, "time": time.time(), "state": "running", "domains": statuses}
        replace_json(gateway.data.driver_status, told)
        gateway.context.lag.read()
        gateway.context.retention.once()
    return other, made


def test_what_one_tenant_publishes_makes_no_dead_letters_of_another(capped: Gateway) -> None:
    other, made = flooded(capped)
    assert dead_letters(other, made) == []
    assert [one["position"] for one in other.pull(made)["notifications"]] == [0]
    assert capped.client.get("/v1/health").json()["log"]["held_bytes"] == {other.name: pytest.approx(20, abs=20)}


def test_the_log_holds_so_many_bytes_for_all_tenants_together(make_gateway: Any) -> None:
    quotas = Quotas(service=ServiceLimits(max_held_log_bytes=100_000))
    held = HeldLimits(grace_seconds=0.0)
    gateway = make_gateway(retain=NOTHING, held=held, quotas=quotas, retain_seconds=3600.0)
    other, made = flooded(gateway)
    assert [letter["position"] for letter in dead_letters(other, made)] == [0]
    assert gateway.context.retention.once() == gateway.end


def test_nobody_holds_the_log_for_longer_than_is_allowed(make_gateway: Any) -> None:
    held = HeldLimits(max_age=dt.timedelta(0), grace_seconds=0.0)
    gateway = make_gateway(retain=NOTHING, held=held, retain_seconds=3600.0)
    made = gateway.subscribe()["id"]
    positions = one_by_one(gateway, 3)
    gateway.load(positions, made)
    key = gateway.catalogue.get(gateway.name, made).key
    gateway.context.deliveries.dead(key, positions[0], "nobody was there")
    gateway.client.post(f"/v1/subscriptions/{made}/dead-letters:redrive", json={})
    matched(gateway)
    assert gateway.context.retention.once() == 3
    assert [letter["position"] for letter in dead_letters(gateway, made)] == positions
    assert gateway.context.deliveries.with_redriven() == []


@pytest.mark.parametrize("states", [["failed"], ["running"], ["failed", "running", "failed", "running"]], ids="-".join)
def test_a_stalled_stream_holds_the_log_no_longer_than_the_grace_period(
    capped: Gateway, caplog: pytest.LogCaptureFixture, states: list[str]
) -> None:
    large(capped, 20)
    for reached in (1, 2, 3):
        told_by_driver(capped, reached)
        kept = capped.context.retention.once()
    assert kept == 2  # it is behind, and comes further: it is waited for
    for state in states:
        told_by_driver(capped, 3, state=state)
        kept = capped.context.retention.once()
    assert 5 < kept < 20
    (given_up,) = capped.client.get("/v1/health").json()["log"]["given_up"]
    assert f"{capped.name}.stocks" in given_up["by"]
    assert "are not kept any longer" in caplog.text


def test_nothing_is_given_up_of_a_stalled_stream_that_holds_little(
    capped: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    large(capped, 3)
    for state in ("running", "failed", "failed"):
        told_by_driver(capped, 0, state=state)
        assert capped.context.retention.once() == 0
    assert capped.client.get("/v1/health").json()["log"]["given_up"] == []
    assert "are not kept any longer" not in caplog.text


def test_a_stream_that_has_nothing_to_match_is_waited_for(capped: Gateway) -> None:
    """It does not come further, and what it had told is still to settle: as where its driver was started again."""
    large(capped, 20)
    told_by_driver(capped, capped.end)
    capped.context.retention.once()
    told_by_driver(capped, capped.end, pid=8)
    assert capped.context.retention.once() == 0
    assert capped.client.get("/v1/health").json()["log"]["given_up"] == []


def test_nothing_is_given_up_while_everybody_may_still_come_back(make_gateway: Any) -> None:
    held, quotas = HeldLimits(max_age=dt.timedelta(0)), Quotas(Quota(held_log_bytes=0))
    gateway = make_gateway(retain=NOTHING, held=held, quotas=quotas, retain_seconds=3600.0)
    made = gateway.subscribe()["id"]
    positions = one_by_one(gateway, 3)
    gateway.load(positions[1:], made)
    told_by_driver(gateway, 3, state="failed")
    assert gateway.context.retention.once() == 0
    matched(gateway)
    assert gateway.context.retention.once() == positions[1]
    assert dead_letters(gateway, made) == []


@pytest.mark.parametrize(
    ("texts", "limits"),
    [
        (["7d"], Limits(max_age=dt.timedelta(days=7))),
        (["12H", "2 d"], Limits(max_age=dt.timedelta(hours=12))),
        (["50gb", "1w"], Limits(max_age=dt.timedelta(weeks=1), max_bytes=50 << 30)),
        (["forever"], Limits()),
    ],
)
def test_limits_are_read_as_they_are_written(texts: list[str], limits: Limits) -> None:
    assert read_limits(texts) == limits


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "7 years", "1.5d", "∞"])
def test_what_is_no_limit_is_refused_with_examples(text: str) -> None:
    with pytest.raises(RetentionError, match="7d"):
        read_limits([text])
