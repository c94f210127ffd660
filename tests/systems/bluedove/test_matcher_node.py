from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.systems.bluedove.cloud import PLANE, A, B, C, Cloud

from tidings.systems.bluedove.messages import RATE_MAX, LoadReport, Match
from tidings.systems.protocols.effects import Event, Send, SetTimer


def reports(effects: Sequence[Any]) -> list[LoadReport]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, LoadReport)]


def test_a_matcher_that_had_nothing_to_do_reports_what_it_could_match() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B], matcher={"service_ms": lambda held: 10 + 5 * held})
    for number in range(4):
        cloud.subscribe(A, f"s{number}", "x < 40 AND y < 40")
    cloud.run(500)
    (report,) = reports(cloud.nodes[A].on_timer("report", cloud.world.now_ms))
    assert [load.rate for load in report.dimensions] == pytest.approx([1_000 / 30, 1_000 / 30])
    assert [load.subscriptions for load in report.dimensions] == [4, 4]


def test_the_time_that_matching_takes_is_measured_by_the_clock() -> None:
    times = iter(range(1_000))
    cloud = Cloud(PLANE, [[50], [50]], [A, B], matcher={"clock": lambda: next(times) / 100})  # 10 ms at every look
    for number in range(4):
        cloud.subscribe(A, f"s{number}", "x < 40 AND y < 40")
    cloud.run(500)
    assert cloud.nodes[A].rate(0) == RATE_MAX
    cloud.publish(B, "e", x=30.0, y=30.0)
    cloud.run(500)
    assert cloud.nodes[A].rate(0) == pytest.approx(100)
    assert cloud.nodes[A].rate(1) == pytest.approx(100)
    assert cloud.told("s0") == ["e"]


def test_events_wait_in_the_queue_while_a_process_matches_another() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B], matcher={"clock": lambda: 0.0})
    node = cloud.nodes[A]
    effects = [
        effect for n in range(3) for effect in node.on_message(B, Match(Event(f"e{n}", '{"x": 1, "y": 1}'), 0, B), 0)
    ]
    assert len(node.queues[0]) == 3
    assert [effect.after_ms for effect in effects if isinstance(effect, SetTimer)] == [0]


def test_a_dispatcher_that_is_new_is_told_the_load_though_it_has_not_moved() -> None:
    cloud = Cloud(PLANE, [[50], [50]], [A, B])
    cloud.subscribe(A, "s", "x < 40")
    cloud.run(5_000)
    newcomer = cloud.join(C, A)
    cloud.run(1_500)
    assert newcomer.watch.costs("subscriptions", [(0, A)], cloud.world.now_ms).tolist() == [1.0]
