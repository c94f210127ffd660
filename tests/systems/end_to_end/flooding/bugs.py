"""A node that is wrong in one point."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.systems.flooding.node import FloodingNode
from tidings.systems.overlay import Bug
from tidings.systems.protocols.effects import Effects, Event


class KeepsToItself(FloodingNode):
    """It publishes to its own subscribers alone."""

    def publish(self, event: Event, now_ms: int) -> Effects:
        return super().publish(event, now_ms)[: -len(self.others()) or None]


def bugs(variant: str) -> Mapping[str, Bug]:
    return {"shy": Bug(KeepsToItself, "Complete", {"churn": 0.0})}
