"""Sonnet (Zhou et al., SIGMOD 2007): XML documents find path queries by digests, on a ring of virtual nodes.

A host has a 0-node, by which it is on the ring and where packets enter, a virtual node for each subscription, and
placeholders for groups that its own hang below and where nobody else is. It carries what virtual nodes say to each
other, filters what they receive, and moves a subscription a group up or down as its nodes ask: the new virtual node is
in place before the old one goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar, NamedTuple

from tidings.errors import SubscriptionError
from tidings.systems.overlay import EventPath, MemoryLog, ObservedWorld, Overlay, PublicationLog, Start
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import (
    Active,
    Deliver,
    Dispatching,
    Effects,
    Event,
    Handlers,
    Id,
    Message,
    Ready,
    Send,
    SetTimer,
    Tag,
)
from tidings.systems.protocols.message_codec import MessageError
from tidings.systems.protocols.ring import STABILIZE, FoundSuccessor, Leaving, Route, State
from tidings.systems.sonnet.messages import (
    MESSAGES,
    AllTold,
    CastDone,
    CastFromFirst,
    CastWaits,
    Degrade,
    GroupCast,
    Linked,
    NeedGroup,
    NoGroup,
    Packet,
    Received,
    Register,
    Row,
    ToGroup,
    Unregister,
    Upgrade,
    Virtual,
    VirtualRefused,
    Wait,
    packet_in,
)
from tidings.systems.sonnet.paths import (
    HOST_BITS,
    RING_BITS,
    Lineage,
    Paths,
    group_digest,
    host_of,
    zero_id,
    zero_lineage,
)
from tidings.systems.sonnet.placement import network_view
from tidings.systems.sonnet.sonnet_settings import SonnetSettings
from tidings.systems.sonnet.virtual_node import VirtualNode

GRACE_PERIODS = 3  # that a placeholder stays without anybody below it, or beside one that is new in its group
LINGER_MS = 3_000  # that a virtual node still passes on what is on its way, after it has left
PASSED_ON = (Route, CastDone, CastWaits, NoGroup)  # anything else comes back, and is sent to another
JOINING = (FoundSuccessor, State)  # all that concerns a node that is not on the ring: it may have been, before a crash

TIDY = "tidy"


class VirtualTimer(NamedTuple):
    """Of the virtual node of this number: another may have its id by now."""

    number: int
    tag: Tag


class Forget(NamedTuple):
    """The virtual node of this number has left long enough ago."""

    number: int


class Again(NamedTuple):
    """A packet may have to be sent again."""

    event: str
    times: int  # that it was sent


class Own:
    """A subscription of a client of this host."""

    __slots__ = ("active", "lineage", "moving", "node", "text")

    def __init__(self, text: str, lineage: Lineage, node: Id) -> None:
        self.text = text
        self.lineage = lineage
        self.node = node
        self.moving: Id | None = None  # a virtual node in another group, which takes over when it is in place
        self.active = False


class SonnetNode(Dispatching):
    """A host. `paths` says what queries and documents mean."""

    virtual_node: ClassVar[type[VirtualNode]] = VirtualNode

    def __init__(
        self,
        id: Id,
        random: Random,
        paths: Paths,
        settings: SonnetSettings = SonnetSettings(),  # noqa: B008 - immutable
        *,
        log: PublicationLog | None = None,
    ) -> None:
        assert id < 1 << HOST_BITS, "a host's id is the end of its virtual nodes'"
        self._id = id
        self._random = random
        self.paths = paths
        self.options = settings
        self.virtual: dict[Id, VirtualNode] = {}
        self._numbered: dict[int, VirtualNode] = {}
        self._made = 0
        self.own: dict[str, Own] = {}
        self._owner: dict[Id, str] = {}  # virtual node → subscription
        self.placeholders: dict[int, Id] = {}  # group → virtual node
        self._filtered: dict[tuple[str, str], int] = {}  # subscription and event, when
        self.log: PublicationLog = log if log is not None else MemoryLog()
        self._untold: dict[str, Packet] = {}  # published here, and not confirmed
        self._waiting: set[str] = set()  # of these, what some node holds and confirms later
        self._is_ready = False
        self.received = 0  # packets that the filter was given
        self.packets_sent = 0
        self.repeats_sent = 0  # of these, what its publisher had sent before
        self.zero = self._make(zero_lineage(paths.variant), "")

    @property
    def id(self) -> Id:
        return self._id

    def _make(self, lineage: Lineage, name: str) -> VirtualNode:
        """A virtual node of this host; its node digest is a hash of the host's id and of what it is for."""
        salt = 0
        while (id := zero_id(lineage, self._id, f"{name} {salt}" if name else "")) in self.virtual:
            salt += 1
        node = self.virtual_node(id, lineage, self.paths, self._random, self.options, number=self._made)
        self.virtual[id] = self._numbered[self._made] = node
        self._made += 1
        return node

    # Joining and leaving

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        through = None if contact is None else zero_id(zero_lineage(self.paths.variant), contact, "")
        effects: Effects = []
        for node in self.virtual.values():  # its 0-node alone, but for a host that was seated with others
            effects += self._carry(node, node.start(through, now_ms), now_ms)
        return [*effects, SetTimer(self.options.register_ms, TIDY)]

    def seat(self, subscription: str, text: str) -> VirtualNode:
        """The virtual node of a subscription that is taken to be in place (`seat_at_rest`)."""
        lineage = self.paths.lineage(text)
        node = self._make(lineage, subscription)
        own = self.own[subscription] = Own(text, lineage, node.id)
        own.active = True
        self._owner[node.id] = subscription
        return node

    def seat_placeholder(self, lineage: Lineage) -> VirtualNode:
        node = self._make(lineage, "placeholder")
        self.placeholders[node.group] = node.id
        return node

    def leave(self, now_ms: int) -> Effects:
        effects: Effects = []
        for node in self.virtual.values():
            effects += self._carry(node, node.leave(now_ms), now_ms)
        return effects

    def _join(self, node: VirtualNode, now_ms: int) -> Effects:
        return self._carry(node, node.start(self.zero.id, now_ms), now_ms)

    def _remove(self, node: VirtualNode, now_ms: int) -> Effects:
        """Take leave of the others; what is on its way through this node is still passed on for a while."""
        self._owner.pop(node.id, None)
        if self.placeholders.get(node.group) == node.id:
            del self.placeholders[node.group]
        effects = self._carry(node, node.leave(now_ms), now_ms)
        node.is_leaving = True
        return [*effects, SetTimer(LINGER_MS, Forget(node.number))]

    # Subscriptions

    def subscribe(self, subscription: str, text: str, now_ms: int) -> Effects:
        lineage = self.paths.lineage(text)  # a path that cannot be read is refused before anything changes
        effects = self.unsubscribe(subscription, now_ms) if subscription in self.own else []
        node = self._make(lineage, subscription)
        self.own[subscription] = Own(text, lineage, node.id)
        self._owner[node.id] = subscription
        return [*effects, *self._join(node, now_ms)]

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects:
        own = self.own.pop(subscription, None)
        if own is None:
            raise SubscriptionError(f"node {self.id}: there is no subscription {subscription!r} here")
        effects: Effects = []
        for id in (own.node, own.moving):
            if id is not None:
                effects += self._give_up(self.virtual[id], now_ms)
        return effects

    def _give_up(self, node: VirtualNode, now_ms: int) -> Effects:
        """A virtual node that others hang below stays, as a placeholder, where nobody else can take its place."""
        has_heir = node.group in self.placeholders or node.follows_another(self._grace_ms(now_ms))
        if node.down and not has_heir:
            self._owner.pop(node.id, None)
            self.placeholders[node.group] = node.id
            node.degraded_from = None
            return []
        return self._remove(node, now_ms)

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        match part:
            case Event():
                self.paths.document(part)
            case Packet(_, entries, mask):
                self.paths.header(entries, mask)
            case Row(group=group) | Register(group=group) | Unregister(group=group) | ToGroup(group=group):
                group_digest(group, self.paths.variant)
            case GroupCast(payload=payload) | CastFromFirst(payload=payload):
                if not isinstance(payload, Packet | Row | Unregister):
                    raise MessageError(f"message: a {type(payload).__name__} is not cast in a group")
            case Leaving(successors=()):
                raise MessageError("message: Leaving names no successor")

    # Packets

    def publish(self, event: Event, now_ms: int) -> Effects:
        """To the 0-node that a random node digest falls to (section 3.3.1)."""
        packet = self.paths.packet(event)  # what is no document is refused before anything changes
        self.log.append(event)
        self._untold[event.id] = packet
        return self._send(event.id, 0, now_ms)

    def _send(self, event: str, times: int, now_ms: int) -> Effects:
        """Again and again, until everybody has been told, or for so long that something else must be wrong."""
        zero, packet = self.zero, self._untold[event]
        number = zero.begin(packet, now_ms)
        zero.expect(number)
        key = zero.key_in(zero.group) if self.options.enters_anywhere else zero.range.low
        message = ToGroup(
            zero.group, key == zero.range.low, packet._replace(attempt=now_ms, number=number, repeats=times)
        )
        again = SetTimer(self.options.again_ms, Again(event, times + 1))
        return [again, *self._carry(zero, zero.route(key, message, now_ms), now_ms)]

    def _filter(self, node: VirtualNode, event: Event, now_ms: int) -> Effects:
        """The upper layer: what the query is exactly satisfied by goes to the user (section 2)."""
        name = self._owner.get(node.id)
        if name is None or (name, event.id) in self._filtered:
            return []
        self._filtered[name, event.id] = now_ms
        self.received += 1
        return [Deliver(name, event)] if self.paths.holds(self.own[name].text, event) else []

    # What virtual nodes say and ask

    def _on_virtual(self, sender: Id, message: Virtual, now_ms: int) -> Effects:
        node = self.virtual.get(message.to)
        if node is None or not _takes(node, message.payload):
            return [Send(sender, VirtualRefused(*message))]
        return self._carry(node, node.on_message(message.sender, message.payload, now_ms), now_ms)

    def _on_refused(self, sender: Id, message: VirtualRefused, now_ms: int) -> Effects:
        node = self.virtual.get(message.sender)
        if node is None:
            return []
        return self._carry(node, node.on_undelivered(message.to, message.payload, now_ms), now_ms)

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        effects: Effects = []
        for node in list(self.virtual.values()):
            effects += self._carry(node, node.forget_host(to, now_ms), now_ms)
        return (
            [*effects, *self._on_refused(to, VirtualRefused(*message), now_ms)]
            if isinstance(message, Virtual)
            else effects
        )

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag == TIDY:
            return [SetTimer(self.options.register_ms, TIDY), *self._tidy(now_ms)]
        if isinstance(tag, Again):
            return self._try_again(tag, now_ms)
        node = self._numbered.get(tag.number)
        if isinstance(tag, Forget) and node is not None:
            del self.virtual[node.id], self._numbered[tag.number]
        if isinstance(tag, Forget) or node is None or node.is_leaving:
            return []
        assert isinstance(tag, VirtualTimer)
        effects = node.on_timer(tag.tag, now_ms)
        if tag.tag == STABILIZE and node.is_alone:
            others = [other.id for other in self.virtual.values() if not other.is_leaving and not other.is_alone]
            effects += node.rejoin_through(others[0]) if others else []
        return self._carry(node, effects, now_ms)

    def _try_again(self, again: Again, now_ms: int) -> Effects:
        if again.event not in self._untold:
            return []
        if again.event in self._waiting:
            self._waiting.discard(again.event)
            return [SetTimer(self.options.wait_ms, again)]
        if again.times < self.options.attempts:
            return self._send(again.event, again.times, now_ms)
        self._settle(again.event)
        return []

    def _settle(self, event: str) -> None:
        self._untold.pop(event, None)
        self._waiting.discard(event)
        self.log.settle(event)

    def _carry(self, node: VirtualNode, effects: Effects, now_ms: int) -> Effects:
        """A virtual node's effects as the host's, and what it asks of the host."""
        carried: Effects = []
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._count(node, packet_in(message))
                    carried.append(Send(host_of(to), Virtual(to, node.id, message)))
                case SetTimer(after_ms, tag):
                    carried.append(SetTimer(after_ms, VirtualTimer(node.number, tag)))
        asks, node.asks = node.asks, []
        for ask in asks:
            match ask:
                case Received(event):
                    carried += self._filter(node, event, now_ms)
                case AllTold(event):
                    self._settle(event)
                case Wait(event):
                    self._waiting.add(event)
                case NeedGroup(lineage):
                    carried += self._hold_place(lineage, now_ms)
                case Linked():
                    carried += self._serve_own(node, now_ms)
                case Degrade():
                    carried += self._degrade(node, now_ms)
                case Upgrade():
                    carried += self._upgrade(node, now_ms)
        return [*carried, *self._progress(node, now_ms)]

    def _count(self, node: VirtualNode, packet: Packet | None) -> None:
        if packet is not None:
            node.packets_sent += 1
            self.packets_sent += 1
            self.repeats_sent += packet.repeats > 0

    def _progress(self, node: VirtualNode, now_ms: int) -> Effects:
        """What is in place now that was not before."""
        if node is self.zero and not self._is_ready and node.is_member and node.is_settled:
            self._is_ready = True
            effects: Effects = [Ready()]
            for event in self.log.pending():
                if event.id not in self._untold:  # published before a crash, and not confirmed
                    self._untold[event.id] = self.paths.packet(event)
                    effects += self._send(event.id, 0, now_ms)
            return effects
        name = self._owner.get(node.id)
        if name is None or node.is_leaving or not node.rooted:
            return []
        own = self.own[name]
        effects = []
        if own.moving == node.id:
            before, own.node, own.moving = self.virtual[own.node], node.id, None
            effects += self._give_up(before, now_ms)
        if not own.active:
            own.active = True
            effects.append(Active(name))
        return effects

    def _serve_own(self, node: VirtualNode, now_ms: int) -> Effects:
        """To those of this host that found nobody in the group."""
        effects: Effects = []
        for other in list(self.virtual.values()):
            if other.parent_group == node.group:
                effects += self._carry(other, other.choose_if_none(node.id, now_ms), now_ms)
        return effects

    def _hold_place(self, lineage: Lineage, now_ms: int) -> Effects:
        if lineage.group in self.placeholders:
            return []
        node = self._make(lineage, "placeholder")
        self.placeholders[node.group] = node.id
        return self._join(node, now_ms)

    def _degrade(self, node: VirtualNode, now_ms: int) -> Effects:
        """A placeholder, which others hang below, stays where it is: its host helps in the group above beside it."""
        assert node.parent is not None
        if node.id in self._owner:
            return self._move(node, node.parent, now_ms)
        if node.parent.group in self.placeholders:
            return []
        effects = self._hold_place(node.parent, now_ms)
        self.virtual[self.placeholders[node.parent.group]].degraded_from = node.group
        return effects

    def _upgrade(self, node: VirtualNode, now_ms: int) -> Effects:
        """A placeholder that has helped is one as any other now: nobody else may be in the group any more."""
        name = self._owner.get(node.id)
        if name is not None:
            return self._move(node, self.own[name].lineage, now_ms)
        node.degraded_from = None
        return []

    def _move(self, node: VirtualNode, lineage: Lineage, now_ms: int) -> Effects:
        """Have the subscription of a virtual node served in another group as well, and then only there."""
        name = self._owner[node.id]
        own = self.own[name]
        if own.moving is not None:
            return []
        moved = self._make(lineage, name)
        moved.degraded_from = own.lineage.group if lineage.group != own.lineage.group else None
        own.moving = moved.id
        self._owner[moved.id] = name
        return self._join(moved, now_ms)

    # Time

    def _grace_ms(self, now_ms: int) -> int:
        """Who has been there since then has its place on the ring, and the rows of its group."""
        return now_ms - GRACE_PERIODS * self.options.register_ms

    def _tidy(self, now_ms: int) -> Effects:
        """Placeholders that nobody needs go: those with nobody below, and those with another member before them."""
        effects: Effects = []
        grace_ms = self._grace_ms(now_ms)
        for id in list(self.placeholders.values()):
            node = self.virtual[id]
            needless = not node.down or (node.follows_another(grace_ms) and node.degraded_from is None)
            if needless and node.is_linked and node.born_ms < grace_ms and self._random.random() < 0.5:
                effects += self._remove(node, now_ms)  # not all at once, where several were made at once
        horizon = now_ms - self.options.remembered_ms
        self._filtered = {key: at for key, at in self._filtered.items() if at >= horizon}
        return effects

    handlers: ClassVar[Handlers] = {
        Virtual: _on_virtual,
        VirtualRefused: _on_refused,
    }


def _takes(node: VirtualNode, message: Message) -> bool:
    if node.is_leaving:
        return isinstance(message, PASSED_ON)
    return node.is_member or isinstance(message, JOINING)


def _ground(content: Content, settings: SonnetSettings) -> Paths:
    return Paths(network_view(settings.ordering))


def _make(kind: type[SonnetNode], start: Start[Paths, SonnetSettings]) -> SonnetNode:
    log = start.log if start.settings.log else None
    return kind(start.id, start.random, start.ground, start.settings, log=log)


def _seat(hosts: Sequence[SonnetNode]) -> None:
    """Every 0-node on the ring, in its place; there are no others yet."""
    ring = sorted(host.zero.id for host in hosts)
    for host in hosts:
        host.zero.seat(ring)


def _event_path(event: str, world: ObservedWorld) -> EventPath:
    from tidings.systems.sonnet.packet_path import PacketPath  # which looks into nodes

    return PacketPath(event, world)


OVERLAY = Overlay(
    SonnetNode,
    _make,
    _ground,
    _seat,
    MESSAGES,
    SonnetSettings(),
    simulated=SonnetSettings(capacity=1.5, ratio=2.0, id_bits=32),  # so little that nodes degrade and upgrade again
    wire_bits=RING_BITS,
    host_of=host_of,
    least=lambda settings: settings.chord.successors,
    event_path=_event_path,
)
