"""Chord (Stoica et al., SIGCOMM 2001), with the join and the repair that Zave proved correct.

P. Zave, "Reasoning about identifier spaces: How to make Chord correct" (IEEE TSE 2017): a joining node takes the
successor list of its future predecessor; a successor is adopted only after it has answered, together with its list;
and *rectify* replaces a predecessor that is dead, which the published `notify` does not. The invariant that makes
this inductive is in `tidings.systems.protocols.ring_laws`. A ring grows from one node as well, but the proof begins
with one more than the length of the successor lists.

    key k belongs to its successor: the first node clockwise from k on
    fingers      the successors of n + 2^i, each found by a lookup: all of them each round; or, as long as they
                 stay what they were, one
    lookups      go from node to node, to the known one that most closely precedes the key

A message to a dead node comes back undelivered; a node that stays silent for some rounds is taken for dead. It may
only have been cut off: so a node looks for itself in the rings of those it has lost, for a while, and adopts
a successor that it finds there, which is how two halves of a ring become one again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

from tidings.systems.protocols.effects import (
    Dispatching,
    Effects,
    Handlers,
    Id,
    Message,
    Name,
    NotMember,
    Ready,
    Send,
    SetTimer,
    Tag,
)
from tidings.systems.protocols.message_codec import MessageError
from tidings.systems.protocols.ring_ids import between, within

MAX_SILENT_ROUNDS = 3
MAX_REUNIONS = 12  # times that a lost node is looked for
MAX_LOST = 64  # nodes that are looked for
MAX_HOPS = 200  # beyond any ring's diameter: a message that goes in circles is dropped, and asked for again


class ChordSettings(NamedTuple):
    bits: int = 32
    successors: int = 4
    stabilize_ms: int = 1_000
    fingers_ms: int = 2_000
    all_fingers: bool = True  # whether all are looked up each round, also when they have stayed what they were
    join_retry_ms: int = 3_000


class FindSuccessor(NamedTuple):
    """Looks for the successor of a key; the asker gets the reply directly."""

    key: Id
    origin: Id
    request: Name
    hops: int


class FoundSuccessor(NamedTuple):
    request: Name
    key: Id
    successor: Id
    predecessor: Id  # the node that replies: its successor list is a joining node's first
    successors: tuple[Id, ...]
    hops: int


class AskState(NamedTuple):
    why: Name


class State(NamedTuple):
    why: Name
    predecessor: Id | None
    successors: tuple[Id, ...]


class Notify(NamedTuple):
    """The sender takes itself for the receiver's predecessor."""


class Leaving(NamedTuple):
    node: Id
    predecessor: Id | None
    successors: tuple[Id, ...]


class Route(NamedTuple):
    """Something on its way to the owner of a key. `last`: the sender takes the receiver for the owner."""

    key: Id
    origin: Id
    hops: int
    last: bool
    payload: Message


CHORD_MESSAGES: tuple[type, ...] = (FindSuccessor, FoundSuccessor, AskState, State, Notify, Leaving, Route, NotMember)

STABILIZE, FINGERS, FINGER, JOIN, REUNITE = "stabilize", "fingers", "finger", "join", "reunite"


class ChordNode(Dispatching):
    """A member of the ring. What is stored and asked there is a subclass's: see the methods without underscore."""

    def __init__(self, id: Id, settings: ChordSettings = ChordSettings()) -> None:  # noqa: B008 - immutable
        self._id = id
        self.settings = settings
        self._mask = (1 << settings.bits) - 1
        self.predecessor: Id | None = None
        self.successors: tuple[Id, ...] = ()
        self._fingers: list[Id | None] = [None] * settings.bits
        self._fingers_settled = False  # whether all of them were looked up, and stayed what they were
        self._finger_turn = 0  # the one that is looked up next then
        self._distances: list[int] = []  # from here to every finger and successor, ascending
        self._contact: Id | None = None
        self._silent: dict[Id, int] = {}  # rounds in which a node that was asked did not answer
        self._lost: dict[Id, int] = {}  # nodes taken for dead: how often they are still looked for

    @property
    def id(self) -> Id:
        return self._id

    @property
    def is_member(self) -> bool:
        return bool(self.successors)

    @property
    def fingers(self) -> tuple[Id | None, ...]:
        return tuple(self._fingers)

    def seat(self, members: Sequence[Id]) -> None:
        """Take one's place in a ring of these members, in ascending order, with every pointer as it should be."""
        at, count = bisect_left(members, self._id), len(members)
        self.successors = self._list_of(members[(at + k) % count] for k in range(1, count)) or (self._id,)
        self.predecessor = members[at - 1]
        for i in range(self.settings.bits):
            place = bisect_left(members, (self._id + (1 << i)) & self._mask)
            self._fingers[i] = members[place % count]
        self._fingers_settled = True
        self._learn()

    def _list_of(self, following: Iterable[Id]) -> tuple[Id, ...]:
        """Of the nodes that follow this one, nearest first, those that a successor list holds."""
        return tuple(islice(following, self.settings.successors))

    # Joining and leaving

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        self._contact = contact
        if self.successors:
            return [*self._timers(), Ready()]
        if contact is None:
            self.predecessor, self.successors = self._id, (self._id,)
            return [*self._timers(), Ready()]
        return self._ask_to_join()

    def _ask_to_join(self) -> Effects:
        assert self._contact is not None
        lookup = FindSuccessor(self._id, self._id, JOIN, 0)
        return [Send(self._contact, lookup), SetTimer(self.settings.join_retry_ms, JOIN)]

    def _timers(self) -> Effects:
        return [SetTimer(self.settings.stabilize_ms, STABILIZE), SetTimer(self.settings.fingers_ms, FINGERS)]

    def leave(self, now_ms: int) -> Effects:
        """Tell both neighbours, so that they need not find out."""
        effects: Effects = []
        if not self.is_member or self.successors[0] == self._id:
            return effects
        told = Leaving(self._id, self.predecessor, self.successors)
        for neighbour in dict.fromkeys((self.successors[0], self.predecessor)):
            if neighbour is not None and neighbour != self._id:
                effects.append(Send(neighbour, told))
        return effects

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        if isinstance(part, Leaving) and not part.successors:
            raise MessageError("message: Leaving names no successor")

    def _on_leaving(self, sender: Id, message: Leaving, now_ms: int) -> Effects:
        leaving, predecessor, its = message
        if leaving in self.successors:
            # What only the leaving node had in its list may pass over a newcomer: nobody is there to hear of it now.
            left = tuple(id for id in self.successors if id != leaving)
            self.successors = left or tuple(id for id in its if id != self._id) or (self._id,)
        self._forget_finger(leaving)
        nearer = self.came_between(leaving)
        if self.predecessor == leaving:
            self.predecessor = predecessor if predecessor != self._id else None
            return self.predecessor_changed(now_ms)
        if its[0] == self._id and nearer is not None:
            return [Send(nearer, message._replace(successors=(nearer, *its)))]
        return []

    def came_between(self, other: Id) -> Id | None:
        """Who joined between this node and another that may take it for its successor still.

        The other one hears of it with its next stabilization; what it sends its successor until then is passed on.
        """
        before = self.predecessor
        return before if before is not None and other != self._id and between(other, before, self._id) else None

    # Timers, and messages that came back

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag == STABILIZE:
            again = SetTimer(self.settings.stabilize_ms, STABILIZE)
            return [*self._stabilize(now_ms), *self._reunite(), again]
        if tag == FINGERS:
            return [*self._fix_fingers(now_ms), SetTimer(self.settings.fingers_ms, FINGERS)]
        if tag == JOIN and not self.is_member:
            return self._ask_to_join()
        return []

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        effects = self._bury(to, now_ms)
        match message:
            case AskState(why="stabilize") if self.is_member:
                effects += self._ask_successor()
            case AskState(why="adopt") if self.is_member and self.successors[0] != self._id:
                effects.append(Send(self.successors[0], Notify()))  # whose predecessor is dead, and should be replaced
            case FindSuccessor(request=request) if self.is_member and request != REUNITE:
                effects += self._on_find(self._id, message, now_ms)
            case Route() if self.is_member:
                effects += self._on_route(self._id, message._replace(last=False), now_ms)
        return effects

    def send_back(self, sender: Id, message: Message) -> Effects:
        """Sends a message back: the sender takes this node for a member that it was, and has to find another way."""
        return [Send(sender, NotMember(message))] if sender != self._id else []

    def _on_not_member(self, sender: Id, message: NotMember, now_ms: int) -> Effects:
        return self.on_undelivered(sender, message.message, now_ms)

    def _bury(self, dead: Id, now_ms: int) -> Effects:
        """Forget a node that is not there. A list loses an entry; the next stabilization fills it up again."""
        self._silent.pop(dead, None)
        if dead == self._id:
            return []
        if dead not in self._lost and len(self._lost) < MAX_LOST:
            self._lost[dead] = MAX_REUNIONS
        self._forget_finger(dead)
        if dead in self.successors:
            left = tuple(id for id in self.successors if id != dead)
            self.successors = left or (self._id,)
            self._learn()
        if self.predecessor == dead:
            self.predecessor = None
            return self.predecessor_changed(now_ms)
        return []

    # Stabilization (Zave, "stabilize from successor", "stabilize from predecessor", "rectify")

    def _stabilize(self, now_ms: int) -> Effects:
        head = self.successors[0]
        self._silent[head] = self._silent.get(head, 0) + 1
        buried = self._bury(head, now_ms) if self._silent[head] > MAX_SILENT_ROUNDS else []
        return [*buried, *self._ask_successor()]

    def _reunite(self) -> Effects:
        """Look for one's own place in the ring of a node that was lost, each in its turn."""
        if not self._lost:
            return []
        lost, left = next(iter(self._lost.items()))
        del self._lost[lost]
        if left:
            self._lost[lost] = left - 1
        return [Send(lost, FindSuccessor((self._id + 1) & self._mask, self._id, REUNITE, 0))]

    def _ask_successor(self) -> Effects:
        head = self.successors[0]
        if head != self._id:
            return [Send(head, AskState("stabilize"))]
        # Alone, or the last that is left: the predecessor is as good a successor as any.
        return [] if self.predecessor in (None, self._id) else [Send(self.predecessor, AskState("adopt"))]

    def _on_ask(self, sender: Id, message: AskState, now_ms: int) -> Effects:
        if not self.is_member:
            return self.send_back(sender, message)
        return [Send(sender, State(message.why, self.predecessor, self.successors))]

    def _on_state(self, sender: Id, message: State, now_ms: int) -> Effects:
        self._silent.pop(sender, None)
        if message.why == "stabilize" and self.is_member and sender == self.successors[0]:
            self._adopt(sender, message.successors)
            nearer = message.predecessor
            if nearer is not None and between(self._id, nearer, sender):
                return [Send(nearer, AskState("adopt"))]  # is it alive? and what is its list?
            return [Send(sender, Notify())]
        if message.why == "adopt" and self.is_member:
            head = self.successors[0]
            if sender != self._id and (head == self._id or between(self._id, sender, head)):
                self._adopt(sender, message.successors)
                nearer = message.predecessor
                if nearer is not None and between(self._id, nearer, sender):  # several joined at once in this gap
                    return [Send(nearer, AskState("adopt"))]
            return [Send(self.successors[0], Notify())] if self.successors[0] != self._id else []
        if message.why == JOIN and not self.is_member:
            return self._become_member(sender, message, now_ms)
        return []

    def _adopt(self, successor: Id, its: tuple[Id, ...]) -> None:
        """The successor, then what it knows to follow it, not further than once around."""
        chain = (successor, *its)
        if self._id in chain:
            chain = chain[: chain.index(self._id)]
        adopted = self._list_of(chain)
        if adopted != self.successors:
            self.successors = adopted
            self._learn()

    def _on_notify(self, sender: Id, message: Notify, now_ms: int) -> Effects:
        """Rectify: a nearer predecessor is taken; another one only if the present one is dead."""
        if not self.is_member:  # it was one before it crashed, and is not yet again
            return []
        present = self.predecessor
        if present is None or present == self._id or between(present, sender, self._id):
            self.predecessor = sender
            return self.predecessor_changed(now_ms)
        return [Send(present, AskState("rectify"))] if sender != present else []

    # Joining, the other half: the answer of the future predecessor, then of the future successor

    def _on_found(self, sender: Id, message: FoundSuccessor, now_ms: int) -> Effects:
        if message.request == JOIN:
            if self.is_member or message.successor == self._id:
                return []
            self.predecessor = message.predecessor
            return [Send(message.successor, AskState(JOIN))]
        if message.request in (FINGERS, FINGER):
            asked = self._take_finger(message)
            return asked if message.request == FINGERS else []
        if message.request == REUNITE:
            nearer = between(self._id, message.successor, self.successors[0])
            return [Send(message.successor, AskState("adopt"))] if nearer and message.successor != self._id else []
        return self.found(message, now_ms)

    def _become_member(self, successor: Id, state: State, now_ms: int) -> Effects:
        """The successor is alive: its list is newer than the one that the predecessor gave."""
        self._adopt(successor, state.successors)
        self._learn()
        return [Send(successor, Notify()), *self._timers(), Ready()]

    # Fingers

    def _fix_fingers(self, now_ms: int) -> Effects:
        """Look up the finger that follows the successor; each answer asks for the next (`_take_finger`)."""
        if self.settings.all_fingers or not self._fingers_settled:
            self._fingers_settled = True  # until one is another
            return self._ask_finger(0)
        head, bits = self.successors[0], self.settings.bits
        beyond = ((head - self._id) & self._mask).bit_length()  # the fingers before are the successor
        if head == self._id or beyond >= bits:
            return []
        self._finger_turn = max(beyond, (self._finger_turn + 1) % bits)
        key = (self._id + (1 << self._finger_turn)) & self._mask
        return self._on_find(self._id, FindSuccessor(key, self._id, FINGER, 0), now_ms)

    def _ask_finger(self, first: int) -> Effects:
        """The next finger that the node before it does not settle already."""
        head = self.successors[0]
        for i in range(first, self.settings.bits):
            key = (self._id + (1 << i)) & self._mask
            if head != self._id and within(self._id, key, head):
                self._fingers[i] = head
            else:
                self._learn()
                lookup = FindSuccessor(key, self._id, FINGERS, 0)
                return self._on_find(self._id, lookup, 0) if head != self._id else []
        self._learn()
        return []

    def _take_finger(self, found: FoundSuccessor) -> Effects:
        first = ((found.key - self._id) & self._mask).bit_length() - 1
        reach = (found.successor - self._id) & self._mask or 1 << self.settings.bits
        i = first
        finger = found.successor if found.successor != self._id else None
        while i < self.settings.bits and 1 << i <= reach:
            self._fingers_settled &= self._fingers[i] == finger
            self._fingers[i] = finger
            i += 1
        if i >= self.settings.bits:
            self._learn()
            return []
        return self._ask_finger(max(i, first + 1))

    def _forget_finger(self, id: Id) -> None:
        if id in self._fingers:
            self._fingers = [None if finger == id else finger for finger in self._fingers]
            self._fingers_settled = False
        self._learn()

    def _learn(self) -> None:
        known = {*self._fingers, *self.successors} - {None, self._id}
        mask, own = self._mask, self._id
        self._distances = sorted((id - own) & mask for id in known)  # type: ignore[operator]

    # Lookups and routing (Stoica et al., section 4.3)

    def owns(self, key: Id) -> bool:
        return self.predecessor is not None and within(self.predecessor, key, self._id)

    def _next(self, key: Id) -> Id:
        """The known node that most closely precedes the key."""
        ahead = (key - self._id) & self._mask or self._mask + 1  # to one's own id it is once around
        place = bisect_left(self._distances, ahead)
        return (self._id + self._distances[place - 1]) & self._mask if place else self.successors[0]

    def _on_find(self, sender: Id, message: FindSuccessor, now_ms: int) -> Effects:
        key, origin, request, hops = message
        if not self.is_member:
            return self.send_back(sender, message)
        if hops > MAX_HOPS:
            return []
        head = self.successors[0]
        if within(self._id, key, head):
            found = FoundSuccessor(request, key, head, self._id, self.successors, hops + 1)
            return [Send(origin, found)] if origin != self._id else self._on_found(self._id, found, now_ms)
        return [Send(self._next(key), FindSuccessor(key, origin, request, hops + 1))]

    def route(self, key: Id, payload: Message, now_ms: int) -> Effects:
        """Send something to the owner of a key: `arrived` is called there."""
        return self._on_route(self._id, Route(key, self._id, 0, False, payload), now_ms)

    def _on_route(self, sender: Id, message: Route, now_ms: int) -> Effects:
        key, origin, hops, last, payload = message
        if not self.is_member:
            return self.send_back(sender, message)
        if hops > MAX_HOPS:
            return []
        if self.owns(key) or (last and self.predecessor is None) or self.successors[0] == self._id:
            return self.arrived(message, now_ms)
        if last:  # the sender does not know the predecessor yet, or the predecessor is dead: it will tell
            assert self.predecessor is not None
            return [Send(self.predecessor, Route(key, origin, hops + 1, True, payload))]
        head = self.successors[0]
        if within(self._id, key, head):
            return [Send(head, Route(key, origin, hops + 1, True, payload))]
        return [Send(self._next(key), Route(key, origin, hops + 1, False, payload))]

    # What is built on the ring

    def arrived(self, message: Route, now_ms: int) -> Effects:
        """Something reached the owner of its key."""
        return []

    def found(self, message: FoundSuccessor, now_ms: int) -> Effects:
        """A lookup of one's own was answered."""
        return []

    def predecessor_changed(self, now_ms: int) -> Effects:
        """The arc of the ring that this node owns is another one."""
        return []

    handlers: ClassVar[Handlers] = {
        FindSuccessor: _on_find,
        FoundSuccessor: _on_found,
        AskState: _on_ask,
        State: _on_state,
        Notify: _on_notify,
        Leaving: _on_leaving,
        Route: _on_route,
        NotMember: _on_not_member,
    }


class PublishedChordNode(ChordNode):
    """Chord as published in 2001, whose join and notify lose the ring: what the simulator has to find out.

    A joining node knows one successor and no more; a nearer successor is taken on trust, dead or alive, and so is a
    predecessor; and nobody replaces a predecessor that died.
    """

    def _become_member(self, successor: Id, state: State, now_ms: int) -> Effects:
        self.successors, self.predecessor = (successor,), None
        self._learn()
        return [*self._timers(), Ready()]

    def _on_state(self, sender: Id, message: State, now_ms: int) -> Effects:
        if message.why != "stabilize" or not self.is_member or sender != self.successors[0]:
            return super()._on_state(sender, message, now_ms)
        self._silent.pop(sender, None)
        self._adopt(sender, message.successors)
        nearer = message.predecessor
        if nearer is not None and between(self._id, nearer, sender):
            self.successors = (nearer, *self.successors)[: self.settings.successors]
            self._learn()
        return [Send(self.successors[0], Notify())]

    def _on_notify(self, sender: Id, message: Notify, now_ms: int) -> Effects:
        if self.predecessor is None or between(self.predecessor, sender, self._id):
            self.predecessor = sender
        return []
