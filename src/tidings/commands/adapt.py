"""`tidings adapt`: the Views of placements for a table of subscriptions and a history of events."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from tidings.commands.on_spark import on_spark
from tidings.model.domain import Domain
from tidings.pipeline.jobs.adaptation import Adapted, adapt
from tidings.pipeline.jobs.adaptation_report import write
from tidings.pipeline.sinks.mailbox_groups import group_mailboxes
from tidings.pipeline.sources.table_files import read_frame


@dataclass(frozen=True)
class Wish:
    """What the user asks for."""

    subscriptions: str  # a path
    events: str | None  # a path
    domain: Domain | None
    placements: tuple[str, ...] | None
    partitions: int | None
    out: str | None  # a directory
    mailboxes: str | None  # a store of notifications


def run(wish: Wish, *, master: str, console: Console) -> Adapted:
    """Do it; the console is told how it goes."""
    with on_spark(master, "tidings adapt", console) as (spark, status):
        status.update("reading")
        subscriptions = read_frame(spark, wish.subscriptions)
        events = None if wish.events is None else read_frame(spark, wish.events)
        status.update("adapting")
        found = adapt(subscriptions, events, domain=wish.domain, names=wish.placements, partitions=wish.partitions)
        if wish.mailboxes is not None:
            status.update("grouping mailboxes")
            made = group_mailboxes(subscriptions, found.statistics.filters.domain, wish.mailboxes)
            console.print(f"{made:,} groups of subscriptions in {wish.mailboxes}", markup=False, highlight=False)
    if wish.out is not None:
        names = write(found, wish.out)
        console.print(f"written to {wish.out}: {', '.join(names)}", markup=False, highlight=False, soft_wrap=True)
    return found
