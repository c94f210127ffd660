"""A path as alternatives in which every step asks for a conjunction of atoms.

A path holds where it selects anything, so `/a[x or y]/b` holds where `/a[x]/b` or `/a[y]/b` does: OR becomes
alternatives, NOT is pushed down to the atoms. Likewise `/a[x < 5]/b/c` holds where `/a[x < 5][b/c]` does. A node
may satisfy many such ranges, each with its own steps after it in a trie; so what follows the last step with
predicates becomes one more of them, and comes first. It stays as it is where one of them, an equality or a text
to be found, is satisfied by few nodes anyway.

What no atom can say (predicates in the paths of predicates) is weakened: the alternatives then hold wherever the
path does, and the path is to be verified.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple, TypeAlias

from tidings.xml.path_tree import All, Any, Compare, Exists, Not, Path, Predicate, Step, Test, TextTest

MAX_ALTERNATIVES = 16

_SELECTIVE = ("=", "contains", "starts-with")

Pattern: TypeAlias = tuple[tuple[bool, Test], ...]  # of a path in a predicate, its axes and tests


class Atom(NamedTuple):
    """One condition on a node. `op` is "exists", a comparison, "contains" or "starts-with"."""

    pattern: Pattern
    op: str
    value: str | float = ""
    negated: bool = False


class AtomStep(NamedTuple):
    descendant: bool
    test: Test
    atoms: tuple[Atom, ...]


class Alternatives(NamedTuple):
    paths: list[tuple[AtomStep, ...]]  # none: it never holds
    exact: bool  # else they only bring candidates


_Conjunctions: TypeAlias = "list[frozenset[Atom]]"
_TRUE: _Conjunctions = [frozenset()]


def alternatives_of(path: Path) -> Alternatives:
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


def _of_step(step: Step, most: int) -> tuple[_Conjunctions, bool]:
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
        case Not(operand):
            return _conjunctions(operand, not wanted)
        case All(operands) | Any(operands):
            parts = [_conjunctions(operand, wanted) for operand in operands]
            exact = all(part_exact for _, part_exact in parts)
            if isinstance(predicate, Any) == wanted:
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


def _pattern(path: Path) -> Pattern:
    return tuple([(step.descendant, step.test) for step in path.steps])


def _shortened(steps: tuple[Step, ...], chosen: tuple[frozenset[Atom], ...]) -> tuple[AtomStep, ...]:
    """The steps, those after the last that asks for anything among what that asks for, where that pays."""
    last = max((number for number, atoms in enumerate(chosen) if atoms), default=len(steps) - 1)
    own = list(chosen[: last + 1])
    if last < len(steps) - 1:
        if any(atom.op in _SELECTIVE and not atom.negated for atom in own[last]):
            own += chosen[last + 1 :]
        else:
            own[last] = own[last] | {Atom(_pattern(Path(steps[last + 1 :])), "exists")}
    return tuple(
        AtomStep(step.descendant, step.test, tuple(sorted(atoms, key=_order)) if len(atoms) > 1 else tuple(atoms))
        for step, atoms in zip(steps, own, strict=False)
    )


_CLASSES = {"exists": 0, "=": 1, "<": 3, "<=": 3, ">": 3, ">=": 3, "contains": 4, "starts-with": 4}


def _order(atom: Atom) -> tuple[int, str]:
    """What many paths ask for comes first, what is tried one by one last."""
    class_ = 5 if atom.negated else _CLASSES.get(atom.op, 5)
    return class_ + (atom.op == "=" and isinstance(atom.value, float)), repr(atom)
