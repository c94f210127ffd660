"""The planner divides subscriptions among placements by what an event costs, and says why."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tidings.filter.compile.compiler import compile_filters
from tidings.model.event import read_events
from tidings.systems import EVERYWHERE, PlacementError, meet, place, route, statistics_of
from tidings.systems.bluedove import placement as bluedove
from tidings.systems.chord import placement as chord
from tidings.systems.digests import placement as digests
from tidings.systems.planned import placement as planned
from tidings.systems.planner.planner import ABOUT_AS_SMALL, ROUTE_NS, PlacementPlan, Room, plan, weighed
from tidings.systems.replicated import placement as replicated
from tidings.systems.sharding import shards_of, visits_of
from tidings.systems.statistics import Statistics
from tidings.testing.workloads import WORKLOADS

PLENTY = 1e12


def known(name: str, count: int = 600, *, subscriptions: int | None = None) -> Statistics:
    workload = WORKLOADS[name](count, 200)
    filters, events = compile_filters(workload.filters, workload.domain), read_events(workload.events, workload.domain)
    return statistics_of(filters, events, subscriptions=subscriptions)


def made(statistics: Statistics, memory: float = PLENTY, partitions: int = 6) -> PlacementPlan:
    return plan(statistics, Room(memory, cores=1, partitions=partitions), subscription_bytes=100.0)


def test_a_few_subscriptions_stay_everywhere() -> None:
    found = made(known("mixed", 200))
    assert found.placement == "replicated"
    assert "chosen: replicated, cheaper than sending events anywhere" in found.lines()


def test_nobody_is_planned_for_too() -> None:
    assert made(known("mixed", 0)).placement == "replicated"


def test_wide_ranges_over_shared_attributes_are_worth_sending_events_when_there_are_many() -> None:
    found = made(known("bluedove", subscriptions=10_000_000), partitions=16)
    assert found.placement != "replicated"
    assert found.chosen.expected_ns < plan_of(found, "replicated")


def test_sparing_an_event_what_its_keys_do_not_lead_to_is_not_worth_sending_it() -> None:
    """Equalities on skewed texts: a partition holds few of them, and just those that the event would be verified by."""
    found = made(known("strings", subscriptions=1_000_000))
    assert found.placement == "replicated"


def plan_of(found: PlacementPlan, name: str) -> float:
    """What a division was expected to cost, by the line that says so."""
    (line,) = [line for line in found.considered if line.startswith(f"{name}:")]
    return float(line.split(": ")[1].split(" ")[0].replace(",", "")) * 1e3


def test_what_an_executor_cannot_hold_is_not_chosen_and_the_reason_says_so() -> None:
    statistics = known("bluedove", subscriptions=100_000)
    whole = 100_000 * 100.0
    tight = made(statistics, memory=whole * 0.9, partitions=20)
    assert tight.placement != "replicated"
    assert tight.chosen.bytes < whole * 0.9
    assert "of an executor" in tight.why


def test_if_nothing_fits_the_cheapest_of_about_the_smallest_is_taken() -> None:
    statistics = known("bluedove", subscriptions=100_000)
    found = made(statistics, memory=1.0, partitions=8)
    assert "none fits" in found.why
    divisions = weighed(statistics, Room(1.0, cores=1, partitions=8), subscription_bytes=100.0)
    smallest = min(divisions, key=lambda one: one.bytes)
    assert found.chosen.bytes <= ABOUT_AS_SMALL * smallest.bytes
    assert found.chosen.expected_ns < smallest.expected_ns  # which an executor holds no better


def test_where_no_attribute_divides_the_subscriptions_they_stay_everywhere() -> None:
    workload = WORKLOADS["mixed"](10, 50)
    filters = compile_filters(["n0 > n1 * 1.5", "c0 LIKE '%7%'"] * 50, workload.domain)
    events = read_events(workload.events, workload.domain)
    found = made(statistics_of(filters, events, subscriptions=10_000_000))
    assert found.placement == "replicated"


def test_every_subscription_is_in_one_class_and_the_sizes_add_up() -> None:
    statistics = known("mixed", subscriptions=2_000)
    view = planned.adapt(statistics, partitions=4, parts=("replicated", "digests", "bluedove"))
    placed = place(statistics.filters, view)
    parts = view.part_of(placed.keys)
    for row in np.unique(placed.subscriptions).tolist():
        assert len(set(parts[placed.subscriptions == row].tolist())) == 1
    assert set(placed.subscriptions.tolist()) == set(statistics.filters.box_filter.tolist())
    residual_only = np.unique(parts[np.isin(placed.subscriptions, uncompared(statistics))])
    assert residual_only.tolist() in ([], [0])  # what nothing can key stays everywhere


def uncompared(statistics: Statistics) -> list[int]:
    filters = statistics.filters
    free = np.ones(filters.boxes, bool)
    for intervals in filters.intervals.values():
        free[intervals.constrained] = False
    return np.unique(filters.box_filter[free]).tolist()


def test_a_plan_finds_what_its_parts_find_and_compares_less_than_any_on_mixed_filters() -> None:
    statistics = known("mixed")
    filters, events = statistics.filters, statistics.events
    assert events is not None
    found = {}
    for name, parts in (
        ("planned", ("replicated", "digests", "bluedove")),
        ("digests", ("digests",)),
        ("bluedove", ("bluedove",)),
        ("replicated", ("replicated",)),
    ):
        found[name] = meet(filters, events, planned.adapt(statistics, partitions=6, parts=parts))
    assert len({tuple(one.pairs) for one in found.values()}) == 1
    assert found["planned"].candidates <= min(one.candidates for one in found.values())


def test_a_placement_that_counts_cannot_be_one_of_several() -> None:
    statistics = known("strings", 100)
    with pytest.raises(PlacementError, match="'chord' counts lists"):
        planned.combined([chord.adapt(statistics, partitions=2)], statistics)


def test_a_plan_survives_being_written_and_read() -> None:
    found = made(known("bluedove", subscriptions=1_000_000))
    again = PlacementPlan.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.lines() == found.lines()
    assert again.view.partitions == found.view.partitions
    assert ROUTE_NS > 0


# ---------------------------------------------------------------------- shards and visits


@pytest.mark.parametrize(
    "module", [bluedove, digests, planned, replicated], ids=lambda module: module.__name__.rsplit(".", 1)[-1]
)
def test_an_event_visits_each_owner_once_and_consults_a_shard_once(module: Any) -> None:
    statistics = known("mixed", 500)
    events = statistics.events
    assert events is not None
    view = module.adapt(statistics, partitions=5)
    visits, routed = visits_of(events, view), route(events, view)
    assert set(visits.events.tolist()) == set(range(events.count))
    pairs = list(zip(visits.events.tolist(), visits.partitions.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    owners = view.owners(routed.keys)
    owned = {(e, o) for e, o in zip(routed.events.tolist(), owners.tolist(), strict=True) if o != EVERYWHERE}
    assert owned <= set(pairs)
    consulted = [
        (event, shard)
        for event, start, end in zip(visits.events.tolist(), visits.offsets, visits.offsets[1:], strict=False)
        for shard in visits.shards[start:end].tolist()
    ]
    assert sorted(consulted) == sorted(zip(routed.events.tolist(), shards_of(routed.keys, view).tolist(), strict=True))
