"""Index digests (Tam, Azimi and Jacobsen, "Building Content-Based Publish/Subscribe Systems with Distributed Hash
Tables", 2003).

An *index* is an ordered set of attributes. Each attribute's line is divided into *parts*: each value
by itself, or intervals with about as many events each. A subscription chooses one index of which it
constrains every attribute, and is held at the digest (hash) of each combination of parts that it
overlaps; an event visits, for each index, the digest of the parts that its values lie in. A missing
value lies in a part of its own, which the paper lacks, so that its event is not lost.

The index is the one whose digests the fewest events have, by the shares of the parts that the View
carries, of those in which the subscription has at most `keys_max` digests. One index a
subscription, so that no event is delivered twice; what no index serves is held everywhere.

channels   one for each index, and the catch-all's
positions  digests of 48 bits; their lowest bits are a slot, which the View assigns to a partition
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.kernels.hashing import hash_numbers, hash_text
from tidings.model.domain import path_text
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.digests.index_choice import INDICES_MAX, chosen_indices
from tidings.systems.geometry.balance import balanced
from tidings.systems.geometry.key_pairs import distinct_hashed
from tidings.systems.geometry.line_parts import Division, Held, division_of, divisions_from_dict
from tidings.systems.geometry.line_positions import named_path, ranges
from tidings.systems.interface import (
    EVERYWHERE,
    POSITION_BITS,
    Floats,
    Numbers,
    Placed,
    Routed,
    channels_of,
    keys_at,
    placed_of,
    positions_of,
    routed_of,
)
from tidings.systems.statistics import Statistics

KEYS_MAX = 32  # of one subscription
SLOTS = 1024

_SLOT = np.int64(SLOTS - 1)


@dataclass(frozen=True, eq=False)
class View:
    """The indices, how each attribute is divided, and who owns which digests."""

    placement: ClassVar[str] = "digests"

    domain: str  # a digest is of one domain's events
    indices: tuple[tuple[Path, ...], ...]
    divisions: dict[Path, Division]  # of every attribute that is in an index
    assignment: Numbers  # the partition of each slot
    keys_max: int = KEYS_MAX
    epoch: int = 0

    @property
    def partitions(self) -> int:
        return int(self.assignment.max()) + 1

    @property
    def channels(self) -> int:
        return len(self.indices) + 1

    @property
    def visits(self) -> int:
        return len(self.indices)

    @property
    def catch_all(self) -> int:
        return len(self.indices)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self.divisions)

    def seed(self, index: int) -> int:
        """What a digest of an index begins with: its domain and the names of its attributes, each with its length."""
        names = [self.domain, *map(path_text, self.indices[index])]
        return hash_text("".join(f"{len(name)}:{name}" for name in names))

    def owners(self, keys: Numbers) -> Numbers:
        owners = self.assignment[positions_of(keys) & _SLOT]
        return np.where(channels_of(keys) == self.catch_all, EVERYWHERE, owners)

    def described(self) -> str:
        return ", ".join("×".join(map(path_text, index)) for index in self.indices) or "nothing"

    def to_dict(self) -> dict[str, Any]:
        return {
            "domain": self.domain,
            "indices": [[list(path) for path in index] for index in self.indices],
            "divisions": [{"path": list(path)} | one.to_dict() for path, one in self.divisions.items()],
            "assignment": self.assignment.tolist(),
            "keys_max": self.keys_max,
            "epoch": self.epoch,
        }

    @staticmethod
    def from_dict(form: dict[str, Any]) -> View:
        indices = tuple(tuple(tuple(path) for path in index) for index in form["indices"])
        divisions = divisions_from_dict(form["divisions"])
        assignment = np.array(form["assignment"], np.int64)
        return View(form["domain"], indices, divisions, assignment, form["keys_max"], form["epoch"])


# ---------------------------------------------------------------------- the law


def place(filters: FilterTable, view: View) -> Placed:
    held = {path: division.held(filters, path) for path, division in view.divisions.items()}
    chosen, _ = choice(filters, view.indices, held, view.keys_max)
    parts: list[tuple[Numbers, Numbers]] = []
    for number, index in enumerate(view.indices):
        rows, positions = _digests(filters, chosen == number, [held[path] for path in index], view.seed(number))
        parts.append((rows, keys_at(number, positions)))
    alone = np.flatnonzero(chosen == view.catch_all)
    parts.append((alone, np.full(len(alone), keys_at(view.catch_all, np.zeros(1, np.int64))[0])))
    return placed_of(parts)


def route(events: EventBatch, view: View) -> Routed:
    numbers = {path: division.of(events, path) for path, division in view.divisions.items()}
    keys = []
    for index, paths in enumerate(view.indices):
        digests = np.full(events.count, view.seed(index), np.uint64)
        for path in paths:
            digests = _extended(digests, hash_numbers(numbers[path], 0))
        keys.append(keys_at(index, _positions(digests)))
    keys.append(np.full(events.count, keys_at(view.catch_all, np.zeros(1, np.int64))[0]))
    return routed_of(events.count, keys)


def choice(
    filters: FilterTable, indices: Sequence[tuple[Path, ...]], held: dict[Path, Held], keys_max: int
) -> tuple[Numbers, Floats]:
    """The index of each subscription, and the share of the events that visit it there.

    Past the indices is the catch-all, which all visit; -1 for a filter that nothing satisfies.
    """
    chosen = np.full(filters.count, -1, np.int64)
    chosen[filters.box_filter] = len(indices)
    shares = np.ones(filters.count)
    for number, index in enumerate(indices):
        counts, share = np.ones(filters.boxes), np.ones(filters.boxes)
        for path in index:
            counts = counts * held[path].counts
            share = share * held[path].shares
        # Every conjunction has to be in the index: one that constrains not all of it has no count there.
        unfit = np.bincount(filters.box_filter, counts == 0, filters.count) > 0
        digests = np.bincount(filters.box_filter, counts, filters.count)
        visited = np.bincount(filters.box_filter, share, filters.count)
        better = ~unfit & (digests <= keys_max) & (visited < shares) & (chosen >= 0)
        chosen[better], shares[better] = number, visited[better]
    return chosen, shares


def _digests(filters: FilterTable, chosen: Any, held: Sequence[Held], seed: int) -> tuple[Numbers, Numbers]:
    """(subscription, position) for every combination of parts that the chosen subscriptions overlap, once each."""
    boxes = np.flatnonzero(chosen[filters.box_filter])
    digests = np.full(len(boxes), seed, np.uint64)
    for one in held:
        row, at = ranges(one.offsets[boxes], one.offsets[boxes + 1] - one.offsets[boxes])
        hashed = hash_numbers(one.numbers, 0)  # of each part once, and not of each combination that it is in
        boxes, digests = boxes[row], _extended(digests[row], hashed[at])
    return distinct_hashed(filters.box_filter[boxes].astype(np.int64), _positions(digests))


def _extended(digests: Any, hashes: Any) -> Any:
    return hash_numbers((digests ^ hashes).view(np.int64), 0)


def _positions(digests: Any) -> Numbers:
    return np.asarray(digests >> np.uint64(64 - POSITION_BITS), np.int64)


# ---------------------------------------------------------------------- adapting


def adapt(
    statistics: Statistics,
    *,
    partitions: int,
    epoch: int = 0,
    indices: Sequence[Sequence[str]] | None = None,
    keys_max: int = KEYS_MAX,
    indices_max: int = INDICES_MAX,
) -> View:
    """The indices that are given, or that the domain declares, or that serve the subscriptions best.

    Slots are assigned by what they have to do: how many subscriptions the sampled events meet there.
    """
    filters = statistics.filters
    divisions = {path: division_of(statistics, path) for path in statistics.paths}
    held = {path: division.held(filters, path) for path, division in divisions.items()}
    given = indices if indices is not None else filters.domain.indices
    if given:
        chosen = tuple(tuple(named_path(filters.domain, name, "in an index") for name in index) for index in given)
        chosen = tuple(index for index in chosen if all(path in divisions for path in index))
    else:
        chosen = chosen_indices(filters, held, choice, keys_max, indices_max, statistics.scale)
    used = {path: divisions[path] for index in chosen for path in index}
    name = filters.domain.name
    unassigned = View(name, chosen, used, np.arange(SLOTS) % max(1, partitions), keys_max, epoch)
    return View(name, chosen, used, balanced(_work(statistics, unassigned), max(1, partitions)), keys_max, epoch)


def _work(statistics: Statistics, view: View) -> Floats:
    """What each slot has to do: the subscriptions that sampled events meet there, and their visits."""
    placed = place(statistics.filters, view)
    routed = [] if statistics.events is None else [route(statistics.events, view)]
    held = placed.keys[channels_of(placed.keys) < view.catch_all]
    work = np.bincount(held & _SLOT, minlength=SLOTS) * 1e-6  # without events: an equal part of the copies
    for visits in routed:
        keys = visits.keys[channels_of(visits.keys) < view.catch_all]
        known, counts = np.unique(held, return_counts=True)
        at = np.minimum(np.searchsorted(known, keys), max(0, len(known) - 1))
        met = np.where(known[at] == keys, counts[at], 0) if len(known) else np.zeros(len(keys))
        work = work + np.bincount(keys & _SLOT, met + 1.0, SLOTS)
    return np.asarray(work, np.float64)
