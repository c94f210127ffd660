"""The pairs (event, output) that engines find, and their way to rows of slots by event."""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

_FIRST_ROOM = 1 << 16


class Pairs:
    """A growing list of pairs; kernels write past `count` and say how far they got."""

    def __init__(self) -> None:
        self.events = np.empty(_FIRST_ROOM, np.int32)
        self.outputs = np.empty(_FIRST_ROOM, np.int32)
        self.count = 0

    def reserve(self, room: int) -> None:
        """Make sure that at least `room` more pairs fit."""
        if len(self.events) - self.count < room:
            size = max(2 * len(self.events), self.count + room)
            self.events, self.outputs = (_grown(array, size, self.count) for array in (self.events, self.outputs))

    def add(self, events: npt.NDArray[Any], outputs: npt.NDArray[Any]) -> None:
        self.reserve(len(events))
        end = self.count + len(events)
        self.events[self.count : end] = events
        self.outputs[self.count : end] = outputs
        self.count = end


def _grown(array: npt.NDArray[np.int32], size: int, count: int) -> npt.NDArray[np.int32]:
    result = np.empty(size, np.int32)
    result[:count] = array[:count]
    return result


def by_event(
    events: npt.NDArray[np.int32], slots: npt.NDArray[np.int32], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Offsets and slots by event, of pairs in any order."""
    offsets = np.zeros(count + 1, np.int64)
    result = np.empty(len(slots), np.int32)
    _by_event(events, slots, offsets, result)
    return offsets, result


@numba.njit(cache=True, nogil=True)
def _by_event(events: Any, slots: Any, offsets: Any, result: Any) -> None:
    for event in events:
        offsets[event + 1] += 1
    for event in range(1, len(offsets)):
        offsets[event] += offsets[event - 1]
    place = offsets[:-1].copy()
    for i in range(len(events)):
        event = events[i]
        result[place[event]] = slots[i]
        place[event] += 1
