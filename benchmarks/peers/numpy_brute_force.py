"""numpy brute force: every subscription against every event, by whole arrays.

Constants become their ranks, so that a range is one subtraction and one unsigned comparison of
32 bits (1.5 times as fast as two comparisons of doubles) and an equality is one comparison. What
is left after the first tests, once it is little, is gathered and tested alone. Its answers are the
ones that everything else is checked against.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.peers import ALL_WORKLOADS
from benchmarks.peers.prepared import Class, Conjunct, Prepared

CELLS_AT_ONCE = 1 << 17  # subscriptions × events, what stays in the cache
SPARSE = 0.03  # of the cells: when fewer are left, testing them alone is faster

_BUFFERS = tuple(np.empty(CELLS_AT_ONCE, kind) for kind in (np.bool_, np.bool_, np.uint32))

_RANGES = ("at_least", "below")
_EQUALITIES = ("equal", "either", "differs", "among")


class Peer:
    name = "numpy"
    workloads = ALL_WORKLOADS
    events_max = 10_000

    def build(self, subscriptions: Prepared) -> None:
        self._keys = _keys(subscriptions)
        self._texts = set(subscriptions.texts)
        self._classes = [_CodedClass(class_, self._keys) for class_ in subscriptions.classes]

    def match(self, events: Any) -> tuple[Any, Any]:
        values = {name: events[name].combine_chunks() for name in events.column_names}
        codes = {name: _codes(values[name], keys, name in self._texts) for name, keys in self._keys.items()}
        found: list[tuple[Any, Any]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for class_ in self._classes:
            found += class_.match(codes, values, len(events))
        return np.concatenate([part[0] for part in found]), np.concatenate([part[1] for part in found])


class _CodedClass:
    """A class with its constants as codes: `ranges` and `equalities` are tested on every cell, `others` where left."""

    def __init__(self, class_: Class, keys: dict[str, Any]) -> None:
        self._subscriptions = class_.subscriptions
        self._constants = class_.constants
        self._equalities = [
            (conjunct.names[0], _ranks(keys, conjunct.names[0], class_.constants[conjunct.constants[0]]))
            for conjunct in class_.of_kind("equal")
        ]
        bounds: dict[str, dict[str, Any]] = {}
        for conjunct in class_.of_kind(*_RANGES):
            name = conjunct.names[0]
            bounds.setdefault(name, {})[conjunct.kind] = _ranks(keys, name, class_.constants[conjunct.constants[0]])
        self._ranges = [(name, ends["at_least"], ends["below"] - ends["at_least"]) for name, ends in bounds.items()]
        self._others = [conjunct for conjunct in class_.conjuncts if conjunct.kind not in ("equal", *_RANGES)]
        self._ranked = {
            i: _ranks(keys, name, class_.constants[i])
            for conjunct in class_.of_kind("either", "differs", "among")
            for name, i in zip(conjunct.names * 3, conjunct.constants, strict=False)
        }

    def match(self, codes: dict[str, Any], values: dict[str, Any], count: int) -> list[tuple[Any, Any]]:
        found = []
        size = len(self._subscriptions)
        for first in range(0, size, CELLS_AT_ONCE):
            members = slice(first, min(first + CELLS_AT_ONCE, size))
            events_at_once = max(1, CELLS_AT_ONCE // (members.stop - first))
            for event in range(0, count, events_at_once):
                events, places = self._block(codes, slice(event, min(event + events_at_once, count)), members)
                for conjunct in self._others:
                    left = self._other(conjunct, codes, values, events, places)
                    events, places = events[left], places[left]
                if len(events):
                    found.append((events, self._subscriptions[places]))
        return found

    def _block(self, codes: dict[str, Any], events: slice, members: slice) -> tuple[Any, Any]:
        """The cells of a block that pass the ranges and equalities."""
        tests = [(name, lows, None) for name, lows in self._equalities] + self._ranges
        shape = (events.stop - events.start, members.stop - members.start)
        # The same memory for every block: fresh pages cost more than the comparisons.
        room = shape[0] * shape[1]
        inside, passed, distance = (buffer[:room].reshape(shape) for buffer in _BUFFERS)
        left = room
        while tests and left > SPARSE * room:
            name, lows, widths = tests.pop(0)
            result = inside if left == room else passed
            value = codes[name][events, None]
            if widths is None:
                np.equal(value, lows[members], out=result)
            else:
                np.subtract(value, lows[members], out=distance)
                np.less(distance, widths[members], out=result)
            if result is passed:
                np.logical_and(inside, passed, out=inside)
            left = np.count_nonzero(inside)
        cells = np.arange(room) if left == room else np.flatnonzero(inside)
        event, place = np.divmod(cells, shape[1])
        event, place = event + events.start, place + members.start
        for name, lows, widths in tests:
            value = codes[name][event]
            held = value == lows[place] if widths is None else value - lows[place] < widths[place]
            event, place = event[held], place[held]
        return event, place

    def _other(
        self, conjunct: Conjunct, codes: dict[str, Any], values: dict[str, Any], events: Any, places: Any
    ) -> Any:
        """Which of these cells pass a conjunct that is neither a range nor an equality."""
        name = conjunct.names[0]
        if conjunct.kind in _EQUALITIES:
            equal = [
                codes[attribute][events] == self._ranked[i][places]
                for attribute, i in zip(conjunct.names * 3, conjunct.constants, strict=False)
            ]
            held = np.logical_or.reduce(equal)
            return ~held & _valid(values[name])[events] if conjunct.kind == "differs" else held
        if conjunct.kind == "null":
            return ~_valid(values[name])[events]
        constants = self._constants[conjunct.constants[0]][places]
        if conjunct.kind == "exceeds":
            left, right = (values[attribute].to_numpy(zero_copy_only=False)[events] for attribute in conjunct.names)
            return left > right * constants
        texts = values[name].to_numpy(zero_copy_only=False)[events]
        holds = str.startswith if conjunct.kind == "prefix" else str.__contains__
        pairs = zip(texts.tolist(), constants.tolist(), strict=True)
        return np.array([text is not None and holds(text, constant) for text, constant in pairs], bool)


def _keys(subscriptions: Prepared) -> dict[str, Any]:
    """Of each attribute the constants that it is compared with, ascending."""
    constants: dict[str, list[Any]] = {}
    for class_ in subscriptions.classes:
        for conjunct in class_.of_kind(*_EQUALITIES, *_RANGES):
            for name, i in zip(conjunct.names * 3, conjunct.constants, strict=False):
                constants.setdefault(name, []).append(class_.constants[i])
    return {name: np.unique(np.concatenate(columns)) for name, columns in constants.items()}


def _ranks(keys: dict[str, Any], name: str, constants: Any) -> Any:
    return (np.searchsorted(keys[name], constants) + 1).astype(np.uint32)


def _codes(values: Any, keys: Any, is_text: bool) -> Any:
    """Of a text its rank from 1, of a number how many constants are not above it; 0 for NULL and for unknown texts."""
    if is_text:
        ranks = pc.index_in(values, value_set=pa.array(keys, pa.string()))
        return (ranks.cast("int64").fill_null(-1).to_numpy() + 1).astype(np.uint32)
    codes = np.searchsorted(keys, values.fill_null(0).to_numpy(), side="right").astype(np.uint32)
    return np.where(_valid(values), codes, np.uint32(0))


def _valid(values: Any) -> Any:
    return values.is_valid().to_numpy(zero_copy_only=False)
