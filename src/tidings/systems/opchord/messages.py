"""What the nodes of a ring tell each other of subscriptions and events: see `tidings.systems.opchord.node`."""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

from tidings.systems.geometry.node_ring import Arc
from tidings.systems.protocols.effects import Event, Id, Name, Within
from tidings.systems.protocols.ring import CHORD_MESSAGES

Packed: TypeAlias = Annotated[int, Within(0, 1 << 128)]  # c1, c2, c3 of a subscription in one number
Left: TypeAlias = Annotated[int, Within(-(1 << 40), 1 << 40)]  # of a time that may be over


class Entry(NamedTuple):
    """A subscription in an attribute's list. The filter's text says which values: the newest version is right."""

    subscription: Packed
    channel: int
    text: str
    box: int
    version: int


class Store(NamedTuple):
    """On its walk along an arc: every node that owns a part of it takes the entry, or drops what the entry replaces."""

    entry: Entry
    arc: Arc  # of what was asked for, the part that this walk has not reported yet
    request: int
    remove: bool
    hops: int  # since it reported last, or since it was handed its part
    steps: int  # of those, from node to node


class Walk(NamedTuple):
    """A walk handed on to the next node."""

    store: Store
    origin: Id
    last: Id  # the node that took the entry last


class Stored(NamedTuple):
    """Of what was asked for, this part is stored: there may be more."""

    request: int
    arc: Arc
    hops: int


class Collect(NamedTuple):
    """What is in the list of a channel for this event's value?"""

    event: Event
    channel: int


class CollectFor(NamedTuple):
    """The same, asked by a node that owns the position but has not been handed its lists yet."""

    collect: Collect
    origin: Id


class Collected(NamedTuple):
    event: Name
    channel: int
    subscriptions: tuple[Packed, ...]


class Matched(NamedTuple):
    """For the owner of a subscription: an event matches it."""

    subscription: Packed
    event: Event


class SubscriberTold(NamedTuple):
    subscription: Packed
    event: Name


class Copies(NamedTuple):
    """Entries for a successor to keep in case, or for a node that joins to own (`handover`)."""

    entries: tuple[Entry, ...]
    left_ms: tuple[Left, ...]  # until they run out: copying does not prolong what its owner has given up
    handover: bool


class LastCopies(NamedTuple):
    """All that a node had that leaves, for its successor."""

    copies: Copies
    of: Id


class Uncopy(NamedTuple):
    entry: Entry


MESSAGES: tuple[type, ...] = (
    *CHORD_MESSAGES, Arc, Entry, Store, Walk, Stored, Collect, CollectFor, Collected, Matched, SubscriberTold,
    Copies, LastCopies, Uncopy,
)  # fmt: skip
