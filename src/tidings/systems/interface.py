"""What every system is: where events and the subscriptions that they satisfy meet, as a pure law.

A system is a folder of `tidings.systems` with one `SYSTEM` record. Its module `placement` has

    View            immutable, numbered and written as JSON: all that placing and routing look at
    place           the keys at which subscriptions are held
    route           the keys that events visit
    adapt           the View for subscriptions and events whose statistics are known

and keeps the rendezvous law: an event and a subscription that it satisfies have exactly one key in common, so a match
is found once and nothing has to be removed. Where the View `CountsLists`, every conjunction of a subscription is held
in a number of lists instead, and matches the events that visit as many of the keys at which it is held.

A *key* is a channel and a position in one integer. A channel is an attribute's list, an index, a dimension: an event
has at most one key in it, or its keys there lead to one copy of any subscription that it satisfies. Where a position is
held is the View's to say: an owner for each key, or EVERYWHERE for what is consulted wherever the event is.

Most systems run as a network of nodes as well: `tidings.systems.overlay`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from tidings.errors import TidingsError, did_you_mean
from tidings.filter.normal.filter_table import FilterTable
from tidings.model.domain import path_text
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.system_settings import Setting

if TYPE_CHECKING:
    from tidings.systems.statistics import Statistics

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

POSITION_BITS = 48
EVERYWHERE = -1  # the owner of what every partition holds

_POSITION = np.int64((1 << POSITION_BITS) - 1)


class PlacementError(TidingsError):
    """Unknown placement name, or a placement that cannot serve these subscriptions."""


@dataclass(frozen=True, eq=False)
class Placed:
    """Copies of subscriptions, no two alike: subscription `subscriptions[i]` is held at `keys[i]`."""

    subscriptions: Numbers  # rows of the table of filters
    keys: Numbers
    conjunctions: Numbers | None = None  # of each copy the box, where lists are counted

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, eq=False)
class Routed:
    """Visits of events, no two alike: event `events[i]` visits `keys[i]`. In the order of events."""

    events: Numbers
    keys: Numbers

    def __len__(self) -> int:
        return len(self.keys)


class View(Protocol):
    """The parameters of a placement at one time. A View never changes: the next one has the next epoch."""

    placement: ClassVar[str]

    @property
    def epoch(self) -> int: ...

    @property
    def partitions(self) -> int:
        """How many owners there are."""
        ...

    @property
    def channels(self) -> int: ...

    @property
    def visits(self) -> int:
        """How many owners an event has to visit, at most."""
        ...

    @property
    def paths(self) -> tuple[Path, ...]:
        """The attributes that routing looks at."""
        ...

    def owners(self, keys: Numbers) -> Numbers:
        """Returns the partition that holds each key, or EVERYWHERE."""
        ...

    def described(self) -> str:
        """Returns what it divides subscriptions by, in a few words."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Returns the View as JSON has it; `from_dict` reads it."""
        ...

    @staticmethod
    def from_dict(form: dict[str, Any]) -> View: ...


@runtime_checkable
class CountsLists(Protocol):
    """A View whose matches are counted: a conjunction matches the events that find it in all of its lists."""

    def list_of(self, channel: int) -> Path | None:
        """Returns the attribute whose list a channel is; None for what is in no attribute's list."""
        ...


@runtime_checkable
class DescribesParts(Protocol):
    """A View that can say how it divides the line of an attribute."""

    def described_parts(self, path: Path) -> str: ...


@runtime_checkable
class CombinesViews(Protocol):
    """A View made of the Views of several systems, each with channels of its own."""

    @property
    def parts(self) -> tuple[View, ...]: ...

    @property
    def bases(self) -> Numbers:
        """The first channel of each part, and how many there are."""
        ...


Counts: TypeAlias = Mapping[int, tuple[int, int, int]]  # by shard: events looked up, candidates, nanoseconds


@runtime_checkable
class Elastic(Protocol):
    """A View that follows executors and load by dividing and merging what it has, without being made again."""

    def measured(self, counts: Counts, seconds: float) -> View:
        """Returns the View with the load that tasks counted in so many seconds."""
        ...

    def resized(self, partitions: int, filters: FilterTable, *, scale: float = 1.0) -> View:
        """Returns the View for so many partitions; `filters` are a sample, of which `scale` times as many are held."""
        ...

    def relieved(self, filters: FilterTable, *, scale: float = 1.0) -> View:
        """Returns the View with one more partition if one of them is measured to be saturated; else itself."""
        ...


AnyView: TypeAlias = View


class Placement(Protocol):
    """What `placement.py` of a system has."""

    @property
    def View(self) -> type[AnyView]: ...

    def place(self, filters: FilterTable, view: AnyView) -> Placed: ...

    def route(self, events: EventBatch, view: AnyView) -> Routed: ...

    def adapt(self, statistics: Statistics, *, partitions: int, epoch: int = 0, **options: Any) -> AnyView:
        """Returns the View for what is known of subscriptions and events. Options are the system's own."""
        ...


# ---------------------------------------------------------------------- systems

Ability = Literal[
    "log",  # a node keeps what it has published over a crash, so that no event is lost
    "queue",  # a node can keep notifications until they are polled
    "growth",  # nodes ask for another one when they are saturated
    "path",  # the path of one event through the network can be shown
]


@dataclass(frozen=True)
class Variant:
    """A system with other settings of its nodes."""

    help: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class System:
    """One way for events and subscriptions to meet: `SYSTEM` of a folder in `tidings.systems`, found by the folder."""

    name: str  # the folder's
    help: str  # in one line
    needs: Literal["records", "documents"] = "records"  # what events are: records of a domain, or XML documents
    options: tuple[str, ...] = ()  # of `adapt`, that users may set
    settings: tuple[Setting, ...] = ()  # of its nodes, that users may set: the parameters of the paper
    abilities: tuple[Ability, ...] = ()
    variants: Mapping[str, Variant] = field(default_factory=dict)
    combines: bool = False  # its View is made of the Views of others, by the planner

    @property
    def package(self) -> str:
        return f"{__package__}.{self.name}"

    @cached_property
    def placement(self) -> Placement:
        return cast(Placement, import_module(f"{self.package}.placement"))

    @cached_property
    def runs_as_nodes(self) -> bool:
        """Whether it is an overlay as well, and not only a placement."""
        return find_spec(f"{self.package}.node") is not None

    @property
    def counts_lists(self) -> bool:
        return issubclass(self.placement.View, CountsLists)


AUTO = "auto"  # in place of a name: what is found cheapest
REPLICATED = "replicated"  # the system in which every partition has everything: the one that needs no other


@cache
def systems() -> dict[str, System]:
    """Returns every system, by name."""
    package = import_module(str(__package__))
    folders = (one.name for one in iter_modules(package.__path__) if one.ispkg)
    records = [getattr(import_module(f"{__package__}.{folder}"), "SYSTEM", None) for folder in sorted(folders)]
    return {record.name: record for record in records if isinstance(record, System)}


def system_named(name: str) -> System:
    """Returns the system of this name."""
    if name not in systems():
        raise PlacementError(f"there is no placement '{name}'; {did_you_mean(name, systems())}")
    return systems()[name]


def placements() -> tuple[str, ...]:
    """Returns the names of all systems: each has a placement."""
    return tuple(systems())


def placement_named(name: str) -> Placement:
    """Returns the placement of the system of this name."""
    return system_named(name).placement


def place(filters: FilterTable, view: View) -> Placed:
    """Returns the keys at which each subscription is held; a filter that never matches is held nowhere."""
    return placement_named(view.placement).place(filters, view)


def route(events: EventBatch, view: View) -> Routed:
    """Returns the keys that each event visits."""
    return placement_named(view.placement).route(events, view)


def view_to_dict(view: View) -> dict[str, Any]:
    """Returns a View as JSON has it, with the name of its placement."""
    return {"placement": view.placement} | view.to_dict()


def view_from_dict(form: dict[str, Any]) -> View:
    """Returns the View that `view_to_dict` wrote."""
    fields = dict(form)
    return placement_named(fields.pop("placement")).View.from_dict(fields)


# ---------------------------------------------------------------------- keys


def keys_at(channel: int, positions: Numbers) -> Numbers:
    return positions | np.int64(channel << POSITION_BITS)


def alike_keys(channel: int, count: int) -> Numbers:
    """Returns so many times the first key of a channel: what is held, or looked for, at one place."""
    return np.full(count, channel << POSITION_BITS, np.int64)


def channels_of(keys: Numbers) -> Numbers:
    return keys >> np.int64(POSITION_BITS)


def positions_of(keys: Numbers) -> Numbers:
    return keys & _POSITION


def listed(paths: Sequence[Path]) -> str:
    """Returns attributes as text."""
    return ", ".join(map(path_text, paths)) or "nothing"


def placed_of(parts: Sequence[tuple[Numbers, Numbers]], box_filter: npt.NDArray[np.int32] | None = None) -> Placed:
    """Copies from (subscription, key) arrays; from (box, key) arrays where the filter of each box is given."""
    rows = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)]).astype(np.int64)
    keys = np.concatenate([np.empty(0, np.int64), *(part[1] for part in parts)]).astype(np.int64)
    return Placed(rows, keys) if box_filter is None else Placed(box_filter[rows].astype(np.int64), keys, rows)


def routed_of(count: int, keys: Sequence[Numbers]) -> Routed:
    """Visits of so many events, from arrays that have a key for each of them."""
    if not keys:
        return Routed(np.empty(0, np.int64), np.empty(0, np.int64))
    return Routed(np.repeat(np.arange(count), len(keys)), np.stack(keys, axis=1).reshape(-1))
