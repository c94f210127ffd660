"""Which placement serves which subscriptions, by what an event would cost.

The subscriptions are divided into classes, each under the placement in which the fewest events are
compared with its members (`placements.planned`). What a division costs an event:

    for each shard   matching what it holds, for the events that consult it, by the matcher's own estimate
    for each visit   being sent to a partition, with all columns, and being put together where it may be one of several

Every division is estimated on a sample: each placement by itself, and those that route together with
what is best left everywhere. Of those whose files an executor's memory holds, the cheapest is taken; where it holds
none, the cheapest of those that are about as small as the smallest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.systems.geometry.key_pairs import distinct_pairs, starts_of
from tidings.systems.interface import (
    EVERYWHERE,
    REPLICATED,
    Numbers,
    Placed,
    PlacementError,
    Routed,
    View,
    place,
    placement_named,
    route,
    systems,
    view_from_dict,
    view_to_dict,
)
from tidings.systems.planned import placement as planned
from tidings.systems.planner.expected_cost import MatchCosts
from tidings.systems.sharding import consulted, shards_of
from tidings.systems.statistics import Statistics

# What sending an event to a partition costs on one core, each of its columns on the way, and putting a visit together,
# beside the matcher's estimates: only the ratios matter. `benchmarks.placements` measured 10 to 14 µs of CPU time for a
# visit, with 4 columns as with 20, and 2 to 4 µs to put one together. But matching, too, takes a few times its estimate
# where events have hundreds of matches and a shard is larger than a cache, which no estimate knows of. With these,
# `auto` goes from `replicated` to `bluedove` between three and ten million boxes; measured, between one and three.
ROUTE_NS = 3_000.0
COLUMN_NS = 150.0
COMBINE_NS = 6_000.0

ABOUT_AS_SMALL = 1.5  # times the smallest: what an executor holds is estimated no better


@dataclass(frozen=True)
class Class:
    """Subscriptions under one placement."""

    placement: str
    subscriptions: int
    by: str  # what the placement divides them by
    met: float  # the share of them that an event is compared with
    visits: float  # partitions that an event is sent to for them
    copies: float  # of a subscription
    match_ns: float  # of an event, with those of them that it meets

    def line(self) -> str:
        what = f"{self.subscriptions:,} subscriptions under {self.placement}"
        if self.placement == REPLICATED:
            return f"{what}: {_micros(self.match_ns)} an event"
        return (
            f"{what} by {self.by}: an event meets {self.met:.1%} of them at {self.visits:.1f} partitions, "
            f"{_micros(self.match_ns)}; {self.copies:.1f} copies of each stored"
        )


@dataclass(frozen=True)
class Division:
    """One way to divide the subscriptions, and what it would cost."""

    placement: str  # of all, or the one that combines several
    classes: tuple[Class, ...]
    sending_ns: float  # of an event: routing and combining
    bytes: float  # that an executor has to hold
    view: dict[str, Any]

    @property
    def expected_ns(self) -> float:
        return self.sending_ns + sum(one.match_ns for one in self.classes)

    @property
    def name(self) -> str:
        return " + ".join(one.placement for one in self.classes if one.subscriptions) or self.placement

    def line(self) -> str:
        sending = f", {_micros(self.sending_ns)} of them to send it" if self.sending_ns else ""
        return f"{self.name}: {_micros(self.expected_ns)} an event{sending}, {_size(self.bytes)} in each executor"


@dataclass(frozen=True)
class PlacementPlan:
    """The division that was chosen, beside the others."""

    chosen: Division
    considered: tuple[str, ...]
    why: str

    @property
    def placement(self) -> str:
        return self.chosen.placement

    @property
    def view(self) -> View:
        return view_from_dict(self.chosen.view)

    def lines(self) -> list[str]:
        """What was considered, what was chosen, and why."""
        classes = [f"class: {one.line()}" for one in self.chosen.classes]
        return [*self.considered, f"chosen: {self.chosen.name}, {self.why}", *classes]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(form: Mapping[str, Any]) -> PlacementPlan:
        chosen = dict(form["chosen"])
        classes = tuple(Class(**one) for one in chosen.pop("classes"))
        return PlacementPlan(Division(classes=classes, **chosen), tuple(form["considered"]), form["why"])


@dataclass(frozen=True)
class Room:
    """Where an index is to live."""

    memory: float  # bytes of an executor
    cores: int = 1  # tasks that run in it at once
    partitions: int = 4


def plan(
    statistics: Statistics,
    room: Room,
    *,
    subscription_bytes: float,
    wishes: Mapping[str, Mapping[str, Any]] | None = None,
) -> PlacementPlan:
    """The division that costs an event least, of those that fit; `wishes` are for the placements, by name."""
    estimator = _Estimator(statistics, room, subscription_bytes, wishes or {})
    everywhere = estimator.everywhere()
    if everywhere.bytes <= room.memory and everywhere.expected_ns <= estimator.route_ns:
        return PlacementPlan(everywhere, (everywhere.line(),), "cheaper than sending events anywhere")
    found = [everywhere, *estimator.routed()]
    fitting = [one for one in found if one.bytes <= room.memory]
    smallest = min(one.bytes for one in found)
    best = min(
        fitting or [one for one in found if one.bytes <= ABOUT_AS_SMALL * smallest], key=lambda one: one.expected_ns
    )
    considered = tuple(one.line() for one in found)
    size = _size(room.memory)
    if len(found) == 1:
        return PlacementPlan(best, considered, "since no attribute divides the subscriptions")
    if not fitting:
        return PlacementPlan(best, considered, f"cheapest of the smallest, though none fits the {size} of an executor")
    if len(fitting) == 1:
        return PlacementPlan(best, considered, f"it alone fits the {size} of an executor")
    smaller = "" if len(fitting) == len(found) else f" of those that fit the {size} of an executor"
    return PlacementPlan(best, considered, f"cheapest{smaller}")


def weighed(statistics: Statistics, room: Room, *, subscription_bytes: float) -> list[Division]:
    """Every division that there could be, with what it would cost."""
    estimator = _Estimator(statistics, room, subscription_bytes, {})
    return [estimator.everywhere(), *estimator.routed()]


def estimates(
    views: Sequence[View], statistics: Statistics, room: Room, *, subscription_bytes: float
) -> list[Division]:
    """What Views that are there would cost, each by itself, by statistics that they need not have been made from."""
    estimator = _Estimator(statistics, room, subscription_bytes, {})
    return [estimator.single(view) for view in views]


def divisions() -> list[tuple[str, ...]]:
    """Returns every placement that routes, by itself; with what is best left everywhere; and two of them with that."""
    routing = [
        name
        for name, system in systems().items()
        if name != REPLICATED and not system.combines and not system.counts_lists
    ]
    alone = [(name,) for name in routing]
    return [*alone, *((REPLICATED, *names) for size in (1, 2) for names in combinations(routing, size))]


class _Estimator:
    """Costs of divisions of one sample; what several divisions need is computed once."""

    def __init__(
        self,
        statistics: Statistics,
        room: Room,
        subscription_bytes: float,
        wishes: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._statistics = statistics
        self._events = statistics.events if statistics.events is not None and statistics.events.count else None
        self._room = room
        self._bytes = subscription_bytes
        self._wishes = wishes
        self._served: dict[str, _Served | None] = {}
        self._costs = MatchCosts(statistics.filters, self._events, statistics.scale)

    @property
    def route_ns(self) -> float:
        """Of sending an event to a partition."""
        return ROUTE_NS + COLUMN_NS * len(self._statistics.filters.domain.leaves)

    def everywhere(self) -> Division:
        """All subscriptions with every worker."""
        found = self.division((REPLICATED,))
        assert found is not None
        return found

    def routed(self) -> list[Division]:
        """Those that send events, of the placements that can serve these subscriptions."""
        found = [self.division(names) for names in divisions()]
        return [one for one in found if one is not None]

    def division(self, names: tuple[str, ...]) -> Division | None:
        """None where a placement cannot serve these subscriptions, or would serve none of them."""
        found = [self._serving(name) for name in names]
        if any(one is None for one in found):
            return None
        parts = [one for one in found if one is not None]
        if len(parts) == 1:
            return self._division(parts[0].view.placement, parts[0].view, parts)
        view = planned.combined([part.view for part in parts], self._statistics)
        served = planned.classes(self._statistics.filters, [part.placed for part in parts], view)
        divided = [part.of(served[part.placed.subscriptions] == number) for number, part in enumerate(parts)]
        if any(not len(part.placed) for part in divided):
            return None  # another division says the same with fewer placements
        return self._division(view.placement, view, divided)

    def single(self, view: View) -> Division:
        """All subscriptions under one View that is there."""
        routed = None if self._events is None else route(self._events, view)
        return self._division(view.placement, view, [_Served(view, place(self._statistics.filters, view), routed)])

    def _serving(self, name: str) -> _Served | None:
        if name not in self._served:
            try:
                wishes = dict(self._wishes.get(name, {}))
                made = placement_named(name).adapt(self._statistics, partitions=self._room.partitions, **wishes)
            except PlacementError:
                made = None
            if name != REPLICATED and made is not None and not made.paths:
                made = None  # there is nothing that it could divide by
            routed = None if made is None or self._events is None else route(self._events, made)
            self._served[name] = None if made is None else _Served(made, place(self._statistics.filters, made), routed)
        return self._served[name]

    def _division(self, name: str, view: View, parts: Sequence[_Served]) -> Division:
        classes = [self._class(part) for part in parts]
        visits = sum(one.visits for one in classes)
        sending = 0.0
        if any(part.view.visits for part in parts):
            sending = self.route_ns * max(1.0, visits)
            sending += COMBINE_NS * visits if sum(part.view.visits for part in parts) > 1 else 0.0
        return Division(name, tuple(classes), sending, sum(map(self._held, parts)), view_to_dict(view))

    def _class(self, part: _Served) -> Class:
        """Of the shards that an event consults: how many subscriptions they have together, and what matching takes."""
        view, placed = part.view, part.placed
        rows = np.unique(placed.subscriptions)
        shards, members = distinct_pairs(shards_of(placed.keys, view), placed.subscriptions)
        starts = starts_of(shards)
        met = match_ns = 0.0
        for shard, mine in zip(shards[starts].tolist(), np.split(members, starts)[1:], strict=True):
            share, events = self._consulting(part, shard, len(starts))
            met += share * len(mine)
            match_ns += share * self._costs.an_event(mine, events)
        return Class(
            placement=view.placement,
            subscriptions=round(len(rows) * self._statistics.scale),
            by=view.described(),
            met=met / max(1, len(rows)),
            visits=self._visits(part),
            copies=len(placed) / max(1, len(rows)),
            match_ns=match_ns,
        )

    def _consulting(self, part: _Served, shard: int, shards: int) -> tuple[float, Numbers | None]:
        """The share of the events that consult a shard, and which those are; without events, one a visit does."""
        if part.routed is None or self._events is None:
            return min(1.0, max(1, part.view.visits) / shards), None
        events, consulted_shards = part.consulted
        events = events[consulted_shards == shard]
        return len(events) / self._events.count, None if len(events) == self._events.count else events

    def _visits(self, part: _Served) -> float:
        """Partitions that an event is sent to."""
        view = part.view
        if part.routed is None or self._events is None:
            return float(min(view.visits, view.partitions))
        owners = view.owners(part.routed.keys)
        owned = owners != EVERYWHERE
        return len(distinct_pairs(part.routed.events[owned], owners[owned])[0]) / self._events.count

    def _held(self, part: _Served) -> float:
        """Bytes of a class in one executor: what its running tasks consult, and what is consulted everywhere."""
        view, placed = part.view, part.placed
        if not len(placed):
            return 0.0
        owners = view.owners(placed.keys)
        pairs, _ = distinct_pairs(shards_of(placed.keys, view), placed.subscriptions)
        everywhere = int((owners == EVERYWHERE).sum())
        owned = max(0, len(pairs) - everywhere)
        by_owner = np.bincount(owners[owners != EVERYWHERE], minlength=1)
        ratio = owned / max(1, int(by_owner.sum()))
        largest = float(by_owner.max()) * ratio
        return (min(float(owned), largest * self._room.cores) + everywhere) * self._statistics.scale * self._bytes


@dataclass(frozen=True, eq=False)
class _Served:
    """A placement's View, with the sampled subscriptions that it is to serve and the sampled events."""

    view: View
    placed: Placed
    routed: Routed | None  # None where no events are known

    @cached_property
    def consulted(self) -> tuple[Numbers, Numbers]:
        """(event, shard) for every shard that events consult."""
        assert self.routed is not None
        return consulted(self.routed, self.view)

    def of(self, chosen: npt.NDArray[np.bool_]) -> _Served:
        """With some of the copies."""
        return replace(self, placed=Placed(self.placed.subscriptions[chosen], self.placed.keys[chosen]))


def _size(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _micros(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e3:,.1f} µs"
