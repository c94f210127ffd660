"""The load of BlueDove's candidates on Spark: what the tasks of the last micro-batches counted."""

from __future__ import annotations

import numpy as np

from tidings.systems.bluedove.forwarding import Load
from tidings.systems.bluedove.placement import View
from tidings.systems.interface import Counts, Floats
from tidings.systems.sharding import SHARD_BITS, channel_of_shard


def measured_load(view: View, counts: Counts, seconds: float, subscriptions: Floats) -> Load:
    """Returns λ, μ and q of each candidate, from what its partition counted in so many seconds.

    λ   events that were looked up there, in a second
    μ   events that could be, by the time that they took; by the time that a subscription took, where none were
    q   events that came in the time and would have taken longer than that: of a micro-batch that is late

    `subscriptions` are those of each candidate. A candidate's shard is what its partition holds along its dimension; of
    several that share one, each has its share of the events.
    """
    looked, took_s = np.zeros(view.candidates), np.zeros(view.candidates)
    for shard, (lookups, _, nanoseconds) in counts.items():
        dimension, level = divmod(channel_of_shard(shard), view.levels)
        if level == 0 and 0 <= dimension < len(view.paths):
            mine = np.arange(view.bases[dimension], view.bases[dimension + 1])
            sharing = mine[view.assignment[mine] == shard & ((1 << SHARD_BITS) - 1)]
            looked[sharing] = lookups / max(1, len(sharing))
            took_s[sharing] = nanoseconds / 1e9 / max(1, len(sharing))
    compared = float((looked * subscriptions).sum())
    each_s = took_s.sum() / compared if compared and took_s.sum() else 1e-9
    expected_s = each_s * np.maximum(subscriptions, 1.0)
    event_s = np.where((looked > 0) & (took_s > 0), took_s / np.maximum(looked, 1e-9), expected_s)
    rates = 1 / event_s
    return Load(subscriptions, np.maximum(0.0, looked - rates * seconds), looked / seconds, rates)
