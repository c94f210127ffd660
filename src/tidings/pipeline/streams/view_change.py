"""From one View of a stream's subscriptions to the next: what follows from table and history, and whether it pays.

    decide    statistics of all subscriptions and of the history (`adapting`), the View that they ask for, and what it
              would cost a micro-batch beside the one in force and beside none at all
    lay_out   the base's subscriptions once more, as files of that View, beside those that are there

The rest is a version of the index like any other (`changes.place`). Its number is in the offset of the next
micro-batch, and a batch that runs, or is run again, keeps to the version that it was planned with. So subscriptions are
held under the old View and the new, events are routed by one of them each, and the files of the old one go when the
last batch under it is done (`versions`): see `tidings.systems.transition` for the law.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidings.model.domain import Domain
from tidings.pipeline.build.index_directory import IndexDirectory
from tidings.pipeline.build.placement_choice import PlacementOptions
from tidings.pipeline.build.shard_building import IndexBuilder
from tidings.pipeline.build.table_reading import Contents
from tidings.pipeline.jobs.adaptation import over_whole_table, statistics_over
from tidings.pipeline.streams.index_changes import Base
from tidings.systems.interface import (
    AUTO,
    REPLICATED,
    Counts,
    Elastic,
    View,
    placement_named,
    view_from_dict,
    view_to_dict,
)
from tidings.systems.planner.planner import Division, Room, estimates, plan
from tidings.systems.statistics import Statistics

PAYS = 0.9  # of what the View in force costs: a change is work, and estimates are estimates
SHUFFLE_NS = 40e6  # of a micro-batch that is routed, whatever it holds: another stage of tasks, by estimate


@dataclass(frozen=True)
class Cost:
    """What micro-batches of so many events take, by the planner's estimate."""

    name: str
    event_ns: float
    batch_ns: float
    fits: bool  # the memory of an executor

    def __str__(self) -> str:
        return f"{self.name} {self.batch_ns / 1e6:,.1f} ms"


@dataclass(frozen=True, eq=False)
class ViewDecision:
    """Which View is to be in force, and why."""

    view: View | None  # None: every worker has all subscriptions
    pays: bool  # so that it is to take the place of the one in force
    why: str
    cost: Cost
    in_force: Cost
    made_for: int  # partitions that were asked for


@dataclass(frozen=True)
class Question:
    """What a View is to serve, beside subscriptions and events."""

    room: Room
    events_a_batch: float  # of recent micro-batches
    subscription_bytes: float
    placement: str = AUTO  # one that is named is taken whatever it costs
    epoch: int = 0  # of the next View
    made_for: int | None = None  # partitions that were asked for when the View in force was made
    counts: Counts = field(default_factory=dict)  # what tasks did under the View in force
    seconds: float = 1.0  # in this time

    @property
    def is_outgrown(self) -> bool:
        """Whether there are more executors than the View in force was made for, or fewer."""
        return self.made_for not in (None, self.room.partitions)


def decide(
    subscriptions: DataFrame, events: DataFrame, domain: Domain, in_force: View | None, asked: Question
) -> ViewDecision:
    """What a table of subscriptions and a history of events ask for."""
    statistics = statistics_over(subscriptions, events, domain)
    following = followed(in_force, statistics, asked)
    if following is not None:
        return weigh(following, in_force, statistics, asked, follows=True)
    found = asked_for(statistics, asked)
    if found is not None:
        found, _ = over_whole_table(subscriptions, statistics, found)
    return weigh(found, in_force, statistics, asked)


def followed(in_force: View | None, statistics: Statistics, asked: Question) -> View | None:
    """The View in force, as it follows executors that were added or taken, or a partition that is saturated.

    None where there is nothing to follow, or the View is of a kind that has to be made again.
    """
    if in_force is None or not isinstance(in_force, Elastic) or asked.placement not in (AUTO, in_force.placement):
        return None
    filters, scale = statistics.filters, statistics.scale
    measured = in_force.measured(asked.counts, asked.seconds) if asked.counts else in_force
    assert isinstance(measured, Elastic)
    if asked.is_outgrown:
        changed = measured.resized(asked.room.partitions, filters, scale=scale)
    else:
        changed = measured.relieved(filters, scale=scale)
    return changed if changed.partitions != in_force.partitions else None


def asked_for(statistics: Statistics, asked: Question) -> View | None:
    """The View that statistics ask for; None: every worker is to have all subscriptions."""
    if asked.placement == AUTO:
        view: View = plan(statistics, asked.room, subscription_bytes=asked.subscription_bytes).view
    else:
        view = placement_named(asked.placement).adapt(statistics, partitions=asked.room.partitions)
    return None if view.placement == REPLICATED else view


def weigh(
    found: View | None, in_force: View | None, statistics: Statistics, asked: Question, *, follows: bool = False
) -> ViewDecision:
    """Whether a View that was found is worth it, beside the one in force and beside none at all.

    One that follows executors or load takes the place of the one in force whatever they are estimated to cost.
    """
    room, placement, events_a_batch = asked.room, asked.placement, asked.events_a_batch
    whole = placement_named(REPLICATED).adapt(statistics, partitions=room.partitions)
    views: list[View] = [whole if view is None else view for view in (in_force, found)]
    if placement == AUTO:
        views.append(whole)
    divisions = estimates(views, statistics, room, subscription_bytes=asked.subscription_bytes)
    costs = [_cost(one, room, events_a_batch) for one in divisions]
    must_change = follows or asked.is_outgrown
    among = [1] if placement != AUTO or follows else range(1 if must_change else 0, len(costs))
    best = min(among, key=lambda at: (not costs[at].fits, costs[at].batch_ns))
    chosen = None if views[best].placement == REPLICATED else _numbered(views[best], asked.epoch)
    said = f"a micro-batch of {events_a_batch:,.0f} events takes {costs[best]}, {costs[0]} as it is"
    pays = _pays(in_force, chosen, costs[0], costs[best], asked, must_change=must_change)
    return ViewDecision(chosen, pays, said, costs[best], costs[0], room.partitions)


def _cost(division: Division, room: Room, events: float) -> Cost:
    shuffle = 0.0 if division.placement == REPLICATED else SHUFFLE_NS
    batch_ns = division.expected_ns * max(1.0, events) + shuffle
    return Cost(division.name, division.expected_ns, batch_ns, division.bytes <= room.memory)


def _pays(
    in_force: View | None, chosen: View | None, old: Cost, new: Cost, asked: Question, *, must_change: bool
) -> bool:
    if in_force is None and chosen is None:
        return False
    if in_force is not None and chosen is not None:
        if _says(in_force) == _says(chosen):
            return False
        if must_change:
            return True
    is_asked_for = asked.placement != AUTO and asked.placement != (in_force.placement if in_force else REPLICATED)
    return is_asked_for or new.fits > old.fits or new.batch_ns < PAYS * old.batch_ns


def _says(view: View) -> dict[str, Any]:
    return view_to_dict(view) | {"epoch": 0}


def _numbered(view: View, epoch: int) -> View:
    return view_from_dict(view_to_dict(view) | {"epoch": epoch})


# ---------------------------------------------------------------------- files


def lay_out(
    spark: SparkSession,
    base: Base,
    view: View,
    directory: IndexDirectory,
    made_for: int,
    sample: pa.Table | None = None,
) -> str:
    """Write the files of a View of a base's subscriptions beside those of the base; returns the layout's name.

    `made_for` are the partitions that were asked for, which not every View has as many of; `sample` are events by
    which the files are made fast to look things up in. Until a version names the layout it is not used: one that is
    left behind by a crash does no harm.
    """
    rows = spark.createDataFrame(base.rows)
    builder = IndexBuilder(
        rows.selectExpr("id", "filter", "CAST(NULL AS STRING) AS domain"),
        base.domain,
        Contents(len(base.rows), 0, ""),
        PlacementOptions(),
        sample,
    )
    name = f"placed-{made_for}-{secrets.token_hex(8)}"  # no other has it: workers know a layout by its name
    with directory.staged() as staged:
        made = builder.place(view, staged)
        directory.add_layout(staged, base.number, name, replace(made.layout, view=view_to_dict(view)))
    return name


def made_for(layout: str | None) -> int | None:
    """The partitions that were asked for when the View of a layout was made."""
    return None if layout is None else int(layout.split("-")[1])
