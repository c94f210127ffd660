"""Hundreds of seeds: nodes come, go and crash, and when all is quiet deliveries are the oracle's."""

from __future__ import annotations

import pytest

from tidings.simulator.run import explain, play, shrink
from tidings.simulator.scenario import Scenario, troubled
from tidings.systems.overlay import overlays

PART = 10  # seeds in one test; `make simulate-long` plays thousands, of longer schedules
PARTS = [(system, 0) for system in overlays()]
PARTS += [
    pytest.param(system, part, marks=pytest.mark.long)
    for system in overlays()
    for part in (1, 2)
    if not system.startswith("sonnet")
]
SMALLER = {"nodes": 7, "subscriptions": 6, "events": 6, "churn_ms": 9_000, "repair_ms": 16_000}


@pytest.mark.parametrize(("system", "part"), PARTS)
def test_no_law_breaks_and_deliveries_are_the_oracles(system: str, part: int) -> None:
    size = 5 if system.startswith("sonnet") else PART  # it has many virtual nodes, and takes as much longer
    wanted = 0
    for seed in range(part * size, (part + 1) * size):
        plan = troubled(system, seed, **SMALLER)
        outcome = play(plan)
        if outcome.violation is not None:
            pytest.fail(explain(*shrink(plan, outcome.violation)))
        wanted += outcome.owed
    assert wanted, "no delivery was one that had to be: nothing was checked"


@pytest.mark.parametrize(("seed", "keep"), [(1022, (6, 25, 26)), (1031, (5, 12, 13))])
def test_who_joins_behind_a_node_that_leaves_at_once_has_its_lists(seed: int, keep: tuple[int, ...]) -> None:
    """A subscription, a join, and the leave of the newcomer's predecessor before it has heard of the newcomer."""
    assert play(Scenario("chord", seed=seed, churn=1.0, crashes=0.0, keep=keep)).violation is None


CHURN, JOINS, LOSS = {"churn": 0.8}, {"churn": 1.0, "crashes": 0.0}, {"churn": 0.3, "loss": 0.05}
SPLITS = {"churn": 0.3, "splits": 2}


@pytest.mark.parametrize(
    ("seed", "trouble"), [(273, CHURN), (419, JOINS), (436, CHURN), (770, JOINS), (851, JOINS), (978, LOSS)]
)
def test_a_node_that_changes_its_parent_when_the_run_ends_is_still_in_the_tree(
    seed: int, trouble: dict[str, float]
) -> None:
    """The graft is under way, and events come through the parent before."""
    assert play(Scenario("digests", seed=seed, **trouble)).violation is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("seed", "trouble"), [(322, SPLITS), (465, LOSS), (790, SPLITS), (1032, LOSS)])
def test_virtual_nodes_that_move_when_the_run_ends_leave_no_group_without_those_above(
    seed: int, trouble: dict[str, float]
) -> None:
    """A placeholder has just gone, or made way, or a node goes back to its group."""
    assert play(Scenario("sonnet", seed=seed, **trouble)).violation is None  # type: ignore[arg-type]


def test_no_host_crashes_that_leaves_another_only_virtual_nodes_that_have_left() -> None:
    assert play(Scenario("sonnet", seed=55, **CHURN)).violation is None  # type: ignore[arg-type]


def test_a_group_that_hangs_below_is_announced_until_all_know_of_it_whatever_others_say() -> None:
    """Twice an announcement is lost, and rows of long ago say that all know; the one who does not drops its row."""
    assert play(Scenario("sonnet-hashes", seed=69, **LOSS)).violation is None  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [3051, 3164])
def test_a_document_that_is_published_when_a_split_has_just_healed_reaches_everybody(seed: int) -> None:
    assert play(Scenario("sonnet", seed=seed, **SPLITS)).violation is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seed", "keep"),
    [
        (172, (1, 2, 3, 24, 25)),  # a subscription is given up while a newcomer is handed a part
        (173, (4, 19)),  # and while it is repeated
        (560, (5, 11, 13, 14)),  # and while a node that is back asks for what it lost
        (571, (3, 8, 12, 13, 14, 15, 25)),  # a node is back just before others convict it
        (661, (0, 6, 18, 27)),
        (902, (3, 11, 12, 15, 16)),  # one leaves while another joins
    ],
)
def test_segments_change_hands_while_other_things_happen(seed: int, keep: tuple[int, ...]) -> None:
    assert play(Scenario("bluedove", seed=seed, churn=0.8, keep=keep)).violation is None


def test_a_failure_is_shrunk_to_the_steps_that_it_needs_and_names_the_command() -> None:
    plan = Scenario("opchord", seed=3, bug="counting")
    violation = play(plan).violation
    assert violation is not None
    shrunk, violation = shrink(plan, violation)
    assert shrunk.keep is not None
    assert len(shrunk.keep) == 2  # a subscription, and an event that it should not get
    told = explain(shrunk, violation)
    assert f"tidings simulate opchord --seed 3 --bug counting --keep {shrunk.keep[0]},{shrunk.keep[1]}" in told
    assert "subscribe" in told


def test_a_node_that_comes_back_is_not_asked_for_what_it_lost() -> None:
    """Its clients have to subscribe again: what counts for the oracle ends with the crash."""
    played = [play(Scenario("bluedove", seed=seed, churn=1.5, crashes=1.0, events=20)) for seed in range(3)]
    assert not any(outcome.violation for outcome in played)
    assert any(outcome.owed for outcome in played)
