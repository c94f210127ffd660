"""How far two values are from each other, as a number from 0 to 1: what a failing predicate is off by.

Texts differ by how little of them is alike, numbers by their gap against the larger of 1 and the bound, dates and times
by their gap against a day. What has no such measure (NULL, NaN, an infinity, a truth value) is off by 1. For one pair
of values there are `text_distance` and `number_distance`, for many `text_distances` and `number_distances`; each gives
the same to the last bit. `least_…` are quicker, and never more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tidings.filter.meaning.time_casts import DAY_US
from tidings.model.arrow import ArrowArray
from tidings.model.types import DataType

Numbers = npt.NDArray[np.float64]

FARTHEST = 1.0
COMPARED_CHARACTERS = 200  # of two strings, when their likeness is measured
_ROUNDING = 1e-12  # more than doubles lose


def text_distance(value: str, other: str) -> float:
    if value == other:
        return FARTHEST
    likeness = SequenceMatcher(None, value[:COMPARED_CHARACTERS], other[:COMPARED_CHARACTERS], autojunk=False)
    return 1.0 - likeness.ratio()


def gap(value: Any, bound: Any) -> Decimal:
    """Between two finite numbers as they are written."""
    return abs(Decimal(str(value)) - Decimal(str(bound)))


def number_distance(value: Any, bound: Any, type_: DataType) -> float:
    """Of two finite numbers, dates or times of one type."""
    between = abs(value - bound) if type_.is_datetime else gap(value, bound)
    return 1.0 / (1.0 + float(_unit(bound, type_)) / float(between)) if between else 0.0


def _unit(bound: Any, type_: DataType) -> Any:
    if type_.is_datetime:
        return 1 if type_.name == "date" else DAY_US
    return max(1, abs(bound))


def are_finite(*values: Any) -> bool:
    return all(map(math.isfinite, values))


def number_distances(values: npt.NDArray[Any], bounds: npt.NDArray[Any], type_: DataType) -> Numbers:
    """`number_distance` of each pair; 1 where one of them is not finite."""
    if values.dtype == object:
        return np.array([number_distance(*pair, type_) for pair in _pairs(values, bounds)], np.float64)
    if not type_.is_fractional:
        # As unsigned numbers even the gap between the least and the greatest of 64 bits is exact.
        least, most = np.minimum(values, bounds), np.maximum(values, bounds)
        return _scaled((most.view(np.uint64) - least.view(np.uint64)).astype(np.float64), bounds, type_)
    finite = np.isfinite(values) & np.isfinite(bounds)
    distances = np.full(len(values), FARTHEST)
    gaps = np.array([float(gap(*pair)) for pair in _pairs(values[finite], bounds[finite])], np.float64)
    distances[finite] = _scaled(gaps, bounds[finite], type_)
    return distances


def least_number_distances(values: npt.NDArray[Any], bounds: npt.NDArray[Any], type_: DataType) -> Numbers:
    """The same without a look at how numbers are written: as near as doubles are."""
    if not type_.is_fractional:
        return number_distances(values, bounds, type_)
    values, bounds = values.astype(np.float64), bounds.astype(np.float64)
    finite = np.isfinite(values) & np.isfinite(bounds)
    with np.errstate(all="ignore"):
        near = _scaled(np.abs(values - bounds), bounds, type_)
    return np.where(finite, np.maximum(0.0, near - _ROUNDING), FARTHEST)


def _scaled(gaps: Numbers, bounds: npt.NDArray[Any], type_: DataType) -> Numbers:
    units = float(_unit(0, type_)) if type_.is_datetime else np.maximum(1.0, np.abs(bounds.astype(np.float64)))
    with np.errstate(all="ignore"):
        return np.asarray(1.0 / (1.0 + units / gaps))  # of a gap of 0, 0


def text_distances(values: Iterable[str], others: Iterable[str]) -> Numbers:
    """`text_distance` of each pair."""
    known: dict[tuple[str, str], float] = {}
    found = []
    for pair in zip(values, others, strict=True):
        if pair not in known:
            known[pair] = text_distance(*pair)
        found.append(known[pair])
    return np.array(found, np.float64)


def least_text_distances(value: str, others: ArrowArray) -> Numbers:
    """What the characters that two texts have in common leave, in whatever order they stand."""
    value, others = value[:COMPARED_CHARACTERS], pc.utf8_slice_codeunits(others, 0, COMPARED_CHARACTERS)
    common = np.zeros(len(others), np.int64)
    for character, count in Counter(value).items():
        found: ArrowArray = pc.count_substring(others, character)
        common += np.minimum(count, found.to_numpy(zero_copy_only=False))
    length: ArrowArray = pc.utf8_length(others)
    lengths = len(value) + length.to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        return np.where(lengths > 0, 1.0 - 2.0 * common / lengths, 0.0)


def _pairs(values: npt.NDArray[Any], bounds: npt.NDArray[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(values.tolist(), bounds.tolist(), strict=True)
