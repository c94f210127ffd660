"""Where filters and events lie in a dimension that is cut into segments.

A *place* is a value's position on its attribute's line: the ordinal of `model.filter.sets`, or the
bytes of a string. NULL has none: it is in the first segment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.matching.columns import Columns
from tidings.model.domain import Attribute, Domain
from tidings.model.event import EventBatch
from tidings.model.event_columns import fit_column
from tidings.model.filter.columnar import FilterTable, Intervals, has_ordinals
from tidings.model.filter.sets import line
from tidings.model.filter.tree import Path
from tidings.model.types import DataType
from tidings.rendezvous.bluedove import Edges, Numbers, Spans, segments_of


def has_places(type_: DataType) -> bool:
    """Whether an attribute of this type can be a dimension."""
    return type_.name == "string" or (type_.is_scalar and type_.name != "boolean" and has_ordinals(type_))


def bounds_in(filters: FilterTable, path: Path) -> Edges:
    """The places at which the filters' intervals end, those at the ends of the line apart."""
    intervals = filters.intervals[path]
    codes: npt.NDArray[np.int64] = np.concatenate([intervals.lows, intervals.highs])
    if intervals.keys is None:
        first, last = line(intervals.type)
        within: npt.NDArray[np.int64] = codes[(codes > first) & (codes < last - 1)]
        return within
    keys = _objects(intervals.keys)
    named: Edges = keys[codes[(codes >= 0) & (codes < 2 * len(keys) - 1)] // 2]
    return named


def spans_of(filters: FilterTable, path: Path, edges: Edges) -> Spans:
    """The segments that every filter overlaps in a dimension; more than those, at a string that no filter names."""
    everywhere = np.zeros(filters.count, bool)
    intervals = filters.intervals.get(path)
    if intervals is None:
        everywhere[filters.box_filter] = True
        none = np.empty(0, np.int64)
        return Spans(none, none, none, everywhere)
    free = np.ones(filters.boxes, bool)
    free[intervals.constrained] = False
    everywhere[filters.box_filter[free]] = True
    first, last = _segments(intervals, edges)
    at_null = np.zeros(len(intervals.null_boxes), np.int64)
    boxes = np.concatenate([intervals.boxes, intervals.null_boxes])
    return Spans(
        filters.box_filter[boxes].astype(np.int64),
        np.concatenate([first, at_null]),
        np.concatenate([last, at_null]),
        everywhere,
    )


def _segments(intervals: Intervals, edges: Edges) -> tuple[Numbers, Numbers]:
    if intervals.keys is None:
        return segments_of(intervals.lows, edges), segments_of(intervals.highs, edges)
    # Constant i has the code 2i, and what lies between it and the next one the code 2i + 1.
    at = np.append(segments_of(_objects(intervals.keys), edges), len(edges))
    first = np.where(intervals.lows < 0, 0, at[np.maximum(intervals.lows, 0) // 2])
    return first, at[np.maximum(intervals.highs + 1, 0) // 2]


def event_segments(column: Any, type_: DataType, edges: Edges) -> Numbers:
    """The segment of each value of an Arrow column; one that does not fit the type is anywhere."""
    fitted = fit_column(column, type_).column
    if type_.name == "string":
        encoded = fitted.dictionary_encode()
        held = segments_of(_objects(encoded.dictionary.cast("binary")), edges)
        rows = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        found = held[rows] if len(held) else np.zeros(len(fitted), np.int64)
        valid: npt.NDArray[np.bool_] = encoded.indices.is_valid().to_numpy(zero_copy_only=False)
    else:
        path = ("value",)
        domain, count = Domain("value", [Attribute(path[0], type_)]), len(fitted)
        batch = EventBatch(domain, count, {path: fitted}, np.arange(count), [], None)
        codes, valid = Columns(batch).codes(path)
        found = segments_of(codes, edges)
    return np.where(valid, found, 0)


def _objects(keys: Any) -> npt.NDArray[Any]:
    values = np.empty(len(keys), object)
    values[:] = keys.to_pylist()
    return values
