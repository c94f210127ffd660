"""The step `match`: events in, events with the subscriptions that they satisfy out. Batch and stream alike."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from tidings.errors import EventError
from tidings.model.domain import path_text
from tidings.pipeline.index import Index
from tidings.pipeline.placement import Placement, Wishes
from tidings.pipeline.schema import domain_of
from tidings.pipeline.segmentation import Segmentation
from tidings.pipeline.worker import CANDIDATE, Task, match_replicated, match_routed

Output = Literal["ids", "pairs", "counts"]

_ADDED = {"ids": {"subscriptions"}, "pairs": {"subscriptions", "subscription"}, "counts": {"matches"}}


def match(
    events: DataFrame,
    subscriptions: Index | DataFrame,
    *,
    placement: Placement | Literal["auto"] = "auto",
    output: Output = "ids",
    domain: Any = None,
) -> DataFrame:
    """The events, each with the subscriptions that it satisfies.

    `output` is "ids" (the events with an array `subscriptions` of ids), "pairs" (a row for each
    match, with `subscription`) or "counts" (the events with the number of their `matches`). An
    event that does not fit the domain has NULL there. `placement` is that of the index, or "auto".

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
    if layout.view is None:
        matched = numbered(events).mapInArrow(partial(match_replicated, task), schema)
    else:
        segmentation = Segmentation.from_dict(layout.view, index.domain)
        routed = events.transform(_route, segmentation)
        matched = numbered(routed).mapInArrow(partial(match_routed, task, segmentation.view), schema)
    return pairs(matched) if output == "pairs" else matched


def pairs(matched: DataFrame) -> DataFrame:
    """One row for each match, from events with their arrays of subscriptions."""
    columns = [F.col(path_text((name,))) for name in matched.columns if name != "subscriptions"]
    return matched.select(*columns, F.explode("subscriptions").alias("subscription"))


def numbered(events: DataFrame) -> DataFrame:
    """With numbers for names: PySpark looks the columns of `mapInArrow` up by name, and trips over dots and quotes."""
    return events.toDF(*(f"_{number}" for number in range(len(events.columns))))


def _route(events: DataFrame, segmentation: Segmentation) -> DataFrame:
    """Every event to the partition that is its candidate."""

    def candidate(*columns: pa.Array) -> pa.Array:  # type: ignore[type-arg] # Spark reads these hints
        return pa.array(segmentation.route(columns).astype(np.int32))

    route = arrow_udf(candidate, T.IntegerType())  # type: ignore[call-overload]
    columns = [F.col(path_text(path)) for path in segmentation.paths]
    return events.withColumn(CANDIDATE, route(*columns)).repartitionById(segmentation.view.candidates, CANDIDATE)


def _check(events: DataFrame, placement: str, output: str) -> None:
    if not isinstance(events, DataFrame):
        raise EventError(f"events come as a DataFrame, not as {type(events).__name__}")
    if output not in _ADDED:
        raise ValueError(f"output is 'ids', 'pairs' or 'counts', not {output!r}")
    if placement not in ("auto", "replicated", "bluedove"):
        raise ValueError(f"placement is 'auto', 'replicated' or 'bluedove', not {placement!r}")
    for name in events.columns:
        if name.lower() in _ADDED[output]:
            raise EventError(f"the events have a column '{name}' already, where the matches go; rename it")
