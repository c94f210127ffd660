"""A backtest for people: a report for the terminal, and a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tidings.errors import TidingsError
from tidings.model.domain import parse_path, path_text
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.jobs.time_buckets import Bucket, microseconds, moment, readable

if TYPE_CHECKING:
    import datetime as dt

    from rich.console import RenderableType

    from tidings.pipeline.jobs.backtesting import Backtest, Counts, Event

PICTURES = (".png", ".svg", ".pdf")

_BARS = " ▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 60
_ROWS = 31  # of the table of rates
_BAR_WIDTH = 24
_COLUMNS = 7  # of the table of samples
_CELL = 32
_DRAFT, _EXISTING = "cyan", "yellow"
_UNITS = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}

Rate = Sequence[tuple["dt.datetime", "Counts"]]


class _Stretch(NamedTuple):
    start: dt.datetime
    events: int
    draft: int
    existing: int


def report(result: Backtest) -> RenderableType:
    """Counts, the rate over time, and samples."""
    parts: list[RenderableType] = [_summary(result)]
    if result.rate:
        parts += ["", _sparklines(result), "", _rates(result)]
    titles = {"only_draft": "only in the draft", "only_existing": "only in the existing", "both": "in both"}
    for kind, events in result.samples.items():
        if events:
            title = "samples" if result.against is None else f"samples {titles[kind]}"
            parts += ["", _samples(title, events, result)]
    return Group(*parts)


def _summary(result: Backtest) -> RenderableType:
    counts = result.counts
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    table.add_row("events", f"{counts.events:,}", "", _period(result))
    table.add_row(
        Text("draft", _DRAFT), f"{counts.draft:,}", _share(counts.draft, counts.events), Text(result.draft, "bold")
    )
    if result.against is not None:
        table.add_row(
            Text("existing", _EXISTING),
            f"{counts.existing:,}",
            _share(counts.existing, counts.events),
            Text(result.against, "bold"),
        )
        table.add_row("  in both", f"{counts.both:,}", _share(counts.both, counts.events), "")
        table.add_row("  only in the draft", f"{counts.only_draft:,}", _share(counts.only_draft, counts.events), "")
        table.add_row(
            "  only in the existing", f"{counts.only_existing:,}", _share(counts.only_existing, counts.events), ""
        )
    if result.rate:
        start, busiest = max(result.rate, key=lambda one: one[1].draft)
        each = sum(one.draft for _, one in result.rate) / len(result.rate)
        table.add_row(
            f"per {_bucket_name(result)}", f"{each:,.1f}", "", f"at most {busiest.draft:,}, from {_when(start, result)}"
        )
    if result.unfit:
        table.add_row(
            "unfit", f"{result.unfit:,}", "", "with a value that no filter can be asked of; they match nothing"
        )
    if result.timeless:
        table.add_row("timeless", f"{result.timeless:,}", "", f"without a time in {result.time}; not in the rate")
    return table


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %"


def _period(result: Backtest) -> str:
    if result.time is None:
        return "no column was named that says when they were"
    if not result.rate:
        return ""
    assert result.first is not None
    assert result.last is not None
    return f"{_when(result.first, result)} to {_when(result.last, result)} by {result.time}"


def _bucket_name(result: Backtest) -> str:
    bucket = result.bucket or ""
    number = bucket.rstrip("smhdwoy")
    unit = _UNITS[bucket[len(number) :]]
    return unit if number == "1" else f"{number} {unit}s"


def _when(moment: dt.datetime, result: Backtest) -> str:
    """As precise as the buckets are."""
    unit = (result.bucket or "").lstrip("0123456789")
    form = {"y": "%Y", "mo": "%Y-%m", "w": "%Y-%m-%d", "d": "%Y-%m-%d", "s": "%Y-%m-%d %H:%M:%S"}
    return moment.strftime(form.get(unit, "%Y-%m-%d %H:%M"))


def _grouped(rate: Rate, size: int) -> list[_Stretch]:
    """Stretches of so many buckets each."""
    return [_stretch(rate[first : first + size]) for first in range(0, len(rate), size)]


def _by_bucket(rate: Rate, bucket: Bucket) -> list[_Stretch]:
    """Stretches of whole buckets that another bucket holds."""
    numbers = bucket.numbers(np.array([microseconds(start) for start, _ in rate])).tolist()
    groups = groupby(zip(numbers, rate, strict=True), key=itemgetter(0))
    return [_stretch([one for _, one in group]) for _, group in groups]


def _stretch(rate: Rate) -> _Stretch:
    return _Stretch(
        rate[0][0],
        sum(counts.events for _, counts in rate),
        sum(counts.draft for _, counts in rate),
        sum(counts.existing for _, counts in rate),
    )


def _sparklines(result: Backtest) -> RenderableType:
    groups = _grouped(result.rate, -(-len(result.rate) // _SPARK_WIDTH))
    peak = max(max(one.draft, one.existing) for one in groups)
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("draft", _DRAFT), Text(sparkline([one.draft for one in groups], peak), _DRAFT))
    if result.against is not None:
        line = sparkline([one.existing for one in groups], peak)
        table.add_row(Text("existing", _EXISTING), Text(line, _EXISTING))
    first, last = _when(groups[0].start, result), _when(groups[-1].start, result)
    gap = max(2, len(groups) - len(first) - len(last))
    table.add_row("", Text(first if len(groups) == 1 else f"{first}{' ' * gap}{last}", "dim"))
    return table


def sparkline(values: Sequence[int], peak: int) -> str:
    """A character for each value; whatever is not 0 is seen.

    >>> sparkline([0, 1, 50, 100], 100)
    ' ▁▄█'
    """
    steps = len(_BARS) - 1
    return "".join(_BARS[max(1, round(value * steps / peak))] if value else _BARS[0] for value in values)


def _rates(result: Backtest) -> RenderableType:
    """By the result's own buckets, or by longer ones that are few enough to read."""
    bucket = Bucket.parse(result.bucket or "")
    first, last = (microseconds(result.rate[end][0]) for end in (0, -1))
    shown = readable(bucket, first, last, _ROWS)
    size = 1 if shown is not None else -(-len(result.rate) // _ROWS)
    groups = _grouped(result.rate, size) if shown is None else _by_bucket(result.rate, shown)
    peak = max(1, *(one.draft for one in groups))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"{shown or f'{size} × {bucket}'} from")
    names = ("events", "draft") if result.against is None else ("events", "draft", "existing")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("")
    for one in groups:
        numbers = [f"{getattr(one, name):,}" for name in names]
        table.add_row(_when(one.start, result), *numbers, Text(_bar(one.draft / peak), _DRAFT))
    return table


def _bar(share: float) -> str:
    eighths = round(share * _BAR_WIDTH * 8)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def _samples(title: str, events: Sequence[Event], result: Backtest) -> RenderableType:
    """The attributes that say why and when, then others while there is room; all are in `samples`."""
    paths = dict.fromkeys(parse_path(name) for name in (result.time, *result.reads) if name is not None)
    enough = max(_COLUMNS, len(paths))
    paths |= {(name,): None for name, value in events[0].items() if not isinstance(value, dict | list | bytes)}
    shown = list(paths)[:enough]
    left = len(events[0].keys() - {path[0] for path in shown})
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title=title, title_justify="left")
    for path in shown:
        table.add_column(path_text(path), overflow="ellipsis", no_wrap=True, max_width=_CELL)
    if left:
        table.add_column(f"… {left} more")
    for event in events:
        table.add_row(*(_cell(event, path) for path in shown))
    return table


def _cell(event: Event, path: tuple[str, ...]) -> Text:
    value: Any = event
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return Text("NULL", "dim")
    text = str(value).replace("+00:00", "")
    return Text("".join(character if character.isprintable() else "·" for character in text[: 2 * _CELL]))


# ---------------------------------------------------------------------- the picture


def check_picture(path: str | os.PathLike[str]) -> None:
    """Refuse what cannot be drawn before the work is done."""
    if Path(path).suffix.lower() not in PICTURES:
        raise ValueError(f"{os.fspath(path)}: pictures are drawn to {', '.join(PICTURES)}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise TidingsError("a picture needs matplotlib: pip install 'tidings[plots]'") from None


def draw(result: Backtest, path: str | os.PathLike[str]) -> None:
    """The rate over time; with a subscription to compare with, what the draft adds and what it misses."""
    check_picture(path)
    if not result.rate:
        raise PipelineError("there is no rate to draw: name the column that says when an event was as the time")
    from matplotlib.figure import Figure

    compared = result.against is not None
    figure = Figure(figsize=(10, 6 if compared else 4), dpi=110, layout="constrained")
    heights = [3, 2] if compared else [1]
    axes = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    edges, counts = _edges(result)
    rate = axes[0]
    rate.stairs([one.draft for one in counts], edges, fill=True, color="#7fb3d5", label="draft")
    if compared:
        rate.stairs([one.existing for one in counts], edges, color="#b9770e", linewidth=1.1, label="existing")
        _draw_difference(axes[1], edges, counts)
    rate.set_ylim(0, 1.08 * max(1, *(max(one.draft, one.existing) for one in counts)))
    rate.set_xlim(edges[0], edges[-1])
    rate.set_ylabel(f"matches per {_bucket_name(result)}, UTC")
    figure.suptitle(_title(result), x=0.01, ha="left", fontsize=10.5)
    for one in axes:
        _plain_axes(one)
        if compared:  # above, not over, the bars
            one.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.01, 0.98), ncols=2)
    _draw_dates(axes[-1])
    try:
        figure.savefig(path)
    except OSError as error:
        raise PipelineError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error


def _edges(result: Backtest) -> tuple[list[dt.datetime], list[Counts]]:
    """Where buckets begin, and where the last one ends; without a zone, as matplotlib has UTC."""
    ends = [start for start, _ in result.rate]
    bucket = Bucket.parse(result.bucket or "")
    ends.append(moment(bucket.after(ends[-1])))
    return [end.replace(tzinfo=None) for end in ends], [counts for _, counts in result.rate]


def _draw_difference(axes: Any, edges: list[dt.datetime], counts: list[Counts]) -> None:
    added, missed = [one.only_draft for one in counts], [one.only_existing for one in counts]
    axes.stairs(added, edges, fill=True, color="#52a06b", label="only in the draft")
    axes.stairs([-count for count in missed], edges, fill=True, color="#c0504d", label="only in the existing")
    axes.axhline(0, color="#666666", linewidth=0.8)
    axes.set_ylabel("difference")
    axes.set_ylim(*(1.1 * sign * max(1, *found) for sign, found in ((-1, missed), (1, added))))


def _draw_dates(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _plain_axes(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_formatter(lambda count, _: f"{abs(count):,.0f}")
    axes.spines[["top", "right"]].set_visible(False)


def _title(result: Backtest) -> str:
    counts = result.counts
    lines = [f"draft: {_short(result.draft)}  ·  {counts.draft:,} of {counts.events:,} events"]
    if result.against is not None:
        lines.append(f"existing: {_short(result.against)}  ·  {counts.existing:,}, {counts.both:,} in both")
    # A dollar sign would begin a formula.
    return "\n".join(lines).replace("$", r"\$")


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 90 else f"{flat[:89]}…"
