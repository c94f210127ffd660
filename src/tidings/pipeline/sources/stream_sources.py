"""Where a stream's events come from: the log, files as they arrive, Kafka, or any streaming DataFrame."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidings.errors import DomainError, EventError
from tidings.model.domain import Domain
from tidings.model.types import quote_name
from tidings.pipeline.job_errors import PipelineError, brief_errors
from tidings.pipeline.sources.log_source import stream_log, type_of
from tidings.pipeline.sources.table_files import read_frame
from tidings.pipeline.sources.version_gate import Gate
from tidings.store.log.page import nested

KAFKA_PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
VERSION = "subscriptions_version"
REJECTED = "rejected"


class Source(Protocol):
    """Events as a streaming DataFrame."""

    @property
    def pins(self) -> bool:
        """Whether the source's offsets carry the version of the subscriptions, in the column `VERSION`."""

    def describe(self) -> str:
        """What a user would call it; the same after a restart."""

    def open(self, spark: SparkSession, versions: Path) -> DataFrame:
        """The events; `versions` is the directory whose `current` names the version to pin."""


@dataclass(frozen=True)
class LogEvents:
    """The events of one domain in a log. Rows have `position`, which is the key of a notification."""

    directory: str | os.PathLike[str]
    domain: Domain
    start: int | dt.datetime | Literal["earliest", "latest"] = "earliest"  # of a query without a checkpoint
    max_events_per_trigger: int | None = 100_000
    carry: bool = False  # the driver reads the log, for executors that do not see its disk
    prefix: str = ""  # where attributes may have any name: of the other columns, and only the place goes to the sink
    gate: Gate | None = None  # what the subscriptions have to cover before they meet an event
    wait_seconds: float = 0.0  # that the source waits for events by itself, before Spark asks again

    pins = True

    def describe(self) -> str:
        return f"log:{Path(self.directory).absolute()} ({self.domain.name})"

    def open(self, spark: SparkSession, versions: Path) -> DataFrame:
        return stream_log(
            spark,
            self.directory,
            domain=self.domain,
            start=self.start,
            subscriptions=versions,
            max_events_per_trigger=self.max_events_per_trigger,
            on_error="reject",  # one odd event must not stop the others
            carry=self.carry,
            prefix=self.prefix,
            gate=self.gate,
            wait_seconds=self.wait_seconds,
        )


@dataclass(frozen=True)
class FileEvents:
    """Files that are put into a directory, whole: Parquet, JSON lines or CSV with a header.

    Without a schema it is that of the files that are there already.
    """

    directory: str
    schema: T.StructType | None = None
    format: str | None = None
    max_files_per_trigger: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    pins = False

    def describe(self) -> str:
        return f"files:{Path(self.directory).absolute()}"

    def open(self, spark: SparkSession, versions: Path) -> DataFrame:
        schema, format_ = self.schema, self.format or _format_within(self.directory)
        if schema is None:
            schema = read_frame(spark, self.directory).schema
        reader = spark.readStream.format(format_).schema(schema)
        if format_ == "csv":
            reader = reader.options(header="true", escape='"')
        if self.max_files_per_trigger is not None:
            reader = reader.option("maxFilesPerTrigger", self.max_files_per_trigger)
        with brief_errors():
            return reader.options(**self.options).load(self.directory)


def _format_within(directory: str) -> str:
    """By the suffixes of the files in a directory."""
    formats = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}
    try:
        found = {formats[suffix] for name in os.listdir(directory) if (suffix := Path(name).suffix.lower()) in formats}
    except OSError as error:
        raise PipelineError(f"{directory}: cannot look for files there: {error.strerror}") from error
    if len(found) != 1:
        what = f"files of several kinds ({', '.join(sorted(found))})" if found else "no file to tell the format by"
        raise PipelineError(f"{directory}: the directory has {what}; put Parquet, JSON lines or CSV there, of one kind")
    return found.pop()


@dataclass(frozen=True)
class KafkaEvents:
    """JSON values of Kafka, by the attributes of a domain. Rows have `source` (topic/partition) and `position`.

    `options` go to Spark's connector as they are: `kafka.bootstrap.servers`, `subscribe`, `startingOffsets`, …
    """

    options: Mapping[str, str]
    domain: Domain

    pins = False

    def describe(self) -> str:
        topics = next(self.options[key] for key in ("subscribe", "subscribePattern", "assign") if key in self.options)
        return f"kafka:{self.options.get('kafka.bootstrap.servers', '')}/{topics}"

    def open(self, spark: SparkSession, versions: Path) -> DataFrame:
        attributes = nested(self.domain.leaves.items())
        for name in attributes:
            if name.lower() in ("source", "position", REJECTED):
                raise DomainError(
                    f"domain '{self.domain.name}': the attribute '{name}' has the name of a column that Kafka's events "
                    "have; rename it"
                )
        schema = ", ".join(f"{quote_name(name)} {type_of(node)}" for name, node in attributes.items())
        with kafka_errors():
            frame = spark.readStream.format("kafka").options(**{"failOnDataLoss": "true", **self.options}).load()
        corrupt = "_tidings_corrupt"
        parsed = F.from_json(
            F.col("value").cast("string"),
            f"{schema}, {corrupt} string",
            {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt},
        )
        reason = F.when(F.col("value").isNull(), F.lit("there is no value")).when(
            F.col(f"_event.{corrupt}").isNotNull() | F.col("_event").isNull(),
            F.lit(f"the value is no JSON object that fits the domain '{self.domain.name}'"),
        )
        return frame.withColumn("_event", parsed).select(
            F.concat_ws("/", "topic", "partition").alias("source"),
            F.col("offset").alias("position"),
            *(F.col(f"_event.{quote_name(name)}") for name in attributes),
            reason.alias(REJECTED),
        )


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Raises how to get Spark's connector for Kafka, which is a package of its own, if it is missing."""
    try:
        with brief_errors():
            yield
    except PipelineError as error:
        if "kafka" in str(error) and "Failed to find" in str(error):
            raise PipelineError(
                "Spark has no connector for Kafka; start the session with "
                f"config={{'spark.jars.packages': '{KAFKA_PACKAGE}'}}"
            ) from error
        raise


@dataclass(frozen=True)
class FrameEvents:
    """A streaming DataFrame of the user's own."""

    frame: DataFrame
    name: str = "a streaming DataFrame"

    pins = False

    def describe(self) -> str:
        return self.name

    def open(self, spark: SparkSession, versions: Path) -> DataFrame:
        return self.frame


def as_source(events: Any) -> Source:
    if isinstance(events, DataFrame):
        if not events.isStreaming:
            raise EventError("a stream's events come as a streaming DataFrame, and this one is a batch; use match")
        return FrameEvents(events)
    if hasattr(events, "open") and hasattr(events, "pins"):
        source: Source = events
        return source
    raise EventError(
        "a stream's events are LogEvents, FileEvents, KafkaEvents or a streaming DataFrame, not "
        f"{type(events).__name__}"
    )
