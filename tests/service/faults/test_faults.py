"""A short version of `make faults`: real processes, real kills, and a history in which every promise is kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from . import damage
from .run import Result, Run, Size, finish, running
from .scenarios import GATEWAY_BOUND, RESTART_BOUND, SCENARIOS, Scenario, poison, run_scenario, skipped

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc"),
]

SMALL = Size(subscriptions=6, publishers=1, batch=5)


def assert_kept(result: Result) -> None:
    lines = "\n".join(map(str, result.report.violations[:20]))
    assert not result.report.violations, f"{result.report}\n{lines}\n{result.notes}\n{result.records}"
    assert result.report.outcomes["acked"] > 100
    assert result.report.deliveries > 100


def several_in_a_row(run: Run) -> None:
    """The gateway and the driver at the points where most could be lost or doubled; one start serves for two faults."""
    with run.fault("gateway killed before an append is answered", bound_seconds=GATEWAY_BOUND):
        run.served.kill_at("append-durable", "gateway")
    run.wait_for_recovery()
    poison(run)
    with run.fault(
        "all killed between the sink's commit and the checkpoint's, log tail torn", bound_seconds=RESTART_BOUND
    ):
        with run.served.held_at("batch-loaded"):
            run.served.kill()
        damage.tear_tail(run.served.data / "log")
    run.served.start()
    run.wait_for_recovery()


def test_every_promise_is_kept_while_the_service_is_killed_poisoned_and_its_log_torn(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    with running(tmp_path, SMALL) as run:
        several_in_a_row(run)
        result = finish(run, "short", timed=False)
    assert_kept(result)
    assert len(result.report.recoveries) == 3


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_every_promise_is_kept_whatever_breaks(scenario: Scenario, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
    if (why := skipped(scenario)) is not None:
        pytest.skip(why)
    assert_kept(run_scenario(scenario, tmp_path, timed=False))
