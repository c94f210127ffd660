"""The step `match`: events in, events with the subscriptions that they satisfy out. Batch and stream alike."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidings.errors import EventError
from tidings.model.domain import path_text
from tidings.pipeline.build.compiled_index import Index
from tidings.pipeline.build.event_schema import domain_of
from tidings.pipeline.build.placement_choice import PlacementOptions, checked_name
from tidings.pipeline.runtime.spark_workarounds import numbered
from tidings.pipeline.steps.combine_step import CombineTask, combine
from tidings.pipeline.steps.counted_lists import Count, Lists, ListTask, look_up
from tidings.pipeline.steps.index_version import OneVersion, VersionFiles
from tidings.pipeline.steps.match_metrics import Measures
from tidings.pipeline.steps.match_tasks import MatchTask, match_rows, match_visits
from tidings.pipeline.steps.route_step import RouteTask, routed_once, routed_to_each
from tidings.systems.interface import AUTO, CountsLists, view_from_dict

Output = Literal["ids", "pairs", "counts"]

SHARDS_KEPT = 16  # loaded at a time in a worker that serves one partition after the other
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
    index = subscriptions if isinstance(subscriptions, Index) else Index(subscriptions, None, PlacementOptions())
    manifest, layout = index.compiled_for(events.schema, None if domain is None else domain_of(domain), placement)
    files = VersionFiles(
        base={file.shard: file.name for file in layout.files},
        reads=tuple(dict.fromkeys(path[0] for path in manifest.reads)) or tuple(events.columns[:1]),
        view=None if layout.view is None else view_from_dict(layout.view),
        domain=index.domain,
    )
    task = MatchTask(
        names=tuple(events.columns),
        versions=OneVersion(files, None if files.view is None else SHARDS_KEPT),
        string_ids=manifest.id_type == "string",
        counts=output == "counts",
    )
    added = T.StructField("matches", T.LongType())
    if output != "counts":
        ids = T.StringType() if task.string_ids else T.LongType()
        added = T.StructField("subscriptions", T.ArrayType(ids, containsNull=False))
    schema = T.StructType([*events.schema.fields, added])
    measures = index.measures(layout.placement)
    if files.view is None:
        return _shown(numbered(events).mapInArrow(partial(match_rows, task, measures), schema), output)
    if not isinstance(files.view, CountsLists) and (files.view.visits <= 1 or output == "pairs"):
        routed = _routed(events, files, task, combined=False)
        return _shown(numbered(routed).mapInArrow(partial(match_visits, task, measures), schema), output)
    return _shown(_combined(events, files, task, measures, schema), output)


def _routed(events: DataFrame, files: VersionFiles, task: MatchTask, *, combined: bool) -> DataFrame:
    """Every event where its View sends it."""
    assert files.view is not None
    assert files.domain is not None
    if not combined and files.view.visits <= 1:
        return routed_once(events, files.view, files.domain)
    return routed_to_each(events, RouteTask(task.names, task.versions, files.view.partitions, files.reads, combined))


def _combined(
    events: DataFrame, files: VersionFiles, task: MatchTask, measures: Measures, schema: T.StructType
) -> DataFrame:
    """The events with what all their visits found together."""
    assert files.view is not None
    assert files.domain is not None
    routed = _routed(events, files, task, combined=True)
    if isinstance(files.view, CountsLists):
        found = T.StructField("found", T.ArrayType(T.LongType(), False))
        lists = Lists(files.base, files.reads, files.view, files.domain)
        step: Any = partial(look_up, ListTask(task.names, lists))
        settle = Count(lists, task.string_ids)
    else:
        found, step, settle = schema.fields[-1], partial(match_visits, replace(task, goes_on=True), measures), None
    between = T.StructType([*routed.schema.fields, found])
    seen = routed.mapInArrow(step, between)
    tasks = _COMBINERS * events.sparkSession.sparkContext.defaultParallelism
    visit = F.col(between.names[-2])
    gathered = seen.repartitionById(tasks, F.pmod(F.xxhash64(visit["task"], visit["event"]), F.lit(tasks)).cast("int"))
    return gathered.mapInArrow(partial(combine, CombineTask(task.names, files.reads, task.counts, settle)), schema)


def _shown(matched: DataFrame, output: Output) -> DataFrame:
    return pairs(matched) if output == "pairs" else matched


def pairs(matched: DataFrame) -> DataFrame:
    """One row for each match, from events with their arrays of subscriptions."""
    columns = [F.col(path_text((name,))) for name in matched.columns if name != "subscriptions"]
    return matched.select(*columns, F.explode("subscriptions").alias("subscription"))


def _check(events: DataFrame, placement: str, output: str) -> None:
    if not isinstance(events, DataFrame):
        raise EventError(f"events come as a DataFrame, not as {type(events).__name__}")
    if output not in _ADDED:
        raise ValueError(f"output is 'ids', 'pairs' or 'counts', not {output!r}")
    checked_name(placement)
    for name in events.columns:
        if name.lower() in _ADDED[output]:
            raise EventError(f"the events have a column '{name}' already, where the matches go; rename it")
