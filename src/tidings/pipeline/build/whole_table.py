"""A whole table of subscriptions as normal forms at the driver, read by tasks.

What is asked of all subscriptions at once, such as which imply which, needs them in one place; their normal
forms take about a hundred bytes each there. Reading the texts, which takes the time, is divided; and so is matching
events: each task counts the matches of its own share, of which it has the normal forms already.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidings.errors import SubscriptionError, did_you_mean
from tidings.filter.normal.filter_table import FilterTable
from tidings.matching.batch_columns import Columns
from tidings.matching.change.merge import joined_filters, taken_filters
from tidings.matching.change.segment import segment_of
from tidings.model.domain import Domain
from tidings.model.event import read_events
from tidings.model.subscription import read_subscriptions
from tidings.pipeline.build.build_tasks import read_table
from tidings.pipeline.build.index_build import checked, id_type
from tidings.pipeline.job_errors import told_briefly

SUBSCRIBER = "subscriber"

_READ_SIZE = 100_000  # subscriptions that one task reads
_OWNER = "_tidings_owner"


@dataclass(frozen=True, eq=False)
class WholeTable:
    """The subscriptions that can be read, in no order: number i of `filters` has `ids[i]`."""

    domain: Domain
    ids: Any  # an Arrow array
    subscribers: Any | None  # an Arrow array of texts, where the table has such a column
    filters: FilterTable
    rejected: int
    elsewhere: int  # to other domains
    matches: npt.NDArray[np.int64] | None = None  # of each subscription with the events that were given

    def __len__(self) -> int:
        return len(self.ids)


def read_whole(
    subscriptions: DataFrame, domain: Domain, *, subscriber: str | None = None, events: pa.Table | None = None
) -> WholeTable:
    """Read a table with the columns id and filter, and domain and the column of subscribers where there are such.

    Without a name, the column `subscriber` is taken where there is one. With some events, their matches are counted.
    """
    table = checked(subscriptions)
    if subscriber is not None and subscriber not in subscriptions.columns:
        hint = did_you_mean(subscriber, subscriptions.columns)
        raise SubscriptionError(f"subscription: there is no column '{subscriber}' of subscribers; {hint}")
    if subscriber is None and SUBSCRIBER in subscriptions.columns:
        subscriber = SUBSCRIBER
    if subscriber is not None:
        owner = subscriptions[subscriber].cast("string").alias(_OWNER)
        # `checked` keeps the rows and only chooses columns: done again with one column more.
        with_domain = "domain" in subscriptions.columns
        table = subscriptions.select(
            F.col("id").cast(id_type(table)).alias("id"),
            F.col("filter"),
            (F.col("domain") if with_domain else F.lit(None).cast("string")).alias("domain"),
            owner,
        )
    ours = F.col("domain").isNull() | (F.col("domain") == domain.name)
    rows = table.where(ours).drop("domain")
    with told_briefly():
        counted = table.agg(F.count("*"), F.count(F.when(~ours, 1))).first()
        assert counted is not None
        total, elsewhere = counted
        spark = subscriptions.sparkSession
        parts = max(spark.sparkContext.defaultParallelism, total // _READ_SIZE)
        by_id = F.pmod(F.xxhash64("id"), F.lit(parts)).cast("int")  # so that an id that is there twice is seen
        read = rows.repartitionById(parts, by_id).mapInArrow(partial(_read, domain, events), "data binary")
        parts_read = [pickle.loads(row.data) for row in read.toLocalIterator(prefetchPartitions=True)]
    id_arrow: Any = pa.string() if id_type(table) == "string" else pa.int64()
    ids = pa.concat_arrays([pa.array([], id_arrow), *(part["ids"] for part in parts_read)])
    owners = None
    if subscriber is not None:
        owners = pa.concat_arrays([pa.array([], pa.string()), *(part["owners"] for part in parts_read)])
    return WholeTable(
        domain,
        ids,
        owners,
        joined_filters([part["filters"] for part in parts_read], domain) if parts_read else _nothing(domain),
        sum(part["rejected"] for part in parts_read),
        elsewhere,
        None if events is None else np.concatenate([np.empty(0, np.int64), *(part["matches"] for part in parts_read)]),
    )


def _read(domain: Domain, events: pa.Table | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    given = list(batches)
    if not given:
        return
    table = pa.Table.from_batches(given)
    owned = _OWNER in table.schema.names
    read = read_table(table, domain)
    good = np.ones(len(read.sound), bool)
    good[[row for row, _ in read.filters.rejects]] = False
    kept = read.sound.filter(pa.array(good)).combine_chunks()
    filters = taken_filters(read.filters, np.flatnonzero(good))
    part = {
        "ids": kept["id"].combine_chunks(),
        "owners": kept[_OWNER].combine_chunks() if owned else None,
        "filters": filters,
        "rejected": len(read.refused),
        "matches": None if events is None else _counted(kept, filters, events),
    }
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(part, protocol=5)], pa.large_binary())], names=["data"])


def _counted(kept: pa.Table, filters: FilterTable, events: pa.Table) -> npt.NDArray[np.int64]:
    """How many of the events each subscription matches."""
    columns = Columns(read_events(events, filters.domain, on_error="reject"))
    segment = segment_of(read_subscriptions(kept.select(["id", "filter"])), filters, columns, keep=False)
    return np.bincount(segment.index.match(columns, segment.recheck).slots, minlength=len(kept))


def _nothing(domain: Domain) -> FilterTable:
    return read_table(pa.table({"id": pa.array([], pa.int64()), "filter": pa.array([], pa.string())}), domain).filters
