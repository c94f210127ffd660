"""What is simulated: for each system how its nodes are made, which laws hold, and which bugs can be planted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

from tidings.errors import TidingsError, did_you_mean
from tidings.overlay.chord import ChordSettings, PublishedChordNode
from tidings.overlay.core import Id, PubSubNode
from tidings.overlay.lists import Lists
from tidings.overlay.opchord import OPChordNode, OPChordSettings
from tidings.rendezvous.placements import chord, opchord
from tidings.rendezvous.ring import Ring
from tidings.simulator.checkers import chord as ring_laws
from tidings.simulator.scenario import Plan
from tidings.simulator.workload import market
from tidings.simulator.world import Checker, World


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


RING_BITS = 24
_RING = OPChordSettings(ChordSettings(bits=RING_BITS, successors=3))


@lru_cache(maxsize=2)
def _lists(hashed: bool) -> Lists:
    workload = market()
    module: Any = chord if hashed else opchord
    ring = Ring(RING_BITS, (0,))
    wishes = {} if hashed else {"empirical": True}
    return Lists(module.adapt(workload.statistics, partitions=1, ring=ring, **wishes), workload.content)


class PublishedOPChordNode(PublishedChordNode, OPChordNode):
    """Lists on the ring as it was published."""


def _ring_node(hashed: bool) -> Callable[[Plan, Id, Random], PubSubNode]:
    def make(plan: Plan, id: Id, random: Random) -> PubSubNode:
        kind = PublishedOPChordNode if plan.bug == "notify" else OPChordNode
        return kind(id, _lists(hashed), _RING._replace(checks_intervals=plan.bug != "counting"))

    return make


def _seat_ring(nodes: Sequence[OPChordNode]) -> None:
    members = sorted(node.id for node in nodes)
    for node in nodes:
        node.seat(members)


def _ring_at_rest(world: World, plan: Plan) -> None:
    ring_laws.ideal_ring(world)


def _ring_checkers(plan: Plan) -> list[Checker]:
    """A node that is cut off is taken for dead, which the invariant does not provide for: then only the end counts."""
    return [] if plan.splits or plan.loss else [ring_laws.RingInvariant()]


def _ring_may_fail(world: World, plan: Plan, id: Id) -> bool:
    """With the published protocol failures are kept apart instead: its newcomers have no list that could be kept."""
    return True if plan.bug == "notify" else ring_laws.may_fail(world, id)


def _ring(hashed: bool) -> System:
    return System(
        _ring_node(hashed), _seat_ring, _ring_checkers, _ring_at_rest, _ring_may_fail,
        RING_BITS, ("notify", "counting"), least=_RING.chord.successors + 1,
    )  # fmt: skip


SYSTEMS: dict[str, System] = {"chord": _ring(True), "opchord": _ring(False)}


def system_named(name: str) -> System:
    if name not in SYSTEMS:
        raise UnknownSystem(f"there is no system '{name}'; {did_you_mean(name, SYSTEMS)}")
    return SYSTEMS[name]
