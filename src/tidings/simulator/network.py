"""How long messages take, which are lost, and who is cut off from whom."""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot
from random import Random

from tidings.systems.protocols.effects import Id

LOST = -1
CUT_OFF = -2


class Network:
    """Latency between two bounds; each message lost with some probability; splits that keep groups apart.

    With `plane_ms` nodes lie on a square of this side and latency grows with distance, so that proximity means
    something: a message takes `latency_ms[0]` and the distance, and a little chance.
    """

    def __init__(
        self,
        random: Random,
        *,
        latency_ms: tuple[int, int] = (5, 50),
        loss: float = 0.0,
        plane_ms: int = 0,
        refused_ms: int = 100,
    ) -> None:
        self._random = random
        self.latency_ms = latency_ms
        self.loss = loss
        self.plane_ms = plane_ms
        self.refused_ms = refused_ms  # until a sender knows that nobody is there
        self._places: dict[Id, tuple[float, float]] = {}
        self._side: dict[Id, int] = {}  # of a split; who is on no side reaches everybody

    @property
    def is_plain(self) -> bool:
        return not self.loss and not self._side and not self.plane_ms

    def split(self, *groups: Iterable[Id]) -> None:
        self._side = {id: side for side, group in enumerate(groups) for id in group}

    def heal(self) -> None:
        self._side = {}

    def apart(self, a: Id, b: Id) -> bool:
        side = self._side
        return bool(side) and side.get(a, -1) != side.get(b, -1) and a in side and b in side

    def distance_ms(self, a: Id, b: Id) -> float:
        (ax, ay), (bx, by) = self._place(a), self._place(b)
        return hypot(ax - bx, ay - by)

    def _place(self, id: Id) -> tuple[float, float]:
        place = self._places.get(id)
        if place is None:
            where = Random(id)  # an id's place does not depend on who asks for it first
            place = self._places[id] = (where.random() * self.plane_ms, where.random() * self.plane_ms)
        return place

    def delay_ms(self, sender: Id, to: Id) -> int:
        """How long the message takes, or LOST or CUT_OFF."""
        if self._side and self.apart(sender, to):
            return CUT_OFF
        random = self._random.random
        if self.loss and random() < self.loss:
            return LOST
        low, high = self.latency_ms
        if self.plane_ms:
            return low + int(self.distance_ms(sender, to) + 2 * random())
        return low + int((high - low + 1) * random())
