"""Sets of values of one attribute: unions of intervals on the attribute's line, and NULL.

A value's place on its line is an *ordinal*: an integer that keeps the order of the type, so
that `<` and `<=` differ by one and every interval is a pair of integers.

    boolean, whole numbers, date, timestamps   the integer itself
    float, double                              the bits, so turned that they ascend; NaN is last
    decimal(p,s)                               the digits without the point
    string                                     no integer: the UTF-8 bytes

Intervals are half-open between *cuts*, the gaps between values: the cut before ordinal n is n
itself, and before and after a string are (bytes, 0) and (bytes, 1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, TypeAlias

from tidings.filter.tree import Value
from tidings.model.types import DataType

Cut: TypeAlias = Any  # an int, or (bytes, 0 | 1) on a line of strings; one kind on each line

_SIGN = 0x7FFF_FFFF_FFFF_FFFF
_INFINITY = 0x7FF0_0000_0000_0000  # the bits, and the ordinal, of +inf
_NAN = _INFINITY + 1
_EXACT = Context(prec=80)


def ordinal(value: Value, type_: DataType) -> Cut:
    """The place of a non-NULL value on its line: an integer, or a string's bytes."""
    if type_.name in ("float", "double"):
        return double_ordinal(float(value))  # type: ignore[arg-type]
    if type_.name == "decimal":
        return int(Decimal(value).scaleb(type_.scale, _EXACT))  # type: ignore[arg-type]
    if type_.name == "string":
        return str(value).encode()
    return int(value)  # type: ignore[arg-type]


def double_ordinal(value: float) -> int:
    if value != value:
        return _NAN
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits if bits >= 0 else (bits ^ _SIGN) + 1  # + 1 brings -0.0 to the place of 0.0


def from_ordinal(place: Cut, type_: DataType) -> Value:
    """The value at an ordinal: the inverse of `ordinal`."""
    match type_.name:
        case "float" | "double":
            if place == _NAN:
                return float("nan")
            bits = place if place >= 0 else (place - 1) ^ _SIGN
            result: float = struct.unpack("<d", struct.pack("<q", bits))[0]
            return result
        case "decimal":
            return Decimal(place).scaleb(-type_.scale, _EXACT)
        case "string":
            return bytes(place).decode()
        case "boolean":
            return bool(place)
    return int(place)


@lru_cache(maxsize=1024)
def line(type_: DataType) -> tuple[Cut, Cut]:
    """The first and the last cut of a type's line: between them lies every value."""
    match type_.name:
        case "boolean":
            return 0, 2
        case "float" | "double":
            return double_ordinal(float("-inf")), _NAN + 1
        case "decimal":
            return 1 - 10**type_.precision, 10**type_.precision
        case "string":
            return (b"", 0), (b"\xff", 0)  # no UTF-8 text reaches 0xff
        case "date":
            return -(1 << 31), 1 << 31
        case "timestamp" | "timestamp_ntz":
            return -(1 << 63), 1 << 63
    low, high = type_.integer_range
    return low, high + 1


def around(value: Value, type_: DataType) -> tuple[Cut, Cut]:
    """The cuts before and after a value."""
    place = ordinal(value, type_)
    return ((place, 0), (place, 1)) if isinstance(place, bytes) else (place, place + 1)


@dataclass(frozen=True, slots=True)
class ValueSet:
    """Disjoint ascending intervals, none empty and no two touching; `null`: NULL belongs too."""

    intervals: tuple[tuple[Cut, Cut], ...]
    null: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.intervals and not self.null

    @property
    def size(self) -> int:
        """How many rows of an index it takes."""
        return len(self.intervals) + self.null

    def __and__(self, other: ValueSet) -> ValueSet:
        mine, theirs = self.intervals, other.intervals
        result = []
        i = j = 0
        while i < len(mine) and j < len(theirs):
            low, high = max(mine[i][0], theirs[j][0]), min(mine[i][1], theirs[j][1])
            if low < high:
                result.append((low, high))
            if mine[i][1] <= theirs[j][1]:
                i += 1
            else:
                j += 1
        return ValueSet(tuple(result), self.null and other.null)

    def __or__(self, other: ValueSet) -> ValueSet:
        return union((*self.intervals, *other.intervals), null=self.null or other.null)

    def complement(self, low: Cut, high: Cut) -> ValueSet:
        """The values between two cuts that are not in this set; NULL apart."""
        result = []
        for start, end in self.intervals:
            if low < start:
                result.append((low, min(start, high)))
            low = max(low, end)
        if low < high:
            result.append((low, high))
        return ValueSet(tuple(result))


def union(intervals: Iterable[tuple[Cut, Cut]], *, null: bool = False) -> ValueSet:
    """The set of any intervals: empty ones dropped, touching ones joined."""
    filled = [interval for interval in intervals if interval[0] < interval[1]]
    if len(filled) < 2:
        return ValueSet(tuple(filled), null)
    result: list[tuple[Cut, Cut]] = []
    for low, high in sorted(filled):
        if result and low <= result[-1][1]:
            if high > result[-1][1]:
                result[-1] = (result[-1][0], high)
        else:
            result.append((low, high))
    return ValueSet(tuple(result), null)


@lru_cache(maxsize=1024)
def everything(type_: DataType) -> ValueSet:
    """Every value, and NULL."""
    return ValueSet((line(type_),), null=True)


@lru_cache(maxsize=1024)
def not_null(type_: DataType) -> ValueSet:
    return ValueSet((line(type_),))


ONLY_NULL = ValueSet((), null=True)
EMPTY = ValueSet(())
