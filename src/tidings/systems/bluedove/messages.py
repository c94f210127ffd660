"""What dispatchers and matchers tell each other: see `tidings.systems.bluedove.node`."""

from __future__ import annotations

from typing import NamedTuple

from tidings.systems.bluedove.segment_table import Edge, Spot
from tidings.systems.protocols.effects import Event, Id, Name
from tidings.systems.protocols.gossip import GOSSIP_MESSAGES


class Copy(NamedTuple):
    """A whole subscription, as a matcher holds it along one dimension."""

    subscription: Name
    dispatcher: Id  # where its subscriber is
    text: str
    version: int


class PlaceCopy(NamedTuple):
    dimension: int
    copy: Copy
    table: int  # a digest of the segments, as the dispatcher knows them


class CopyPlaced(NamedTuple):
    dimension: int
    subscription: Name
    version: int
    edges: tuple[Edge, ...]  # of the dimension, as the matcher knows it; none if the dispatcher knows the same


class CopiesTaken(NamedTuple):
    """A matcher holds these now (subscription, version), and has them from another matcher."""

    copies: tuple[tuple[Name, int], ...]


class RemoveCopy(NamedTuple):
    """The subscription is given up, as it was in this version and before: along every dimension."""

    subscription: Name
    version: int


class CopyRemoved(NamedTuple):
    subscription: Name
    version: int


class Holdings(NamedTuple):
    """A digest of the copies that the matcher has confirmed to the dispatcher; None while some are under way."""

    digest: int | None


class HoldingsDiffer(NamedTuple):
    """The matcher holds something else: its own digest, in buckets."""

    buckets: tuple[int, ...]


class ClaimedCopies(NamedTuple):
    """All copies (dimension, subscription, version) that the matcher should hold, of some buckets."""

    buckets: tuple[int, ...]
    copies: tuple[tuple[int, Name, int], ...]


class CopiesLacking(NamedTuple):
    """Of those, the ones that it does not."""

    copies: tuple[tuple[int, Name, int], ...]


class Match(NamedTuple):
    """Match the event against the set of one dimension."""

    event: Event
    dimension: int
    dispatcher: Id


class MatchRefused(NamedTuple):
    """This matcher does not hold, or not yet, what the event may satisfy."""

    event: Name
    dimension: int
    edges: tuple[Edge, ...]


class MatchDone(NamedTuple):
    """The event is matched, and every subscriber it satisfies has been told."""

    event: Name


class MatchedEvent(NamedTuple):
    subscription: Name
    event: Event


class Noted(NamedTuple):
    subscription: Name
    event: Name


RATE_MAX = 1e6  # events a second that a matcher says that it can match, at most


class DimensionLoad(NamedTuple):
    """A matcher's load along one dimension."""

    subscriptions: int
    queued: int  # q, events
    arrivals: float  # λ, events a second
    rate: float  # μ, events a second that it could match, if it matched nothing else


class LoadReport(NamedTuple):
    """A matcher's load along each dimension."""

    dimensions: tuple[DimensionLoad, ...]


class Admit(NamedTuple):
    """A matcher without segments along some dimensions asks a dispatcher for them, and how often it has before."""

    attempt: int
    dimensions: tuple[int, ...]


class Split(NamedTuple):
    """Give the newcomer a part of a segment along this dimension."""

    dimension: int
    newcomer: Id


class Handover(NamedTuple):
    """What belongs to a part of a dimension, for its next owner."""

    dimension: int
    low: Spot
    copies: tuple[Copy, ...]
    edge: Edge | None  # the part's edge, where the giver does not wait to switch: it is leaving


class HandedOver(NamedTuple):
    dimension: int
    low: Spot


class TableNews(NamedTuple):
    edges: tuple[Edge, ...]


class Rebuild(NamedTuple):
    """Whose subscriptions overlap a part of a dimension, whose owner is gone?"""

    dimension: int
    low: Spot
    high: Spot
    edges: tuple[Edge, ...]  # of the dimension, as who asks knows it


class Rebuilt(NamedTuple):
    dimension: int
    low: Spot
    copies: tuple[Copy, ...]
    edges: tuple[Edge, ...]  # of the dimension: perhaps the part is another's by now


MESSAGES: tuple[type, ...] = (
    *GOSSIP_MESSAGES, Edge, Copy, PlaceCopy, CopyPlaced, CopiesTaken, RemoveCopy, CopyRemoved, Holdings, HoldingsDiffer,
    ClaimedCopies, CopiesLacking, Match, MatchRefused, MatchDone, MatchedEvent, Noted, DimensionLoad, LoadReport, Admit,
    Split, Handover, HandedOver, TableNews, Rebuild, Rebuilt,
)  # fmt: skip
