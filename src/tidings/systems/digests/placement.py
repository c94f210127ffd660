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
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.kernels.hashing import hash_numbers, hash_text
from tidings.model.domain import Domain, path_text
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.geometry.key_pairs import balanced, distinct_hashed
from tidings.systems.geometry.line_positions import (
    HeldParts,
    LineDivision,
    division_of,
    divisions_from_dict,
    named_path,
    ranges,
)
from tidings.systems.interface import (
    EVERYWHERE,
    POSITION_BITS,
    Floats,
    Numbers,
    Placed,
    Routed,
    alike_keys,
    channels_of,
    keys_at,
    placed_of,
    positions_of,
    routed_of,
)
from tidings.systems.statistics import Statistics

KEYS_MAX = 32  # of one subscription
SLOTS = 1024
INDICES_MAX = 12
TABLE = "events"  # a domain has one table
VISIT = 50.0  # what a visit costs, in subscriptions that an event is compared with

_SLOT = np.int64(SLOTS - 1)
_TOGETHER_MAX = 2  # attributes of an index that is derived
_TRIED_MAX = 64  # indices that are compared in a round


@dataclass(frozen=True, eq=False)
class View:
    """The indices, how each attribute is divided, and who owns which digests."""

    placement: ClassVar[str] = "digests"

    domain: str  # a digest is of one domain's events
    indices: tuple[tuple[Path, ...], ...]
    divisions: dict[Path, LineDivision]  # of every attribute that is in an index
    assignment: Numbers  # the partition of each slot
    keys_max: int = KEYS_MAX
    epoch: int = 0
    headings: tuple[tuple[str, ...], ...] = ()  # what a digest of each index begins with: see `headings_of`

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
        """The hash of what a digest of an index begins with, each part of it with its length."""
        return hash_text("".join(f"{len(part)}:{part}" for part in self.headings[index]))

    def owners(self, keys: Numbers) -> Numbers:
        owners = self.assignment[positions_of(keys) & _SLOT]
        return np.where(channels_of(keys) == self.catch_all, EVERYWHERE, owners)

    def described_parts(self, path: Path) -> str:
        edges = self.divisions[path].edges
        return "each value" if edges is None else f"{len(edges) + 1} intervals"

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
            "headings": [list(heading) for heading in self.headings],
        }

    @staticmethod
    def from_dict(form: dict[str, Any]) -> View:
        indices = tuple(tuple(tuple(path) for path in index) for index in form["indices"])
        divisions = divisions_from_dict(form["divisions"])
        assignment = np.array(form["assignment"], np.int64)
        # A View of an index that was built before headings were written has digests of its domain and names alone.
        bare = [[form["domain"], *map(path_text, index)] for index in indices]
        headings = tuple(map(tuple, form.get("headings", bare)))
        return View(form["domain"], indices, divisions, assignment, form["keys_max"], form["epoch"], headings)


def headings_of(domain: Domain, indices: Sequence[tuple[Path, ...]]) -> tuple[tuple[str, ...], ...]:
    """Returns what the digests of each index begin with: domain, table and index, and each attribute's type, unit and
    name (Tam et al., section 3.2). The values' parts follow."""
    units = {attribute.path: attribute.unit or "" for attribute in domain.attributes}
    headings = []
    for index in indices:
        described = [(str(domain.leaves[path]), units.get(path, ""), path_text(path)) for path in index]
        name = ",".join(map(path_text, index))
        headings.append((domain.name, TABLE, name, *(part for attribute in described for part in attribute)))
    return tuple(headings)


# ---------------------------------------------------------------------- the law


def place(filters: FilterTable, view: View) -> Placed:
    held = {path: division.held(filters, path) for path, division in view.divisions.items()}
    chosen, _ = choice(filters, view.indices, held, view.keys_max)
    parts: list[tuple[Numbers, Numbers]] = []
    for number, index in enumerate(view.indices):
        rows, positions = _digests(filters, chosen == number, [held[path] for path in index], view.seed(number))
        parts.append((rows, keys_at(number, positions)))
    alone = np.flatnonzero(chosen == view.catch_all)
    parts.append((alone, alike_keys(view.catch_all, len(alone))))
    return placed_of(parts)


def route(events: EventBatch, view: View) -> Routed:
    numbers = {path: division.of(events, path) for path, division in view.divisions.items()}
    keys = []
    for index, paths in enumerate(view.indices):
        digests = np.full(events.count, view.seed(index), np.uint64)
        for path in paths:
            digests = _extended(digests, hash_numbers(numbers[path], 0))
        keys.append(keys_at(index, _positions(digests)))
    keys.append(alike_keys(view.catch_all, events.count))
    return routed_of(events.count, keys)


def choice(
    filters: FilterTable, indices: Sequence[tuple[Path, ...]], held: dict[Path, HeldParts], keys_max: int
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


def _digests(filters: FilterTable, chosen: Any, held: Sequence[HeldParts], seed: int) -> tuple[Numbers, Numbers]:
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
    elif statistics.source == "filters":
        chosen = chosen_indices(filters, held, keys_max, indices_max, statistics.scale)
    else:  # a filter is served if it constrains any attribute
        chosen = tuple((path,) for path in divisions if divisions[path].divides)[:indices_max]
    used = {path: divisions[path] for index in chosen for path in index}
    name, headings = filters.domain.name, headings_of(filters.domain, chosen)
    unassigned = View(name, chosen, used, np.arange(SLOTS) % max(1, partitions), keys_max, epoch, headings)
    return replace(unassigned, assignment=balanced(_work(statistics, unassigned), max(1, partitions)))


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


# ---------------------------------------------------------------------- which indices


def chosen_indices(
    filters: FilterTable, held: dict[Path, HeldParts], keys_max: int, indices_max: int, scale: float
) -> tuple[tuple[Path, ...], ...]:
    """Returns the indices that serve subscriptions best, of one or two attributes each.

    Every index costs every event a visit, and spares it the subscriptions that it would otherwise be compared with.
    Indices are added one by one, each time the one that spares the most, while it spares more than it costs. A filter
    stands for `scale` subscriptions.
    """
    candidates = _candidates(filters, held)
    alone = {index: choice(filters, [index], held, keys_max)[1] for index in candidates}
    satisfiable = np.zeros(filters.count, bool)
    satisfiable[filters.box_filter] = True
    shares = satisfiable.astype(np.float64)  # of the events that each subscription is compared with
    chosen: list[tuple[Path, ...]] = []
    while len(chosen) < indices_max and candidates:
        spared = {index: float(np.maximum(shares - alone[index], 0).sum()) * scale for index in candidates}
        best = max(candidates, key=lambda index: (spared[index], -len(index)))
        if spared[best] <= VISIT:
            break
        chosen.append(best)
        candidates.remove(best)
        shares = np.minimum(shares, np.where(satisfiable, alone[best], 0.0))
    return tuple(chosen)


def _candidates(filters: FilterTable, held: dict[Path, HeldParts]) -> list[tuple[Path, ...]]:
    """Single attributes, and the pairs that the most conjunctions constrain together."""
    constrained = {path: one.counts > 0 for path, one in held.items() if (one.counts > 0).any()}
    singles = [(path,) for path in constrained]
    together = {
        pair: int((constrained[pair[0]] & constrained[pair[1]]).sum())
        for pair in combinations(constrained, _TOGETHER_MAX)
    }
    often = sorted((pair for pair in together if together[pair]), key=lambda pair: -together[pair])
    return [*singles, *often[:_TRIED_MAX]]
