"""Quantiles of more places than one process holds: a sketch of each part, and one of all parts together.

A sketch keeps every n-th place of a part, in order, each standing for n. The rank of a place in a sketch
differs from its true one by less than n, so that after any number of merges quantiles are wrong by at most the sum
of what the parts left out: a part in KEPT each time that it is thinned out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidings.systems.geometry.line_positions import Edges
from tidings.systems.statistics import QUANTILES, Distribution

KEPT = 4096


@dataclass(frozen=True, eq=False)
class Sketch:
    """Places in their order, how many each stands for, and how many NULLs there were."""

    places: Edges
    weights: npt.NDArray[np.float64]
    nulls: int = 0
    distinct: int = 0  # places seen; of a merged sketch, at least so many

    @property
    def count(self) -> float:
        return float(self.weights.sum())

    def distribution(self, quantiles: int = QUANTILES) -> Distribution:
        total = self.count
        nulls = self.nulls / max(1.0, total + self.nulls)
        if not len(self.places):
            return Distribution(self.places, nulls, 0)
        reached = np.cumsum(self.weights)
        wanted = np.linspace(0, total, min(quantiles, len(self.places)))
        at = np.minimum(np.searchsorted(reached, wanted, side="left"), len(self.places) - 1)
        return Distribution(self.places[at], nulls, self.distinct)


def sketch_of(places: Edges, nulls: int = 0, *, kept: int = KEPT) -> Sketch:
    """A sketch of places in any order."""
    ordered = np.sort(places)
    distinct = 0 if not len(ordered) else 1 + int((ordered[1:] != ordered[:-1]).sum())
    return _thinned(ordered, np.ones(len(ordered)), nulls, distinct, kept)


def merged(sketches: Iterable[Sketch], *, kept: int = KEPT) -> Sketch:
    """A sketch of all that these are sketches of."""
    given = list(sketches)
    filled = [sketch for sketch in given if len(sketch.places)]
    nulls = sum(sketch.nulls for sketch in given)
    if not filled:
        return Sketch(np.empty(0, np.int64), np.empty(0), nulls)
    places = np.concatenate([sketch.places for sketch in filled])
    order = np.argsort(places, kind="stable")
    places, weights = places[order], np.concatenate([sketch.weights for sketch in filled])[order]
    seen = 1 + int((places[1:] != places[:-1]).sum())
    return _thinned(places, weights, nulls, max(seen, *(sketch.distinct for sketch in filled)), kept)


def _thinned(places: Edges, weights: npt.NDArray[np.float64], nulls: int, distinct: int, kept: int) -> Sketch:
    if len(places) <= kept:
        return Sketch(places, weights, nulls, distinct)
    total = float(weights.sum())
    reached = np.cumsum(weights)
    # In the middle of equal shares of the weight, so that no end of the line is favoured.
    at = np.searchsorted(reached, (np.arange(kept) + 0.5) * total / kept, side="left")
    return Sketch(places[np.minimum(at, len(places) - 1)], np.full(kept, total / kept), nulls, distinct)
