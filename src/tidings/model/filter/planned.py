"""Carry out a shape's plan on all filters of the shape: sets of values as arrays.

A set of n filters on one attribute is a pair of n × m arrays, the closed ends of up to m
intervals a filter in codes; an interval with `low > high` is empty. Rows that a plan cannot
serve (a literal that is not plain, a set that comes out empty or without bounds) are handed
back for the full parse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.model import types
from tidings.model.filter.columnar import ArrowArray, Builder, Codes, Constants, Rows, has_ordinals
from tidings.model.filter.sets import line
from tidings.model.filter.shapes import Hole, Plan, PlannedLeaf, PlannedNode
from tidings.model.filter.tree import Expression, Path
from tidings.model.types import DataType

Mask: TypeAlias = npt.NDArray[np.bool_]

_SAFE = (1 << 63) - 2  # codes within it can be moved by one
_WORTH_SHARING = 4  # filters to a residual, below which reading each in full costs no more
_PLAIN_NUMBER = r"^[0-9]{1,18}$"
_PLAIN_FRACTION = r"^[0-9]{1,15}(\.[0-9]{1,15})?$"
_PLAIN_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_PLAIN_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
_PREFIX = r"^[^%_]*%?$"


@dataclass(frozen=True, slots=True)
class _Sets:
    lows: Codes  # n × m
    highs: Codes
    null: bool = False

    @property
    def filled(self) -> Mask:
        return self.lows <= self.highs


_Box: TypeAlias = dict[Path, _Sets]


@dataclass(frozen=True, slots=True)
class Renamed:
    """The attributes that stand in each filter for one of the plan's: `paths[which[row]]`."""

    paths: list[Path]
    which: npt.NDArray[np.int64]


class Execution:
    """One plan over the filters `rows` of a column; `finish` comes after the constants are numbered."""

    def __init__(
        self, plan: Plan, rows: Rows, texts: ArrowArray, builder: Builder, renamed: Mapping[Path, Renamed],
        residual_of: Callable[[str], Expression | None],
    ) -> None:  # fmt: skip
        self._plan = plan
        self._rows = rows
        self._builder = builder
        self._renamed = renamed
        self._regular = np.ones(len(rows), bool)
        self._types: dict[Path, DataType] = {}
        self._places: dict[tuple[Path, Hole], Codes] = {}
        # By path, hole and end: for each attribute its rows, and what Constants keeps until they are numbered.
        self._strings: dict[tuple[Path, Hole, str], list[tuple[Constants, npt.NDArray[np.int64], int]]] = {}
        self._is_prefix: dict[Hole, Mask] = {}
        literals = plan.literals(texts)
        self._residuals = np.full(len(rows), builder.residual_number(plan.residual), np.int32)
        if plan.residual_holes:
            self._read_residuals([literals[hole] for hole in plan.residual_holes], texts, residual_of)
        self._read(plan.root, literals)

    def regular(self) -> Rows:
        """The rows that the plan serves, as far as is known."""
        return self._rows[self._regular]

    # ------------------------------------------------------------------ literals to places

    def _read(self, part: PlannedLeaf | PlannedNode, literals: list[ArrowArray]) -> None:
        if isinstance(part, PlannedNode):
            for inner in part.parts:
                self._read(inner, literals)
            return
        self._types[part.path] = part.type
        for hole in part.holes:
            texts = literals[hole.number]
            if hole.kind != "number":
                texts = pc.utf8_slice_codeunits(texts, 1, -1)
            if part.type == types.STRING:
                self._read_strings(part, hole, texts)
            elif (part.path, hole) not in self._places:
                self._places[part.path, hole] = self._read_ordinals(part.type, hole, texts)

    def _read_residuals(
        self, holes: list[ArrowArray], texts: ArrowArray, residual_of: Callable[[str], Expression | None]
    ) -> None:
        """The residual of each filter: read in full once for those that have the same texts in its holes."""
        alike = pc.binary_join_element_wise(*holes, "\x01").dictionary_encode().indices.to_numpy(zero_copy_only=False)
        _, firsts, which = np.unique(alike, return_index=True, return_inverse=True)
        if len(firsts) * _WORTH_SHARING > len(alike):
            self._regular[:] = False
            return
        found = [residual_of(texts[int(first)].as_py()) for first in firsts]
        numbers = np.array([-1 if one is None else self._builder.residual_number(one) for one in found], np.int32)
        self._residuals = numbers[which]
        self._regular &= self._residuals >= 0

    def _read_strings(self, part: PlannedLeaf, hole: Hole, texts: ArrowArray) -> None:
        if part.op == "LIKE":
            plain = pc.match_substring_regex(texts, _PREFIX)
            self._keep(plain)
            open_ended: ArrowArray = pc.ends_with(texts, "%")
            self._is_prefix[hole] = open_ended.to_numpy(zero_copy_only=False)
            texts = pc.utf8_rtrim(texts, "%")
            after = [text[:-1] + bytes([text[-1] + 1]) if text else b"" for text in texts.cast(pa.binary()).to_pylist()]
            self._add_strings(part, hole, "after", pa.array(after, pa.binary()))
        self._keep(pc.match_substring_regex(texts, "."))  # before the empty string lies nothing: an end of the line
        self._add_strings(part, hole, "at", texts.cast(pa.binary()))

    def _add_strings(self, part: PlannedLeaf, hole: Hole, end: str, texts: ArrowArray) -> None:
        kept = self._strings[part.path, hole, end] = []
        for path, rows in self._by_path(part.path):
            constants = self._builder.constants(path, part.type)
            kept.append((constants, rows, constants.add(texts.take(pa.array(rows)))))

    def _by_path(self, path: Path) -> Iterator[tuple[Path, npt.NDArray[np.int64]]]:
        """The attributes that stand for one of the plan's, and the rows of each."""
        renamed = self._renamed[path]
        for number, actual in enumerate(renamed.paths):
            rows = np.flatnonzero(renamed.which == number)
            if len(rows):
                yield actual, rows

    def _read_ordinals(self, type_: DataType, hole: Hole, texts: ArrowArray) -> Codes:
        """The ordinals of the literals; rows whose literal is not plain are put aside with a 0."""
        pattern = {"date": _PLAIN_DATE, "timestamp": _PLAIN_TIME, "timestamp_ntz": _PLAIN_TIME}.get(
            type_.name, _PLAIN_NUMBER if type_.is_integral else _PLAIN_FRACTION
        )
        plain = pc.match_substring_regex(texts, pattern)
        self._keep(plain)
        filler = {"date": "1970-01-01", "timestamp": "1970-01-01 00:00:00", "timestamp_ntz": "1970-01-01 00:00:00"}
        texts = pc.if_else(plain, texts, filler.get(type_.name, "0"))
        try:
            places = _ordinals(type_, texts, hole.negative)
        except pa.ArrowInvalid:  # a date such as 2024-02-30, a decimal with too many digits: which, the full parse says
            self._regular[:] = False
            return np.zeros(len(texts), np.int64)
        low, high = line(type_)
        self._regular &= (places > max(low, -_SAFE)) & (places < min(high - 1, _SAFE))
        return places

    def _keep(self, rows: ArrowArray) -> None:
        self._regular &= rows.to_numpy(zero_copy_only=False)

    # ------------------------------------------------------------------ places to boxes

    def finish(self) -> Rows:
        """Add the boxes of the regular rows; answers those that turned out to want the full parse."""
        thought_regular = self._regular.copy()
        boxes = self._boxes(self._plan.root)
        for box in boxes:
            for path, sets in box.items():
                low, high = self._line(path)
                bounded = sets.null | (sets.filled.sum(axis=1) > 0)
                whole = sets.null & ((sets.lows == low) & (sets.highs == high)).any(axis=1)
                self._regular &= bounded & ~whole
        self._part_repeats(boxes)
        numbers = np.full(len(self._rows), -1, np.int32)
        for box in boxes:
            numbers[self._regular] = self._builder.add_boxes(self._rows[self._regular], self._residuals[self._regular])
            for planned, sets in box.items():
                type_ = self._types[planned]
                for path, rows in self._by_path(planned):
                    kept = rows[self._regular[rows]]
                    lows, highs = sets.lows[kept], sets.highs[kept]
                    row, column = np.nonzero(lows <= highs)
                    self._builder.add_intervals(path, type_, numbers[kept[row]], lows[row, column], highs[row, column])
                    if sets.null:
                        self._builder.add_null(path, type_, numbers[kept])
        return self._rows[thought_regular & ~self._regular]

    def _part_repeats(self, boxes: list[_Box]) -> None:
        """A filter whose boxes are not all different is read in full, which drops the repeats."""
        for i, left in enumerate(boxes):
            for right in boxes[:i]:
                if left.keys() == right.keys() and all(left[path].null == right[path].null for path in left):
                    same = np.ones(len(self._rows), bool)
                    for path in left:
                        same &= _equal(left[path], right[path])
                    self._regular &= ~same

    def _boxes(self, part: PlannedLeaf | PlannedNode) -> list[_Box]:
        if isinstance(part, PlannedLeaf):
            return [{part.path: self._leaf(part)}]
        if part.all:
            boxes: list[_Box] = [{}]
            for inner in part.parts:
                boxes = [self._meet(left, right) for left, right in product(boxes, self._boxes(inner))]
            return boxes
        joined: dict[Path, _Sets] = {}  # what asks of one attribute only is one set
        others: list[_Box] = []
        for inner in part.parts:
            boxes = self._boxes(inner)
            if len(boxes) == 1 and len(boxes[0]) == 1:
                ((path, sets),) = boxes[0].items()
                joined[path] = _join(joined[path], sets) if path in joined else sets
            else:
                others += boxes
        return [*({path: sets} for path, sets in joined.items()), *others]

    def _meet(self, left: _Box, right: _Box) -> _Box:
        box = dict(left)
        for path, sets in right.items():
            box[path] = _meet(box[path], sets) if path in box else sets
        return box

    def _line(self, path: Path) -> tuple[int, Codes]:
        """The least code and, row by row, the greatest: on a line of strings it depends on the attribute."""
        type_, renamed = self._types[path], self._renamed[path]
        if has_ordinals(type_):
            low, high = line(type_)
            return low, np.full((len(self._rows), 1), high - 1, np.int64)
        lines = np.array([self._builder.constants(actual, type_).line for actual in renamed.paths], np.int64)
        return -1, lines[renamed.which, 1][:, None]

    def _leaf(self, leaf: PlannedLeaf) -> _Sets:
        low, high = self._line(leaf.path)
        if leaf.constant is not None:
            ends = np.array(leaf.constant.intervals or [(1, 1)], object)
            lows, highs = ends[:, 0].astype(np.int64), (ends[:, 1] - 1).astype(np.int64)
            shape = (len(self._rows), len(ends))
            return _Sets(np.broadcast_to(lows, shape), np.broadcast_to(highs, shape), leaf.constant.null)
        spans = [self._interval(leaf, hole) for hole in leaf.holes]
        start, end = (np.stack([span[side] for span in spans], 1) for side in (0, 1))
        if leaf.op not in ("IN", "LIKE", "="):
            lows, highs = _range(leaf.op if leaf.wanted else _OPPOSITE[leaf.op], start, low, high)
            return _Sets(lows, highs)
        order = np.argsort(start, axis=1)
        start, end = np.take_along_axis(start, order, 1), np.take_along_axis(end, order, 1)
        if leaf.wanted:
            return _united(start, end)
        return _Sets(np.hstack([np.full_like(high, low), end + 1]), np.hstack([start - 1, high]))

    def _interval(self, leaf: PlannedLeaf, hole: Hole) -> tuple[Codes, Codes]:
        """The codes from and to which a literal reaches."""
        if leaf.type != types.STRING:
            places = self._places[leaf.path, hole]
            return places, places
        start = 2 * self._numbers(leaf, hole, "at")
        if leaf.op != "LIKE":
            return start, start
        return start, np.where(self._is_prefix[hole], 2 * self._numbers(leaf, hole, "after") - 1, start)

    def _numbers(self, leaf: PlannedLeaf, hole: Hole, end: str) -> Codes:
        numbers = np.empty(len(self._rows), np.int64)
        for constants, rows, added in self._strings[leaf.path, hole, end]:
            numbers[rows] = constants.numbers(added)
        return numbers


_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def _range(op: str, place: Codes, low: int, highs: Codes) -> tuple[Codes, Codes]:
    lows = np.full_like(place, low)
    match op:
        case "<":
            return lows, place - 1
        case "<=":
            return lows, place
        case ">":
            return place + 1, highs
        case _:
            return place, highs


def _ordinals(type_: DataType, texts: ArrowArray, negative: bool) -> Codes:
    """The vectorised twin of `sets.ordinal`, from plain texts."""
    places: Codes
    if type_.is_integral:
        places = texts.cast(pa.int64()).to_numpy()
    elif type_.name == "decimal":
        digits = texts.cast(pa.decimal128(38, type_.scale))
        places = np.frombuffer(memoryview(digits.buffers()[1]), np.int64)[2 * digits.offset :: 2][: len(digits)]
    elif type_.name in ("float", "double"):
        return double_ordinals(texts.cast(pa.float64()).to_numpy() * (-1.0 if negative else 1.0))
    elif type_.name == "date":
        places = texts.cast(pa.date32()).cast(pa.int32()).to_numpy().astype(np.int64)
    else:
        places = texts.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
    return -places if negative else places


def double_ordinals(values: npt.NDArray[np.float64]) -> Codes:
    """The vectorised twin of `sets.double_ordinal`."""
    bits = values.view(np.int64)
    ordinals = np.where(bits >= 0, bits, (bits ^ np.int64(0x7FFF_FFFF_FFFF_FFFF)) + 1)
    return np.where(np.isnan(values), np.int64(0x7FF0_0000_0000_0001), ordinals)


def _meet(left: _Sets, right: _Sets) -> _Sets:
    """The intersection: every interval with every other."""
    lows = np.maximum(left.lows[:, :, None], right.lows[:, None, :]).reshape(len(left.lows), -1)
    highs = np.minimum(left.highs[:, :, None], right.highs[:, None, :]).reshape(len(left.lows), -1)
    return _Sets(lows, highs, left.null and right.null)


def _join(left: _Sets, right: _Sets) -> _Sets:
    lows, highs = np.hstack([left.lows, right.lows]), np.hstack([left.highs, right.highs])
    lows = np.where(lows <= highs, lows, np.iinfo(np.int64).max)  # the empty ones last
    order = np.argsort(lows, axis=1, kind="stable")
    united = _united(np.take_along_axis(lows, order, 1), np.take_along_axis(highs, order, 1))
    return _Sets(united.lows, united.highs, left.null or right.null)


def _united(lows: Codes, highs: Codes) -> _Sets:
    """Intervals in the order of their starts, touching ones joined: the later takes the earlier in."""
    lows, highs = lows.copy(), highs.copy()
    for j in range(1, lows.shape[1]):
        filled = (lows[:, j] <= highs[:, j]) & (lows[:, j - 1] <= highs[:, j - 1])
        touching = filled & ((lows[:, j] <= highs[:, j - 1]) | (lows[:, j] - 1 == highs[:, j - 1]))
        lows[:, j] = np.where(touching, lows[:, j - 1], lows[:, j])
        highs[:, j] = np.where(touching, np.maximum(highs[:, j], highs[:, j - 1]), highs[:, j])
        lows[:, j - 1], highs[:, j - 1] = (
            np.where(touching, end, ends[:, j - 1]) for end, ends in ((1, lows), (0, highs))
        )
    return _Sets(lows, highs)


def _equal(left: _Sets, right: _Sets) -> Mask:
    """Which rows have the same set, whatever the places of empty intervals."""
    first, second = (_compact(sets) for sets in (left, right))
    width = max(first.shape[1], second.shape[1])
    first, second = (np.pad(ends, ((0, 0), (0, width - ends.shape[1]), (0, 0))) for ends in (first, second))
    return np.asarray((first == second).all(axis=(1, 2)))


def _compact(sets: _Sets) -> npt.NDArray[np.int64]:
    order = np.argsort(~sets.filled, axis=1, kind="stable")
    ends = np.stack([sets.lows, sets.highs], axis=2) * sets.filled[:, :, None]
    return np.take_along_axis(ends, order[:, :, None], 1)
