"""Sonnet as it is simulated: its hosts, the laws that hold, and the bugs that can be planted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random

from tidings.simulator.checkers import sonnet as laws
from tidings.simulator.scenario import Plan, timetable
from tidings.simulator.world import Checker, World
from tidings.systems.protocols.effects import Id
from tidings.systems.sonnet.node import SonnetNode
from tidings.systems.sonnet.path_digest import Variant
from tidings.systems.sonnet.paths import Paths
from tidings.systems.sonnet.settings import SonnetSettings

BITS = 32
LINKED_MS = 15_000  # some registrations, and a few seconds for each group above that has to be made again
FORGOTTEN_MS = 16_000  # a row that nobody registers again runs out after 12 s, and what is old goes every 2 s
MOVED_MS = 4_000  # two registrations: a node that has lost its up-stream finds out by the next one
BUGS = ("placeholders", "links", "down")


@lru_cache(maxsize=2)
def _paths(variant: Variant) -> Paths:
    return Paths(variant)


def sonnet_node(variant: Variant) -> Callable[[Plan, Id, Random], SonnetNode]:
    def make(plan: Plan, id: Id, random: Random) -> SonnetNode:
        settings = SonnetSettings(
            capacity=1.5,  # so little that nodes degrade and are upgraded again
            ratio=2.0,
            places_ancestors=plan.bug != "placeholders",
            shares_rows=plan.bug != "links",
            once_down=plan.bug != "down",
        )
        return SonnetNode(id, random, _paths(variant), settings)

    return make


def seat_hosts(hosts: Sequence[SonnetNode]) -> None:
    """Every 0-node on the ring, in its place; there are no others yet."""
    ring = sorted(host.zero.id for host in hosts)
    for host in hosts:
        host.zero.seat(ring)


def checkers(plan: Plan) -> list[Checker]:
    is_reliable = not plan.splits and not plan.loss
    from_ms = 0 if is_reliable else timetable(plan).calm_ms
    always: list[Checker] = [
        laws.Digests(),
        laws.Downwards(),
        laws.UpStream(),
        laws.OnceTold(),
        laws.Mended("IdealRing", laws.ring_flaws, LINKED_MS, at_rest_ms=MOVED_MS, from_ms=from_ms),
        laws.Mended("Linked", laws.link_flaws, LINKED_MS, at_rest_ms=MOVED_MS, from_ms=from_ms),
        laws.Mended("Placeholders", laws.placeholder_flaws, FORGOTTEN_MS, at_rest_ms=FORGOTTEN_MS, from_ms=from_ms),
    ]
    return [*always, laws.OneLiveSuccessor()] if is_reliable else always


def may_fail(world: World, plan: Plan, id: Id) -> bool:
    return bool(plan.splits or plan.loss) or laws.may_fail(world, id)


def at_rest(world: World, plan: Plan) -> None:
    for checker in world.checkers:
        if isinstance(checker, laws.Mended):
            checker.at_rest(world)
