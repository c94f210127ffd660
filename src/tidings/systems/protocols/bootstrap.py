"""A node that is ready only when a bootstrap node has handed it what all nodes know: clusters, Views.

The overlay is joined first, so that routing works. A node that is asked before it knows says nothing, so the subclass
asks again by a timer of its own (`ask_again`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random

from tidings.systems.protocols.effects import Effects, Id, Message, Ready, Send, Tag
from tidings.systems.protocols.scribe import ScribeNode, ScribeSettings


class BootstrappedNode(ScribeNode, ABC):
    """A node of Scribe that asks before it is ready."""

    def __init__(self, id: Id, random: Random, settings: ScribeSettings = ScribeSettings()) -> None:  # noqa: B008
        super().__init__(id, random, settings)
        self._informed = False
        self._held_ready = False

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        self._informed = contact is None
        return self._hold_ready(super().start(contact, now_ms))

    def on_message(self, sender: Id, message: Message, now_ms: int) -> Effects:
        return self._hold_ready(super().on_message(sender, message, now_ms))

    def on_timer(self, tag: Tag, now_ms: int) -> Effects:
        return self._hold_ready(super().on_timer(tag, now_ms))

    @abstractmethod
    def question(self) -> Message:
        """Returns the message that asks a bootstrap node."""

    def _hold_ready(self, effects: Effects) -> Effects:
        """A node that does not know what all know can neither subscribe nor publish."""
        if self._informed or Ready() not in effects:
            return effects
        self._held_ready = True
        kept: Effects = [effect for effect in effects if not isinstance(effect, Ready)]
        return [*kept, *self.ask_again()]

    def ask_again(self) -> Effects:
        """Asks the contact, or another node that is known if the contact is gone."""
        if self._informed or not self._held_ready:
            return []
        assert self._contact is not None
        known = sorted(self._heard)
        asked = self._contact if self._contact in known or not known else known[0]
        return [Send(asked, self.question())]

    def inform(self) -> Effects:
        """Has the node be ready, if it has joined."""
        self._informed = True
        return [Ready()] if self._held_ready else []
