"""Whether Spark, the interpreter and the matcher say the same of the same filters and events.

The interpreter must give Spark's result, true, false or NULL, for every pair, except those
where Spark raises an error. The matcher must match exactly where the interpreter says true.
What differs by design is listed here, and nowhere else left out of the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from tidings.errors import FilterError
from tidings.filter.meaning.interpreter import evaluate
from tidings.filter.syntax.parser import parse_filter
from tidings.filter.syntax.writer import to_sql
from tidings.filter.tree import Cast, Comparison, Expression, IsNull, Literal, attributes_of, operands_of
from tidings.model.event import read_events
from tidings.model.types import BIGINT, BOOLEAN, Path
from tidings.testing.random_cases import Case
from tidings.testing.spark_judge import FALSE, NULL, RAISED, TRUE, Verdict, spark_truth

MatchPairs = Callable[[Sequence[tuple[int, str]], Case], "set[tuple[int, int]]"]

_OUTCOME = {True: TRUE, False: FALSE, None: NULL}
_NAME = {TRUE: "true", FALSE: "false", NULL: "NULL", RAISED: "an error"}
# Refused here, an error at run time in Spark: a literal that does not read as the type it is compared with, and a
# pattern that is not one.
_REFUSED_EARLIER = (" is not a ", "cannot read the pattern")


@dataclass(frozen=True)
class Disagreement:
    filter: str
    event: dict[str, Any]  # what the filter mentions of it
    says: str

    def __str__(self) -> str:
        return f"filter  {self.filter}\nevent   {self.event}\n{self.says}"


@dataclass
class AgreementTally:
    """Counts, and what was not as it should be."""

    filters: int = 0
    pairs: int = 0
    true: int = 0
    null: int = 0
    raised: int = 0  # pairs on which Spark raises an error; out of the comparison with it
    listed: int = 0  # pairs that differ by design
    refused: int = 0  # filters that both refuse, or that are refused here before they raise in Spark
    disagreements: list[Disagreement] = field(default_factory=list)

    def add(self, other: AgreementTally) -> None:
        for name in ("filters", "pairs", "true", "null", "raised", "listed", "refused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.disagreements += other.disagreements


def compare(
    spark: SparkSession, case: Case, *, match: MatchPairs | None = None, compiled: bool = True
) -> AgreementTally:
    """Judge every filter of a case on every event, three times over."""
    tally = AgreementTally(filters=len(case.filters))
    verdict = spark_truth(spark, case.domain, case.events, case.filters, compiled=compiled)
    trees: dict[int, Expression] = {}
    for number, text in enumerate(case.filters):
        tree = _parse(number, text, case, verdict, tally)
        if tree is not None:
            trees[number] = tree
    batch = read_events(case.events, case.domain)
    records = [batch.record(i) for i in range(batch.count)]
    ours = {number: [evaluate(tree, record) for record in records] for number, tree in trees.items()}
    for number, tree in trees.items():
        _judge(number, tree, ours[number], records, case, verdict, tally)
    if match is not None:
        _judge_matcher(match, trees, ours, case, tally)
    return tally


def smallest(
    spark: SparkSession, case: Case, disagreements: list[Disagreement], *, match: MatchPairs | None = None
) -> Disagreement:
    """The disagreement with the shortest filter, or a part of that filter on which they disagree too."""
    shortest = min(disagreements, key=lambda disagreement: len(disagreement.filter))
    try:
        tree = parse_filter(shortest.filter, case.domain)
    except FilterError:
        return shortest
    parts = {to_sql(node) for node in _nodes(tree) if node.type == BOOLEAN and node != tree}
    found = compare(spark, Case(case.domain, [shortest.event], sorted(parts)), match=match).disagreements
    return min([shortest, *found], key=lambda disagreement: (len(disagreement.filter), len(disagreement.event)))


def _parse(number: int, text: str, case: Case, verdict: Verdict, tally: AgreementTally) -> Expression | None:
    """The tree of a filter that both accept."""
    refusal = verdict.refusals.get(number)
    try:
        tree = parse_filter(text, case.domain)
    except FilterError as error:
        if refusal is None and not any(reason in str(error) for reason in _REFUSED_EARLIER):
            tally.disagreements.append(Disagreement(text, {}, f"Spark accepts the filter; Tidings does not: {error}"))
        tally.refused += 1
        return None
    if refusal is not None:
        tally.disagreements.append(Disagreement(text, {}, f"Tidings accepts the filter; Spark does not: {refusal}"))
        return None
    return tree


def _judge(
    number: int,
    tree: Expression,
    ours: list[bool | None],
    records: list[Any],
    case: Case,
    verdict: Verdict,
    tally: AgreementTally,
) -> None:
    theirs = verdict.outcomes[number]
    answers = np.array([_OUTCOME[answer] for answer in ours], np.uint8)
    tally.pairs += len(theirs)
    tally.true += int((theirs == TRUE).sum())
    tally.null += int((theirs == NULL).sum())
    tally.raised += int((theirs == RAISED).sum())
    for i in np.flatnonzero((theirs != answers) & (theirs != RAISED)):
        if _is_listed(tree, records[i]):
            tally.listed += 1
            continue
        says = f"Spark says {_NAME[int(theirs[i])]}, the interpreter {_NAME[int(answers[i])]}"
        tally.disagreements.append(Disagreement(case.filters[number], _mentioned(tree, case.events[i]), says))


def _judge_matcher(
    match: MatchPairs,
    trees: dict[int, Expression],
    ours: dict[int, list[bool | None]],
    case: Case,
    tally: AgreementTally,
) -> None:
    found = match([(number, case.filters[number]) for number in ours], case)
    wanted = {(i, number) for number, answers in ours.items() for i, answer in enumerate(answers) if answer is True}
    for i, number in sorted(found ^ wanted):
        says = "the matcher " + ("misses this match" if (i, number) in wanted else "matches, the interpreter does not")
        tally.disagreements.append(Disagreement(case.filters[number], _mentioned(trees[number], case.events[i]), says))


def _mentioned(tree: Expression, event: Mapping[str, Any]) -> dict[str, Any]:
    """The event with only those attributes that the filter speaks of."""
    kept: dict[str, Any] = {}
    for attribute in attributes_of(tree):
        held: Any = event
        place = kept
        for part in attribute.path[:-1]:
            held = held.get(part) or {}
            place = place.setdefault(part, {})
        if attribute.path[-1] in held:
            place[attribute.path[-1]] = held[attribute.path[-1]]
    return kept


def _is_listed(tree: Expression, record: Mapping[Path, Any]) -> bool:
    """Whether the pair meets a difference that the manual lists."""
    return any(_is_beyond_bigint(node, record) or _is_null_of_constants(node) for node in _nodes(tree))


def _is_beyond_bigint(node: Expression, record: Mapping[Path, Any]) -> bool:
    """An integer against a decimal literal beyond bigint, as in `n < 9223372036854775808`.

    Spark puts true or false for it without looking at `n`, also where `n` is NULL.
    """
    if not isinstance(node, Comparison) or node.op not in ("<", "<=", ">", ">="):
        return False
    least, greatest = BIGINT.integer_range
    return any(
        isinstance(side, Cast)
        and side.operand.type.is_integral
        and isinstance(other, Literal)
        and isinstance(other.value, Decimal)
        and not least <= other.value <= greatest
        and evaluate(side.operand, record) is None
        for side, other in ((node.left, node.right), (node.right, node.left))
    )


def _is_null_of_constants(node: Expression) -> bool:
    """IS NULL of a calculation with literals alone: Spark decides without calculating, so it meets no error."""
    return isinstance(node, IsNull) and not any(attributes_of(node.operand)) and evaluate(node.operand, {}) is None


def _nodes(tree: Expression) -> Iterator[Expression]:
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(operands_of(node))
