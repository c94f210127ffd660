"""Which filters of a table never or always match, which are the same, and which imply another.

Sound: what is reported holds for every event, missing values included. It is proved on normal forms:
one filter implies another if every box of it lies within a box of the other.

Complete for that proof, and not beyond it. Missed are

- a box that only several boxes of the other cover together;
- residuals that imply each other in other words: they are compared by their normal text;
- sets of more than 64 intervals, and bounds next to the least of 64 bits, as what covers;
- a filter whose search takes more than its budget: those are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidings.filter.normal.filter_table import FilterTable
from tidings.matching.analysis.rectangle_forest import BUDGET, NONE, UNDECIDED, Forest, forest_of
from tidings.matching.analysis.rectangles import Numbers, Rectangles, rectangles_of, same_boxes


@dataclass(frozen=True, eq=False)
class Questions:
    """What is left to search for once a table is laid out: each of `filters` may imply another."""

    forest: Forest
    first: Numbers  # of each filter the first that is the same
    filters: Numbers
    never: npt.NDArray[np.int32]
    always: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Covering:
    """What holds of the filters of a table.

    Filters that always match imply each other and are implied by all: they are listed, and left out of the rest.
    """

    never: npt.NDArray[np.int32]
    always: npt.NDArray[np.int32]
    first: Numbers  # of each filter the first that is equivalent to it: itself if none before it is
    coverer: Numbers  # of each filter one that it implies, and that implies no other; NONE if there is no such filter
    undecided: npt.NDArray[np.bool_]  # whose search the budget ended

    @property
    def equivalent(self) -> Numbers:
        """The filters that repeat an earlier one."""
        return np.flatnonzero(self.first != np.arange(len(self.first)))

    @property
    def covered(self) -> Numbers:
        return np.flatnonzero(self.coverer != NONE)


def questions_of(table: FilterTable, owners: Numbers | None = None) -> Questions:
    """Lay a table out; with owners, only filters of the same owner are compared."""
    rectangles: Rectangles = rectangles_of(table, owners)
    first = same_boxes(rectangles)
    kept = first == np.arange(table.count)
    kept[table.always] = False
    kept[table.never] = False
    kept[[row for row, _ in table.rejects]] = False
    return Questions(forest_of(rectangles, kept), first, np.flatnonzero(kept), table.never, table.always)


def answered(questions: Questions, containers: Numbers) -> Covering:
    """What follows from the results of `Forest.containers` for the questions, in their order."""
    count = len(questions.first)
    undecided = np.zeros(count, bool)
    undecided[questions.filters[containers == UNDECIDED]] = True
    parent = np.arange(count)
    known = containers >= 0
    parent[questions.filters[known]] = containers[known]
    for _ in range(count.bit_length()):  # each step halves the way to one that implies no other
        parent = parent[parent]
    first = questions.first.copy()
    special = np.zeros(count, bool)
    special[questions.always] = True
    first[special] = np.flatnonzero(special)
    coverer = np.where(parent == np.arange(count), NONE, parent)[first]
    return Covering(questions.never, questions.always, first, coverer, undecided[first])


def covering(table: FilterTable, owners: Numbers | None = None, *, budget: int = BUDGET) -> Covering:
    """All of it, in this process."""
    questions = questions_of(table, owners)
    return answered(questions, questions.forest.containers(questions.filters, budget=budget))
