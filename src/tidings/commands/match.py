"""`tidings match`: a file of events and a file of subscriptions in, a file of matches out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tidings import pipeline
from tidings.pipeline.jobs.match_files import MatchJob, TaskCount

REJECTS_SHOWN = 3

_Answer = TypeVar("_Answer")


class _Step(Protocol):
    def __call__(self, name: str, work: Callable[[], _Answer], tasks: Callable[[], TaskCount] | None) -> _Answer: ...


def run(
    events: str, *, subscriptions: str, out: str, master: str, output: Literal["ids", "pairs"], console: Console
) -> int:
    """Run the job and show how it goes; answers how many subscriptions were rejected."""
    with _progress(console) as step:
        spark = step("starting Spark", lambda: pipeline.session(master, name="tidings match"), None)
        try:
            start = time.perf_counter()
            job = MatchJob(spark, out, output)
            step("reading the events", lambda: job.read_events(events), job.tasks)
            step("compiling the subscriptions", lambda: job.compile(subscriptions), job.tasks)
            step("matching", job.match, job.tasks)
            seconds = time.perf_counter() - start
        finally:
            spark.stop()
    console.print(_summary(job, seconds))
    console.print(f"written to {out}", markup=False, highlight=False, soft_wrap=True)
    for id_, reason, position in job.rejects[:REJECTS_SHOWN]:
        place = "" if position is None else f" at column {position}"
        console.print(f"  rejected {id_!r}: {reason}{place}", markup=False, highlight=False)
    if job.rejected:
        console.print(
            f"  {job.rejected:,} rejected in all, written to {job.rejects_path}", markup=False, highlight=False
        )
    return job.rejected


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
    """A line for each step, with a bar that follows Spark's tasks; nothing where nobody looks."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def step(name: str, work: Callable[[], _Answer], tasks: Callable[[], TaskCount] | None) -> _Answer:
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
                answer = work()
            finally:
                done.set()
                watcher.join()
            progress.update(line, total=1, completed=1)
            return answer

        yield step
