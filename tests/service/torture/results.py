"""What came of torture: kept as a result file, and shown in the manual.

`python -m tests.service.torture.results` writes it there.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, write

MANUAL = Path(__file__).parents[3] / "docs" / "service.md"
BEGIN, END = "<!-- torture: begin -->\n", "<!-- torture: end -->"
QUESTION = "Is every promise kept under schedules of chance, and does a tenant notice what others do?"


FOUND = "Does torture find the bugs that were real, when they are put back?"


def save(rows: list[dict[str, Any]]) -> Path:
    """Add rows to the result file, in place of those of the same seeds, but for failures that may be there still."""
    return write("torture", QUESTION, rows, same=("seed",), stays=_is_not_mended)


def save_planted(row: dict[str, Any]) -> Path:
    """Add what came of a planted bug to its result file, in place of what came of it before."""
    return write("planted", FOUND, [row], same=("row",))


def _is_not_mended(earlier: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a schedule broke a promise, and no later commit has kept all of them under the same schedule."""
    if not earlier["violations"]:
        return False
    return bool(new["violations"]) or not _is_later(new["commit"], earlier["commit"])


def _is_later(commit: str, than: str) -> bool:
    """Whether a commit follows another; a working tree counts as the commit that it was made from."""
    new, old = (_hash(one) for one in (commit, than))
    asked = ["git", "merge-base", "--is-ancestor", old, new]
    is_same = new.startswith(old) or old.startswith(new)  # one may be cut shorter
    return not is_same and subprocess.run(asked, capture_output=True, check=False).returncode == 0


def _hash(described: str) -> str:
    """The commit in what `git describe` says: of v1.2-5-g12ab-dirty, 12ab."""
    return described.removesuffix("-dirty").rpartition("-g")[2]


def _recorded(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": []}
    return found


def document() -> str:
    """What stands between the marks in the manual."""
    found = _recorded("torture")
    rows = found["rows"]
    if not rows:
        return "No run is recorded yet.\n"
    lines = [
        f"{len(rows)} schedules in {sum(row['seconds'] for row in rows) / 60:,.0f} minutes: "
        f"{_sum(rows, 'events')} events, {_sum(rows, 'notifications')} notifications, {_sum(rows, 'faults')} faults, "
        f"{_sum(rows, 'violations')} violations ({_circumstances(found)})."
    ]
    beside = [row for row in rows if row["p99_beside_seconds"] is not None]
    worst = max(beside, key=lambda row: row["p99_beside_seconds"] / (3 * row["p99_alone_seconds"] + 1), default=None)
    if worst is not None:
        lines.append(
            f"Where the steady tenant noticed others most, its p99 from publishing to delivery was "
            f"{worst['p99_beside_seconds']:g} s, and {worst['p99_alone_seconds']:g} s alone (seed {worst['seed']})."
        )
    return "\n".join(lines + _planted(_recorded("planted"))) + "\n"


def _planted(found: dict[str, Any]) -> list[str]:
    """What the manual says of bugs that were put back."""
    rows = found["rows"]
    if not rows:
        return []
    first = f"\nBugs that were real, put back one at a time ({_circumstances(found)}):\n"
    table = ["| bug | what torture is to see | seen | seconds |", "|---|---|---|---:|"]
    for row in rows:
        expected = "nothing: the service lives with it" if row["mends"] else "a broken promise"
        table.append(f"| {row['what']} | {expected} | {'yes' if row['as_expected'] else 'NO'} | {row['seconds']} |")
    return [first, *table]


def _sum(rows: list[dict[str, Any]], name: str) -> str:
    return f"{sum(row[name] for row in rows):,}"


def _circumstances(found: dict[str, Any]) -> str:
    """The machine, and the days on which the rows were measured."""
    machine, dates = found["machine"], sorted({row["date"] for row in found["rows"]})
    days = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {days}"


def main() -> None:
    before, rest = MANUAL.read_text().split(BEGIN)
    _, after = rest.split(END)
    MANUAL.write_text(f"{before}{BEGIN}{document()}{END}{after}")


if __name__ == "__main__":
    main()
