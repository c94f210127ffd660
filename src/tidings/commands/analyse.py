"""`tidings analyse`: what a table of subscriptions is like."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from tidings.commands.on_spark import on_spark
from tidings.model.domain import Domain
from tidings.pipeline.jobs.table_analysis import Analysis, analyse
from tidings.pipeline.sources.table_files import read_frame


@dataclass(frozen=True)
class Question:
    """What the user asks."""

    subscriptions: str  # a path
    events: str | None  # a path
    domain: Domain | None
    subscriber: str | None
    sample: int
    out: str | None  # a directory


def run(question: Question, *, master: str, console: Console) -> Analysis:
    """Answer it; the console is told how it goes."""
    with on_spark(master, "tidings analyse", console) as (spark, status):
        status.update("reading")
        subscriptions = read_frame(spark, question.subscriptions)
        events = None if question.events is None else read_frame(spark, question.events)
        status.update("analysing")
        found = analyse(
            subscriptions,
            events=events,
            domain=question.domain,
            subscriber=question.subscriber,
            sample=question.sample,
        )
    if question.out is not None:
        names = found.write(question.out)
        console.print(f"written to {question.out}: {', '.join(names)}", markup=False, highlight=False, soft_wrap=True)
    return found
