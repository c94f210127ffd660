"""What is simulated: for each system how its nodes are made, which laws hold, and which bugs can be planted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any, Literal, NamedTuple

from tidings.errors import TidingsError, did_you_mean
from tidings.model.types import Path
from tidings.simulator import planted, sonnet
from tidings.simulator.checkers import chord as ring_laws
from tidings.simulator.checkers import clusters as cluster_laws
from tidings.simulator.checkers import digests as digest_laws
from tidings.simulator.checkers import lists as list_laws
from tidings.simulator.checkers import pastry as pastry_laws
from tidings.simulator.checkers import scribe as tree_laws
from tidings.simulator.checkers import segments as segment_laws
from tidings.simulator.checkers.repair import NEVER
from tidings.simulator.scenario import Plan
from tidings.simulator.workload import market
from tidings.simulator.world import Checker, World
from tidings.systems.bluedove.matcher_node import MatcherSettings
from tidings.systems.bluedove.node import BlueDoveNode, BlueDoveSettings
from tidings.systems.bluedove.segment_table import BEGINNING, Dimensions, Edge
from tidings.systems.chord import placement as chord
from tidings.systems.clusters import placement as clusters
from tidings.systems.clusters.node import ClusterNode, ClusterSettings
from tidings.systems.clusters.space import Space
from tidings.systems.digests import placement as digests
from tidings.systems.digests.node import DigestNode, DigestSettings, Matching
from tidings.systems.geometry.line_positions import edges_at_quantiles
from tidings.systems.geometry.node_ring import Ring
from tidings.systems.opchord import placement as opchord
from tidings.systems.opchord.lists import Lists
from tidings.systems.opchord.node import OPChordNode, OPChordSettings
from tidings.systems.protocols.effects import Id, PubSubNode
from tidings.systems.protocols.gossip import GossipSettings
from tidings.systems.protocols.pastry import PastryNode, PastrySettings
from tidings.systems.protocols.placement_keys import Keys
from tidings.systems.protocols.ring import ChordSettings
from tidings.systems.protocols.scribe import ScribeSettings
from tidings.systems.sonnet.path_digest import Variant

# How long a flaw may take to be repaired, when nodes come, go and crash but messages arrive: some periods of what
# repairs it. Measured over hundreds of seeds, the longest takes three quarters of it.
HANDED_MS = 2_000  # whoever notices a newcomer hands it what it owns
LISTS_MS = 12_000  # where copies were lost in crashes: owners repeat their walks every 10 s
HOME_MS = 12_000  # subscribers tell home nodes every 5 s, and may find out at the second try that one is gone
LEAVES_MS = 4_000  # newcomers ask those around them at once, and both neighbours every second
KNOWN_MS = 3_000  # and so are the closest to a key known
GONE_MS = 12_000  # of 8 leaves one is asked every second
TREES_MS = 8_000  # everybody grafts every 2 s, and a tree is three or four nodes high


class UnknownSystem(TidingsError):
    """A system, or a bug of one, that there is not."""


class System(NamedTuple):
    """One overlay: `make` gives a node, and `seat` puts the first ones in their places."""

    make: Callable[[Plan, Id, Random], Any]
    seat: Callable[[Sequence[Any]], None]
    checkers: Callable[[Plan], list[Checker]]
    at_rest: Callable[[World, Plan], None]  # laws that hold when all is quiet
    may_fail: Callable[[World, Plan, Id], bool]
    bits: int
    bugs: tuple[str, ...] = ()
    least: int = 1  # nodes that have to be left
    lossless: bool = False  # whether events that were published during churn have to arrive as well
    restore: Callable[[Any, Any], None] = lambda before, after: None  # what a node that crashed comes back with


RING_BITS = 24
_RING = OPChordSettings(ChordSettings(bits=RING_BITS, successors=3))


@lru_cache(maxsize=2)
def _lists(hashed: bool) -> Lists:
    workload = market()
    module: Any = chord if hashed else opchord
    ring = Ring(RING_BITS, (0,))
    wishes = {} if hashed else {"empirical": True}
    return Lists(module.adapt(workload.statistics, partitions=1, ring=ring, **wishes), workload.content)


_RING_BUGS: dict[str, type[OPChordNode]] = {
    "notify": planted.PublishedOPChordNode,
    "counting": OPChordNode,
    "handover": planted.HandsNothingOver,
    "copies": planted.ProlongsCopies,
}


def _ring_node(hashed: bool) -> Callable[[Plan, Id, Random], PubSubNode]:
    def make(plan: Plan, id: Id, random: Random) -> PubSubNode:
        kind = _RING_BUGS.get(plan.bug, OPChordNode)
        return kind(id, _lists(hashed), _RING._replace(checks_intervals=plan.bug != "counting"))

    return make


def _seat_ring(nodes: Sequence[OPChordNode]) -> None:
    members = sorted(node.id for node in nodes)
    for node in nodes:
        node.seat(members)


def _ring_at_rest(world: World, plan: Plan) -> None:
    ring_laws.ideal_ring(world)


def _is_reliable(plan: Plan) -> bool:
    """A node that is cut off, or not heard, is taken for dead, which most laws do not provide for."""
    return not plan.splits and not plan.loss


def _ring_checkers(plan: Plan) -> list[Checker]:
    always: list[Checker] = [list_laws.RunsOut()]
    if not _is_reliable(plan):
        return always
    return [*always, ring_laws.RingInvariant(), list_laws.ListsHeld(LISTS_MS if plan.crashes else HANDED_MS)]


def _ring_may_fail(world: World, plan: Plan, id: Id) -> bool:
    """With the published protocol failures are kept apart instead: its newcomers have no list that could be kept."""
    return True if plan.bug == "notify" else ring_laws.may_fail(world, id)


def _ring(hashed: bool) -> System:
    return System(
        _ring_node(hashed), _seat_ring, _ring_checkers, _ring_at_rest, _ring_may_fail,
        RING_BITS, tuple(_RING_BUGS), least=_RING.chord.successors + 1,
    )  # fmt: skip


# Digests on Scribe on Pastry

PASTRY_BITS = 32
_SCRIBE = ScribeSettings(PastrySettings(bits=PASTRY_BITS, leaves=8))


@lru_cache(maxsize=1)
def _digest_keys() -> Keys:
    workload = market()
    return Keys(digests.adapt(workload.statistics, partitions=1), workload.content, PASTRY_BITS)


_TREE_BUGS: dict[str, type[DigestNode]] = {
    "hops": planted.GoesAnywhere,
    "silent": planted.NeverAsksBack,
    "hints": planted.BelievesHints,
    "root": planted.StaysRoot,
    "leaving": planted.LeavesForAll,
}
_HOME_BUGS: dict[str, type[DigestNode]] = {
    "hops": planted.GoesAnywhere,
    "line": planted.ForgetsTheRing,
    "once": planted.TellsHomeOnce,
}


def _digest_node(matching: Matching) -> Callable[[Plan, Id, Random], PubSubNode]:
    bugs = _HOME_BUGS if matching == "home" else _TREE_BUGS

    def make(plan: Plan, id: Id, random: Random) -> PubSubNode:
        return bugs.get(plan.bug, DigestNode)(id, random, _digest_keys(), DigestSettings(_SCRIBE, matching))

    return make


def _seat_pastry(nodes: Sequence[PastryNode]) -> None:
    members = sorted(node.id for node in nodes)
    for node in nodes:
        node.seat(members)


def _pastry_checkers(plan: Plan) -> list[Checker]:
    always: list[Checker] = [pastry_laws.HopsApproach()]
    if not _is_reliable(plan):
        return always
    return [*always, pastry_laws.ClosestDelivers(KNOWN_MS), pastry_laws.LeafSets(LEAVES_MS, GONE_MS)]


def _tree_checkers(plan: Plan) -> list[Checker]:
    return [*_pastry_checkers(plan), tree_laws.Trees(TREES_MS if _is_reliable(plan) else NEVER)]


def _digest_checkers(matching: Matching) -> Callable[[Plan], list[Checker]]:
    if matching != "home":
        return lambda plan: [*_tree_checkers(plan), digest_laws.InTrees()]
    return lambda plan: [*_pastry_checkers(plan), digest_laws.KeptAtHome(HOME_MS if _is_reliable(plan) else NEVER)]


def _digests_at_rest(world: World, plan: Plan) -> None:
    pastry_laws.leaf_sets_at_rest(world)
    tree_laws.trees_at_rest(world)
    if _is_reliable(plan):
        digest_laws.given_up_at_rest(world)


def _always(world: World, plan: Plan, id: Id) -> bool:
    return True


def _digests(matching: Matching) -> System:
    return System(
        _digest_node(matching), _seat_pastry, _digest_checkers(matching), _digests_at_rest, _always,
        PASTRY_BITS, tuple(_HOME_BUGS if matching == "home" else _TREE_BUGS), least=3,
    )  # fmt: skip


# BlueDove

DIMENSIONS = (("price",), ("volume",), ("rating",))
_MATCHER = MatcherSettings(GossipSettings(period_ms=300))


@lru_cache(maxsize=1)
def _dimensions() -> Dimensions:
    return Dimensions(DIMENSIONS, market().content)


_BLUEDOVE_BUGS: dict[str, type[BlueDoveNode]] = {
    "overlap": planted.SwitchesFirst,
    "owners": planted.TakesAtOnce,
    "restart": planted.TrustsItsFormerLife,
    "news": planted.BelievesOldNews,
    "merging": planted.MergesTheWrongWay,
}


def _bluedove_node(plan: Plan, id: Id, random: Random) -> PubSubNode:
    kind = _BLUEDOVE_BUGS.get(plan.bug, BlueDoveNode)
    return kind(id, random, _dimensions(), BlueDoveSettings(_MATCHER))


def _bluedove_checkers(plan: Plan) -> list[Checker]:
    always: list[Checker] = [segment_laws.Tiles(), segment_laws.VersionsGrow()]
    return [*always, segment_laws.OneOwner(), segment_laws.HeldByOwners()] if _is_reliable(plan) else always


def seat_bluedove(nodes: Sequence[BlueDoveNode]) -> None:
    """Everybody knows everybody; each dimension is cut where as many events lie in each part."""
    owners = sorted(node.id for node in nodes if node.is_matcher)
    edges = [
        Edge(d, low, 0, owners[(number + d) % len(owners)], True, False)
        for d, path in enumerate(DIMENSIONS)
        for number, low in enumerate((BEGINNING, *_cuts(path, len(owners))))
    ]
    for node in nodes:
        node.seat(nodes)
        node.seat_segments(edges)


@lru_cache(maxsize=256)
def _cuts(path: Path, segments: int) -> tuple[int, ...]:
    known = market().statistics.along(path).quantiles
    return tuple(int(place) for place in edges_at_quantiles(known, segments))


def _restore_log(before: Any, after: Any) -> None:
    after.log = before.log


def _bluedove_at_rest(world: World, plan: Plan) -> None:
    segment_laws.placed_at_rest(world)
    if _is_reliable(plan):
        segment_laws.given_up_at_rest(world)


# Clusters


@lru_cache(maxsize=1)
def _space() -> Space:
    workload = market()
    axes = clusters.adapt(workload.statistics, partitions=1, clusters=4, cells=16)
    return Space(axes, workload.content)


def _cluster_node(mode: Literal["strict", "paper"]) -> Callable[[Plan, Id, Random], PubSubNode]:
    def make(plan: Plan, id: Id, random: Random) -> PubSubNode:
        settings = ClusterSettings(
            _SCRIBE, mode, clusters=3, clusters_most=4, reorganising=0.5, registers_again=plan.bug != "registration"
        )  # so few that divisions are made anew again and again
        return ClusterNode(id, random, _space(), settings)

    return make


def _cluster_checkers(plan: Plan) -> list[Checker]:
    registered: list[Checker] = [cluster_laws.Registered()] if _is_reliable(plan) else []
    return [*_tree_checkers(plan), *registered]


def _clusters_at_rest(world: World, plan: Plan) -> None:
    pastry_laws.leaf_sets_at_rest(world)
    cluster_laws.registered_at_rest(world)


# Sonnet


def _sonnet(variant: Variant) -> System:
    return System(
        sonnet.sonnet_node(variant), sonnet.seat_hosts, sonnet.checkers, sonnet.at_rest, sonnet.may_fail,
        sonnet.BITS, sonnet.BUGS, least=4, lossless=True, restore=_restore_log,
    )  # fmt: skip


SYSTEMS: dict[str, System] = {
    "chord": _ring(True),
    "opchord": _ring(False),
    "digests": _digests("leaf"),
    "digests-tree": _digests("tree"),
    "digests-home": _digests("home"),
    "clusters": System(
        _cluster_node("strict"),
        _seat_pastry,
        _cluster_checkers,
        _clusters_at_rest,
        _always,
        PASTRY_BITS,
        ("registration",),
        least=3,
    ),
    "bluedove": System(
        _bluedove_node,
        seat_bluedove,
        _bluedove_checkers,
        _bluedove_at_rest,
        _always,
        RING_BITS,
        tuple(_BLUEDOVE_BUGS),
        least=3,
        lossless=True,
        restore=_restore_log,
    ),
    "sonnet": _sonnet("ranks"),
    "sonnet-hashes": _sonnet("hashes"),
}


def system_named(name: str) -> System:
    if name not in SYSTEMS:
        raise UnknownSystem(f"there is no system '{name}'; {did_you_mean(name, SYSTEMS)}")
    return SYSTEMS[name]


def check_bug(system: System, name: str, bug: str) -> None:
    if bug and bug not in system.bugs:
        raise UnknownSystem(f"{name} has no bug '{bug}' to plant; {did_you_mean(bug, system.bugs)}")
