"""Draw what the service kept in memory under load: reads the results, measures nothing, and writes docs/pictures."""

from __future__ import annotations

import json
import sys

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from benchmarks.plots import PICTURES
from benchmarks.record import RESULTS

COLOURS = {"gateway": "#c1121f", "driver": "#1d6996", "java": "#b8860b", "workers": "#38761d"}
LABELS = {"java": "Spark's Java", "workers": "Spark's workers"}


def main() -> int:
    path = RESULTS / "service.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    row = next((row for row in rows if row["part"] == "delivery"), None)
    if row is None:
        print("the service was not measured yet: python -m benchmarks.service", file=sys.stderr)
        return 1
    figure, panel = plt.subplots(figsize=(7.2, 3.8))
    seconds, *parts = zip(*row["memory_mib"], strict=True)
    for name, mib in zip(row["memory_of"][1:], parts, strict=True):
        if name in COLOURS:
            panel.plot(seconds, mib, color=COLOURS[name], label=LABELS.get(name, f"the {name}"))
    panel.set_ylim(bottom=0)
    panel.set_xlabel("seconds under load")
    panel.set_ylabel("MiB")
    panel.grid(True, color="#e6e6e6", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, ncols=2, loc="center right")
    figure.suptitle("What the service keeps in memory", x=0.01, ha="left", fontsize=13, weight="bold")
    note = (
        f"{row['events_per_second']} events/s, {row['subscriptions']:,} subscriptions, {row['streams']:,} streams; "
        f"commit {row['commit']}."
    )
    figure.text(0.01, 0.01, note, fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 0.98))
    PICTURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURES / "service-memory.png", dpi=100)
    print("written to docs/pictures/service-memory.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
