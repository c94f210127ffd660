"""An explicit owner for each of many parts, such that owners have about as much to do."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from tidings.systems.interface import Numbers


def balanced(loads: npt.NDArray[np.float64], owners: int) -> Numbers:
    """The owner of each part: the heaviest first, to whoever has the least (Graham, 1969)."""
    assignment = np.zeros(len(loads), np.int64)
    least = [(0.0, owner) for owner in range(owners)]
    for part in np.argsort(-loads, kind="stable").tolist():
        load, owner = heapq.heappop(least)
        assignment[part] = owner
        heapq.heappush(least, (load + float(loads[part]), owner))
    return assignment


def skew(loads: npt.NDArray[np.float64]) -> float:
    """The greatest load in units of the mean."""
    return float(loads.max() / loads.mean()) if len(loads) and loads.any() else 1.0
