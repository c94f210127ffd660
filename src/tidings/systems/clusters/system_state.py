"""What nodes know of the system (Casalicchio et al., section 4.1), and the clusters that follow from it (MGC).

    I   the subscriptions of all nodes
    M   the groups: the division's clusters, and how many subscriptions meet each
    E   the events of a window, of which those count that a publisher dropped: no cluster contained them

Each node publishes its part as a summary, and gossips those of others; the summary of a node that is gone is replaced
by an empty one by the node that finds out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidings.systems.clusters.clustering import Method
from tidings.systems.clusters.messages import Summary
from tidings.systems.clusters.placement import TRIES, Mode, Prices, decreasing
from tidings.systems.clusters.space import CellBox, ClusterDivision, Preference, Space
from tidings.systems.protocols.effects import Id
from tidings.systems.protocols.ring_ids import hashed
from tidings.systems.protocols.scribe import ScribeSettings


class ClusterSettings(NamedTuple):
    scribe: ScribeSettings = ScribeSettings()
    mode: Mode = "strict"  # paper: a cluster is made only for what meets none
    settle_ms: int = 3_000  # from learning of a cluster until events are routed to it
    overlap_ms: int = 10_000  # for which an old division is kept
    share_ms: int = 1_500
    remembered_ms: int = 30_000
    coordinator: Id | None = None
    clusters: int = 4  # K, the first that is tried
    tries: int = TRIES  # values of K
    clusters_most: int = 10
    method: Method = "merged"
    inefficiency: float = 1.0  # γI, of a false negative
    reorganising: float = 1.0  # γR, of a group
    excess: float = 1.0  # ours: of a cluster beyond the most
    gain: float = 0.0  # c
    mgc_ms: int = 5_000
    window_ms: int = 30_000  # E: for how long a dropped event counts

    @property
    def id_bits(self) -> int:
        return self.scribe.pastry.bits


class SystemState:
    """The summaries that a node knows, its own among them."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.summaries: dict[Id, Summary] = {}
        self._sizes: dict[CellBox, int] = {}  # of groups, by their clusters, as far as they were asked for
        self._digest: int | None = None

    def hear(self, summaries: Iterable[Summary], *, own: Id) -> bool:
        """Takes what is newer than what it has; returns whether that is also something of this node itself."""
        disputed = False
        for summary in summaries:
            known = self.summaries.get(summary.node)
            if known is not None and known.version >= summary.version:
                continue
            self.take(summary)
            disputed |= summary.node == own
        return disputed

    def take(self, summary: Summary) -> None:
        self.summaries[summary.node] = summary
        self._sizes, self._digest = {}, None

    def bury(self, dead: Id) -> None:
        """Notes that a node is gone: its subscriptions count no more, unless it says something newer."""
        known = self.summaries.get(dead)
        if known is not None and (known.preferences or known.drops):
            self.take(Summary(dead, known.version + 1, (), ()))

    @property
    def digest(self) -> int:
        """A hash of all summaries, by which two nodes find out whether they know the same."""
        if self._digest is None:
            self._digest = hashed(repr(sorted(self.summaries.values())), 48)
        return self._digest

    def is_alike(self, summaries: Iterable[Summary]) -> bool:
        """Returns whether these are all that it has."""
        return sorted(summaries) == sorted(self.summaries.values())

    @property
    def _preferences(self) -> Iterator[Preference]:
        return (preference for summary in self.summaries.values() for preference in summary.preferences)

    def group_size(self, cluster: CellBox) -> int:
        """Returns how many subscriptions meet a cluster, of those that are known."""
        if cluster not in self._sizes:
            met = (preference.subscriptions for preference in self._preferences if preference.meets(cluster))
            self._sizes[cluster] = sum(met)
        return self._sizes[cluster]

    def is_wanted(self, point: CellBox) -> bool:
        """Returns whether an event at this point lies in a subscription that is known."""
        return any(preference.meets(point) for preference in self._preferences)

    def reorganised(self, division: ClusterDivision, options: ClusterSettings) -> tuple[CellBox, ...] | None:
        """Returns the first new clusters that the cost test accepts; None: the present ones stay.

        The paper's loop (section 4.2.3): K after K, until γI·ΔFN + K·γR < c. Clusters beyond the most count as well.
        """
        space = self._space
        known = sorted(self.summaries.values())
        preferences = [preference for summary in known for preference in summary.preferences]
        drops = [drop for summary in known for drop in summary.drops]
        lost = space.false_negatives(preferences, drops, division.clusters)
        excess = max(0, len(division.clusters) - options.clusters_most)
        if not preferences or not (lost or excess):
            return None
        prices = Prices(options.inefficiency, options.reorganising, gain=options.gain + options.excess * excess)
        boxes = [box for preference in preferences for box in preference.boxes]
        # Fewer groups than K serve events worse, which only false negatives are worth.
        for count in decreasing(options.clusters, options.tries) if lost else [options.clusters]:
            made = space.clustered(boxes, count, options.method)
            change = space.false_negatives(preferences, drops, made) - lost
            is_better = change < 0 or len(made) < len(division.clusters)
            if is_better and prices.accept(change, len(made)):
                return made
        return None
