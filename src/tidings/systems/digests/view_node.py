"""A node whose View changes while it runs, without an event being lost.

The node closest to the hash of the domain's name is the *root* of its Views. Nodes report values of the events that
they publish to it, and it proposes a View with other intervals when those suit the values better. Every change is made
in the same order, node by node:

    learn      register subscriptions under the new View as well, and tell the neighbours
    settle     later, when everybody has heard of it and registered: route events by it
    drop       later, when nobody routes by the View before: leave the groups of that

A newcomer is handed the Views that are in use, with their ages, by a node that is there. A node that missed the news is
told by the root, which all ask now and then. Of two Views with one epoch, that of the higher id counts.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from random import Random
from typing import ClassVar

from tidings.systems.digests.interval_views import AdaptSettings, FixedViews
from tidings.systems.digests.messages import (
    AskViews,
    IntervalView,
    KnownView,
    ValueReport,
    ValueSample,
    ViewCheck,
    ViewHandout,
    ViewNews,
)
from tidings.systems.protocols.bootstrap import BootstrappedNode
from tidings.systems.protocols.effects import MAX_AHEAD_MS, Effects, Event, Handlers, Id, Message, Send, SetTimer, Tag
from tidings.systems.protocols.message_codec import MessageError
from tidings.systems.protocols.pastry import PastryRoute
from tidings.systems.protocols.ring_ids import hashed
from tidings.systems.protocols.scribe import ScribeSettings

CHECK, ADAPT = "check", "adapt"
LONG_AGO_MS = -(1 << 30)


class ViewNode(BootstrappedNode):
    def __init__(
        self, id: Id, random: Random, views: FixedViews, settings: ScribeSettings, adapt: AdaptSettings
    ) -> None:
        super().__init__(id, random, settings)
        self.views = views
        self.adapt = adapt
        self.known: dict[IntervalView, int] = {views.first: LONG_AGO_MS}  # since when, the oldest first
        self._root_key = hashed(f"views of {views.name}", settings.pastry.bits)
        self._values: deque[tuple[int | None, ...]] = deque(maxlen=adapt.sample)  # of the latest events
        self._unreported = 0  # events
        self._reports: dict[Id, tuple[int, ValueReport]] = {}  # at the root: when which came

    @property
    def view(self) -> IntervalView:
        """The newest View."""
        return next(reversed(self.known))

    def routing(self, now_ms: int) -> IntervalView:
        """Returns the View that events are routed by: the newest that everybody has had time to register under."""
        first, *others = self.known
        settled = [view for view in others if self.known[view] + self.adapt.settle_ms <= now_ms]
        return settled[-1] if settled else first

    def is_changing(self, now_ms: int) -> bool:
        """Returns whether the newest View is so new that registering may go on."""
        return self.known[self.view] + self.adapt.settle_ms > now_ms

    # Handing out

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        timers: Effects = [SetTimer(self.adapt.check_ms, CHECK)]
        if self.adapt.adapt_ms:
            timers.append(SetTimer(self.adapt.adapt_ms, ADAPT))
        return [*super().start(contact, now_ms), *timers]

    def question(self) -> Message:
        return AskViews()

    def _on_ask_views(self, sender: Id, message: AskViews, now_ms: int) -> Effects:
        if not self._informed:
            return []
        known = tuple(KnownView(view, now_ms - since) for view, since in self.known.items())
        return [Send(sender, ViewHandout(known))]

    def _on_handout(self, sender: Id, message: ViewHandout, now_ms: int) -> Effects:
        if self._informed:
            return self._take(message.known[-1].view, now_ms)
        self.known = {view: now_ms - ms_ago for view, ms_ago in message.known}
        return [*self.view_changed(now_ms), *self.inform()]

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        match part:
            case IntervalView(epoch) if epoch > now_ms + MAX_AHEAD_MS:
                raise MessageError("message: IntervalView is of a time to come")
            case IntervalView() if not self.views.is_possible(part):
                raise MessageError("message: IntervalView has no intervals of this domain's indices")
            case ViewHandout(known) if not _ascending([one.view.age for one in known]):
                raise MessageError("message: ViewHandout has the Views in use, the oldest first")

    # Changing

    def _on_news(self, sender: Id, message: ViewNews, now_ms: int) -> Effects:
        return self._take(message.view, now_ms) if self._informed else []

    def _take(self, view: IntervalView, now_ms: int) -> Effects:
        """Registers under a View that is newer than all that are known, and tells the neighbours."""
        if view.age <= self.view.age:
            return []
        self.known[view] = now_ms
        return [*self.view_changed(now_ms), *(Send(id, ViewNews(view)) for id in sorted(self._heard))]

    def _drop_old(self, now_ms: int) -> Effects:
        done = [view for view, since in self.known.items() if since + self.adapt.overlap_ms <= now_ms]
        old = [view for view in self.known if done and view.age < done[-1].age]
        for view in old:
            del self.known[view]
        return self.view_changed(now_ms) if old else []

    def view_changed(self, now_ms: int) -> Effects:
        """There is another View, or one less: subscriptions are registered under those that are known."""
        return []

    def arrived(self, message: PastryRoute, now_ms: int) -> Effects:
        match message.payload:
            case ViewCheck(epoch, proposer):
                if not self._informed or (epoch, proposer) == self.view.age:
                    return []
                behind = (epoch, proposer) < self.view.age
                return [Send(message.origin, ViewNews(self.view) if behind else AskViews())]
            case ValueReport() as report:
                self._reports[message.origin] = (now_ms, report)
                return []
        return super().arrived(message, now_ms)

    # Adapting

    def sample(self, event: Event) -> None:
        """Takes an event that is published here into the sample."""
        if self.adapt.adapt_ms:
            self._values.append(self.views.sampled(event))
            self._unreported += 1

    def _report(self, now_ms: int) -> Effects:
        if not self._unreported or not self.is_member:
            return []
        names = [one.attribute for one in self.views.first.divisions]
        columns = zip(*self._values, strict=True)
        samples = tuple(
            ValueSample(name, tuple(sorted(place for place in places if place is not None)))
            for name, places in zip(names, columns, strict=True)
        )
        events, self._unreported = self._unreported, 0
        return self.route(self._root_key, ValueReport(events, samples), now_ms) if samples else []

    def _propose(self, now_ms: int) -> Effects:
        """The root proposes a View, if the one that all have is the only one, and another is better."""
        oldest = now_ms - self.adapt.window_ms
        self._reports = {node: (at, report) for node, (at, report) in self._reports.items() if at >= oldest}
        is_root = self._informed and self.is_member and self.next_hop(self._root_key) is None
        if not is_root or len(self.known) > 1:
            return []
        made = self.views.adapted(self.view, [report for _, report in self._reports.values()], self.adapt)
        if made is None:
            return []
        return self._take(IntervalView(self.view.epoch + 1, self.id, made), now_ms)

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag == CHECK:
            check = ViewCheck(*self.view.age)
            asked = self.route(self._root_key, check, now_ms) if self._informed and self.is_member else self.ask_again()
            return [*self._drop_old(now_ms), *asked, SetTimer(self.adapt.check_ms, CHECK)]
        if tag == ADAPT:
            return [*self._report(now_ms), *self._propose(now_ms), SetTimer(self.adapt.adapt_ms, ADAPT)]
        return super().on_timer(tag, now_ms)

    handlers: ClassVar[Handlers] = {
        AskViews: _on_ask_views,
        ViewHandout: _on_handout,
        ViewNews: _on_news,
    }


def _ascending(ages: list[tuple[int, Id]]) -> bool:
    return bool(ages) and all(a < b for a, b in pairwise(ages))
