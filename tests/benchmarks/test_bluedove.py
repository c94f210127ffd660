"""The experiments with BlueDove, at a size at which they take seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.bluedove import Laboratory, Setup, upkeep

from tidings.systems.bluedove.forwarding import Policy

SMALL = Setup(matchers=10, dispatchers=1, subscriptions=150)
SUSTAINED_S = 2.5  # that an event waits at most after half a minute of what is sustained


def longest_wait(policy: Policy, rate: float) -> float:
    laboratory = Laboratory(replace(SMALL, policy=policy))
    laboratory.publish(rate, 30)
    return max(laboratory.waits_s())


def test_the_adaptive_policy_sustains_what_is_far_too_much_for_the_others() -> None:
    rate = 300.0
    assert longest_wait("adaptive", rate) < SUSTAINED_S
    assert longest_wait("subscriptions", rate / 1.2) > SUSTAINED_S
    assert longest_wait("random", rate / 3) > SUSTAINED_S


@pytest.mark.parametrize("dispatchers", [1, 4])
def test_upkeep_is_a_few_kilobytes_whatever_number_of_subscriptions_is_in_place(dispatchers: int) -> None:
    setups = [Setup(matchers=20, dispatchers=dispatchers, subscriptions=count) for count in (20, 200)]
    few, many = (upkeep(setup, settle_s=20, seconds=48).total() for setup in setups)
    assert many <= 3_000 + 20 * dispatchers
    assert many <= 1.2 * few
