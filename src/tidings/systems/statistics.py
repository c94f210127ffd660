"""What is known of subscriptions and events before they are placed: all that adapting looks at.

`statistics_of` takes it from arrays. A job over a whole table and its history can give the same from
more: samples are then only samples, and the distributions those of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from tidings.errors import DomainError
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.model.domain import Attribute, Domain, path_text
from tidings.model.event import EventBatch
from tidings.model.event_values import written
from tidings.model.types import DataType, Path
from tidings.systems.geometry.line_positions import Edges, bounds_in, event_places, has_places

QUANTILES = 1024
DECLARED_CUTS = 15  # at which an attribute's line is taken to be cut, between its declared ends


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


def declared_statistics(domain: Domain) -> Statistics:
    """Returns what filters of a domain are taken to look like, if nothing is known but its declaration."""
    texts = [text for attribute in domain.attributes for text in _typical(path_text(attribute.path), attribute)]
    if not texts:
        raise DomainError(
            f"domain '{domain.name}': no attribute has declared ends or allowed values, which nodes place by; "
            "give one a min and a max"
        )
    return statistics_of(compile_filters(texts, domain))


def _typical(name: str, attribute: Attribute) -> list[str]:
    type_: DataType = attribute.type
    if attribute.allowed:
        return [f"{name} = {_literal(value, type_)}" for value in attribute.allowed]
    if attribute.min is None or attribute.max is None or not has_places(type_):
        return []
    if not isinstance(attribute.min, int | float | Decimal) or type_.is_datetime:
        return [f"{name} >= {_literal(end, type_)}" for end in (attribute.min, attribute.max)]
    low, high = Decimal(str(attribute.min)), Decimal(str(attribute.max))
    steps = [low + (high - low) * step / (DECLARED_CUTS + 1) for step in range(1, DECLARED_CUTS + 1)]
    whole = type_.is_integral
    return [f"{name} >= {round(step) if whole else round(step, 6)}" for step in steps]


def _literal(value: Any, type_: DataType) -> str:
    plain = written(value, type_)
    if isinstance(plain, str):
        quoted = plain.replace("\\", "\\\\").replace("'", "\\'")
        return f"CAST('{quoted}' AS {type_})" if type_.name != "string" else f"'{quoted}'"
    return str(plain).upper() if isinstance(plain, bool) else str(plain)


NOTHING = Distribution(np.empty(0, np.int64), distinct=0)
