"""BlueDove's elasticity (section III-C): a matcher joins or leaves, and only segments that it takes or gives change.

On Spark a matcher is a partition. So a View can follow the executors, and the load, without being made again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tidings.filter.normal.filter_table import FilterTable
from tidings.systems.bluedove.forwarding import Load
from tidings.systems.bluedove.placement import View, place, sizes
from tidings.systems.geometry.line_positions import Edges, bounds_in, segments_of
from tidings.systems.interface import Floats, PlacementError

SATURATED = 0.8  # the share of its time that a matcher works, beyond which it is late whenever load varies


def resized(view: View, partitions: int, filters: FilterTable, *, scale: float = 1.0) -> View:
    """The View for so many matchers: each newcomer takes half of the most loaded segments, the idlest leave.

    Load is what the View has measured, else the subscriptions of a segment. There are fewer matchers than were asked
    for if no segment can be divided any more. `filters` are a sample, `scale` times as many are held.
    """
    measured, before = view, view.epoch
    while view.partitions < partitions:
        larger = joined(view, filters, _work(view, measured, filters))
        if larger.partitions == view.partitions:
            break
        view = larger
    while view.partitions > partitions:
        work = np.bincount(view.assignment, _work(view, measured, filters), view.partitions)
        view = left(view, int(np.argmin(work)), filters)
    return view if view.epoch == before else replace(view, costs=view.costs * scale, epoch=before + 1)


def relieved(view: View, filters: FilterTable, *, scale: float = 1.0) -> View:
    """The View with one more matcher, if one of them was measured to have more to do than it can; else itself."""
    if view.load is None or _busiest(view, view.load) <= SATURATED:
        return view
    return resized(view, view.partitions + 1, filters, scale=scale)


def _busiest(view: View, load: Load) -> float:
    """The share of its time that the busiest matcher works."""
    return float(np.bincount(view.assignment, load.arrivals / load.served, view.partitions).max())


def _work(view: View, measured: View, filters: FilterTable) -> Floats:
    """What each segment has to do, by what the segments that it was cut from were measured to do for a subscription."""
    held = sizes(place(filters, view), view)
    if measured.load is None:
        return held
    load = measured.load
    each = (load.arrivals / load.served + load.queued / load.served) / np.maximum(
        sizes(place(filters, measured), measured), 1.0
    )
    found = []
    for dimension, edges in enumerate(view.edges):
        origin = np.concatenate([[0], segments_of(edges, measured.edges[dimension])])
        mine = held[view.bases[dimension] : view.bases[dimension + 1]]
        found.append(mine * each[measured.bases[dimension] + origin])
    return np.concatenate(found)


def joined(view: View, filters: FilterTable, work: Floats | None = None) -> View:
    """With one more matcher, which takes the upper half of the most loaded segment in every dimension.

    A segment's load is `work`, by default its subscriptions.
    """
    newcomer = view.partitions
    edges, owners = list(view.edges), _by_dimension(view)
    loads = sizes(place(filters, view), view) if work is None else work
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
    made = replace(
        view, edges=edges, assignment=assignment, costs=np.zeros(len(assignment)), epoch=view.epoch + 1, load=None
    )
    return replace(made, costs=sizes(place(filters, made), made))
