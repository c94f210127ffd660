"""Decide what engines leave open: the residuals of the pairs they found.

Engines find outputs. One below the number of filters is a slot, and holds; one past it
names an entry that asks for more: a residual, which is evaluated over the events' columns. A
residual that many events of a stretch ask for is evaluated once for each event and looked up by
the pairs; others are evaluated pair by pair, all that differ only in their literals together.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.filter.meaning.interpreter import holds
from tidings.filter.normal.residuals import Residuals
from tidings.filter.syntax.parser import parse_filter
from tidings.kernels.decorator import kernel
from tidings.matching.batch_columns import Columns, Mask
from tidings.matching.engines.entries import Entries, Residual
from tidings.matching.engines.event_codes import Encoded
from tidings.matching.engines.found_pairs import Pairs, Runs
from tidings.matching.evaluation import true_rows
from tidings.model.arrow import ArrowArray
from tidings.model.event_values import FieldValue
from tidings.model.types import Path

Numbers = npt.NDArray[np.int64]

_WORTH_ALL = 0.25  # of the events ask for a residual: then it is evaluated for all
_FEW = 4  # events, for which a residual is interpreted: columns are worth their overhead only for more


filter_tree = lru_cache(maxsize=4096)(parse_filter)  # of the filters that are evaluated whole


@dataclass(frozen=True, slots=True)
class Asking:
    """The entries with a residual, by number: output `slots` + i is that of entry i."""

    slots: int  # how many filters there are
    slot_of: npt.NDArray[np.int32]
    residual_of: npt.NDArray[np.int32]
    plain: Residuals  # numbered first
    others: tuple[Residual, ...]  # that are more than an expression
    template_of: npt.NDArray[np.int32]  # of each residual; -1: one of the others
    rechecked: Mask  # residuals for which the whole filter is evaluated

    @property
    def bytes(self) -> int:
        """But for the residuals' trees."""
        return self.slot_of.nbytes + self.residual_of.nbytes

    def __len__(self) -> int:
        return len(self.slot_of)


def asking_of(entries: Entries, slots: int) -> tuple[Asking, npt.NDArray[np.int32]]:
    """The entries that ask for more, and the outputs of all entries."""
    asking = np.flatnonzero(entries.residual_of >= 0)
    outputs = entries.slots.copy()
    outputs[asking] = slots + np.arange(len(asking))
    plain, others = entries.plain, entries.residuals
    template_of = np.concatenate([plain.template_of, np.full(len(others), -1, np.int32)])
    rechecked = np.array([False] * len(plain) + [residual.recheck for residual in others], bool)
    return (
        Asking(slots, entries.slots[asking], entries.residual_of[asking], plain, others, template_of, rechecked),
        outputs,
    )


class ResidualDecision:
    """What is decided of one stretch of events."""

    def __init__(self, asking: Asking, columns: Columns, encoded: Encoded, texts: ArrowArray) -> None:
        self._asking = asking
        self._columns = columns
        self._encoded = encoded
        self._texts = texts  # of the filters, by slot
        self._row_of = np.full(len(asking.rechecked), -1, np.int32)  # of residuals evaluated for all events, in truths
        self._truths = np.empty((encoded.count, 0), bool)  # event by event: an event asks for many

    def settle(self, pairs: Pairs, runs: Runs, start: int, events: int) -> None:
        """Leave what holds, with slots for outputs; events are numbered from `start`."""
        asking, odd = self._asking, self._encoded.odd[start : start + events]
        runs.starts[runs.runs] = runs.count
        self._evaluate_what_many_ask(pairs, runs, events)
        left_events, left_slots, left_residuals = (np.empty(pairs.count + runs.count, np.int32) for _ in range(3))
        truths = self._truths[start : start + events]
        pairs.count, left = _settle_pairs(
            pairs.events[: pairs.count], pairs.outputs, odd, asking.slots, asking.slot_of, asking.residual_of,
            self._row_of, truths, left_events, left_slots, left_residuals,
        )  # fmt: skip
        runs.count, left = _settle_runs(
            runs.events[: runs.runs], runs.starts, runs.outputs, odd, asking.slots, asking.slot_of, asking.residual_of,
            self._row_of, truths, left_events, left_slots, left_residuals, left,
        )  # fmt: skip
        if left:
            at, slots = left_events[:left].astype(np.int64), left_slots[:left]
            residuals = left_residuals[:left].astype(np.int64)
            residuals[(residuals >= 0) & asking.rechecked[residuals]] = -1
            decided = self._decided(at + start, slots, residuals)
            pairs.add(at[decided], slots[decided])

    def _evaluate_what_many_ask(self, pairs: Pairs, runs: Runs, events: int) -> None:
        """Evaluate the residuals for all events that so many of these ask for that it is worth it."""
        open_ = (self._row_of < 0) & ~self._asking.rechecked
        if not open_.any():
            return
        asked = np.zeros(len(open_), np.int64)
        for outputs in (pairs.outputs[: pairs.count], runs.outputs[: runs.count]):
            _count_asked(outputs, self._asking.slots, self._asking.residual_of, asked)
        fresh = np.flatnonzero(open_ & (asked >= max(1.0, _WORTH_ALL * events)))
        if not len(fresh):
            return
        few = self._encoded.count <= _FEW
        everyone = np.arange(self._encoded.count)
        rows = [self._interpreted(number) if few else self._one_holds(number, everyone) for number in fresh.tolist()]
        self._row_of[fresh] = self._truths.shape[1] + np.arange(len(fresh))
        self._truths = np.hstack([self._truths, np.stack(rows, axis=1)])

    def _decided(self, rows: Numbers, slots: npt.NDArray[np.int32], residuals: Numbers) -> Mask:
        """Which pairs hold, of a row and a residual each; -1: the filter is to be evaluated whole."""
        decided = np.ones(len(rows), bool)
        templates = np.where(residuals >= 0, self._asking.template_of[residuals], -1)
        for group in _groups(templates):
            decided[group] = self._template_holds(int(templates[group[0]]), residuals[group], rows[group])
        for group in _groups(np.where(templates < 0, residuals, -1)):
            decided[group] = self._one_holds(int(residuals[group[0]]), rows[group])
        for group in _groups(np.where(residuals < 0, slots, -1)):
            tree = filter_tree(self._texts[int(slots[group[0]])].as_py(), self._columns.batch.domain)
            decided[group] = true_rows(tree, self._columns, rows[group])
        return decided

    def _template_holds(self, template: int, residuals: Numbers, rows: Numbers) -> Mask:
        plain = self._asking.plain
        tree, literals = plain.templates[template].tree, plain.templates[template].literals
        return true_rows(tree, self._columns, rows, [values[plain.row_of[residuals]] for values in literals])

    def _interpreted(self, number: int) -> Mask:
        plain = self._asking.plain
        if number >= len(plain):
            return self._one_holds(number, np.arange(self._encoded.count))
        tree = plain[number]
        return np.array([holds(tree, record) for record in self._records])

    @cached_property
    def _records(self) -> list[dict[Path, FieldValue]]:
        batch = self._columns.batch
        return [batch.record(event) for event in range(batch.count)]

    def _one_holds(self, number: int, rows: Numbers) -> Mask:
        plain = self._asking.plain
        if number < len(plain):
            return true_rows(plain[number], self._columns, rows)
        residual = self._asking.others[number - len(plain)]
        inside = np.ones(len(rows), bool)
        for membership in residual.memberships:
            codes = self._encoded.codes[rows, membership.attribute]
            place = np.searchsorted(membership.lows, codes, side="right") - 1
            inside &= (place >= 0) & (codes <= membership.highs[np.maximum(place, 0)])
        if residual.expression is not None and inside.any():
            inside[inside] = true_rows(residual.expression, self._columns, rows[inside])
        return inside


@kernel
def _count_asked(outputs: Any, slots: Any, residual_of: Any, asked: Any) -> None:
    for i in range(np.uint64(len(outputs))):
        if outputs[i] >= slots:
            asked[np.uint64(residual_of[np.uint64(outputs[i] - slots)])] += 1


# These two are one rule, written out twice: a function of so many arrays costs more than what it would do.


@kernel
def _settle_pairs(
    events: Any, outputs: Any, odd: Any, slots: Any, slot_of: Any, residual_of: Any, row_of: Any, truths: Any,
    left_events: Any, left_slots: Any, left_residuals: Any,
) -> Any:  # fmt: skip
    """Keep what holds in place, put aside what is still to be evaluated. Returns how many of each."""
    kept, left = np.uint64(0), np.uint64(0)
    for i in range(np.uint64(len(events))):
        event, slot = np.uint64(events[i]), outputs[i]
        holds, residual, row = True, -1, 0
        if slot >= slots:
            entry = np.uint64(slot - slots)
            slot, residual = slot_of[entry], residual_of[entry]
            row = row_of[np.uint64(residual)]
            holds = row >= 0 and truths[event, np.uint64(row)]
        if row < 0 or odd[event]:
            left_events[left], left_slots[left], left_residuals[left] = event, slot, -1 if odd[event] else residual
            left += np.uint64(1)
            continue
        events[kept], outputs[kept] = event, slot
        kept += np.uint64(holds)
    return kept, left


@kernel
def _settle_runs(
    events: Any, starts: Any, outputs: Any, odd: Any, slots: Any, slot_of: Any, residual_of: Any, row_of: Any,
    truths: Any, left_events: Any, left_slots: Any, left_residuals: Any, left: Any,
) -> Any:  # fmt: skip
    """The same for runs, whose starts move as they shrink."""
    kept, first, one = np.uint64(0), np.uint64(0), np.uint64(1)
    for run in range(np.uint64(len(events))):
        event, last = np.uint64(events[run]), np.uint64(starts[run + one])
        starts[run] = kept
        for i in range(first, last):
            slot = outputs[i]
            holds, residual, row = True, -1, 0
            if slot >= slots:
                entry = np.uint64(slot - slots)
                slot, residual = slot_of[entry], residual_of[entry]
                row = row_of[np.uint64(residual)]
                holds = row >= 0 and truths[event, np.uint64(row)]
            if row < 0 or odd[event]:
                left_events[left], left_slots[left], left_residuals[left] = event, slot, -1 if odd[event] else residual
                left += one
                continue
            outputs[kept] = slot
            kept += np.uint64(holds)
        first = last
    return kept, left


def _groups(numbers: npt.NDArray[Any]) -> Iterator[Numbers]:
    """The rows that have the same number, by number; negative ones left out."""
    rows = np.flatnonzero(numbers >= 0)
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    if len(rows):
        yield from np.split(rows, np.flatnonzero(np.diff(numbers[rows])) + 1)
