"""Sonnet's ring: virtual nodes by their digests, groups as its ranges, and messages to a whole group.

The ring is Chord's, with Zave's repair (`protocols.ring`); its fingers are the paper's *maintenance links*. A host
has many virtual nodes, which fail together: so a successor list goes on until it names enough other hosts.

    in-group links   neighbours on the ring and fingers that are of one's group, and the group's first member
    cast             a broadcast over a range of the ring (El-Ansary et al., 2003): a node hands each part of the range
                     to the node it knows at the beginning of the part; what comes twice is recognised
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from random import Random
from typing import ClassVar

from tidings.systems.protocols.effects import Effects, Handlers, Id, Message, Send, SetTimer, Tag
from tidings.systems.protocols.ring import (
    REUNITE,
    ChordNode,
    ChordSettings,
    FindSuccessor,
    FoundSuccessor,
    Leaving,
    Notify,
    Route,
    State,
)
from tidings.systems.protocols.ring_ids import between
from tidings.systems.sonnet.messages import CastDone, CastFromFirst, CastWaits, First, GroupCast, NoGroup, ToGroup
from tidings.systems.sonnet.path_digest import Ordering
from tidings.systems.sonnet.paths import HOST_BITS, Lineage, Range, host_of, node_bits, range_of

MAX_LIST = 32  # successors, however few hosts they are on
ENOUGH_TO_ESTIMATE = 3  # members of a group that are known, to guess how many there are; fewer may be near by chance
LINK_MS = 200  # between two looks for one's place
REUNITED_MS = 8_000  # after which a neighbour that was only cut off has been found again

LINK = "link"


class Telling:
    """Something that is passed on and to be confirmed: how many parts are not done yet, and who waits for them."""

    __slots__ = ("asked_by", "at_ms", "has_warned", "is_held", "is_relayed", "left", "message", "number")

    def __init__(self, asked_by: Id | None, number: int, message: Message, now_ms: int) -> None:
        self.asked_by = asked_by  # None: this node began it
        self.number = number  # the asker's
        self.message = message  # that asked for it; what is told, where this node began it
        self.left = 0
        self.at_ms = now_ms
        self.is_relayed = False  # another of the group does it all, and vouches for it
        self.is_held = False  # it is done as far as is known here, and that may not be all
        self.has_warned = False  # the asker knows that it has to wait


class RingMember(ChordNode):
    """A virtual node's place on the ring and in its group. What it does with messages to the group is a subclass's."""

    def __init__(self, id: Id, lineage: Lineage, random: Random, settings: ChordSettings) -> None:
        super().__init__(id, settings)
        self.lineage = lineage
        self.digest = lineage.digest
        self.group = lineage.group
        self.range: Range = range_of(self.group, self.variant)
        self.first: Id | None = None  # of the group, as far as known
        self._known_before = False  # whether the node before it on the ring has it for its successor
        self._known_after = False  # whether the node after it has it for its predecessor
        self._random = random
        self._telling: dict[int, Telling] = {}
        self._held: list[int] = []  # tellings that are
        self.is_leaving = False  # it has taken leave, and only passes on what is on its way
        self._tellings = int(random.random() * (1 << 31)) << 20  # not the numbers of one that had this id before
        self._notified_by: Id | None = None  # who last took itself for the predecessor, and was taken for it
        self._notified_ms = 0  # since when
        self._cut_off_ms = -REUNITED_MS  # when the host of a neighbour was last out of reach
        self._in_doubt = False  # the successor is gone, and whether another has come before the next one is not known

    @property
    def variant(self) -> Ordering:
        return self.digest.variant

    @property
    def host(self) -> Id:
        return host_of(self._id)

    # The ring

    def _list_of(self, following: Iterable[Id]) -> tuple[Id, ...]:
        taken: list[Id] = []
        hosts: set[Id] = set()
        for id in following:
            taken.append(id)
            if host_of(id) != self.host:
                hosts.add(host_of(id))
            if len(hosts) == self.settings.successors or len(taken) == MAX_LIST:
                break
        return tuple(taken)

    @property
    def is_linked(self) -> bool:
        """Whether its neighbours on the ring have known it: what is cast in its range reaches it from then on."""
        return self._known_before and self._known_after

    def seat(self, members: Sequence[Id]) -> None:
        super().seat(members)
        self._known_before = self._known_after = True
        self._notified_by = self.predecessor

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        effects = super().start(contact, now_ms)
        if contact is None:
            self._known_before = self._known_after = True
            self._notified_by = self.predecessor
        return effects

    def _become_member(self, successor: Id, state: State, now_ms: int) -> Effects:
        """The predecessor need not find out by itself: this is the answer to what it would ask."""
        effects = [*super()._become_member(successor, state, now_ms), *self._ask_successor()]
        return [*effects, *self._introduce(self.predecessor), SetTimer(LINK_MS, LINK)]

    def _introduce(self, before: Id | None) -> Effects:
        if before is None or before == self._id:
            return []
        return [Send(before, State("adopt", self.predecessor, self.successors))]

    def _on_found(self, sender: Id, message: FoundSuccessor, now_ms: int) -> Effects:
        effects = super()._on_found(sender, message, now_ms)
        if message.request != REUNITE:
            return effects
        return [*effects, *self._introduce(message.predecessor)]

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        """Others have joined beside this node at the same time: look for its place again, until it is known there."""
        if tag != LINK:
            return super().on_timer(tag, now_ms)
        if self.is_linked or self._contact is None:
            return []
        return [*self.rejoin_through(self._contact), *self._ask_successor(), SetTimer(LINK_MS, LINK)]

    def _on_notify(self, sender: Id, message: Notify, now_ms: int) -> Effects:
        was_sure_of = self.predecessor if self._is_sure_of_before else None
        effects = super()._on_notify(sender, message, now_ms)
        if self.predecessor == sender:
            self._known_before, self._notified_by = True, sender
            if sender != was_sure_of:
                self._notified_ms = now_ms
        return effects

    def _on_state(self, sender: Id, message: State, now_ms: int) -> Effects:
        if message.predecessor == self._id and self.is_member and sender == self.successors[0]:
            self._known_after, self._in_doubt = True, False
        following = (
            message.successors[message.successors.index(self._id) + 1 :] if self._id in message.successors else ()
        )
        if message.why == "adopt" and self.is_alone and self.is_member and following and following[0] != self._id:
            # All that were known to follow have gone at once; the node before this one knows others that do.
            self._adopt(following[0], following[1:])
            return self._ask_successor()
        if message.why == "adopt" and self._would_pass_over(sender, message):
            # It has looked for its successor before that one came: it looks again, and introduces itself again.
            head = self.successors[0]
            return [Send(sender, FoundSuccessor(REUNITE, sender + 1, head, self._id, self.successors, 0))]
        return super()._on_state(sender, message, now_ms)

    def _would_pass_over(self, sender: Id, state: State) -> bool:
        """Whether the present successor would be lost to the ring, were a node before it taken in its place."""
        if not self.is_member or not state.successors:
            return False
        head = self.successors[0]
        return between(self._id, sender, head) and between(sender, head, state.successors[0])

    def _bury(self, dead: Id, now_ms: int) -> Effects:
        """Rather than be alone, take the next node that is known at all for the successor, until one is nearer."""
        lost = self.is_member and self.successors[0] == dead
        effects = super()._bury(dead, now_ms)
        if self.is_alone and self._distances:
            self.successors = ((self._id + self._distances[0]) & self._mask,)
        if not lost:
            return effects
        self._in_doubt = True
        return [*effects, *self._ask_successor()]

    def _on_leaving(self, sender: Id, message: Leaving, now_ms: int) -> Effects:
        """Notifies the node after one that has left, at once, which node is before it now."""
        followed = self.is_member and self.successors[0] == sender
        effects = super()._on_leaving(sender, message, now_ms)
        if not followed or self.is_alone:
            return effects
        return [*effects, Send(self.successors[0], Notify()), *self._ask_successor()]

    def forget_host(self, host: Id, now_ms: int) -> Effects:
        """All virtual nodes of a host that is not there: they have gone together."""
        known = dict.fromkeys((*self.successors, *(id for id in self._fingers if id is not None), self.predecessor))
        if any(id is not None and host_of(id) == host for id in (*self.successors, self.predecessor)):
            self._cut_off_ms = now_ms
        effects: Effects = []
        for id in known:
            if id is not None and host_of(id) == host:
                effects += self._bury(id, now_ms)
        return effects

    @property
    def is_alone(self) -> bool:
        return self.successors == (self._id,)

    def rejoin_through(self, contact: Id) -> Effects:
        """Look for one's place again, after everybody that was known has gone."""
        return [Send(contact, FindSuccessor((self._id + 1) & self._mask, self._id, REUNITE, 0))]

    # The group

    def in_group(self, id: Id | None) -> bool:
        return id is not None and id != self._id and self.range.low <= id < self.range.high

    @property
    def before_in_group(self) -> Id | None:
        before = self.predecessor
        return before if before is not None and self.in_group(before) and before < self._id else None

    @property
    def after_in_group(self) -> Id | None:
        after = self.successors[0] if self.successors else None
        return after if after is not None and self.in_group(after) and after > self._id else None

    @property
    def is_first(self) -> bool:
        """Whether no member of the group is before this one; while its predecessor is in doubt, nobody can say."""
        return self._is_sure_of_before and self.before_in_group is None

    @property
    def _is_sure_of_before(self) -> bool:
        """Whether the predecessor has said so itself: not another that crashed or left, and told of it."""
        return self.predecessor is not None and self.predecessor == self._notified_by

    def follows_another(self, since_ms: int) -> bool:
        """Whether a member of the group has been before this one since then, for sure."""
        return self._is_sure_of_before and self.before_in_group is not None and self._notified_ms <= since_ms

    @property
    def is_only(self) -> bool:
        return self.is_first and self.after_in_group is None

    @property
    def group_size(self) -> float:
        """Estimated from how far apart the members are that are known to follow each other (section 3.3.2)."""
        ahead = [id for id in self.successors if self.in_group(id) and id > self._id]
        if self.is_first and len(ahead) < len(self.successors):
            return 1 + len(ahead)  # all of them are known
        low = self.before_in_group if self.before_in_group is not None else self._id
        high = max(ahead, default=self._id)
        counted = len(ahead) + (self.before_in_group is not None)
        if counted < ENOUGH_TO_ESTIMATE:
            return 1.0 + counted
        return max(1.0 + counted, counted * (self.range.high - self.range.low) / (high - low))

    def key_in(self, group: int) -> Id:
        """Somewhere in a group's range: a random node digest."""
        return (group + int(self._random.random() * (1 << node_bits(self.variant)))) << HOST_BITS

    def to_group(self, group: int, payload: Message, now_ms: int) -> Effects:
        """Send something to some member of a group; `NoGroup` comes back where there is none."""
        return self.route(self.key_in(group), ToGroup(group, False, payload), now_ms)

    def arrived(self, message: Route, now_ms: int) -> Effects:
        match message.payload:
            case ToGroup(group, wrapped, payload):
                if group == self.group:
                    return self.on_message(message.origin, payload, now_ms)
                if not wrapped:  # beyond the last member: from the beginning of the range
                    low = range_of(group, self.variant).low
                    again = Route(low, message.origin, message.hops, False, ToGroup(group, True, payload))
                    return self._on_route(self._id, again, now_ms)
                known = self.predecessor is not None and self.is_linked  # or who knows whether there is anybody
                return [Send(message.origin, NoGroup(group, payload))] if known else []
        return []

    def _on_no_group(self, sender: Id, message: NoGroup, now_ms: int) -> Effects:
        return self.no_group(message.group, message.payload, now_ms)

    # Casts

    def begin(self, message: Message, now_ms: int, asked_by: Id | None = None, number: int = 0) -> int:
        """A number of one's own for what is to be confirmed: `told_all` is called then, or the asker is notified."""
        self._tellings += 1
        self._telling[self._tellings] = Telling(asked_by, number, message, now_ms)
        return self._tellings

    def cast(self, payload: Message, now_ms: int, number: int = 0) -> Effects:
        """Tell every other member of the group; with a number, as a part of what is to be confirmed."""
        effects = self._cast_over(self._id + 1, self.range.high, number, payload, now_ms)
        if not self.is_first:
            below = CastFromFirst(self._id, number, payload)
            self.expect(number, 1)
            if self.first is not None and self.first != self._id:
                effects.append(Send(self.first, below))
            else:
                effects += self.route(self.range.low, ToGroup(self.group, True, below), now_ms)
        return effects

    def _cast_over(self, low: Id, limit: Id, number: int, payload: Message, now_ms: int) -> Effects:
        """Hand [low, limit) on, in parts that begin with the nodes known here.

        The last node known before `low` takes what lies before the next one: it may know of others there.
        """
        known = [self._id + away for away in self._distances[: bisect_left(self._distances, limit - self._id)]]
        effects: Effects = []
        for place, id in enumerate(known):
            upper = known[place + 1] if place + 1 < len(known) else limit
            if upper > low:
                effects.append(Send(id, GroupCast(max(low, id), upper, number, payload)))
        self.expect(number, len(effects))
        return effects

    def _on_cast(self, sender: Id, message: GroupCast, now_ms: int) -> Effects:
        low, limit, number, payload = message
        effects = self.told(payload, now_ms) if low <= self._id else []
        own = self._answer_to(sender, number, message, now_ms)
        return [*effects, *self._cast_over(low, limit, own, payload, now_ms), *self._done(own, 0, now_ms)]

    def _on_cast_from_first(self, sender: Id, message: CastFromFirst, now_ms: int) -> Effects:
        """Or from one that is before: the sender did not know."""
        before = self.before_in_group
        own = self._answer_to(sender, message.number, message, now_ms)
        if before is not None:
            below = self._hand_to_first(before, message, own)
            return [*below, Send(sender, First(before))] if sender != self._id else below
        effects = self.told(message.payload, now_ms) if self._id < message.limit else []
        effects += self._cast_over(self._id + 1, message.limit, own, message.payload, now_ms)
        if sender != self._id and self.is_first:
            effects.append(Send(sender, First(self._id)))
        return [*effects, *self._done(own, 0, now_ms)]

    def _hand_to_first(self, before: Id, message: CastFromFirst, number: int) -> Effects:
        self.expect(number, 1)
        return [Send(before, CastFromFirst(message.limit, number, message.payload))]

    def _on_first(self, sender: Id, message: First, now_ms: int) -> Effects:
        self.first = message.member if self.in_group(message.member) else None
        return []

    def _answer_to(self, asked_by: Id, number: int, message: Message, now_ms: int) -> int:
        return self.begin(message, now_ms, asked_by, number) if number else 0

    def expect(self, number: int, parts: int = 1) -> None:
        if number in self._telling:
            self._telling[number].left += parts

    def relay(self, number: int) -> None:
        """Have another of the group do all of it: what that one confirms is confirmed."""
        self.expect(number)
        if number in self._telling:
            self._telling[number].is_relayed = True

    def _done(self, number: int, parts: int, now_ms: int) -> Effects:
        telling = self._telling.get(number)
        if telling is None:
            return []
        telling.left -= parts
        if telling.left > 0:
            return []
        if telling.asked_by is None:
            del self._telling[number]
            return self.told_all(telling.message, now_ms)
        if telling.is_relayed or self.vouches(telling.message, now_ms):
            del self._telling[number]
            return [Send(telling.asked_by, CastDone(telling.number))]
        if self.is_leaving or self._is_cut_off(now_ms):
            return []  # those that it told may not be sure either, or it will be gone: the publisher sends it again
        if not telling.is_held:
            telling.is_held = True
            self._held.append(number)
        return self._warn(telling, now_ms)

    def warn(self, number: int, now_ms: int) -> Effects:
        telling = self._telling.get(number)
        return [] if telling is None else self._warn(telling, now_ms)

    def _warn(self, telling: Telling, now_ms: int) -> Effects:
        """Have the publisher wait rather than send again."""
        if telling.has_warned:
            return []
        telling.has_warned = True
        if telling.asked_by is None:
            self.has_to_wait(telling.message)
            return []
        return [Send(telling.asked_by, CastWaits(telling.number))]

    def _on_waits(self, sender: Id, message: CastWaits, now_ms: int) -> Effects:
        return self.warn(message.number, now_ms)

    def release(self, now_ms: int) -> Effects:
        """Confirm what was held back, now that this node can vouch for it; first to those that it did not know of."""
        held, self._held = self._held, []
        effects: Effects = []
        for number in held:
            telling = self._telling.get(number)
            if telling is None or self._is_cut_off(now_ms):
                continue
            if not self.vouches(telling.message, now_ms):
                self._held.append(number)
                continue
            telling.is_held = False
            effects += [*self.pass_on_again(telling, number, now_ms), *self._done(number, 0, now_ms)]
        return effects

    def pass_on_again(self, telling: Telling, number: int, now_ms: int) -> Effects:
        """Tell those of whom this node may not have known; others recognise what they have seen."""
        match telling.message:
            case GroupCast(low, limit, _, payload):
                return self._cast_over(low, limit, number, payload, now_ms)
            case CastFromFirst(limit, _, payload) as message:
                before = self.before_in_group
                if before is not None:
                    return self._hand_to_first(before, message, number)
                return self._cast_over(self._id + 1, limit, number, payload, now_ms)
        return []

    def vouches(self, message: Message, now_ms: int) -> bool:
        """Whether what this node knows is all that it should know to pass a message on; else it confirms later.

        A neighbour that was lost may be in another part of a ring that was split, with others that are not known here.
        """
        return not self._is_cut_off(now_ms) and not self._in_doubt and self._is_sure_of_before

    def _is_cut_off(self, now_ms: int) -> bool:
        """Whether the ring may be in parts: nodes that have lost nobody do not know it."""
        return now_ms < self._cut_off_ms + REUNITED_MS

    def _on_done(self, sender: Id, message: CastDone, now_ms: int) -> Effects:
        return self._done(message.number, 1, now_ms)

    def forget_tellings(self, before_ms: int) -> None:
        """Forgets what is not confirmed: the node that began it begins again."""
        self._telling = {number: one for number, one in self._telling.items() if one.at_ms >= before_ms}
        self._held = [number for number in self._held if number in self._telling]

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        if self.first == to:
            self.first = None
        effects = super().on_undelivered(to, message, now_ms)
        match message:
            case GroupCast(low, limit, number, payload):
                effects += self._cast_over(low, limit, number, payload, now_ms)
                effects += self._done(number, 1, now_ms)
            case CastFromFirst():
                again = ToGroup(self.group, True, message)
                effects += self.route(self.range.low, again, now_ms)
        return effects

    # What is built on it

    def told(self, payload: Message, now_ms: int) -> Effects:
        """Something was cast in the group."""
        return []

    def told_all(self, payload: Message, now_ms: int) -> Effects:
        """A cast of one's own, to be confirmed, has reached everybody."""
        return []

    def has_to_wait(self, payload: Message) -> None:
        """Somebody that was to be told by a cast of one's own confirms it later."""

    def no_group(self, group: int, payload: Message, now_ms: int) -> Effects:
        """What was sent to a group found nobody."""
        return []

    handlers: ClassVar[Handlers] = {
        GroupCast: _on_cast,
        CastDone: _on_done,
        CastWaits: _on_waits,
        CastFromFirst: _on_cast_from_first,
        First: _on_first,
        NoGroup: _on_no_group,
    }
