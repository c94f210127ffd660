"""Pastry (Rowstron and Druschel, Middleware 2001): routing by prefixes of ids, to the numerically closest node.

    leaf set        the nodes whose ids are closest, half of them on either side
    routing table   for each length of a prefix shared with one's own id, a node for each next digit; of
                    several that fit, the one that replies soonest (proximity)
    a message       goes to the closest leaf where its key lies among the leaves, else to a node that shares a
                    longer prefix with it, else to one that shares as long a prefix and is closer

A node is taken into the leaf set only when it has answered by itself: what others say of it is a hint. Those that
were lost are asked again for a while, so that a network that was split grows together.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar, NamedTuple

from tidings.systems.protocols.effects import (
    Dispatching,
    Effects,
    Handlers,
    Id,
    Message,
    NotMember,
    Ready,
    Send,
    SetTimer,
    Tag,
)
from tidings.systems.protocols.ring_ids import ring_distance

MAX_HOPS = 64
MAX_REUNIONS = 12  # times that a lost node is looked for
MAX_SILENT = 3  # questions that a neighbour may leave unanswered


class PastrySettings(NamedTuple):
    bits: int = 32
    digit_bits: int = 4  # b of the paper
    leaves: int = 16
    exchange_ms: int = 1_000
    join_retry_ms: int = 3_000
    doubt_ms: int = 4_000  # for how long hints to a node that did not answer are passed over


class PastryJoin(NamedTuple):
    """On its way to the node closest to the newcomer, to which every node on the way sends what it knows."""

    joiner: Id
    hops: int


class JoinHints(NamedTuple):
    known: tuple[Id, ...]
    closest: bool  # from the end of the way: its leaf set is the newcomer's


class AskLeaves(NamedTuple):
    sent_ms: int
    member: bool  # whether who asks can be routed through


class LeafSet(NamedTuple):
    sent_ms: int  # of the question, for the round trip
    leaves: tuple[Id, ...]


class Departing(NamedTuple):
    leaves: tuple[Id, ...]


class PastryRoute(NamedTuple):
    key: Id
    origin: Id
    hops: int
    payload: Message


PASTRY_MESSAGES: tuple[type, ...] = (PastryJoin, JoinHints, AskLeaves, LeafSet, Departing, PastryRoute, NotMember)

EXCHANGE, PASTRY_JOIN = "exchange", "pastry join"


class PastryNode(Dispatching):
    """A node that routes. What it routes is a subclass's: `arrived`, `neighbours_changed`."""

    def __init__(self, id: Id, random: Random, settings: PastrySettings = PastrySettings()) -> None:  # noqa: B008
        self._id = id
        self.pastry = settings
        self._random = random
        self._digits = settings.bits // settings.digit_bits
        self._mask = (1 << settings.bits) - 1
        self.is_member = False
        self.smaller: tuple[Id, ...] = ()  # counter-clockwise, the closest first
        self.larger: tuple[Id, ...] = ()
        self._heard: dict[Id, int] = {}  # members that answered, and how long that took
        self.table: dict[tuple[int, int], Id] = {}
        self._doubted: dict[Id, int] = {}  # until when
        self._silent: dict[Id, int] = {}
        self._lost: dict[Id, int] = {}
        self._contact: Id | None = None
        self._asked_ms: dict[Id, int] = {}

    @property
    def id(self) -> Id:
        return self._id

    @property
    def leaves(self) -> tuple[Id, ...]:
        return tuple(dict.fromkeys((*self.smaller, *self.larger)))

    def seat(self, members: Sequence[Id]) -> None:
        """Take one's place among these members, as if all had answered."""
        self.is_member = True
        for id in members:
            if id != self._id:
                self._heard[id] = 0
        self._choose_leaves()
        for id in members:
            self._offer(id)
        self._trim()

    # Joining and leaving

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        self._contact = contact
        if self.is_member or contact is None:
            self.is_member = True
            return [self._exchange_timer(), Ready()]
        return self._ask_to_join()

    def _exchange_timer(self) -> SetTimer:
        """A little chance, so that nodes that began together do not speak together for ever."""
        period = self.pastry.exchange_ms
        return SetTimer(period - period // 8 + int(self._random.random() * (period // 4)), EXCHANGE)

    def _ask_to_join(self) -> Effects:
        assert self._contact is not None
        return [Send(self._contact, PastryJoin(self._id, 0)), SetTimer(self.pastry.join_retry_ms, PASTRY_JOIN)]

    def _on_join(self, sender: Id, message: PastryJoin, now_ms: int) -> Effects:
        joiner, hops = message
        if not self.is_member:
            return self.send_back(sender, message)
        if hops > MAX_HOPS or joiner == self._id:
            return []
        hop = self.next_hop(joiner, excluding=joiner)
        row = self._shared(joiner)
        useful = [id for (level, _), id in self.table.items() if level <= row]
        known = tuple(dict.fromkeys((self._id, *useful, *(self.leaves if hop is None else ()))))
        effects: Effects = [Send(joiner, JoinHints(known, hop is None))]
        return effects if hop is None else [*effects, Send(hop, PastryJoin(joiner, hops + 1))]

    def _on_hints(self, sender: Id, message: JoinHints, now_ms: int) -> Effects:
        if self.is_member:
            return []
        ask = AskLeaves(now_ms, message.closest)
        effects: Effects = [Send(id, ask) for id in message.known if id != self._id]
        if not message.closest:
            return effects
        self.is_member = True
        self._hear(sender, self.pastry.exchange_ms, now_ms)
        return [*effects, self._exchange_timer(), Ready()]

    def leave(self, now_ms: int) -> Effects:
        return [Send(id, Departing(self.leaves)) for id in self.leaves]

    def _on_departing(self, sender: Id, message: Departing, now_ms: int) -> Effects:
        effects = self._bury(sender, now_ms)
        self._lost.pop(sender, None)
        return [*effects, *self._hinted(message.leaves, now_ms)]

    # Knowing each other

    def _on_ask_leaves(self, sender: Id, message: AskLeaves, now_ms: int) -> Effects:
        if not self.is_member:
            return self.send_back(sender, message)
        effects: Effects = [Send(sender, LeafSet(message.sent_ms, self.leaves))]
        if message.member and sender not in self._heard:
            effects.append(Send(sender, AskLeaves(now_ms, True)))
        return effects

    def _on_leaf_set(self, sender: Id, message: LeafSet, now_ms: int) -> Effects:
        before = self.leaves
        self._hear(sender, now_ms - message.sent_ms, now_ms)
        effects = self._hinted(message.leaves, now_ms)
        return [*effects, *self.neighbours_changed(now_ms)] if self.leaves != before else effects

    def _hinted(self, known: Sequence[Id], now_ms: int) -> Effects:
        """Ask those who would belong into the leaf set, unless they did not answer just now."""
        wanted = [
            id for id in known
            if id != self._id and id not in self._heard and self._would_be_leaf(id) and not self._doubts(id, now_ms)
        ]  # fmt: skip
        return [Send(id, AskLeaves(now_ms, self.is_member)) for id in wanted]

    def _doubts(self, id: Id, now_ms: int) -> bool:
        return self._doubted.get(id, 0) > now_ms

    def _hear(self, id: Id, took_ms: int, now_ms: int) -> None:
        self._silent.pop(id, None)
        self._doubted.pop(id, None)
        self._lost.pop(id, None)
        if id == self._id:
            return
        is_new, before = id not in self._heard, self.table.get(self._slot(id))
        self._heard[id] = took_ms
        self._offer(id)
        if is_new:  # of those that are known already, the closest stay the same
            self._choose_leaves()
        if is_new or before != self.table.get(self._slot(id)):
            self._trim()

    def _offer(self, id: Id) -> None:
        """The routing table keeps the node that replies soonest."""
        if id == self._id:
            return
        slot = self._slot(id)
        present = self.table.get(slot)
        if present is None or present not in self._heard or 2 * self._heard[id] < self._heard[present]:
            self.table[slot] = id  # clearly sooner: routes that change with every measurement are no routes

    def _slot(self, id: Id) -> tuple[int, int]:
        row = self._shared(id)
        shift = self.pastry.bits - self.pastry.digit_bits * (row + 1)
        return row, (id >> shift) & ((1 << self.pastry.digit_bits) - 1)

    def _shared(self, other: Id) -> int:
        """How many leading digits are the same."""
        return shared_digits(self._id, other, self.pastry.bits, self.pastry.digit_bits)

    def _choose_leaves(self) -> None:
        half, mask, own = self.pastry.leaves // 2, self._mask, self._id
        self.larger = tuple(sorted(self._heard, key=lambda id: (id - own) & mask)[:half])
        self.smaller = tuple(sorted(self._heard, key=lambda id: (own - id) & mask)[:half])

    def _trim(self) -> None:
        """Forget those who are neither leaves nor in the table."""
        needed = {*self.larger, *self.smaller, *self.table.values()}
        if len(needed) < len(self._heard):
            self._heard = {id: took for id, took in self._heard.items() if id in needed}
            self._asked_ms = {id: at for id, at in self._asked_ms.items() if id in needed}

    def _would_be_leaf(self, id: Id) -> bool:
        half, mask, own = self.pastry.leaves // 2, self._mask, self._id
        if len(self.larger) < half or len(self.smaller) < half:
            return True
        return (id - own) & mask < (self.larger[-1] - own) & mask or (own - id) & mask < (own - self.smaller[-1]) & mask

    def _bury(self, dead: Id, now_ms: int) -> Effects:
        self._silent.pop(dead, None)
        self._doubted[dead] = now_ms + self.pastry.doubt_ms
        if dead not in self._heard:
            return []
        del self._heard[dead]
        self._lost[dead] = MAX_REUNIONS
        was_leaf = dead in self.larger or dead in self.smaller
        self.table = {slot: id for slot, id in self.table.items() if id != dead}
        for id in sorted(self._heard):  # another that fits its slot
            self._offer(id)
        self._choose_leaves()
        if not was_leaf:
            return []
        # The outermost leaves know who comes next (Rowstron and Druschel, section 2.4).
        ends = dict.fromkeys((*self.larger[-1:], *self.smaller[-1:]))
        return [*(Send(id, AskLeaves(now_ms, self.is_member)) for id in ends), *self.neighbours_changed(now_ms)]

    # Time, and what came back

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag == EXCHANGE:
            return [*self._exchange(now_ms), self._exchange_timer()]
        if tag == PASTRY_JOIN and not self.is_member:
            return self._ask_to_join()
        return []

    def _exchange(self, now_ms: int) -> Effects:
        """Ask both neighbours, and in turn one more leaf, one entry of the table, and one of those that were lost."""
        asked = [*self.larger[:1], *self.smaller[:1]]
        for several in (self.leaves, tuple(self.table.values())):
            if several:
                asked.append(min(several, key=lambda id: (self._asked_ms.get(id, -1), id)))
        effects: Effects = []
        for id in dict.fromkeys(asked):
            self._asked_ms[id] = now_ms
            self._silent[id] = self._silent.get(id, 0) + 1
            if self._silent[id] > MAX_SILENT:
                effects += self._bury(id, now_ms)
            else:
                effects.append(Send(id, AskLeaves(now_ms, True)))
        if self._lost:
            lost, left = next(iter(self._lost.items()))
            del self._lost[lost]
            if left:
                self._lost[lost] = left - 1
            effects.append(Send(lost, AskLeaves(now_ms, True)))
        return effects

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        effects = self._bury(to, now_ms)
        match message:
            case PastryRoute() if self.is_member:
                effects += self._on_pastry_route(self._id, message, now_ms)
            case PastryJoin() if self.is_member:
                effects += self._on_join(self._id, message, now_ms)
        return effects

    def send_back(self, sender: Id, message: Message) -> Effects:
        """Sends a message back: the sender takes this node for a member that it was, and has to find another way."""
        return [Send(sender, NotMember(message))] if sender != self._id else []

    def _on_not_member(self, sender: Id, message: NotMember, now_ms: int) -> Effects:
        effects = self.on_undelivered(sender, message.message, now_ms)
        self._doubted[sender] = now_ms + self.pastry.exchange_ms  # it will be back soon
        return effects

    # Routing (Rowstron and Druschel, figure 3)

    def next_hop(self, key: Id, *, excluding: Id | None = None) -> Id | None:
        """The node to hand a key's message to; None where nobody known is closer."""
        own, bits = self._id, self.pastry.bits
        leaves = [id for id in self.leaves if id != excluding]
        if self._among_leaves(key):
            best = min((own, *leaves), key=lambda id: (ring_distance(id, key, bits), id))
            return None if best == own else best
        row = self._shared(key)
        hop = self.table.get(self._slot(key))
        if hop is not None and hop != excluding:
            return hop
        mine = ring_distance(own, key, bits)
        closer = [
            id for id in (*leaves, *self.table.values())
            if id != excluding and self._common(id, key) >= row and ring_distance(id, key, bits) < mine
        ]  # fmt: skip
        if closer:
            return min(closer, key=lambda id: (-self._common(id, key), ring_distance(id, key, bits), id))
        best = min((own, *leaves), key=lambda id: (ring_distance(id, key, bits), id))
        return None if best == own else best

    def _common(self, a: Id, b: Id) -> int:
        return shared_digits(a, b, self.pastry.bits, self.pastry.digit_bits)

    def _among_leaves(self, key: Id) -> bool:
        half, mask = self.pastry.leaves // 2, self._mask
        if len(self.larger) < half or len(self.smaller) < half:
            return True  # fewer nodes than leaves: they are all known
        first, last = self.smaller[-1], self.larger[-1]
        return (key - first) & mask <= (last - first) & mask or set(self.smaller) & set(self.larger) != set()

    def route(self, key: Id, payload: Message, now_ms: int) -> Effects:
        return self._on_pastry_route(self._id, PastryRoute(key, self._id, 0, payload), now_ms)

    def _on_pastry_route(self, sender: Id, message: PastryRoute, now_ms: int) -> Effects:
        key, origin, hops, payload = message
        if not self.is_member:
            return self.send_back(sender, message)
        if hops > MAX_HOPS:
            return []
        hop = self.next_hop(key)
        if hop is None:
            return self.arrived(message, now_ms)
        return [Send(hop, PastryRoute(key, origin, hops + 1, payload))]

    # What is built on it

    def arrived(self, message: PastryRoute, now_ms: int) -> Effects:
        """Something reached the node closest to its key."""
        return []

    def neighbours_changed(self, now_ms: int) -> Effects:
        """The leaf set is another one: keys may have a new closest node."""
        return []

    handlers: ClassVar[Handlers] = {
        PastryJoin: _on_join,
        JoinHints: _on_hints,
        AskLeaves: _on_ask_leaves,
        LeafSet: _on_leaf_set,
        Departing: _on_departing,
        PastryRoute: _on_pastry_route,
        NotMember: _on_not_member,
    }


def shared_digits(a: Id, b: Id, bits: int, digit_bits: int) -> int:
    """The length of the prefix that two ids share, in digits."""
    return (bits - (a ^ b).bit_length()) // digit_bits
