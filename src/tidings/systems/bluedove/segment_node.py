"""BlueDove's segments: a node owns parts of each dimension, and holds the subscriptions that overlap them.


Segments change hands in one order: the copies are made, then the table switches, then the old owner trims. While
copies are under way the old owner takes nothing new for the part in question (dispatchers repeat it), and after the
switch it sends events on, so that every event finds all that it satisfies. A matcher that has a copy from another
notifies its dispatcher, which may have given it up meanwhile. Of a matcher that is convicted the neighbour takes the
segments, asks everybody for the subscriptions that belong there, and matches nothing in them before all have answered.
So does a node that crashed, and is back before anybody has noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import ClassVar, NamedTuple

from tidings.systems.bluedove.holdings import BUCKETS, CopySets
from tidings.systems.bluedove.messages import (
    ClaimedCopies,
    CopiesLacking,
    CopiesTaken,
    Copy,
    CopyPlaced,
    CopyRemoved,
    HandedOver,
    Handover,
    Holdings,
    HoldingsDiffer,
    LoadReport,
    PlaceCopy,
    Rebuild,
    Rebuilt,
    RemoveCopy,
    Split,
    TableNews,
)
from tidings.systems.bluedove.segment_table import END, Dimensions, Edge, Segment, SegmentTable, spans_touch
from tidings.systems.protocols.effects import MAX_AHEAD_MS, Effects, Event, Handlers, Id, Message, Send, SetTimer, Tag
from tidings.systems.protocols.gossip import Ack, GossipNode, GossipSettings
from tidings.systems.protocols.message_codec import MessageError

REPORT, TRIM = "report", "trim"


@dataclass(frozen=True)
class ServiceTime:
    """How long it takes to match an event with so many subscriptions: a + b·|S^i|."""

    fixed_ms: float = 0.0
    each_ms: float = 0.0

    def __call__(self, subscriptions: int) -> float:
        return self.fixed_ms + self.each_ms * subscriptions


class MatcherSettings(NamedTuple):
    gossip: GossipSettings = GossipSettings()
    service_ms: Callable[[int], float] = ServiceTime()
    clock: Callable[[], float] | None = None  # of a process, in seconds: it measures what matching takes besides
    report_ms: int = 1_000
    expire_ms: int = 30_000  # copies that no dispatcher claims, or of one that is silent
    unheard_ms: int = 20_000  # after which a node that owns a segment, and that gossip does not know, is taken for none
    handover_ms: int = 3_000  # after which a split that was not finished is given up


class _Giving(NamedTuple):
    newcomer: Id
    until_ms: int


class _Recovery:
    """A part that was taken over, until everybody has said what belongs there."""

    __slots__ = ("high", "waiting")

    def __init__(self, high: int, waiting: set[Id]) -> None:
        self.high = high
        self.waiting = waiting


class SegmentNode(GossipNode):
    """A node that owns segments, and holds the subscriptions that overlap them."""

    def __init__(self, id: Id, random: Random, dimensions: Dimensions, settings: MatcherSettings, about: str) -> None:
        super().__init__(id, random, settings.gossip, about)
        self.dimensions = dimensions
        self.matching = settings
        self.table = SegmentTable(dimensions.count)
        self.copies = CopySets(dimensions.count, settings.expire_ms)
        self.sets = self.copies.sets
        self._giving: dict[tuple[int, int], _Giving] = {}
        self._unheard: dict[Id, int] = {}  # owners of segments that are no members, since when
        self._recoveries: dict[tuple[int, int], _Recovery] = {}
        self._complete: set[tuple[int, int]] = set()  # parts of which it has had everything, since it started

    def matcher_timers(self) -> Effects:
        return [SetTimer(self.matching.report_ms, REPORT), SetTimer(self.matching.expire_ms // 3, TRIM)]

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        if getattr(part, "dimension", 0) >= self.dimensions.count:
            raise MessageError(f"message: {type(part).__name__} names dimension {part.dimension}, which there is not")
        match part:
            case Event():
                self.dimensions.content.record(part)
            case Copy(text=text):
                self.dimensions.spans(text)
            case LoadReport(figures) if len(figures) != self.dimensions.count:
                raise MessageError("message: LoadReport has figures for each dimension")
            case Ack(table=table) if not all(isinstance(edge, Edge) for edge in table or ()):
                raise MessageError("message: Ack.table is of edges")
            case Rebuild(low=low, high=high) if low >= high:
                raise MessageError("message: Rebuild asks for no part of a dimension")
            case HoldingsDiffer(buckets) if len(buckets) != BUCKETS:
                raise MessageError(f"message: HoldingsDiffer has {BUCKETS} buckets")
            case ClaimedCopies(copies=copies) | CopiesLacking(copies=copies) if any(
                dimension >= self.dimensions.count for dimension, _, _ in copies
            ):
                raise MessageError(f"message: {type(part).__name__} names a dimension which there is not")
            case Edge(version=version) if version > now_ms + MAX_AHEAD_MS:
                raise MessageError("message: Edge is of a time to come")

    # Subscriptions

    def _on_place(self, sender: Id, message: PlaceCopy, now_ms: int) -> Effects:
        dimension, copy, table = message
        spans = self.dimensions.spans(copy.text)[dimension]
        for (d, low), _ in self._giving.items():
            if d == dimension and spans_touch(spans, low, self._end(dimension, low)):
                return []  # copies are under way: the dispatcher asks again
        self.copies.hold(dimension, copy, now_ms, claimed=True)
        edges = self.table.along(dimension) if table != self.table.digest() else ()
        return self._answer(sender, CopyPlaced(dimension, copy.subscription, copy.version, edges), now_ms)

    def _on_holdings(self, sender: Id, message: Holdings, now_ms: int) -> Effects:
        if self.copies.agrees(sender, message.digest, now_ms):
            return []
        return self._answer(sender, HoldingsDiffer(self.copies.buckets(sender)), now_ms)

    def _on_claimed(self, sender: Id, message: ClaimedCopies, now_ms: int) -> Effects:
        lacking = self.copies.settle(sender, message.buckets, message.copies, now_ms)
        return self._answer(sender, CopiesLacking(lacking), now_ms) if lacking else []

    def _take(self, dimension: int, copies: tuple[Copy, ...], now_ms: int) -> Effects:
        """Hold what another matcher had, and tell the dispatchers: they know then whom to ask to remove it."""
        taken: dict[Id, list[tuple[str, int]]] = {}
        for copy in copies:
            if self.copies.hold(dimension, copy, now_ms, claimed=False):
                taken.setdefault(copy.dispatcher, []).append((copy.subscription, copy.version))
        effects: Effects = []
        for dispatcher, held in taken.items():
            effects += self._answer(dispatcher, CopiesTaken(tuple(held)), now_ms)
        return effects

    def _on_remove(self, sender: Id, message: RemoveCopy, now_ms: int) -> Effects:
        key = (message.subscription, sender)
        for dimension, held in enumerate(self.sets):
            if key in held and held[key].version <= message.version:
                self.copies.drop(dimension, key)
        return self._answer(sender, CopyRemoved(*message), now_ms)

    def _end(self, dimension: int, low: int) -> int:
        segment = self.table.at(dimension, low)
        return END if segment is None else segment.high

    def _answer(self, to: Id, message: Message, now_ms: int) -> Effects:
        return self.on_message(self.id, message, now_ms) if to == self.id else [Send(to, message)]

    # Splits

    def _on_split(self, sender: Id, message: Split, now_ms: int) -> Effects:
        dimension, newcomer = message
        mine = [s for s in self.table.segments(dimension) if s.owner == self.id and s.ready]
        giving = [d for d, _ in self._giving if d == dimension]
        if not mine or giving or newcomer == self.id:
            return []
        largest_first = sorted(mine, key=lambda s: (-len(self._held(dimension, s.low, s.high)), -s.low))
        cuts = ((self._cut(dimension, segment), segment) for segment in largest_first)
        cut, segment = next(((cut, segment) for cut, segment in cuts if cut is not None), (None, mine[0]))
        if cut is None:
            return []
        copies = self._held(dimension, cut, segment.high)
        self._giving[dimension, cut] = _Giving(newcomer, now_ms + self.matching.handover_ms)
        return [Send(newcomer, Handover(dimension, cut, copies, None))]

    def _held(self, dimension: int, low: int, high: int) -> tuple[Copy, ...]:
        spans = self.dimensions.spans
        held = self.sets[dimension].values()
        return tuple(copy for copy in held if spans_touch(spans(copy.text)[dimension], low, high))

    def _cut(self, dimension: int, segment: Segment) -> int | None:
        """The median of the places at which subscriptions begin and end in a segment (section IV-E)."""
        places = sorted(
            place
            for copy in self._held(dimension, segment.low, segment.high)
            for place in self.dimensions.bounds(copy.text, dimension)
            if segment.low < place < segment.high
        )
        return places[len(places) // 2] if places else self.dimensions.middle(segment)

    def _on_handover(self, sender: Id, message: Handover, now_ms: int) -> Effects:
        dimension, low, copies, edge = message
        if not self.is_member:
            return []  # what is left to this node it asks for when it has joined
        effects = self._take(dimension, copies, now_ms)
        self._complete.add((dimension, low))
        if edge is None:
            return [*effects, Send(sender, HandedOver(dimension, low))]
        # The giver has left: what it gave is complete, and its edge says that it is ours, or may be merged.
        self._recoveries.pop((dimension, low), None)
        mine = edge._replace(version=edge.version + 1, owner=self.id, ready=True)
        return [*effects, *self._announce((mine,), now_ms)]

    def _on_handed_over(self, sender: Id, message: HandedOver, now_ms: int) -> Effects:
        giving = self._giving.pop((message.dimension, message.low), None)
        if giving is None or giving.newcomer != sender:
            return []
        segment = self.table.at(message.dimension, message.low)
        if segment is None or segment.owner != self.id:
            return []
        return self._switch(message.dimension, message.low, sender, now_ms)

    def _switch(self, dimension: int, low: int, owner: Id, now_ms: int) -> Effects:
        known = self.table.edges.get((dimension, low))
        version = 1 if known is None else known.version + 1
        effects = self._announce((Edge(dimension, low, version, owner, True, False),), now_ms)
        self._trim_set(dimension)
        return effects

    def _announce(self, edges: tuple[Edge, ...], now_ms: int) -> Effects:
        """The table has changed: everybody is notified, and gossip brings it to those who were not reached."""
        self.table.merge(edges)
        news: Effects = [Send(id, TableNews(edges)) for id in self.others()]
        return [*news, *self.table_changed(now_ms)]

    def _on_table_news(self, sender: Id, message: TableNews, now_ms: int) -> Effects:
        return self.merge_part(message.edges, now_ms)

    def _trim_set(self, dimension: int) -> None:
        """Drop what no segment of one's own overlaps any more."""
        mine = [s for s in self.table.segments(dimension) if s.owner == self.id]
        giving = [(low, self._end(dimension, low)) for d, low in self._giving if d == dimension]
        kept = [(s.low, s.high) for s in mine] + giving
        for key, copy in list(self.sets[dimension].items()):
            spans = self.dimensions.spans(copy.text)[dimension]
            if not any(spans_touch(spans, low, high) for low, high in kept):
                self.copies.drop(dimension, key)

    # The shared table

    def table_digest(self) -> int:
        return self.table.digest()

    def table_state(self) -> tuple[Edge, ...]:
        return self.table.state()

    def merge_table(self, table: tuple[Edge, ...], now_ms: int) -> Effects:
        if not self.table.merge(table):
            return []
        effects = [*self._reclaim(now_ms), *self._recover_mine(now_ms)]
        return [*effects, *self.table_changed(now_ms)]

    def merge_part(self, edges: tuple[Edge, ...], now_ms: int) -> Effects:
        """Ignores a part before this node has joined, when it gets the whole table: a part alone would have gaps."""
        return self.merge_table(edges, now_ms) if self.table.edges else []

    def _reclaim(self, now_ms: int) -> Effects:
        """Parts that were this node's before it crashed are so still, but it is not ready for them any more."""
        reclaimed = tuple(
            edge._replace(version=edge.version + 1, ready=False)
            for key, edge in self.table.edges.items()
            if edge.owner == self.id and edge.ready and not edge.removed and key not in self._complete
        )
        return self._announce(reclaimed, now_ms) if reclaimed else []

    def table_changed(self, now_ms: int) -> Effects:
        """The segments are others now."""
        return []

    # Fail-over

    def parted(self, id: Id, now_ms: int) -> Effects:
        """Take over the segments that fall to this node: those that follow one of its own."""
        taken = []
        for dimension in range(self.dimensions.count):
            segments = self.table.segments(dimension)
            for at, segment in enumerate(segments):
                if segment.owner == id and self._heir(segments, at, id) == self.id:
                    known = self.table.edges[dimension, segment.low]
                    taken.append(Edge(dimension, segment.low, known.version + 1, self.id, False, False))
        effects = self._announce(tuple(taken), now_ms) if taken else []
        for recovery in self._recoveries.values():
            recovery.waiting.discard(id)
        return [*effects, *self._recover_mine(now_ms), *self._finish_recoveries(now_ms)]

    def _heir(self, segments: list[Segment], at: int, lost: Id) -> Id | None:
        """The nearest live owner before the segment, else after it, else the first live matcher."""
        live = {id for id in (self.id, *self.others()) if "matcher" in self.members[id].about} - {lost}
        if not live:
            return None
        around = [*reversed(segments[:at]), *segments[at + 1 :]]
        owners = [segment.owner for segment in around if segment.owner in live]
        return owners[0] if owners else min(live)

    def _recover_mine(self, now_ms: int) -> Effects:
        """Ask everybody what belongs to segments that are ours and not ready."""
        effects: Effects = []
        for dimension in range(self.dimensions.count):
            for low, high, owner, ready in self.table.segments(dimension):
                if owner != self.id or ready or (dimension, low) in self._recoveries:
                    continue
                asked = self.others()
                self._recoveries[dimension, low] = _Recovery(high, set(asked))
                effects += [Send(id, Rebuild(dimension, low, high, self.table.along(dimension))) for id in asked]
                known = self._known(dimension, low, high)
                effects += self._on_rebuilt(self.id, Rebuilt(dimension, low, known, ()), now_ms)
        return effects

    def _known(self, dimension: int, low: int, high: int) -> tuple[Copy, ...]:
        """All that this node holds, along any dimension, and that overlaps a part of one."""
        spans = self.dimensions.spans
        found = {
            key: copy for held in (*self.sets, self.catalogue()) for key, copy in held.items()
            if spans_touch(spans(copy.text)[dimension], low, high)
        }  # fmt: skip
        return tuple(found.values())

    def catalogue(self) -> dict[tuple[str, Id], Copy]:
        """The subscriptions of this node's own subscribers, if it is a dispatcher too."""
        return {}

    def _on_rebuild(self, sender: Id, message: Rebuild, now_ms: int) -> Effects:
        dimension, low, high, edges = message
        effects = self.merge_part(edges, now_ms)
        rebuilt = Rebuilt(dimension, low, self._known(dimension, low, high), self.table.along(dimension))
        return [*effects, Send(sender, rebuilt)]

    def _on_rebuilt(self, sender: Id, message: Rebuilt, now_ms: int) -> Effects:
        effects = self.merge_part(message.edges, now_ms)
        recovery = self._recoveries.get((message.dimension, message.low))
        if recovery is None:
            return effects
        effects += self._take(message.dimension, message.copies, now_ms)
        recovery.waiting.discard(sender)
        return [*effects, *self._finish_recoveries(now_ms)]

    def _finish_recoveries(self, now_ms: int) -> Effects:
        finished = []
        for (dimension, low), recovery in list(self._recoveries.items()):
            edge = self.table.edges.get((dimension, low))
            if edge is None or edge.owner != self.id or edge.ready:
                del self._recoveries[dimension, low]
            elif not recovery.waiting:
                del self._recoveries[dimension, low]
                self._complete.add((dimension, low))
                finished.append(edge._replace(version=edge.version + 1, ready=True))
        return self._announce(tuple(finished), now_ms) if finished else []

    def hand_all_over(self) -> Effects:
        """Before leaving: every segment with all that belongs to it, to the neighbour."""
        effects: Effects = []
        edges = []
        for dimension in range(self.dimensions.count):
            segments = self.table.segments(dimension)
            for at, segment in enumerate(segments):
                heir = self._heir(segments, at, self.id) if segment.owner == self.id and self.others() else None
                if heir is None:
                    continue
                known = self.table.edges[dimension, segment.low]
                edge = Edge(dimension, segment.low, known.version + 1, heir, False, False)
                edges.append(edge)
                held = self._held(dimension, segment.low, segment.high)
                if segment.ready:
                    effects.append(Send(heir, Handover(dimension, segment.low, held, edge)))
        return [*effects, *(Send(id, TableNews(tuple(edges))) for id in self.others())]

    # Time

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag == REPORT:
            return [*self._ask_again(now_ms), SetTimer(self.matching.report_ms, REPORT)]
        if tag == TRIM:
            self.copies.expire(now_ms)
            return [SetTimer(self.matching.expire_ms // 3, TRIM)]
        return super().on_timer(tag, now_ms)

    def _ask_again(self, now_ms: int) -> Effects:
        effects: Effects = []
        for (dimension, low), recovery in self._recoveries.items():
            recovery.waiting &= set(self.others())
            rebuild = Rebuild(dimension, low, recovery.high, self.table.along(dimension))
            effects += [Send(id, rebuild) for id in sorted(recovery.waiting)]
        for key in [key for key, giving in self._giving.items() if giving.until_ms < now_ms]:
            del self._giving[key]
        effects += [*self._finish_recoveries(now_ms), *self._inherit_orphans(now_ms)]
        return [*effects, *self._merge_neighbours(now_ms)]

    def _merge_neighbours(self, now_ms: int) -> Effects:
        """Segments next to each other that came into one hand become one."""
        merged = []
        for dimension in range(self.dimensions.count):
            if any(d == dimension for d, _ in (*self._giving, *self._recoveries)):
                continue
            for one, other in pairwise(self.table.segments(dimension)):
                if one.owner == other.owner == self.id and one.ready and other.ready:
                    known = self.table.edges[dimension, other.low]
                    merged.append(known._replace(version=known.version + 1, removed=True))
        return self._announce(tuple(merged), now_ms) if merged else []

    def _inherit_orphans(self, now_ms: int) -> Effects:
        """Segments whose owner was lost before its edge was known here, or of which nobody has ever heard."""
        present = {self.id, *self.others()}
        owners = {edge.owner for edge in self.table.edges.values() if not edge.removed and edge.owner not in present}
        self._unheard = {id: self._unheard.get(id, now_ms) for id in owners if id not in self.members}
        effects: Effects = []
        for owner in sorted(owners):
            known = self.members.get(owner)
            unheard = known is None and now_ms - self._unheard[owner] > self.matching.unheard_ms
            if owner in self.convicts or (known is not None and known.gone) or unheard:
                effects += self.parted(owner, now_ms)
        return effects

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        if isinstance(message, Handover):
            self._giving.pop((message.dimension, message.low), None)
        return super().on_undelivered(to, message, now_ms)

    handlers: ClassVar[Handlers] = {
        PlaceCopy: _on_place,
        RemoveCopy: _on_remove,
        Holdings: _on_holdings,
        ClaimedCopies: _on_claimed,
        Split: _on_split,
        Handover: _on_handover,
        HandedOver: _on_handed_over,
        TableNews: _on_table_news,
        Rebuild: _on_rebuild,
        Rebuilt: _on_rebuilt,
    }
