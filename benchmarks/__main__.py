"""Run benchmarks by name, all of them without one, and write their result files."""

from __future__ import annotations

import importlib
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.record import write

NAMES = ("compiling",)


def main(names: list[str]) -> int:
    console = Console()
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        console.print(f"no benchmark '{unknown[0]}'; there are {', '.join(NAMES)}")
        return 2
    for name in names or NAMES:
        module = importlib.import_module(f"benchmarks.{name}")
        question = (module.__doc__ or "").strip().splitlines()[0]
        console.print(f"[bold]{name}[/bold]: {question}")
        rows = []
        with console.status("measuring"):
            for row in module.run():
                rows.append(row)
                console.print("  " + ", ".join(f"{key} {value}" for key, value in row.items() if key != "example"))
        table = Table(title=question, title_justify="left")
        for key in rows[0]:
            table.add_column(key.replace("_", " "), overflow="fold")
        for row in rows:
            table.add_row(*(f"{value:,}" if isinstance(value, int | float) else str(value) for value in row.values()))
        console.print(table)
        console.print(f"written to benchmarks/results/{write(name, question, rows).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
