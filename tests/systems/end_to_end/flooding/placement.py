"""One key, with one owner, at which everything meets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.model.event import EventBatch
from tidings.model.types import Path
from tidings.systems.interface import Numbers, Placed, Routed, routed_of
from tidings.systems.statistics import Statistics


@dataclass(frozen=True)
class View:
    placement: ClassVar[str] = "flooding"

    partitions: int = 1
    epoch: int = 0
    channels: int = 1
    visits: int = 1

    @property
    def paths(self) -> tuple[Path, ...]:
        return ()

    def owners(self, keys: Numbers) -> Numbers:
        return np.zeros(len(keys), np.int64)

    def described(self) -> str:
        return "nothing"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(form: dict[str, Any]) -> View:
        return View(**form)


def place(filters: FilterTable, view: View) -> Placed:
    rows = np.unique(filters.box_filter).astype(np.int64)
    return Placed(rows, np.zeros(len(rows), np.int64))


def route(events: EventBatch, view: View) -> Routed:
    return routed_of(events.count, [np.zeros(events.count, np.int64)])


def adapt(statistics: Statistics, *, partitions: int, epoch: int = 0) -> View:
    return View(max(1, partitions), epoch)
