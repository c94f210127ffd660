"""The conformance suite passes every placement, and catches every wrong one."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tidings.systems import Placed, Routed, placement_named
from tidings.systems.bluedove import placement as bluedove
from tidings.systems.chord import placement as chord
from tidings.systems.clusters import placement as clusters
from tidings.systems.digests import placement as digests
from tidings.systems.interface import channels_of, placements
from tidings.systems.opchord import placement as opchord
from tidings.testing import NonConformance, check_placement


@pytest.mark.parametrize("name", placements())
def test_every_placement_keeps_every_law(name: str) -> None:
    check_placement(name, cases=1)


@pytest.mark.long
@pytest.mark.parametrize("name", placements())
def test_every_placement_keeps_every_law_in_many_cases(name: str) -> None:
    check_placement(name, cases=60)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("bluedove", {"segments": 40, "matchers": 3, "policy": "random"}),
    ("opchord", {"empirical": False, "jump": 0.1}),
    ("clusters", {"method": "cut", "axes": "even"}),
    ("planned", {"parts": ("digests", "bluedove", "clusters", "replicated")}),
]
FURTHER: list[tuple[str, dict[str, Any]]] = [
    ("bluedove", {"segments": 20, "fan_out": 2}),
    ("chord", {"values_max": 10_000}),
    ("digests", {"keys_max": 1}),
    ("clusters", {"method": "merged", "clusters": 3}),
]


SHORT_AND_LONG = [*VARIANTS, *(pytest.param(*one, marks=pytest.mark.long) for one in FURTHER)]


@pytest.mark.parametrize(("name", "interests"), SHORT_AND_LONG)
def test_every_placement_keeps_every_law_whatever_is_wished_of_it(name: str, interests: dict[str, Any]) -> None:
    check_placement(name, cases=1, **interests)


# ---------------------------------------------------------------------- planted faults


def wrong(right: Any, **changed: Any) -> Any:
    """A placement with something exchanged."""
    parts = {name: getattr(right, name) for name in ("View", "place", "route", "adapt")}
    return SimpleNamespace(**parts | changed)


def loses_the_last_copy(filters: Any, view: Any) -> Placed:
    placed = digests.place(filters, view)
    return Placed(placed.subscriptions[:-1], placed.keys[:-1])


def forgets_the_catch_all(events: Any, view: Any) -> Routed:
    routed = digests.route(events, view)
    kept = channels_of(routed.keys) < view.catch_all
    return Routed(routed.events[kept], routed.keys[kept])


def puts_null_with_the_values(events: Any, view: Any) -> Routed:
    """An event that lacks an attribute is routed as if it had the value 0."""
    filled = {
        path: column.fill_null(0) if str(column.type) in ("int64", "double", "int32") else column
        for path, column in events.columns.items()
    }
    return chord.route(replace(events, columns=filled), view)


def holds_the_unsatisfiable(filters: Any, view: Any) -> Placed:
    placed = digests.place(filters, view)
    never = filters.never.astype(np.int64)
    return Placed(np.append(placed.subscriptions, never), np.append(placed.keys, np.zeros(len(never), np.int64)))


def holds_in_two_indices(filters: Any, view: Any) -> Placed:
    """Also in the catch-all: found twice."""
    placed = digests.place(filters, view)
    rows = np.unique(placed.subscriptions[channels_of(placed.keys) < view.catch_all])
    key = np.int64(view.catch_all << 48)
    return Placed(np.append(placed.subscriptions, rows), np.append(placed.keys, np.full(len(rows), key)))


def segments_are_closed_below_only(filters: Any, view: Any) -> Placed:
    """A range is held at its first segment alone."""
    placed = bluedove.place(filters, view)
    rows = np.stack([placed.subscriptions, channels_of(placed.keys)])
    _, first = np.unique(rows, axis=1, return_index=True)
    return Placed(placed.subscriptions[first], placed.keys[first])


def depends_on_the_others(filters: Any, view: Any) -> Placed:
    """Where a subscription is held changes with what is placed beside it."""
    if filters.count % 2:
        return placement_named("digests").place(filters, replace(view, keys_max=0))
    return digests.place(filters, view)


def keeps_its_epoch(statistics: Any, *, partitions: int, epoch: int = 0) -> Any:
    return digests.adapt(statistics, partitions=partitions)


def has_too_few_partitions(statistics: Any, *, partitions: int, epoch: int = 0) -> Any:
    made = bluedove.adapt(statistics, partitions=partitions, epoch=epoch)

    class Fewer(bluedove.View):
        partitions = 1  # type: ignore[assignment]

    return Fewer(**{field.name: getattr(made, field.name) for field in fields(made)})


def counts_values_and_not_lists(filters: Any, view: Any) -> Placed:
    """A conjunction is named by only the first value of a range."""
    placed = chord.place(filters, view)
    assert placed.conjunctions is not None
    rows = np.stack([placed.conjunctions, channels_of(placed.keys)])
    _, first = np.unique(rows, axis=1, return_index=True)
    return Placed(placed.subscriptions[first], placed.keys[first], placed.conjunctions[first])


def wraps_past_the_end(events: Any, view: Any) -> Routed:
    """Values past the greatest come around to the least, as the printed hash has it."""
    routed = opchord.route(events, view)
    nodes = len(view.ring.members)
    last = (routed.keys & ((1 << 48) - 1)) == nodes - 1
    moved = last & (channels_of(routed.keys) < view.catch_all)
    return Routed(routed.events, np.where(moved, routed.keys - (nodes - 1), routed.keys))


def as_the_paper_does(statistics: Any, *, partitions: int, epoch: int = 0) -> Any:
    """Clusters that do not cover what they hold: false negatives."""
    return clusters.adapt(statistics, partitions=partitions, epoch=epoch, mode="paper", clusters=2)


@pytest.mark.parametrize(
    ("planted", "law"),
    [
        (wrong(digests, place=loses_the_last_copy), "held nowhere|meet at"),
        (wrong(digests, route=forgets_the_catch_all), "meet at one key: these meet at 0"),
        (wrong(chord, route=puts_null_with_the_values), "in each of its lists"),
        (wrong(digests, place=holds_the_unsatisfiable), "nothing satisfies it"),
        (wrong(digests, place=holds_in_two_indices), "meet at one key: these meet at 2"),
        (wrong(bluedove, place=segments_are_closed_below_only), "meet at one key: these meet at 0"),
        (wrong(digests, place=depends_on_the_others), "leaves nothing"),
        (wrong(digests, adapt=keeps_its_epoch), "later epoch"),
        (wrong(bluedove, adapt=has_too_few_partitions), "past its partitions"),
        (wrong(chord, place=counts_values_and_not_lists), "in each of its lists"),
        (wrong(opchord, route=wraps_past_the_end), "in each of its lists"),
        (wrong(clusters, adapt=as_the_paper_does), "meet at one key: these meet at 0"),
    ],
)
def test_a_wrong_placement_is_caught(planted: Any, law: str) -> None:
    with pytest.raises(NonConformance, match=law):
        check_placement(planted, cases=3)
