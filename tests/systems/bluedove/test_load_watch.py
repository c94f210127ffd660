from __future__ import annotations

import pytest
from tests.systems.bluedove.cloud import A, B, C, D

from tidings.systems.bluedove.load_watch import SATURATED, LoadWatch
from tidings.systems.bluedove.messages import DimensionLoad, LoadReport


def watch() -> LoadWatch:
    return LoadWatch(saturated_queue=20, pause_ms=10_000, patience_ms=60_000)


def report(subscriptions: int, queued: int, arrivals: float = 0.0, rate: float = 10.0) -> LoadReport:
    return LoadReport((DimensionLoad(subscriptions, queued, arrivals, rate),))


def test_a_queue_is_carried_on_by_the_age_of_its_own_report() -> None:
    known = watch()
    known.take(A, report(9, 10, 20.0), 0)  # 10 more a second
    known.take(B, report(9, 25, 20.0), 4_000)
    costs = known.costs("adaptive", [(0, A), (0, B)], 4_000)
    assert costs.tolist() == pytest.approx([(10 + 40 + 1) / 10, (25 + 1) / 10])


def test_an_idle_matcher_is_as_quick_as_it_could_be() -> None:
    known = watch()
    known.take(A, report(9, 0, 0.0, 50.0), 0)
    known.take(B, report(9, 0, 4.0, 5.0), 0)
    costs = known.costs("adaptive", [(0, A), (0, B)], 1_000)
    assert costs.tolist() == pytest.approx([1 / 50, 1 / 5])


def test_the_most_loaded_has_the_most_subscriptions_for_all_events_that_wait() -> None:
    known = watch()
    for matcher, subscriptions, queued in ((A, 100, 0), (B, 10, 50), (C, 40, 1)):
        known.take(matcher, report(subscriptions, queued), 0)
    assert known.most_loaded([A, B, C, D], 0) == [B, A, C, D]


def test_a_queue_that_keeps_growing_is_saturation_and_a_long_one_is_not() -> None:
    known = watch()
    assert not any(known.take(A, report(9, 500 - number), number) for number in range(2 * SATURATED))
    assert not any(known.take(C, report(9, 500), number) for number in range(2 * SATURATED))
    grown = [known.take(B, report(9, 100 + number // 2), number) for number in range(SATURATED)]
    assert grown == [False] * (SATURATED - 1) + [True]


def test_one_matcher_is_asked_for_until_it_is_there_and_has_its_share() -> None:
    known = watch()
    assert known.decide_to_grow(3, 0)
    assert not any(known.decide_to_grow(3, at) for at in range(0, 60_000, 1_000))  # it may be on its way
    assert known.decide_to_grow(3, 60_000)  # it did not come
    assert not known.decide_to_grow(4, 65_000)
    assert not known.decide_to_grow(4, 74_000)
    assert known.decide_to_grow(4, 75_000)
