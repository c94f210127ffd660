"""Which matches are of subscriptions that are alive, and those of several parts as one.

A part's `died` has for each slot the number of the change that removed it, NEVER while there is none. A
state that knows of `deaths` changes sees those up to that one: a removal is a few writes, in place, that
no match which has begun can see. Beside it lies a bit for each slot, set when it dies and never cleared: a
small table, which tells of most slots that there is nothing to look up.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

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
    if len(parts) == 1 and not len(parts[0].died):
        return parts[0].offsets, parts[0].slots
    offsets = np.zeros(count + 1, np.int64)
    for part in parts:
        _count(part.offsets, part.slots, part.died, part.marks, part.deaths, offsets)
    np.cumsum(offsets, out=offsets)
    places, slots, shift = offsets.copy(), np.empty(offsets[-1], np.int32), 0
    for part in parts:
        _place(part.offsets, part.slots, part.died, part.marks, part.deaths, shift, places, slots)
        shift += part.size
    return offsets, slots


def marks_for(size: int) -> npt.NDArray[np.uint8]:
    return np.zeros((size >> 3) + 1, np.uint8)


def mark(marks: npt.NDArray[np.uint8], slots: npt.NDArray[np.int64]) -> None:
    np.bitwise_or.at(marks, slots >> 3, (1 << (slots & 7)).astype(np.uint8))


@numba.njit(cache=True, nogil=True, inline="always")
def _is_alive(slot: Any, died: Any, marks: Any, deaths: Any) -> Any:
    at = np.uint64(slot)
    return (marks[at >> np.uint64(3)] >> (at & np.uint64(7))) & np.uint64(1) == 0 or died[at] > deaths


@numba.njit(cache=True, nogil=True)
def _count(offsets: Any, slots: Any, died: Any, marks: Any, deaths: Any, counts: Any) -> None:
    for event in range(len(offsets) - 1):
        alive = offsets[event + 1] - offsets[event]
        if len(died) > 0:
            for i in range(offsets[event], offsets[event + 1]):
                alive -= not _is_alive(slots[i], died, marks, deaths)
        counts[event + 1] += alive


@numba.njit(cache=True, nogil=True)
def _place(offsets: Any, slots: Any, died: Any, marks: Any, deaths: Any, shift: Any, places: Any, out: Any) -> None:
    for event in range(len(offsets) - 1):
        place = places[event]
        for i in range(offsets[event], offsets[event + 1]):
            if len(died) == 0 or _is_alive(slots[i], died, marks, deaths):
                out[place] = slots[i] + shift
                place += 1
        places[event] = place
