"""Groups of similar subscriptions for a store of notifications, which then writes pages for them; and what they save.

Whether groups are worth it is asked of events that came: what their notifications take as rows, in the groups that
there are, and in groups made of the subscriptions of now. A page is written for a group and a load
(`store.grouped`), so that it matters how many events a load has: of few events, a group of 256 has a handful of
notifications, and they are rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from tidings.matching.analysis.rectangle_forest import GROUP, groups_of
from tidings.model.domain import Domain
from tidings.pipeline.build.table_reading import read_whole
from tidings.store.mailboxes.mailbox_loading import PAGE_BYTES, ROW_BYTES
from tidings.store.mailboxes.notifications import Notifications

WORTH = 0.3  # of the bytes of rows: pages take longer to make and to read
PAYS = 0.7  # of the bytes in the groups that there are

_EVENT_BYTES, _MEMBER_BYTES = 3, 1  # in a page, before it is deflated
_HEADER_BYTES = 24


def group_mailboxes(
    subscriptions: DataFrame, domain: Domain, store: str | os.PathLike[str], *, size: int = GROUP
) -> int:
    """Divides all subscriptions of a table into groups of similar ones; returns the number of groups."""
    made = SimilarGroups.of(subscriptions, domain, size)
    with Notifications(store) as opened:
        return opened.group(made.lists(np.arange(len(made.starts) - 1)))


@dataclass(frozen=True, eq=False)
class SimilarGroups:
    """Groups of subscriptions that are alike: group g has the members `ids[starts[g]:starts[g + 1]]`."""

    ids: Any  # an Arrow array
    starts: npt.NDArray[np.int64]

    @staticmethod
    def of(subscriptions: DataFrame, domain: Domain, size: int = GROUP) -> SimilarGroups:
        table = read_whole(subscriptions, domain)
        groups = groups_of(table.filters, size)
        order = np.concatenate([np.empty(0, np.int64), *groups]).astype(np.int64)
        return SimilarGroups(table.ids.take(pa.array(order)), np.cumsum([0, *map(len, groups)]))

    def find(self, ids: Any) -> npt.NDArray[np.int64]:
        """The group of each id; −1 for none."""
        at = np.asarray(pc.index_in(ids, value_set=self.ids).fill_null(-1)).astype(np.int64)
        return np.where(at < 0, -1, np.searchsorted(self.starts, at, side="right") - 1)

    def lists(self, groups: npt.NDArray[np.int64]) -> list[list[str | int]]:
        return [self.ids[self.starts[group] : self.starts[group + 1]].to_pylist() for group in groups.tolist()]


@dataclass(frozen=True)
class Regrouping:
    """What is to become of a store's groups, by the bytes of a sample's notifications."""

    pays: bool
    groups: list[list[str | int]]  # to be made if it pays; none: rows take the fewest bytes
    rows_bytes: float  # without groups
    bytes: float  # with these
    in_force_bytes: float  # as it is

    def __str__(self) -> str:
        return (
            f"{self.bytes:.1f} bytes a notification in {len(self.groups):,} groups, {self.in_force_bytes:.1f} as it "
            f"is, {self.rows_bytes:.1f} in rows"
        )


def regroup(
    made: SimilarGroups,
    store: Notifications,
    events: npt.NDArray[np.int64],
    ids: Any,
    *,
    events_a_load: int,
) -> Regrouping:
    """Whether new groups save bytes: event `events[i]` of a sample is for the subscription `ids[i]`."""
    loads, count = events // max(1, events_a_load), max(1, len(events))
    groups, in_force = made.find(ids), store.groups_of(ids)
    saved = _saved(loads, events, groups)
    worth = np.unique(saved[0][saved[1] > 0])
    rows = float(ROW_BYTES * len(events))
    new = rows - float(saved[1][saved[1] > 0].sum())
    now = rows - float(np.maximum(_saved(loads, events, in_force)[1], 0).sum())
    if not len(worth) or new > WORTH * rows:
        pays = bool((in_force >= 0).any()) and now > PAYS * rows
        return Regrouping(pays, [], ROW_BYTES, rows / count, now / count)
    lists = made.lists(worth) if new <= PAYS * now else []
    return Regrouping(bool(lists), lists, ROW_BYTES, new / count, now / count)


def _saved(loads: Any, events: Any, groups: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Returns for each load and group how many bytes a page saves over rows; negative if it takes more."""
    mine = groups >= 0
    loads, events, groups = loads[mine], events[mine], groups[mine]
    if not len(groups):
        return np.empty(0, np.int64), np.empty(0, np.float64)
    order = np.lexsort((events, groups, loads))
    loads, events, groups = loads[order], events[order], groups[order]
    page = np.r_[True, (np.diff(loads) != 0) | (np.diff(groups) != 0)]
    event = page | np.r_[True, np.diff(events) != 0]
    starts = np.flatnonzero(page)
    notifications = np.diff(np.r_[starts, len(groups)])
    distinct = np.add.reduceat(event.astype(np.int64), starts)
    taken = PAGE_BYTES + _HEADER_BYTES + _EVENT_BYTES * distinct + _MEMBER_BYTES * notifications
    return groups[starts], (ROW_BYTES * notifications - taken).astype(np.float64)
