"""Node processes in random trouble (`tests.systems.end_to_end.trouble`), and the bugs that it has to find."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.systems.end_to_end.trouble import Failure, Step, Trouble, play, schedule, trouble

SYSTEMS = ("chord", "opchord", "digests", "clusters", "bluedove", "sonnet")
SEEDS = 2  # of each system, in the long form
STEPS = 120


def test_a_seed_is_a_schedule() -> None:
    assert schedule(1, 3, 50) == schedule(1, 3, 50) != schedule(2, 3, 50)


def test_two_nodes_outlast_forged_frames_large_events_a_stall_and_a_crash() -> None:
    """The short form: each kind of trouble once."""
    steps = [Step(kind, number % 2, number) for number, kind in enumerate(("frame",) * 12)]
    steps += [Step("large", 0, 3), Step("drip", 1, 4), Step("stall", 1, 5), Step("frame", 1, 6), Step("wake", 1, 7)]
    steps += [Step("publish", 1, 8), Step("kill", 1, 9), Step("frame", 0, 10), Step("back", 1, 11)]
    with trouble("bluedove", 1, nodes=2) as network:
        network.start()
        network.play(steps)
        assert network.judge() == 4 * 2


def test_a_node_that_is_terminated_leaves_and_ends_with_0(tmp_path: Path) -> None:
    network = Trouble("opchord", 1, tmp_path, nodes=1)
    try:
        network.start()
        assert network.nodes[0].end(signal.SIGTERM) == 0
    finally:
        network.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_network_is_whole_after_random_trouble(system: str, seed: int) -> None:
    assert play(system, seed, steps=STEPS)


@pytest.mark.long
@pytest.mark.parametrize("bug", ["wedge", "untyped"])
def test_a_bug_of_the_past_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seeds that find nothing without it: a frame too large stops its link; any value is taken for a member's."""
    monkeypatch.setattr("tests.systems.end_to_end.trouble.LAST_RESORT_S", 60.0)
    found = []
    for seed in range(SEEDS):
        try:
            play("bluedove", seed, steps=STEPS, bug=bug)
        except Failure as failure:
            found.append(str(failure))
    assert any("does not answer" in one or "not delivered" in one for one in found), found


@pytest.mark.parametrize("system", ["opchord", *(pytest.param(name, marks=pytest.mark.long) for name in SYSTEMS)])
def test_a_process_that_never_delivers_is_found(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.systems.end_to_end.trouble.LAST_RESORT_S", 8.0)  # it would wait for ever
    with pytest.raises(Failure, match="are not delivered"):
        play(system, 1, nodes=2, steps=0, bug="mute")
