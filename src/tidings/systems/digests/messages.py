"""What nodes of digests say to each other: about Views, and where home nodes match. Trees have `protocols.scribe`."""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

from tidings.systems.protocols.effects import Event, Id, Name, Within
from tidings.systems.protocols.scribe import SCRIBE_MESSAGES


class HomeStore(NamedTuple):
    group: Id
    subscription: Name
    text: str
    remove: bool


class HomeStored(NamedTuple):
    group: Id
    subscription: Name


class HomePublish(NamedTuple):
    group: Id
    event: Event


class HomeNotify(NamedTuple):
    subscription: Name
    event: Event


Place: TypeAlias = Annotated[int, Within(-(1 << 63), (1 << 63) - 1)]  # of a value on its attribute's line


class IntervalEdges(NamedTuple):
    """Where an attribute's line is cut into intervals."""

    attribute: Name
    edges: tuple[Place, ...]  # ascending


class IntervalView(NamedTuple):
    """What changes in a View: the intervals of the attributes that are in an index and divided into intervals."""

    epoch: int
    proposer: Id
    divisions: tuple[IntervalEdges, ...]

    @property
    def age(self) -> tuple[int, Id]:
        return self.epoch, self.proposer


class KnownView(NamedTuple):
    view: IntervalView
    ms_ago: int  # when the sender learnt of it


class AskViews(NamedTuple):
    """Somebody asks for the Views that are in use."""


class ViewHandout(NamedTuple):
    known: tuple[KnownView, ...]  # the oldest first


class ViewNews(NamedTuple):
    view: IntervalView


class ViewCheck(NamedTuple):
    """To the View's root: the newest View that the sender knows."""

    epoch: int
    proposer: Id


class ValueSample(NamedTuple):
    attribute: Name
    places: tuple[Place, ...]


class ValueReport(NamedTuple):
    """To the View's root: how many events the sender has published since its last report, and values of the latest."""

    events: int
    samples: tuple[ValueSample, ...]


MESSAGES: tuple[type, ...] = (
    *SCRIBE_MESSAGES, HomeStore, HomeStored, HomePublish, HomeNotify, IntervalEdges, IntervalView, KnownView, AskViews,
    ViewHandout, ViewNews, ViewCheck, ValueSample, ValueReport,
)  # fmt: skip
