"""What is known of subscriptions and events before they are placed: all that adapting looks at.

`statistics_of` takes it from arrays. A job over a whole table and its history can give the same from
more: samples are then only samples, and the distributions those of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tidings.filter.compile.compiler import compile_filters
from tidings.filter.compile.plan_execution import double_ordinals
from tidings.filter.normal.filter_table import FilterTable
from tidings.filter.normal.value_sets import ordinal
from tidings.model.domain import Attribute, Domain
from tidings.model.event import EventBatch
from tidings.model.types import DataType, Path
from tidings.systems.geometry.line_positions import Edges, bounds_in, event_places, has_places

QUANTILES = 1024


# What is known: filters, perhaps with events; a sample of events and no filter; or nothing but the domain, whose
# values are taken to lie as it declares them.
Source = Literal["filters", "sample", "declaration"]


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
    source: Source = "filters"

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
        """The attributes whose values have places, and that filters compare with constants; all, if none is known."""
        if self.source != "filters":
            return tuple(path for path, type_ in self.filters.domain.leaves.items() if has_places(type_))
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


def declared_statistics(domain: Domain) -> Statistics:
    """Returns what is known of a domain by its declaration alone: values lie evenly, or are those that are allowed."""
    declared = {attribute.path: _declared_distribution(attribute) for attribute in domain.attributes}
    values = {path: declared.get(path, NOTHING) for path, type_ in domain.leaves.items() if has_places(type_)}
    return Statistics(compile_filters([], domain), 0, values=values, source="declaration")


def sampled_statistics(events: EventBatch) -> Statistics:
    """Returns what a sample of events says of their domain; of an attribute that it lacks, what is declared."""
    values = dict(declared_statistics(events.domain).values)
    for path in values:
        places = event_places(events, path)
        found = distribution_of(places.all, 1 - float(places.valid.mean()) if events.count else 0.0)
        values[path] = found if found.is_known else values[path]
    return Statistics(compile_filters([], events.domain), 0, events, values, source="sample")


def _declared_distribution(attribute: Attribute) -> Distribution:
    type_ = attribute.type
    if not has_places(type_):
        return NOTHING
    if attribute.allowed:
        return distribution_of(_places([ordinal(value, type_) for value in attribute.allowed], type_))
    if type_.name == "boolean":
        return distribution_of(np.array([0, 1], np.int64))
    if attribute.min is None or attribute.max is None or type_.name == "string":
        return NOTHING
    if type_.name in ("float", "double"):
        evenly = np.linspace(float(attribute.min), float(attribute.max), QUANTILES)
        return distribution_of(double_ordinals(evenly))
    low, high = ordinal(attribute.min, type_), ordinal(attribute.max, type_)
    count = min(QUANTILES, high - low + 1)
    return distribution_of(_places([low + (high - low) * step // max(1, count - 1) for step in range(count)], type_))


def _places(ordinals: list[Any], type_: DataType) -> Edges:
    places = np.empty(len(ordinals), object if type_.name == "string" else np.int64)
    places[:] = ordinals
    return places


NOTHING = Distribution(np.empty(0, np.int64), distinct=0)
