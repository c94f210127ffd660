"""Clusters of subscriptions as multicast groups (Casalicchio et al.), on Scribe.

Every node knows the clusters, in an R-tree, so that it can place subscriptions (MGI) and route events (MGM) by itself:
a subscription is registered in every cluster that it meets, an event is multicast in the smallest group of those that
contain it. That one group holds all whom the event concerns, if every subscription lies within the clusters and is
registered in all that it meets, also those made later. So a new cluster, or a new division into clusters (MGC), is a
change of view: nodes tell each other (`cb_notify`), nodes with a subscription that meets it register, and publishers
use it only when there has been time for that; an old division is kept until everybody has changed over.

The paper's primitives: `cb_join` is `start`, where a bootstrap node hands out the clusters; `cb_subscribe` and
`cb_publish` are `subscribe` and `publish`; `cb_register` and `cb_cancel` join and leave the groups of clusters that a
node's subscriptions meet, or meet no more (`_register`).

MGC runs by itself: subscriptions, and the events that publishers dropped in the last window, are gossiped as summaries.
Now and then a node counts the false negatives, and tries one K after the other until the cost test accepts the
clusters; those it proposes. Of two proposals the newer counts, or the one of the higher id. With a coordinator only
that node does so, as in the paper; without one, any.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import starmap
from random import Random
from typing import ClassVar

from tidings.errors import SubscriptionError
from tidings.systems.clusters import placement
from tidings.systems.clusters.messages import (
    MESSAGES,
    AskDivision,
    ClusterNews,
    Handout,
    KnownDivision,
    ShareDigest,
    Summary,
)
from tidings.systems.clusters.space import CellBox, ClusterDivision, Drop, Preference, Space
from tidings.systems.clusters.system_state import ClusterSettings, SystemState
from tidings.systems.overlay import Overlay, Start, seat_members
from tidings.systems.protocols.bootstrap import BootstrappedNode
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import (
    MAX_AHEAD_MS,
    Active,
    Deliver,
    Dropped,
    Effects,
    Event,
    Handlers,
    Id,
    Message,
    Send,
    SetTimer,
    Tag,
)
from tidings.systems.protocols.message_codec import MessageError
from tidings.systems.protocols.pastry import PastrySettings
from tidings.systems.protocols.ring_ids import ADDRESS_BITS, hashed
from tidings.systems.protocols.scribe import ScribeSettings

SHARE, MGC, MATURE = "share", "mgc", "mature"
LONG_AGO_MS = -(1 << 30)
DROPS_MAX = 1_024  # events that a summary has: the latest


class _Own:
    __slots__ = ("active", "boxes", "text")

    def __init__(self, text: str, boxes: tuple[CellBox, ...]) -> None:
        self.text = text
        self.boxes = boxes
        self.active = False


class ClusterNode(BootstrappedNode):
    def __init__(self, id: Id, random: Random, space: Space, settings: ClusterSettings = ClusterSettings()) -> None:  # noqa: B008
        super().__init__(id, random, settings.scribe)
        self.space = space
        self.options = settings
        self.division = ClusterDivision(0, 0, ())
        self._old: tuple[ClusterDivision, int] | None = None  # and until when it is kept
        self._since: dict[tuple[int, Id, CellBox], int] = {}  # when a cluster was learnt of
        self._switched_ms = LONG_AGO_MS  # when the division was learnt of
        self.own: dict[str, _Own] = {}
        self._registered: dict[Id, None] = {}
        self.state = SystemState(space)
        self.drops: deque[tuple[int, CellBox]] = deque(maxlen=DROPS_MAX)  # when which event was dropped
        self._delivered: dict[tuple[str, str], int] = {}

    # cb_join: the overlay is joined, and the bootstrap node hands out the clusters

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        timers: Effects = [SetTimer(self.options.share_ms, SHARE), SetTimer(self.options.mgc_ms, MGC)]
        return [*super().start(contact, now_ms), *timers]

    def question(self) -> Message:
        return AskDivision()

    def _on_ask_division(self, sender: Id, message: AskDivision, now_ms: int) -> Effects:
        if not self._informed:
            return []
        old = self._known(self._old[0], now_ms) if self._old is not None else None
        known, summaries = self._known(self.division, now_ms), tuple(self.state.summaries.values())
        return [Send(sender, Handout(known, old, now_ms - self._switched_ms, summaries))]

    def _known(self, division: ClusterDivision, now_ms: int) -> KnownDivision:
        since = [self._since.get((*division.age, cluster), LONG_AGO_MS) for cluster in division.clusters]
        return KnownDivision(division, tuple(now_ms - at for at in since))

    def _on_handout(self, sender: Id, message: Handout, now_ms: int) -> Effects:
        """A newcomer changes over from one division to the next when the node does that it asked."""
        if self._informed:
            return []
        self.division = message.known.division
        self._switched_ms = now_ms - message.switched_ms_ago
        if message.old is not None:
            self._old = (message.old.division, self._switched_ms + self.options.overlap_ms)
        for division, ages_ms in (message.known, *([message.old] if message.old is not None else [])):
            for cluster, age_ms in zip(division.clusters, ages_ms, strict=True):
                self._since[*division.age, cluster] = now_ms - age_ms
        self._hear_of(message.summaries, now_ms)
        return [SetTimer(self.options.settle_ms + 1, MATURE), *self._register(now_ms), *self.inform()]

    def _news(self, *, answer: bool) -> ClusterNews:
        return ClusterNews(self.division, tuple(self.state.summaries.values()), answer)

    # cb_subscribe, cb_register, cb_cancel: MGI

    def subscribe(self, subscription: str, text: str, now_ms: int) -> Effects:
        """`cb_subscribe`: registers in every cluster that is met, and makes one where the clusters do not cover it."""
        own = _Own(text, self.space.boxes(text))  # a filter that cannot be read is refused before anything changes
        effects = self.unsubscribe(subscription, now_ms) if subscription in self.own else []
        self.own[subscription] = own
        made = [box for box in own.boxes if not self._is_covered(box)]
        if made:
            effects += self._take(self.division.with_clusters(made), now_ms)
            effects += self.cb_notify()
        self._summarise(now_ms)
        effects += self._register(now_ms)
        return [*effects, *self._settle(now_ms)]

    def _is_covered(self, box: CellBox) -> bool:
        clusters = self.division.clusters
        if self.options.mode == "strict":
            return bool(self.space.holding(clusters, box))
        return bool(self.space.meeting(clusters, [box]))

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects:
        if self.own.pop(subscription, None) is None:
            raise SubscriptionError(f"node {self.id}: there is no subscription {subscription!r} here")
        self._summarise(now_ms)
        return self._register(now_ms)

    def _wanted(self) -> dict[Id, None]:
        """The groups of all clusters that some subscription meets, in the division and in the one before it."""
        divisions = [self.division, *([self._old[0]] if self._old is not None else [])]
        boxes = [box for own in self.own.values() for box in own.boxes]
        return {
            self.space.group(division, cluster, self.pastry.bits): None
            for division in divisions
            for cluster in self.space.meeting(division.clusters, boxes)
        }

    def _register(self, now_ms: int) -> Effects:
        """`cb_register` and `cb_cancel`: only the difference."""
        wanted = self._wanted()
        effects: Effects = []
        for group in wanted:
            if group not in self._registered:
                effects += self.join(group, now_ms)
        for group in self._registered:
            if group not in wanted:
                effects += self.leave_group(group, now_ms)
        self._registered = wanted
        return effects

    def rooted(self, group: Id, now_ms: int) -> Effects:
        return self._settle(now_ms)

    def _settle(self, now_ms: int) -> Effects:
        """A subscription is in place when its groups are, and everybody may route to them."""
        effects: Effects = []
        for name, own in self.own.items():
            if own.active or not all(self._is_settled(box, now_ms) for box in own.boxes):
                continue
            own.active = True
            effects.append(Active(name))
        return effects

    def _is_settled(self, box: CellBox, now_ms: int) -> bool:
        """The last to hear of a division switches to it later than this node, by as long as news take."""
        options, bits = self.options, self.pastry.bits
        met = self.space.meeting(self.division.clusters, [box])
        known_ms = now_ms if options.mode == "strict" else now_ms - options.share_ms  # by all publishers
        return (
            now_ms >= self._switched_ms + options.settle_ms + options.share_ms
            and all(self._is_mature(self.division, cluster, known_ms) for cluster in met)
            and all(self.is_rooted(self.space.group(self.division, cluster, bits)) for cluster in met)
        )

    def _is_mature(self, division: ClusterDivision, box: CellBox, now_ms: int) -> bool:
        return self._since.get((*division.age, box), LONG_AGO_MS) + self.options.settle_ms <= now_ms

    def is_changing(self, now_ms: int) -> bool:
        """Whether a division, or a cluster of it, is so new that registering may go on."""
        newest = max((since for (*age, _), since in self._since.items() if tuple(age) == self.division.age), default=0)
        return max(newest, self._switched_ms) + self.options.settle_ms > now_ms

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        match part:
            case Event():
                self.space.content.record(part)
            case CellBox() if not self.space.has(part):
                raise MessageError("message: CellBox is no box of this domain's space")
            case KnownDivision(division, ages_ms) if len(division.clusters) != len(ages_ms):
                raise MessageError("message: KnownDivision has an age for each cluster")
            case Summary(_, version) | ClusterDivision(version) if version > now_ms + MAX_AHEAD_MS:
                raise MessageError(f"message: {type(part).__name__} is of a time to come")

    # cb_publish: MGM

    def publish(self, event: Event, now_ms: int) -> Effects:
        point = self.space.point(event)
        division, mature = self.routing(now_ms)
        containing = self.space.holding(division.clusters, point)
        chosen = [cluster for cluster in containing if cluster in mature]
        if not chosen and self.options.mode == "strict":
            chosen = containing  # who has subscribed there has registered
        if not chosen:
            return self._drop(event, point, now_ms)
        smallest = min(chosen, key=lambda cluster: (self.state.group_size(cluster), cluster.volume, cluster))
        return self.multicast(self.space.group(division, smallest, self.pastry.bits), event, now_ms)

    def routing(self, now_ms: int) -> tuple[ClusterDivision, tuple[CellBox, ...]]:
        """The division that events are routed by, and those of its clusters that all have had time to register in."""
        division = self.division
        if self._old is not None and now_ms < self._switched_ms + self.options.settle_ms:
            division = self._old[0]
        return division, tuple(cluster for cluster in division.clusters if self._is_mature(division, cluster, now_ms))

    def _drop(self, event: Event, point: CellBox, now_ms: int) -> Effects:
        """No cluster contains an event: it is reported if a subscription does."""
        if self.state.is_wanted(point):
            self.drops.append((now_ms, point))
            self._summarise(now_ms)
        return [Dropped(event.id)] if self.options.mode == "paper" else []

    def received(self, group: Id, event: Event, now_ms: int) -> Effects:
        record, content = self.space.content.record(event), self.space.content
        effects: Effects = []
        for name, own in self.own.items():
            if (name, event.id) not in self._delivered and content.interest(own.text).holds(record):
                self._delivered[name, event.id] = now_ms
                effects.append(Deliver(name, event))
        return effects

    # cb_notify: news of clusters

    def cb_notify(self) -> Effects:
        """Tell everybody whom one knows; they tell those whom they know, if it is new to them."""
        news = self._news(answer=False)
        return [Send(id, news) for id in sorted(self._heard)]

    def _on_news(self, sender: Id, message: ClusterNews, now_ms: int) -> Effects:
        if not self._informed:  # only a bootstrap node says what may be used already
            return []
        effects: Effects = []
        self._hear_of(message.summaries, now_ms)
        merged = message.division
        if merged.age == self.division.age:
            merged = self.division.with_clusters(merged.clusters)
        if merged.age >= self.division.age and merged != self.division:
            effects += self._take(merged, now_ms)
            effects += self._cover_own(now_ms)
            effects += self.cb_notify()
        if message.answer and (message.division != self.division or not self.state.is_alike(message.summaries)):
            effects.append(Send(sender, self._news(answer=False)))
        return effects

    def _take(self, division: ClusterDivision, now_ms: int) -> Effects:
        """Change over to a division: its clusters count from now on, and the one in use is kept for a while.

        That need not be the one before: of two proposals at once, one was never in use.
        """
        if division.age != self.division.age:
            used, _ = self.routing(now_ms)
            if used.clusters:
                self._old = (used, now_ms + self.options.overlap_ms)
            self._switched_ms = now_ms
        for cluster in division.clusters:
            self._since.setdefault((*division.age, cluster), now_ms)
        before, self.division = self.division, division
        timer = SetTimer(self.options.settle_ms + 1, MATURE)
        return [timer, *self._register_in(before, now_ms)]

    def _register_in(self, before: ClusterDivision, now_ms: int) -> Effects:
        """Registers in what is new since the division before."""
        return self._register(now_ms)

    def _cover_own(self, now_ms: int) -> Effects:
        """A division made without knowing of a subscription here is added to."""
        lacking = [box for own in self.own.values() for box in own.boxes if not self._is_covered(box)]
        return self._take(self.division.with_clusters(lacking), now_ms) if lacking else []

    def _summarise(self, now_ms: int) -> None:
        """By the time, so that a node that crashed and is back is newer than it was."""
        known = self.state.summaries.get(self.id)
        version = now_ms if known is None else max(now_ms, known.version + 1)
        preferences = Counter(own.boxes for own in self.own.values() if own.boxes)
        drops = Counter(point for _, point in self.drops)
        self.state.take(Summary(self.id, version, *_counted(preferences, drops)))

    def _forget_drops(self, now_ms: int) -> None:
        """Those that are older than the window E."""
        before = len(self.drops)
        while self.drops and self.drops[0][0] < now_ms - self.options.window_ms:
            self.drops.popleft()
        if len(self.drops) < before:
            self._summarise(now_ms)

    def _hear_of(self, summaries: Iterable[Summary], now_ms: int) -> None:
        if self.state.hear(summaries, own=self.id):  # others took this node for gone
            self._summarise(now_ms)

    def _bury(self, dead: Id, now_ms: int) -> Effects:
        """What a node that is gone subscribed to counts no more: its neighbours find out, and say so."""
        self.state.bury(dead)
        return super()._bury(dead, now_ms)

    def _digest(self) -> int:
        return hashed(f"{self.division} {self.state.digest}", 48)

    def _on_digest(self, sender: Id, message: ShareDigest, now_ms: int) -> Effects:
        return [Send(sender, self._news(answer=True))] if message.digest != self._digest() else []

    # MGC

    def _propose(self, now_ms: int) -> Effects:
        options = self.options
        if options.coordinator not in (None, self.id) or self._old is not None or not self.is_member:
            return []
        made = self.state.reorganised(self.division, options)
        if made is None:
            return []
        proposal = ClusterDivision(self.division.generation + 1, self.id, made)
        return [*self._take(proposal, now_ms), *self._cover_own(now_ms), *self.cb_notify()]

    # Time

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag == SHARE:
            return [*self._share(now_ms), SetTimer(self.options.share_ms, SHARE)]
        if tag == MGC:
            wait = self.options.mgc_ms + int(self._random.random() * self.options.mgc_ms)  # not all at once
            return [*self._propose(now_ms), SetTimer(wait, MGC)]
        if tag == MATURE:
            return self._settle(now_ms)
        return super().on_timer(tag, now_ms)

    def _share(self, now_ms: int) -> Effects:
        effects: Effects = []
        if not self._informed:
            return self.ask_again()
        if self._old is not None and self._old[1] <= now_ms:
            self._old = None
            effects += self._register(now_ms)
        known = sorted(self._heard)
        if known:
            peer = known[int(self._random.random() * len(known))]
            effects.append(Send(peer, ShareDigest(self._digest())))
        self._forget_drops(now_ms)
        horizon = now_ms - self.options.remembered_ms
        self._delivered = {key: at for key, at in self._delivered.items() if at >= horizon}
        ages = [self.division.age, *([self._old[0].age] if self._old is not None else [])]
        self._since = {key: since for key, since in self._since.items() if key[:2] in ages}
        return [*effects, *self._settle(now_ms)]

    def leave(self, now_ms: int) -> Effects:
        effects: Effects = []
        for subscription in list(self.own):
            effects += self.unsubscribe(subscription, now_ms)
        return [*effects, *self.cb_notify(), *super().leave(now_ms)]

    handlers: ClassVar[Handlers] = {
        AskDivision: _on_ask_division,
        Handout: _on_handout,
        ClusterNews: _on_news,
        ShareDigest: _on_digest,
    }


def _counted(
    preferences: Counter[tuple[CellBox, ...]], drops: Counter[CellBox]
) -> tuple[tuple[Preference, ...], tuple[Drop, ...]]:
    return tuple(starmap(Preference, preferences.items())), tuple(starmap(Drop, drops.items()))


CELLS = 16  # that an axis is cut into: by a domain's declaration, or by statistics


def _ground(content: Content, settings: ClusterSettings) -> Space:
    return Space(placement.adapt(content.statistics, partitions=1, clusters=settings.clusters, cells=CELLS), content)


def _make(kind: type[ClusterNode], start: Start[Space, ClusterSettings]) -> ClusterNode:
    return kind(start.id, start.random, start.ground, start.settings)


OVERLAY = Overlay(
    ClusterNode,
    _make,
    _ground,
    seat_members,
    MESSAGES,
    ClusterSettings(ScribeSettings(PastrySettings(bits=ADDRESS_BITS))),
    simulated=ClusterSettings(
        ScribeSettings(PastrySettings(bits=32, leaves=8)),
        clusters=3,  # so few that divisions are made again and again
        clusters_most=4,
        reorganising=0.5,
    ),
)
