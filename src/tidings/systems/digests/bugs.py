"""Nodes of digests that are wrong in one point, each with the law that finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidings.systems.digests.node import HOME, DigestNode
from tidings.systems.overlay import Bug, muted
from tidings.systems.protocols.effects import Effects, Id, Send, Tag
from tidings.systems.protocols.pastry import AskLeaves, LeafSet, shared_digits
from tidings.systems.protocols.scribe import TreeGroup


class GoesAnywhere(DigestNode):
    """A message goes to any node that shares as long a prefix with its key, closer or not."""

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
    """A node that is asked for its leaves replies, and does not look whether the other one is a leaf."""

    def _on_ask_leaves(self, sender: Id, message: AskLeaves, now_ms: int) -> Effects:
        effects = super()._on_ask_leaves(sender, message, now_ms)
        return [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, LeafSet)]


class BelievesHints(DigestNode):
    """A node that others name is taken for a leaf, without having replied."""

    def _hinted(self, known: Sequence[Id], now_ms: int) -> Effects:
        for id in known:
            if id != self.id and self._would_be_leaf(id):
                self._hear(id, self.pastry.exchange_ms, now_ms)
        return []


class StaysRoot(DigestNode):
    """A node that was the root of a tree once takes itself for the root for ever, even if another is closer now."""

    def _attach(self, group: Id, known: TreeGroup, now_ms: int) -> Effects:
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


def bugs(variant: str) -> Mapping[str, Bug]:
    """Returns the bugs that can be planted: others where home nodes match, without trees."""
    calm, joins = {"churn": 0.0, "repair_ms": 1_000}, {"churn": 1.0, "crashes": 0.0}
    many = {**calm, "nodes": 40}
    mute = Bug(muted(DigestNode), "Complete", calm)
    if variant == "home":
        return {
            "hops": Bug(GoesAnywhere, "HopsApproach", many),
            "line": Bug(ForgetsTheRing, "ClosestDelivers", calm),
            "once": Bug(TellsHomeOnce, "KeptAtHome", joins),
            "mute": mute,
        }
    return {
        "hops": Bug(GoesAnywhere, "ParentsApproach", many),
        "silent": Bug(NeverAsksBack, "LeafSets", joins),
        "hints": Bug(BelievesHints, "LeafSets", {"crashes": 1.0}),
        "root": Bug(StaysRoot, "Trees", joins),
        "leaving": Bug(LeavesForAll, "InTrees", {"churn": 0.2, "subscriptions": 24}),
        "mute": mute,
    }
