"""BlueDove's dispatcher: it places the subscriptions of its own subscribers, and keeps them in place.

A subscription is sent to every matcher that it overlaps until each has confirmed it, and again only where the table has
changed, or a matcher says that it does not hold it: what a matcher has confirmed is compared by its digest
(`tidings.systems.bluedove.holdings`).
"""

from __future__ import annotations

from random import Random
from typing import ClassVar, Literal, NamedTuple

from tidings.errors import SubscriptionError
from tidings.systems.bluedove.forwarding import Policy
from tidings.systems.bluedove.holdings import Confirmed, HoldingsDigest, bucket_of
from tidings.systems.bluedove.matcher_node import MatcherNode
from tidings.systems.bluedove.messages import (
    ClaimedCopies,
    CopiesLacking,
    CopiesTaken,
    Copy,
    CopyPlaced,
    CopyRemoved,
    Holdings,
    HoldingsDiffer,
    PlaceCopy,
    RemoveCopy,
)
from tidings.systems.bluedove.placement import DIMENSIONS_MAX
from tidings.systems.bluedove.segment_node import MatcherSettings
from tidings.systems.bluedove.segment_table import Dimensions
from tidings.systems.protocols.effects import MAX_AHEAD_MS, Active, Effects, Handlers, Id, Message, Send, SetTimer, Tag
from tidings.systems.protocols.message_codec import MessageError
from tidings.systems.protocols.ring_ids import ADDRESS_BITS

REFRESH, AGAIN = "refresh", "again"
MAX_CLAIMED = 5_000  # copies in one message, but for the last bucket


class BlueDoveSettings(NamedTuple):
    matcher: MatcherSettings = MatcherSettings()
    policy: Policy = "adaptive"
    role: Literal["dispatcher", "matcher", "both"] = "both"
    dimensions: int = DIMENSIONS_MAX  # at most; 1 is how peer-to-peer systems have it (section IV-B)
    full_replication: bool = False  # every matcher holds every subscription
    log: bool = True  # False: what a dispatcher has published is gone with it
    retry_ms: int = 1_000
    patience_ms: int = 3_000  # until an event that a matcher has not done is sent to another
    refresh_ms: int = 8_000
    suspect_ms: int = 3_000  # for how long a matcher that could not be reached is passed over
    remembered_ms: int = 60_000
    queued: bool = False  # keep notifications until the subscriber polls
    saturated_queue: int = 20
    grow_pause_ms: int = 10_000
    grow_patience_ms: int = 60_000
    admit_ms: int = 3_000  # after which a matcher that was given no segment asks again
    id_bits: int = ADDRESS_BITS


class OwnSubscription:
    """A subscription of this node's subscribers, and where it is."""

    __slots__ = ("active", "holders", "placed", "text", "version")

    def __init__(self, text: str, version: int) -> None:
        self.text = text
        self.version = version
        self.placed: set[tuple[int, Id]] = set()  # (dimension, matcher) that have confirmed it, of those that should
        self.holders: set[Id] = set()  # everybody who may have a copy
        self.active = False


class DispatcherNode(MatcherNode):
    """A node that keeps the subscriptions of its subscribers in place."""

    def __init__(self, id: Id, random: Random, dimensions: Dimensions, settings: BlueDoveSettings, about: str) -> None:
        super().__init__(id, random, dimensions, settings.matcher, about)
        self.options = settings
        self.own: dict[str, OwnSubscription] = {}
        self._unplaced: dict[str, None] = {}  # of those, the ones that somebody has not confirmed
        self._confirmed: dict[Id, HoldingsDigest] = {}  # by matcher
        self._removing: dict[tuple[str, int], set[Id]] = {}  # subscription, version → who has not answered
        self._versions = 0
        self._wanted_by: dict[str, tuple[int, set[tuple[int, Id]]]] = {}  # filter → changes of the table, owners

    def dispatcher_timers(self) -> Effects:
        return [SetTimer(self.options.refresh_ms, REFRESH), SetTimer(self.options.retry_ms, AGAIN)]

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        if isinstance(part, Copy) and part.version > (now_ms + MAX_AHEAD_MS) * 1_000:
            raise MessageError("message: Copy is of a time to come")

    def catalogue(self) -> dict[tuple[str, Id], Copy]:
        return {(name, self.id): self._copy(name, own) for name, own in self.own.items()}

    def _copy(self, name: str, own: OwnSubscription) -> Copy:
        return Copy(name, self.id, own.text, own.version)

    # Placing

    def subscribe(self, subscription: str, text: str, now_ms: int) -> Effects:
        self.dimensions.spans(text)  # a filter that cannot be read is refused before anything changes
        effects = self.unsubscribe(subscription, now_ms) if subscription in self.own else []
        self._versions += 1
        own = self.own[subscription] = OwnSubscription(text, now_ms * 1_000 + self._versions % 1_000)
        return [*effects, *self._place(subscription, own, now_ms)]

    def _wanted(self, text: str) -> set[tuple[int, Id]]:
        """(dimension, matcher) for every owner of a segment that the filter overlaps, and more than one matcher."""
        changes, wanted = self._wanted_by.get(text, (-1, set()))
        if changes != self.table.changes:
            wanted = {
                (dimension, segment.owner)
                for dimension, spans in enumerate(self.dimensions.spans(text))
                for segment in self.table.overlapping(dimension, spans)
            }
            if len({matcher for _, matcher in wanted}) == 1:
                wanted |= self._neighbours_of(next(iter(wanted))[1])
            self._wanted_by[text] = (self.table.changes, wanted)
        return wanted

    def _neighbours_of(self, matcher: Id) -> set[tuple[int, Id]]:
        """Along each dimension the clockwise neighbour of a matcher: for what would have no copy elsewhere (III-A)."""
        found = set()
        for dimension in range(self.dimensions.count):
            owners = [segment.owner for segment in self.table.segments(dimension)]
            at = len(owners) - 1 - owners[::-1].index(matcher) if matcher in owners else -1
            neighbour = owners[(at + 1) % len(owners)]
            if neighbour != matcher:
                found.add((dimension, neighbour))
        return found

    def _place(self, subscription: str, own: OwnSubscription, now_ms: int) -> Effects:
        lacking = sorted(self._wanted(own.text) - own.placed)
        if not lacking:
            return self._in_place(subscription, own)
        self._unplaced[subscription] = None
        effects: Effects = []
        copy, table = self._copy(subscription, own), self.table.digest()
        for dimension, matcher in lacking:
            own.holders.add(matcher)
            effects += self._answer(matcher, PlaceCopy(dimension, copy, table), now_ms)
        return effects

    def _on_placed(self, sender: Id, message: CopyPlaced, now_ms: int) -> Effects:
        effects = self.merge_part(message.edges, now_ms)
        own = self.own.get(message.subscription)
        if own is None or own.version != message.version:  # the removal may have been there before the copy
            return [*effects, *self._remove(message.subscription, message.version, {sender}, now_ms)]
        wanted, pair = self._wanted(own.text), (message.dimension, sender)
        if pair in wanted and pair not in own.placed:
            own.placed.add(pair)
            confirmed = self._confirmed.setdefault(sender, HoldingsDigest())
            confirmed.add((message.dimension, message.subscription, message.version))
        return [*effects, *self._in_place(message.subscription, own)] if own.placed >= wanted else effects

    def _in_place(self, subscription: str, own: OwnSubscription) -> Effects:
        """All who should have confirmed it; they are none while there is no matcher."""
        self._unplaced.pop(subscription, None)
        if own.active or not own.placed:
            return []
        own.active = True
        return [Active(subscription)]

    def _forget(self, subscription: str, own: OwnSubscription, pairs: set[tuple[int, Id]]) -> None:
        """No longer count on matchers that have confirmed a subscription."""
        for dimension, matcher in pairs:
            if matcher in self._confirmed:
                self._confirmed[matcher].remove((dimension, subscription, own.version))
        own.placed -= pairs

    def table_changed(self, now_ms: int) -> Effects:
        """Sends our subscriptions to owners of a part that have not said that they hold them."""
        effects: Effects = []
        for subscription, own in self.own.items():
            self._forget(subscription, own, own.placed - self._wanted(own.text))
            effects += self._place(subscription, own, now_ms)
        return effects

    def parted(self, id: Id, now_ms: int) -> Effects:
        self._confirmed.pop(id, None)
        for subscription, own in self.own.items():
            own.holders.discard(id)
            left = {pair for pair in own.placed if pair[1] != id}
            if left != own.placed:
                own.placed = left
                self._unplaced[subscription] = None
        return super().parted(id, now_ms)

    # What matchers hold

    def _confirm(self, now_ms: int) -> Effects:
        """Send each matcher the digest of what it has confirmed: it renews that, or says what is wrong with it."""
        unplaced = [self.own[name] for name in self._unplaced]
        changing = {matcher for own in unplaced for _, matcher in self._wanted(own.text) - own.placed}
        effects: Effects = []
        for matcher, confirmed in sorted(self._confirmed.items(), key=lambda one: one[0]):
            if confirmed.count:
                digest = None if matcher in changing else confirmed.whole
                effects += self._answer(matcher, Holdings(digest), now_ms)
        return effects

    def _on_differ(self, sender: Id, message: HoldingsDiffer, now_ms: int) -> Effects:
        mine = self._confirmed.get(sender, HoldingsDigest()).buckets
        pairs = enumerate(zip(mine, message.buckets, strict=True))
        claimed: dict[int, list[Confirmed]] = {number: [] for number, (one, other) in pairs if one != other}
        for subscription, own in self.own.items():
            for dimension in [dimension for dimension, matcher in own.placed if matcher == sender]:
                copy = (dimension, subscription, own.version)
                if bucket_of(copy) in claimed:
                    claimed[bucket_of(copy)].append(copy)
        effects: Effects = []
        buckets: list[int] = []
        copies: list[Confirmed] = []
        for number, several in claimed.items():
            buckets.append(number)
            copies += sorted(several)
            if len(copies) >= MAX_CLAIMED or number == max(claimed):
                effects += self._answer(sender, ClaimedCopies(tuple(buckets), tuple(copies)), now_ms)
                buckets, copies = [], []
        return effects

    def _on_lacking(self, sender: Id, message: CopiesLacking, now_ms: int) -> Effects:
        effects: Effects = []
        for dimension, subscription, version in message.copies:
            own = self.own.get(subscription)
            if own is not None and own.version == version and (dimension, sender) in own.placed:
                self._forget(subscription, own, {(dimension, sender)})
                effects += self._place(subscription, own, now_ms)
        return effects

    def _on_taken(self, sender: Id, message: CopiesTaken, now_ms: int) -> Effects:
        effects: Effects = []
        for subscription, version in message.copies:
            own = self.own.get(subscription)
            if own is not None and own.version == version:
                own.holders.add(sender)
            else:
                effects += self._remove(subscription, version, {sender}, now_ms)
        return effects

    # Removing

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects:
        own = self.own.pop(subscription, None)
        if own is None:
            raise SubscriptionError(f"node {self.id}: there is no subscription {subscription!r} here")
        self._forget(subscription, own, set(own.placed))
        self._unplaced.pop(subscription, None)
        self._wanted_by.pop(own.text, None)
        return self._remove(subscription, own.version, own.holders, now_ms)

    def _remove(self, subscription: str, version: int, holders: set[Id], now_ms: int) -> Effects:
        self._removing.setdefault((subscription, version), set()).update(holders)
        effects: Effects = []
        for matcher in sorted(holders):
            effects += self._answer(matcher, RemoveCopy(subscription, version), now_ms)
        return effects

    def _on_removed(self, sender: Id, message: CopyRemoved, now_ms: int) -> Effects:
        waiting = self._removing.get((message.subscription, message.version), set())
        waiting.discard(sender)
        if not waiting:
            self._removing.pop((message.subscription, message.version), None)
        return []

    # Time

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag == AGAIN:
            return [*self._place_and_remove_again(now_ms), SetTimer(self.options.retry_ms, AGAIN)]
        if tag == REFRESH:
            return [*self._confirm(now_ms), SetTimer(self.options.refresh_ms, REFRESH)]
        return super().on_timer(tag, now_ms)

    def _place_and_remove_again(self, now_ms: int) -> Effects:
        """What was not answered."""
        effects: Effects = []
        for subscription in list(self._unplaced):
            effects += self._place(subscription, self.own[subscription], now_ms)
        present = set(self.others())
        self._removing = {key: waiting & present for key, waiting in self._removing.items() if waiting & present}
        for (subscription, version), waiting in self._removing.items():
            effects += [Send(matcher, RemoveCopy(subscription, version)) for matcher in sorted(waiting)]
        return effects

    handlers: ClassVar[Handlers] = {
        CopyPlaced: _on_placed,
        CopiesTaken: _on_taken,
        CopyRemoved: _on_removed,
        HoldingsDiffer: _on_differ,
        CopiesLacking: _on_lacking,
    }
