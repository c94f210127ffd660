"""A virtual node of Sonnet: one subscription, or a placeholder for a group that others hang below (sections 3.2, 3.3).

    up-stream     one member of the parent group, chosen for its scores, its load and how near it is; registered with
                  again and again, so that what crashed is forgotten
    down-stream   a row for each group that hangs below one's own, the same at every member: who registers with one is
                  announced to all, members compare their rows, and a newcomer copies them before it serves
    packets       from up-stream: to the down-stream groups that may want them, and to one's own group; from a member of
                  the group: no further, or they would be told twice

A group whose parent group is empty has its host put a placeholder there. `rooted` says that the way from the 0-nodes
down to this node is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar, NamedTuple

from tidings.systems.protocols.effects import Effects, Handlers, Id, Message, Send, SetTimer, Tag
from tidings.systems.protocols.ring import ChordSettings, Notify, Route, State
from tidings.systems.sonnet.messages import (
    AllTold,
    Ask,
    AskOffer,
    AskRows,
    Degrade,
    KnownRows,
    Linked,
    NeedGroup,
    Offer,
    Packet,
    Received,
    Register,
    Registered,
    Row,
    ToGroup,
    Unregister,
    Upgrade,
)
from tidings.systems.sonnet.path_digest import Digest, Ordering
from tidings.systems.sonnet.paths import (
    HOST_BITS,
    RING_BITS,
    Lineage,
    Paths,
    goes_down,
    group_digest,
    group_of,
    hangs_below,
    host_of,
)
from tidings.systems.sonnet.prefix_ring import RingMember


class SonnetSettings(NamedTuple):
    chord: ChordSettings = ChordSettings(bits=RING_BITS, successors=4, fingers_ms=4_000)
    register_ms: int = 2_000
    share_ms: int = 2_000
    announce_ms: int = 4_000  # after which a group that hangs below is announced again, if it registers again
    expiry_ms: int = 12_000  # without an announcement or a registration, after which a row is dropped
    again_ms: int = 3_000  # after which a packet is sent again that is not confirmed
    attempts: int = 16
    remembered_ms: int = 90_000  # for how long a packet is known again
    looks_around: int = 3  # registrations, after which another up-stream is tried
    better: float = 0.8  # of the present one's cost, at which another is taken
    ratio: float = 8.0  # θ: of those who are served to those who serve them, beyond which nodes degrade
    capacity: float = 200.0  # packets sent a second, beyond which a node is overloaded
    enters_anywhere: bool = True  # False: every packet enters at the first 0-node
    degrades: bool = True
    chooses: bool = True  # False: the first up-stream that is found is kept
    ordering: Ordering = "ranks"
    log: bool = True  # False: what a host has published is gone with it
    id_bits: int = HOST_BITS  # of a host


NEVER_MS = -(1 << 40)


class Down:
    """A group that hangs below: a row, and who of it is known here."""

    __slots__ = ("announced_ms", "digest", "members", "seen_ms", "size", "spread", "told")

    def __init__(self, digest: Digest, seen_ms: int) -> None:
        self.digest = digest
        self.seen_ms = seen_ms
        self.members: dict[Id, int] = {}  # since when; those that registered here are newer than others
        self.spread = False  # whether the whole group knows of it, as far as is known here
        self.announced_ms = NEVER_MS
        self.told = False  # whether the last announcement from here has reached the whole group
        self.size = 1.0


MAX_ROWS_SENT = 2_000  # in one message
COMPLETE_PERIODS = 3  # of registrations, in which all have registered again that have lost their up-stream
FEW_MEMBERS = 4  # of a down-stream group: with so many known, a packet finds one, and not always the same
MAX_MEMBERS = 16  # of a down-stream group that are known at a time

REGISTER, SHARE = "register", "share"


class VirtualNode(RingMember):
    def __init__(
        self, id: Id, lineage: Lineage, paths: Paths, random: Random, settings: SonnetSettings, *, number: int
    ) -> None:
        super().__init__(id, lineage, random, settings.chord)
        self.number = number  # among those that its host has made
        self.paths = paths
        self.options = settings
        self.parent = lineage.parent
        self.parent_group = None if self.parent is None else self.parent.group
        self.upstream: Id | None = None
        self._upstream_rooted = False
        self._upstream_load = 0.0
        self.asks: list[Ask] = []  # of the host, which takes them after every call
        self.down: dict[int, Down] = {}
        self.is_settled = False  # whether the rows of the group are known here
        self._complete_ms = 0  # from when on they are all that there are
        self.load = 0.0  # packets sent a second
        self._peers_load = 2 * settings.capacity  # of the group it helps, where it is degraded; taken for overloaded
        self.packets_sent = 0
        self._sent_before = 0
        self._seen: dict[tuple[str, int], int] = {}  # packets and attempts, when
        self._scores: dict[Id, float] = {}  # that down-stream nodes give this one
        self._round_trip_ms = 0.0  # of the up-stream
        self._asked: dict[Id, int] = {}  # who was asked something that is timed, when
        self._rounds = 0
        self.born_ms = 0
        self.is_leaving = False  # it has taken leave, and only passes on what is on its way
        self.degraded_from: int | None = None  # the group of the query, where this node stands in the group above

    # Beginning

    def seat(self, members: Sequence[Id]) -> None:
        super().seat(members)
        self.is_settled = True

    def seat_below(self, upstream: VirtualNode, size: float) -> None:
        """Have a node for the up-stream, registered there."""
        self.upstream, self._upstream_rooted = upstream.id, True
        row = upstream._row(self.group, 0, 0)
        assert row is not None, "the up-stream is of the group above"
        row.members[self._id], row.size = 0, size
        row.spread = row.told = True
        upstream._scores[self._id] = 1.0

    def seat_row(self, group: int, some: Sequence[VirtualNode], size: float) -> None:
        """Adds the row of a group that hangs below, and some members of it."""
        row = self._row(group, 0, 0)
        assert row is not None, "the group hangs below this one's"
        row.size, row.spread, row.told = size, True, True
        if not row.members:
            row.members = dict.fromkeys((node.id for node in some), 0)

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        self.born_ms = now_ms
        self.is_settled = self.is_member or contact is None
        first = int(self._random.random() * self.options.register_ms)
        timers: Effects = [SetTimer(first, REGISTER), SetTimer(self.options.share_ms, SHARE)]
        return [*super().start(contact, now_ms), *timers]

    def _settle(self, now_ms: int) -> Effects:
        """Copy the group's rows, if there is anybody to copy them from."""
        if self.is_settled or not self.is_linked:
            return []
        if not self._shares_rows:
            self._settle_without(now_ms)
            return []
        return self._pass_on(AskRows(self._id), now_ms)

    def _settle_without(self, now_ms: int) -> None:
        """There is nobody to copy from; but there may have been, and then those below have yet to register again."""
        self.is_settled = True
        self._complete_ms = now_ms + COMPLETE_PERIODS * self.options.register_ms

    def vouches(self, now_ms: int) -> bool:
        return super().vouches(now_ms) and self.is_settled and self.is_linked and now_ms >= self._complete_ms

    def _pass_on(self, message: AskRows, now_ms: int) -> Effects:
        """To the next of the group, once around."""
        if self.after_in_group is not None:
            return [Send(self.after_in_group, message)]
        if self.is_first or (self.before_in_group is None and message.asked_by != self._id):
            return []  # as far as is known here there is nobody else: the asker is new as well, and asks again
        return self.route(self.range.low, ToGroup(self.group, True, message), now_ms)

    def _on_notify(self, sender: Id, message: Notify, now_ms: int) -> Effects:
        was = self.is_linked
        return [*super()._on_notify(sender, message, now_ms), *self._linked(was, now_ms)]

    def _on_state(self, sender: Id, message: State, now_ms: int) -> Effects:
        was = self.is_linked
        return [*super()._on_state(sender, message, now_ms), *self._linked(was, now_ms)]

    def _linked(self, was: bool, now_ms: int) -> Effects:
        """From now on the ring is what it seems to be from here: find the up-stream, and copy the group's rows."""
        if was or not self.is_linked:
            return []
        self.asks.append(Linked())
        return [*self._settle(now_ms), *self._seek(now_ms)]

    @property
    def rooted(self) -> bool:
        if not (self.is_linked and self.is_settled):
            return False
        return self.parent is None or (self.upstream is not None and self._upstream_rooted)

    def on_message(self, sender: Id, message: Message, now_ms: int) -> Effects:
        was = self.rooted
        effects = super().on_message(sender, message, now_ms)
        return [*effects, *self._tell_rooted(now_ms)] if self.rooted and not was else effects

    def _tell_rooted(self, now_ms: int) -> Effects:
        """To those who registered here: they need not ask again to hear of it."""
        told = Registered(True, self.load, self.group_size, self.below_size)
        rows = [row for row in self.down.values() if row.spread]
        return [Send(id, told) for row in rows for id in row.members if id in self._scores]

    def arrived(self, message: Route, now_ms: int) -> Effects:
        """What still comes to a node that has left is its successor's."""
        if self.is_leaving:
            return [Send(self.successors[0], message._replace(last=True, hops=message.hops + 1))]
        return super().arrived(message, now_ms)

    # Up-stream

    def _seek(self, now_ms: int) -> Effects:
        if self.parent_group is None or not self.is_linked:
            return []
        return self.to_group(self.parent_group, AskOffer(), now_ms)

    def no_group(self, group: int, payload: Message, now_ms: int) -> Effects:
        if isinstance(payload, AskOffer) and group == self.parent_group and self.upstream is None:
            assert self.parent is not None
            self.asks.append(NeedGroup(self.parent))
        return []

    def _on_ask_offer(self, sender: Id, message: AskOffer, now_ms: int) -> Effects:
        score = sum(self._scores.values()) / len(self._scores) if self._scores else 1.0
        return [Send(sender, Offer(score, self.load, self.group_size))]

    def _on_offer(self, sender: Id, message: Offer, now_ms: int) -> Effects:
        if group_of(sender, self.variant) == self.group:
            self._peers_load = max(self._peers_load, message.load)
        if group_of(sender, self.variant) != self.parent_group:
            return []
        if self.upstream is None:
            return self._choose(sender, now_ms)
        asked = self._asked.pop(sender, None)
        if sender == self.upstream or not self.options.chooses:
            return []
        if asked is None:  # found by way of the ring: ask it directly, to see how near it is
            self._asked[sender] = now_ms
            return [Send(sender, AskOffer())]
        theirs = self._cost(now_ms - asked, message.score, message.load)
        ours = self._cost(self._round_trip_ms, self._score, self._upstream_load)
        return self._choose(sender, now_ms) if theirs < self.options.better * ours else []

    def _cost(self, round_trip_ms: float, score: float, load: float) -> float:
        return (1.0 + round_trip_ms) * (1.0 + load / self.options.capacity) / max(score, 0.05)

    @property
    def _score(self) -> float:
        """Scores the up-stream by how soon it replies: all that a down-stream node knows of its quality."""
        return 1_000.0 / (1_000.0 + self._round_trip_ms)

    def choose_if_none(self, upstream: Id, now_ms: int) -> Effects:
        return self._choose(upstream, now_ms) if self.upstream is None and self.is_linked else []

    def _choose(self, upstream: Id, now_ms: int) -> Effects:
        before, self.upstream = self.upstream, upstream
        self._round_trip_ms = 0.0
        effects = self._register(now_ms)
        return [*effects, Send(before, Unregister(self.group, False))] if before is not None else effects

    def _register(self, now_ms: int) -> Effects:
        assert self.upstream is not None
        self._asked[self.upstream] = now_ms
        return [Send(self.upstream, Register(self.group, self._score, self.group_size))]

    def _on_registered(self, sender: Id, message: Registered, now_ms: int) -> Effects:
        if sender != self.upstream:
            return []
        took = now_ms - self._asked.pop(sender, now_ms)
        self._round_trip_ms = took if not self._round_trip_ms else 0.7 * self._round_trip_ms + 0.3 * took
        self._upstream_rooted, self._upstream_load = message.rooted, message.load
        if self._should_degrade(message):
            self.asks.append(Degrade())
        return []

    def _should_degrade(self, upstream: Registered) -> bool:
        """Where the group above is overloaded, and far fewer than those that it serves (section 3.3.2).

        Each by chance, so that as many do as would make up for the difference.
        """
        options = self.options
        wanted = upstream.below / options.ratio - upstream.size
        if not options.degrades or upstream.load <= options.capacity or wanted <= 0:
            return False
        if self.parent is None or self.parent.is_zero or self.degraded_from is not None:
            return False
        return self._random.random() < wanted / upstream.below

    @property
    def below_size(self) -> float:
        return sum(row.size for row in self.down.values())

    def _ask_a_peer(self, now_ms: int) -> Effects:
        """A degraded node asks one after the other of the group that it helps whether it is still overloaded."""
        self._peers_load *= 0.7
        return self.to_group(self.group, AskOffer(), now_ms) if self.degraded_from is not None else []

    def _should_upgrade(self) -> bool:
        if self.degraded_from is None:
            return False
        fewer = self.below_size / self.group_size < self.options.ratio / 2
        relieved = max(self.load, self._peers_load) < self.options.capacity / 2 or fewer
        return relieved and self._random.random() < 0.5  # not all at once

    # Down-stream

    def _on_register(self, sender: Id, message: Register, now_ms: int) -> Effects:
        row = self._row(message.group, 0, now_ms)
        if row is None or group_of(sender, self.variant) != message.group:
            return []
        if len(row.members) < FEW_MEMBERS and not self._serves(row):
            row.spread = False  # hearsay: the group may have been gone in between, and be forgotten by others
            row.announced_ms = min(row.announced_ms, now_ms - self.options.announce_ms)
        if sender not in row.members and len(row.members) < FEW_MEMBERS:
            row.announced_ms = min(row.announced_ms, now_ms - self.options.announce_ms)  # others may need it as well
        row.members.pop(sender, None)
        row.members[sender] = now_ms
        row.size = message.size
        while len(row.members) > MAX_MEMBERS:
            del row.members[next(iter(row.members))]
        self._scores[sender] = message.score
        effects = self._announce(message.group, row, sender, now_ms)
        rooted = self.rooted and row.spread
        return [*effects, Send(sender, Registered(rooted, self.load, self.group_size, self.below_size))]

    def _serves(self, row: Down) -> bool:
        return any(id in self._scores for id in row.members)

    def _row(self, group: int, age_ms: int, now_ms: int) -> Down | None:
        """The row of a group, made where there is none; None where the group does not hang below this one."""
        row = self.down.get(group)
        if row is None:
            digest = group_digest(group, self.variant)
            if not hangs_below(self.digest, digest):
                return None
            row = self.down[group] = Down(digest, now_ms - age_ms)
        row.seen_ms = max(row.seen_ms, now_ms - age_ms)
        return row

    def _announce(self, group: int, row: Down, member: Id, now_ms: int) -> Effects:
        if not self._shares_rows:
            row.spread = True
            return []
        # What is not confirmed is announced with every registration: who has a row of long ago would drop it.
        again_ms = self.options.announce_ms if row.told else self.options.register_ms // 2
        if row.announced_ms > now_ms - again_ms:
            return []
        row.announced_ms, row.told = now_ms, False
        message = Row(group, member, 0, True, row.size)
        number = self.begin(message, now_ms)
        return [*self.cast(message, now_ms, number), *self._done(number, 0, now_ms)]

    def told_all(self, payload: Message, now_ms: int) -> Effects:
        if isinstance(payload, Packet):
            self.asks.append(AllTold(payload.event.id))
            return []
        if not isinstance(payload, Row) or payload.group not in self.down:
            return []
        row = self.down[payload.group]
        row.spread = row.told = True
        return self._tell_rooted(now_ms) if self.rooted else []

    def _on_unregister(self, sender: Id, message: Unregister, now_ms: int) -> Effects:
        self._scores.pop(sender, None)
        row = self.down.get(message.group)
        if row is None:
            return []
        row.members.pop(sender, None)
        if not message.gone or row.members:
            return []
        del self.down[message.group]
        return self.cast(message, now_ms)

    # Rows, among the members of the group

    @property
    def _shares_rows(self) -> bool:
        """Whether there are others in the group to share rows with."""
        return not self.is_only

    def _on_row(self, sender: Id, message: Row, now_ms: int) -> Effects:
        if message.age_ms >= self.options.expiry_ms:
            return []
        row = self._row(message.group, message.age_ms, now_ms)
        if row is not None:
            row.spread = row.spread or message.spread
            row.size = message.size
            if message.member is not None and len(row.members) < FEW_MEMBERS:
                row.members.setdefault(message.member, now_ms - message.age_ms)
        return []

    def _rows(self, now_ms: int) -> list[Row]:
        return [
            Row(group, next(reversed(row.members), None), now_ms - row.seen_ms, row.spread, row.size)
            for group, row in self.down.items()
        ]

    def _on_ask_rows(self, sender: Id, message: AskRows, now_ms: int) -> Effects:
        if message.asked_by == self._id:
            self._settle_without(now_ms)  # it has been once around: all are new
            return []
        return self._tell_rows(message.asked_by, True, now_ms) if self.is_settled else self._pass_on(message, now_ms)

    def _tell_rows(self, to: Id, answer: bool, now_ms: int) -> Effects:
        rows = self._rows(now_ms)
        parts = [tuple(rows[at : at + MAX_ROWS_SENT]) for at in range(0, len(rows), MAX_ROWS_SENT)] or [()]
        return [Send(to, KnownRows(part, answer)) for part in parts]

    def _on_rows(self, sender: Id, message: KnownRows, now_ms: int) -> Effects:
        if group_of(sender, self.variant) != self.group:
            return []
        for row in message.rows:
            self._on_row(sender, row, now_ms)
        self.is_settled = self.is_settled or message.answer
        return []

    def _share(self, now_ms: int) -> Effects:
        """With the next of the group, in case that one missed something."""
        oldest = now_ms - self.options.expiry_ms
        for group in [group for group, row in self.down.items() if row.seen_ms < oldest]:
            del self.down[group]
        for row in self.down.values():
            row.members = {id: at for id, at in row.members.items() if at >= oldest}
        known = {id for row in self.down.values() for id in row.members}
        self._scores = {id: score for id, score in self._scores.items() if id in known}
        forgotten = now_ms - self.options.remembered_ms
        self._seen = {packet: at for packet, at in self._seen.items() if at >= forgotten}
        self._asked = {id: at for id, at in self._asked.items() if at >= forgotten}
        self.forget_tellings(now_ms - self.options.expiry_ms)
        sent, self._sent_before = self.packets_sent - self._sent_before, self.packets_sent
        self.load = 0.5 * self.load + 0.5 * sent * 1_000 / self.options.share_ms
        if not self._shares_rows or not self.down or not self.is_settled:
            return []
        next_one = self.after_in_group if self.after_in_group is not None else self.first
        return self._tell_rows(next_one, False, now_ms) if next_one is not None else []

    # Packets

    def _on_packet(self, sender: Id, message: Packet, now_ms: int) -> Effects:
        """From up-stream, or as the first of all (section 3.2)."""
        peer = self.after_in_group if self.after_in_group is not None else self.before_in_group
        number = self._answer_to(sender, message.number, message, now_ms)
        packet = message._replace(number=number)
        if not (self.is_settled and self.is_linked) and peer is not None and sender != peer:
            self.expect(number)
            return [Send(peer, packet)]  # which knows what hangs below
        if self._has_seen(message, now_ms):
            return self._done(number, 0, now_ms)  # the earlier sender is notified when all below have it
        effects = self._send_down(packet, now_ms)
        self.expect(number, len(effects))
        if not self.lineage.is_zero:
            self.asks.append(Received(message.event))
            effects += self.cast(packet, now_ms, number)
        return [*effects, *self._done(number, 0, now_ms)]

    def _has_seen(self, packet: Packet, now_ms: int) -> bool:
        key = (packet.event.id, packet.attempt)
        seen = key in self._seen
        self._seen[key] = now_ms
        return seen

    def _send_down(self, message: Packet, now_ms: int) -> Effects:
        header = self.paths.header(message.entries, message.mask)
        effects: Effects = []
        for group, row in self.down.items():
            if goes_down(header, self.digest, row.digest):
                effects += self._send_to(group, row, message, now_ms)
        return effects

    def _send_to(self, group: int, row: Down, message: Packet, now_ms: int) -> Effects:
        """To one of those that chose this node, to another that is known, or to the one that the ring finds."""
        chosen = [id for id in row.members if id in self._scores] or list(row.members)
        if not chosen:
            return self.to_group(group, message, now_ms)
        return [Send(chosen[int(self._random.random() * len(chosen))], message)]

    def told(self, payload: Message, now_ms: int) -> Effects:
        if isinstance(payload, Row):
            self._on_row(self._id, payload, now_ms)
            if payload.group in self.down:
                self.down[payload.group].announced_ms = now_ms
            return []
        if isinstance(payload, Unregister):
            self.down.pop(payload.group, None)
            return []
        assert isinstance(payload, Packet)
        if self._has_seen(payload, now_ms):
            return []
        self.asks.append(Received(payload.event))
        return []

    # Time, and what came back

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag == REGISTER:
            again = SetTimer(self.options.register_ms, REGISTER)
            return [again, *self._settle(now_ms), *self._keep_upstream(now_ms)]
        if tag == SHARE:
            if self._should_upgrade():
                self.asks.append(Upgrade())
            return [SetTimer(self.options.share_ms, SHARE), *self._share(now_ms), *self._ask_a_peer(now_ms)]
        return super().on_timer(tag, now_ms)

    def _keep_upstream(self, now_ms: int) -> Effects:
        self._rounds += 1
        if self.upstream is None:
            return self._seek(now_ms)
        if now_ms - self._asked.get(self.upstream, now_ms) > 3 * self.options.register_ms:
            self._lose_upstream()  # it does not answer
            return self._seek(now_ms)
        asked = self._asked.get(self.upstream)
        effects = self._register(now_ms)  # whose time of asking stays the first that was not answered
        if asked is not None:
            self._asked[self.upstream] = asked
        if self.options.chooses and self._rounds % self.options.looks_around == 0:
            effects += self._seek(now_ms)
        return effects

    def _lose_upstream(self) -> None:
        self.upstream, self._upstream_rooted = None, False

    def forget_host(self, host: Id, now_ms: int) -> Effects:
        effects = super().forget_host(host, now_ms)
        for row in self.down.values():
            row.members = {id: at for id, at in row.members.items() if host_of(id) != host}
        if self.first is not None and host_of(self.first) == host:
            self.first = None
        if self.upstream is not None and host_of(self.upstream) == host:
            self._lose_upstream()
            effects += self._seek(now_ms)
        return effects

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        for row in self.down.values():
            row.members.pop(to, None)
        self._scores.pop(to, None)
        effects = super().on_undelivered(to, message, now_ms)
        if to == self.upstream:
            self._lose_upstream()
            effects += self._seek(now_ms)
        if isinstance(message, Packet):
            group = group_of(to, self.variant)
            if group in self.down:
                effects += self._send_to(group, self.down[group], message, now_ms)
            elif group == self.group:  # it was handed to a peer that knew more
                effects += self._on_packet(to, message, now_ms)
        return effects

    # Leaving

    def leave(self, now_ms: int) -> Effects:
        """What hangs below is left to another member; who registered here finds that out by itself."""
        effects: Effects = []
        if self.upstream is not None:
            # With others below, the group is not gone: they put another there, and packets must wait for it till then.
            effects.append(Send(self.upstream, Unregister(self.group, self.is_only and not self.down)))
        peer = self.after_in_group if self.after_in_group is not None else self.before_in_group
        if peer is not None and self.down:
            effects += self._tell_rows(peer, False, now_ms)
        return [*effects, *super().leave(now_ms)]

    handlers: ClassVar[Handlers] = {
        AskOffer: _on_ask_offer,
        Offer: _on_offer,
        Register: _on_register,
        Registered: _on_registered,
        Unregister: _on_unregister,
        AskRows: _on_ask_rows,
        KnownRows: _on_rows,
        Packet: _on_packet,
        Row: _on_row,
    }
