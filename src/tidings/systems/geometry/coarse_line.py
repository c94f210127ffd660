"""An attribute's line as a row of numbered cells, where it is coarse enough that a range is a list of them.

Whole numbers, dates and decimals are their own cells, or those of the precision that the domain
declares; a double has cells only where a precision is declared. Events need not keep to it: a value
between two steps lies in the cell of the lower one.

`listed_values` and `event_values` number the values of any attribute for hashing: by cells where it has
them, else texts by a hash and numbers by their ordinals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidings.filter.normal.filter_table import Intervals
from tidings.filter.normal.value_sets import ordinal
from tidings.kernels.hashing import hashes_of
from tidings.matching.batch_columns import Columns, Mask
from tidings.model.domain import Attribute, Domain
from tidings.model.event import EventBatch
from tidings.model.types import BIGINT, DataType, Path
from tidings.systems.interface import Numbers

_FAR = 1 << 60  # values and cells beyond this are taken for this


@dataclass(frozen=True)
class Cells:
    """The cell of a value v is ⌊(v − origin) / step⌋."""

    origin: float
    step: float
    floating: bool
    count: int | None = None  # D of the paper: (max − min) / precision + 1, where the domain declares all three

    def numbers(self, ordinals: Numbers) -> Numbers:
        """The cells of values, given by their ordinals, in their order; past the declared ends, the end ones."""
        if self.floating:
            with np.errstate(all="ignore"):
                cells = np.floor((double_values(ordinals) - self.origin) / self.step)
            cells = np.where(np.isnan(cells), np.inf, cells)  # NaN is last on its line
            found = np.clip(cells, -_FAR, _FAR).astype(np.int64)
        else:
            near = np.clip(ordinals, -_FAR, _FAR)  # so that no difference leaves 64 bits
            found = (near - int(np.clip(self.origin, -_FAR, _FAR))) // int(self.step)
        return found if self.count is None else np.clip(found, 0, self.count - 1)

    def to_dict(self) -> dict[str, Any]:
        return {"origin": self.origin, "step": self.step, "floating": self.floating, "count": self.count}


def double_values(ordinals: Numbers) -> np.typing.NDArray[np.float64]:
    """The inverse of `double_ordinals`."""
    bits = np.where(ordinals >= 0, ordinals, (ordinals - 1) ^ np.int64(0x7FFF_FFFF_FFFF_FFFF))
    return np.asarray(bits, np.int64).view(np.float64)


def cells_of(domain: Domain, path: Path) -> Cells | None:
    """The cells of an attribute as the domain declares it; None of texts, and of doubles without a precision."""
    type_ = domain.leaves[path]
    declared = next((one for one in domain.attributes if one.path == path), Attribute("undeclared", type_))
    if type_.name == "string" or (type_.name in ("float", "double") and declared.precision is None):
        return None
    if type_.name in ("float", "double"):
        origin = float(declared.min) if declared.min is not None else 0.0
        step = float(declared.precision)
        return Cells(origin, step, True, _count(declared, origin, step))
    origin = ordinal(declared.min, type_) if declared.min is not None else 0
    step = 1 if declared.precision is None else _step(declared, type_)
    return Cells(origin, step, False, _count(declared, origin, step))


def _step(declared: Attribute, type_: DataType) -> int:
    """The precision in ordinals, of which one is the least."""
    precision = declared.precision
    assert precision is not None
    return max(1, int(ordinal(precision, BIGINT if type_.is_datetime else type_)))


def _count(declared: Attribute, origin: float, step: float) -> int | None:
    if declared.type.name == "boolean":
        return 2
    if declared.min is None or declared.max is None:
        return None
    last = declared.max if declared.type.name in ("float", "double") else ordinal(declared.max, declared.type)
    return round((float(last) - origin) / step) + 1


def listed_values(intervals: Intervals, cells: Cells | None) -> tuple[Numbers, Numbers]:
    """The number of the first value of each interval, and how many there are; 0 where they cannot be listed."""
    lows, highs = intervals.lows, intervals.highs
    if cells is not None:
        first = cells.numbers(lows)
        return first, cells.numbers(highs) - first + 1
    point = lows == highs
    if intervals.keys is None:
        return lows, point.astype(np.int64)
    # Constant i has the code 2i, and what lies between it and the next one the code 2i + 1.
    point &= (lows >= 0) & (lows % 2 == 0) & (lows < 2 * len(intervals.keys))
    hashes = np.append(hashes_of(intervals.keys).view(np.int64), 0)
    return hashes[np.where(point, lows // 2, -1)], point.astype(np.int64)


def event_values(events: EventBatch, path: Path, cells: Cells | None) -> tuple[Numbers, Mask]:
    """The number of each event's value, and which are not NULL."""
    columns = Columns(events)
    if events.domain.leaves[path].name == "string":
        column = events.columns[path]
        return columns.hashes(path).view(np.int64), column.is_valid().to_numpy(zero_copy_only=False)
    codes, valid = columns.codes(path)
    return (codes if cells is None else cells.numbers(codes)), valid
