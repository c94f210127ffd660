"""What came of torture: kept as a result file, and shown in the manual.

`python -m tests.service.torture.results` writes it there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, write

MANUAL = Path(__file__).parents[3] / "docs" / "service.md"
BEGIN, END = "<!-- torture: begin -->\n", "<!-- torture: end -->"
QUESTION = "Is every promise kept under schedules of chance, and does a tenant notice what others do?"


def save(rows: list[dict[str, Any]]) -> Path:
    """Add rows to the result file, in place of those of the same seeds."""
    return write("torture", QUESTION, rows, same=("seed",))


def document() -> str:
    """What stands between the marks in the manual."""
    path = RESULTS / "torture.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    if not rows:
        return "No run is recorded yet.\n"
    beside = [row for row in rows if row["p99_beside_seconds"] is not None]
    worst = max(beside, key=lambda row: row["p99_beside_seconds"] / (3 * row["p99_alone_seconds"] + 1), default=None)
    minutes = sum(row["seconds"] for row in rows) / 60
    lines = [
        f"{len(rows)} schedules in {minutes:,.0f} minutes: {sum(row['events'] for row in rows):,} events, "
        f"{sum(row['notifications'] for row in rows):,} notifications, {sum(row['faults'] for row in rows):,} faults, "
        f"{sum(row['violations'] for row in rows):,} violations.",
    ]
    if worst is not None:
        lines.append(
            f"Where the steady tenant noticed others most, its p99 from publishing to delivery was "
            f"{worst['p99_beside_seconds']:g} s, and {worst['p99_alone_seconds']:g} s alone (seed {worst['seed']})."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    before, rest = MANUAL.read_text().split(BEGIN)
    _, after = rest.split(END)
    MANUAL.write_text(f"{before}{BEGIN}{document()}{END}{after}")


if __name__ == "__main__":
    main()
