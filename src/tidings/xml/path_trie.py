"""The alternatives of all paths in one trie, as arrays that kernels walk.

A state is a beginning that paths share: steps, and conditions on the last of them. From a state lead edges for
steps, by axis and symbol, and *groups* of edges for conditions on the same pattern: strings that a value may
equal are looked up by hash, numbers lie sorted, texts to search for are hashed by a gram of their bytes, and
only what is left (`!=`, negations) is tried one by one.

After Diao et al., "Path sharing and predicate evaluation for high-performance XML filtering" (YFilter, TODS 2003),
with the predicates in the trie as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tidings.xml import path_kernels as kernels
from tidings.xml.path_kernels import Arrays
from tidings.xml.path_parser import (
    AllOf,
    AnyOf,
    Compare,
    Exists,
    Negated,
    NodeTest,
    PathStep,
    Predicate,
    TextTest,
    XPath,
)

MAX_ALTERNATIVES = 16

_SELECTIVE = ("=", "contains", "starts-with")

Pattern: TypeAlias = tuple[tuple[bool, NodeTest], ...]  # of a path in a predicate, its axes and tests


class Atom(NamedTuple):
    """One condition on a node. `op` is "exists", a comparison, "contains" or "starts-with"."""

    pattern: Pattern
    op: str
    value: str | float = ""
    negated: bool = False


class AtomStep(NamedTuple):
    descendant: bool
    test: NodeTest
    atoms: tuple[Atom, ...]


class Alternatives(NamedTuple):
    paths: list[tuple[AtomStep, ...]]  # none: it never holds
    exact: bool  # else they only bring candidates


_Conjunctions: TypeAlias = "list[frozenset[Atom]]"
_TRUE: _Conjunctions = [frozenset()]


def alternatives_of(path: XPath) -> Alternatives:
    """The alternatives of a path."""
    exact = True
    choices: list[_Conjunctions] = []
    count = 1
    for step in path.steps:
        conjunctions, step_exact = _of_step(step, MAX_ALTERNATIVES // count)
        exact &= step_exact
        choices.append(conjunctions)
        count = max(1, count * len(conjunctions))
    paths = {_shortened(path.steps, chosen): None for chosen in product(*choices)}
    return Alternatives(list(paths), exact)


def _of_step(step: PathStep, most: int) -> tuple[_Conjunctions, bool]:
    exact = True
    conjunctions = _TRUE
    for predicate in step.predicates:
        more, predicate_exact = _conjunctions(predicate, True)
        joined = _met(conjunctions, more)
        if len(joined) > max(1, most):
            exact = False  # the predicate is left to the verification
        else:
            conjunctions, exact = joined, exact and predicate_exact
    return conjunctions, exact


def _conjunctions(predicate: Predicate, wanted: bool) -> tuple[_Conjunctions, bool]:
    """Where a predicate is as wanted; and whether exactly there."""
    match predicate:
        case Negated(operand):
            return _conjunctions(operand, not wanted)
        case AllOf(operands) | AnyOf(operands):
            parts = [_conjunctions(operand, wanted) for operand in operands]
            exact = all(part_exact for _, part_exact in parts)
            if isinstance(predicate, AnyOf) == wanted:
                return list(dict.fromkeys(one for conjunctions, _ in parts for one in conjunctions)), exact
            joined = _TRUE
            for conjunctions, _ in parts:
                met = _met(joined, conjunctions)
                if len(met) > MAX_ALTERNATIVES:
                    exact = False
                else:
                    joined = met
            return joined, exact
        case Exists(path) | Compare(path, _, _):
            flat = not any(step.predicates for step in path.steps)
            if not flat and not wanted:
                return _TRUE, False
            pattern = _pattern(path)
            if isinstance(predicate, Exists):
                return (_one(Atom(pattern, "exists"), wanted) if pattern or not wanted else _TRUE), flat
            if isinstance(predicate.value, float) and math.isnan(predicate.value):
                return ([] if wanted else _TRUE), True  # nothing compares with what is no number
            return _one(Atom(pattern, predicate.op, predicate.value), wanted), flat
        case TextTest(function, path, text):
            if not text:
                return (_TRUE if wanted else []), True
            if any(step.predicates for step in path.steps):
                return _TRUE, False  # without them, another node may be the first
            return _one(Atom(_pattern(path), function, text), wanted), True


def _one(atom: Atom, wanted: bool) -> _Conjunctions:
    return [frozenset((atom if wanted else atom._replace(negated=True),))]


def _met(left: _Conjunctions, right: _Conjunctions) -> _Conjunctions:
    return list(dict.fromkeys(one | other for one in left for other in right))


def _pattern(path: XPath) -> Pattern:
    return tuple([(step.descendant, step.test) for step in path.steps])


def _shortened(steps: tuple[PathStep, ...], chosen: tuple[frozenset[Atom], ...]) -> tuple[AtomStep, ...]:
    """The steps, those after the last that asks for anything among what that asks for, where that pays."""
    last = max((number for number, atoms in enumerate(chosen) if atoms), default=len(steps) - 1)
    own = list(chosen[: last + 1])
    if last < len(steps) - 1:
        if any(atom.op in _SELECTIVE and not atom.negated for atom in own[last]):
            own += chosen[last + 1 :]
        else:
            own[last] = own[last] | {Atom(_pattern(XPath(steps[last + 1 :])), "exists")}
    return tuple(
        AtomStep(step.descendant, step.test, tuple(sorted(atoms, key=_order)) if len(atoms) > 1 else tuple(atoms))
        for step, atoms in zip(steps, own, strict=False)
    )


_CLASSES = {"exists": 0, "=": 1, "<": 3, "<=": 3, ">": 3, ">=": 3, "contains": 4, "starts-with": 4}


def _order(atom: Atom) -> tuple[int, str]:
    """What many paths ask for comes first, what is tried one by one last."""
    class_ = 5 if atom.negated else _CLASSES.get(atom.op, 5)
    return class_ + (atom.op == "=" and isinstance(atom.value, float)), repr(atom)


_RANGES = {"=": 0, "<": 1, "<=": 2, ">": 3, ">=": 4}  # by number: how a value compares with the sorted ones
_OTHERS = {"exists": 0, "=": 1, "!=": 2, "<": 3, "<=": 4, ">": 5, ">=": 6, "contains": 7, "starts-with": 8}


class Symbols(NamedTuple):
    """What steps ask nodes to be: a name of the document, or any of a kind or a namespace."""

    names: dict[str, int]
    namespaces: dict[str, int]  # of `p:*` and `@p:*`: "{uri}" and "@{uri}"

    def of_names(self, names: Iterable[str]) -> npt.NDArray[np.int32]:
        """Of each name of a document, the up to three symbols that ask for it."""
        rows = []
        for name in names:
            attribute = name[0] == "@"
            wildcard = kernels.ANY_TEXT if name == "#text" else kernels.ANY_ATTRIBUTE if attribute else kernels.ANY
            rows.append((wildcard, self.names.get(name, -1), self.namespaces.get(_namespace(name), -1)))
        return np.array(rows, np.int32).reshape(-1, 3)


def _namespace(name: str) -> str:
    sign = "@" if name[0] == "@" else ""
    uri = name[len(sign) :].rpartition("}")[0].removeprefix("{")
    return f"{sign}{{{uri}}}"


class TrieBuilder:
    """Collects alternatives, and the numbers of the paths that have them."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._namespaces: dict[str, int] = {}
        self._symbols = kernels.FIRST_SYMBOL
        self._test_symbols: dict[NodeTest, int] = {}
        self._edges: dict[int, int] = {}  # by state, symbol and axis, in one number: the state it leads to
        self._states = 1
        self._patterns: dict[Pattern, int] = {}
        self._groups: dict[int, int] = {}  # by state and pattern
        self._exists: dict[int, int] = {}  # by group
        self._literals: dict[str, int] = {}
        self._equal: dict[int, int] = {}  # by group and literal
        self._numbers: dict[tuple[int, int, float], int] = {}  # by group, comparison and number
        self._texts: dict[tuple[int, bool, int], int] = {}  # by group, whether at the start, and literal
        self._others: dict[tuple[int, int, bool, int, float], int] = {}
        self._outputs: list[tuple[int, int]] = []  # state and path

    def add(self, path: tuple[AtomStep, ...], numbers: list[int]) -> None:
        state = 0
        for step in path:
            key = state << 32 | self._symbol(step.test) << 1 | step.descendant
            state = self._follow(self._edges, key)
            for atom in step.atoms:
                state = self._condition(state, atom)
        self._outputs += [(state, number) for number in numbers]

    def _follow(self, edges: dict[Any, int], key: Any) -> int:
        state = edges.get(key)
        if state is None:
            state = edges[key] = self._states
            self._states += 1
        return state

    def _symbol(self, test: NodeTest) -> int:
        symbol = self._test_symbols.get(test)
        if symbol is None:
            symbol = self._test_symbols[test] = self._new_symbol(test)
        return symbol

    def _new_symbol(self, test: NodeTest) -> int:
        if test.namespace is None:
            return {"element": kernels.ANY, "attribute": kernels.ANY_ATTRIBUTE, "text": kernels.ANY_TEXT}[test.kind]
        self._symbols += 1
        if test.local is None:
            sign = "@" if test.kind == "attribute" else ""
            self._namespaces[f"{sign}{{{test.namespace}}}"] = self._symbols - 1
        else:
            self._names[test.symbol] = self._symbols - 1
        return self._symbols - 1

    def _condition(self, state: int, atom: Atom) -> int:
        pattern = self._patterns.setdefault(atom.pattern, len(self._patterns))
        group = self._groups.setdefault(state << 32 | pattern, len(self._groups))
        if atom.negated or atom.op == "!=":
            literal = self._literal(atom.value) if isinstance(atom.value, str) and atom.op != "exists" else -1
            number = atom.value if isinstance(atom.value, float) else 0.0
            return self._follow(self._others, (group, _OTHERS[atom.op], atom.negated, literal, number))
        if atom.op == "exists":
            return self._follow(self._exists, group)
        if isinstance(atom.value, float):
            return self._follow(self._numbers, (group, _RANGES[atom.op], atom.value + 0.0))
        literal = self._literal(atom.value)
        if atom.op == "=":
            return self._follow(self._equal, group << 32 | literal)
        return self._follow(self._texts, (group, atom.op == "starts-with", literal))

    def _literal(self, text: str) -> int:
        return self._literals.setdefault(text, len(self._literals))

    # ------------------------------------------------------------------ arrays

    def build(self, paths: int) -> tuple[Arrays, Symbols]:
        """The arrays of the trie, over paths that are numbered up to `paths`."""
        states, groups = self._states, len(self._groups)
        flags = np.zeros(states, np.uint8)
        edge_keys = np.fromiter(self._edges, np.int64, len(self._edges))
        sources = edge_keys >> 32
        flags[sources[edge_keys & 1 == 0]] |= kernels.HAS_CHILDREN
        flags[sources[edge_keys & 1 == 1]] |= kernels.HAS_DESCENDANTS
        group_states = np.fromiter(self._groups, np.int64, groups) >> 32
        flags[group_states] |= kernels.HAS_GROUPS
        outputs = np.array(self._outputs, np.int64).reshape(-1, 2)
        flags[outputs[:, 0]] |= kernels.HAS_OUTPUTS
        # Groups are numbered as they came, so those of a state are listed: a state may get another one later.
        group_order = np.argsort(group_states, kind="stable").astype(np.int32)
        output_order = np.argsort(outputs[:, 0], kind="stable")
        several = np.bincount(outputs[:, 1], minlength=paths) > 1 if len(outputs) else np.zeros(paths, bool)
        literals = [text.encode() for text in self._literals]
        literal_ends = np.cumsum([len(text) for text in literals], dtype=np.int64).astype(np.int32)
        literal_data = np.frombuffer(bytearray().join(literals), np.uint8)
        exists = np.full(groups, -1, np.int32)
        for group, state in self._exists.items():
            exists[group] = state
        group_flags = np.zeros(groups, np.uint8)
        equal_keys = np.fromiter(self._equal, np.int64, len(self._equal))
        group_flags[equal_keys >> 32] |= kernels.HAS_EQUAL
        numbers = _Numbers(self._numbers, group_flags)
        grams = _Grams(self._texts, literals, group_flags)
        others = _Others(self._others, group_flags)
        patterns = list(self._patterns)
        arrays = Arrays(
            *kernels.hash_table(edge_keys, _targets(self._edges)),
            flags,
            _starts(group_states, states),
            group_order,
            _starts(outputs[:, 0], states),
            outputs[output_order, 1].astype(np.int32),
            several if several.any() else np.empty(0, bool),
            _ends_of([len(pattern) for pattern in patterns]),
            np.array([self._symbol(test) << 1 | down for pattern in patterns for down, test in pattern], np.int32),
            (np.fromiter(self._groups, np.int64, groups) & 0xFFFF_FFFF).astype(np.int32),
            exists,
            group_flags,
            *kernels.hash_table(equal_keys, _targets(self._equal)),
            literal_ends,
            literal_data,
            kernels.literal_table(literal_ends, literal_data),
            *numbers.arrays(groups),
            *grams.arrays(groups),
            *others.arrays(groups),
        )  # fmt: skip
        return arrays, Symbols(self._names, self._namespaces)


def _targets(edges: dict[Any, int]) -> npt.NDArray[np.int32]:
    return np.fromiter(edges.values(), np.int32, len(edges))


def _starts(numbers: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int32]:
    """Where the rows of each number start, if they are sorted by it."""
    return np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=count))]).astype(np.int32)


def _ends_of(lengths: list[int]) -> npt.NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)


class _Numbers:
    """Of each group and comparison the numbers, ascending."""

    def __init__(self, numbers: dict[tuple[int, int, float], int], flags: npt.NDArray[np.uint8]) -> None:
        rows = np.array([(group, comparison) for group, comparison, _ in numbers], np.int64).reshape(-1, 2)
        values = np.array([value for _, _, value in numbers], np.float64)
        self._keys = rows[:, 0] * len(_RANGES) + rows[:, 1]
        order = np.lexsort((values, self._keys))
        self._values = values[order]
        self._targets = _targets(numbers)[order]
        flags[rows[:, 0]] |= kernels.HAS_NUMBERS

    def arrays(self, groups: int) -> tuple[npt.NDArray[Any], ...]:
        return _starts(self._keys, groups * len(_RANGES)), self._values, self._targets


class _Grams:
    """Texts to search for, by the longest of the gram lengths that they have, and the bytes of that gram."""

    def __init__(
        self, texts: dict[tuple[int, bool, int], int], literals: list[bytes], flags: npt.NDArray[np.uint8]
    ) -> None:
        self._rows = np.array([(group, start, literal) for group, start, literal in texts], np.int64).reshape(-1, 3)
        targets = _targets(texts)
        lengths = np.array([kernels.gram_length(len(literals[literal])) for literal in self._rows[:, 2]], np.int64)
        grams = [literals[literal][:length] for literal, length in zip(self._rows[:, 2], lengths, strict=True)]
        values = np.array([int.from_bytes(gram, "little") for gram in grams], np.uint64)
        keys = kernels.gram_keys(self._rows[:, 0], self._rows[:, 1], lengths, values)
        order = np.argsort(keys, kind="stable")
        keys, self._rows, self._targets = keys[order], self._rows[order], targets[order]
        firsts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(keys) else np.empty(0, np.int64)
        self._table = kernels.hash_table(keys[firsts].view(np.int64), np.arange(len(firsts), dtype=np.int32))
        self._starts = np.append(firsts, len(keys)).astype(np.int32)
        self._masks = np.zeros((2, len(flags)), np.uint8)
        places = np.searchsorted(kernels.GRAM_LENGTHS, lengths[order])
        np.bitwise_or.at(self._masks, (self._rows[:, 1], self._rows[:, 0]), (1 << places).astype(np.uint8))
        flags[self._rows[:, 0]] |= kernels.HAS_TEXTS

    def arrays(self, groups: int) -> tuple[npt.NDArray[Any], ...]:
        return (
            *self._table, self._starts, self._rows[:, 0].astype(np.int32), self._rows[:, 1].astype(np.bool_),
            self._rows[:, 2].astype(np.int32), self._targets, self._masks,
        )  # fmt: skip


class _Others:
    """What is tried one by one."""

    def __init__(self, others: dict[tuple[int, int, bool, int, float], int], flags: npt.NDArray[np.uint8]) -> None:
        rows = list(others)
        groups = np.array([group for group, *_ in rows], np.int64)
        order = np.argsort(groups, kind="stable")
        self._groups = groups
        self._kinds = np.array([kind for _, kind, *_ in rows], np.uint8)[order]
        self._negated = np.array([negated for _, _, negated, *_ in rows], np.bool_)[order]
        self._literals = np.array([literal for *_, literal, _ in rows], np.int32)[order]
        self._numbers = np.array([number for *_, number in rows], np.float64)[order]
        self._targets = _targets(others)[order]
        flags[groups] |= kernels.HAS_OTHERS

    def arrays(self, groups: int) -> tuple[npt.NDArray[Any], ...]:
        return (
            _starts(self._groups, groups), self._kinds, self._negated, self._literals, self._numbers, self._targets,
        )  # fmt: skip
