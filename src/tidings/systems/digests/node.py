"""Index digests on Scribe (Tam, Azimi and Jacobsen 2003): a topic for each digest of an index.

A subscription joins the trees of its digests, an event is multicast in those of its own. Where the exact match is
made is a choice:

    leaf   in the tree's leaves, the default: each member looks whether the event is what it asked for
    tree   in the tree as well: a subtree that does not ask for an event is not sent it
    home   at the digest's home node, without a tree: it keeps the filters, and notifies subscribers directly

The intervals that values are divided into follow the events: see `view_node`. While a View changes, a subscription is
registered under the old and the new one, and an event goes by one of them.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar, Literal, NamedTuple

from tidings.errors import SubscriptionError
from tidings.systems.digests import placement
from tidings.systems.digests.interval_views import AdaptSettings, FixedViews, IntervalViews
from tidings.systems.digests.messages import MESSAGES, HomeNotify, HomePublish, HomeStore, HomeStored
from tidings.systems.digests.view_node import ViewNode
from tidings.systems.overlay import Overlay, Start, seat_members
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import (
    Active,
    Deliver,
    Effects,
    Event,
    Handlers,
    Id,
    Message,
    Send,
    SetTimer,
    Tag,
)
from tidings.systems.protocols.pastry import PastryRoute, PastrySettings
from tidings.systems.protocols.ring_ids import ADDRESS_BITS
from tidings.systems.protocols.scribe import Graft, ScribeSettings

Matching = Literal["leaf", "tree", "home"]


class DigestSettings(NamedTuple):
    scribe: ScribeSettings = ScribeSettings()
    matching: Matching = "leaf"
    adapt: AdaptSettings = AdaptSettings()
    refresh_ms: int = 5_000  # of what home nodes keep
    remembered_ms: int = 30_000

    @property
    def id_bits(self) -> int:
        return self.scribe.pastry.bits


HOME = "home"


class _Own:
    __slots__ = ("groups", "is_active", "text", "waiting")

    def __init__(self, text: str) -> None:
        self.text = text
        self.groups: tuple[Id, ...] = ()
        self.waiting: set[Id] = set()  # groups that it is not in place in, yet
        self.is_active = False


class DigestNode(ViewNode):
    def __init__(self, id: Id, random: Random, views: FixedViews, settings: DigestSettings = DigestSettings()) -> None:  # noqa: B008
        super().__init__(id, random, views, settings.scribe, settings.adapt)
        self.content = views.content
        self.options = settings
        self.own: dict[str, _Own] = {}
        self._members: dict[Id, dict[str, None]] = {}  # subscriptions of each group
        self._delivered: dict[tuple[str, str], int] = {}
        self.home: dict[tuple[Id, str, Id], tuple[str, int]] = {}  # (group, subscription, node) → filter, until when

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        return [*super().start(contact, now_ms), SetTimer(self.options.refresh_ms, HOME)]

    # Subscriptions

    def subscribe(self, subscription: str, text: str, now_ms: int) -> Effects:
        groups = self._held(text)  # a filter that cannot be read is refused before anything changes
        effects = self.unsubscribe(subscription, now_ms) if subscription in self.own else []
        self.own[subscription] = _Own(text)
        effects += self._hold(subscription, groups, now_ms)
        return [*effects, *self._settle(subscription, None)]

    def _held(self, text: str) -> tuple[Id, ...]:
        """The groups of a subscription, under all Views that are known."""
        return tuple(dict.fromkeys(group for view in self.known for group in self.views.at(view).held(text)))

    def _hold(self, subscription: str, groups: tuple[Id, ...], now_ms: int) -> Effects:
        """Registers a subscription in these groups, and in no others: only the difference."""
        own = self.own[subscription]
        before, own.groups = own.groups, groups
        added = [group for group in groups if group not in before]
        if not own.is_active:
            own.waiting.update(added)  # all, before the first of them is in place
        effects: Effects = []
        for group in added:
            self._members.setdefault(group, {})[subscription] = None
            if self.options.matching == "home":
                effects += self.route(group, HomeStore(group, subscription, own.text, False), now_ms)
            else:
                effects += self.join(group, now_ms)
        for group in (group for group in before if group not in groups):
            own.waiting.discard(group)
            del self._members[group][subscription]
            if self.options.matching == "home":
                effects += self.route(group, HomeStore(group, subscription, own.text, True), now_ms)
            if not self._members[group]:
                del self._members[group]
                effects += self.leave_group(group, now_ms)
        return effects

    def view_changed(self, now_ms: int) -> Effects:
        effects: Effects = []
        for subscription, own in self.own.items():
            effects += self._hold(subscription, self._held(own.text), now_ms)
            effects += self._settle(subscription, None)
        return effects

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects:
        if subscription not in self.own:
            raise SubscriptionError(f"node {self.id}: there is no subscription {subscription!r} here")
        effects = self._hold(subscription, (), now_ms)
        del self.own[subscription]
        return effects

    def rooted(self, group: Id, now_ms: int) -> Effects:
        effects: Effects = []
        for subscription in self._members.get(group, ()):
            effects += self._settle(subscription, group)
        return effects

    def _settle(self, subscription: str, group: Id | None) -> Effects:
        """Says that a subscription is in place, once, when all its groups are."""
        own = self.own[subscription]
        own.waiting = {id for id in own.waiting if id != group and not self.is_rooted(id)}
        if own.waiting or own.is_active:
            return []
        own.is_active = True
        return [Active(subscription)]

    def wanted(self, group: Id) -> tuple[str, ...] | None:
        if self.options.matching != "tree":
            return None
        return tuple(dict.fromkeys(self.own[name].text for name in self._members.get(group, ())))

    def passes(self, event: Event, wants: tuple[str, ...] | None) -> bool:
        if wants is None or self.options.matching != "tree":
            return True
        record = self.content.record(event)
        return any(self.content.interest(text).holds(record) for text in wants)

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        match part:
            case Event():
                self.content.record(part)
            case Graft(_, wants):
                for text in wants or ():
                    self.content.interest(text)
            case HomeStore(_, _, text):
                self.content.interest(text)

    # Events

    def publish(self, event: Event, now_ms: int) -> Effects:
        effects: Effects = []
        self.sample(event)
        for group in self.views.at(self.routing(now_ms)).visited(event):
            if self.options.matching == "home":
                effects += self.route(group, HomePublish(group, event), now_ms)
            else:
                effects += self.multicast(group, event, now_ms)
        return effects

    def received(self, group: Id, event: Event, now_ms: int) -> Effects:
        effects: Effects = []
        for subscription in tuple(self._members.get(group, ())):
            effects += self._tell(subscription, event, now_ms)
        return effects

    def _tell(self, subscription: str, event: Event, now_ms: int) -> Effects:
        own, key = self.own.get(subscription), (subscription, event.id)
        if own is None or key in self._delivered:
            return []
        if not self.content.interest(own.text).holds(self.content.record(event)):
            return []
        self._delivered[key] = now_ms
        return [Deliver(subscription, event)]

    # The basic scheme: matching at the home node

    def arrived(self, message: PastryRoute, now_ms: int) -> Effects:
        match message.payload:
            case HomeStore(group, subscription, text, remove):
                key = (group, subscription, message.origin)
                if remove:
                    self.home.pop(key, None)
                    return []
                self.home[key] = (text, now_ms + 3 * self.options.refresh_ms)
                stored = HomeStored(group, subscription)
                here = message.origin == self.id
                return self._on_home_stored(self.id, stored, now_ms) if here else [Send(message.origin, stored)]
            case HomePublish(group, event):
                return self._match_at_home(group, event, now_ms)
        return super().arrived(message, now_ms)

    def _match_at_home(self, group: Id, event: Event, now_ms: int) -> Effects:
        record, interest = self.content.record(event), self.content.interest
        effects: Effects = []
        for (held, subscription, owner), (text, _) in self.home.items():
            if held == group and interest(text).holds(record):
                if owner == self.id:
                    effects += self._tell(subscription, event, now_ms)
                else:
                    effects.append(Send(owner, HomeNotify(subscription, event)))
        return effects

    def _on_home_stored(self, sender: Id, message: HomeStored, now_ms: int) -> Effects:
        return self._settle(message.subscription, message.group) if message.subscription in self.own else []

    def _on_home_notify(self, sender: Id, message: HomeNotify, now_ms: int) -> Effects:
        return self._tell(message.subscription, message.event, now_ms)

    # Time

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag != HOME:
            return super().on_timer(tag, now_ms)
        effects: Effects = [SetTimer(self.options.refresh_ms, HOME)]
        if self.options.matching == "home" and self.is_member:
            for subscription, own in self.own.items():
                for group in own.groups:
                    effects += self.route(group, HomeStore(group, subscription, own.text, False), now_ms)
        self.home = {key: held for key, held in self.home.items() if held[1] >= now_ms}
        horizon = now_ms - self.options.remembered_ms
        self._delivered = {key: at for key, at in self._delivered.items() if at >= horizon}
        return effects

    def leave(self, now_ms: int) -> Effects:
        effects: Effects = []
        for subscription in list(self.own):
            effects += self.unsubscribe(subscription, now_ms)
        return [*effects, *super().leave(now_ms)]

    handlers: ClassVar[Handlers] = {
        HomeStored: _on_home_stored,
        HomeNotify: _on_home_notify,
    }


def _ground(content: Content, settings: DigestSettings) -> IntervalViews:
    return IntervalViews(placement.adapt(content.statistics, partitions=1), content, settings.id_bits)


def _make(kind: type[DigestNode], start: Start[IntervalViews, DigestSettings]) -> DigestNode:
    return kind(start.id, start.random, start.ground, start.settings)


OVERLAY = Overlay(
    DigestNode,
    _make,
    _ground,
    seat_members,
    MESSAGES,
    DigestSettings(ScribeSettings(PastrySettings(bits=ADDRESS_BITS))),
    simulated=DigestSettings(
        ScribeSettings(PastrySettings(bits=32, leaves=8)),
        adapt=AdaptSettings(  # Views change again and again
            adapt_ms=2_000, check_ms=1_000, settle_ms=3_000, overlap_ms=8_000, sample_min=4, gain=0.0
        ),
    ),
)
