"""What every placement is: where events and the subscriptions that they satisfy meet, as a pure law.

A placement is the module `placement` of a folder in `tidings.systems`, and is found by the folder's name. It has

    View            immutable, numbered and written as JSON: all that placing and routing look at
    place           the keys at which subscriptions are held
    route           the keys that events visit
    adapt           the View for subscriptions and events of which the statistics are known

and keeps the rendezvous law: an event and a subscription that it satisfies have keys in common. With
`combine` "any" that is exactly one key, so that a match is found once and nothing has to be
removed. With "all" every conjunction of a subscription is held in a number of lists, and is matched by
the events that visit as many of the keys at which it is held (counting).

A *key* is a channel and a position in one integer. A channel is an attribute's list, an index, a dimension: an
event has at most one key in it, unless whatever is held there is held at one key in all. Where a position is held is
the View's to say: an owner for each key, explicitly, or EVERYWHERE for what whoever has the event consults on the spot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from tidings.errors import TidingsError, did_you_mean
from tidings.filter.normal.filter_table import FilterTable
from tidings.model.event import EventBatch
from tidings.model.types import Path

if TYPE_CHECKING:
    from tidings.systems.statistics import Statistics

Numbers = npt.NDArray[np.int64]
Combine = Literal["any", "all"]

POSITION_BITS = 48
EVERYWHERE = -1  # the owner of what every partition holds

_POSITION = np.int64((1 << POSITION_BITS) - 1)


class PlacementError(TidingsError):
    """A placement that there is not, or that cannot serve these subscriptions."""


@dataclass(frozen=True, eq=False)
class Placed:
    """Copies of subscriptions, no two alike: subscription `subscriptions[i]` is held at `keys[i]`."""

    subscriptions: Numbers  # rows of the table of filters
    keys: Numbers
    conjunctions: Numbers | None = None  # of each copy the box, where `combine` is "all"

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
    """The parameters of a placement at one time. A View is never changed: the next one has the next epoch."""

    placement: ClassVar[str]

    @property
    def combine(self) -> Combine: ...

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
        """How many owners an event may have to visit, at most."""
        ...

    @property
    def paths(self) -> tuple[Path, ...]:
        """The attributes that routing looks at. With `combine` "all", channel i is the list of attribute i."""
        ...

    def owners(self, keys: Numbers) -> Numbers:
        """The partition that holds each key, or EVERYWHERE."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The View as JSON has it; `view_from_dict` reads it."""
        ...


class Placement(Protocol):
    """What a module of `placements` has."""

    View: Any

    def place(self, filters: FilterTable, view: Any) -> Placed: ...

    def route(self, events: EventBatch, view: Any) -> Routed: ...

    def adapt(self, statistics: Statistics, *, partitions: int, epoch: int = 0) -> Any:
        """The View for what is known of subscriptions and events. Placements take further wishes by name."""
        ...


# ---------------------------------------------------------------------- by name


@cache
def placements() -> tuple[str, ...]:
    """The names of all placements: the folders of `tidings.systems` that have one."""
    folder = FilePath(__file__).parent
    return tuple(sorted(path.parent.name for path in folder.glob("*/placement.py")))


def placement_named(name: str) -> Placement:
    if name not in placements():
        raise PlacementError(f"there is no placement '{name}'; {did_you_mean(name, placements())}")
    return cast(Placement, import_module(f"tidings.systems.{name}.placement"))


def place(filters: FilterTable, view: View) -> Placed:
    """The keys at which each subscription is held; those that nothing satisfies are held nowhere."""
    return placement_named(view.placement).place(filters, view)


def route(events: EventBatch, view: View) -> Routed:
    """The keys that each event visits."""
    return placement_named(view.placement).route(events, view)


def view_to_dict(view: View) -> dict[str, Any]:
    return {"placement": view.placement} | view.to_dict()


def view_from_dict(form: dict[str, Any]) -> View:
    """A View as it was before it was written."""
    fields = dict(form)
    return cast(View, placement_named(fields.pop("placement")).View.from_dict(fields))


# ---------------------------------------------------------------------- keys


def keys_at(channel: int, positions: Numbers) -> Numbers:
    return positions | np.int64(channel << POSITION_BITS)


def channels_of(keys: Numbers) -> Numbers:
    return keys >> np.int64(POSITION_BITS)


def positions_of(keys: Numbers) -> Numbers:
    return keys & _POSITION


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
