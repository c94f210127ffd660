"""From one View to the next without losing an event: register under old and new, switch routing, drain, drop old.

Without this every adaptation loses what is under way. Copies are told apart by their epoch; those that
both Views hold at the same owner and key are made once and kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.systems.interface import Numbers, Placed, View, place


@dataclass(frozen=True, eq=False)
class Change:
    """What moves: copies to be made before the switch, and to be dropped once the old epoch's events are through."""

    added: Placed
    dropped: Placed
    kept: int  # copies that need not be touched


def change(filters: FilterTable, old: View, new: View) -> Change:
    """The difference of two Views, for these subscriptions."""
    before, after = place(filters, old), place(filters, new)
    if old.placement != new.placement:
        return Change(after, before, 0)
    one, other = _copies(before, old), _copies(after, new)
    added = np.array([copy not in one for copy in other], bool)
    dropped = np.array([copy not in other for copy in one], bool)
    return Change(_part(after, added), _part(before, dropped), int((~added).sum()))


def _copies(placed: Placed, view: View) -> dict[tuple[int, int, int], None]:
    """Whose copy it is, at which key and owner; in order."""
    whose = placed.subscriptions if placed.conjunctions is None else placed.conjunctions
    owners = view.owners(placed.keys)
    return dict.fromkeys(zip(whose.tolist(), placed.keys.tolist(), owners.tolist(), strict=True))


def _part(placed: Placed, chosen: np.typing.NDArray[np.bool_]) -> Placed:
    boxes: Numbers | None = None if placed.conjunctions is None else placed.conjunctions[chosen]
    return Placed(placed.subscriptions[chosen], placed.keys[chosen], boxes)
