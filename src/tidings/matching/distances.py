"""How far two values are from each other, as a number from 0 to 1: what a failing predicate is off by.

Texts differ by how little of them is alike, numbers by their gap against the larger of 1 and the bound, dates and times
by their gap against a day. What has no such measure (NULL, NaN, an infinity, a truth value) is off by 1. For one pair
of values there is `text_distance` and `gap`, for many `number_distances`; each gives the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.model.filter.times import DAY_US
from tidings.model.types import DataType

Numbers = npt.NDArray[np.float64]

FARTHEST = 1.0
COMPARED_CHARACTERS = 200  # of two strings, when their likeness is measured


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
    if type_.is_fractional:
        finite = np.isfinite(values) & np.isfinite(bounds)
        gaps = np.full(len(values), np.nan)
        gaps[finite] = [float(gap(*pair)) for pair in _pairs(values[finite], bounds[finite])]
    else:
        finite = np.ones(len(values), bool)
        # As unsigned numbers even the gap between the least and the greatest of 64 bits is exact.
        gaps = (np.maximum(values, bounds).view(np.uint64) - np.minimum(values, bounds).view(np.uint64)).astype(float)
    if type_.is_datetime:
        units = np.full(len(values), float(_unit(0, type_)))
    else:
        units = np.maximum(1.0, np.abs(bounds.astype(np.float64)))
    with np.errstate(all="ignore"):
        distances = 1.0 / (1.0 + units / gaps)  # of a gap of 0, 0
    return np.where(finite, distances, FARTHEST)


def _pairs(values: npt.NDArray[Any], bounds: npt.NDArray[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(values.tolist(), bounds.tolist(), strict=True)
