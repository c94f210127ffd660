"""The table of faults: kept as a result file, and shown in the manual.

`python -m tests.service.faults.table` writes it there.
A fault that was not run this time stays in the file as it was, with its own date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, write

from .run import Result
from .scenarios import SCENARIOS

MANUAL = Path(__file__).parents[3] / "docs" / "service.md"
BEGIN, END = "<!-- faults: begin -->\n", "<!-- faults: end -->"
QUESTION = "Is every promise kept whatever breaks, and how soon is something delivered again?"


def rows_of(result: Result) -> list[dict[str, Any]]:
    """One a fault; events and violations are those of the whole run in which it was one."""
    report = result.report
    return [
        {
            "run": result.name,
            "fault": fault.name,
            "events": sum(report.outcomes.values()),
            "acknowledged": report.outcomes["acked"],
            "deliveries": report.deliveries,
            "violations": len(report.violations),
            "recovery_seconds": None if (seconds := report.recoveries[fault.name]) is None else round(seconds, 1),
            "bound_seconds": fault.bound_seconds,
        }
        for fault in result.faults
    ]


def save(rows: list[dict[str, Any]]) -> Path:
    """Write rows to the result file, in place of those of the same runs."""
    path = write("faults", QUESTION, rows, same=("run",))
    form = json.loads(path.read_text())
    order = [scenario.name for scenario in SCENARIOS]
    form["rows"] = sorted((row for row in form["rows"] if row["run"] in order), key=lambda row: order.index(row["run"]))
    path.write_text(json.dumps(form, indent=1) + "\n")
    return path


def document() -> str:
    """What stands between the marks in the manual."""
    form = json.loads((RESULTS / "faults.json").read_text())
    machine, rows = form["machine"], form["rows"]
    lines = [
        f"On {machine['cores']} cores of an {machine['cpu'].replace('(R)', '')}, shared by publishers, subscribers,",
        f"gateway, driver, Spark and whatever else the machine did; {form['date']}.",
        "",
        "| fault | events | violations | recovery | allowed | load |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    before = None
    for row in rows:
        first = row["run"] != before
        before = row["run"]
        seconds = "never" if row["recovery_seconds"] is None else f"{row['recovery_seconds']:.1f} s"
        counts = [f"{row[name]:,}" if first else "″" for name in ("events", "violations")]
        cells = [row["fault"], *counts, seconds, f"{row['bound_seconds']:g} s", f"{row['load']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    before, rest = MANUAL.read_text().split(BEGIN)
    _, after = rest.split(END)
    MANUAL.write_text(f"{before}{BEGIN}{document()}{END}{after}")


if __name__ == "__main__":
    main()
