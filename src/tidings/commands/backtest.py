"""`tidings backtest`: what a filter would have delivered over a file of events."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from tidings.commands.on_spark import on_spark
from tidings.pipeline.jobs.backtest_report import check_picture
from tidings.pipeline.jobs.backtesting import Backtest, backtest, filter_of
from tidings.pipeline.jobs.time_buckets import Bucket
from tidings.pipeline.sources.table_files import read_frame


@dataclass(frozen=True)
class Question:
    """What the user asks."""

    filter: str
    events: str  # a path
    subscriptions: str | None  # a path
    against: str | None  # an id in the subscriptions; without those a filter
    time: str | None
    time_unit: str | None
    bucket: str | None
    picture: str | None  # a path
    samples: int

    def check(self) -> None:
        """Refuse, with a ValueError, what is wrong before anything is read."""
        if self.subscriptions is not None and self.against is None:
            raise ValueError("--subscriptions needs --against with the id of the one to compare with")
        if self.time_unit is not None and self.time is None:
            raise ValueError("--time-unit is of the column that --time names; give both")
        if self.bucket is not None:
            Bucket.parse(self.bucket)
        if self.picture is not None:
            check_picture(self.picture)


def run(question: Question, *, master: str, console: Console) -> Backtest:
    """Answer it; the console is told how it goes."""
    with on_spark(master, "tidings backtest", console) as (spark, status):
        status.update("reading the events")
        events = read_frame(spark, question.events)
        against = question.against
        if question.subscriptions is not None and against is not None:
            against = filter_of(read_frame(spark, question.subscriptions), against)
        status.update("matching")
        found = backtest(
            events,
            question.filter,
            against=against,
            time=question.time,
            time_unit=question.time_unit,
            bucket=question.bucket,
            samples=question.samples,
        )
    if question.picture is not None:
        found.picture(question.picture)
    return found
