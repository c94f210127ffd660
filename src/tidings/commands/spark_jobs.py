"""`tidings match`, `analyse` and `adapt`: one job on Spark, over files, with a line that shows its progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.table import Table

from tidings import pipeline
from tidings.commands.inputs import DomainFile, Master, read_domain
from tidings.pipeline.jobs.adaptation import adapt as adapt_placements
from tidings.pipeline.jobs.adaptation_report import report, write
from tidings.pipeline.jobs.match_files import MatchJob, TaskCount
from tidings.pipeline.sinks.mailbox_groups import group_mailboxes
from tidings.pipeline.sources.table_files import read_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTPUTS = (".parquet", ".json", ".jsonl")
REJECTS_SHOWN = 3

T = TypeVar("T")


class MatchOutput(StrEnum):
    ids = "ids"
    pairs = "pairs"


Output = Annotated[
    MatchOutput, typer.Option("--output", help="An array of ids for each event, or a row for each match.")
]


class _Step(Protocol):
    def __call__(self, name: str, work: Callable[[], T], tasks: Callable[[], TaskCount] | None) -> T: ...


@contextmanager
def on_spark(master: str, name: str, console: Console) -> Iterator[tuple[SparkSession, Status]]:
    """A Spark session for one command, and the line that shows its progress."""
    with console.status("starting Spark") as status:
        spark = pipeline.session(master, name=name)
        try:
            yield spark, status
        finally:
            spark.stop()


# ---------------------------------------------------------------------- match


def match(
    events: Annotated[
        str, typer.Argument(metavar="EVENTS", help="The events: a file or directory of Parquet, JSON or CSV.")
    ],
    subscriptions: Annotated[
        str, typer.Option("--subscriptions", metavar="SUBS", help="A table with the columns id and filter.")
    ],
    out: Annotated[str, typer.Option("--out", metavar="OUT", help="Where the matches go: .parquet, .json or .jsonl.")],
    master: Master = "local[*]",
    output: Output = MatchOutput.ids,
) -> None:
    """Match a file of events against a file of subscriptions.

    Spark does the work, and writes the matches to a file. The filters use the events' own columns and types.
    Subscriptions that cannot be read are written beside the output, and the exit status is then 3.

    \b
      tidings match events.parquet --subscriptions subscriptions.csv --out matches.parquet
      tidings match events/ --subscriptions subs.jsonl --out pairs.json --output pairs --master spark://host:7077
    """
    if Path(out).suffix.lower() not in OUTPUTS:
        raise typer.BadParameter(f"--out {out}: matches are written to {', '.join(OUTPUTS)}")
    console = Console(stderr=True)
    with _progress(console) as step:
        spark = step("starting Spark", lambda: pipeline.session(master, name="tidings match"), None)
        try:
            start = time.perf_counter()
            job = MatchJob(spark, out, output.value)
            step("reading the events", lambda: job.read_events(events), job.tasks)
            step("compiling the subscriptions", lambda: job.compile(subscriptions), job.tasks)
            step("matching", job.match, job.tasks)
            seconds = time.perf_counter() - start
        finally:
            spark.stop()
    _report_match(job, seconds, out, console)
    if job.rejected:
        raise typer.Exit(3)


def _report_match(job: MatchJob, seconds: float, out: str, console: Console) -> None:
    console.print(_summary(job, seconds))
    console.print(f"written to {out}", markup=False, highlight=False, soft_wrap=True)
    for id_, reason, position in job.rejects[:REJECTS_SHOWN]:
        place = "" if position is None else f" at column {position}"
        console.print(f"  rejected {id_!r}: {reason}{place}", markup=False, highlight=False)
    if job.rejected:
        line = f"  {job.rejected:,} rejected in all, written to {job.rejects_path}"
        console.print(line, markup=False, highlight=False)


def _summary(job: MatchJob, seconds: float) -> Table:
    table = Table.grid(padding=(0, 2))
    rows = [
        ("events", f"{job.events:,}"),
        ("subscriptions", f"{job.subscriptions:,}"),
        ("matches", f"{job.matches:,}"),
        ("events with a match", f"{job.matched_events:,}"),
        ("placement", job.placement),
        ("seconds", f"{seconds:,.1f}"),
        ("events a second", f"{job.events / seconds:,.0f}"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


@contextmanager
def _progress(console: Console) -> Iterator[_Step]:
    """A line for each step, with a bar that follows Spark's tasks; nothing if this is not a terminal."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def step(name: str, work: Callable[[], T], tasks: Callable[[], TaskCount] | None) -> T:
            line = progress.add_task(name, total=None)
            done = threading.Event()

            def watch() -> None:
                while not done.wait(0.2):
                    if tasks is not None:
                        count = tasks()
                        progress.update(line, total=count.total or None, completed=count.completed)

            watcher = threading.Thread(target=watch, daemon=True)
            watcher.start()
            try:
                result = work()
            finally:
                done.set()
                watcher.join()
            progress.update(line, total=1, completed=1)
            return result

        yield step


# ---------------------------------------------------------------------- analyse, adapt


def analyse(
    subscriptions: Annotated[
        str,
        typer.Argument(metavar="SUBSCRIPTIONS", help="A table with id and filter, and optionally subscriber."),
    ],
    events: Annotated[
        str | None,
        typer.Option("--events", metavar="PATH", help="Typical events: a file or directory of Parquet, JSON or CSV."),
    ] = None,
    domain: DomainFile = None,
    subscriber: Annotated[
        str | None,
        typer.Option("--subscriber", metavar="COLUMN", help="The column that names the subscriber."),
    ] = None,
    sample: Annotated[int, typer.Option("--sample", min=1, max=1_000_000, help="Events to match.")] = 2_000,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Write tables and pictures to this directory.")
    ] = None,
    master: Master = "local[*]",
) -> None:
    """Report which subscriptions never match and what they cost.

    Also which values are crowded, which always match, which are equivalent or covered by others, and by which
    indices and dimensions to place them. Types come from the events, or from a domain.

    \b
      tidings analyse subscriptions.parquet --events events.parquet
      tidings analyse subscriptions.csv --domain flights.toml --out analysis/
    """
    _types_are_given(events, domain)
    chosen = None if domain is None else read_domain(domain)
    console = Console(stderr=True)
    with on_spark(master, "tidings analyse", console) as (spark, status):
        status.update("reading")
        table = read_frame(spark, subscriptions)
        typical = None if events is None else read_frame(spark, events)
        status.update("analysing")
        found = pipeline.analyse(table, events=typical, domain=chosen, subscriber=subscriber, sample=sample)
    if out is not None:
        _report_written(out, found.write(out), console)
    Console().print(found)


def adapt(
    subscriptions: Annotated[str, typer.Argument(metavar="SUBSCRIPTIONS", help="A table with id and filter.")],
    events: Annotated[
        str | None,
        typer.Option("--events", metavar="PATH", help="The history: a file or directory of Parquet, JSON or CSV."),
    ] = None,
    domain: DomainFile = None,
    placement: Annotated[
        list[str] | None, typer.Option("--placement", metavar="NAME", help="Only this placement; repeatable.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="Partitions to place on; by default Spark's cores.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Publish the Views in this directory.")
    ] = None,
    mailboxes: Annotated[
        str | None,
        typer.Option("--mailboxes", metavar="FILE", help="Also group the mailboxes of this store by their filters."),
    ] = None,
    master: Master = "local[*]",
) -> None:
    """Fit placements to subscriptions and past events.

    Finds quantiles, indices, dimensions and clusters. A View is published with the next epoch if it differs
    from the one that is there.

    \b
      tidings adapt subscriptions.parquet --events history/ --out views/
      tidings adapt subscriptions.parquet --events history/ --placement digests --mailboxes mailboxes.sqlite
    """
    _types_are_given(events, domain)
    chosen = None if domain is None else read_domain(domain)
    console = Console(stderr=True)
    with on_spark(master, "tidings adapt", console) as (spark, status):
        status.update("reading")
        table = read_frame(spark, subscriptions)
        history = None if events is None else read_frame(spark, events)
        status.update("adapting")
        names = tuple(placement) if placement else None
        found = adapt_placements(table, history, domain=chosen, names=names, partitions=partitions)
        if mailboxes is not None:
            status.update("grouping mailboxes")
            made = group_mailboxes(table, found.statistics.filters.domain, mailboxes)
            console.print(f"{made:,} groups of subscriptions in {mailboxes}", markup=False, highlight=False)
    if out is not None:
        _report_written(out, write(found, out), console)
    Console().print(report(found))


def _types_are_given(events: str | None, domain: Path | None) -> None:
    if events is None and domain is None:
        raise typer.BadParameter("give --events or --domain: filters are read by the types of the attributes")


def _report_written(out: str, names: list[str], console: Console) -> None:
    console.print(f"written to {out}: {', '.join(names)}", markup=False, highlight=False, soft_wrap=True)
