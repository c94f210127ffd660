"""Health says `ok` only while events are matched as they come, and else why not."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.service.data.data_directory import replace_json
from tidings.service.gateway import driver_lag

from ..conftest import Gateway

RUNNING = {"state": "running", "problem": None, "since": 0.0, "reached": 0}
KEY = "default.stocks"


def says(gateway: Gateway, **more: Any) -> None:
    """A driver that was started long ago writes its status."""
    status = {"pid": 1, "started": 0.0, "time": time.time(), "state": "running", "problem": None, "shared": None}
    replace_json(gateway.data.driver_status, {**status, "domains": {KEY: RUNNING}, **more})
    gateway.context.lag.read()


def health(gateway: Gateway) -> tuple[str, list[str]]:
    told = gateway.client.get("/v1/health").json()
    return told["status"], told["reasons"]


def test_a_driver_that_runs_all_streams_is_ok(alone: Gateway) -> None:
    says(alone, shared={"state": "running", "problem": None})
    assert health(alone) == ("ok", [])
    says(alone, domains={KEY: {**RUNNING, "state": "opening", "since": time.time()}})
    assert health(alone) == ("ok", [])


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"problem": "PostgreSQL is away"}, "driver: PostgreSQL is away"),
        ({"shared": {"state": "failed", "problem": "no room"}}, "shared: its stream is failed: no room"),
        ({"shared": {"state": "opening", "since": 0.0}}, "shared: its stream is opening: it takes long"),
        ({"shared": {"state": "running", "problem": "locked"}}, "shared: its stream is running with a problem: locked"),
        ({"domains": {KEY: {**RUNNING, "problem": "x"}}}, f"{KEY}: its stream is running with a problem: x"),
        ({"domains": {KEY: {**RUNNING, "state": "failed"}}}, f"{KEY}: its stream is failed: it takes long"),
        ({"domains": {KEY: 7}}, f"{KEY}: the driver's report of its stream is malformed: 7"),
        ({"state": "stopping"}, None),
    ],
)
def test_what_keeps_events_from_being_matched_is_degraded(
    alone: Gateway, said: dict[str, Any], reason: str | None
) -> None:
    says(alone, **said)
    status, reasons = health(alone)
    assert status == "degraded"
    assert reason is None or reasons[-1] == reason
    assert len(reasons) == (1 if reason is None else 2)
    stranger = alone.client_of(None).get("/v1/health").json()
    assert stranger["status"] == "degraded"
    assert "stocks" not in str(stranger)
    assert "PostgreSQL" not in str(stranger)


def test_a_domain_that_the_driver_does_not_name_is_degraded_after_a_while(
    alone: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone.restart()  # which looks at the catalogue
    says(alone, domains={})
    assert health(alone) == ("ok", [])
    monkeypatch.setattr(driver_lag, "OPENING_SECONDS", 0.0)
    status, reasons = health(alone)
    assert status == "degraded"
    assert reasons[-1].startswith(f"{KEY}: the driver has no stream for it")
    says(alone, started=time.time() + 60, domains={})  # a driver that was started after that
    assert health(alone) == ("ok", [])


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"domains": 7}'])
def test_a_status_that_cannot_be_read_is_degraded(alone: Gateway, text: str) -> None:
    says(alone)
    alone.data.driver_status.write_text(text)
    alone.context.lag.read()
    status, reasons = health(alone)
    assert (status, reasons[0]) == ("degraded", "the driver has a problem")
    assert "its status cannot be read" in reasons[1]
