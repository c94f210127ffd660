"""Draw the results of matching: `python -m benchmarks.plots` reads them, measures nothing, and writes docs/pictures."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.record import RESULTS

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
COLOURS = {
    "tidings": "#c1121f",
    "numpy": "#1d6996",
    "duckdb": "#b8860b",
    "duckdb one join": "#d9b44a",
    "polars": "#38761d",
    "rtree": "#7b4ba3",
    "python rules": "#555555",
}
OTHER_COLOUR = "#999999"
LABEL_GAP = 0.055  # of the height of a panel, between two labels

PLOTS = {
    "cost-by-subscriptions": ("subscriptions", "What an event costs, by subscriptions"),
    "cost-by-matches": ("matches_per_event", "What an event costs, by the matches it has"),
}


def main() -> int:
    path = RESULTS / "matching.json"
    if not path.exists():
        print("there are no results of matching yet: python -m benchmarks matching", file=sys.stderr)
        return 1
    result = json.loads(path.read_text())
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, (x, title) in PLOTS.items():
        draw(result, x, title, PICTURES / f"{name}.png")
        print(f"written to docs/pictures/{name}.png")
    return 0


def draw(result: dict[str, Any], x: str, title: str, path: Path) -> None:
    """A panel for each workload, a line for each engine, both axes logarithmic."""
    rows = _with_all_matches(result["rows"])
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    figure, panels = plt.subplots(1, len(workloads), figsize=(3.6 * len(workloads), 4.4), sharey=True, squeeze=False)
    for panel, workload in zip(panels[0], workloads, strict=True):
        _panel(panel, [row for row in rows if row["workload"] == workload], x)
        panel.set_title(workload, fontsize=11, loc="left")
        panel.set_xlabel({"subscriptions": "subscriptions", "matches_per_event": "matches an event"}[x])
    panels[0][0].set_ylabel("CPU µs an event")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, weight="bold")
    machine = result["machine"]
    dates = sorted({row["date"] for row in rows})
    note = (
        f"{machine['cpu']}, {machine['cores']} cores, one used; load {machine['load']} when done; "
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}; commit {result['commit']}. Lower is better."
    )
    figure.text(0.01, 0.01, note, fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 0.98))
    # The labels stand where the layout leaves the panels, so they come last.
    for panel in panels[0]:
        _label(panel)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _with_all_matches(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the matches that ours found on the most events: a peer that ran on few has a poor estimate of them."""
    matches = {
        (row["workload"], row["subscriptions"]): row["matches_per_event"] for row in rows if row["engine"] == "tidings"
    }
    return [row | {"matches_per_event": matches[row["workload"], row["subscriptions"]]} for row in rows]


def _short(value: float) -> str:
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _panel(panel: Axes, rows: list[dict[str, Any]], x: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.grid(True, which="major", color="#e6e6e6", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)
    for engine in dict.fromkeys(row["engine"] for row in rows):
        points = sorted((row[x], row["cpu_us_per_event"]) for row in rows if row["engine"] == engine)
        ours = engine == "tidings"
        panel.plot(
            *zip(*points, strict=True),
            color=COLOURS.get(engine, OTHER_COLOUR),
            marker="o",
            markersize=5 if ours else 3.5,
            linewidth=2.4 if ours else 1.3,
            label=engine,
            zorder=3 if ours else 2,
        )
    if x == "subscriptions":
        panel.set_xticks(sorted({row[x] for row in rows}))
    else:
        panel.xaxis.set_major_locator(LogLocator())
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axis.set_minor_formatter(NullFormatter())
    low, high = panel.get_xlim()
    # A third more room on the right, for the labels.
    panel.set_xlim(low, high * (high / low) ** 0.55)


def _label(panel: Axes) -> None:
    """The name of each line at its right end, moved up where two would overlap."""
    low, high = (math.log10(limit) for limit in panel.get_ylim())
    ends = sorted(
        (
            (math.log10(float(line.get_ydata()[-1])) - low) / (high - low),  # type: ignore[index,arg-type]
            float(line.get_xdata()[-1]),  # type: ignore[index,arg-type]
            line,
        )
        for line in panel.get_lines()
    )
    left, right = (math.log10(limit) for limit in panel.get_xlim())
    lowest = -1.0
    for height, end, line in ends:
        lowest = max(height, lowest + LABEL_GAP)
        place = (math.log10(end) - left) / (right - left) + 0.03
        panel.text(
            place,
            lowest,
            str(line.get_label()),
            transform=panel.transAxes,
            color=line.get_color(),
            fontsize=9,
            va="center",
            weight="bold" if line.get_label() == "tidings" else "normal",
        )


if __name__ == "__main__":
    sys.exit(main())
