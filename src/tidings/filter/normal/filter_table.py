"""The normal forms of many filters, in columns: what matchers and placements are built from.

Boxes are numbered from 0 in the order of their filters. For each attribute there is one table
of intervals, a row for each interval of each box, with both ends as *codes*, closed: an event
is within where `low <= code(value) <= high`. Codes are the ordinals of `sets`; strings, and
decimals too long for 64 bits, are coded by their place among the attribute's constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import FilterError
from tidings.filter.normal.normal_form import NormalForm
from tidings.filter.normal.residuals import ResidualBuilder, Residuals
from tidings.filter.normal.value_sets import Cut, ValueSet, line
from tidings.model.arrow import ArrowArray
from tidings.model.domain import Domain
from tidings.model.types import DataType, Path

Codes = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

MAX_CODED_DIGITS = 18  # of a decimal whose digits are its code


def has_ordinals(type_: DataType) -> bool:
    """Whether a type's ordinals are its codes; else its constants give them."""
    return type_.name != "string" and not (type_.name == "decimal" and type_.precision > MAX_CODED_DIGITS)


@dataclass(frozen=True, slots=True)
class Intervals:
    """What all boxes ask of one attribute."""

    type: DataType
    boxes: Rows  # ascending; a box has a row for each of its intervals
    lows: Codes
    highs: Codes
    null_boxes: Rows  # the boxes that NULL satisfies, ascending
    keys: ArrowArray | None  # the constants that give the codes, ascending, where ordinals do not

    @property
    def constrained(self) -> Rows:
        """The boxes that ask anything of the attribute."""
        return np.union1d(self.boxes, self.null_boxes).astype(np.int32)


@dataclass(frozen=True, slots=True)
class FilterTable:
    """The normal forms of `count` filters over one domain."""

    domain: Domain
    count: int
    box_filter: Rows  # of each box the filter it belongs to, ascending
    intervals: Mapping[Path, Intervals]
    residual_of: Rows  # of each box its residual, -1 for none
    residuals: Residuals
    rejects: tuple[tuple[int, FilterError], ...] = ()  # filters that could not be read

    @property
    def boxes(self) -> int:
        return len(self.box_filter)

    @property
    def bytes(self) -> int:
        """Of everything but constants and residuals."""
        codes = sum(
            one.boxes.nbytes + one.lows.nbytes + one.highs.nbytes + one.null_boxes.nbytes
            for one in self.intervals.values()
        )
        return codes + self.box_filter.nbytes + self.residual_of.nbytes

    @property
    def never(self) -> Rows:
        """The filters that no event matches; rejected ones apart."""
        without = np.ones(self.count, bool)
        without[self.box_filter] = False
        without[[row for row, _ in self.rejects]] = False
        return np.flatnonzero(without).astype(np.int32)

    @property
    def always(self) -> Rows:
        """The filters that every event matches."""
        free = self.residual_of < 0
        for intervals in self.intervals.values():
            free[intervals.constrained] = False
        return np.unique(self.box_filter[free])


@dataclass(slots=True)
class Constants:
    """The strings (or long decimals) that filters name of one attribute, numbered in their order.

    Arrays are added first; after `number` each can be asked for its numbers.
    """

    type: DataType
    _arrays: list[ArrowArray] = field(default_factory=list)
    _singles: set[Any] = field(default_factory=set)  # cuts of sets that came one by one
    _numbers: list[Codes] = field(default_factory=list)
    keys: ArrowArray | None = None

    def add(self, values: ArrowArray) -> int:
        self._arrays.append(values)
        return len(self._arrays) - 1

    def add_cuts(self, values: ValueSet) -> None:
        """The constants at the ends of a set's intervals; the ends of the line are none."""
        for interval in values.intervals:
            self._singles.update(interval)

    def number(self) -> None:
        singles = _keys(self._singles.difference(line(self.type)), self)
        encoded = pa.concat_arrays([*self._arrays, singles]).dictionary_encode()
        order = pc.sort_indices(encoded.dictionary).to_numpy()
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        numbers = rank[encoded.indices.to_numpy(zero_copy_only=False)] if len(order) else np.empty(0, np.int64)
        self._numbers = np.split(numbers, np.cumsum([len(array) for array in self._arrays]))[:-1]
        self.keys = encoded.dictionary.take(pa.array(order))

    def numbers(self, added: int) -> Codes:
        return self._numbers[added]

    @property
    def key_type(self) -> pa.DataType:
        return pa.binary() if self.type.name == "string" else pa.decimal128(38, self.type.scale)

    @property
    def line(self) -> tuple[int, int]:
        """Codes below and above those of every constant: constant i has the code 2i."""
        assert self.keys is not None
        return -1, 2 * len(self.keys) - 1


class FilterTableBuilder:
    """Collects boxes from any number of filters, in any order, and lays them out in columns."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._filters: list[Rows] = []
        self._single_filters: list[int] = []  # of boxes that came one by one since the last array
        self._single_residuals: list[int] = []
        self._count = 0
        self._intervals: dict[Path, list[tuple[Rows, Codes, Codes]]] = {}
        self._nulls: dict[Path, list[Rows]] = {}
        self._types: dict[Path, DataType] = {}
        self.residuals = ResidualBuilder()
        self._residual_of: list[Rows] = []
        self._constants: dict[Path, Constants] = {}
        self._waiting: list[tuple[int, Path, ValueSet]] = []  # sets on lines that need numbers

    def constants(self, path: Path, type_: DataType) -> Constants:
        return self._constants.setdefault(path, Constants(type_))

    def add_boxes(self, filters: Rows, residuals: Rows) -> Rows:
        """One new box for each of these filters, with its residual's number or -1. Returns the boxes' numbers."""
        self._gather_singles()
        boxes = np.arange(self._count, self._count + len(filters), dtype=np.int32)
        self._count += len(filters)
        self._filters.append(filters)
        self._residual_of.append(residuals)
        return boxes

    def _gather_singles(self) -> None:
        if self._single_filters:
            self._filters.append(np.array(self._single_filters, np.int32))
            self._residual_of.append(np.array(self._single_residuals, np.int32))
            self._single_filters, self._single_residuals = [], []

    def add_intervals(self, path: Path, type_: DataType, boxes: Rows, lows: Codes, highs: Codes) -> None:
        self._types[path] = type_
        self._intervals.setdefault(path, []).append((boxes, lows, highs))

    def add_null(self, path: Path, type_: DataType, boxes: Rows) -> None:
        self._types[path] = type_
        self._nulls.setdefault(path, []).append(boxes)

    def add(self, row: int, form: NormalForm) -> None:
        """The boxes of one filter, from its normal form."""
        residuals = {id(None): -1}  # boxes share the residual that was left of the whole filter
        for box in form.boxes:
            if id(box.residual) not in residuals and box.residual is not None:
                residuals[id(box.residual)] = self.residuals.add(box.residual)
            self._single_filters.append(row)
            self._single_residuals.append(residuals[id(box.residual)])
            for path, values in box.sets.items():
                self._waiting.append((self._count, path, values))
                type_ = self._types.setdefault(path, self._domain.leaves[path])
                if not has_ordinals(type_):
                    self.constants(path, type_).add_cuts(values)
            self._count += 1

    def number_constants(self) -> None:
        """Fix the codes: after this, no more constants."""
        for constants in self._constants.values():
            constants.number()

    def build(self, count: int, rejects: Iterable[tuple[int, FilterError]] = ()) -> FilterTable:
        self._gather_singles()
        self._add_waiting()
        filters = _joined(self._filters, np.int32)
        order = np.argsort(filters, kind="stable")
        renumbered = np.empty(len(order), np.int32)
        renumbered[order] = np.arange(len(order), dtype=np.int32)
        columns = {path: self._column(path, renumbered) for path in sorted(self._types)}
        residuals, residual_numbers = self.residuals.build()
        residual_of = _joined(self._residual_of, np.int32)[order]
        return FilterTable(
            domain=self._domain,
            count=count,
            box_filter=filters[order],
            intervals={path: column for path, column in columns.items() if len(column.boxes) + len(column.null_boxes)},
            residual_of=np.where(residual_of < 0, -1, np.append(residual_numbers, -1)[residual_of]).astype(np.int32),
            residuals=residuals,
            rejects=tuple(sorted(rejects, key=lambda reject: reject[0])),
        )

    def _column(self, path: Path, renumbered: Rows) -> Intervals:
        parts = self._intervals.get(path, [])
        boxes = renumbered[_joined([part[0] for part in parts], np.int32)]
        lows, highs = (_joined([part[i] for part in parts], np.int64) for i in (1, 2))
        order = np.lexsort((lows, boxes))
        nulls = np.sort(renumbered[_joined(self._nulls.get(path, []), np.int32)])
        constants = self._constants.get(path)
        keys = constants.keys if constants is not None else None
        return Intervals(self._types[path], boxes[order], lows[order], highs[order], nulls, keys)

    def _add_waiting(self) -> None:
        """Code the sets that came one by one."""
        boxes: dict[Path, list[int]] = {}
        ends: dict[Path, list[tuple[int, int]]] = {}
        nulls: dict[Path, list[int]] = {}
        coders = {path: _Coder(constants) for path, constants in self._constants.items()}
        for box, path, values in self._waiting:
            for low, high in values.intervals:
                boxes.setdefault(path, []).append(box)
                ends.setdefault(path, []).append(coders[path](low, high) if path in coders else (low, high - 1))
            if values.null:
                nulls.setdefault(path, []).append(box)
        for path, rows in boxes.items():
            lows, highs = np.array(ends[path], np.int64).reshape(-1, 2).T
            self.add_intervals(path, self._types[path], np.array(rows, np.int32), lows, highs)
        for path, rows in nulls.items():
            self.add_null(path, self._types[path], np.array(rows, np.int32))


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _keys(cuts: set[Any], constants: Constants) -> ArrowArray:
    """The constants that cuts lie at, as Arrow has them."""
    if constants.type.name == "string":
        return pa.array([cut[0] for cut in cuts], pa.binary())
    data = b"".join(cut.to_bytes(16, "little", signed=True) for cut in cuts)  # a long decimal's digits
    return pa.Array.from_buffers(constants.key_type, len(cuts), [None, pa.py_buffer(data)])


class _Coder:
    """Codes of the cuts of sets that came one by one: constant i spans the codes 2i to 2i + 1."""

    def __init__(self, constants: Constants) -> None:
        self._line = line(constants.type)
        self._codes = constants.line
        assert constants.keys is not None
        if constants.type.name == "string":
            keys: list[Cut] = constants.keys.to_pylist()
        else:
            data = constants.keys.buffers()[1].to_pybytes() if len(constants.keys) else b""
            keys = [int.from_bytes(data[i : i + 16], "little", signed=True) for i in range(0, len(data), 16)]
        self._number = {key: i for i, key in enumerate(keys)}

    def __call__(self, low: Cut, high: Cut) -> tuple[int, int]:
        first = self._codes[0] if low == self._line[0] else self._code(low)
        last = self._codes[1] if high == self._line[1] else self._code(high) - 1
        return first, last

    def _code(self, cut: Cut) -> int:
        return 2 * self._number[cut[0]] + cut[1] if isinstance(cut, tuple) else 2 * self._number[cut]


# ---------------------------------------------------------------------- tables of tables


def taken_filters(table: FilterTable, rows: Codes) -> FilterTable:
    """The normal forms of some filters of a table, ascending."""
    if len(rows) == table.count:
        return table
    number = np.full(table.count, -1, np.int32)
    number[rows] = np.arange(len(rows), dtype=np.int32)
    kept = number[table.box_filter] >= 0
    box = np.cumsum(kept, dtype=np.int32) - 1
    intervals = {}
    for path, one in table.intervals.items():
        inside, nulls = kept[one.boxes], one.null_boxes[kept[one.null_boxes]]
        if inside.any() or len(nulls):
            lows, highs = one.lows[inside], one.highs[inside]
            intervals[path] = Intervals(one.type, box[one.boxes[inside]], lows, highs, box[nulls], one.keys)
    return FilterTable(
        table.domain, len(rows), number[table.box_filter[kept]], intervals, table.residual_of[kept], table.residuals
    )


def joined_filters(tables: Sequence[FilterTable], domain: Domain) -> FilterTable:
    """The normal forms of tables one after the other."""
    if len(tables) == 1:
        return tables[0]
    builder = ResidualBuilder()
    residual_of: list[npt.NDArray[np.int32]] = []
    for table in tables:
        used = np.unique(table.residual_of[table.residual_of >= 0])
        numbers = np.full(len(table.residuals) + 1, -1, np.int32)  # the last for none
        numbers[used] = builder.add_all(table.residuals, used)
        residual_of.append(numbers[table.residual_of])
    residuals, renumbered = builder.build()
    filters = np.cumsum([0, *(table.count for table in tables)])
    boxes = np.cumsum([0, *(table.boxes for table in tables)])
    paths = sorted({path for table in tables for path in table.intervals})
    return FilterTable(
        domain=domain,
        count=int(filters[-1]),
        box_filter=_end_to_end([table.box_filter for table in tables], filters),
        intervals={path: _joined_intervals(path, tables, boxes) for path in paths},
        residual_of=np.append(renumbered, np.int32(-1))[np.concatenate(residual_of)],
        residuals=residuals,
    )


def _joined_intervals(path: Path, tables: Sequence[FilterTable], boxes: Codes) -> Intervals:
    numbers = [number for number, table in enumerate(tables) if path in table.intervals]
    parts = [tables[number].intervals[path] for number in numbers]
    bases = boxes[numbers]
    keys, recoded = None, [(one.lows, one.highs) for one in parts]
    if parts[0].keys is not None:
        keys, recoded = _joined_keys(parts)
    return Intervals(
        parts[0].type,
        _end_to_end([one.boxes for one in parts], bases),
        np.concatenate([lows for lows, _ in recoded]),
        np.concatenate([highs for _, highs in recoded]),
        _end_to_end([one.null_boxes for one in parts], bases),
        keys,
    )


def _end_to_end(numbers: Sequence[npt.NDArray[np.int32]], bases: Any) -> npt.NDArray[np.int32]:
    moved = [one + np.int32(base) for one, base in zip(numbers, bases, strict=False)]
    return np.concatenate([np.empty(0, np.int32), *moved])


def _joined_keys(parts: Sequence[Intervals]) -> tuple[ArrowArray, list[tuple[Codes, Codes]]]:
    """The constants that all parts together ask for, ascending, and the parts' codes among them."""
    used = [_used(one) for one in parts]
    chosen = [one.keys.filter(pa.array(mask)) for one, mask in zip(parts, used, strict=True) if one.keys is not None]
    encoded = pa.concat_arrays(chosen).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    ranks = rank[encoded.indices.to_numpy(zero_copy_only=False)] if len(order) else np.empty(0, np.int64)
    recoded = []
    for one, mask, own in zip(parts, used, np.split(ranks, np.cumsum([mask.sum() for mask in used])[:-1]), strict=True):
        place = np.full(len(mask) + 1, len(order), np.int64)  # the last: past every constant
        place[:-1][mask] = own
        # Constant i is 2i, and what lies between it and the next is 2i + 1: a range from there begins after
        # constant i, wherever that is now, and one up to there ends before constant i + 1. Before all lies -1.
        lows = np.where(one.lows < 0, -1, 2 * place[one.lows >> 1] + (one.lows & 1))
        highs = np.where(one.highs & 1, 2 * place[(one.highs + 1) >> 1] - 1, 2 * place[one.highs >> 1])
        recoded.append((lows, highs))
    return encoded.dictionary.take(pa.array(order)), recoded


def _used(intervals: Intervals) -> npt.NDArray[np.bool_]:
    """Which of an attribute's constants its intervals end at."""
    assert intervals.keys is not None
    used: npt.NDArray[np.bool_] = np.zeros(len(intervals.keys) + 1, bool)
    used[intervals.lows[intervals.lows >= 0] >> 1] = True
    used[(intervals.highs + 1) >> 1] = True
    return used[:-1]
