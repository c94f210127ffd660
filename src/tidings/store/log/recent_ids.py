"""The identities of recent events: where was one with this key? In memory, bounded.

Keys are hashes, so that what is found is a candidate: whoever asks compares the event itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tidings.store.log.event_record import Keys

_RUN = 1 << 16  # keys that wait in a dict, before they become a sorted run of 16 bytes each


class _Run(NamedTuple):
    keys: Keys  # in order
    positions: npt.NDArray[np.int64]
    newest: int


class RecentIds:
    """Keys of the last `remember` positions at least, and of twice as many at most."""

    def __init__(self, remember: int) -> None:
        self._remember = remember
        self._recent: dict[int, int] = {}
        self._runs: list[_Run] = []  # from old to new, each more than twice as long as the next

    def find(self, keys: Keys) -> Iterator[tuple[int, int]]:
        """Row and position of every candidate; a row may have several."""
        recent = self._recent
        for row, key in enumerate(keys.tolist()):
            if key in recent:
                yield row, recent[key]
        for run in self._runs:
            places = run.keys.searchsorted(keys)
            found = run.keys.take(places, mode="clip") == keys
            for row in np.flatnonzero(found).tolist():
                place = int(places[row])
                while place < len(run.keys) and run.keys[place] == keys[row]:
                    yield row, int(run.positions[place])
                    place += 1

    def add(self, keys: Iterable[int], positions: Iterable[int]) -> None:
        """Remember events, but for those of key 0; positions never go down from call to call."""
        for key, position in zip(keys, positions, strict=True):
            if key == 0:
                continue
            if key in self._recent:  # another event of the same hash: the dict has room for one
                self._freeze()
            self._recent[key] = position
        if len(self._recent) >= _RUN:
            self._freeze()

    def _freeze(self) -> None:
        keys = np.fromiter(self._recent.keys(), np.uint64, len(self._recent))
        positions = np.fromiter(self._recent.values(), np.int64, len(self._recent))
        self._recent = {}
        forgotten = int(positions[-1]) - self._remember
        # As in a log-structured merge: few runs to look into, and each key moves a few times only.
        while self._runs and len(self._runs[-1].keys) <= 2 * len(keys):
            older = self._runs.pop()
            kept = older.positions > forgotten
            keys = np.concatenate([older.keys[kept], keys])
            positions = np.concatenate([older.positions[kept], positions])
        order = np.argsort(keys, kind="stable")
        self._runs.append(_Run(keys[order], positions[order], int(positions.max())))
        while self._runs[0].newest <= forgotten:
            del self._runs[0]
