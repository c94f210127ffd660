"""A law that nothing breaks says nothing: for each there is a bug that breaks it, while nodes come and go."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.simulator.run import play
from tidings.simulator.scenario import Plan, timetable
from tidings.simulator.systems import SYSTEMS

CALM: dict[str, Any] = {"churn": 0.0, "repair_ms": 1_000}
JOINS: dict[str, Any] = {"churn": 1.0, "crashes": 0.0}
FEW: dict[str, Any] = {"nodes": 5, "subscriptions": 4, "churn": 0.2, "churn_ms": 8_000, "repair_ms": 1_000}

# system, bug, what provokes it, the law that is to find it
PLANTED: list[tuple[str, str, dict[str, Any], str]] = [
    ("chord",        "notify",       {"churn": 3.0, "churn_ms": 8_000},         "OneLiveSuccessor"),
    ("opchord",      "notify",       {"churn": 3.0, "churn_ms": 8_000},         "OneLiveSuccessor"),
    ("chord",        "counting",     CALM,                                      "Sound"),
    ("opchord",      "counting",     CALM,                                      "Sound"),
    ("chord",        "handover",     JOINS,                                     "ListsHeld"),
    ("opchord",      "handover",     JOINS,                                     "ListsHeld"),
    ("chord",        "copies",       {"churn": 1.5},                            "RunsOut"),
    ("opchord",      "copies",       {"churn": 1.5},                            "RunsOut"),
    ("digests",      "hops",         {**CALM, "nodes": 40},                     "ParentsApproach"),
    ("digests-tree", "hops",         {**CALM, "nodes": 40},                     "ParentsApproach"),
    ("digests-home", "hops",         {**CALM, "nodes": 40},                     "HopsApproach"),
    ("digests-home", "line",         CALM,                                      "ClosestDelivers"),
    ("digests",      "silent",       JOINS,                                     "LeafSets"),
    ("digests-tree", "silent",       JOINS,                                     "LeafSets"),
    ("digests",      "hints",        {"crashes": 1.0},                          "LeafSets"),
    ("digests-tree", "hints",        {"crashes": 1.0},                          "LeafSets"),
    ("digests",      "root",         JOINS,                                     "Trees"),
    ("digests-tree", "root",         JOINS,                                     "Trees"),
    ("digests",      "leaving",      {"churn": 0.2, "subscriptions": 24},       "InTrees"),
    ("digests-tree", "leaving",      {"churn": 0.2, "subscriptions": 24},       "InTrees"),
    ("digests-home", "once",         JOINS,                                     "KeptAtHome"),
    ("clusters",     "registration", FEW,                                       "Registered"),
    ("bluedove",     "overlap",      JOINS,                                     "HeldByOwners"),
    ("bluedove",     "restart",      {"crashes": 1.0},                          "HeldByOwners"),
    ("bluedove",     "owners",       JOINS,                                     "OneOwner"),
    ("bluedove",     "news",         {"churn": 0.1},                            "VersionsGrow"),
    ("bluedove",     "merging",      {"crashes": 1.0},                          "Tiles"),
    ("sonnet",       "placeholders", {"churn": 0.2},                            "Linked"),
    ("sonnet",       "links",        {"churn": 0.2},                            "Linked"),
    ("sonnet",       "down",         {"churn": 0.2, "subscriptions": 24},       "OnceTold"),
]  # fmt: skip
SEEDS = 20


@pytest.mark.parametrize(("system", "bug", "provoked", "law"), PLANTED, ids=[f"{s}-{b}" for s, b, _, _ in PLANTED])
def test_a_planted_bug_is_found_by_the_law_that_is_meant_to(
    system: str, bug: str, provoked: dict[str, Any], law: str
) -> None:
    for seed in range(SEEDS):
        plan = Plan(system, seed=seed, bug=bug, **provoked)
        violation = play(plan).violation
        if violation is not None and violation.law == law:
            assert law == "Sound" or violation.now_ms < timetable(plan).probe_ms  # not only when all is over
            return
    pytest.fail(f"{SEEDS} seeds of {system} did not break {law} by the bug '{bug}'")


def test_every_bug_that_can_be_planted_is_looked_for() -> None:
    assert {(system, bug) for system, bug, _, _ in PLANTED} == {
        (name, bug) for name, system in SYSTEMS.items() if name != "sonnet-hashes" for bug in system.bugs
    }  # which differs from Sonnet in its digests alone
