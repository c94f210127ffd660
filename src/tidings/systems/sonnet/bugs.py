"""Nodes of Sonnet that are wrong in one point, each with the law that finds it."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.systems.overlay import CALM, Bug, muted
from tidings.systems.protocols.effects import Effects, Event, Message
from tidings.systems.sonnet.messages import Packet
from tidings.systems.sonnet.node import SonnetNode
from tidings.systems.sonnet.virtual_node import VirtualNode


class _LeavesGroupsEmpty(VirtualNode):
    def no_group(self, group: int, payload: Message, now_ms: int) -> Effects:
        return []


class LeavesGroupsEmpty(SonnetNode):
    """Nobody stands for a group that is empty, though others hang below it."""

    virtual_node = _LeavesGroupsEmpty


class _KeepsRowsToItself(VirtualNode):
    @property
    def _shares_rows(self) -> bool:
        return False


class KeepsRowsToItself(SonnetNode):
    """A down-stream group is known to the member it registered with alone."""

    virtual_node = _KeepsRowsToItself


class _SendsDownAgain(VirtualNode):
    def _has_seen(self, packet: Packet, now_ms: int) -> bool:
        super()._has_seen(packet, now_ms)
        return False

    def told(self, payload: Message, now_ms: int) -> Effects:
        effects = super().told(payload, now_ms)
        return [*effects, *self._send_down(payload, now_ms)] if isinstance(payload, Packet) else effects


class SendsDownAgain(SonnetNode):
    """What came from one's own group goes down-stream as well, and nobody looks whether it has been there before."""

    virtual_node = _SendsDownAgain

    def _filter(self, node: VirtualNode, event: Event, now_ms: int) -> Effects:
        self._filtered.clear()
        return super()._filter(node, event, now_ms)


def bugs(variant: str) -> Mapping[str, Bug]:
    """Returns the bugs that can be planted."""
    return {
        "placeholders": Bug(LeavesGroupsEmpty, "Linked", {"churn": 0.2}),
        "links": Bug(KeepsRowsToItself, "Linked", {"churn": 0.2}),
        "down": Bug(SendsDownAgain, "OnceTold", {"churn": 0.2, "subscriptions": 24}),
        "mute": Bug(muted(SonnetNode), "Complete", CALM),
    }
