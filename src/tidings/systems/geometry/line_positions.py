"""Where filters and events lie on the line of an attribute, and how the line is cut.

A *place* is a value's position on its attribute's line: the ordinal of `filter.normal.value_sets`, or the bytes of a
string. *Edges* cut a line into segments that cover it from end to end; NULL has no place and lies in the first segment.

*Cells* number a line that is coarse enough for a range to be a list of them. Whole numbers, dates and decimals are
their own cells, or those of the precision that the domain declares; a double has cells only if a precision is declared.
Events need not keep to it: a value between two steps lies in the cell of the lower one. `listed_values` and
`event_values` number the values of any attribute for hashing: by cells if it has them, else texts by a hash and numbers
by ordinals.

A *division* cuts a line into parts: by its values, or into intervals of equal probability. NULL is a part of its own.
Each part carries the share of the events that lie in it, if that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tidings.errors import DomainError, did_you_mean
from tidings.filter.normal.filter_table import FilterTable, Intervals, has_ordinals
from tidings.filter.normal.value_sets import line, ordinal
from tidings.kernels.hashing import hash_numbers, hashes_of
from tidings.matching.batch_columns import Columns, Mask
from tidings.model.domain import Attribute, Domain, parse_path
from tidings.model.event import EventBatch
from tidings.model.types import BIGINT, DataType, Path
from tidings.systems.geometry.key_pairs import distinct_pairs
from tidings.systems.interface import Floats, Numbers

if TYPE_CHECKING:
    from tidings.systems.statistics import Statistics

Edges = npt.NDArray[Any]  # of places, ascending: int64, or objects that are bytes

INTERVALS = 16  # that a line is divided into
FEW = 24  # values that are parts by themselves, of numbers


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


def edges_at_shares(places: Numbers, weights: Floats, segments: int) -> Numbers:
    """Edges such that the places between any two weigh about as much: at every place where there are few."""
    distinct = np.unique(places)
    if len(distinct) <= FEW:
        return distinct
    order = np.argsort(places, kind="stable")
    reached = np.cumsum(weights[order])
    wanted = np.arange(1, segments) * reached[-1] / segments
    return np.unique(places[order][np.searchsorted(reached, wanted, side="right").clip(max=len(places) - 1)])


def crowding(places: Numbers, weights: Floats, edges: Numbers) -> float:
    """Returns how likely two values lie in one segment: the least where all segments have as many."""
    shares = np.bincount(segments_of(places, edges), weights) / weights.sum()
    return float((shares**2).sum())


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
class EventPlaces:
    """The places of an attribute's values: of strings each distinct one once."""

    distinct: Edges
    number: Any  # of each event's place among the distinct ones; a slice of all where those are the events'
    valid: Mask  # which are not NULL

    @property
    def all(self) -> Edges:
        """Of the events that have one."""
        if not len(self.distinct):
            return self.distinct
        found: Edges = self.distinct[self.number][self.valid]
        return found


def event_places(events: EventBatch, path: Path) -> EventPlaces:
    columns = Columns(events)
    if events.domain.leaves[path].name != "string":
        codes, valid = columns.codes(path)
        return EventPlaces(codes, slice(None), valid)
    texts, number, valid = columns.distinct(path)
    return EventPlaces(byte_places(texts.cast("binary")), np.maximum(number, 0), valid)


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


_FAR = 1 << 60  # values and cells beyond this are taken for this


@dataclass(frozen=True)
class LineCells:
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


def cells_of(domain: Domain, path: Path) -> LineCells | None:
    """The cells of an attribute as the domain declares it; None of texts, and of doubles without a precision."""
    type_ = domain.leaves[path]
    declared = next((one for one in domain.attributes if one.path == path), Attribute("undeclared", type_))
    if type_.name == "string" or (type_.name in ("float", "double") and declared.precision is None):
        return None
    if type_.name in ("float", "double"):
        origin = float(declared.min) if declared.min is not None else 0.0
        step = float(declared.precision)
        return LineCells(origin, step, True, _count(declared, origin, step))
    origin = ordinal(declared.min, type_) if declared.min is not None else 0
    step = 1 if declared.precision is None else _step(declared, type_)
    return LineCells(origin, step, False, _count(declared, origin, step))


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


def listed_values(intervals: Intervals, cells: LineCells | None) -> tuple[Numbers, Numbers]:
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


def event_values(events: EventBatch, path: Path, cells: LineCells | None) -> tuple[Numbers, Mask]:
    """The number of each event's value, and which are not NULL."""
    columns = Columns(events)
    if events.domain.leaves[path].name == "string":
        column = events.columns[path]
        return columns.hashes(path).view(np.int64), column.is_valid().to_numpy(zero_copy_only=False)
    codes, valid = columns.codes(path)
    return (codes if cells is None else cells.numbers(codes)), valid


def event_hashes(events: EventBatch, paths: Sequence[Path]) -> npt.NDArray[np.uint64]:
    """A hash of what each event has at these attributes: the same every time."""
    mixed = np.zeros(events.count, np.int64)
    for path in paths:
        numbers, valid = event_values(events, path, None)
        mixed = hash_numbers(mixed ^ np.where(valid, numbers, 0), 0).view(np.int64)
    return mixed.view(np.uint64)


VALUES_MAX = 32  # that a range may list
FREQUENT = 256  # values of which the share is known one by one

MANY = 256  # values that an attribute is taken to have, if nothing is known of it

_NULL = np.int64(-0x4E55_4C4C)  # the number of NULL's part among values


@dataclass(frozen=True, eq=False)
class HeldParts:
    """The parts that each box overlaps: those of box i are `numbers[offsets[i]:offsets[i + 1]]`; none: unconstrained,
    or too many."""

    offsets: Numbers
    numbers: Numbers
    shares: Floats  # of each box: of the events that lie in its parts

    @property
    def counts(self) -> Numbers:
        return np.diff(self.offsets)


@dataclass(frozen=True, eq=False)
class LineDivision:
    """One attribute's parts. With edges: NULL is part 0, interval i part i + 1. Without: a part is a value's number."""

    edges: Edges | None = None
    cells: LineCells | None = None
    shares: Floats = field(default_factory=lambda: np.empty(0))  # of NULL, then of each interval or frequent value
    frequent: Numbers = field(default_factory=lambda: np.empty(0, np.int64))  # ascending
    rest: float = 0.0  # the share of any other value

    @property
    def divides(self) -> bool:
        """Whether there are parts at all."""
        return self.edges is None or len(self.edges) > 0

    def of(self, events: EventBatch, path: Path) -> Numbers:
        """The part that each event lies in."""
        if self.edges is None:
            numbers, valid = event_values(events, path, self.cells)
            return np.where(valid, numbers, _NULL)
        valid = events.columns[path].is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, event_segments(events, path, self.edges) + 1, 0)

    def held(self, filters: FilterTable, path: Path) -> HeldParts:
        """The parts of every box."""
        intervals = filters.intervals.get(path)
        if intervals is None:
            return HeldParts(np.zeros(filters.boxes + 1, np.int64), np.empty(0, np.int64), np.ones(filters.boxes))
        if self.edges is None:
            first, lengths = listed_values(intervals, self.cells)
            lengths = np.where((lengths > 0) & (lengths <= VALUES_MAX), lengths, VALUES_MAX + 1)
            most, null = VALUES_MAX, _NULL
        else:
            first, last = interval_segments(intervals, self.edges)
            first, lengths = first + 1, last - first + 1
            most, null = len(self.edges) + 2, np.int64(0)
        totals = np.bincount(intervals.boxes, lengths, filters.boxes)
        rows = np.flatnonzero(totals[intervals.boxes] <= most)
        row, numbers = ranges(first[rows], lengths[rows])
        nulls = intervals.null_boxes[totals[intervals.null_boxes] <= most].astype(np.int64)
        boxes = np.concatenate([intervals.boxes[rows[row]].astype(np.int64), nulls])
        numbers = np.concatenate([numbers, np.full(len(nulls), null)])
        boxes, numbers = distinct_pairs(boxes, numbers)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(boxes, minlength=filters.boxes))])
        shares = np.bincount(boxes, self._shares(numbers), filters.boxes).astype(np.float64)
        return HeldParts(offsets, numbers, shares)

    def _shares(self, numbers: Numbers) -> Floats:
        if not len(self.shares):
            return np.full(len(numbers), self.rest)
        if self.edges is not None:
            return np.asarray(self.shares[numbers])
        at = np.minimum(np.searchsorted(self.frequent, numbers), max(0, len(self.frequent) - 1))
        known = self.frequent[at] == numbers if len(self.frequent) else np.zeros(len(numbers), bool)
        found = np.where(known, self.shares[1:][at] if len(self.frequent) else 0.0, self.rest)
        return np.where(numbers == _NULL, self.shares[0], found)

    def to_dict(self) -> dict[str, Any]:
        return {
            "edges": None if self.edges is None else edges_to_json(self.edges),
            "cells": None if self.cells is None else self.cells.to_dict(),
            "shares": self.shares.tolist(),
            "frequent": self.frequent.tolist(),
            "rest": self.rest,
        }


def divisions_from_dict(forms: Sequence[dict[str, Any]]) -> dict[Path, LineDivision]:
    divisions = {}
    for form in forms:
        edges, cells = form["edges"], form["cells"]
        divisions[tuple(form["path"])] = LineDivision(
            None if edges is None else edges_from_json(edges),
            None if cells is None else LineCells(**cells),
            np.array(form["shares"], np.float64),
            np.array(form["frequent"], np.int64),
            form["rest"],
        )
    return divisions


def division_of(statistics: Statistics, path: Path, intervals: int = INTERVALS) -> LineDivision:
    """Texts by value; other lines into intervals: at every value where there are few, else at the events' quantiles."""
    along = statistics.along(path)
    events = statistics.events if statistics.events is not None and statistics.events.count else None
    if statistics.filters.domain.leaves[path].name != "string":
        cells = cells_of(statistics.filters.domain, path)
        if not along.is_known and cells is not None:
            return LineDivision(cells=cells, rest=1 / (cells.count or MANY))
        few = along.distinct <= FEW
        edges = np.unique(along.quantiles) if few else edges_at_quantiles(along.quantiles, intervals)
        made = LineDivision(edges=edges, shares=np.full(len(edges) + 2, 1 / (len(edges) + 1)))
        if events is None:
            return made
        counts = np.bincount(made.of(events, path), minlength=len(edges) + 2)
        shares = np.asarray((counts + 0.5) / (events.count + 0.5 * len(counts)), np.float64)
        return LineDivision(edges=edges, shares=shares)
    if events is None:
        return LineDivision(rest=1 / max(2, along.distinct if along.is_known else MANY))
    numbers, counts = np.unique(LineDivision().of(events, path), return_counts=True)
    nulls = float(counts[numbers == _NULL].sum()) / events.count
    numbers, counts = numbers[numbers != _NULL], counts[numbers != _NULL]
    often = np.sort(np.argsort(-counts, kind="stable")[:FREQUENT])
    others = max(0.0, 1 - nulls - counts[often].sum() / events.count)
    rest = max(others / max(1, len(numbers) - len(often)), 0.1 / events.count)
    shares = np.concatenate([[nulls], counts[often] / events.count])
    return LineDivision(shares=shares, frequent=numbers[often], rest=rest)
