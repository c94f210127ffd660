"""One-hop membership by gossip, as Cassandra has it and BlueDove takes it over.

Everybody knows everybody. Once a period a node raises its own version and compares what it knows with one other
node. If both know the same nodes, a list of versions each way is all that they send; else the versions with their
nodes, then only what is newer, both ways. A node whose version stands still is suspected, the more the
longer (phi-accrual, Hayashibara et al. 2004), and convicted at φ > 8: with a mean of one second, after 18.4 s. The mean
is of the time from one version to the next, however many of them come with one message.
Who leaves is marked gone, with a version that nothing older overwrites; who comes back has a new generation, and is
there from its first message on, before gossip has told of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from random import Random
from typing import Any, ClassVar, NamedTuple

from tidings.systems.protocols.effects import (
    MAX_AHEAD_MS,
    Dispatching,
    Effects,
    Handlers,
    Id,
    Message,
    Name,
    Ready,
    Send,
    SetTimer,
    Tag,
)
from tidings.systems.protocols.message_codec import MessageError
from tidings.systems.protocols.ring_ids import hashed

MAX_INTERVALS = 64  # that the mean is taken of
ROSTER_BITS = 48
MAX_MEMBERS = 4_096  # of which something is known; beyond them nobody new is, and frames have an end


class GossipSettings(NamedTuple):
    period_ms: int = 1_000
    convict_phi: float = 8.0
    join_retry_ms: int = 2_000


class GossipMember(NamedTuple):
    """What is known of a node, by its version."""

    id: Id
    generation: int
    version: int
    gone: bool
    about: Name  # what the layer above says of it

    @property
    def age(self) -> tuple[int, int]:
        return self.generation, self.version


class Syn(NamedTuple):
    """What the sender knows: (id, generation, version) of everybody, and a digest of the layer above's table."""

    known: tuple[tuple[Id, int, int], ...]
    table: int


class Ack(NamedTuple):
    newer: tuple[GossipMember, ...]
    wanted: tuple[Id, ...]
    table: tuple[Message, ...] | None  # the layer above's, where the digests differ; else None
    answer: bool  # whether the other side has something to send back


class Beat(NamedTuple):
    """The versions of all members, in the order of their ids: enough for a node that knows the same members."""

    roster: int  # a digest of the members, but for their versions
    versions: tuple[int, ...]
    table: int  # as in Syn
    answer: bool  # whether the other side is to send its own


GOSSIP_MESSAGES: tuple[type, ...] = (GossipMember, Syn, Ack, Beat)

GOSSIP, GOSSIP_JOIN = "gossip", "gossip join"


class Detector:
    """φ of one node: how unlikely it is that news of it are merely late, if they come at random times."""

    __slots__ = ("_beats", "_intervals", "_last_ms", "_spoke_ms", "_sum")

    def __init__(self, now_ms: int, first_ms: int) -> None:
        self._last_ms = self._spoke_ms = now_ms
        self._intervals = [(first_ms, 1)]  # with how many versions came at the end of each
        self._sum, self._beats = first_ms, 1

    def heard(self, now_ms: int, beats: int = 1) -> None:
        """News came, so many versions newer than the last. Those between took another way: they were not late."""
        interval = max(1, now_ms - self._last_ms)
        self._last_ms = now_ms
        self._intervals.append((interval, beats))
        self._sum += interval
        self._beats += beats
        if len(self._intervals) > MAX_INTERVALS:
            interval, beats = self._intervals.pop(0)
            self._sum -= interval
            self._beats -= beats

    def spoke(self, now_ms: int) -> None:
        """It sent a message: no news by gossip, whose intervals would seem too short else."""
        self._spoke_ms = now_ms

    def phi(self, now_ms: int) -> float:
        mean = self._sum / self._beats
        return (now_ms - max(self._last_ms, self._spoke_ms)) / (mean * log(10))  # −log10 of e^(−t/mean)

    def is_late(self, now_ms: int, limit: float) -> bool:
        """Returns whether φ · ln 10 is above a limit: every node asks it of every other in every period."""
        most, beats = limit * self._sum, self._beats
        return (now_ms - self._last_ms) * beats > most and (now_ms - self._spoke_ms) * beats > most


class GossipNode(Dispatching):
    """A node that knows all others. What they share besides is a subclass's table."""

    def __init__(self, id: Id, random: Random, settings: GossipSettings = GossipSettings(), about: str = "") -> None:  # noqa: B008
        self._id = id
        self._random = random
        self.gossip = settings
        self.members: dict[Id, GossipMember] = {id: GossipMember(id, 0, 0, False, about)}
        self._roster: tuple[int, tuple[Id, ...]] | None = None  # its digest, and the ids in their order
        self._detectors: dict[Id, Detector] = {}
        self.convicts: dict[Id, tuple[int, int]] = {}  # with the age at which they were convicted
        self.contact: Id | None = None
        self.is_member = False

    @property
    def id(self) -> Id:
        return self._id

    def others(self) -> list[Id]:
        """Everybody else who is there, as far as one knows."""
        return [id for id, one in self.members.items() if not one.gone and id != self._id and id not in self.convicts]

    def seat(self, nodes: Sequence[GossipNode]) -> None:
        for node in nodes:
            if node.id != self._id:
                self._know(node.members[node.id])
                self._detectors[node.id] = Detector(0, 2 * self.gossip.period_ms)
        self.is_member = True

    # Joining and leaving

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        mine = self.members[self._id]
        self._know(mine._replace(generation=now_ms, version=0))
        timer = SetTimer(1 + int(self._random.random() * self.gossip.period_ms), GOSSIP)
        if self.is_member or contact is None:
            self.is_member = True
            return [timer, Ready()]
        self.contact = contact
        return [timer, *self._ask_to_join()]

    def _ask_to_join(self) -> Effects:
        assert self.contact is not None
        return [Send(self.contact, self._syn()), SetTimer(self.gossip.join_retry_ms, GOSSIP_JOIN)]

    def leave(self, now_ms: int) -> Effects:
        mine = self.members[self._id]
        self._know(mine._replace(version=mine.version + 1, gone=True))
        return [Send(id, Ack((self.members[self._id],), (), None, False)) for id in self.others()]

    # Exchange

    def on_message(self, sender: Id, message: Message, now_ms: int) -> Effects:
        if sender in self.convicts:
            del self.convicts[sender]
            self._detectors[sender] = Detector(now_ms, 2 * self.gossip.period_ms)
        elif sender in self._detectors:
            self._detectors[sender].spoke(now_ms)
        return super().on_message(sender, message, now_ms)

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        if isinstance(part, GossipMember) and max(part.age) > now_ms + MAX_AHEAD_MS:
            raise MessageError(
                f"message: GossipMember {part.id} is of a time to come; are its clock and --pace the same?"
            )
        if isinstance(part, Beat) and max(part.versions, default=0) > now_ms + MAX_AHEAD_MS:
            raise MessageError("message: Beat is of a time to come; are the clocks and --pace of all nodes the same?")

    def _know(self, member: GossipMember) -> None:
        known = self.members.get(member.id)
        self.members[member.id] = member
        if known is None or known._replace(version=member.version) != member:
            self._roster = None

    def roster(self) -> tuple[int, tuple[Id, ...]]:
        """A digest of who is known, but for the versions, and their ids in order."""
        if self._roster is None:
            ids = tuple(sorted(self.members))
            who = [self.members[id]._replace(version=0) for id in ids]
            self._roster = hashed(repr(who), ROSTER_BITS), ids
        return self._roster

    def _beat(self, *, answer: bool) -> Beat:
        digest, ids = self.roster()
        members = self.members
        return Beat(digest, tuple([members[id].version for id in ids]), self.table_digest(), answer)

    def _on_beat(self, sender: Id, message: Beat, now_ms: int) -> Effects:
        digest, ids = self.roster()
        same = message.roster == digest and len(message.versions) == len(ids) and message.table == self.table_digest()
        if not same:
            return [Send(sender, self._syn())] if message.answer else []
        effects: Effects = [Send(sender, self._beat(answer=False))] if message.answer else []
        members, detectors = self.members, self._detectors
        for id, version in zip(ids, message.versions, strict=True):
            known = members[id]
            if version <= known.version:
                continue
            news = GossipMember(id, known.generation, version, known.gone, known.about)
            if known.gone or id not in detectors or id in self.convicts:
                effects += self._learn(news, now_ms)
            else:  # most of them, most of the time: in large networks nodes do little else
                members[id] = news
                detectors[id].heard(now_ms, version - known.version)
        return effects

    def _syn(self) -> Syn:
        known = tuple((member.id, member.generation, member.version) for member in self.members.values())
        return Syn(known, self.table_digest())

    def _on_syn(self, sender: Id, message: Syn, now_ms: int) -> Effects:
        theirs = {id: (generation, version) for id, generation, version in message.known}
        newer = tuple(member for id, member in self.members.items() if member.age > theirs.get(id, (-1, -1)))
        wanted = tuple(id for id, age in theirs.items() if id not in self.members or self.members[id].age < age)
        differs = message.table != self.table_digest()
        return [Send(sender, Ack(newer, wanted, self.table_state() if differs else None, bool(wanted) or differs))]

    def _on_ack(self, sender: Id, message: Ack, now_ms: int) -> Effects:
        effects: Effects = []
        for member in message.newer:
            effects += self._learn(member, now_ms)
        if message.table is not None:
            effects += self.merge_table(message.table, now_ms)
        if message.answer:
            wanted = tuple(self.members[id] for id in message.wanted if id in self.members)
            table = self.table_state() if message.table is not None else None
            effects.append(Send(sender, Ack(wanted, (), table, False)))
        is_there = any(member.id == sender and not member.gone for member in message.newer)
        if not self.is_member and is_there:  # and does not merely say that it leaves
            self.is_member = True
            effects += [Ready(), *self.admitted(sender, now_ms)]
        return effects

    def _learn(self, news: GossipMember, now_ms: int) -> Effects:
        if news.id == self._id:
            self._refute(news)
            return []
        known = self.members.get(news.id)
        if (known is not None and known.age >= news.age) or (known is None and not self._has_room()):
            return []
        self._know(news)
        if news.id in self.convicts and news.age > self.convicts[news.id]:
            del self.convicts[news.id]
        if news.gone:
            self._detectors.pop(news.id, None)
            return self.parted(news.id, now_ms) if known is None or not known.gone else []
        if known is None or news.id not in self._detectors or known.generation != news.generation:
            self._detectors[news.id] = Detector(now_ms, 2 * self.gossip.period_ms)
            return self.met(news.id, now_ms) if known is None else []
        self._detectors[news.id].heard(now_ms, news.version - known.version)
        return []

    def _refute(self, news: GossipMember) -> None:
        """Others have newer news of this node than it has given: be newer than those, unless it is leaving."""
        mine = self.members[self._id]
        if news.age > mine.age and not mine.gone:
            self._know(mine._replace(generation=news.generation, version=news.version + 1))

    def _has_room(self) -> bool:
        """Whether one more can be known; the oldest of those that are gone, or convicted, makes way for it."""
        if len(self.members) < MAX_MEMBERS:
            return True
        lost = [one for one in self.members.values() if one.gone or one.id in self.convicts]
        if not lost:
            return False
        oldest = min(lost, key=lambda one: one.age).id
        del self.members[oldest]
        self._roster = None
        self.convicts.pop(oldest, None)
        self._detectors.pop(oldest, None)
        return True

    # Time

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        if tag == GOSSIP_JOIN and not self.is_member:
            return self._ask_to_join()
        if tag != GOSSIP:
            return []
        mine = self.members[self._id]
        self._know(mine._replace(version=mine.version + 1, about=self.about()))
        effects: Effects = [SetTimer(self.gossip.period_ms, GOSSIP)]
        peers = self.others()
        if peers:
            effects.append(Send(peers[int(self._random.random() * len(peers))], self._beat(answer=True)))
        if self.convicts and self._random.random() < 0.3:  # who was cut off may be there again
            lost = list(self.convicts)
            effects.append(Send(lost[int(self._random.random() * len(lost))], self._syn()))
        return [*effects, *self._convict(now_ms)]

    def _convict(self, now_ms: int) -> Effects:
        limit = self.gossip.convict_phi * log(10)
        late = {id for id, detector in self._detectors.items() if detector.is_late(now_ms, limit)}
        effects: Effects = []
        for id in self.others() if late else ():
            if id in late:
                self.convicts[id] = self.members[id].age
                effects += self.parted(id, now_ms)
        return effects

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        return []

    # What is built on it

    def about(self) -> str:
        return self.members[self._id].about

    def table_digest(self) -> int:
        return 0

    def table_state(self) -> Any:
        return ()

    def merge_table(self, table: Any, now_ms: int) -> Effects:
        return []

    def met(self, id: Id, now_ms: int) -> Effects:
        """A node is new."""
        return []

    def parted(self, id: Id, now_ms: int) -> Effects:
        """A node has left, or is convicted."""
        return []

    def admitted(self, by: Id, now_ms: int) -> Effects:
        """This node has joined, through another."""
        return []

    handlers: ClassVar[Handlers] = {
        Beat: _on_beat,
        Syn: _on_syn,
        Ack: _on_ack,
    }
