"""What events meet under a View, by its law: for benchmarks of placements."""

from __future__ import annotations

import numpy as np

from tidings.model.event import EventBatch
from tidings.systems import EVERYWHERE, Placed, View
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.sharding import shards_of, visits_of


def met(view: View, placed: Placed, events: EventBatch) -> tuple[float, float | None]:
    """Subscriptions in the shards that an event consults, and how uneven that is: the busiest partition by the mean."""
    held, _ = distinct_pairs(shards_of(placed.keys, view), placed.subscriptions)
    shards, sizes = np.unique(held, return_counts=True)
    visits = visits_of(events, view)
    at = np.minimum(np.searchsorted(shards, visits.shards), len(shards) - 1)
    found = np.where(shards[at] == visits.shards, sizes[at], 0)
    if (view.owners(placed.keys) == EVERYWHERE).all():
        return float(found.sum() / events.count), None
    work = np.bincount(np.repeat(visits.partitions, np.diff(visits.offsets)), found, view.partitions)
    return float(found.sum() / events.count), round(float(work.max() / max(work.mean(), 1e-9)), 2)
