"""Draw what was measured of Sonnet: `python -m benchmarks.sonnet_plots` reads the results and writes docs/pictures."""

from __future__ import annotations

import json
import sys
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.plots import PICTURES
from benchmarks.record import RESULTS

COLOURS = {
    "sonnet": "#c1121f",
    "sonnet, hashes": "#e07a5f",
    "sonnet, one entry": "#7b4ba3",
    "sonnet, busy": "#b8860b",
    "sonnet, busy, degrading": "#38761d",
    "flooding": "#555555",
    "DHT multicast": "#1d6996",
}
PANELS = {
    "false_of_received": "false positives,\nof what filters were given",
    "false_of_not_matching": "false positives,\nof pairs that do not match",
    "messages_per_document": "messages a document",
    "load_most_by_mean": "the most loaded host,\nin units of the mean",
}


def main() -> int:
    path = RESULTS / "sonnet.json"
    if not path.exists():
        print("nothing was measured of Sonnet yet: python -m benchmarks.sonnet", file=sys.stderr)
        return 1
    result = json.loads(path.read_text())
    draw(result)
    print("written to docs/pictures/sonnet.png")
    return 0


def draw(result: dict[str, Any]) -> None:
    """A row of panels for each workload, a line for each way to send packets."""
    rows = result["rows"]
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    figure, grid = plt.subplots(
        len(workloads), len(PANELS), figsize=(3.5 * len(PANELS), 3.2 * len(workloads)), squeeze=False, sharex=True
    )
    for panels, workload in zip(grid, workloads, strict=True):
        chosen = [row for row in rows if row["workload"] == workload]
        for panel, (figure_name, title) in zip(panels, PANELS.items(), strict=True):
            _panel(panel, chosen, figure_name)
            panel.set_title(f"{workload}: {title}", fontsize=9, loc="left")
    for panel in grid[-1]:
        panel.set_xlabel("nodes")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), fontsize=8, frameon=False)
    figure.suptitle("Sonnet beside flooding and plain DHT multicast", x=0.01, ha="left", fontsize=13, weight="bold")
    figure.tight_layout(rect=(0, 0.05, 1, 0.98))
    PICTURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURES / "sonnet.png", dpi=100)
    plt.close(figure)


def _panel(panel: Axes, rows: list[dict[str, Any]], figure_name: str) -> None:
    panel.grid(True, color="#e6e6e6", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)
    if figure_name in ("messages_per_document", "load_most_by_mean"):
        panel.set_yscale("log")
    for way, colour in COLOURS.items():
        points = sorted((row["nodes"], row[figure_name]) for row in rows if row["way"] == way)
        if points:
            panel.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3.5, linewidth=1.4, label=way)
    if figure_name == "false_of_not_matching":
        panel.axhline(0.2, color="#999999", linewidth=0.8, linestyle="--")


if __name__ == "__main__":
    sys.exit(main())
