"""Which matches are of subscriptions that are alive, and those of several parts as one.

A part's `died` has for each slot the number of the change that removed it, NEVER while there is none. A
state that knows of `deaths` changes sees those up to that one: a removal is a few writes, in place, that
no match which has begun can see. Beside it lies a bit for each slot, set when it dies and never cleared: a
small table, which tells of most slots that there is nothing to look up.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, call-arg"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidings.kernels.decorator import kernel
from tidings.kernels.simd import borrowed

NEVER = np.iinfo(np.int32).max
NOBODY_DIED = np.empty(0, np.int32)
NO_MARKS = np.empty(0, np.uint8)


class Matched(NamedTuple):
    """What one part found: the slots of event i are `slots[offsets[i]:offsets[i + 1]]`."""

    offsets: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    died: npt.NDArray[np.int32]  # empty: nobody
    marks: npt.NDArray[np.uint8]  # the bits of those that died, now or later
    deaths: int
    size: int  # how many slots the part has


def living(parts: Sequence[Matched], count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The offsets and slots of all parts, the dead left out; slots go on from one part to the next."""
    first, *rest = parts
    if not rest and not len(first.died):
        return first.offsets, first.slots
    for part in rest or [_nothing(count)]:
        offsets, slots = np.zeros(count + 1, np.int64), np.empty(len(first.slots) + len(part.slots), np.int32)
        _join(*first[:5], *part[:5], first.size, offsets, slots)
        first = Matched(offsets, slots[: offsets[-1]], NOBODY_DIED, NO_MARKS, 0, first.size + part.size)
    return first.offsets, first.slots


def _nothing(count: int) -> Matched:
    return Matched(np.zeros(count + 1, np.int64), np.empty(0, np.int32), NOBODY_DIED, NO_MARKS, 0, 0)


def marks_for(size: int) -> npt.NDArray[np.uint8]:
    return np.zeros((size >> 3) + 1, np.uint8)


def mark(marks: npt.NDArray[np.uint8], slots: npt.NDArray[np.int64]) -> None:
    np.bitwise_or.at(marks, slots >> 3, (1 << (slots & 7)).astype(np.uint8))


@kernel
def _join(
    offsets: Any, slots: Any, died: Any, marks: Any, deaths: Any, other_offsets: Any, other_slots: Any,
    other_died: Any, other_marks: Any, other_deaths: Any, shift: Any, joined: Any, out: Any,
) -> None:  # fmt: skip
    """Event by event what one part found and what another did, whose slots are shifted."""
    slots, died, marks, out = borrowed(slots), borrowed(died), borrowed(marks), borrowed(out)
    other_slots, other_died, other_marks = borrowed(other_slots), borrowed(other_died), borrowed(other_marks)
    place, one_more, none = np.uint64(0), np.uint64(1), np.int32(0)
    for event in range(np.uint64(len(joined) - 1)):
        first, last = offsets[event], offsets[event + one_more]
        place = _copy(slots, first, last, died, marks, deaths, none, out, place)
        first, last = other_offsets[event], other_offsets[event + one_more]
        place = _copy(other_slots, first, last, other_died, other_marks, other_deaths, shift, out, place)
        joined[event + one_more] = place


@kernel
def _copy(
    slots: Any, first: Any, last: Any, died: Any, marks: Any, deaths: Any, shift: Any, out: Any, place: Any
) -> Any:  # fmt: skip
    """Write those slots that are alive; answers where the next is to be written."""
    some_died = len(died) > 0
    for i in range(np.uint64(first), np.uint64(last)):
        slot, alive = np.uint64(slots[i]), True
        if some_died and (marks[slot >> np.uint64(3)] >> (slot & np.uint64(7))) & np.uint64(1):
            alive = died[slot] > deaths
        out[place] = slots[i] + shift
        place += np.uint64(alive)
    return place
