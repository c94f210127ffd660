"""Nodes of clusters that are wrong in one point, each with the law that finds it."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.systems.clusters.node import ClusterNode
from tidings.systems.clusters.space import ClusterDivision
from tidings.systems.overlay import Bug, muted
from tidings.systems.protocols.effects import Effects


class RegistersOnce(ClusterNode):
    """Subscriptions do not register in clusters that are added to a division later."""

    def _register_in(self, before: ClusterDivision, now_ms: int) -> Effects:
        return [] if before.age == self.division.age else super()._register_in(before, now_ms)


def bugs(variant: str) -> Mapping[str, Bug]:
    """Returns the bugs that can be planted."""
    few = {"nodes": 5, "subscriptions": 4, "churn": 0.2, "churn_ms": 8_000, "repair_ms": 1_000}
    mute = Bug(muted(ClusterNode), "Complete", {"churn": 0.0})  # the first division takes its time
    return {"registration": Bug(RegistersOnce, "Registered", few), "mute": mute}
