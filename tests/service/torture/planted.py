"""Bugs that were real, put back into a service that serves here, each with the shortest schedule that finds it.

What is put back is in `hooks/planted.py`, which every process of the service runs at its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .schedule import Schedule, generate, quiet_at_first


@dataclass(frozen=True)
class Planted:
    """A bug by its row, what it did, and what finds it."""

    row: str
    what: str
    motif: str
    seed: int = 1
    options: tuple[str, ...] = ()
    at_first: bool = False  # before anybody has published anything
    mends: bool = False  # the service is to live with it: no promise is broken


OWN = ("--share-up-to", "0")  # with which every domain has a stream of its own

PLANTED = {
    bug.row: bug
    for bug in (
        Planted(
            "1",
            "a domain that has no event yet dies at an ordinary restart",
            "quiet_domain",
            options=OWN,
            at_first=True,
        ),
        Planted("2", "an event is dead as removed by retention though the log has it", "large_between"),
        Planted("3", "one accepted filter stops its domain for good", "limit_filter", seed=5),
        Planted("4", "a stream acknowledges what its client never read", "dying_reader"),
        Planted(
            "5", "an attribute of a name that the service uses stops its domain", "odd_names", seed=18, options=OWN
        ),
        Planted("6", "after a restart nothing is taken although nothing waits", "busy_restart"),
        Planted("aside", "a filter that fails while matching is set aside", "limit_filter", seed=5, mends=True),
        Planted("7", "one append with the clock ahead dates all later ones", "clock_jump", seed=2),
    )
}


def schedule_of(row: str, seed: int | None = None) -> Schedule:
    """The motif that finds a bug, and nothing else."""
    bug = PLANTED[row]
    schedule = generate(bug.seed if seed is None else seed, 60.0, only=[bug.motif], timed=False, options=bug.options)
    return quiet_at_first(schedule) if bug.at_first else schedule


def row_of(row: str, seed: int, violations: list[str], seconds: float) -> dict[str, Any]:
    """What came of a planted bug, for the result file."""
    bug = PLANTED[row]
    found = bool(violations)
    return {
        "row": row,
        "what": bug.what,
        "motif": bug.motif,
        "seed": seed,
        "mends": bug.mends,
        "found": found,
        "as_expected": found is not bug.mends,
        "violations": len(violations),
        "first": violations[0][:300] if violations else "",
        "seconds": round(seconds),
    }
