"""Which indices serve a table of subscriptions best, where nobody has declared any.

Every index costs every event a visit, and spares it the subscriptions that it would otherwise be
compared with. Indices are added one by one, each time the one that spares the most, while it
spares more than it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.model.types import Path
from tidings.systems.geometry.line_parts import Held
from tidings.systems.interface import Floats, Numbers

INDICES_MAX = 12
VISIT = 50.0  # what a visit costs, in subscriptions that an event is compared with

_TOGETHER_MAX = 2  # attributes of an index that is derived
_TRIED_MAX = 64  # indices that are compared in a round

Choose = Callable[[FilterTable, Sequence[tuple[Path, ...]], dict[Path, Held], int], tuple[Numbers, Floats]]


def chosen_indices(
    filters: FilterTable, held: dict[Path, Held], choose: Choose, keys_max: int, indices_max: int, scale: float
) -> tuple[tuple[Path, ...], ...]:
    """Indices of one or two attributes, by what events are spared. A filter stands for `scale` subscriptions."""
    candidates = _candidates(filters, held)
    alone = {index: choose(filters, [index], held, keys_max)[1] for index in candidates}
    satisfiable = np.zeros(filters.count, bool)
    satisfiable[filters.box_filter] = True
    shares = satisfiable.astype(np.float64)  # of the events that each subscription is compared with
    chosen: list[tuple[Path, ...]] = []
    while len(chosen) < indices_max and candidates:
        spared = {index: float(np.maximum(shares - alone[index], 0).sum()) * scale for index in candidates}
        best = max(candidates, key=lambda index: (spared[index], -len(index)))
        if spared[best] <= VISIT:
            break
        chosen.append(best)
        candidates.remove(best)
        shares = np.minimum(shares, np.where(satisfiable, alone[best], 0.0))
    return tuple(chosen)


def _candidates(filters: FilterTable, held: dict[Path, Held]) -> list[tuple[Path, ...]]:
    """Single attributes, and the pairs that the most conjunctions constrain together."""
    constrained = {path: one.counts > 0 for path, one in held.items() if (one.counts > 0).any()}
    singles = [(path,) for path in constrained]
    together = {
        pair: int((constrained[pair[0]] & constrained[pair[1]]).sum())
        for pair in combinations(constrained, _TOGETHER_MAX)
    }
    often = sorted((pair for pair in together if together[pair]), key=lambda pair: -together[pair])
    return [*singles, *often[:_TRIED_MAX]]
