"""A short version of `make faults`: real processes, real kills, and a history in which every promise is kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .run import Result, Run, Size, finish, running
from .scenarios import (
    SCENARIOS,
    Scenario,
    poison,
    run_scenario,
    skipped,
    subscriptions_changed,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc"),
]

SMALL = Size(subscriptions=9, publishers=1, batch=5, pause_seconds=0.05, before_seconds=1.0, after_seconds=1.0)


def assert_kept(result: Result) -> None:
    lines = "\n".join(map(str, result.report.violations[:20]))
    assert not result.report.violations, f"{result.report}\n{lines}\n{result.notes}\n{result.records}"
    assert result.report.outcomes["acked"] > 100
    assert result.report.deliveries > 100


def kill_each_once(run: Run) -> None:
    for child, bound in (("gateway", 20.0), ("driver", 60.0)):
        with run.fault(f"{child} killed", bound_seconds=bound):
            run.served.kill_child(child)
        run.wait_for_recovery()


def test_every_promise_is_kept_while_processes_are_killed_and_subscriptions_change(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    with running(tmp_path, SMALL) as run:
        kill_each_once(run)
        subscriptions_changed(run)
        poison(run)
        result = finish(run, "short")
    assert_kept(result)


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_every_promise_is_kept_whatever_breaks(scenario: Scenario, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    if (why := skipped(scenario)) is not None:
        pytest.skip(why)
    assert_kept(run_scenario(scenario, tmp_path))
