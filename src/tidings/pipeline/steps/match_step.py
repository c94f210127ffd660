"""The step `match`: events in, events with the subscriptions that they satisfy out. Batch and stream alike."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidings.errors import EventError
from tidings.model.domain import path_text
from tidings.pipeline.build.compiled_index import Index
from tidings.pipeline.build.event_schema import domain_of
from tidings.pipeline.build.index_directory import Layout
from tidings.pipeline.build.placement_choice import AUTO, Wishes, checked_name
from tidings.pipeline.steps.combine_step import combine
from tidings.pipeline.steps.counted_lists import CONJUNCTIONS, Count, ListTask, look_up
from tidings.pipeline.steps.match_tasks import Task, match_replicated, match_visits
from tidings.pipeline.steps.route_step import RouteTask, routed_once, routed_to_each
from tidings.systems.interface import view_from_dict

Output = Literal["ids", "pairs", "counts"]

_COMBINERS = 4  # tasks a core that put visits together: each holds its events in memory

_ADDED = {"ids": {"subscriptions"}, "pairs": {"subscriptions", "subscription"}, "counts": {"matches"}}


def match(
    events: DataFrame,
    subscriptions: Index | DataFrame,
    *,
    placement: str = AUTO,
    output: Output = "ids",
    domain: Any = None,
) -> DataFrame:
    """The events, each with the subscriptions that it satisfies.

    `output` is "ids" (the events with an array `subscriptions` of ids), "pairs" (a row for each
    match, with `subscription`) or "counts" (the events with the number of their `matches`). An
    event that does not fit the domain has NULL there. `placement` is the name of one, or "auto".

    >>> matched = events.transform(match, subscriptions=index, output="counts")  # doctest: +SKIP
    """
    _check(events, placement, output)
    index = subscriptions if isinstance(subscriptions, Index) else Index(subscriptions, None, Wishes())
    manifest, layout = index.compiled_for(events.schema, None if domain is None else domain_of(domain), placement)
    task = Task(
        names=tuple(events.columns),
        files={file.shard: file.name for file in layout.files},
        reads=tuple(dict.fromkeys(path[0] for path in manifest.reads)) or tuple(events.columns[:1]),
        counts=output == "counts",
        string_ids=manifest.id_type == "string",
    )
    added = T.StructField("matches", T.LongType())
    if output != "counts":
        ids = T.StringType() if task.string_ids else T.LongType()
        added = T.StructField("subscriptions", T.ArrayType(ids, containsNull=False))
    schema = T.StructType([*events.schema.fields, added])
    matched = _matched(events, index, layout, task, schema, output)
    return pairs(matched) if output == "pairs" else matched


def _matched(
    events: DataFrame, index: Index, layout: Layout, task: Task, schema: T.StructType, output: Output
) -> DataFrame:
    """The events with their matches, or with those of each visit where pairs are asked for."""
    measures = index.measures(layout.placement)
    if layout.view is None:
        return numbered(events).mapInArrow(partial(match_replicated, task, measures), schema)
    view = view_from_dict(layout.view)
    if view.combine == "any" and view.visits <= 1:
        routed = routed_once(events, view, index.domain)
        return numbered(routed).mapInArrow(partial(match_visits, task, measures, False), schema)
    counts = view.combine == "all"
    whole = output == "pairs" and not counts
    routed = routed_to_each(events, RouteTask(task.names, view, index.domain, task.reads, whole))
    if whole:
        return numbered(routed).mapInArrow(partial(match_visits, task, measures, False), schema)
    found = T.StructField("found", T.ArrayType(T.LongType(), False)) if counts else schema.fields[-1]
    between = T.StructType([*numbered(routed).schema.fields, found])
    if counts:
        step: Any = partial(look_up, ListTask(task, view, index.domain))
        settle = Count(task.files.get(CONJUNCTIONS), index.domain, task.reads, task.string_ids)
    else:
        step, settle = partial(match_visits, task, measures, True), None
    seen = numbered(routed).mapInArrow(step, between)
    tasks = _COMBINERS * events.sparkSession.sparkContext.defaultParallelism
    visit = F.col(between.names[-2])
    gathered = seen.repartitionById(tasks, F.pmod(F.xxhash64(visit["task"], visit["event"]), F.lit(tasks)).cast("int"))
    return gathered.mapInArrow(partial(combine, task, settle), schema)


def pairs(matched: DataFrame) -> DataFrame:
    """One row for each match, from events with their arrays of subscriptions."""
    columns = [F.col(path_text((name,))) for name in matched.columns if name != "subscriptions"]
    return matched.select(*columns, F.explode("subscriptions").alias("subscription"))


def numbered(events: DataFrame) -> DataFrame:
    """With numbers for names: PySpark looks the columns of `mapInArrow` up by name, and trips over dots and quotes."""
    return events.toDF(*(f"_{number}" for number in range(len(events.columns))))


def _check(events: DataFrame, placement: str, output: str) -> None:
    if not isinstance(events, DataFrame):
        raise EventError(f"events come as a DataFrame, not as {type(events).__name__}")
    if output not in _ADDED:
        raise ValueError(f"output is 'ids', 'pairs' or 'counts', not {output!r}")
    checked_name(placement)
    for name in events.columns:
        if name.lower() in _ADDED[output]:
            raise EventError(f"the events have a column '{name}' already, where the matches go; rename it")
