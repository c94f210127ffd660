"""`tidings backtest`: what a filter would have delivered, over files of events or over a service's log."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidings.commands.connection import TokenFile, Url, about_filter, as_line, connected
from tidings.commands.inputs import Filter, FilterTextError, Master
from tidings.errors import FilterError, TidingsError

if TYPE_CHECKING:
    from tidings.client import BacktestResult
    from tidings.pipeline import Backtest

ROWS = 31  # of the table of rates
BAR = 24
_NAMES = {
    "existing": "the other delivered",
    "both": "in both",
    "only_draft": "only in the draft",
    "only_existing": "only in the existing",
}


class TimeUnit(StrEnum):
    s = "s"
    ms = "ms"
    us = "us"


def backtest(
    filter: Filter,
    events: Annotated[
        str | None,
        typer.Option("--events", metavar="PATH", help="The events: a file or directory of Parquet, JSON or CSV."),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--subscriptions", metavar="SUBS", help="A table with id and filter, in which --against is an id."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="ID|FILTER", help="The subscription to compare with.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="The column with the time of an event.")
    ] = None,
    time_unit: Annotated[
        TimeUnit | None, typer.Option("--time-unit", help="The unit of a time in integers, counted from 1970.")
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option("--bucket", metavar="1h", help="The length of time to count by: 15m, 1h, 1d, 1w, 1mo."),
    ] = None,
    picture: Annotated[
        str | None, typer.Option("--picture", metavar="FILE.png", help="Draw the rate over time to this file.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=0, max=1000, help="Events to show of each kind.")] = 5,
    master: Master = "local[*]",
    logged: Annotated[
        str | None, typer.Option("--domain", metavar="NAME", help="Instead of --events: a domain in a service's log.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="WHERE", help="In a log: the first position, or a time.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="WHERE", help="In a log: the position, or time, to end before.")
    ] = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show what a filter would have delivered.

    Over stored events: how many, when, and how that differs from another filter.

    \b
      tidings backtest "magnitude > 4.5" --events quakes.parquet
      tidings backtest "price > 8.30" --events quotes/ --time day --bucket 1w --picture rate.png
      tidings backtest "price > 8.30" --events quotes/ --subscriptions subscriptions.csv --against oil-1
      tidings backtest "price > 8.30" --events quotes/ --against "price > 8.50"
      tidings backtest "price > 8.30" --domain quotes --url http://127.0.0.1:8080 --against oil-1
    """
    if (events is None) == (logged is None):
        raise typer.BadParameter("give one of --events PATH, and --domain NAME of a service")
    if logged is not None:
        first, last = _place(start, "--from"), _place(end, "--to")
        with (
            Console(stderr=True).status("matching the log on the service's Spark"),
            connected(url, token_file, patient=True) as client,
            about_filter(filter),
        ):
            found = client.backtest(logged, filter, start=first, end=last, compare=against)
        Console().print(report(found, filter, samples))
        return
    assert events is not None
    if table is not None and against is None:
        raise typer.BadParameter("--subscriptions needs --against with the id of the one to compare with")
    if time_unit is not None and time is None:
        raise typer.BadParameter("--time-unit is the unit of the column that --time names; give both")
    _check_values(bucket, picture)
    unit = None if time_unit is None else time_unit.value
    options = {"time": time, "time_unit": unit, "bucket": bucket, "samples": samples}
    try:
        compared = _over_files(filter, events, table=table, against=against, master=master, **options)
    except FilterError as error:
        raise FilterTextError.of(error, filter) from None
    if picture is not None:
        compared.picture(picture)
    Console().print(compared)


def _check_values(bucket: str | None, picture: str | None) -> None:
    """Find what is wrong before Spark is started."""
    from tidings.pipeline.jobs.backtest_report import check_picture
    from tidings.pipeline.jobs.time_buckets import Bucket

    try:
        if bucket is not None:
            Bucket.parse(bucket)
        if picture is not None:
            check_picture(picture)
    except TidingsError:
        raise
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def _over_files(
    filter: str, events: str, *, table: str | None, against: str | None, master: str, **options: Any
) -> Backtest:
    from tidings import pipeline
    from tidings.commands.spark_jobs import on_spark
    from tidings.pipeline.sources.table_files import read_frame

    with on_spark(master, "tidings backtest", Console(stderr=True)) as (spark, status):
        status.update("reading the events")
        read = read_frame(spark, events)
        if table is not None and against is not None:
            against = pipeline.filter_of(read_frame(spark, table), against)
        status.update("matching")
        return pipeline.backtest(read, filter, against=against, **options)


def report(found: BacktestResult, filter: str, samples: int) -> RenderableType:
    """Counts, the rate over time, samples, and the difference."""
    summary = Table.grid(padding=(0, 2))
    summary.add_column()
    summary.add_column(justify="right")
    summary.add_row("events", f"{found.events:,}")
    share = 100 * found.count / found.events if found.events else 0.0
    summary.add_row("would be delivered", f"{found.count:,}", f"{share:.2f} %", Text(filter, "bold"))
    difference = dict(found.difference or {})
    only = difference.pop("samples", {})
    for name, value in difference.items():
        summary.add_row(f"  {_NAMES.get(name, name)}", f"{value:,}" if isinstance(value, int) else str(value))
    parts: list[RenderableType] = [summary]
    if found.rate:
        parts += ["", _rates(found.rate)]
    for title, events in {"samples": found.samples, **{f"samples {_NAMES[kind]}": only[kind] for kind in only}}.items():
        if shown := events[:samples]:
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
        raise typer.BadParameter(f"{option} {text}: give a position, or a time such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{option} {text}: a time needs its zone, such as {text}Z")
    return moment
