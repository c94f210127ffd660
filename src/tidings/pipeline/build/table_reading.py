"""A table of subscriptions on Spark: checked, counted, and its filters read into normal forms.

    checked      the columns id, filter and domain, or why the table does not have them
    read_table   the filters of one task's rows; nothing that is wrong with a row stops the others
    read_whole   all filters at the driver, read by tasks

What is asked of all subscriptions at once, such as which imply which, needs them in one place; their normal forms take
about a hundred bytes each there. Reading the texts, which takes the time, is divided; and so is matching events: each
task counts the matches of its own share, of which it has the normal forms already.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidings.errors import SubscriptionError, did_you_mean
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable, joined_filters, taken_filters
from tidings.filter.tree import attributes_of
from tidings.matching.batch_columns import Columns
from tidings.matching.index import build_index
from tidings.matching.matcher import Matcher
from tidings.model.domain import Domain
from tidings.model.event import read_events
from tidings.model.subscription import read_subscriptions
from tidings.model.types import Path
from tidings.pipeline.job_errors import brief_errors
from tidings.store.formats import INDEX as FORMAT

SUBSCRIBER = "subscriber"
EVENTS_MIN = 100  # by which the index of a shard is chosen, however small it is

_READ_SIZE = 100_000  # subscriptions that one task reads
_OWNER = "_tidings_owner"


def checked(table: DataFrame, *more: Column) -> DataFrame:
    """Returns the columns id, filter, domain and `more`; raises SubscriptionError if one is missing or does not fit."""
    if not isinstance(table, DataFrame):
        raise SubscriptionError(f"subscriptions come as a DataFrame with id and filter, not as {type(table).__name__}")
    if table.isStreaming:
        raise SubscriptionError("subscriptions are a batch DataFrame, and this one is streaming")
    for name in ("id", "filter"):
        if name not in table.columns:
            raise SubscriptionError(f"subscription: there is no column '{name}'; {did_you_mean(name, table.columns)}")
    for name in ("filter", "domain"):
        if name in table.columns and not isinstance(table.schema[name].dataType, T.StringType):
            found = table.schema[name].dataType.simpleString()
            raise SubscriptionError(f"subscription: the column '{name}' is {found}, and has to be string; cast it")
    ids = table.schema["id"].dataType
    if not isinstance(ids, T.StringType | T.ByteType | T.ShortType | T.IntegerType | T.LongType):
        found = ids.simpleString()
        raise SubscriptionError(f"subscription: ids are texts or integers, and the column 'id' is {found}; cast it")
    id_column = F.col("id").cast("string" if isinstance(ids, T.StringType) else "bigint")
    domain = F.col("domain") if "domain" in table.columns else F.lit(None).cast("string")
    return table.select(id_column.alias("id"), F.col("filter"), domain.alias("domain"), *more)


def of_domain(domain: Domain) -> Column:
    """Whether a checked row is a subscription to a domain: one that names none is to any."""
    return F.col("domain").isNull() | (F.col("domain") == domain.name)


def domain_name(table: DataFrame) -> str:
    """The one domain that a table's subscriptions name; `events` where they name none."""
    found = [row.domain for row in table.select("domain").where("domain IS NOT NULL").distinct().limit(2).collect()]
    if len(found) > 1:
        raise SubscriptionError(
            f"the subscriptions are to several domains ('{found[0]}', '{found[1]}', …); compile(…, domain=…) says which"
        )
    return found[0] if found else "events"


def id_type(table: DataFrame) -> str:
    return table.schema["id"].dataType.simpleString()


@dataclass(frozen=True)
class Contents:
    """Of a table for one domain, before anything is compiled."""

    subscriptions: int
    elsewhere: int  # to other domains
    fingerprint: str


def contents_of(table: DataFrame, domain: Domain, settings: object) -> Contents:
    """Counts the rows and makes a fingerprint of them, in any order, and of the settings of the index."""
    hashes = [F.xxhash64(F.lit(seed), "id", "filter", "domain") for seed in (1, 2)]
    row = table.agg(
        F.count("*").alias("rows"),
        F.count(F.when(F.col("domain") != domain.name, 1)).alias("elsewhere"),
        *(F.sum(value.cast("decimal(38,0)")).alias(f"sum{i}") for i, value in enumerate(hashes)),
        *(F.bit_xor(value).alias(f"xor{i}") for i, value in enumerate(hashes)),
    ).first()
    assert row is not None
    parts = [FORMAT, version("tidings"), domain.to_dict(), id_type(table), settings, row.asDict()]
    fingerprint = hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()
    return Contents(row.rows - row.elsewhere, row.elsewhere, fingerprint)


def divided(subscriptions: DataFrame, count: int, size: int = _READ_SIZE) -> DataFrame:
    """The table in partitions of about `size` rows; all rows with one id meet, so that a second one is seen."""
    parts = max(subscriptions.sparkSession.sparkContext.defaultParallelism, count // size)
    return subscriptions.repartitionById(parts, by_id(parts))


def by_id(parts: int) -> Column:
    """The number of the part that a row is in, by its id."""
    return F.pmod(F.xxhash64("id"), F.lit(parts)).cast("int")


# ---------------------------------------------------------------------- rows of one task


@dataclass(frozen=True, eq=False)
class ReadTable:
    """Subscriptions, and which of them can be matched."""

    rows: pa.Table  # id and filter, as given
    reasons: Any  # of each row, why it is refused before its filter is read; NULL if it is not
    filters: FilterTable  # of the rows without a reason

    @cached_property
    def sound(self) -> pa.Table:
        """The rows that `filters` numbers."""
        return self.rows.filter(self.reasons.is_null())

    @cached_property
    def good(self) -> npt.NDArray[np.int64]:
        """The numbers of the filters that can be matched."""
        good = np.ones(len(self.sound), bool)
        good[[row for row, _ in self.filters.rejects]] = False
        return np.flatnonzero(good)

    @cached_property
    def accepted(self) -> pa.Table:
        """The subscriptions that can be matched."""
        return self.sound if len(self.good) == len(self.sound) else self.sound.take(self.good)

    @cached_property
    def refused(self) -> pa.Table:
        """The others, as given."""
        bad = pa.array([row for row, _ in self.filters.rejects], pa.int64())
        return pa.concat_tables([self.rows.filter(self.reasons.is_valid()), self.sound.take(bad)])

    def rejects(self) -> pa.Table:
        """id, reason and position of those, in their order."""
        errors = [error for _, error in self.filters.rejects]
        read = pa.array([f"{error.reason}; {error.hint}".removesuffix("; ") for error in errors], pa.string())
        unread = self.reasons.drop_null()
        positions = [*[None] * len(unread), *(error.column for error in errors)]
        columns = [
            self.refused["id"].combine_chunks(),
            pa.concat_arrays([unread, read]),
            pa.array(positions, pa.int32()),
        ]
        return pa.table(columns, names=["id", "reason", "position"])


def read_table(table: pa.Table, domain: Domain) -> ReadTable:
    """Read the filters of a table `id, filter`; nothing that is wrong with a row stops the others."""
    table = table.combine_chunks()
    reasons = _unread(table["id"].combine_chunks(), table["filter"].combine_chunks())
    sound = table["filter"].filter(reasons.is_null())
    return ReadTable(table, reasons, compile_filters(sound, domain, on_error="reject"))


def _unread(ids: Any, filters: Any) -> Any:
    missing = ids.is_null() if pa.types.is_integer(ids.type) else pc.equal(ids, pa.scalar("")).fill_null(True)
    counts = pc.value_counts(ids)
    often = counts.field("values").filter(pc.greater(counts.field("counts"), pa.scalar(1)))
    return pc.case_when(
        pc.make_struct(missing, pc.is_in(ids, value_set=often), filters.is_null()),
        pa.scalar("there is no id; every subscription needs one"),
        pa.scalar("the id is there more than once; every subscription needs its own"),
        pa.scalar("there is no filter; write TRUE to have every event"),
    )


def attributes_read(filters: FilterTable) -> set[Path]:
    """The attributes that filters ask anything of."""
    return set(filters.intervals).union(
        reference.path for residual in filters.residuals for reference in attributes_of(residual)
    )


def indexed(subscriptions: pa.Table, domain: Domain, sample: pa.Table | None) -> Matcher:
    """A matcher that has its index, and so can be saved with it: made for events like those of the sample.

    Those are saved with it too. So a small shard is given few: else they would be most of its file.
    """
    matcher = Matcher(subscriptions, domain, threads=1)
    typical = pa.table({}) if sample is None else sample.slice(0, max(EVENTS_MIN, len(subscriptions) // 4))
    matcher.match(typical, on_error="reject")
    return matcher


# ---------------------------------------------------------------------- all rows


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
    """Reads a table with the columns id and filter, and domain and subscribers if it has them.

    Without a name, the column `subscriber` is taken if there is one. With some events, their matches are counted.
    """
    if subscriber is not None and subscriber not in subscriptions.columns:
        hint = did_you_mean(subscriber, subscriptions.columns)
        raise SubscriptionError(f"subscription: there is no column '{subscriber}' of subscribers; {hint}")
    if subscriber is None and SUBSCRIBER in subscriptions.columns:
        subscriber = SUBSCRIBER
    owner = [] if subscriber is None else [subscriptions[subscriber].cast("string").alias(_OWNER)]
    table = checked(subscriptions, *owner)
    ours = of_domain(domain)
    rows = table.where(ours).drop("domain")
    with brief_errors():
        counted = table.agg(F.count("*"), F.count(F.when(~ours, 1))).first()
        assert counted is not None
        total, elsewhere = counted
        read = divided(rows, total).mapInArrow(partial(_read, domain, events), "data binary")
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
    kept, filters = read.accepted.combine_chunks(), taken_filters(read.filters, read.good)
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
    texts = read_subscriptions(kept.select(["id", "filter"])).filters
    return np.bincount(build_index(filters, columns).match(columns, texts).slots, minlength=len(kept))


def _nothing(domain: Domain) -> FilterTable:
    return read_table(pa.table({"id": pa.array([], pa.int64()), "filter": pa.array([], pa.string())}), domain).filters
