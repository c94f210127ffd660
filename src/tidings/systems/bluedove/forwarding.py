"""BlueDove's forwarding policies: which of its candidates an event goes to, by what matchers report of their load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tidings.systems.interface import Floats, PlacementError

Policy = Literal["adaptive", "response time", "subscriptions", "random"]
POLICIES: tuple[Policy, ...] = ("adaptive", "response time", "subscriptions", "random")
_LEAST_RATE = 1e-9  # of a matcher that cannot match anything: its candidates are the last to be chosen


@dataclass(frozen=True, eq=False)
class Load:
    """What matchers reported of each candidate, each `age_s` seconds before it is used."""

    subscriptions: Floats  # |S^i|
    queued: Floats  # q', events
    arrivals: Floats  # λ', events/s
    served: Floats  # μ', events/s that it can match
    age_s: Floats | float = 0.0  # t − t'

    def to_dict(self) -> dict[str, Any]:
        return {name: np.asarray(getattr(self, name)).tolist() for name in self.__dataclass_fields__}

    @staticmethod
    def from_dict(form: Mapping[str, Any]) -> Load:
        return Load(**{name: np.array(figures, np.float64) for name, figures in form.items()})


def costs_of(policy: Policy, load: Load) -> Floats:
    """Returns what an event costs at each candidate, by the policies of section III-B: the cheapest gets it.

    adaptive        the shortest time to be done, (q + 1) / μ, with the queue carried on from the last report:
                    q = max(0, q' + (λ' − μ')(t − t'))
    response time   the same without carrying on: q = q'
    subscriptions   the fewest subscriptions to look at, |S^i|
    random          any, by a hash of the event, so that it is sent alike however often it is

    What matchers reported is a snapshot in the View: an event that is routed again goes the same way.
    """
    if policy == "subscriptions":
        return load.subscriptions
    if policy == "random":
        return np.zeros(len(load.subscriptions))
    if policy not in POLICIES:
        raise PlacementError(f"there is no forwarding policy '{policy}'; there are {', '.join(POLICIES)}")
    queued = load.queued
    if policy == "adaptive":
        queued = np.maximum(0.0, queued + (load.arrivals - load.served) * load.age_s)
    return np.asarray((queued + 1) / np.maximum(load.served, _LEAST_RATE))
