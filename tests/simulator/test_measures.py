"""What a run costs is counted by what caused it."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest

from tidings.simulator.measures import KindOfMessage, RunMeasures, identity_of, kind_of, quantile
from tidings.simulator.run import play
from tidings.simulator.scenario import Scenario
from tidings.simulator.world import Network, World
from tidings.systems.overlay import overlays
from tidings.systems.protocols.effects import Deliver, Effects, Event, Send, SetTimer

EVENT = Event("e", "{}")


class Ping(NamedTuple):
    attempt: int


class Wrapped(NamedTuple):
    hops: int
    payload: Any


class Chain:
    """Passes what it is sent on to the next node, up to the last, which delivers; pings itself for upkeep."""

    def __init__(self, id: int, last: int) -> None:
        self.id = id
        self._last = last

    def start(self, contact: int | None, now_ms: int) -> Effects:
        return [SetTimer(100, "tick")]

    def publish(self, *, retries: int = 0) -> Effects:
        return [Send(self.id + 1, Ping(0)), SetTimer(500, ("again", retries))]

    def on_message(self, sender: int, message: Any, now_ms: int) -> Effects:
        if isinstance(message, Wrapped):
            return []
        return [Deliver("s", EVENT)] if self.id == self._last else [Send(self.id + 1, message)]

    def on_timer(self, tag: Any, now_ms: int) -> Effects:
        if tag == "tick":
            return [SetTimer(100, "tick"), Send(self.id, Wrapped(0, Ping(0)))]
        _, left = tag
        return [Send(self.id + 1, Ping(left)), SetTimer(500, ("again", left - 1))] if left else []

    def on_undelivered(self, to: int, message: Any, now_ms: int) -> Effects:
        return []


def chain_measures(*, retries: int) -> RunMeasures:
    random = Random(1)
    world = World(random, Network(random, latency_ms=(5, 5)))
    world.measures = RunMeasures()
    for id in range(4):
        world.add(Chain(id, last=3))
    first: Any = world.nodes[0]
    world.do(0, first.publish(retries=retries))
    world.run(2_050)
    world.measures.finish(list(world.nodes))
    return world.measures


def test_messages_are_work_or_upkeep_by_what_caused_them() -> None:
    measures = chain_measures(retries=0)
    assert (measures.work, measures.repeats, measures.upkeep) == (3, 0, 4 * 20)
    assert measures.hops == [3]
    assert measures.loads == [[0, 1, 1, 1]]
    assert measures.load_ratios() == (pytest.approx(4 / 3), pytest.approx(3**0.5 / 3))


def test_what_is_sent_again_is_a_repeat_and_no_work() -> None:
    measures = chain_measures(retries=1)
    assert (measures.work, measures.repeats) == (3, 3)


def test_a_message_is_known_again_but_for_its_attempt_and_hops() -> None:
    assert identity_of(Wrapped(1, Ping(1))) == identity_of(Wrapped(2, Ping(2)))
    assert identity_of(Wrapped(1, EVENT)) != identity_of(Wrapped(1, Event("f", "{}")))
    assert kind_of(Wrapped(1, Wrapped(2, Ping(3)))) == "Ping"


def test_bytes_are_those_of_the_message_as_json() -> None:
    kind = KindOfMessage()
    for _ in range(1_000):
        kind.add(Ping(7))
    assert kind.bytes == 1_000 * len('{"Ping":[7]}')
    assert kind.measured < 100


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 6), (0.99, 10)])
def test_a_quantile_is_one_of_the_values(share: float, value: int) -> None:
    assert quantile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], share) == value


def test_measures_of_several_runs_are_added_up() -> None:
    merged = RunMeasures()
    for _ in range(2):
        merged.merge(chain_measures(retries=0))
    assert (merged.work, len(merged.hops), len(merged.loads)) == (6, 2, 2)
    assert merged.bytes == 2 * chain_measures(retries=0).bytes


@pytest.mark.parametrize("system", sorted(overlays()))
def test_a_run_of_every_system_is_measured(system: str) -> None:
    outcome = play(Scenario(system, churn=0.0, repair_ms=1_000, subscriptions=20, events=20), measured=True)
    measures = outcome.measures
    assert measures is not None
    assert measures.messages == outcome.messages
    assert measures.work > 0
    assert measures.upkeep > 0
    assert len(measures.latencies_ms) == outcome.deliveries > 0
    assert len(measures.hops) == outcome.deliveries
    assert max(measures.latencies_ms) >= max(measures.hops) * 5  # a hop takes 5 ms at least
    assert measures.rejected <= measures.checks
