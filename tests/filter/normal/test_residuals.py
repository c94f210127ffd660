"""Residuals as templates with columns of literals: what goes in comes out, and each once."""

from __future__ import annotations

import numpy as np

from tidings.filter.normal.residuals import NO_RESIDUALS, ResidualBuilder
from tidings.filter.syntax.parser import parse_filter
from tidings.model.domain import Attribute, Domain

DOMAIN = Domain("test", [Attribute("a", "double"), Attribute("e", "decimal(10,2)"), Attribute("s", "string")])
TEXTS = [
    "a > 2 * a + 1.5", "a > 2 * a + 2.5", "a > 2 * a + 1.5", "e + 1.25 > a", "e + 2.5 > a", "s LIKE '%x%'",
    "s LIKE '%y%'", "s RLIKE 'x' OR NOT lower(s) LIKE 'y'", "lower(s) = 'x'", "lower(s) = 'y'",
    "a + 1 > e AND length(s) = 3", "a + 1 = NULL", "(s LIKE 'a%b') = (s RLIKE 'c')",
    "lower(s) IN ('x', NULL, 'z')", "lower(s) = 'x'",
]  # fmt: skip
TREES = [parse_filter(text, DOMAIN) for text in TEXTS]


def test_each_residual_comes_out_as_it_went_in_and_once() -> None:
    builder = ResidualBuilder()
    added = [builder.add(tree) for tree in TREES]
    residuals, renumbered = builder.build()
    assert [residuals[renumbered[number]] for number in added] == TREES
    assert len(residuals) == len(set(residuals)) == len(set(TREES))


def test_residuals_that_differ_in_literals_alone_share_a_template_of_typed_columns() -> None:
    builder = ResidualBuilder()
    for tree in TREES[:3] + TREES[8:10]:
        builder.add(tree)
    residuals, _ = builder.build()
    columns = {template.tree: template.literals for template in residuals.templates}
    assert sorted(column.dtype.char for literals in columns.values() for column in literals) == ["O", "d", "d"]
    assert sorted(len(literals[0]) for literals in columns.values()) == [2, 2]


def test_some_residuals_of_a_table_are_taken_over_by_another() -> None:
    builder = ResidualBuilder()
    for tree in TREES:
        builder.add(tree)
    residuals, _ = builder.build()
    other = ResidualBuilder()
    first = other.add(TREES[8])
    chosen = np.arange(1, len(residuals), 2)
    taken = other.add_all(residuals, chosen)
    joined, renumbered = other.build()
    assert [joined[renumbered[number]] for number in taken] == [residuals[number] for number in chosen]
    assert joined[renumbered[first]] == TREES[8]
    assert len(joined) == len({*residuals[1::2], TREES[8]})


def test_there_may_be_none() -> None:
    residuals, renumbered = ResidualBuilder().build()
    assert len(residuals) == len(renumbered) == len(NO_RESIDUALS) == 0
    assert len(ResidualBuilder().add_all(NO_RESIDUALS, np.empty(0, np.int64))) == 0
