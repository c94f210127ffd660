"""What Sonnet's virtual nodes say to each other, and ask of their host.

A group is named by the digest of its queries, without the node's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

from tidings.systems.protocols.effects import Event, Id, Message, Within
from tidings.systems.protocols.ring import CHORD_MESSAGES

if TYPE_CHECKING:
    from tidings.systems.sonnet.paths import Lineage

Bits: TypeAlias = Annotated[int, Within(0, (1 << 128) - 1)]  # of a digest, or of a part of one
Limit: TypeAlias = Annotated[int, Within(0, 1 << 176)]  # of a range of the ring: its end is the ring's at most


class Virtual(NamedTuple):
    """From one virtual node to another: hosts carry it."""

    to: Id
    sender: Id
    payload: Message


class VirtualRefused(NamedTuple):
    """The host has no such virtual node, or no longer: `payload` comes back to who sent it."""

    to: Id
    sender: Id
    payload: Message


class ToGroup(NamedTuple):
    """For some member of a group, by way of the ring. `wrapped`: there was none from the first key tried to the end."""

    group: Bits
    wrapped: bool
    payload: Message


class NoGroup(NamedTuple):
    """Nobody is in the group that this was for."""

    group: Bits
    payload: Message


class GroupCast(NamedTuple):
    """For every member in [low, limit) of the ring. `number`: who has told all of its part says so; 0: need not."""

    low: Limit
    limit: Limit
    number: int
    payload: Message


class CastDone(NamedTuple):
    """All that the sender was to tell by this number has been told."""

    number: int


class CastWaits(NamedTuple):
    """The sender has told all that it knows of, and cannot say yet that these were all: it confirms when it can."""

    number: int


class CastFromFirst(NamedTuple):
    """For the first member of the group, to be cast up to the sender."""

    limit: Limit
    number: int
    payload: Message


class First(NamedTuple):
    """Before this member there is none in the group, as far as the sender knows."""

    member: Id


class AskOffer(NamedTuple):
    """What would it be like to be served by you?"""


class Offer(NamedTuple):
    """How down-stream nodes score the sender, the packets it sends a second, and how many its group is."""

    score: float
    load: float
    size: float


class Register(NamedTuple):
    """The sender is of a group that hangs below the receiver's, scores the receiver; with its group's size."""

    group: Bits
    score: float
    size: float


class Registered(NamedTuple):
    """`rooted`: packets find their way from every 0-node to the receiver's group. And how the sender's group fares."""

    rooted: bool
    load: float
    size: float
    below: float  # how many nodes it serves


class Unregister(NamedTuple):
    """The sender is no longer served by the receiver. `gone`: it was the last of its group."""

    group: Bits
    gone: bool


class Row(NamedTuple):
    """A group that hangs below: a member, if known; how long ago it was heard of; whether all of us know; its size."""

    group: Bits
    member: Id | None
    age_ms: int
    spread: bool
    size: float


class AskRows(NamedTuple):
    """For a member of the group that knows its rows: one that has none of them yet passes the question on."""

    asked_by: Id


class KnownRows(NamedTuple):
    rows: tuple[Row, ...]
    answer: bool  # to who has joined the group and asked


class Packet(NamedTuple):
    """An event on its way down, with its header: a digest for each path, and the content of all names and values."""

    event: Event
    entries: tuple[Bits, ...]
    mask: Bits
    attempt: int = 0  # when its publisher sent it: what is not confirmed is sent again
    number: int = 0  # as in a cast
    repeats: int = 0  # how often its publisher had sent it before


MESSAGES: tuple[type, ...] = (
    *CHORD_MESSAGES, Virtual, VirtualRefused, ToGroup, NoGroup, GroupCast, CastDone, CastWaits, CastFromFirst, First,
    AskOffer, Offer, Register, Registered, Unregister, Row, AskRows, KnownRows, Packet,
)  # fmt: skip


def packet_in(message: Message) -> Packet | None:
    """Returns the packet that a message carries."""
    while not isinstance(message, Packet):
        message = getattr(message, "payload", None)
        if message is None:
            return None
    return message


# What a virtual node asks of its host, beside having its messages carried


class Received(NamedTuple):
    """A packet for the filter of this virtual node's subscription."""

    event: Event


class AllTold(NamedTuple):
    """A packet that this host published has reached everybody."""

    event: str


class Wait(NamedTuple):
    """A packet that this host published is held by a node that confirms it later."""

    event: str


class NeedGroup(NamedTuple):
    """Nobody is in this group, and this node hangs below it."""

    lineage: Lineage


class Linked(NamedTuple):
    """This node is on the ring: others of the host may have waited for it."""


class Degrade(NamedTuple):
    """The parent group is overloaded and small: join it."""


class Upgrade(NamedTuple):
    """This node need not stay in the group above its own."""


Ask: TypeAlias = Received | AllTold | Wait | NeedGroup | Linked | Degrade | Upgrade
