"""An analysis for people: a report for the terminal, tables in files, and pictures."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tidings.matching.analysis.crowded_values import Crowd, Plane
from tidings.model.domain import path_text
from tidings.pipeline.job_errors import PipelineError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidings.pipeline.jobs.table_analysis import Analysis, Costs

HOT_SHOWN = 12
COSTS_SHOWN = 10
RELATIONS_SHOWN = 5  # of each kind

_PANELS = 6  # attributes in the picture of cells
_BAR_WIDTH = 20
_SAID = {
    "never": "no event can match",
    "always": "every event matches; they are compared with no other",
    "equivalent": "repeat an earlier one, in whatever words",
    "covered": "match only what another, broader one matches",
    "redundant": "covered by, or equal to, another of the same subscriber",
    "undecided": "of which the search was given up",
    "rejected": "cannot be read",
    "elsewhere": "to other domains, left out",
}


def hottest(crowds: Sequence[Crowd], limit: int = HOT_SHOWN) -> list[tuple[Crowd, int]]:
    """The cells that most subscriptions overlap beyond what is usual on their attribute."""
    cells = [(crowd, cell) for crowd in crowds for cell in range(len(crowd.counts))]
    cells.sort(key=lambda one: (one[0].mean - one[0].counts[one[1]], one[0].path))
    return [(crowd, cell) for crowd, cell in cells[:limit] if crowd.counts[cell] > crowd.mean]


# ---------------------------------------------------------------------- the report


def report(found: Analysis) -> RenderableType:
    parts: list[RenderableType] = [_summary(found), "", _examples(found), "", _crowded(found), "", _placing(found)]
    if found.costs is not None:
        parts += ["", _priced(found.costs)]
    return Group(*parts)


def _grid(title: str, *columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title=title, title_justify="left")
    for column in columns:
        numeric = column in ("subscriptions", "× mean", "share", "matches an event", "µs an event")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    return table


def _summary(found: Analysis) -> RenderableType:
    counts = found.counts
    total = max(1, counts["subscriptions"])
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    known = f"{found.events:,} events sampled" if found.events else "no events: judged by the filters' own constants"
    table.add_row("subscriptions", f"{counts['subscriptions']:,}", "", f"to '{found.table.domain.name}'; {known}")
    for name, said in _SAID.items():
        if counts.get(name) or name in ("never", "always", "equivalent", "covered"):
            table.add_row(name, f"{counts[name]:,}", f"{100 * counts[name] / total:.1f} %", Text(said, "dim"))
    return table


def _examples(found: Analysis) -> RenderableType:
    relations = found.relations()
    if not len(relations):
        return Text("every subscription can match, and none implies another", "dim")
    table = _grid("some of them", "relation", "id", "other")
    kinds = np.asarray(relations["relation"])
    for kind in dict.fromkeys(kinds.tolist()):
        for row in np.flatnonzero(kinds == kind)[:RELATIONS_SHOWN].tolist():
            id_, other = relations["id"][row].as_py(), relations["other"][row].as_py()
            table.add_row(kind, Text(_shown(id_)), Text("" if other is None else _shown(other)))
    return table


def _crowded(found: Analysis) -> RenderableType:
    table = _grid("the most crowded values", "attribute", "cell", "subscriptions", "× mean", "")
    cells = hottest(found.crowds)
    most = max((int(crowd.counts[cell]) for crowd, cell in cells), default=1)
    for crowd, cell in cells:
        bar = "█" * max(1, round(_BAR_WIDTH * int(crowd.counts[cell]) / most))
        heat = f"{crowd.heat(cell):.1f}"
        cell_text = Text(_shown(crowd.cells[cell]))
        table.add_row(path_text(crowd.path), cell_text, f"{crowd.counts[cell]:,}", heat, Text(bar, "cyan"))
    return table if cells else Text("no value is crowded", "dim")


def _placing(found: Analysis) -> RenderableType:
    table = _grid("how to place them", "by", "attributes", "reason")
    for one in found.indices.chosen:
        table.add_row("index", ", ".join(map(path_text, one.paths)), Text(one.reason))
    if found.indices.left:
        reason = f"{found.indices.left:,} subscriptions that no index finds: every event visits them"
        table.add_row("index", "(none)", Text(reason))
    suggested = [one for one in found.dimensions if one.suggested]
    for dimension in suggested or found.dimensions[:1]:
        table.add_row("dimension", path_text(dimension.path), Text(dimension.reason))
    return table


def _priced(costs: Costs) -> RenderableType:
    names = (costs.by, "subscriptions", "matches an event", "µs an event", "share")
    table = _grid(f"what each {costs.by} costs", *names)
    shares, ns = costs.shares, costs.ns
    for row in range(min(COSTS_SHOWN, len(costs.names))):
        name = costs.names[row].as_py()
        table.add_row(
            Text("nobody", "dim") if name is None else Text(_shown(name)),
            *_priced_row(costs.subscriptions[row], costs.matches[row], ns[row], shares[row]),
        )
    if len(costs.names) > COSTS_SHOWN:
        rest = slice(COSTS_SHOWN, None)
        table.add_row(
            Text(f"{len(costs.names) - COSTS_SHOWN:,} others", "dim"),
            *_priced_row(*(one[rest].sum() for one in (costs.subscriptions, costs.matches, ns, shares))),
        )
    return table


def _priced_row(subscriptions: int, matches: float, ns: float, share: float) -> tuple[str, ...]:
    return f"{subscriptions:,}", f"{matches:,.3f}", f"{ns / 1e3:,.2f}", f"{share:.1%}"


def _shown(value: object) -> str:
    text = str(value)
    return "".join(character if character.isprintable() else "·" for character in text[:60])


# ---------------------------------------------------------------------- files


def write(found: Analysis, directory: str | os.PathLike[str]) -> list[str]:
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "analysis.json").write_text(json.dumps(found.to_dict(), indent=1, ensure_ascii=False) + "\n")
        pq.write_table(found.relations(), folder / "relations.parquet")
        pa.csv.write_csv(_cells_table(found.crowds), folder / "cells.csv")
        names = ["analysis.json", "relations.parquet", "cells.csv"]
        if found.costs is not None:
            pq.write_table(found.costs.to_arrow(), folder / "costs.parquet")
            names.append("costs.parquet")
        return names + _pictures(found, folder)
    except OSError as error:
        raise PipelineError(f"cannot write to {folder}: {error.strerror or error}") from error


def _cells_table(crowds: Sequence[Crowd]) -> pa.Table:
    rows = [
        (path_text(crowd.path), crowd.cells[cell], int(crowd.counts[cell]), crowd.heat(cell))
        for crowd in crowds
        for cell in range(len(crowd.counts))
    ]
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    types: Any = (pa.string(), pa.string(), pa.int64(), pa.float64())
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    return pa.table(arrays, names=["attribute", "cell", "subscriptions", "heat"])


# ---------------------------------------------------------------------- pictures


def _pictures(found: Analysis, folder: Path) -> list[str]:
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        return []
    names = []
    if any(len(crowd.counts) for crowd in found.crowds):
        _draw_cells(found, folder / "cells.png")
        names.append("cells.png")
    if found.plane is not None:
        _draw_plane(found.plane, folder / "plane.png")
        names.append("plane.png")
    if found.costs is not None:
        _draw_costs(found.costs, folder / "costs.png")
        names.append("costs.png")
    return names


def _draw_cells(found: Analysis, path: Path) -> None:
    """How many subscriptions overlap each cell, of the attributes with the greatest piles."""
    from matplotlib.figure import Figure

    crowds = sorted(found.crowds, key=lambda crowd: crowd.mean - max(crowd.counts, default=0))[:_PANELS]
    columns = min(3, len(crowds))
    rows = -(-len(crowds) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.9 * rows + 0.4), dpi=110, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, crowd in zip(panels, crowds, strict=False):
        hot = crowd.counts >= max(1, max(crowd.counts)) * 0.999
        panel.bar(range(len(crowd.counts)), crowd.counts, width=0.9, color=np.where(hot, "#c1121f", "#7fb3d5"))
        panel.axhline(crowd.mean, color="#555555", linewidth=0.9, linestyle=(0, (4, 3)))
        panel.set_title(_plain(path_text(crowd.path)), fontsize=10.5, loc="left")
        panel.set_title(_cells_title(crowd), fontsize=8, loc="right", color="#666666")
        ticks = _ticks(len(crowd.counts))
        panel.set_xticks(ticks, [_tick(crowd.cells[tick]) for tick in ticks], fontsize=8, rotation=30, ha="right")
        panel.tick_params(axis="y", labelsize=8)
        _quiet(panel)
    for panel in panels[len(crowds) :]:
        panel.set_visible(False)
    total = found.counts["subscriptions"]
    figure.suptitle(
        f"Subscriptions that overlap each cell, of {total:,}; dashed: the mean", x=0.01, ha="left", fontsize=11
    )
    figure.savefig(path)


def _cells_title(crowd: Crowd) -> str:
    return f"the {len(crowd.counts)} most crowded of {crowd.constants:,} values" if crowd.constants else "equal steps"


def _ticks(count: int) -> list[int]:
    step = max(1, -(-count // 7))
    return list(range(0, count, step))


def _tick(cell: str) -> str:
    """Where a cell begins."""
    start = cell.split(" and ")[0].removeprefix(">= ").removeprefix("> ")
    return _plain(start if len(start) <= 14 else f"{start[:13]}…")


def _draw_plane(plane: Plane, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.2), dpi=110, layout="constrained")
    panel = figure.subplots()
    image = panel.imshow(plane.counts.T, origin="lower", aspect="auto", cmap="YlOrRd", interpolation="nearest")
    for axis, cells, name in ((panel.xaxis, plane.cells[0], 0), (panel.yaxis, plane.cells[1], 1)):
        ticks = _ticks(len(cells))
        axis.set_ticks(ticks, [_tick(cells[tick]) for tick in ticks], fontsize=8)
        axis.set_label_text(_plain(path_text(plane.paths[name])))
    panel.tick_params(axis="x", labelrotation=30)
    bar = figure.colorbar(image, ax=panel)
    bar.ax.yaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    bar.ax.tick_params(labelsize=8)
    panel.set_title("Subscriptions that overlap each cell of two attributes", fontsize=11, loc="left")
    figure.savefig(path)


def _draw_costs(costs: Costs, path: Path) -> None:
    """The dearest by name, and how much of the cost so many of them make up."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=110, layout="constrained")
    bars, curve = figure.subplots(1, 2, width_ratios=[3, 2])
    count = min(15, len(costs.names))
    names = [_plain(_shown("nobody" if name is None else name)[:24]) for name in costs.names[:count].to_pylist()]
    shares = 100 * costs.shares
    bars.barh(range(count), shares[:count], color="#7fb3d5")
    bars.set_yticks(range(count), names, fontsize=8)
    bars.invert_yaxis()
    bars.set_xlabel("share of the cost, %")
    bars.set_title(f"The dearest of {len(costs.names):,} {costs.by}s", fontsize=10.5, loc="left")
    _quiet(bars, axis="x")
    whole = np.concatenate([[0], np.cumsum(shares)])
    curve.plot(np.linspace(0, 100, len(whole)), whole, color="#c1121f")
    curve.plot([0, 100], [0, 100], color="#999999", linewidth=0.8, linestyle=(0, (4, 3)))
    curve.set_xlim(0, 100)
    curve.set_ylim(0, 101)
    curve.set_xlabel(f"{costs.by}s, the dearest first, %")
    curve.set_ylabel("of the cost, %")
    curve.set_title("How much so many of them cost", fontsize=10.5, loc="left")
    _quiet(curve)
    figure.savefig(path)


def _quiet(axes: Any, axis: str = "y") -> None:
    axes.grid(axis=axis, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axis == "y":
        axes.yaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # which would begin a formula
