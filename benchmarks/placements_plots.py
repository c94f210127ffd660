"""Draw the results of placements: reads them, measures nothing, and writes docs/pictures."""

from __future__ import annotations

import json
import sys
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from benchmarks.plots import PICTURES
from benchmarks.record import RESULTS

OURS, CHOSEN, SQL = "#1d6996", "#c1121f", "#999999"
WHAT = {
    "keys_a_subscription": "keys a subscription",
    "rows_shuffled_an_event": "rows shuffled an event",
    "met_a_match": "subscriptions met a match",
    "skew": "rows of the busiest partition,\nin units of the mean",
}


def main() -> int:
    path = RESULTS / "placements.json"
    if not path.exists():
        print("there are no results of placements yet: python -m benchmarks.placements", file=sys.stderr)
        return 1
    result = json.loads(path.read_text())
    rows = [row for row in result["rows"] if row["part"] == "runs"]
    if not rows:
        print("the results have no part 'runs': python -m benchmarks.placements runs", file=sys.stderr)
        return 1
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, draw in (("placements-speed", speed), ("placements-costs", costs)):
        draw(rows, result, str(PICTURES / f"{name}.png"))
        print(f"written to docs/pictures/{name}.png")
    return 0


def speed(rows: list[dict[str, Any]], result: dict[str, Any], path: str) -> None:
    """A panel for each workload, a bar for each placement, the fastest on top."""
    workloads = _workloads(rows)
    figure, panels = plt.subplots(1, len(workloads), figsize=(4.6 * len(workloads), 4.2), squeeze=False)
    for panel, workload in zip(panels[0], workloads, strict=True):
        mine = sorted((row for row in rows if row["workload"] == workload), key=lambda row: row["events_per_second"])
        values = [row["events_per_second"] for row in mine]
        colours = [SQL if row["way"].startswith("SQL") else CHOSEN if row["way"] == "auto" else OURS for row in mine]
        panel.barh([_named(row) for row in mine], values, color=colours)
        panel.set_xscale("log")
        panel.set_xlim(min(values) / 2, max(values) * 6)
        for at, value in enumerate(values):
            panel.text(value * 1.1, at, f"{value:,.0f}", va="center", fontsize=8)
        panel.set_title(f"{workload}, {mine[0]['subscriptions']:,} subscriptions", loc="left", fontsize=11)
        panel.set_xlabel("events a second")
        _tidy(panel)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    _save(figure, "Placements on two executors, beside SQL", result, path, "Higher is better.")


def costs(rows: list[dict[str, Any]], result: dict[str, Any], path: str) -> None:
    """What is stored, sent and compared: a row of panels for each workload."""
    workloads = _workloads(rows)
    figure, panels = plt.subplots(
        len(workloads), len(WHAT), figsize=(3.4 * len(WHAT), 2.5 * len(workloads)), squeeze=False
    )
    for line, workload in zip(panels, workloads, strict=True):
        mine = [row for row in rows if row["workload"] == workload and not row["way"].startswith("SQL")][::-1]
        for panel, (key, title) in zip(line, WHAT.items(), strict=True):
            values = [row.get(key) or 0 for row in mine]
            panel.barh(
                [row["way"] for row in mine], values, color=[CHOSEN if row["way"] == "auto" else OURS for row in mine]
            )
            panel.set_xlim(0, max([*values, 1e-9]) * 1.35)
            for at, value in enumerate(values):
                panel.text(value, at, f" {value:,.1f}", va="center", fontsize=7)
            panel.set_title(f"{workload}: {title}", loc="left", fontsize=9)
            panel.tick_params(labelsize=8)
            _tidy(panel)
    _save(figure, "What placements store, send and compare", result, path, "Lower is better.")


def _named(row: dict[str, Any]) -> str:
    serves = row.get("serves")
    return f"auto: {serves}" if row["way"] == "auto" and serves else str(row["way"])


def _workloads(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["workload"] for row in rows))


def _tidy(panel: Axes) -> None:
    panel.grid(True, axis="x", color="#e6e6e6", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _save(figure: Any, title: str, result: dict[str, Any], path: str, note: str) -> None:
    machine = result["machine"]
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, weight="bold")
    where = f"{machine['cpu']}, {machine['cores']} cores; load {machine['load']} when done; commit {result['commit']}."
    figure.text(0.01, 0.01, f"{where} {note}", fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 0.98))
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
