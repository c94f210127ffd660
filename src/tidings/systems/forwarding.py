"""To which of its candidates BlueDove sends an event: the four policies of the paper's section III-B.

    adaptive        the shortest time to be done, (q + 1) / μ, with the queue carried on from the last report:
                    q = max(0, q' + (λ' − μ')(t − t'))
    response time   the same without carrying on: q = q'
    subscriptions   the fewest subscriptions to look at, |S^i|
    random          any, by a hash of the event, so that it is sent alike however often it is

What matchers reported is a snapshot in the View: an event that is routed again goes the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidings.systems.interface import PlacementError

Policy = Literal["adaptive", "response time", "subscriptions", "random"]
POLICIES: tuple[Policy, ...] = ("adaptive", "response time", "subscriptions", "random")

Floats = npt.NDArray[np.float64]

_LEAST_RATE = 1e-9  # of a matcher that served nothing: its candidates are the last to be chosen


@dataclass(frozen=True, eq=False)
class Load:
    """What matchers reported of each candidate, `age_s` seconds before it is used."""

    subscriptions: Floats  # |S^i|
    queued: Floats  # q', events
    arrivals: Floats  # λ', events/s
    served: Floats  # μ', events/s
    age_s: float = 0.0  # t − t'


def costs_of(policy: Policy, load: Load) -> Floats:
    """What an event costs at each candidate: it goes to the cheapest."""
    if policy == "subscriptions":
        return load.subscriptions
    if policy == "random":
        return np.zeros(len(load.subscriptions))
    if policy not in POLICIES:
        raise PlacementError(f"there is no forwarding policy '{policy}'; there are {', '.join(POLICIES)}")
    queued = load.queued
    if policy == "adaptive":
        queued = np.maximum(0.0, queued + (load.arrivals - load.served) * load.age_s)
    return (queued + 1) / np.maximum(load.served, _LEAST_RATE)
