"""All invariants over one history, and a report for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from .history import History
from .invariants import INVARIANTS, TIMED, recovery_seconds
from .records import Record, read

MOST_LINES = 200  # of one invariant: the first ones tell what is wrong


@dataclass(frozen=True)
class Violation:
    invariant: str
    line: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.line}"


@dataclass(frozen=True)
class Report:
    outcomes: Counter[str]  # of events
    deliveries: int
    violations: list[Violation]
    recoveries: dict[str, float | None]  # seconds by fault

    def __str__(self) -> str:
        counts = ", ".join(f"{self.outcomes[name]:,} {name}" for name in ("acked", "unknown", "refused"))
        head = f"events: {counts}; deliveries: {self.deliveries:,}; violations: {len(self.violations):,}"
        return "\n".join([head, *map(str, self.violations)])


def check(records: Iterable[Record], *, timed: bool = True) -> Report:
    """With `timed` also what speaks of seconds, which depend on the machine as well."""
    history = History(records)
    violations = [
        Violation(name, line)
        for name, invariant in INVARIANTS.items()
        if timed or name not in TIMED
        for line in islice(invariant(history), MOST_LINES)
    ]
    outcomes = Counter(event.outcome for event in history.events.values())
    recoveries = {fault.name: recovery_seconds(history, fault) for fault in history.faults}
    return Report(outcomes, len(history.deliveries), violations, recoveries)


def check_files(paths: Iterable[Path], *, timed: bool = True) -> Report:
    return check(read(paths), timed=timed)
