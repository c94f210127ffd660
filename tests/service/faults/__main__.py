"""Break the service in every way there is, and print what became of it.

    python -m tests.service.faults                  all of them
    python -m tests.service.faults gateway disk     those whose name has one of these words
    python -m tests.service.faults --keep DIR …     and keep the histories and the services' logs

Ends with a table, which is kept in benchmarks/results/faults.json; exit status 1 where a promise was broken.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .scenarios import SCENARIOS, Scenario, run_scenario, skipped
from .table import rows_of, save


def main(arguments: list[str]) -> int:
    console = Console(highlight=False)
    if arguments[:1] in (["-h"], ["--help"]):
        console.print(__doc__, markup=False)
        return 0
    kept: Path | None = None
    if arguments[:1] == ["--keep"]:
        kept, arguments = Path(arguments[1]), arguments[2:]
    chosen = [one for one in SCENARIOS if not arguments or any(word in one.name for word in arguments)]
    if not chosen:
        console.print(
            f"no fault has {' or '.join(arguments)} in its name; there are " + ", ".join(one.name for one in SCENARIOS),
            markup=False,
        )
        return 2
    table = Table(title="Faults", title_justify="left")
    for head, side in (("fault", "left"), ("events", "right"), ("violations", "right"), ("recovery s", "right")):
        table.add_column(head, justify=side)  # type: ignore[arg-type]
    broken, rows = 0, list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="tidings-faults-") as temporary:
        for scenario in chosen:
            folder = (kept or Path(temporary)) / scenario.name.replace(" ", "-")
            broken += _one(scenario, folder, console, table, rows)
    console.print(table)
    if rows:
        console.print(f"kept in {save(rows)}", markup=False)
    return 1 if broken else 0


def _one(scenario: Scenario, folder: Path, console: Console, table: Table, rows: list[dict[str, Any]]) -> int:
    """Run one and add its rows, to be shown and to be kept; answers how many violations there were."""
    if (why := skipped(scenario)) is not None:
        console.print(f"SKIPPED {scenario.name}: {why}", style="yellow", markup=False)
        table.add_row(scenario.name, "", "skipped", "")
        return 0
    started = time.monotonic()
    try:
        result = run_scenario(scenario, folder)
    except Exception as error:
        console.print(f"FAILED {scenario.name}: {error}", style="red", markup=False)
        console.print(traceback.format_exc(), markup=False)
        table.add_row(scenario.name, "", "failed", "")
        return 1
    report = result.report
    console.print(f"{scenario.name} ({time.monotonic() - started:.0f} s): {report}", markup=False)
    for note in result.notes:
        console.print(f"  {note}", markup=False)
    rows += (own := rows_of(result))
    for number, row in enumerate(own):
        seconds = row["recovery_seconds"]
        counts = [f"{row[name]:,}" if number == 0 else "" for name in ("events", "violations")]
        table.add_row(row["fault"], *counts, "never" if seconds is None else f"{seconds:.1f}")
    return len(report.violations)


sys.exit(main(sys.argv[1:]))
