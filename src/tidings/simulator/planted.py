"""Bugs to plant, one for each law: nodes that are wrong in one point, which the checkers have to find.

Those that are settings of the nodes themselves are not here: `counting`, `registration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tidings.systems.bluedove.messages import Handover, Split
from tidings.systems.bluedove.node import BlueDoveNode
from tidings.systems.bluedove.segment_table import Edge
from tidings.systems.digests.node import HOME, DigestNode
from tidings.systems.opchord.messages import Copies
from tidings.systems.opchord.node import OPChordNode
from tidings.systems.protocols.effects import Effects, Id, Send, SetTimer, Tag
from tidings.systems.protocols.gossip import Member
from tidings.systems.protocols.pastry import AskLeaves, LeafSet, shared_digits
from tidings.systems.protocols.ring import PublishedChordNode
from tidings.systems.protocols.scribe import Group


class PublishedOPChordNode(PublishedChordNode, OPChordNode):
    """Lists on the ring as it was published."""


class HandsNothingOver(OPChordNode):
    """A node that comes in between is told that it has been handed everything, and has been handed nothing."""

    def predecessor_changed(self, now_ms: int) -> Effects:
        effects = super().predecessor_changed(now_ms)
        return [
            Send(effect.to, Copies((), (), True))
            if isinstance(effect, Send) and isinstance(effect.message, Copies)
            else effect
            for effect in effects
        ]


class ProlongsCopies(OPChordNode):
    """Whoever is sent a copy keeps it as if its owner had repeated it."""

    def _on_copies(self, sender: Id, message: Copies, now_ms: int) -> Effects:
        left_ms = (3 * self.options.refresh_ms,) * len(message.entries)
        return super()._on_copies(sender, message._replace(left_ms=left_ms), now_ms)


class GoesAnywhere(DigestNode):
    """A message goes to whoever shares as long a prefix with its key, closer or not."""

    def next_hop(self, key: Id, *, excluding: Id | None = None) -> Id | None:
        hop = super().next_hop(key, excluding=excluding)
        if hop is None or hop in self.leaves:
            return hop
        bits, digit = self.pastry.bits, self.pastry.digit_bits
        row = shared_digits(self.id, key, bits, digit)
        return next(id for id in self.table.values() if shared_digits(id, key, bits, digit) >= row)


class ForgetsTheRing(DigestNode):
    """The closest node is looked for on a line, not around a ring."""

    def next_hop(self, key: Id, *, excluding: Id | None = None) -> Id | None:
        best = min((self.id, *(id for id in self.leaves if id != excluding)), key=lambda id: abs(id - key))
        return None if best == self.id else best


class NeverAsksBack(DigestNode):
    """Who is asked for its leaves answers, and does not look whether the other one is a leaf."""

    def _on_ask_leaves(self, sender: Id, message: AskLeaves, now_ms: int) -> Effects:
        effects = super()._on_ask_leaves(sender, message, now_ms)
        return [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, LeafSet)]


class BelievesHints(DigestNode):
    """Whoever is named by others is taken for a leaf, without having answered."""

    def _hinted(self, known: Sequence[Id], now_ms: int) -> Effects:
        for id in known:
            if id != self.id and self._would_be_leaf(id):
                self._hear(id, self.pastry.exchange_ms, now_ms)
        return []


class StaysRoot(DigestNode):
    """Who was the root of a tree once takes itself for it for ever, whoever is closer now."""

    def _attach(self, group: Id, known: Group, now_ms: int) -> Effects:
        is_root = known.rooted and known.parent is None
        return [] if is_root else super()._attach(group, known, now_ms)


class LeavesForAll(DigestNode):
    """Giving up one subscription leaves the groups that another one is in."""

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects:
        groups = self.own[subscription].groups if subscription in self.own else ()
        effects = super().unsubscribe(subscription, now_ms)
        for group in groups:
            effects += self.leave_group(group, now_ms)
        return effects


class TellsHomeOnce(DigestNode):
    """What home nodes keep is never repeated."""

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag != HOME:
            return super().on_timer(tag, now_ms)
        own, self.own = self.own, {}
        effects = super().on_timer(tag, now_ms)
        self.own = own
        return effects


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
    """What is told of a member is taken for true, however old it is."""

    def _learn(self, news: Member, now_ms: int) -> Effects:
        effects = super()._learn(news, now_ms)
        if news.id != self.id:
            self.members[news.id] = news
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
