"""A law that nothing breaks says nothing: for each there is a bug that breaks it, while nodes come and go."""

from __future__ import annotations

import pytest

from tidings.simulator.run import play
from tidings.simulator.scenario import Scenario, timetable
from tidings.systems.overlay import overlay_named, overlays

PLANTED = [
    (name, bug)
    for name, one in overlays().items()
    if name != "sonnet-hashes"  # it differs from Sonnet in its digests alone
    for bug in one.bugs
]
SEEDS = 20


@pytest.mark.parametrize(("system", "name"), PLANTED)
def test_a_planted_bug_is_found_by_the_law_that_its_record_names(system: str, name: str) -> None:
    bug = overlay_named(system).bugs[name]
    for seed in range(SEEDS):
        plan = Scenario(system, seed=seed, bug=name, **bug.trouble)  # type: ignore[arg-type]
        violation = play(plan).violation
        if violation is not None and violation.law == bug.law:
            assert (
                bug.law in ("Sound", "Complete") or violation.now_ms < timetable(plan).probe_ms
            )  # not only when all is over
            return
    pytest.fail(f"{SEEDS} seeds of {system} did not break {bug.law} by the bug '{name}'")


def test_every_system_that_runs_as_nodes_has_a_bug_to_plant() -> None:
    assert all(one.bugs for one in overlays().values())
