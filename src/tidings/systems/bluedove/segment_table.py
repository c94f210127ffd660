"""BlueDove's segment table as nodes share it: who holds which part of each dimension's line.

An *edge* says who owns the line from a place on, up to the next edge; each dimension has one at its very
beginning. So any set of edges tiles every dimension, without a gap or an overlap. Of two edges at the same
place the newer one counts, so that tables can be merged in any order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, NamedTuple, TypeAlias

from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.model.domain import path_text
from tidings.model.event import read_events
from tidings.model.event_json import parse_events
from tidings.model.types import Path
from tidings.systems.bluedove.placement import View, adapt, spans_of, undivided
from tidings.systems.geometry.line_positions import bounds_in, event_places
from tidings.systems.protocols.content import REMEMBERED, Content
from tidings.systems.protocols.effects import Event, Id, Within
from tidings.systems.protocols.ring_ids import hashed

BEGINNING, END = -(1 << 80), 1 << 80  # before and after every place

Spot: TypeAlias = Annotated[int, Within(BEGINNING, END)]


class Edge(NamedTuple):
    dimension: int
    low: Spot
    version: int
    owner: Id
    ready: bool  # whether the owner holds all that belongs there
    removed: bool  # merged into the segment before

    @property
    def age(self) -> tuple[int, bool, Id]:
        return self.version, self.removed, self.owner


class Segment(NamedTuple):
    low: int
    high: int  # not included
    owner: Id
    ready: bool


class SegmentTable:
    """Edges, merged. `segments` gives each dimension's line as it is divided now.

    Large networks change it often and look at a part of it: so its digest and the order of its edges are kept up to
    date, and whole lines are written out when they are asked for.
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.edges: dict[tuple[int, int], Edge] = {}
        self.changes = 0
        self._digest = 0  # of all edges, in any order
        self._lows: list[list[int]] = [[] for _ in range(dimensions)]  # of edges that are not removed, ascending
        self._state: tuple[Edge, ...] | None = None
        self._segments: dict[int, list[Segment]] = {}

    def merge(self, edges: Iterable[Edge]) -> bool:
        """Take what is newer; whether anything was."""
        changed = False
        for edge in edges:
            known = self.edges.get((edge.dimension, edge.low))
            if known is edge:
                continue
            if known is None or edge.age > known.age:
                self._put(edge, known)
                changed = True
        if changed:
            self.changes += 1
            self._state = None
            self._segments = {}
        return changed

    def _put(self, edge: Edge, known: Edge | None) -> None:
        self.edges[edge.dimension, edge.low] = edge
        self._digest ^= _edge_digest(edge)
        if known is not None:
            self._digest ^= _edge_digest(known)
        lows, was_there = self._lows[edge.dimension], known is not None and not known.removed
        if was_there and edge.removed:
            del lows[bisect_left(lows, edge.low)]
        elif not was_there and not edge.removed:
            insort(lows, edge.low)

    def state(self) -> tuple[Edge, ...]:
        if self._state is None:
            self._state = tuple(sorted(self.edges.values()))
        return self._state

    def along(self, dimension: int) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.state() if edge.dimension == dimension)

    def digest(self) -> int:
        return self._digest

    def segments(self, dimension: int) -> list[Segment]:
        found = self._segments.get(dimension)
        if found is None:
            found = [self._segment(dimension, number) for number in range(len(self._lows[dimension]))]
            self._segments[dimension] = found
        return found

    def _segment(self, dimension: int, number: int) -> Segment:
        lows = self._lows[dimension]
        low, high = lows[number], lows[number + 1] if number + 1 < len(lows) else END
        edge = self.edges[dimension, low]
        return Segment(low, high, edge.owner, edge.ready)

    def at(self, dimension: int, place: int) -> Segment | None:
        lows = self._lows[dimension]
        return self._segment(dimension, max(0, bisect_right(lows, place) - 1)) if lows else None

    def overlapping(self, dimension: int, spans: Spans) -> list[Segment]:
        if spans == WHOLE:
            return self.segments(dimension)
        lows = self._lows[dimension]
        numbers: dict[int, None] = {}
        for first, last in spans:
            numbers |= dict.fromkeys(range(max(0, bisect_right(lows, first) - 1), bisect_left(lows, last)))
        return [self._segment(dimension, number) for number in sorted(numbers)]


@lru_cache(1 << 16)
def _edge_digest(edge: Edge) -> int:
    return hashed(repr(edge), 48)


Spans = tuple[tuple[int, int], ...]  # [low, high) each, ascending

WHOLE: Spans = ((BEGINNING, END),)


def spans_touch(spans: Spans, low: int, high: int) -> bool:
    return any(first < high and last > low for first, last in spans)


class Dimensions:
    """The dimensions of a View, and where one filter or event lies on them. NULL lies at the beginning."""

    def __init__(self, view: View, content: Content) -> None:
        self.view = view
        self.paths = view.paths
        self.content = content
        self.count = len(view.paths)
        self.spans = lru_cache(REMEMBERED)(self._spans)
        self.bounds = lru_cache(REMEMBERED)(self._bounds)
        self.divided = lru_cache(self._divided)
        self._filters = lru_cache(REMEMBERED)(self._compiled)
        self._places = lru_cache(REMEMBERED)(self._placed)

    def _divided(self, matchers: int) -> tuple[Edge, ...]:
        """Returns the segments of a View for so many matchers, each owned by a number."""
        names = [path_text(path) for path in self.paths]
        view = adapt(
            self.content.statistics,
            partitions=matchers,
            dimensions=names,
            segments=max(2, matchers),
            matchers=matchers,
        )
        found: list[Edge] = []
        for dimension, path in enumerate(self.paths):
            at = view.paths.index(path)
            assigned = view.assignment[view.bases[at] : view.bases[at + 1]].tolist()
            lows = (BEGINNING, *view.edges[at].tolist())
            found += [Edge(dimension, low, 0, owner, True, False) for low, owner in zip(lows, assigned, strict=True)]
        return tuple(found)

    def middle(self, segment: Segment) -> int | None:
        """Returns where a segment is cut in which no filter begins or ends; None: it is not."""
        return None

    def place(self, event: Event, dimension: int) -> int:
        """Returns where an event lies along a dimension."""
        return self._places(event.body)[dimension]

    def _placed(self, body: str) -> tuple[int, ...]:
        batch = read_events(parse_events(body), self.content.domain)
        found = [event_places(batch, path).all for path in self.paths]
        return tuple(int(places[0]) if len(places) else BEGINNING for places in found)

    def _compiled(self, text: str) -> FilterTable:
        return compile_filters([text], self.content.domain, plans=False)

    def _spans(self, text: str) -> tuple[Spans, ...]:
        """Where a filter lies along each dimension: by the law that places it on Spark as well."""
        return tuple(self._along(path, text) for path in self.paths)

    def _along(self, path: Path, text: str) -> Spans:
        spans, null = spans_of(self._filters(text), path)
        if spans is None:
            return WHOLE
        first: Spans = ((BEGINNING, BEGINNING + 1),) if null else ()
        return (*first, *((low, high + 1) for low, high in spans))

    def _bounds(self, text: str, dimension: int) -> tuple[int, ...]:
        """The places at which a filter begins or ends along a dimension."""
        filters, path = self._filters(text), self.paths[dimension]
        return tuple(bounds_in(filters, path).tolist()) if path in filters.intervals else ()


class HashedLine(Dimensions):
    """One line, along which an event lies by a hash of its id, and every filter everywhere: full replication.

    Every matcher holds all subscriptions, and an event goes to one of them, as if by chance (section IV-B).
    """

    _PLACE_BITS = 48

    def __init__(self, content: Content) -> None:
        super().__init__(undivided(((),)), content)

    def place(self, event: Event, dimension: int) -> int:
        return hashed(event.id, self._PLACE_BITS)

    def _spans(self, text: str) -> tuple[Spans, ...]:
        self.content.interest(text)  # what cannot be read is refused
        return (WHOLE,)

    def _bounds(self, text: str, dimension: int) -> tuple[int, ...]:
        return ()

    def middle(self, segment: Segment) -> int | None:
        low, high = max(segment.low, 0), min(segment.high, 1 << self._PLACE_BITS)
        return (low + high) // 2 if high - low > 1 else None

    def _divided(self, matchers: int) -> tuple[Edge, ...]:
        lows = [(number << self._PLACE_BITS) // matchers for number in range(matchers)]
        return tuple(Edge(0, low or BEGINNING, 0, owner, True, False) for owner, low in enumerate(lows))
