"""A node that knows all others by gossip, and sends them every event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from tidings.systems.flooding.messages import MESSAGES, Flood
from tidings.systems.overlay import Overlay, Start
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Active, Deliver, Effects, Event, Handlers, Id, Message, Send
from tidings.systems.protocols.gossip import GossipNode, GossipSettings


class FloodingSettings(NamedTuple):
    gossip: GossipSettings = GossipSettings()
    id_bits: int = 48


class FloodingNode(GossipNode):
    def __init__(self, start: Start[Content, FloodingSettings]) -> None:
        super().__init__(start.id, start.random, start.settings.gossip)
        self.content = start.ground
        self.own: dict[str, str] = {}

    def subscribe(self, subscription: str, text: str, now_ms: int) -> Effects:
        self.content.interest(text)
        self.own[subscription] = text
        return [Active(subscription)]

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects:
        del self.own[subscription]
        return []

    def publish(self, event: Event, now_ms: int) -> Effects:
        return [*self._on_flood(self.id, Flood(event), now_ms), *(Send(id, Flood(event)) for id in self.others())]

    def check(self, part: Message, now_ms: int) -> None:
        super().check(part, now_ms)
        if isinstance(part, Event):
            self.content.record(part)

    def _on_flood(self, sender: Id, message: Flood, now_ms: int) -> Effects:
        record, interest = self.content.record(message.event), self.content.interest
        return [Deliver(name, message.event) for name, text in self.own.items() if interest(text).holds(record)]

    handlers: ClassVar[Handlers] = {Flood: _on_flood}


def _seat(nodes: Sequence[FloodingNode]) -> None:
    for node in nodes:
        node.seat(nodes)


OVERLAY = Overlay(
    FloodingNode,
    lambda kind, start: kind(start),
    lambda content, settings: content,
    _seat,
    MESSAGES,
    FloodingSettings(),
    simulated=FloodingSettings(GossipSettings(period_ms=300)),
)
