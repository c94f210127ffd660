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

from random import Random
from typing import ClassVar

from tidings.systems.protocols.effects import Effects, Handlers, Id, Message, Send, SetTimer, Tag
from tidings.systems.protocols.ring import Notify, Route, State
from tidings.systems.sonnet.group_rows import COMPLETE_PERIODS, FEW_MEMBERS, NEVER_MS, Down, RowKeeper
from tidings.systems.sonnet.messages import (
    AllTold,
    Ask,
    AskOffer,
    Degrade,
    Linked,
    NeedGroup,
    Offer,
    Packet,
    Received,
    Register,
    Registered,
    Row,
    Unregister,
    Upgrade,
    Wait,
)
from tidings.systems.sonnet.paths import (
    Lineage,
    Paths,
    group_of,
    host_of,
)
from tidings.systems.sonnet.prefix_ring import Telling
from tidings.systems.sonnet.sonnet_settings import SonnetSettings

GRADUALLY = 0.25  # of the nodes that have to move, in one period: where they go has to take them in
MAX_MEMBERS = 16  # of a down-stream group that are known at a time

REGISTER, SHARE = "register", "share"


class VirtualNode(RowKeeper):
    def __init__(
        self, id: Id, lineage: Lineage, paths: Paths, random: Random, settings: SonnetSettings, *, number: int
    ) -> None:
        super().__init__(id, lineage, random, settings)
        self.number = number  # among those that its host has made
        self.paths = paths
        self.parent = lineage.parent
        self.parent_group = None if self.parent is None else self.parent.group
        self.upstream: Id | None = None
        self._upstream_rooted = False
        self._upstream_load = 0.0
        self.asks: list[Ask] = []  # of the host, which takes them after every call
        self.load = 0.0  # packets sent a second
        self._peers_load = 2 * settings.capacity  # of the group it helps, where it is degraded; taken for overloaded
        self.packets_sent = 0
        self._sent_before = 0
        self._seen: dict[tuple[str, int], int] = {}  # packets and attempts, when
        self._unplaced: list[tuple[int, int, Packet]] = []  # when to try again, for which group, what found nobody
        self._scores: dict[Id, float] = {}  # that down-stream nodes give this one
        self._round_trip_ms = 0.0  # of the up-stream
        self._asked: dict[Id, int] = {}  # who was asked something that is timed, when
        self._rounds = 0
        self.born_ms = 0
        self.degraded_from: int | None = None  # the group of the query, where this node stands in the group above

    # Beginning

    def seat_below(self, upstream: VirtualNode, size: float) -> None:
        """Have a node for the up-stream, registered there."""
        self.upstream, self._upstream_rooted = upstream.id, True
        row = upstream._row(self.group, 0, 0)
        assert row is not None, "the up-stream is of the group above"
        row.members[self._id], row.size = 0, size
        row.spread = row.told = True
        upstream._scores[self._id] = 1.0

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        self.born_ms = now_ms
        self.is_settled = self.is_member or contact is None
        first = int(self._random.random() * self.options.register_ms)
        timers: Effects = [SetTimer(first, REGISTER), SetTimer(self.options.share_ms, SHARE)]
        return [*super().start(contact, now_ms), *timers]

    def vouches(self, message: Message, now_ms: int) -> bool:
        """Rows matter to who sends a packet down-stream; others of the group only pass it on among themselves."""
        if not (super().vouches(message, now_ms) and self.is_linked):
            return False
        return not isinstance(message, Packet) or (self.is_settled and now_ms >= self._complete_ms)

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
        if self._held:
            effects += self.release(now_ms)
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
        if isinstance(payload, Packet):
            self._unplaced.append((now_ms + self.options.register_ms, group, payload))
            return self.warn(payload.number, now_ms)
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
        return self._random.random() < GRADUALLY * wanted / upstream.below

    def _ask_a_peer(self, now_ms: int) -> Effects:
        """A degraded node asks one after the other of the group that it helps whether it is still overloaded."""
        self._peers_load *= 0.7
        return self.to_group(self.group, AskOffer(), now_ms) if self.degraded_from is not None else []

    def _should_upgrade(self) -> bool:
        """Where the group is relieved, or more than are needed for those below: each by chance, as in degrading."""
        if self.degraded_from is None:
            return False
        size, enough = self.group_size, 2 * self.below_size / self.options.ratio
        relieved = max(self.load, self._peers_load) < self.options.capacity / 2
        surplus = size if relieved else size - enough
        return self._random.random() < GRADUALLY * surplus / size

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

    def _share(self, now_ms: int) -> Effects:
        """With the next of the group, in case that one missed something; what is long ago is forgotten."""
        self.drop_old_rows(now_ms)
        known = {id for row in self.down.values() for id in row.members}
        self._scores = {id: score for id, score in self._scores.items() if id in known}
        forgotten = now_ms - self.options.remembered_ms
        self._seen = {packet: at for packet, at in self._seen.items() if at >= forgotten}
        self._asked = {id: at for id, at in self._asked.items() if at >= forgotten}
        self.forget_tellings(now_ms - self.options.expiry_ms)
        sent, self._sent_before = self.packets_sent - self._sent_before, self.packets_sent
        self.load = 0.5 * self.load + 0.5 * sent * 1_000 / self.options.share_ms
        return self.share_rows(now_ms)

    # Packets

    def _on_packet(self, sender: Id, message: Packet, now_ms: int) -> Effects:
        """From up-stream, or as the first of all (section 3.2)."""
        peer = self.after_in_group if self.after_in_group is not None else self.before_in_group
        number = self._answer_to(sender, message.number, message, now_ms)
        packet = message._replace(number=number)
        if not (self.is_settled and self.is_linked) and peer is not None and sender != peer:
            self.relay(number)
            return [Send(peer, packet)]  # which knows what hangs below
        if self._has_seen(message, now_ms):
            return self._done(number, 0, now_ms)  # the earlier sender is notified when all below have it
        effects = self._send_down(packet, now_ms)
        self.expect(number, len(effects))
        if not self.lineage.is_zero:
            self.asks.append(Received(message.event))
            effects += self.cast(packet, now_ms, number)
        return [*effects, *self._done(number, 0, now_ms)]

    def pass_on_again(self, telling: Telling, number: int, now_ms: int) -> Effects:
        if not isinstance(telling.message, Packet):
            return super().pass_on_again(telling, number, now_ms)
        packet = telling.message._replace(number=number)
        effects = self._send_down(packet, now_ms, since_ms=telling.at_ms)
        self.expect(number, len(effects))
        return effects if self.lineage.is_zero else [*effects, *self.cast(packet, now_ms, number)]

    def _place_again(self, now_ms: int) -> Effects:
        """Try again what found nobody in its group: a node that hangs below it puts a placeholder there."""
        due, self._unplaced = self._unplaced, []
        effects: Effects = []
        for at_ms, group, packet in due:
            row = self.down.get(group)
            if row is None or now_ms >= row.seen_ms + COMPLETE_PERIODS * self.options.register_ms:
                self.down.pop(group, None)  # nobody has come: the node that told of it did so from memory
                effects += self._done(packet.number, 1, now_ms)
            elif at_ms <= now_ms:
                effects += self._send_to(group, row, packet, now_ms)
            else:
                self._unplaced.append((at_ms, group, packet))
        return effects

    def has_to_wait(self, payload: Message) -> None:
        if isinstance(payload, Packet):
            self.asks.append(Wait(payload.event.id))

    def _has_seen(self, packet: Packet, now_ms: int) -> bool:
        key = (packet.event.id, packet.attempt)
        seen = key in self._seen
        self._seen[key] = now_ms
        return seen

    def _send_down(self, message: Packet, now_ms: int, since_ms: int = NEVER_MS) -> Effects:
        """To the groups that may want it, of those that are known since then."""
        effects: Effects = []
        admitted = self.paths.admitted(tuple(self.down), message) if self.down else []
        for (group, row), wanted in zip(self.down.items(), admitted, strict=True):
            if wanted and row.known_ms >= since_ms:
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
        return [*self._on_time(tag, now_ms), *self.release(now_ms), *self._place_again(now_ms)]

    def _on_time(self, tag: Tag, now_ms: int) -> Effects:
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
                effects += self._on_packet(self._id, message, now_ms)
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
        Packet: _on_packet,
    }
