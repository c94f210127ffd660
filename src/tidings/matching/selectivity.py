"""How much of the events each constraint of a table lets through, and what follows for placing it.

Events are known by a sample; without one, values are taken to lie as the filters' own constants do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.filter_table import FilterTable
from tidings.matching.batch_columns import Columns
from tidings.matching.engines.entries import NULL, Entries, entries_of
from tidings.model.types import Path

Shares = npt.NDArray[np.float64]

DIMENSIONS_MAX = 4
INDICES_MAX = 32
KEY_NS = 6_000.0  # of sending an event to one more key, on one core: only the ratio to a candidate matters
CANDIDATE_NS = 8.0  # of a subscription that is compared with an event

_LARGE_SHARE = 0.75  # of the subscriptions that an event meets, beyond which a dimension is not worth its copies
_ATTRIBUTES_MAX = 24  # that are tried for indices, the most often specified first
_PATHS_MAX = 3  # of one index


@dataclass(frozen=True)
class Dimension:
    """An attribute by which subscriptions could be divided among segments."""

    path: Path
    constrained: float  # the share of the subscriptions that constrain it
    width: float  # the share of the events that one of those lets through, on average
    met: float  # the share of all subscriptions that an event meets in its segment, at the least
    suggested: bool

    @property
    def reason(self) -> str:
        told = (
            f"{self.constrained:.0%} of the subscriptions constrain it, to {_percent(self.width)} of the events on "
            f"average: an event meets {_percent(self.met)} of them"
        )
        return told if self.suggested else f"{told}; not worth its copies"


@dataclass(frozen=True)
class DigestIndex:
    """Attributes that subscriptions specify by values, and could be found by."""

    paths: tuple[Path, ...]
    subscriptions: int  # that would be found by it, as it is the best for them
    share: float  # of the events that meet one of those, on average

    @property
    def reason(self) -> str:
        return (
            f"{self.subscriptions:,} subscriptions are found best by it, each by {_percent(self.share)} of the events"
        )


@dataclass(frozen=True)
class Indices:
    chosen: tuple[DigestIndex, ...]
    left: int  # subscriptions that none of them finds: every event has to visit those
    candidates: float  # that an event meets


@dataclass(frozen=True, eq=False)
class Selectivity:
    """Of the entries of a table: for each row the share of events within its interval."""

    table: FilterTable
    entries: Entries
    shares: Shares
    events: int  # sampled; 0: the filters' own constants stand for them

    @cached_property
    def candidates(self) -> Shares:
        """Of each filter how often an event meets the rarest constraint of one of its boxes."""
        starts = self.entries.offsets[:-1]
        rows = np.diff(self.entries.offsets)
        least = np.ones(self.entries.count)
        some = rows > 0
        if some.any():
            least[some] = np.minimum.reduceat(self.shares, starts[some])
        return np.bincount(self.entries.slots, least, self.table.count).astype(np.float64)

    @cached_property
    def _filter_of_row(self) -> npt.NDArray[np.int64]:
        return np.repeat(self.entries.slots, np.diff(self.entries.offsets)).astype(np.int64)

    @cached_property
    def _entries_of_filter(self) -> npt.NDArray[np.int64]:
        return np.bincount(self.entries.slots, minlength=self.table.count)

    def along(self, attribute: int, *, points: bool = False) -> Shares:
        """Of each filter the share of events that it lets through on an attribute: 1 where one of its boxes does not
        constrain it, or not to a single value where `points` are asked for."""
        rows = self.entries.attributes == attribute
        if points:
            rows &= self.entries.lows == self.entries.highs
        filters = self._filter_of_row[rows]
        summed = np.bincount(filters, self.shares[rows], self.table.count)
        whole = np.bincount(filters, minlength=self.table.count) == self._entries_of_filter
        return np.where(whole & (self._entries_of_filter > 0), np.minimum(1.0, summed), 1.0)


def selectivity_of(table: FilterTable, sample: Columns | None = None) -> Selectivity:
    entries = entries_of(table)
    shares = np.ones(len(entries.attributes))
    known = sample is not None and sample.batch.count > 0
    for number, (path, intervals) in enumerate(table.intervals.items()):
        rows = np.flatnonzero(entries.attributes == number)
        lows, highs = entries.lows[rows], entries.highs[rows]
        if known and sample is not None:
            codes, valid = sample.codes(path, intervals.keys)
            ordered = np.sort(np.where(valid, codes, NULL))
        else:
            ordered = np.sort(np.concatenate([intervals.lows, intervals.highs]))
        inside = np.searchsorted(ordered, highs, side="right") - np.searchsorted(ordered, lows, side="left")
        shares[rows] = (inside + 0.5) / (len(ordered) + 1)
    return Selectivity(table, entries, shares, sample.batch.count if known and sample is not None else 0)


def dimensions_of(found: Selectivity) -> tuple[Dimension, ...]:
    """Every attribute that filters compare with constants, the best to divide subscriptions by first."""
    made = []
    for number, path in enumerate(found.entries.paths):
        along = found.along(number)
        constrained = along < 1
        width = float(along[constrained].mean()) if constrained.any() else 1.0
        made.append((float(along.mean()) if len(along) else 1.0, float(constrained.mean()), width, path))
    made.sort(key=lambda one: (one[0], one[3]))
    return tuple(
        Dimension(path, constrained, width, met, at < DIMENSIONS_MAX and met < _LARGE_SHARE)
        for at, (met, constrained, width, path) in enumerate(made)
    )


def indices_of(found: Selectivity, *, subscriptions: int | None = None) -> Indices:
    """The indices that spare an event more comparisons than it costs to send it there, chosen one after the other.

    With `subscriptions`, the table is a sample of so many. Each subscription is found by the one index that the
    fewest events meet, of those whose attributes it specifies by values.
    """
    count = found.table.count
    scale = 1.0 if subscriptions is None else subscriptions / max(1, count)
    along = {number: found.along(number, points=True) for number in range(len(found.entries.paths))}
    often = sorted(along, key=lambda number: -int((along[number] < 1).sum()))[:_ATTRIBUTES_MAX]
    often = [number for number in often if (along[number] < 1).any()]
    met = np.ones(count)  # by each filter, the share of the events that reach it
    best = np.full(count, -1)
    chosen: list[tuple[int, ...]] = []
    tried: dict[tuple[int, ...], Shares] = {(number,): along[number] for number in often}
    # Wider indices are tried only of attributes that many specify together: the product of two is small to look at.
    for size in range(2, _PATHS_MAX + 1):
        for paths in combinations(often, size):
            parts = [along[number] for number in paths]
            whole = np.logical_and.reduce([part < 1 for part in parts])
            if size == 2 or whole.mean() > 0.1:
                tried[paths] = np.where(whole, np.multiply.reduce(parts), 1.0)
    while len(chosen) < INDICES_MAX and tried:
        gains = {paths: float(np.maximum(0, met - shares).sum()) for paths, shares in tried.items()}
        paths = max(gains, key=lambda one: (gains[one], -len(one)))
        if gains[paths] * scale * CANDIDATE_NS < KEY_NS:
            break
        better = tried[paths] < met
        met, best[better] = np.minimum(met, tried.pop(paths)), len(chosen)
        chosen.append(paths)
    made = [
        DigestIndex(
            tuple(found.entries.paths[number] for number in paths),
            round(float((best == at).sum()) * scale),
            float(met[best == at].mean()) if (best == at).any() else 1.0,
        )
        for at, paths in enumerate(chosen)
    ]
    return Indices(
        tuple(sorted((one for one in made if one.subscriptions), key=lambda one: -one.subscriptions)),
        round(float((best < 0).sum()) * scale),
        float(met.sum()) * scale,
    )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.2%}" if share >= 0.0005 else f"{share:.1e}"
