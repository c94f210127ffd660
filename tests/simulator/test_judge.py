"""What a run is judged by: since when subscriptions are in place, what is owed, and a node that never delivers."""

from __future__ import annotations

from random import Random

import pytest

from tidings.simulator.judge import Interested, Judge, Publication
from tidings.simulator.run import Run, play
from tidings.simulator.scenario import Scenario, plan_from
from tidings.simulator.workload import market
from tidings.simulator.world import Network, World
from tidings.systems.overlay import LOSSLESS, Promise, Violation, overlay_named, overlays
from tidings.systems.protocols.effects import Active

SMALL = {"nodes": 6, "subscriptions": 6, "events": 6}
MUTE_IN = [(name, churn) for name in overlays() for churn in (0.0, 0.5)]


@pytest.mark.parametrize(("system", "churn"), MUTE_IN)
def test_a_node_that_never_delivers_is_found(system: str, churn: float) -> None:
    assert play(Scenario(system, churn=churn, churn_ms=5_000, bug="mute", **SMALL)).violation.law == "Complete"  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("system", overlays())
def test_what_a_system_owes_without_churn_are_all_matches(system: str) -> None:
    outcome = play(Scenario(system, churn=0.0, **SMALL))  # type: ignore[arg-type]
    assert outcome.violation is None
    assert outcome.matches == outcome.owed == outcome.delivered > 0


@pytest.mark.parametrize("system", overlays())
def test_a_subscription_is_reported_in_place_once(system: str) -> None:
    run = Run(Scenario(system, churn=0.0, **SMALL))  # type: ignore[arg-type]
    reported: list[str] = []
    carry_out = run.world.carry_out

    def noting(node: object, effects: object) -> None:
        listed = list(effects)  # type: ignore[call-overload]
        reported.extend(effect.subscription for effect in listed if isinstance(effect, Active))
        carry_out(node, listed)  # type: ignore[arg-type]

    run.world.carry_out = noting  # type: ignore[method-assign]
    assert run.play().violation is None
    assert sorted(reported) == sorted(run.judge.interested)


def world() -> World:
    random = Random(1)
    made = World(random, Network(random))
    made.nodes[7] = made.nodes[8] = None  # type: ignore[assignment]
    return made


def judged(promise: Promise, *, active_ms: int | None = 100, at_ms: int = 5_000, probe: bool = False) -> Judge:
    """One subscription at node 7, and an event of node 8 that matches it."""
    made = world()
    judge = Judge(made, market(), promise)
    text, body = next((t, b) for t in market().filters for b in market().events if market().matches(t, b))
    judge.interested["s"] = Interested(7, [(50, text)])
    judge.published["e"] = Publication(at_ms, body, probe, 8)
    if active_ms is not None:
        made.active["s"] = active_ms
    made.now_ms = 60_000
    return judge


def test_the_first_time_that_a_subscription_is_in_place_counts() -> None:
    judge = judged(Promise(), probe=True)
    node = type("Node", (), {"id": 7})()
    judge._world.carry_out(node, [Active("s")])
    assert judge._world.active["s"] == 100
    assert judge.count() == (1, 1, 0)


def test_a_run_in_which_nothing_had_to_be_delivered_though_probes_match_has_failed() -> None:
    judge = judged(Promise(), active_ms=5_000, probe=True)  # in place no sooner than the event was published
    with pytest.raises(Violation) as found:
        judge.judge()
    assert found.value.law == "Owed"


def test_a_run_in_which_nothing_matches_is_none_that_failed() -> None:
    judge = judged(Promise(), probe=True)
    judge.published["e"] = judge.published["e"]._replace(body='{"symbol": "NOBODY"}')
    judge.interested["s"].texts = [(50, "symbol = 'ALPHA'")]
    judge.judge()
    assert judge.count() == (0, 0, 0)


@pytest.mark.parametrize(
    ("promise", "kind", "begin_ms", "owed"),
    [
        (Promise(), "join", 4_000, False),
        (Promise(), "join", 7_900, False),  # the event may still be under way
        (Promise(), "join", 8_100, True),
        (Promise(join_ms=0), "join", 4_000, True),
        (Promise(crash_ms=500), "crash", 4_000, True),
        (Promise(crash_ms=2_000), "crash", 4_000, False),
        (Promise(crash_ms=2_000, crashes=2), "crash", 4_000, True),
        (Promise(leave_ms=2_000), "leave", 4_000, False),
        (Promise(cut_ms=2_000), "cut", 4_000, False),
        (LOSSLESS, "crash", 4_000, True),
    ],
)
def test_what_is_owed_of_events_among_trouble_is_what_the_system_promises(
    promise: Promise, kind: str, begin_ms: int, owed: bool
) -> None:
    judge = judged(promise)
    judge._world.now_ms = begin_ms
    judge.trouble(kind, 9)
    assert judge.count() == (1, int(owed), 0)


@pytest.mark.parametrize(("promise", "owed"), [(Promise(0, 0, 0, 0), False), (LOSSLESS, True)])
def test_an_event_outlives_its_publisher_where_that_is_promised(promise: Promise, owed: bool) -> None:
    judge = judged(promise)
    judge._world.now_ms = 5_100
    judge.trouble("crash", 8)  # which is back, under its id
    assert judge.count() == (1, int(owed), 0)
    del judge._world.nodes[8]
    assert judge.count() == (1, 0, 0)


@pytest.mark.parametrize("system", ["chord", "opchord"])
def test_a_ring_owes_events_of_churn_and_delivers_them(system: str) -> None:
    outcomes = [play(Scenario(system, seed=seed, nodes=6, events=12, churn=0.6)) for seed in range(3)]
    assert not any(outcome.violation for outcome in outcomes)
    assert sum(outcome.owed for outcome in outcomes) > 0.6 * sum(outcome.matches for outcome in outcomes)


def test_laws_can_be_switched_off_and_what_is_delivered_is_judged_all_the_same() -> None:
    plan = Scenario("opchord", bug="handover", laws=False, **overlay_named("opchord").bugs["handover"].trouble)  # type: ignore[arg-type]
    assert plan_from(plan.arguments) == plan
    run = Run(plan)
    assert not run.world.laws
    assert play(Scenario("opchord", bug="counting", seed=3, laws=False)).violation is not None
