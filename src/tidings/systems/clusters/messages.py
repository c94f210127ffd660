"""What nodes of clusters say to each other: see `tidings.systems.clusters.node`."""

from __future__ import annotations

from typing import NamedTuple

from tidings.systems.clusters.space import Cells, Cluster, Division
from tidings.systems.protocols.effects import Id
from tidings.systems.protocols.scribe import SCRIBE_MESSAGES


class Summary(NamedTuple):
    """What a node tells of itself: its subscriptions' boxes, and how many events it dropped that lay in some."""

    node: Id
    version: int
    boxes: tuple[Cells, ...]
    lost: int


class AskDivision(NamedTuple):
    """A newcomer asks a node that is there for the clusters."""


class Known(NamedTuple):
    """A division, and for how long each of its clusters has been known."""

    division: Division
    ages_ms: tuple[int, ...]


class Handout(NamedTuple):
    """What a bootstrap node hands out: the clusters, and the division before while it is kept."""

    known: Known
    old: Known | None
    switched_ms_ago: int
    summaries: tuple[Summary, ...]


class ClusterNews(NamedTuple):
    """`cb_notify`: the division as the sender knows it, and summaries."""

    division: Division
    summaries: tuple[Summary, ...]
    answer: bool  # whether the sender asks for what it does not know


class ShareDigest(NamedTuple):
    digest: int


MESSAGES: tuple[type, ...] = (
    *SCRIBE_MESSAGES, Cells, Cluster, Division, Summary, AskDivision, Known, Handout, ClusterNews, ShareDigest,
)  # fmt: skip
