"""Which placement serves which subscriptions, by what an event would cost.

The subscriptions are divided into classes, each under the placement in which the fewest events are
compared with its members (`placements.planned`). What a division costs an event:

    for each class   matching all of it, by the matcher's own estimate, times the share that an event meets
    for each visit   being sent to a partition, and from the second on being put together again
    for each shard   reading the event once more

Every division is estimated on a sample: each placement by itself, and those that route together with
what is best left everywhere. Of those whose files an executor's memory holds, the cheapest is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from tidings.matching.changing.merge import taken_filters
from tidings.matching.columns import Columns
from tidings.matching.index import build_index
from tidings.model.attribute import path_text
from tidings.model.filter.columnar import FilterTable
from tidings.rendezvous.interface import (
    EVERYWHERE,
    Numbers,
    Placed,
    PlacementError,
    View,
    place,
    placement_named,
    placements,
    route,
    view_from_dict,
    view_to_dict,
)
from tidings.rendezvous.placements import planned, sonnet
from tidings.rendezvous.sharding import consulted, shards_of
from tidings.rendezvous.statistics import Statistics

# What sending an event to a partition costs on one core, putting a visit together, and reading an event for one more
# shard: measured, and only their ratios to the matcher's estimates matter.
ROUTE_NS = 6_000.0
COMBINE_NS = 6_000.0
SHARD_NS = 700.0


@dataclass(frozen=True)
class Class:
    """Subscriptions under one placement."""

    placement: str
    subscriptions: int
    by: str  # what the placement divides them by
    met: float  # the share of them that an event is compared with
    visits: float  # partitions that an event is sent to for them
    copies: float  # of a subscription
    match_ns: float  # of an event with all of them

    @property
    def expected_ns(self) -> float:
        return self.match_ns * self.met

    def line(self) -> str:
        what = f"{self.subscriptions:,} subscriptions under {self.placement}"
        if self.placement == "replicated":
            return f"{what}: {_micros(self.expected_ns)} an event"
        return (
            f"{what} on {self.by}: an event meets {self.met:.1%} of them at {self.visits:.1f} partitions, "
            f"{_micros(self.expected_ns)}; {self.copies:.1f} copies of each stored"
        )


@dataclass(frozen=True)
class Division:
    """One way to divide the subscriptions, and what it would cost."""

    placement: str  # of all, or "planned" where there are several
    classes: tuple[Class, ...]
    sending_ns: float  # of an event: routing, combining, reading it for each shard
    bytes: float  # that an executor has to hold
    view: dict[str, Any]

    @property
    def expected_ns(self) -> float:
        return self.sending_ns + sum(one.expected_ns for one in self.classes)

    @property
    def name(self) -> str:
        return " + ".join(one.placement for one in self.classes if one.subscriptions) or self.placement

    def line(self) -> str:
        return f"{self.name}: {_micros(self.expected_ns)} an event, {_size(self.bytes)} in each executor"


@dataclass(frozen=True)
class Plan:
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
    def from_dict(form: Mapping[str, Any]) -> Plan:
        chosen = dict(form["chosen"])
        classes = tuple(Class(**one) for one in chosen.pop("classes"))
        return Plan(Division(classes=classes, **chosen), tuple(form["considered"]), form["why"])


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
) -> Plan:
    """The division that costs an event least, of those that fit; `wishes` are for the placements, by name."""
    estimator = _Estimator(statistics, room, subscription_bytes, wishes or {})
    everywhere = estimator.division(("replicated",))
    assert everywhere is not None
    if everywhere.bytes <= room.memory and everywhere.expected_ns <= ROUTE_NS:
        return Plan(everywhere, (everywhere.line(),), "cheaper than sending events anywhere")
    others = [estimator.division(names) for names in divisions()]
    found = [everywhere, *(one for one in others if one is not None)]
    fitting = [one for one in found if one.bytes <= room.memory]
    best = min(fitting or found, key=lambda one: one.expected_ns)
    considered = tuple(one.line() for one in found)
    size = _size(room.memory)
    if len(found) == 1:
        return Plan(best, considered, "since no attribute divides the subscriptions")
    if not fitting:
        best = min(found, key=lambda one: one.bytes)
        return Plan(best, considered, f"the smallest, though none fits the {size} of an executor")
    if len(fitting) == 1:
        return Plan(best, considered, f"it alone fits the {size} of an executor")
    smaller = "" if len(fitting) == len(found) else f" of those that fit the {size} of an executor"
    return Plan(best, considered, f"cheapest{smaller}")


def estimates(
    views: Sequence[View], statistics: Statistics, room: Room, *, subscription_bytes: float
) -> list[Division]:
    """What Views that are there would cost, each by itself, by statistics that they need not have been made from."""
    estimator = _Estimator(statistics, room, subscription_bytes, {})
    return [estimator.single(view) for view in views]


def divisions() -> list[tuple[str, ...]]:
    """Every placement that routes, by itself; with what is best left everywhere; and two of them with that."""
    routing = [name for name in placements() if name not in ("replicated", "planned")]
    routing = [name for name in routing if placement_named(name).View.combine == "any"]
    alone = [(name,) for name in routing]
    return [*alone, *(("replicated", *names) for size in (1, 2) for names in combinations(routing, size))]


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
        self._room = room
        self._bytes = subscription_bytes
        self._wishes = wishes
        self._views: dict[str, View | None] = {}
        self._columns = None if statistics.events is None else Columns(statistics.events)
        self._whole_ns = self._match_ns(np.arange(statistics.filters.count))

    def division(self, names: tuple[str, ...]) -> Division | None:
        """None where a placement cannot serve these subscriptions, or would serve none of them."""
        views = [self._view(name) for name in names]
        if any(view is None for view in views):
            return None
        known = [view for view in views if view is not None]
        if len(known) == 1:
            return self.single(known[0])
        view = planned.combined(known, self._statistics)
        placed = [place(self._statistics.filters, part) for part in known]
        served = planned.classes(self._statistics.filters, placed, view)
        satisfiable = np.unique(self._statistics.filters.box_filter)
        members = [satisfiable[served[satisfiable] == number] for number in range(len(known))]
        if any(not len(rows) for rows in members):
            return None  # another division says the same with fewer placements
        classes, parts = [], []
        for part, copies, rows in zip(known, placed, members, strict=True):
            mine = np.isin(copies.subscriptions, rows)
            parts.append(Placed(copies.subscriptions[mine], copies.keys[mine]))
            classes.append(self._class(part, parts[-1], rows, self._match_ns(rows)))
        return self._division("planned", view, classes, known, parts)

    def single(self, view: View) -> Division:
        """All subscriptions under one View."""
        placed = place(self._statistics.filters, view)
        rows = np.unique(placed.subscriptions)
        made = self._class(view, placed, rows, self._whole_ns)
        return self._division(view.placement, view, [made], [view], [placed])

    def _view(self, name: str) -> View | None:
        if name not in self._views:
            try:
                wishes = dict(self._wishes.get(name, {}))
                made = placement_named(name).adapt(self._statistics, partitions=self._room.partitions, **wishes)
            except PlacementError:
                made = None
            if name != "replicated" and made is not None and not made.paths:
                made = None  # there is nothing that it could divide by
            self._views[name] = made
        return self._views[name]

    def _class(self, view: View, placed: Placed, rows: Numbers, match_ns: float) -> Class:
        scale = self._statistics.scale
        return Class(
            placement=view.placement,
            subscriptions=round(len(rows) * scale),
            by=described(view),
            met=self._met(view, placed, len(rows)),
            visits=self._visits(view),
            copies=len(placed) / max(1, len(rows)),
            match_ns=match_ns,
        )

    def _met(self, view: View, placed: Placed, count: int) -> float:
        """The share of the members that an event is compared with: those of every shard that it consults."""
        if not count:
            return 0.0
        shards, rows = shards_of(placed.keys, view), placed.subscriptions
        held, sizes = np.unique(np.unique(np.stack([shards, rows]), axis=1)[0], return_counts=True)
        if self._statistics.events is None or not self._statistics.events.count:
            return min(1.0, float(sizes.mean()) * max(1, view.visits) / count)
        _, visited = consulted(route(self._statistics.events, view), view)
        at = np.minimum(np.searchsorted(held, visited), len(held) - 1)
        return float(np.where(held[at] == visited, sizes[at], 0).sum() / self._statistics.events.count / count)

    def _visits(self, view: View) -> float:
        """Partitions that an event is sent to."""
        if self._statistics.events is None or not self._statistics.events.count:
            return float(min(view.visits, view.partitions))
        routed = route(self._statistics.events, view)
        owners = view.owners(routed.keys)
        pairs = (routed.events * view.partitions + owners)[owners != EVERYWHERE]
        return len(np.unique(pairs)) / self._statistics.events.count

    def _consulted(self, view: View) -> float:
        """Shards that an event reads."""
        events = self._statistics.events
        if events is None or not events.count:
            return float(view.visits + 1)
        return len(consulted(route(events, view), view)[0]) / events.count

    def _division(
        self, name: str, view: View, classes: Sequence[Class], views: Sequence[View], placed: Sequence[Placed]
    ) -> Division:
        visits = sum(one.visits for one in classes)
        shards = sum(self._consulted(part) for part in views)
        sending = 0.0
        if any(part.visits for part in views):
            sending = ROUTE_NS * max(1.0, visits) + (COMBINE_NS * visits if _may_visit(views) > 1 else 0.0)
            sending += SHARD_NS * max(0, shards - 1)
        held = sum(self._held(part, copies) for part, copies in zip(views, placed, strict=True))
        return Division(name, tuple(classes), sending, held, view_to_dict(view))

    def _held(self, view: View, placed: Placed) -> float:
        """Bytes of a class in one executor: what its running tasks consult, and what is consulted everywhere."""
        if not len(placed):
            return 0.0
        owners = view.owners(placed.keys)
        pairs = np.unique(np.stack([shards_of(placed.keys, view), placed.subscriptions]), axis=1)[0]
        everywhere = int((owners == EVERYWHERE).sum())
        owned = max(0, len(pairs) - everywhere)
        by_owner = np.bincount(owners[owners != EVERYWHERE], minlength=1)
        ratio = owned / max(1, int(by_owner.sum()))
        largest = float(by_owner.max()) * ratio
        return (min(float(owned), largest * self._room.cores) + everywhere) * self._statistics.scale * self._bytes

    def _match_ns(self, rows: Numbers) -> float:
        if not len(rows):
            return 0.0
        filters = self._statistics.filters
        part = filters if len(rows) == filters.count else taken(filters, rows)
        return sum(engine.estimated_ns for engine in build_index(part, self._columns).engines) * self._statistics.scale


def taken(filters: FilterTable, rows: Numbers) -> FilterTable:
    """Some filters of a table, as a table."""
    return taken_filters(filters, rows.astype(np.int32))


def _may_visit(views: Sequence[View]) -> int:
    return sum(view.visits for view in views)


def described(view: View) -> str:
    """What a View divides subscriptions by."""
    if isinstance(view, sonnet.View):
        return view.described()
    indices = getattr(view, "indices", None)
    if indices is not None:
        return ", ".join("×".join(map(path_text, index)) for index in indices) or "nothing"
    return ", ".join(map(path_text, view.paths)) or "nothing"


def _size(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _micros(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e3:,.1f} µs"
