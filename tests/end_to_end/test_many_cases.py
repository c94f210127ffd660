"""The laws of the suite on far more cases than it has time for."""

from __future__ import annotations

from random import Random

import pytest

from tidings import Matcher
from tidings.testing import check_matcher, workloads
from tidings.testing.oracle import brute_force
from tidings.testing.random_cases import make_case

pytestmark = pytest.mark.long


@pytest.mark.parametrize("first_seed", range(100_000, 100_300, 50))
def test_the_matcher_finds_what_the_oracle_finds_on_thousands_of_filters(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        case = make_case(Random(seed), events=20, filters=30)
        readable = case.readable()
        found = Matcher(readable, case.domain).match(case.events).pairs()
        assert found == brute_force(readable, case.events, case.domain), (
            f"make_case(Random({seed}), events=20, filters=30)"
        )


@pytest.mark.parametrize("name", ["bluedove", "alerts", "strings", "mixed"])
def test_the_matcher_finds_what_the_oracle_finds_on_larger_workloads(name: str) -> None:
    workload = getattr(workloads, name)(subscriptions=6000, events=60)
    subscriptions = list(enumerate(workload.filters.to_pylist()))
    found = Matcher(subscriptions, workload.domain).match(workload.events).pairs()
    assert found == brute_force(subscriptions, workload.events.to_pylist(), workload.domain)


def test_the_matcher_keeps_every_law_on_many_cases() -> None:
    check_matcher(Matcher, cases=40)
