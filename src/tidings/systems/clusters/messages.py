"""What nodes of clusters say to each other: see `tidings.systems.clusters.node`."""

from __future__ import annotations

from typing import NamedTuple

from tidings.systems.clusters.space import CellBox, ClusterDivision, Drop, Preference
from tidings.systems.protocols.effects import Id
from tidings.systems.protocols.scribe import SCRIBE_MESSAGES


class Summary(NamedTuple):
    """What a node publishes of itself: its subscriptions, and the events that it dropped in the last window."""

    node: Id
    version: int
    preferences: tuple[Preference, ...]
    drops: tuple[Drop, ...]


class AskDivision(NamedTuple):
    """A newcomer asks a node that is there for the clusters."""


class KnownDivision(NamedTuple):
    """A division, and for how long each of its clusters has been known."""

    division: ClusterDivision
    ages_ms: tuple[int, ...]


class Handout(NamedTuple):
    """What a bootstrap node hands out: the clusters, and the division before while it is kept."""

    known: KnownDivision
    old: KnownDivision | None
    switched_ms_ago: int
    summaries: tuple[Summary, ...]


class ClusterNews(NamedTuple):
    """`cb_notify`: the division as the sender knows it, and summaries."""

    division: ClusterDivision
    summaries: tuple[Summary, ...]
    answer: bool  # whether the sender asks for what it does not know


class ShareDigest(NamedTuple):
    digest: int


MESSAGES: tuple[type, ...] = (
    *SCRIBE_MESSAGES, CellBox, Preference, Drop, ClusterDivision, Summary, AskDivision, KnownDivision, Handout,
    ClusterNews, ShareDigest,
)  # fmt: skip
