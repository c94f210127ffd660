"""RSS and Atom feeds as events on Spark: a feed is split into its items, each version of an item is one event.

    spark.read.format("binaryFile").load("fetched/").transform(feed_items)          the items of all files
    pipeline.stream(FeedEvents("fetched/"), index, sink, checkpoint="query/")       those of files as they are put there

A feed that cannot be read is a row as well, without a document: `rejected` says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidings.errors import EventError
from tidings.filter.xpath_dialect import ATTRIBUTE
from tidings.pipeline.job_errors import brief_errors
from tidings.pipeline.sources.stream_sources import REJECTED
from tidings.xml.feed import split_feed

_FILES = "path string, modificationTime timestamp, length bigint, content binary"  # as Spark's `binaryFile` has them
_SAME = ["feed", "item", "version"]
_COLUMNS = [*_SAME, ATTRIBUTE, REJECTED]
_ITEMS = T.StructType([T.StructField(name, T.StringType()) for name in _COLUMNS])
_FETCHED = "_tidings_fetched"


def feed_items(feeds: DataFrame, *, remember: str | None = None) -> DataFrame:
    """The items of feeds that come as `path` and `content`, each version of an item once, in batch and in a stream.

    A stream remembers every item, or with `remember`, such as "30 days", those that it has met since.
    """
    split = feeds.select("path", "content").mapInArrow(_split, _ITEMS)
    if remember is None or not feeds.isStreaming:
        return split.dropDuplicates(_SAME)
    # By when an item was met, and not by when it was written: what comes late is not lost.
    met = split.withColumn(_FETCHED, F.current_timestamp()).withWatermark(_FETCHED, remember)
    return met.dropDuplicatesWithinWatermark(_SAME).drop(_FETCHED)


def _split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path, content in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield pa.RecordBatch.from_pylist(_rows(path, content), _schema())


def _rows(path: str, content: bytes) -> list[dict[str, str | None]]:
    try:
        items = split_feed(content)
    except EventError as error:
        version = sha256(content).hexdigest()[:16]  # so that a feed that stays broken is reported once
        return [{"feed": path, "item": None, "version": version, ATTRIBUTE: None, REJECTED: error.reason}]
    return [
        {"feed": item.feed, "item": item.id, "version": item.version, ATTRIBUTE: item.document, REJECTED: None}
        for item in items
    ]


def _schema() -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in _COLUMNS])


@dataclass(frozen=True)
class FeedEvents:
    """Feeds that are put into a directory, whole, each time that they are fetched into a file of another name.

    Rows have `feed`, `item`, `version` and `document`, the feed with that one item in it.
    """

    directory: str
    max_files_per_trigger: int | None = None
    remember: str | None = None  # how long an item is known again; without, for ever

    pins = False

    def describe(self) -> str:
        return f"feeds:{Path(self.directory).absolute()}"

    def open(self, spark: SparkSession, versions: Path) -> DataFrame:
        reader = spark.readStream.format("binaryFile").schema(_FILES)
        if self.max_files_per_trigger is not None:
            reader = reader.option("maxFilesPerTrigger", self.max_files_per_trigger)
        with brief_errors():
            return feed_items(reader.load(self.directory), remember=self.remember)
