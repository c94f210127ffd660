"""Hundreds of seeds: nodes come, go and crash, and when all is quiet deliveries are the oracle's."""

from __future__ import annotations

import pytest

from tidings.simulator.run import play
from tidings.simulator.scenario import Plan, troubled
from tidings.simulator.shrink import explain, shrink
from tidings.simulator.systems import SYSTEMS
from tidings.simulator.trace import Trace

SYSTEMS_OF_THE_PAPERS = ("opchord", "digests", "clusters", "bluedove")  # the others are variants of these
PART = 10  # seeds in one test; `make simulate-long` plays thousands
PARTS = [(system, part) for system in SYSTEMS for part in range(4 if system in SYSTEMS_OF_THE_PAPERS else 1)]


@pytest.mark.parametrize(("system", "part"), PARTS)
def test_no_law_breaks_and_deliveries_are_the_oracles(system: str, part: int) -> None:
    for seed in range(part * PART, (part + 1) * PART):
        plan = troubled(system, seed)
        outcome = play(plan)
        if outcome.violation is not None:
            pytest.fail(explain(*shrink(plan, outcome.violation)))


PLANTED = [(system, bug) for system, known in SYSTEMS.items() for bug in known.bugs]
PROVOKED: dict[str, dict[str, float]] = {
    "notify": {"churn": 1.5},
    "counting": {},
    "registration": {},
    "overlap": {"churn": 1.5, "crashes": 0.0, "events": 60},
}


@pytest.mark.parametrize(("system", "bug"), PLANTED, ids=str)
def test_a_planted_bug_is_found(system: str, bug: str) -> None:
    for seed in range(60):
        if play(Plan(system, seed=seed, bug=bug, **PROVOKED[bug])).violation is not None:
            return
    pytest.fail(f"60 seeds did not find the bug '{bug}' of {system}")


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_same_seed_gives_the_same_trace(system: str) -> None:
    digests = []
    for _ in range(2):
        trace = Trace()
        play(Plan(system, seed=5, subscriptions=4, events=3), trace=trace)
        assert trace.lines > 100
        digests.append(trace.digest)
    assert digests[0] == digests[1]


def test_a_failure_is_shrunk_to_the_steps_that_it_needs_and_names_the_command() -> None:
    plan = Plan("opchord", seed=3, bug="counting")
    violation = play(plan).violation
    assert violation is not None
    shrunk, violation = shrink(plan, violation)
    assert shrunk.keep is not None
    assert len(shrunk.keep) == 2  # a subscription, and an event that it should not get
    told = explain(shrunk, violation)
    assert f"tidings simulate opchord --seed 3 --bug counting --keep {shrunk.keep[0]},{shrunk.keep[1]}" in told
    assert "subscribe" in told
