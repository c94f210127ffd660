"""The filters of a workload, taken apart for the peers before anything is timed.

Filters that differ only in their constants form a *class*: `c3 = ? AND n1 >= ? AND n1 < ?`, with a
column for each `?`. The conjuncts of a class are sorted, so that `a = 1 AND b = 2` and
`b = 2 AND a = 1` share one. This reads just the forms that the workloads have, by regular
expressions of its own: nothing here comes from the package, so that the answers of brute force,
which are made from it, are an independent check.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

_CONSTANT = re.compile(r"LIKE '%([^%']*)%'|LIKE '([^%']*)%'|'([^']*)'|(?<![\w.])(\d+(?:\.\d+)?)")
_BETWEEN_CONJUNCTS = re.compile(r" AND (?![^(]*\))")
_NAME = re.compile(r"\b[a-z]\d*\b")

# What a conjunct may be: its kind by its text, with N for a name and ? for a constant.
KINDS = {
    "N = ?": "equal",
    "N >= ?": "at_least",
    "N < ?": "below",
    "(N = ? OR N = ?)": "either",
    "NOT (N = ?)": "differs",
    "N IN (?, ?, ?)": "among",
    "N STARTS ?": "prefix",
    "N HAS ?": "contains",
    "N IS NULL": "null",
    "N > N * ?": "exceeds",
}


@dataclass(frozen=True)
class Conjunct:
    kind: str  # one of KINDS
    names: tuple[str, ...]  # attributes
    constants: tuple[int, ...]  # numbers of columns of the class


@dataclass(frozen=True)
class Class:
    """Subscriptions whose filters differ only in their constants."""

    conjuncts: tuple[Conjunct, ...]
    subscriptions: Any  # int64, ascending
    constants: tuple[Any, ...]  # a column each: float64, or object for strings

    def of_kind(self, *kinds: str) -> list[Conjunct]:
        return [conjunct for conjunct in self.conjuncts if conjunct.kind in kinds]


@dataclass(frozen=True)
class Prepared:
    """The subscriptions of a workload; one's number is its place."""

    workload: str
    count: int
    classes: list[Class]
    texts: list[str]  # attributes that are strings
    numbers: list[str]  # attributes that are doubles


def prepare(workload: Any) -> Prepared:
    """Sort the filters of a workload into classes."""
    members: dict[str, tuple[list[int], list[tuple[str, ...]]]] = {}
    for number, text in enumerate(workload.filters.to_pylist()):
        shape = _CONSTANT.sub(_hole, text)
        numbers, constants = members.setdefault(shape, ([], []))
        numbers.append(number)
        constants.append(tuple(found[found.lastindex] for found in _CONSTANT.finditer(text)))
    merged: dict[tuple[str, ...], list[tuple[list[int], list[tuple[str, ...]]]]] = {}
    for shape, (numbers, rows) in members.items():
        key, order = _sorted_conjuncts(shape)
        columns = list(zip(*rows, strict=True))
        merged.setdefault(key, []).append((numbers, [columns[i] for i in order]))
    types = {attribute.name: attribute.type.name for attribute in workload.domain.attributes}
    classes = [_class(key, parts, types) for key, parts in merged.items()]
    texts, doubles = ([name for name, type_ in types.items() if type_ == kind] for kind in ("string", "double"))
    return Prepared(workload.name, len(workload.filters), classes, texts, doubles)


def _hole(found: re.Match[str]) -> str:
    return {1: "HAS ?", 2: "STARTS ?"}.get(found.lastindex or 0, "?")


def _sorted_conjuncts(shape: str) -> tuple[tuple[str, ...], list[int]]:
    """The conjuncts of a shape in order, and the places that their constants had before."""
    parts = []
    first = 0
    for conjunct in _BETWEEN_CONJUNCTS.split(shape):
        count = conjunct.count("?")
        parts.append((conjunct, list(range(first, first + count))))
        first += count
    parts.sort()
    return tuple(conjunct for conjunct, _ in parts), [place for _, places in parts for place in places]


def _class(key: tuple[str, ...], parts: list[tuple[list[int], Any]], types: dict[str, str]) -> Class:
    subscriptions = np.concatenate([np.array(numbers, np.int64) for numbers, _ in parts])
    order = np.argsort(subscriptions)
    conjuncts: list[Conjunct] = []
    columns: list[Any] = []
    for text in key:
        names = tuple(_NAME.findall(text))
        places = tuple(range(len(columns), len(columns) + text.count("?")))
        conjuncts.append(Conjunct(KINDS[_NAME.sub("N", text)], names, places))
        for place in places:
            values = np.concatenate([np.array(part[place], object) for _, part in parts])[order]
            columns.append(values.astype(np.float64) if types[names[0]] == "double" else values)
    return Class(tuple(conjuncts), subscriptions[order], tuple(columns))
