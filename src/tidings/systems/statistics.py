"""What is known of subscriptions and events before they are placed: all that adapting looks at.

`statistics_of` takes it from arrays. A job over a whole table and its history can give the same from
more: samples are then only samples, and the distributions those of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.geometry.line_positions import Edges, bounds_in, event_places, has_places

QUANTILES = 1024


@dataclass(frozen=True, eq=False)
class Distribution:
    """How values lie on the line of an attribute."""

    quantiles: Edges  # ascending places, such that as many values lie between any two; a frequent one is repeated
    nulls: float = 0.0  # the share of NULLs
    distinct: int = 1  # how many different values were seen

    @property
    def is_known(self) -> bool:
        return len(self.quantiles) > 0


@dataclass(frozen=True, eq=False)
class Statistics:
    """Of subscriptions to one domain, and of its events."""

    filters: FilterTable  # a sample of the subscriptions
    subscriptions: int  # how many there are
    events: EventBatch | None = None  # a sample of the history
    values: Mapping[Path, Distribution] = field(default_factory=dict)  # of the events, by attribute
    bounds: Mapping[Path, Distribution] = field(default_factory=dict)  # at which filters' intervals end

    @property
    def scale(self) -> float:
        """How many subscriptions one of the sample stands for."""
        return self.subscriptions / max(1, self.filters.count)

    def along(self, path: Path) -> Distribution:
        """How events lie along an attribute; where no event is known, how the filters' bounds do."""
        known = self.values.get(path)
        return known if known is not None and known.is_known else self.bounds.get(path, NOTHING)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The attributes that filters compare with constants, of which values have places."""
        return tuple(path for path, intervals in self.filters.intervals.items() if has_places(intervals.type))


def statistics_of(
    filters: FilterTable, events: EventBatch | None = None, *, subscriptions: int | None = None
) -> Statistics:
    """From a table of filters and a batch of events, which may be samples of more."""
    values, bounds = {}, {}
    for path, intervals in filters.intervals.items():
        if not has_places(intervals.type):
            continue
        bounds[path] = distribution_of(bounds_in(filters, path))
        if events is not None and events.count:
            places = event_places(events, path)
            values[path] = distribution_of(places.all, 1 - float(places.valid.mean()))
    return Statistics(filters, filters.count if subscriptions is None else subscriptions, events, values, bounds)


def distribution_of(places: Edges, nulls: float = 0.0) -> Distribution:
    if not len(places):
        return Distribution(places, nulls)
    ordered = np.sort(places)
    at = np.linspace(0, len(ordered) - 1, min(QUANTILES, len(ordered))).astype(np.int64)
    distinct = 1 + int((ordered[1:] != ordered[:-1]).sum())
    return Distribution(ordered[at], nulls, distinct)


NOTHING = Distribution(np.empty(0, np.int64), distinct=0)
