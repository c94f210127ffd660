"""Adapted Views for people and for files: a report, JSON for each View, and the distributions that led to them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tidings.model.domain import path_text
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.streams.checkpoint import write_durably
from tidings.systems.geometry.line_positions import edges_to_json
from tidings.systems.interface import REPLICATED, View, view_from_dict, view_to_dict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidings.pipeline.jobs.adaptation import Adapted

SUFFIX = ".view.json"


def report(found: Adapted) -> RenderableType:
    known = found.statistics
    events = "no history" if known.events is None else f"{known.events.count:,} events sampled"
    parts: list[RenderableType] = [
        f"{known.subscriptions:,} subscriptions, {known.filters.count:,} sampled; {events}",
        "",
    ]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("placement", "epoch", "partitions", ""):
        table.add_column(column, overflow="fold")
    for name, view in found.views.items():
        table.add_row(name, str(view.epoch), str(view.partitions), Text(described(view)))
    for name, why in found.refused.items():
        table.add_row(Text(name, "dim"), "", "", Text(why, "dim"))
    parts.append(table)
    other = [_other_partitions(name, view, found.partitions) for name, view in found.views.items()]
    parts += [line for line in other if line]
    if found.clustering:
        ways = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title="clusters by", title_justify="left")
        for column in ("way", "false negatives", "subscriptions an event meets", "precision"):
            ways.add_column(column)
        events_count = max(1, 0 if known.events is None else known.events.count)
        for way, quality in found.clustering.items():
            met = f"{quality.delivered * known.scale / events_count:,.0f}"
            ways.add_row(way, f"{quality.false_negatives:,}", met, f"{quality.precision:.4f}")
        parts += ["", ways]
    return Group(*parts)


def _other_partitions(name: str, view: View, asked: int) -> str:
    """Says why a View has not as many partitions as were asked for; nothing if it has."""
    if not asked or view.partitions == asked or name == REPLICATED:
        return ""
    why = (
        f"what it divides by, {view.described()}, has too few different values in the filters"
        if view.partitions < asked
        else "each of its parts is a partition of its own"
    )
    return f"{name}: {view.partitions:,} partitions, not {asked:,}: {why}"


def described(view: View) -> str:
    """Returns what a View is about, in a line."""
    return f"by {view.described()}"


def write(found: Adapted, directory: str | os.PathLike[str]) -> list[str]:
    """Writes each View to NAME.view.json, with the next epoch if there is one already; an equal one is not written."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = [name for name, view in found.views.items() if publish(name, view, folder)]
        (folder / "distributions.json").write_text(json.dumps(_distributions(found), indent=1) + "\n")
    except OSError as error:
        raise PipelineError(f"cannot write to {folder}: {error.strerror or error}") from error
    return [*(name + SUFFIX for name in names), "distributions.json"]


def published(name: str, folder: Path) -> Any | None:
    """Returns the View that was written last; None if there is none."""
    path = folder / (name + SUFFIX)
    if not path.exists():
        return None
    try:
        return view_from_dict(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"{path} is no View that can be read ({error}); remove it") from error


def publish(name: str, view: Any, folder: Path) -> bool:
    """Writes a View in one step, unless the one that is there is equal; returns whether it did."""
    form = view_to_dict(view)
    before = published(name, folder)
    if before is not None:
        if _without_epoch(view_to_dict(before)) == _without_epoch(json.loads(json.dumps(form))):
            return False
        form["epoch"] = before.epoch + 1
    write_durably(folder / (name + SUFFIX), json.dumps(form) + "\n")
    return True


def _without_epoch(form: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in form.items() if key != "epoch"}


def _distributions(found: Adapted) -> dict[str, Any]:
    known = found.statistics
    return {
        which: {
            path_text(path): {
                "nulls": round(one.nulls, 6),
                "distinct": one.distinct,
                "quantiles": edges_to_json(one.quantiles[np.linspace(0, len(one.quantiles) - 1, 65).astype(int)])
                if len(one.quantiles)
                else [],
            }
            for path, one in distributions.items()
        }
        for which, distributions in (("values", known.values), ("bounds", known.bounds))
    }
