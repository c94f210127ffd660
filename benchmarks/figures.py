"""The figures in the README, written from the result files: `python -m benchmarks.figures`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->"


def figures() -> str:
    """What stands between the marks in the README."""
    compiling, matching = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("compiling", "matching"))
    machine = matching["machine"]
    lines = [
        f"On {machine['cores']} cores of an {machine['cpu'].replace('(R)', '')}, {machine['memory_gib']} GiB, "
        f"{matching['date']}, load {machine['load']} with the measurement itself; the spread is in the result files.",
        "",
        *_matching_table(matching["rows"]),
        "",
        "Events are Arrow columns as a user has them; the ratios are of CPU time in the same run. DuckDB and Polars",
        "are given one join for each class of filters. Times are of building the index from compiled filters.",
        "",
        *_compiling_table(compiling["rows"]),
    ]
    return "\n".join(lines) + "\n"


def _matching_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| workload | subscriptions | events/s on one core | matches an event | × numpy | × DuckDB | × Polars "
        "| bytes a subscription | built in |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["engine"] != "tidings":
            continue
        ratios = [
            next((f"{other['tidings_times_faster']:,.0f}" for other in rows if _same(row, other, peer)), "–")
            for peer in ("numpy", "duckdb", "polars")
        ]
        cells = [
            row["workload"], f"{row['subscriptions']:,}", f"{round(row['events_per_core_second'], -2):,.0f}",
            f"{row['matches_per_event']:,}", *ratios, f"{row['bytes_per_subscription']:.0f}",
            f"{row['build_seconds']:.1f} s",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _same(row: dict[str, Any], other: dict[str, Any], engine: str) -> bool:
    return other["engine"] == engine and all(row[key] == other[key] for key in ("workload", "subscriptions"))


def _compiling_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| compiling | filters/s on one core |", "|---|---|"]
    return lines + [f"| {row['case']} | {round(row['filters_per_core_second'], -2):,} |" for row in rows]


def main() -> None:
    before, rest = README.read_text().split(BEGIN)
    _, after = rest.split(END)
    README.write_text(f"{before}{BEGIN}{figures()}{END}{after}")


if __name__ == "__main__":
    main()
