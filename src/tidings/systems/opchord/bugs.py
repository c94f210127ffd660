"""Nodes of a ring that are wrong in one point, each with the law that finds it."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.systems.opchord.messages import Copies, Entry
from tidings.systems.opchord.node import OPChordNode
from tidings.systems.overlay import CALM, Bug, muted
from tidings.systems.protocols.content import Record
from tidings.systems.protocols.effects import Effects, Id, Send
from tidings.systems.protocols.ring import PublishedChordNode


class PublishedOPChordNode(PublishedChordNode, OPChordNode):
    """Lists on the ring as it was published."""


class CountsEverything(OPChordNode):
    """The paper as printed: a list names all that it holds, for any value that the node owns."""

    def admits(self, record: Record, entry: Entry) -> bool:
        return True


class HandsNothingOver(OPChordNode):
    """A node that comes in between takes itself to have been handed everything, and has been handed nothing."""

    def predecessor_changed(self, now_ms: int) -> Effects:
        effects = super().predecessor_changed(now_ms)
        return [
            Send(effect.to, Copies((), (), True))
            if isinstance(effect, Send) and isinstance(effect.message, Copies)
            else effect
            for effect in effects
        ]


class ProlongsCopies(OPChordNode):
    """A node that is sent a copy keeps it as if its owner had repeated it."""

    def _on_copies(self, sender: Id, message: Copies, now_ms: int) -> Effects:
        left_ms = (3 * self.options.refresh_ms,) * len(message.entries)
        return super()._on_copies(sender, message._replace(left_ms=left_ms), now_ms)


def bugs(variant: str) -> Mapping[str, Bug]:
    """Returns the bugs that can be planted."""
    joins = {"churn": 1.0, "crashes": 0.0}
    return {
        "notify": Bug(PublishedOPChordNode, "OneLiveSuccessor", {"churn": 3.0, "churn_ms": 8_000}, careless=True),
        "counting": Bug(CountsEverything, "Sound", {"churn": 0.0, "repair_ms": 1_000}),
        "handover": Bug(HandsNothingOver, "ListsHeld", joins),
        "copies": Bug(ProlongsCopies, "RunsOut", {"churn": 1.5}),
        "mute": Bug(muted(OPChordNode), "Complete", CALM),
    }
