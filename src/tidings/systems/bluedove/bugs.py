"""Nodes of BlueDove that are wrong in one point, each with the law that finds it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from tidings.systems.bluedove.messages import Handover, Split
from tidings.systems.bluedove.node import BlueDoveNode
from tidings.systems.bluedove.segment_table import Edge
from tidings.systems.overlay import CALM, Bug, muted
from tidings.systems.protocols.effects import Effects, Id, Send, SetTimer, Tag
from tidings.systems.protocols.gossip import GossipMember


class TrustsItsFormerLife(BlueDoveNode):
    """A node that crashed and is back takes the parts that it owned before for its own, and holds nothing of them."""

    def merge_table(self, table: tuple[Edge, ...], now_ms: int) -> Effects:
        self._complete |= {(edge.dimension, edge.low) for edge in table if edge.owner == self.id}
        return super().merge_table(table, now_ms)


class SwitchesFirst(TrustsItsFormerLife):
    """The table is switched before the copies are made: a change of view without the overlap."""

    def _on_split(self, sender: Id, message: Split, now_ms: int) -> Effects:
        effects: Effects = []
        for effect in super()._on_split(sender, message, now_ms):
            assert isinstance(effect, Send)
            del self._giving[effect.message.dimension, effect.message.low]
            switched = self._switch(effect.message.dimension, effect.message.low, effect.to, now_ms)
            effects += [*switched, SetTimer(1_500, _Late(effect.to, effect.message))]
        return effects

    def table_changed(self, now_ms: int) -> Effects:
        """Not even dispatchers send what they know."""
        return []

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        return [Send(tag.to, tag.copies)] if isinstance(tag, _Late) else super().on_timer(tag, now_ms)


class _Late(NamedTuple):
    to: Id
    copies: Handover


class TakesAtOnce(BlueDoveNode):
    """A newcomer owns a part as soon as it has the copies, though the owner before has not switched."""

    def _on_handover(self, sender: Id, message: Handover, now_ms: int) -> Effects:
        effects = super()._on_handover(sender, message, now_ms)
        if message.edge is None:
            effects += self._announce((Edge(message.dimension, message.low, 1, self.id, True, False),), now_ms)
        return effects


class BelievesOldNews(BlueDoveNode):
    """News of a member are taken for true, however old they are."""

    def _learn(self, news: GossipMember, now_ms: int) -> Effects:
        effects = super()._learn(news, now_ms)
        if news.id != self.id:
            self._know(news)
        return effects


class MergesTheWrongWay(BlueDoveNode):
    """Of two segments in one hand the edge before is removed, not the one between."""

    def _merge_neighbours(self, now_ms: int) -> Effects:
        for dimension in range(self.dimensions.count):
            for one, other in pairwise(self.table.segments(dimension)):
                if one.owner == other.owner == self.id and one.ready and other.ready:
                    known = self.table.edges[dimension, one.low]
                    return self._announce((known._replace(version=known.version + 1, removed=True),), now_ms)
        return []


def bugs(variant: str) -> Mapping[str, Bug]:
    """Returns the bugs that can be planted."""
    joins, crashes = {"churn": 1.0, "crashes": 0.0}, {"crashes": 1.0}
    return {
        "overlap": Bug(SwitchesFirst, "HeldByOwners", joins),
        "owners": Bug(TakesAtOnce, "OneOwner", joins),
        "restart": Bug(TrustsItsFormerLife, "HeldByOwners", crashes),
        "news": Bug(BelievesOldNews, "VersionsGrow", {"churn": 0.1}),
        "merging": Bug(MergesTheWrongWay, "Tiles", crashes),
        "mute": Bug(muted(BlueDoveNode), "Complete", CALM),
    }
