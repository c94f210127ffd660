"""What engines find, and its way to rows of slots by event.

An engine that goes from event to event writes pairs (event, output); one that compares an event with
many entries at a time writes runs: an event, and its outputs one after the other.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.kernels.decorator import kernel

_FIRST_ROOM = 1 << 16

Numbers = npt.NDArray[np.int32]


class Pairs:
    """A growing list of pairs; kernels write past `count` and say how far they got."""

    def __init__(self) -> None:
        self.events = np.empty(_FIRST_ROOM, np.int32)
        self.outputs = np.empty(_FIRST_ROOM, np.int32)
        self.count = 0

    def reserve(self, room: int) -> None:
        """Make sure that at least `room` more pairs fit."""
        self.events = _with_room(self.events, self.count, room)
        self.outputs = _with_room(self.outputs, self.count, room)

    def add(self, events: npt.NDArray[Any], outputs: npt.NDArray[Any]) -> None:
        self.reserve(len(events))
        end = self.count + len(events)
        self.events[self.count : end] = events
        self.outputs[self.count : end] = outputs
        self.count = end


class Runs:
    """A growing list of runs: those of run i are `outputs[starts[i]:starts[i + 1]]`, the last's end at `count`."""

    def __init__(self) -> None:
        self.events = np.empty(_FIRST_ROOM, np.int32)
        self.starts = np.empty(_FIRST_ROOM, np.int32)
        self.outputs = np.empty(_FIRST_ROOM, np.int32)
        self.runs = 0
        self.count = 0  # of outputs

    def clear(self) -> None:
        self.runs = self.count = 0

    def reserve(self, runs: int, outputs: int) -> None:
        """Make sure that at least so many more runs and outputs fit, and the end of the last."""
        self.events = _with_room(self.events, self.runs, runs)
        self.starts = _with_room(self.starts, self.runs, runs + 1)
        self.outputs = _with_room(self.outputs, self.count, outputs)


def _with_room(array: Numbers, count: int, room: int) -> Numbers:
    if len(array) - count >= room:
        return array
    result = np.empty(max(2 * len(array), count + room), np.int32)
    result[:count] = array[:count]
    return result


class Rows:
    """The slots of each event: those of event i are `slots[offsets[i]:offsets[i + 1]]`, in no order."""

    def __init__(self, events: int) -> None:
        self._offsets = np.zeros(events + 1, np.int64)
        self._slots = np.empty(0, np.int32)
        self._done = 0  # events

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return self._offsets

    @property
    def slots(self) -> Numbers:
        return self._slots[: self._offsets[self._done]]

    def add(self, events: int, pair_events: Numbers, pair_slots: Numbers, runs: Runs) -> None:
        """The next so many events: what was found for them in any order, numbered from the first of them."""
        self._reserve(events, len(pair_slots) + runs.count)
        runs.starts[runs.runs] = runs.count
        _by_event(
            pair_events, pair_slots, runs.events[: runs.runs], runs.starts, runs.outputs,
            self._offsets[self._done : self._done + events + 1], self._slots,
        )  # fmt: skip
        self._done += events

    def drop_repeats(self, events: int, repeated: npt.NDArray[np.bool_], seen: Numbers) -> None:
        """Leave of the last so many events each slot once; only those `repeated` may be there twice.

        `seen` has a number for each slot, below those of all events to come: the last event that had it, plus one.
        """
        first = self._done - events
        _drop_repeats(self._offsets[first : self._done + 1], self._slots, repeated, seen, first)

    def _reserve(self, events: int, found: int) -> None:
        """Room for the matches of all events, guessed from those of these: fresh memory costs when it is written."""
        end = int(self._offsets[self._done]) + found
        if len(self._slots) < end:
            left = len(self._offsets) - 1 - self._done - events
            guess = end + int(1.1 * left * max(1.0, end / (self._done + events)))
            slots = np.empty(guess, np.int32)
            slots[: self._offsets[self._done]] = self.slots
            self._slots = slots


def by_event(events: Numbers, slots: Numbers, count: int) -> tuple[npt.NDArray[np.int64], Numbers]:
    """Offsets and slots by event, of pairs in any order."""
    rows = Rows(count)
    rows.add(count, events, slots, Runs())
    return rows.offsets, rows.slots


@kernel
def _by_event(
    events: Any, slots: Any, run_events: Any, run_starts: Any, run_outputs: Any, offsets: Any, result: Any
) -> None:
    """Fill the result from `offsets[0]` on, and set the offsets after it."""
    one = np.uint64(1)
    place = np.zeros(len(offsets), np.uint64)
    for i in range(np.uint64(len(events))):
        place[np.uint64(events[i])] += one
    for run in range(np.uint64(len(run_events))):
        place[np.uint64(run_events[run])] += np.uint64(run_starts[run + one] - run_starts[run])
    end = np.uint64(offsets[0])
    for number in range(len(offsets) - 1):
        begin = end
        end += place[number]
        place[number] = begin
        offsets[number + 1] = end
    for i in range(np.uint64(len(events))):
        event = np.uint64(events[i])
        result[place[event]] = slots[i]
        place[event] += one
    for run in range(np.uint64(len(run_events))):
        event = np.uint64(run_events[run])
        to = place[event]
        for i in range(np.uint64(run_starts[run]), np.uint64(run_starts[run + one])):
            result[to] = run_outputs[i]
            to += one
        place[event] = to


@kernel
def _drop_repeats(offsets: Any, slots: Any, repeated: Any, seen: Any, first: Any) -> None:
    kept = offsets[0]
    start = kept
    for event in range(len(offsets) - 1):
        stamp = first + event + 1
        end = offsets[event + 1]
        for i in range(np.uint64(start), np.uint64(end)):
            slot = slots[i]
            again = repeated[np.uint64(slot)] and seen[np.uint64(slot)] == stamp
            if repeated[np.uint64(slot)]:
                seen[np.uint64(slot)] = stamp
            slots[np.uint64(kept)] = slot
            kept += not again
        start = end
        offsets[event + 1] = kept
