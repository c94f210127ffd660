"""Run benchmarks by name, all of them without one, and write their result files."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.options import Options, add_arguments, options_from
from benchmarks.record import write

# The order they run in, and what a part that is measured again replaces: rows that are the same in these.
NAMES: dict[str, tuple[str, ...]] = {
    "compiling": (),
    "matching": ("workload", "subscriptions"),
    "changing": (),
    "nearest": ("workload", "subscriptions"),
    "appending": (),
    "limits": ("workload", "subscriptions"),
}
_NOT_SHOWN = ("example", "seeds")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all without")
    add_arguments(parser)
    parsed = parser.parse_args(arguments)
    for name in parsed.names:
        if name not in NAMES:
            parser.error(f"no benchmark '{name}'; there are {', '.join(NAMES)}")
    console = Console()
    for name in parsed.names or NAMES:
        _run(name, options_from(parsed), console)
    return 0


def _run(name: str, options: Options, console: Console) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    question = (module.__doc__ or "").strip().splitlines()[0]
    console.print(f"[bold]{name}[/bold]: {question}")
    rows: list[dict[str, Any]] = []
    try:
        for row in module.run(options):  # a row at a time; a spinner would take part in what is measured
            rows.append(row)
            console.print("  " + ", ".join(f"{key} {value}" for key, value in row.items() if key not in _NOT_SHOWN))
    finally:  # what was measured before a failure holds
        _finish(name, question, rows, options, getattr(module, "SHOWN", None), console)


def _finish(
    name: str,
    question: str,
    rows: list[dict[str, Any]],
    options: Options,
    shown: tuple[str, ...] | None,
    console: Console,
) -> None:
    if not rows:
        console.print("nothing to measure here yet")
        return
    console.print(_table(question, rows, shown))
    if options.quick:
        console.print("too quick for figures: nothing is written")
    else:
        console.print(f"written to benchmarks/results/{write(name, question, rows, same=NAMES[name]).name}")


def _table(question: str, rows: list[dict[str, Any]], shown: tuple[str, ...] | None) -> Table:
    table = Table(title=question, title_justify="left")
    keys = shown or tuple(dict.fromkeys(key for row in rows for key in row if key not in _NOT_SHOWN))
    for key in keys:
        table.add_column(key.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(key, "")) for key in keys))
    return table


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
