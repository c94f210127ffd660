"""Where filters and events lie on the line of an attribute.

A *place* is a value's position on its attribute's line: the ordinal of `model.filter.sets`, or the
bytes of a string. *Edges* cut a line into segments that cover it from end to end; NULL has no place and
lies in the first segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.errors import DomainError, did_you_mean
from tidings.filter.normal.filter_table import FilterTable, Intervals, has_ordinals
from tidings.filter.normal.value_sets import line
from tidings.matching.batch_columns import Columns, Mask
from tidings.model.domain import Domain, parse_path
from tidings.model.event import EventBatch
from tidings.model.types import DataType, Path
from tidings.systems.interface import Numbers

Edges = npt.NDArray[Any]  # of places, ascending: int64, or objects that are bytes


def has_places(type_: DataType) -> bool:
    """Whether values of this type have places: scalars but for decimals that take more than 64 bits."""
    return type_.name == "string" or (type_.is_scalar and has_ordinals(type_))


def named_path(domain: Domain, name: str, what: str) -> Path:
    """The attribute that somebody named as a dimension or a part of an index."""
    found = domain.find(parse_path(name))
    if found is None or not has_places(found[1]):
        raise DomainError(f"'{name}' cannot be {what} of the subscriptions; {did_you_mean(name, domain.names)}")
    return found[0]


def segments_of(places: Edges, edges: Edges) -> Numbers:
    """The segment that each place lies in: a place on an edge begins one."""
    return np.searchsorted(edges, places, side="right").astype(np.int64)


def edges_at_quantiles(places: Edges, segments: int) -> Edges:
    """At most segments − 1 edges, such that about as many of the places lie between any two."""
    if not len(places):
        return places
    ordered = np.sort(places)
    return np.unique(ordered[np.arange(1, segments) * len(ordered) // segments])


def bounds_in(filters: FilterTable, path: Path) -> Edges:
    """The places at which the filters' intervals end, those at the ends of the line apart."""
    intervals = filters.intervals[path]
    codes: npt.NDArray[np.int64] = np.concatenate([intervals.lows, intervals.highs])
    if intervals.keys is None:
        first, last = line(intervals.type)
        within: npt.NDArray[np.int64] = codes[(codes > first) & (codes < last - 1)]
        return within
    keys = byte_places(intervals.keys)
    named: Edges = keys[codes[(codes >= 0) & (codes < 2 * len(keys) - 1)] // 2]
    return named


def interval_segments(intervals: Intervals, edges: Edges) -> tuple[Numbers, Numbers]:
    """The first and the last segment of each interval; more than those, at a string that no filter names."""
    if intervals.keys is None:
        return segments_of(intervals.lows, edges), segments_of(intervals.highs, edges)
    # Constant i has the code 2i, and what lies between it and the next one the code 2i + 1.
    at = np.append(segments_of(byte_places(intervals.keys), edges), len(edges))
    first = np.where(intervals.lows < 0, 0, at[np.maximum(intervals.lows, 0) // 2])
    return first, at[np.maximum(intervals.highs + 1, 0) // 2]


def event_segments(events: EventBatch, path: Path, edges: Edges) -> Numbers:
    """The segment of each event."""
    places = event_places(events, path)
    found = segments_of(places.distinct, edges)
    held = found[places.number] if len(found) else np.zeros(events.count, np.int64)
    return np.where(places.valid, held, 0)


@dataclass(frozen=True, eq=False)
class Places:
    """The places of an attribute's values: of strings each distinct one once."""

    distinct: Edges
    number: Any  # of each event's place among the distinct ones; a slice of all where those are the events'
    valid: Mask  # which are not NULL

    @property
    def all(self) -> Edges:
        """Of the events that have one."""
        found: Edges = self.distinct[self.number][self.valid]
        return found


def event_places(events: EventBatch, path: Path) -> Places:
    columns = Columns(events)
    if events.domain.leaves[path].name != "string":
        codes, valid = columns.codes(path)
        return Places(codes, slice(None), valid)
    texts, number, valid = columns.distinct(path)
    return Places(byte_places(texts.cast("binary")), np.maximum(number, 0), valid)


def byte_places(texts: Any) -> Edges:
    """The bytes of an Arrow array, as objects that numpy can order."""
    values = np.empty(len(texts), object)
    values[:] = texts.to_pylist()
    return values


def ranges(starts: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
    """(row, number) for every number of each range: `lengths[row]` of them from `starts[row]` on."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    before = np.concatenate([[0], np.cumsum(lengths)[:-1]]) if len(lengths) else lengths
    return rows, np.arange(len(rows)) + np.repeat(starts - before, lengths)


def edges_to_json(edges: Edges) -> list[int | str]:
    """Places as JSON has them: ordinals as numbers, the bytes of strings in hexadecimal."""
    return [edge.hex() if isinstance(edge, bytes) else int(edge) for edge in edges]


def edges_from_json(form: list[int | str], *, strings: bool | None = None) -> Edges:
    if strings is None:
        strings = bool(form) and isinstance(form[0], str)
    if not strings:
        return np.array(form, np.int64)
    read = np.empty(len(form), object)
    read[:] = [bytes.fromhex(str(edge)) for edge in form]
    return read
