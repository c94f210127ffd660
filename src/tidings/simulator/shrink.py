"""The fewest steps of a schedule that still break the same law (Zeller's delta debugging, by halves)."""

from __future__ import annotations

from dataclasses import replace

from tidings.simulator.run import play
from tidings.simulator.scenario import Scenario, ScheduledStep, schedule
from tidings.systems.overlay import Violation

MAX_RUNS = 120


def shrink(plan: Scenario, violation: Violation, *, max_runs: int = MAX_RUNS) -> tuple[Scenario, Violation]:
    """The plan with only those steps that the failure seems to need, and how it fails; so many further runs at most."""
    runs = 0

    def fails(keep: list[int]) -> bool:
        nonlocal runs, violation
        runs += 1
        found = play(replace(plan, keep=tuple(keep))).violation
        if found is None or found.law != violation.law:
            return False
        violation = found
        return True

    kept = list(plan.keep) if plan.keep is not None else list(range(len(schedule(plan))))
    size = max(1, len(kept) // 2)
    while runs < max_runs:
        removed = False
        at = 0
        while at < len(kept) and runs < max_runs:
            fewer = kept[:at] + kept[at + size :]
            if fails(fewer):
                kept, removed = fewer, True
            else:
                at += size
        if not removed and size == 1:
            break
        size = size if removed and size == 1 else max(1, size // 2)
    return replace(plan, keep=tuple(kept)), violation


def explain(plan: Scenario, violation: Violation) -> str:
    """What failed, the command that replays it, and the schedule that was left of it."""
    steps: tuple[ScheduledStep, ...] = schedule(plan)
    lines = [f"{violation.law} is broken: {violation.what}", "", f"  {plan.command}", ""]
    return "\n".join([*lines, *(f"  {step}" for step in steps)])
