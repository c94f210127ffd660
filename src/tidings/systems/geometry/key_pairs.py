"""Pairs of numbers, each once; and owners for many parts, such that all have about as much to do."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.systems.interface import Numbers

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BITS = 63


def distinct_pairs(one: Numbers, other: Numbers) -> tuple[Numbers, Numbers]:
    """The different pairs, in order of the first and then of the second number."""
    pairs, _ = _sorted(one, other, counts=False)
    return pairs


def counted_pairs(one: Numbers, other: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The same, and how often each pair is there."""
    pairs, starts = _sorted(one, other, counts=True)
    assert starts is not None
    return *pairs, np.diff(np.append(starts, len(one)))


def _sorted(one: Numbers, other: Numbers, *, counts: bool) -> tuple[tuple[Numbers, Numbers], Numbers | None]:
    if not len(one):
        return (one, other), np.empty(0, np.int64) if counts else None
    if (one[1:] > one[:-1]).all():  # as it is where nothing has a second number
        return (one, other), np.arange(len(one)) if counts else None
    least, base = int(one.min()), int(other.min())
    bits = (int(other.max()) - base).bit_length()
    if (int(one.max()) - least).bit_length() + bits > _BITS:
        order = np.lexsort((other, one))
        one, other = one[order], other[order]
        fresh = starts_of(one, other)
        return (one[fresh], other[fresh]), fresh if counts else None
    packed = ((one - least) << bits) | (other - base)
    if not (packed[1:] > packed[:-1]).all():
        packed.sort()
    fresh = starts_of(packed)
    packed = packed[fresh]
    pairs = (packed >> bits) + least, (packed & ((1 << bits) - 1)) + base
    return pairs, fresh if counts else None


def starts_of(*columns: Any) -> Numbers:
    """Where, in order, something differs from what is before it."""
    fresh = np.ones(len(columns[0]), bool)
    if len(fresh):
        fresh[1:] = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        fresh[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(fresh)


def distinct_hashed(rows: Numbers, hashes: Numbers) -> tuple[Numbers, Numbers]:
    """The different pairs, in any order, of which hardly any is there twice: rows with hashes of more bits than fit.

    Both are mixed into one number. Where no number is there twice, no pair is; else those that share one are compared.
    """
    with np.errstate(over="ignore"):
        mixed = (rows.view(np.uint64) * _GOLDEN) ^ hashes.view(np.uint64)
    ordered = np.sort(mixed)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(again):
        return rows, hashes
    suspect = np.isin(mixed, again)
    some = distinct_pairs(rows[suspect], hashes[suspect])
    return np.concatenate([rows[~suspect], some[0]]), np.concatenate([hashes[~suspect], some[1]])


def balanced(loads: npt.NDArray[np.float64], owners: int) -> Numbers:
    """Returns the owner of each part: the heaviest first, to the owner with the least (Graham, 1969)."""
    assignment = np.zeros(len(loads), np.int64)
    least = [(0.0, owner) for owner in range(owners)]
    for part in np.argsort(-loads, kind="stable").tolist():
        load, owner = heapq.heappop(least)
        assignment[part] = owner
        heapq.heappush(least, (load + float(loads[part]), owner))
    return assignment
