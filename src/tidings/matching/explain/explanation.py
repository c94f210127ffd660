"""Why an event matches a filter or not, predicate by predicate.

A filter is explained as a tree of `Reason`s: what each part was worth (true, false or NULL), what
it needed to be, the values it saw, and how far off those were. Needs run through the logic: under
NOT a part has to be false, so `failing`, the least number of predicates that would have to turn
for the event to match, is a sum where all are needed and a minimum where one is enough. It is 0
exactly where the event matches.
"""

from __future__ import annotations

import json
import math
import operator
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from difflib import SequenceMatcher
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tidings.errors import EventError
from tidings.filter.meaning.interpreter import evaluate
from tidings.filter.meaning.text_casts import DAY_US
from tidings.filter.syntax.writer import literal_to_sql, name_to_sql, to_sql
from tidings.filter.tree import And, Comparison, Expression, In, Literal, Not, Or, XPathBoolean, attributes_of
from tidings.model.arrow import ArrowArray
from tidings.model.types import DataType, Path
from tidings.xml.path_meaning import read_document
from tidings.xml.path_parser import parse_path

Numbers = npt.NDArray[np.float64]

FARTHEST = 1.0
COMPARED_CHARACTERS = 200  # of two strings, when their likeness is measured
_ROUNDING = 1e-12  # more than doubles lose


def text_distance(value: str, other: str) -> float:
    if value == other:
        return FARTHEST
    likeness = SequenceMatcher(None, value[:COMPARED_CHARACTERS], other[:COMPARED_CHARACTERS], autojunk=False)
    return 1.0 - likeness.ratio()


def gap(value: Any, bound: Any) -> Decimal:
    """Between two finite numbers as they are written."""
    return abs(Decimal(str(value)) - Decimal(str(bound)))


def number_distance(value: Any, bound: Any, type_: DataType) -> float:
    """Of two finite numbers, dates or times of one type."""
    between = abs(value - bound) if type_.is_datetime else gap(value, bound)
    return 1.0 / (1.0 + float(_unit(bound, type_)) / float(between)) if between else 0.0


def _unit(bound: Any, type_: DataType) -> Any:
    if type_.is_datetime:
        return 1 if type_.name == "date" else DAY_US
    return max(1, abs(bound))


def are_finite(*values: Any) -> bool:
    return all(map(math.isfinite, values))


def number_distances(values: npt.NDArray[Any], bounds: npt.NDArray[Any], type_: DataType) -> Numbers:
    """`number_distance` of each pair; 1 where one of them is not finite."""
    if values.dtype == object:
        return np.array([number_distance(*pair, type_) for pair in _pairs(values, bounds)], np.float64)
    if not type_.is_fractional:
        # As unsigned numbers even the gap between the least and the greatest of 64 bits is exact.
        least, most = np.minimum(values, bounds), np.maximum(values, bounds)
        return _scaled((most.view(np.uint64) - least.view(np.uint64)).astype(np.float64), bounds, type_)
    finite = np.isfinite(values) & np.isfinite(bounds)
    distances = np.full(len(values), FARTHEST)
    gaps = np.array([float(gap(*pair)) for pair in _pairs(values[finite], bounds[finite])], np.float64)
    distances[finite] = _scaled(gaps, bounds[finite], type_)
    return distances


def least_number_distances(values: npt.NDArray[Any], bounds: npt.NDArray[Any], type_: DataType) -> Numbers:
    """The same without a look at how numbers are written: as near as doubles are."""
    if not type_.is_fractional:
        return number_distances(values, bounds, type_)
    values, bounds = values.astype(np.float64), bounds.astype(np.float64)
    finite = np.isfinite(values) & np.isfinite(bounds)
    with np.errstate(all="ignore"):
        near = _scaled(np.abs(values - bounds), bounds, type_)
    return np.where(finite, np.maximum(0.0, near - _ROUNDING), FARTHEST)


def _scaled(gaps: Numbers, bounds: npt.NDArray[Any], type_: DataType) -> Numbers:
    units = float(_unit(0, type_)) if type_.is_datetime else np.maximum(1.0, np.abs(bounds.astype(np.float64)))
    with np.errstate(all="ignore"):
        return np.asarray(1.0 / (1.0 + units / gaps))  # of a gap of 0, 0


def text_distances(values: Iterable[str], others: Iterable[str]) -> Numbers:
    """`text_distance` of each pair."""
    known: dict[tuple[str, str], float] = {}
    found = []
    for pair in zip(values, others, strict=True):
        if pair not in known:
            known[pair] = text_distance(*pair)
        found.append(known[pair])
    return np.array(found, np.float64)


def least_text_distances(value: str, others: ArrowArray) -> Numbers:
    """What the characters that two texts have in common leave, in whatever order they stand."""
    value, others = value[:COMPARED_CHARACTERS], pc.utf8_slice_codeunits(others, 0, COMPARED_CHARACTERS)
    common = np.zeros(len(others), np.int64)
    for character, count in Counter(value).items():
        found: ArrowArray = pc.count_substring(others, character)
        common += np.minimum(count, found.to_numpy(zero_copy_only=False))
    length: ArrowArray = pc.utf8_length(others)
    lengths = len(value) + length.to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        return np.where(lengths > 0, 1.0 - 2.0 * common / lengths, 0.0)


def _pairs(values: npt.NDArray[Any], bounds: npt.NDArray[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(values.tolist(), bounds.tolist(), strict=True)


WIDTH = 80  # columns of the terminal that explanations are printed for
SHOWN_CHARACTERS = 200  # of a value, which every predicate of a filter repeats
SHOWN_ITEMS = 20  # of an array
MAX_INDENT = 16  # deeper than that, depth no longer shows

_MARKS = {True: "✓", False: "✗", None: "?"}
_MICROSECONDS = ((DAY_US, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"))


@dataclass(frozen=True, slots=True)
class Reason:
    """One part of a filter: what it was worth for the event, and why."""

    kind: str  # "predicate", "all of", "any of" or "not"
    expression: Expression
    outcome: bool | None  # None is NULL
    failing: int  # predicates that stand between this part and what it had to be
    distance: float  # how far those are off, each from 0 to 1
    detail: str = ""  # of a predicate: the values it saw, and how far off they are
    branches: tuple[Reason, ...] = ()

    @property
    def text(self) -> str:
        """This part as SQL, for reading."""
        return to_sql(self.expression, typed=False)

    def to_dict(self) -> dict[str, Any]:
        own: dict[str, Any] = {"kind": self.kind, "filter": self.text, "outcome": self.outcome}
        if self.detail:
            own["detail"] = self.detail
        if self.branches:
            own["parts"] = [branch.to_dict() for branch in self.branches]
        return own


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an event matches a subscription's filter or not; `print` it, or take `to_dict()`."""

    subscription: str | int | None
    text: str
    reason: Reason

    @property
    def matches(self) -> bool:
        return self.reason.outcome is True

    @property
    def failing(self) -> int:
        """The least number of predicates that would have to turn for the event to match."""
        return self.reason.failing

    @property
    def distance(self) -> float:
        """How far those predicates are off, the sum of a number from 0 to 1 for each."""
        return self.reason.distance

    def to_dict(self) -> dict[str, Any]:
        return {
            "subscription": self.subscription,
            "filter": self.text,
            "matches": self.matches,
            "failing": self.failing,
            "distance": round(self.distance, 6),
            "reason": self.reason.to_dict(),
        }

    def __str__(self) -> str:
        whose = (
            "" if self.subscription is None else f" subscription {json.dumps(self.subscription, ensure_ascii=False)}"
        )
        verdict = "matches" if self.matches else "does not match"
        because = "" if self.matches else f": {_count(self.failing, 'predicate')} short"
        head = f"{_MARKS[self.reason.outcome]} {verdict}{whose}{because}"
        return "\n".join([head, *_lines(self.reason, 1)])


def explain(
    expression: Expression,
    record: Mapping[Path, Any],
    *,
    subscription: str | int | None = None,
    text: str | None = None,
) -> Explanation:
    """Explain what a filter makes of a record, whose values are those of `tidings.model.types`."""
    return Explanation(
        subscription, to_sql(expression, typed=False) if text is None else text, _reason(expression, record, True)
    )


def _reason(expression: Expression, record: Mapping[Path, Any], needed: bool) -> Reason:
    match expression:
        case And(operands) | Or(operands):
            return _joined(expression, tuple(_reason(operand, record, needed) for operand in operands), needed)
        case Not(And() | Or() | Not() as operand):
            inner = _reason(operand, record, not needed)
            outcome = None if inner.outcome is None else not inner.outcome
            return Reason("not", expression, outcome, inner.failing, inner.distance, branches=(inner,))
        case _:
            return _predicate(expression, record, needed)


def _joined(expression: And | Or, branches: tuple[Reason, ...], needed: bool) -> Reason:
    outcomes = [branch.outcome for branch in branches]
    conjunction = isinstance(expression, And)
    decisive = not conjunction  # one operand of this value decides, whatever the others are
    outcome = decisive if decisive in outcomes else None if None in outcomes else not decisive
    if conjunction == needed:
        failing = sum(branch.failing for branch in branches)
        distance = reduce(operator.add, (branch.distance for branch in branches))  # `sum` rounds by Python's version
    else:
        failing, distance = min((b.failing, b.distance) for b in branches)
    kind = "all of" if conjunction else "any of"
    return Reason(kind, expression, outcome, failing, distance, branches=branches)


def _predicate(expression: Expression, record: Mapping[Path, Any], needed: bool) -> Reason:
    outcome = evaluate(expression, record)
    assert outcome is None or isinstance(outcome, bool)
    off, distance = ("", 0.0) if outcome is needed else _off(expression, record)
    path = expression.operand if isinstance(expression, Not) else expression
    if isinstance(path, XPathBoolean):
        return Reason("predicate", expression, outcome, int(outcome is not needed), distance, _reached(path, record))
    values = ", ".join(_values(expression, record))
    detail = f"{values}: {off}" if values and off else values or off
    return Reason("predicate", expression, outcome, int(outcome is not needed), distance, detail)


def _reached(predicate: XPathBoolean, record: Mapping[Path, Any]) -> str:
    """How far into a document a path leads: the document itself would say less."""
    document, text = evaluate(predicate.operand, record), evaluate(predicate.path, record)
    name = to_sql(predicate.operand, typed=False)
    if document is None:
        return f"{name} is NULL"
    try:
        path, read = parse_path(text), read_document(document)
    except EventError as error:
        return f"{name}: {error.reason}"
    reached = read.reached(path)
    if reached == len(path.steps):
        return f"selects {_count(len(read.select(path)), 'node')}"
    starts = [step.at - 1 for step in path.steps]  # of steps in the text
    missing = text[starts[reached] : starts[reached + 1] if reached + 1 < len(starts) else None].rstrip("/")
    return f"no {missing} " + (f"below {text[: starts[reached]].rstrip('/')}" if reached else "in the document")


def _values(expression: Expression, record: Mapping[Path, Any]) -> list[str]:
    """Each attribute of a predicate with its value, once."""
    references = {reference.path: reference for reference in attributes_of(expression)}
    return [
        f"{name_to_sql(path)} is {_shown(evaluate(reference, record), reference.type)}"
        for path, reference in references.items()
    ]


def _shown(value: Any, type_: DataType) -> str:
    """A value for reading: as a literal, but without what only gives its type."""
    if value is None:
        return "NULL"
    if type_.element is not None:
        more = [f"… {len(value):,} in all"] if len(value) > SHOWN_ITEMS else []
        return "[" + ", ".join([*(_shown(item, type_.element) for item in value[:SHOWN_ITEMS]), *more]) + "]"
    if type_.name == "string" and len(value) > SHOWN_CHARACTERS:
        return literal_to_sql(value[:SHOWN_CHARACTERS], type_) + f"… of {len(value):,} characters"
    if type_.is_datetime:
        return literal_to_sql(value, type_).split("'")[1]
    return literal_to_sql(value, type_, typed=False)


def _off(expression: Expression, record: Mapping[Path, Any]) -> tuple[str, float]:
    """How far a failing predicate is from turning: in words, and as a number from 0 to 1."""
    match expression:
        case Not(operand):
            return _off(operand, record)
        case Comparison(op, left, right):
            return _difference(left, right, record, wanted=op in ("=", "<=>"))
        case In(operand, items):
            off, distance = min(
                (_difference(operand, item, record, wanted=False) for item in items), key=lambda pair: pair[1]
            )
            return (f"nearest, {off}" if off and distance else ""), distance
        case _:
            return "", FARTHEST


def _difference(left: Expression, right: Expression, record: Mapping[Path, Any], *, wanted: bool) -> tuple[str, float]:
    """The difference of two operands, seen from the side that varies with the event.

    `wanted` says that the other side is the value that was asked for, and not only a bound.
    """
    if isinstance(left, Literal) and not isinstance(right, Literal):
        left, right = right, left
    value, other, type_ = evaluate(left, record), evaluate(right, record), left.type
    if value is None or other is None:
        return "", FARTHEST
    if type_.name == "string":
        told = f"wanted {_shown(other, type_)}" if wanted and value != other else ""
        return told, text_distance(str(value), str(other))
    if (type_.is_numeric or type_.is_datetime) and are_finite(value, other):
        return _number_difference(value, other, type_), number_distance(value, other, type_)
    return "", FARTHEST


def _number_difference(value: Any, bound: Any, type_: DataType) -> str:
    shown = _shown(bound, type_)
    if value == bound:
        return f"exactly {shown}"
    if type_.name == "date":
        told = f"{abs(value - bound):,} d"
    elif type_.is_datetime:
        told = _duration(abs(value - bound))
    else:
        off = gap(value, bound)
        told = f"{off:f}" if Decimal("1E-9") < off < Decimal("1E+15") else f"{off:.6g}"
    before, after = ("before", "after") if type_.is_datetime else ("below", "above")
    return f"{told} {before if value < bound else after} {shown}"


def _duration(microseconds: int) -> str:
    """A length of time in its two greatest units."""
    parts = []
    for size, unit in _MICROSECONDS:
        count, microseconds = divmod(microseconds, size)
        if count:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2]) or f"{microseconds} µs"


def _lines(reason: Reason, level: int) -> list[str]:
    indent = "  " * min(level, MAX_INDENT)
    if reason.kind == "predicate":
        return _predicate_lines(reason, indent)
    holding = [str(number) for number, branch in enumerate(reason.branches, 1) if branch.outcome]
    branches = "branch" if len(holding) == 1 else "branches"
    note = f" ({branches} {', '.join(holding)} held)" if reason.kind == "any of" and holding else ""
    head = f"{indent}{_MARKS[reason.outcome]} {reason.kind}{note}"
    return [head, *(line for branch in reason.branches for line in _lines(branch, level + 1))]


def _predicate_lines(reason: Reason, indent: str) -> list[str]:
    mark = f"{indent}{_MARKS[reason.outcome]} "
    for line in (f"{reason.text:<{max(0, 33 - len(indent))}}  {reason.detail}", f"{reason.text}  {reason.detail}"):
        if len(mark + line.rstrip()) <= WIDTH:
            return [mark + line.rstrip()]
    return [
        *_wrapped(reason.text, mark, indent + "  "),
        *_wrapped(reason.detail, indent + "    ", indent + "    "),
    ]


def _wrapped(text: str, first: str, following: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=following, break_on_hyphens=False, replace_whitespace=False
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
