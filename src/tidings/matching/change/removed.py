"""Which subscriptions of a part are removed, and the matches of several parts as one.

A part keeps for each slot the number of the change that removed it, NEVER while it is there. A version that knows of
`changes` changes sees those up to that one: a removal is a few writes, in place, that no match which has begun can
see. Beside it lies a bit for each slot, set when the slot is removed and never cleared: a small table that spares most
slots the lookup.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, call-arg, var-annotated"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidings.kernels.decorator import kernel
from tidings.kernels.simd import borrowed

NEVER = np.iinfo(np.int32).max
_FIRST_ROOM = 1024

Slots = npt.NDArray[np.int64]


def _no_changes() -> npt.NDArray[np.int32]:
    return np.empty(0, np.int32)


def _no_marks() -> npt.NDArray[np.uint8]:
    return np.empty(0, np.uint8)


@dataclass(frozen=True, eq=False)
class Removed:
    """The removed slots of one part. Only the newest of those that share their arrays may be changed."""

    removed_by: npt.NDArray[np.int32] = field(default_factory=_no_changes)  # of each slot the change; empty: none yet
    marks: npt.NDArray[np.uint8] = field(default_factory=_no_marks)
    changes: int = 0  # that removed some of the slots
    count: int = 0  # of removed slots

    @property
    def bytes(self) -> int:
        return self.removed_by.nbytes + self.marks.nbytes

    def with_room(self, size: int) -> Removed:
        """With room for so many slots, if any was removed before."""
        used = len(self.removed_by)
        return self if not used or size <= used else self._grown(max(size, 2 * used, _FIRST_ROOM))

    def _grown(self, size: int) -> Removed:
        removed_by, marks = np.full(size, NEVER, np.int32), np.zeros((size >> 3) + 1, np.uint8)
        removed_by[: len(self.removed_by)] = self.removed_by
        marks[: len(self.marks)] = self.marks
        return replace(self, removed_by=removed_by, marks=marks)

    def with_more(self, slots: Slots, size: int) -> Removed:
        """With some slots of a part of so many removed by one more change."""
        known = self if len(self.removed_by) else self._grown(size)
        known.removed_by[slots] = self.changes + 1
        np.bitwise_or.at(known.marks, slots >> 3, (1 << (slots & 7)).astype(np.uint8))
        return replace(known, changes=self.changes + 1, count=self.count + len(slots))

    def without_removed(self, slots: Slots) -> Slots:
        """The slots, with -1 for those that the newest change sees removed; -1 stays."""
        if len(self.removed_by):
            slots[(slots >= 0) & (self.removed_by[slots] != NEVER)] = -1
        return slots

    def left(self, size: int) -> Slots:
        """The slots of a part of so many that are not removed."""
        return np.flatnonzero(self.removed_by[:size] > self.changes) if len(self.removed_by) else np.arange(size)

    def removed_since(self, before: Removed, slots: Slots) -> Slots:
        """Which of the slots were removed after an earlier version, by their places in `slots`."""
        if not len(self.removed_by):
            return np.empty(0, np.int64)
        removed_by = self.removed_by[slots]
        return np.flatnonzero((removed_by > before.changes) & (removed_by != NEVER))

    def at_rest(self) -> Removed:
        """The same, sharing nothing with those that are changed later."""
        seen = np.where(self.removed_by > self.changes, NEVER, self.removed_by).astype(np.int32)
        return replace(self, removed_by=seen, marks=self.marks.copy())


class PartMatches(NamedTuple):
    """What one part found: the slots of event i are `slots[offsets[i]:offsets[i + 1]]`."""

    offsets: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    removed_by: npt.NDArray[np.int32]
    marks: npt.NDArray[np.uint8]
    changes: int
    size: int  # how many slots the part has


def part_matches(offsets: npt.NDArray[np.int64], slots: Any, removed: Removed, size: int) -> PartMatches:
    return PartMatches(offsets, slots, removed.removed_by, removed.marks, removed.changes, size)


_NOTHING_REMOVED = Removed()


def joined_matches(parts: Sequence[PartMatches], count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The offsets and slots of all parts, removed ones left out; slots go on from one part to the next."""
    first, *rest = parts
    if not rest and not len(first.removed_by):
        return first.offsets, first.slots
    for part in rest or [part_matches(np.zeros(count + 1, np.int64), np.empty(0, np.int32), _NOTHING_REMOVED, 0)]:
        offsets, slots = np.zeros(count + 1, np.int64), np.empty(len(first.slots) + len(part.slots), np.int32)
        _join(tuple(first), tuple(part), offsets, slots)
        first = part_matches(offsets, slots[: offsets[-1]], _NOTHING_REMOVED, first.size + part.size)
    return first.offsets, first.slots


@kernel
def _join(first: Any, other: Any, joined: Any, out: Any) -> None:
    """Event by event what one part found and what another did, whose slots are shifted; both as plain tuples."""
    offsets, slots, removed_by, marks, changes, size = first
    other_offsets, other_slots, other_removed_by, other_marks, other_changes, _ = other
    slots, removed_by, marks, out = borrowed(slots), borrowed(removed_by), borrowed(marks), borrowed(out)
    other_slots, other_removed_by, other_marks = (
        borrowed(other_slots),
        borrowed(other_removed_by),
        borrowed(other_marks),
    )
    place, one_more, none = np.uint64(0), np.uint64(1), np.int32(0)
    for event in range(np.uint64(len(joined) - 1)):
        start, end = offsets[event], offsets[event + one_more]
        place = _copy(slots, start, end, removed_by, marks, changes, none, out, place)
        start, end = other_offsets[event], other_offsets[event + one_more]
        place = _copy(other_slots, start, end, other_removed_by, other_marks, other_changes, size, out, place)
        joined[event + one_more] = place


@kernel
def _copy(
    slots: Any, first: Any, last: Any, removed_by: Any, marks: Any, changes: Any, shift: Any, out: Any, place: Any
) -> Any:
    """Write the slots that are not removed. Returns where the next is to be written."""
    some_removed = len(removed_by) > 0
    for i in range(np.uint64(first), np.uint64(last)):
        slot, there = np.uint64(slots[i]), True
        if some_removed and (marks[slot >> np.uint64(3)] >> (slot & np.uint64(7))) & np.uint64(1):
            there = removed_by[slot] > changes
        out[place] = slots[i] + shift
        place += np.uint64(there)
    return place
