"""What a virtual node of Sonnet knows of the groups that hang below its own: the same rows at every member.

Who registers with one member is announced to all, members compare their rows, and a newcomer copies them before it
serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from tidings.systems.protocols.effects import Effects, Handlers, Id, Send
from tidings.systems.sonnet.messages import AskRows, KnownRows, Row, ToGroup
from tidings.systems.sonnet.paths import Lineage, group_digest, group_of, hangs_below
from tidings.systems.sonnet.prefix_ring import RingMember
from tidings.systems.sonnet.sonnet_settings import SonnetSettings

NEVER_MS = -(1 << 40)
MAX_ROWS_SENT = 2_000  # in one message
COMPLETE_PERIODS = 3  # of registrations, in which all have registered again that have lost their up-stream
FEW_MEMBERS = 4  # of a down-stream group: with so many known, a packet finds one, and not always the same


class Down:
    """A group that hangs below: a row, and who of it is known here."""

    __slots__ = ("announced_ms", "known_ms", "members", "seen_ms", "size", "spread", "told")

    def __init__(self, now_ms: int, seen_ms: int) -> None:
        self.known_ms = now_ms  # since when it is known here
        self.seen_ms = seen_ms
        self.members: dict[Id, int] = {}  # since when; those that registered here are newer than others
        self.spread = False  # whether the whole group knows of it, as far as is known here
        self.announced_ms = NEVER_MS
        self.told = False  # whether the last announcement from here has reached the whole group
        self.size = 1.0


class RowKeeper(RingMember):
    """A member of a group, with its rows."""

    def __init__(self, id: Id, lineage: Lineage, random: Random, settings: SonnetSettings) -> None:
        super().__init__(id, lineage, random, settings.chord)
        self.options = settings
        self.down: dict[int, Down] = {}
        self.is_settled = False  # whether the rows of the group are known here
        self._complete_ms = 0  # from when on they are all that there are

    def seat(self, members: Sequence[Id]) -> None:
        super().seat(members)
        self.is_settled = True

    def seat_row(self, group: int, some: Sequence[RingMember], size: float) -> None:
        """Adds the row of a group that hangs below, and some members of it."""
        row = self._row(group, 0, 0)
        assert row is not None, "the group hangs below this one's"
        row.size, row.spread, row.told = size, True, True
        if not row.members:
            row.members = dict.fromkeys((node.id for node in some), 0)

    @property
    def below_size(self) -> float:
        return sum(row.size for row in self.down.values())

    # A newcomer

    def _settle(self, now_ms: int) -> Effects:
        """Copy the group's rows, if there is anybody to copy them from."""
        if self.is_settled or not self.is_linked:
            return []
        if not self._shares_rows:
            self._settle_without(now_ms)
            return []
        return self._pass_on(AskRows(self._id), now_ms)

    def _settle_without(self, now_ms: int) -> None:
        """There is nobody to copy from; but there may have been, and then those below have yet to register again."""
        self.is_settled = True
        if not self.digest.truncated:  # nothing hangs below what has more to it than its tokens
            self._complete_ms = now_ms + COMPLETE_PERIODS * self.options.register_ms

    def _pass_on(self, message: AskRows, now_ms: int) -> Effects:
        """To the next of the group, once around."""
        if self.after_in_group is not None:
            return [Send(self.after_in_group, message)]
        if self.is_first or (self.before_in_group is None and message.asked_by != self._id):
            return []  # as far as is known here there is nobody else: the asker is new as well, and asks again
        return self.route(self.range.low, ToGroup(self.group, True, message), now_ms)

    # Rows

    def _row(self, group: int, age_ms: int, now_ms: int) -> Down | None:
        """The row of a group, made where there is none; None where the group does not hang below this one."""
        row = self.down.get(group)
        if row is None:
            if not hangs_below(self.digest, group_digest(group, self.variant)):
                return None
            row = self.down[group] = Down(now_ms, now_ms - age_ms)
        row.seen_ms = max(row.seen_ms, now_ms - age_ms)
        return row

    def _announce(self, group: int, row: Down, member: Id, now_ms: int) -> Effects:
        if not self._shares_rows:
            row.spread = True
            return []
        # What is not confirmed is announced with every registration: who has a row of long ago would drop it.
        again_ms = self.options.announce_ms if row.told else self.options.register_ms // 2
        if row.announced_ms > now_ms - again_ms:
            return []
        row.announced_ms, row.told = now_ms, False
        message = Row(group, member, 0, True, row.size)
        number = self.begin(message, now_ms)
        return [*self.cast(message, now_ms, number), *self._done(number, 0, now_ms)]

    @property
    def _shares_rows(self) -> bool:
        """Whether there are others in the group to share rows with."""
        return not self.is_only

    def _on_row(self, sender: Id, message: Row, now_ms: int) -> Effects:
        if message.age_ms >= self.options.expiry_ms:
            return []
        row = self._row(message.group, message.age_ms, now_ms)
        if row is not None:
            row.spread = row.spread or message.spread
            row.size = message.size
            if message.member is not None and len(row.members) < FEW_MEMBERS:
                row.members.setdefault(message.member, now_ms - message.age_ms)
        return []

    def _rows(self, now_ms: int) -> list[Row]:
        return [
            Row(group, next(reversed(row.members), None), now_ms - row.seen_ms, row.spread, row.size)
            for group, row in self.down.items()
        ]

    def _on_ask_rows(self, sender: Id, message: AskRows, now_ms: int) -> Effects:
        if message.asked_by == self._id:
            self._settle_without(now_ms)  # it has been once around: all are new
            return []
        return self._tell_rows(message.asked_by, True, now_ms) if self.is_settled else self._pass_on(message, now_ms)

    def _tell_rows(self, to: Id, answer: bool, now_ms: int) -> Effects:
        rows = self._rows(now_ms)
        parts = [tuple(rows[at : at + MAX_ROWS_SENT]) for at in range(0, len(rows), MAX_ROWS_SENT)] or [()]
        return [Send(to, KnownRows(part, answer)) for part in parts]

    def _on_rows(self, sender: Id, message: KnownRows, now_ms: int) -> Effects:
        if group_of(sender, self.variant) != self.group:
            return []
        for row in message.rows:
            self._on_row(sender, row, now_ms)
        self.is_settled = self.is_settled or message.answer
        return []

    def drop_old_rows(self, now_ms: int) -> None:
        """Forgets groups, and members of them, that nobody has registered or announced again."""
        oldest = now_ms - self.options.expiry_ms
        for group in [group for group, row in self.down.items() if row.seen_ms < oldest]:
            del self.down[group]
        for row in self.down.values():
            row.members = {id: at for id, at in row.members.items() if at >= oldest}

    def share_rows(self, now_ms: int) -> Effects:
        """With the next of the group, in case that one missed something."""
        if not self._shares_rows or not self.down or not self.is_settled:
            return []
        next_one = self.after_in_group if self.after_in_group is not None else self.first
        return self._tell_rows(next_one, False, now_ms) if next_one is not None else []

    handlers: ClassVar[Handlers] = {
        AskRows: _on_ask_rows,
        KnownRows: _on_rows,
        Row: _on_row,
    }
