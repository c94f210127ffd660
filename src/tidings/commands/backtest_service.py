"""`tidings backtest --url`: what a filter would have delivered of a service's log. Its Spark does the work."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidings.commands.connection import about_filter, as_line, connected

if TYPE_CHECKING:
    from tidings.client import Backtest

ROWS = 31  # of the table of rates
BAR = 24
_NAMES = {
    "existing": "the other delivered",
    "both": "in both",
    "only_draft": "only in the draft",
    "only_existing": "only in the existing",
}


@dataclass(frozen=True)
class Question:
    """What the user asks, in the words of the command line."""

    filter: str
    domain: str
    against: str | None = None  # the id of a subscription
    start: str | None = None  # a position or a time
    end: str | None = None
    samples: int = 5

    def check(self) -> None:
        """Refuse, with a ValueError, what is wrong before anything is asked."""
        _place(self.start, "--from")
        _place(self.end, "--to")


def run(question: Question, *, url: str | None, token_file: Path | None, console: Console) -> RenderableType:
    """Ask the service, and wait; the console is told so."""
    start, end = _place(question.start, "--from"), _place(question.end, "--to")
    with (
        console.status("matching the log on the service's Spark"),
        connected(url, token_file, patient=True) as client,
        about_filter(question.filter),
    ):
        found = client.backtest(question.domain, question.filter, start=start, end=end, compare=question.against)
    return report(found, question)


def report(found: Backtest, question: Question) -> RenderableType:
    """Counts, the rate over time, samples, and the difference."""
    summary = Table.grid(padding=(0, 2))
    summary.add_column()
    summary.add_column(justify="right")
    summary.add_row("events", f"{found.events:,}")
    share = 100 * found.count / found.events if found.events else 0.0
    summary.add_row("would be delivered", f"{found.count:,}", f"{share:.2f} %", Text(question.filter, "bold"))
    difference = dict(found.difference or {})
    only = difference.pop("samples", {})
    for name, value in difference.items():
        summary.add_row(f"  {_NAMES.get(name, name)}", f"{value:,}" if isinstance(value, int) else str(value))
    parts: list[RenderableType] = [summary]
    if found.rate:
        parts += ["", _rates(found.rate)]
    for title, events in {"samples": found.samples, **{f"samples {_NAMES[kind]}": only[kind] for kind in only}}.items():
        if shown := events[: question.samples]:
            parts += ["", Text(title, "dim"), *(Text(as_line(one)) for one in shown)]
    return Group(*parts)


def _rates(rate: tuple[tuple[str, int], ...]) -> Table:
    """Few enough rows to read: neighbours are added up."""
    size = -(-len(rate) // ROWS)
    groups = [(rate[at][0], sum(count for _, count in rate[at : at + size])) for at in range(0, len(rate), size)]
    peak = max(1, *(count for _, count in groups))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("from")
    table.add_column("delivered", justify="right")
    table.add_column("")
    for time, count in groups:
        table.add_row(time, f"{count:,}", Text("█" * round(BAR * count / peak), "cyan"))
    return table


def _place(text: str | None, option: str) -> int | dt.datetime | None:
    if text is None or (text.isascii() and text.isdigit()):
        return None if text is None else int(text)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{option} {text}: give a position, or a time such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"{option} {text}: a time needs its zone, such as {text}Z")
    return moment
