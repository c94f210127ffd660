"""BlueDove grows and shrinks: a matcher joins by taking halves of segments, and leaves its own to neighbours.

Section III-C of the paper. Both give another View: copies are made, routing switches, then what is no longer
needed is dropped. Join takes from the most loaded matcher of each dimension (section IV-E).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.systems.bluedove.placement import View, sizes
from tidings.systems.geometry.line_positions import Edges, bounds_in, segments_of
from tidings.systems.interface import PlacementError, place


def joined(view: View, filters: FilterTable) -> View:
    """With one more matcher, which takes the upper half of the most loaded segment in every dimension."""
    newcomer = view.partitions
    edges, owners = list(view.edges), _by_dimension(view)
    loads = sizes(place(filters, view), view)
    for dimension, path in enumerate(view.paths):
        mine = loads[view.bases[dimension] : view.bases[dimension + 1]]
        bounds = bounds_in(filters, path)
        held = segments_of(bounds, edges[dimension])
        for segment in np.argsort(-mine, kind="stable").tolist():
            cut = _median(bounds[held == segment], edges[dimension], segment)
            if cut is not None:
                edges[dimension] = np.insert(edges[dimension], segment, np.array([cut], edges[dimension].dtype))
                owners[dimension].insert(segment + 1, newcomer)
                break
    return _changed(view, tuple(edges), owners, filters)


def left(view: View, matcher: int, filters: FilterTable) -> View:
    """Without a matcher: each of its segments goes to the one before it, the first to the one after."""
    if view.partitions < 2:
        raise PlacementError("the last matcher cannot leave")
    edges, owners = list(view.edges), _by_dimension(view)
    for dimension, mine in enumerate(owners):
        while matcher in mine and len(mine) > 1:
            segment = mine.index(matcher)
            edges[dimension] = np.delete(edges[dimension], max(segment - 1, 0))
            del mine[segment]
        owners[dimension] = [0 if owner == matcher else owner for owner in mine]
    renumbered = [[owner - (owner > matcher) for owner in mine] for mine in owners]
    return _changed(view, tuple(edges), renumbered, filters)


def _by_dimension(view: View) -> list[list[int]]:
    return [view.assignment[view.bases[d] : view.bases[d + 1]].tolist() for d in range(len(view.paths))]


def _median(places: Edges, edges: Edges, segment: int) -> object | None:
    """Where a segment is cut in two; None where all its places are one."""
    ordered = np.sort(places)
    if not len(ordered):
        return None
    middle = ordered[len(ordered) // 2]
    begins = edges[segment - 1] if segment else None
    above = ordered[ordered > middle] if begins is not None and middle <= begins else ordered[len(ordered) // 2 :]
    found: object | None = above[0] if len(above) else None
    return None if found is not None and found == begins else found


def _changed(view: View, edges: tuple[Edges, ...], owners: list[list[int]], filters: FilterTable) -> View:
    assignment = np.array([owner for mine in owners for owner in mine], np.int64)
    made = replace(view, edges=edges, assignment=assignment, costs=np.zeros(len(assignment)), epoch=view.epoch + 1)
    return replace(made, costs=sizes(place(filters, made), made))
