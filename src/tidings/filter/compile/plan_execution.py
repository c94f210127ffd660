"""Carry out a plan on all filters that it serves: sets of values as arrays.

A set of n filters on one attribute is a pair of n × m arrays, the closed ends of up to m
intervals a filter in codes; an interval with `low > high` is empty. Filters that a plan turns out
not to serve (a date that is none, a set that comes out empty or without bounds, two predicates
that come out the same) are handed back for the full parse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import FilterError
from tidings.filter.compile.literal_columns import Hole, Mask
from tidings.filter.compile.plans import (
    Against,
    Combined,
    Constant,
    Plan,
    PlannedBox,
    PlannedSet,
    Solved,
    literal_holes,
    path_holes,
    pattern_holes,
)
from tidings.filter.compile.shapes import Served
from tidings.filter.meaning.patterns import MAX_SHORT_LENGTH
from tidings.filter.normal.filter_table import Codes, Constants, FilterTableBuilder, Rows, has_ordinals
from tidings.filter.normal.leaf_predicates import Leaf, solve
from tidings.filter.normal.residuals import Column, column_dtype, emptied, with_literals
from tidings.filter.normal.value_sets import line
from tidings.filter.tree import And, Expression, Literal, Reference, Value, attributes_of, mapped
from tidings.model import types
from tidings.model.arrow import ArrowArray
from tidings.model.types import DataType, Path
from tidings.xml.path_parser import parse_path

_SAFE = (1 << 63) - 2  # codes within it can be moved by one


@dataclass(frozen=True, slots=True)
class _Sets:
    lows: Codes  # n × m
    highs: Codes
    null: bool = False

    @property
    def filled(self) -> Mask:
        return self.lows <= self.highs


class Execution:
    """One plan over the filters that it serves; `finish` comes after the constants are numbered."""

    def __init__(self, served: Served[Plan], builder: FilterTableBuilder) -> None:
        self._plan = served.plan
        self._rows = served.rows
        self._holes = served.holes
        self._builder = builder
        self._renamed = served.renamed
        self._regular = np.ones(len(served.rows), bool)
        self._types: dict[Path, DataType] = {}
        self._places: dict[tuple[Path, Hole], Codes] = {}
        # By path, hole and end: for each attribute its rows, and what Constants keeps until they are numbered.
        self._strings: dict[tuple[Path, Hole, str], list[tuple[Constants, npt.NDArray[np.int64], int]]] = {}
        self._is_prefix: dict[Hole, Mask] = {}
        self._sets: dict[PlannedSet, _Sets] = {}
        self._literals: dict[tuple[Hole, DataType], Column] = {}
        self._patterns: dict[tuple[Hole, str | None], ArrowArray] = {}
        for box in served.plan.boxes:
            for values in box.sets.values():
                self._read(values)
            if box.residual is not None:
                self._read_literals(box.residual)
                self._part_repeated_conjuncts(box.residual)

    def regular(self) -> Rows:
        """The rows that the plan serves, as far as is known."""
        return self._rows[self._regular]

    # ------------------------------------------------------------------ literals

    def _read(self, values: PlannedSet) -> None:
        match values:
            case Combined(_, parts):
                for part in parts:
                    self._read(part)
            case Constant(path, type_, _):
                self._types[path] = type_
                if not has_ordinals(type_):
                    for actual, _ in self._by_path(path):
                        self._builder.constants(actual, type_)
            case Solved(path, type_, predicate, wanted):
                self._types[path] = type_
                self._read_literals(predicate)
                self._sets[values] = self._solve(predicate, wanted)
            case Against(path, type_, op, _, holes):
                self._types[path] = type_
                for hole in holes:
                    if type_ == types.STRING:
                        self._read_strings(path, hole, op)
                    elif (path, hole) not in self._places:
                        self._places[path, hole] = self._read_ordinals(type_, hole)

    def _read_literals(self, expression: Expression) -> None:
        for item in literal_holes(expression):
            if not isinstance(item, Literal) and item not in self._literals:
                self._literals[item], valid = self._holes.values(*item)
                self._regular &= valid
        for hole in path_holes(expression):
            self._regular &= readable_paths(self._literals[hole, types.STRING])
        for pattern in pattern_holes(expression):
            if pattern not in self._patterns:
                self._patterns[pattern], valid = self._holes.patterns(*pattern)
                self._regular &= valid

    def _read_strings(self, path: Path, hole: Hole, op: str) -> None:
        if (path, hole, "at") in self._strings:
            return
        texts, valid = self._holes.texts(hole)
        self._regular &= valid
        if op == "LIKE":
            open_ended: ArrowArray = pc.ends_with(texts, "%")
            self._is_prefix[hole] = open_ended.to_numpy(zero_copy_only=False)
            texts = pc.utf8_rtrim(texts, "%")
            after = [text[:-1] + bytes([text[-1] + 1]) if text else b"" for text in texts.cast(pa.binary()).to_pylist()]
            self._add_strings(path, hole, "after", pa.array(after, pa.binary()))
        self._add_strings(path, hole, "at", texts.cast(pa.binary()))

    def _add_strings(self, path: Path, hole: Hole, end: str, texts: ArrowArray) -> None:
        kept = self._strings[path, hole, end] = []
        for actual, rows in self._by_path(path):
            constants = self._builder.constants(actual, types.STRING)
            part = texts if len(rows) == len(texts) else texts.take(pa.array(rows))
            kept.append((constants, rows, constants.add(part)))

    def _by_path(self, path: Path) -> Iterator[tuple[Path, npt.NDArray[np.int64]]]:
        """The attributes that stand for one of the plan's, and the rows of each."""
        renamed = self._renamed[path]
        for number, actual in enumerate(renamed.paths):
            rows = np.flatnonzero(renamed.which == number)
            if len(rows):
                yield actual, rows

    def _read_ordinals(self, type_: DataType, hole: Hole) -> Codes:
        texts, valid = self._holes.texts(hole)
        self._regular &= valid
        try:
            places = _ordinals(type_, texts, hole.negative)
        except pa.ArrowInvalid:  # a date such as 2024-02-30 is among them
            places, valid = self._holes.values(hole, type_)
            self._regular &= valid
        low, high = line(type_)
        self._regular &= (places > max(low, -_SAFE)) & (places < min(high - 1, _SAFE))
        return places

    def _solve(self, predicate: Expression, wanted: bool) -> _Sets:
        """Each filter's predicate by itself, in full."""
        items = list(literal_holes(predicate))
        columns = [
            [item.value] * len(self._rows) if isinstance(item, Literal) else self._literals[item].tolist()
            for item in items
        ]
        tree = mapped(predicate, emptied)
        known: dict[tuple[Value, ...], Leaf | bool | None] = {}
        intervals: list[tuple[tuple[int, int], ...]] = []
        nulls: list[bool] = []
        for row, values in enumerate(zip(*columns, strict=True)):
            if values not in known and self._regular[row]:
                known[values] = solve(with_literals(tree, values), wanted)
            leaf = known.get(values)
            self._regular[row] &= isinstance(leaf, Leaf)
            intervals.append(leaf.values.intervals if isinstance(leaf, Leaf) else ())
            nulls.append(isinstance(leaf, Leaf) and leaf.values.null)
        null = bool(nulls and nulls[0])
        self._regular &= np.array(nulls, bool) == null
        width = max(1, *map(len, intervals)) if intervals else 1
        lows, highs = np.ones((len(self._rows), width), np.int64), np.zeros((len(self._rows), width), np.int64)
        for row, ends in enumerate(intervals):
            for number, (low, high) in enumerate(ends):
                lows[row, number], highs[row, number] = low, high - 1
        return _Sets(lows, highs, null)

    # ------------------------------------------------------------------ places to boxes

    def finish(self) -> Rows:
        """Add the boxes of the regular rows. Returns the rows that turned out to need the full parse."""
        thought_regular = self._regular.copy()
        boxes = [{path: self._set(values) for path, values in box.sets.items()} for box in self._plan.boxes]
        filled = np.ones(len(self._rows), bool)
        for box in boxes:
            for path, sets in box.items():
                low, high = self._line(path)
                bounded = sets.null | (sets.filled.sum(axis=1) > 0)
                whole = sets.null & ((sets.lows == low) & (sets.highs == high)).any(axis=1)
                self._regular &= ~whole
                if len(boxes) == 1:
                    filled &= bounded
                else:
                    self._regular &= bounded  # without one of its boxes a normal form may be another altogether
        self._part_repeats(boxes)
        kept = np.flatnonzero(self._regular & filled)
        residuals: dict[Expression, Rows] = {}
        for planned, box in zip(self._plan.boxes, boxes, strict=True):
            if planned.residual is None:
                numbers = np.full(len(kept), -1, np.int32)
            elif planned.residual in residuals:
                numbers = residuals[planned.residual]
            else:
                numbers = residuals[planned.residual] = self._residuals(planned.residual, kept)
            self._add_box(kept, numbers, box)
        return self._rows[thought_regular & ~self._regular]

    def _add_box(self, kept: npt.NDArray[np.int64], residuals: Rows, box: Mapping[Path, _Sets]) -> None:
        numbers = np.full(len(self._rows), -1, np.int32)
        numbers[kept] = self._builder.add_boxes(self._rows[kept], residuals)
        for planned, sets in box.items():
            type_ = self._types[planned]
            for path, rows in self._by_path(planned):
                rows = rows[numbers[rows] >= 0]
                lows, highs = sets.lows[rows], sets.highs[rows]
                row, column = np.nonzero(lows <= highs)
                self._builder.add_intervals(path, type_, numbers[rows[row]], lows[row, column], highs[row, column])
                if sets.null:
                    self._builder.add_null(path, type_, numbers[rows])

    def _residuals(self, residual: Expression, kept: npt.NDArray[np.int64]) -> Rows:
        """The numbers of the residuals that these rows have."""
        items = list(literal_holes(residual))
        types_ = [item.type if isinstance(item, Literal) else item[1] for item in items]
        paths = list(dict.fromkeys(reference.path for reference in attributes_of(residual)))
        key = np.zeros(len(kept), np.int64)
        for path in paths:
            _, key = np.unique(
                key * len(self._renamed[path].paths) + self._renamed[path].which[kept], return_inverse=True
            )
        _, firsts, which = np.unique(key, return_index=True, return_inverse=True)
        skeletons = []
        for row in kept[firsts].tolist():
            names = {path: self._renamed[path].paths[self._renamed[path].which[row]] for path in paths}
            skeletons.append(self._builder.residuals.skeleton(_skeleton(residual, names), types_))
        templates = self._templates(np.array(skeletons, np.int64)[which], list(pattern_holes(residual)), kept)
        columns = [
            np.full(len(kept), item.value, column_dtype(item.type))
            if isinstance(item, Literal)
            else self._literals[item][kept]
            for item in items
        ]
        return self._builder.residuals.add_many(templates, columns)

    def _templates(
        self, skeletons: npt.NDArray[np.int64], holes: list[tuple[Hole, str | None]], kept: npt.NDArray[np.int64]
    ) -> Rows:
        """The templates of these rows: the skeletons with their patterns."""
        key, columns = skeletons, []
        for hole in holes:
            encoded = self._patterns[hole].take(pa.array(kept)).dictionary_encode()
            codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            _, key = np.unique(key * len(encoded.dictionary) + codes, return_inverse=True)
            columns.append(encoded)
        _, firsts, which = np.unique(key, return_index=True, return_inverse=True)
        patterns = [column.take(pa.array(firsts)).to_pylist() for column in columns]
        distinct = zip(*patterns, strict=True) if patterns else [()] * len(firsts)
        numbers = map(self._builder.residuals.template, skeletons[firsts].tolist(), distinct)
        return np.array(list(numbers), np.int32)[which]

    def _part_repeats(self, boxes: list[dict[Path, _Sets]]) -> None:
        """A filter whose boxes are not all different is read in full, which drops the repeats."""
        for (left_plan, left), (right_plan, right) in combinations(zip(self._plan.boxes, boxes, strict=True), 2):
            if left.keys() == right.keys() and all(left[path].null == right[path].null for path in left):
                same = self._same_residual(left_plan, right_plan)
                for path in left:
                    same &= _equal(left[path], right[path])
                self._regular &= ~same

    def _same_residual(self, left: PlannedBox, right: PlannedBox) -> Mask:
        if left.residual is None or right.residual is None:
            return np.full(len(self._rows), left.residual is right.residual)
        return self._same(left.residual, right.residual)

    def _part_repeated_conjuncts(self, residual: Expression) -> None:
        """A filter that asks the same twice is read in full too."""
        if isinstance(residual, And):
            for left, right in combinations(residual.operands, 2):
                self._regular &= ~self._same(left, right)

    def _same(self, left: Expression, right: Expression) -> Mask:
        """Which filters have the same in these two parts of the plan."""
        same = np.full(len(self._rows), mapped(left, emptied) == mapped(right, emptied))
        if same.any():
            for one, other in zip(literal_holes(left), literal_holes(right), strict=True):
                mine, theirs = (
                    item.value if isinstance(item, Literal) else self._literals[item] for item in (one, other)
                )
                same &= mine == theirs
            for pattern, other_pattern in zip(pattern_holes(left), pattern_holes(right), strict=True):
                equal: ArrowArray = pc.equal(self._patterns[pattern], self._patterns[other_pattern])
                same &= equal.to_numpy(zero_copy_only=False)
        return same

    def _set(self, values: PlannedSet) -> _Sets:
        if values not in self._sets:
            self._sets[values] = self._compute(values)
        return self._sets[values]

    def _compute(self, values: PlannedSet) -> _Sets:
        match values:
            case Combined(every, parts):
                return reduce(_meet if every else _join, map(self._set, parts))
            case Constant(path, type_, constant):
                if has_ordinals(type_):
                    ends = np.array(constant.intervals or [(1, 1)], object)
                    lows, highs = ends[:, 0].astype(np.int64), (ends[:, 1] - 1).astype(np.int64)
                    shape = (len(self._rows), len(ends))
                    return _Sets(np.broadcast_to(lows, shape), np.broadcast_to(highs, shape), constant.null)
                low, high = self._line(path)  # of strings: all of them, or none
                return _Sets(np.full_like(high, low), high if constant.intervals else high * 0 + low - 1, constant.null)
        assert isinstance(values, Against)
        return self._compare(values)

    def _compare(self, leaf: Against) -> _Sets:
        low, high = self._line(leaf.path)
        spans = [self._interval(leaf, hole) for hole in leaf.holes]
        start, end = (np.stack([span[side] for span in spans], 1) for side in (0, 1))
        if leaf.op not in ("IN", "LIKE", "=", "<=>"):
            lows, highs = _range(leaf.op if leaf.wanted else _OPPOSITE[leaf.op], start, low, high)
            return _Sets(lows, highs)
        order = np.argsort(start, axis=1)
        start, end = np.take_along_axis(start, order, 1), np.take_along_axis(end, order, 1)
        if leaf.wanted:
            return _united(start, end)
        return _Sets(np.hstack([np.full_like(high, low), end + 1]), np.hstack([start - 1, high]), null=leaf.op == "<=>")

    def _line(self, path: Path) -> tuple[int, Codes]:
        """The least code and, row by row, the greatest: on a line of strings it depends on the attribute."""
        type_, renamed = self._types[path], self._renamed[path]
        if has_ordinals(type_):
            low, high = line(type_)
            return low, np.full((len(self._rows), 1), high - 1, np.int64)
        lines = np.array([self._builder.constants(actual, type_).line for actual in renamed.paths], np.int64)
        return -1, lines[renamed.which, 1][:, None]

    def _interval(self, leaf: Against, hole: Hole) -> tuple[Codes, Codes]:
        """The codes from and to which a literal reaches."""
        if leaf.type != types.STRING:
            places = self._places[leaf.path, hole]
            return places, places
        start = 2 * self._numbers(leaf, hole, "at")
        if leaf.op != "LIKE":
            return start, start
        return start, np.where(self._is_prefix[hole], 2 * self._numbers(leaf, hole, "after") - 1, start)

    def _numbers(self, leaf: Against, hole: Hole, end: str) -> Codes:
        numbers = np.empty(len(self._rows), np.int64)
        for constants, rows, added in self._strings[leaf.path, hole, end]:
            numbers[rows] = constants.numbers(added)
        return numbers


def readable_paths(texts: Column) -> Mask:
    """Which paths over XML are short and can be read; the others are left to the full parse."""
    readable: dict[str, bool] = {}
    for text in texts.tolist():
        if text not in readable:
            try:
                parse_path(text)
                readable[text] = len(text) <= MAX_SHORT_LENGTH
            except FilterError:
                readable[text] = False
    return np.array([readable[text] for text in texts.tolist()], bool)


def _skeleton(residual: Expression, names: Mapping[Path, Path]) -> Expression:
    """A residual with a filter's own names, and without its literals and patterns."""
    return mapped(
        residual, lambda leaf: Reference(names[leaf.path], leaf.type) if isinstance(leaf, Reference) else emptied(leaf)
    )


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
