"""Draw the results of matching on Spark: reads them, measures nothing, and writes docs/pictures."""

from __future__ import annotations

import json
import sys
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from benchmarks.plots import PICTURES
from benchmarks.record import RESULTS

COLOURS = {"replicated": "#c1121f", "bluedove": "#1d6996"}


def main() -> int:
    path = RESULTS / "spark_matching.json"
    if not path.exists():
        print("there are no results on Spark yet: python -m benchmarks.spark_matching", file=sys.stderr)
        return 1
    result = json.loads(path.read_text())
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, draw in (("spark-by-subscriptions", by_subscriptions), ("spark-by-cores", by_cores)):
        part = {"spark-by-subscriptions": "sizes", "spark-by-cores": "cores"}[name]
        rows = [row for row in result["rows"] if row["part"] == part]
        if rows:
            draw(rows, result, str(PICTURES / f"{name}.png"))
            print(f"written to docs/pictures/{name}.png")
    return 0


def by_subscriptions(rows: list[dict[str, Any]], result: dict[str, Any], path: str) -> None:
    """A panel for each workload, a line for each placement."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    figure, panels = plt.subplots(1, len(workloads), figsize=(4.6 * len(workloads), 4.2), sharey=True, squeeze=False)
    for panel, workload in zip(panels[0], workloads, strict=True):
        for placement, colour in COLOURS.items():
            points = sorted(
                (row["subscriptions"], row["events_per_cpu_second"])
                for row in rows
                if row["workload"] == workload and row["way"].startswith(placement)
            )
            panel.plot(*zip(*points, strict=True), marker="o", color=colour, label=placement)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(workload, loc="left")
        panel.set_xlabel("subscriptions")
        _tidy(panel)
    panels[0][0].set_ylabel("events a CPU second, counted")
    panels[0][0].legend(frameon=False)
    _save(figure, "Two placements on Spark, by subscriptions", result, path)


def by_cores(rows: list[dict[str, Any]], result: dict[str, Any], path: str) -> None:
    """What a second core adds."""
    figure, panel = plt.subplots(figsize=(6.6, 4.2))
    for workload in dict.fromkeys(row["workload"] for row in rows):
        points = sorted((row["cores"], row["events_per_second"]) for row in rows if row["workload"] == workload)
        panel.plot(*zip(*points, strict=True), marker="o", label=workload)
    panel.set_xticks([1, 2])
    panel.set_ylim(bottom=0)
    panel.set_xlabel("cores")
    panel.set_ylabel("events a second, with ids")
    _tidy(panel)
    panel.legend(frameon=False)
    _save(figure, "What a second core adds", result, path)


def _tidy(panel: Axes) -> None:
    panel.grid(True, color="#e6e6e6", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _save(figure: Any, title: str, result: dict[str, Any], path: str) -> None:
    machine = result["machine"]
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, weight="bold")
    note = f"{machine['cpu']}, {machine['cores']} cores; load {machine['load']} when done; commit {result['commit']}."
    figure.text(0.01, 0.01, note + " Higher is better.", fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 0.98))
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
