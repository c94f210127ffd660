"""What nodes of digests say to each other where home nodes match; else trees are all: `protocols.scribe`."""

from __future__ import annotations

from typing import NamedTuple

from tidings.systems.protocols.effects import Event, Id, Name
from tidings.systems.protocols.scribe import SCRIBE_MESSAGES


class HomeStore(NamedTuple):
    group: Id
    subscription: Name
    text: str
    remove: bool


class HomeStored(NamedTuple):
    group: Id
    subscription: Name


class HomePublish(NamedTuple):
    group: Id
    event: Event


class HomeNotify(NamedTuple):
    subscription: Name
    event: Event


MESSAGES: tuple[type, ...] = (*SCRIBE_MESSAGES, HomeStore, HomeStored, HomePublish, HomeNotify)
