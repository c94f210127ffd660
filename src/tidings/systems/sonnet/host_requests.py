"""What a virtual node asks of its host, beside having its messages carried."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tidings.systems.protocols.effects import Event
from tidings.systems.sonnet.paths import Lineage


class Received(NamedTuple):
    """A packet for the filter of this virtual node's subscription."""

    event: Event


class Told(NamedTuple):
    """A packet that this host published has reached everybody."""

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


Ask: TypeAlias = Received | Told | NeedGroup | Linked | Degrade | Upgrade
