"""What the nodes say to each other."""

from __future__ import annotations

from typing import NamedTuple

from tidings.systems.protocols.effects import Event
from tidings.systems.protocols.gossip import GOSSIP_MESSAGES


class Flood(NamedTuple):
    event: Event


MESSAGES: tuple[type, ...] = (*GOSSIP_MESSAGES, Flood)
