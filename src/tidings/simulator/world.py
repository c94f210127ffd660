"""The virtual clock, the nodes, and the network between them: one heap ordered by (time, sequence), one seed.

Nothing here depends on the machine's clock, on hashes or on the order of sets: the same seed and the same schedule
give the same trace, message by message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from math import hypot
from random import Random
from typing import Any

from tidings.simulator.measures import CALL, UPKEEP, RunMeasures
from tidings.simulator.trace import Trace
from tidings.systems.overlay import DeliveryRecord, Law
from tidings.systems.protocols.effects import (
    Active,
    Deliver,
    Dropped,
    Effect,
    Effects,
    Grow,
    Id,
    Message,
    Node,
    Ready,
    Send,
    SetTimer,
    Tag,
)

LOST, CUT_OFF = -1, -2

_MESSAGE, _TIMER, _UNDELIVERED, _CALL = 0, 1, 2, 3


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


class World:
    """Nodes, and what happens among them."""

    def __init__(self, random: Random, network: Network, *, laws: Iterable[Law] = ()) -> None:
        self.random = random
        self.network = network
        self.laws = tuple(laws)
        self.trace: Trace | None = None
        self.now_ms = 0
        self.nodes: dict[Id, Node] = {}
        self.gone: set[Id] = set()  # crashed, or left
        self.ready: dict[Id, int] = {}  # since when
        self.active: dict[str, int] = {}  # subscriptions, since when
        self.deliveries: list[DeliveryRecord] = []
        self.dropped: dict[str, int] = {}  # events that a node knowingly dropped, and when
        self.handled: tuple[Id, Message] | None = None  # what the node that is checked was sent, and by whom
        self.grow: Callable[[], None] | None = None  # what to do when nodes ask for more of them
        self.messages = 0
        self.kinds: dict[str, int] = {}
        self.count_kinds = False
        self.measures: RunMeasures | None = None
        self._cause = UPKEEP  # of the effects that are carried out now
        self._heap: list[tuple[int, int, int, Any, Any, Any, int]] = []  # the last is the cause: see `measures`
        self._sequence = 0

    # What scenarios do

    def add(self, node: Node, contact: Id | None = None) -> None:
        assert node.id not in self.nodes, f"node {node.id} is there already"
        self.nodes[node.id] = node
        self.gone.discard(node.id)
        self._note("join", node.id)
        self.carry_out(node, node.start(contact, self.now_ms))

    def crash(self, id: Id) -> None:
        """The node is gone, with everything it knew, in the middle of whatever it did."""
        del self.nodes[id]
        self.ready.pop(id, None)
        self.gone.add(id)
        self._note("crash", id)

    def stop(self, id: Id, last: Effects) -> None:
        """The node goes after these effects, which its `leave` gave."""
        self.carry_out(self.nodes[id], last)
        self.crash(id)

    def at(self, time_ms: int, action: Callable[[], None]) -> None:
        self._push(max(time_ms, self.now_ms), _CALL, action, None, None)

    def do(self, id: Id, effects: Effects) -> None:
        """Carry out what a client's call on a node gave: subscribe, publish."""
        self._cause = CALL
        self.carry_out(self.nodes[id], effects)
        self._cause = UPKEEP
        self._check(id)

    # The loop

    def run(self, until_ms: int) -> None:
        """Let everything happen that happens until then."""
        heap, nodes, laws, measures = self._heap, self.nodes, self.laws, self.measures
        carry_out = self.carry_out
        node: Any
        while heap and heap[0][0] <= until_ms:
            now, _, kind, a, b, c, cause = heappop(heap)
            self.now_ms = now
            if kind == _MESSAGE:
                node = nodes.get(b)
                if node is None:
                    self._refuse(a, b, c, cause)
                    continue
                self.messages += 1
                if self.count_kinds:
                    self._count(c)
                if measures is not None:
                    measures.handled(a, b, c, cause)
                if self.trace is not None:
                    self.trace.message(now, a, b, c)
                effects = node.on_message(a, c, now)
            elif kind == _TIMER:
                node = nodes.get(a.id)
                if node is None or node is not a:  # it is gone, and another may have its id now
                    continue
                if self.trace is not None:
                    self.trace.timer(now, node.id, b)
                effects = node.on_timer(b, now)
                if cause and _sets_again(effects, b):
                    cause = UPKEEP
            elif kind == _UNDELIVERED:
                node = nodes.get(a)
                if node is None:
                    continue
                if self.trace is not None:
                    self.trace.undelivered(now, a, b, c)
                effects = node.on_undelivered(b, c, now)
            else:
                self._cause = UPKEEP
                a()
                continue
            if effects:
                self._cause = cause
                carry_out(node, effects)
            if laws:
                self._check(node.id, (a, c) if kind == _MESSAGE else None)
        self._cause = UPKEEP
        self.now_ms = max(self.now_ms, until_ms)

    def carry_out(self, node: Node, effects: Iterable[Effect]) -> None:
        effect: Any  # told apart by its type, and taken apart as the tuple that it is: this is the hottest loop
        now, heap = self.now_ms, self._heap
        network, sender = self.network, node.id
        plain, random = network.is_plain, self.random.random
        low, high = network.latency_ms
        span = high - low + 1
        cause = self._cause
        next_cause = cause + 1 if cause else UPKEEP
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                to, message = effect
                delay = low + int(span * random()) if plain else network.delay_ms(sender, to)
                if delay >= 0:
                    self._sequence += 1
                    heappush(heap, (now + delay, self._sequence, _MESSAGE, sender, to, message, next_cause))
                elif delay == LOST:
                    self._note("lost", sender, to)
                else:
                    assert delay == CUT_OFF
                    self._push(now + network.refused_ms, _UNDELIVERED, sender, to, message, cause)
            elif kind is SetTimer:
                after, tag = effect
                self._sequence += 1
                heappush(heap, (now + after, self._sequence, _TIMER, node, tag, None, cause))
            elif kind is Deliver:
                subscription, event = effect
                self.deliveries.append(DeliveryRecord(now, sender, subscription, event.id))
                self._note("deliver", sender, subscription, event.id)
                if cause and self.measures is not None:
                    self.measures.hops.append(cause - CALL)
            elif kind is Ready:
                self.ready[sender] = now
                self._note("ready", sender)
            elif kind is Active:
                self.active.setdefault(effect[0], now)
                self._note("active", sender, effect[0])
            elif kind is Dropped:
                self.dropped[effect[0]] = now
                self._note("drop", sender, effect[0])
            else:
                assert kind is Grow, f"{effect!r} is no effect"
                self._note("grow", sender)
                if self.grow is not None:
                    self.grow()

    def _push(self, time_ms: int, kind: int, a: Any, b: Any, c: Any, cause: int = UPKEEP) -> None:
        self._sequence += 1
        heappush(self._heap, (time_ms, self._sequence, kind, a, b, c, cause))

    def _refuse(self, sender: Id, to: Id, message: Any, cause: int) -> None:
        """Nobody is there: the sender's transport finds out a little later."""
        self._push(self.now_ms + self.network.latency_ms[0], _UNDELIVERED, sender, to, message, cause)

    def _check(self, id: Id, handled: tuple[Id, Message] | None = None) -> None:
        self.handled = handled
        for law in self.laws:
            law.after(self, id)

    def _count(self, message: Any) -> None:
        inner = getattr(message, "payload", None)
        name = type(message).__name__ if inner is None else type(inner).__name__
        self.kinds[name] = self.kinds.get(name, 0) + 1

    def _note(self, what: str, *about: Any) -> None:
        if self.trace is not None:
            self.trace.note(self.now_ms, what, *about)


def _sets_again(effects: Effects, tag: Tag) -> bool:
    """Whether a timer sets itself again: what it causes is upkeep, whichever node set it first."""
    return any(type(effect) is SetTimer and effect.tag == tag for effect in effects)
