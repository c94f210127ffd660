"""The log as a source of Spark for many domains at once: pages as they were appended, each with its domain.

Domains have attributes of their own, so that their events fit no common schema. They travel as the log's pages,
and the task that matches decodes them. Which domains are read is part of the version of the subscriptions
that a micro-batch is pinned to: see `shared_versions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from tidings.pipeline.runtime.data_sources import register
from tidings.pipeline.runtime.worker_garbage import keep_what_is_there
from tidings.pipeline.sources.log_source import LogReading, LogStreamReader, PositionRange
from tidings.pipeline.sources.version_gate import Gate
from tidings.pipeline.streams.shared_versions import read_members
from tidings.store.log.log_reader import Domains
from tidings.store.log.page import Page

PAGES_A_BATCH = 1_000
PAGE_FIELDS = ("first", "count", "domain", "time", "checksum", "length", "keys", "events", "attributes")
_TYPES = ("BIGINT", "BIGINT", "STRING", "BIGINT", "BIGINT", "BIGINT", "BINARY", "BINARY", "BINARY")
# A page may reach beyond the range that is read: only the positions [start, end) of it count.
SCHEMA = ", ".join(
    ["subscriptions_version BIGINT", "start BIGINT", "end BIGINT"]
    + [f"{name} {type_}" for name, type_ in zip(PAGE_FIELDS, _TYPES, strict=True)]
)


def stream_pages(
    spark: SparkSession,
    directory: str,
    *,
    start: int,
    versions: Path,
    gate: Gate,
    max_events_per_trigger: int,
    wait_seconds: float,
    carry: bool,
) -> DataFrame:
    """The pages of the domains in each version as a streaming DataFrame by `SCHEMA`; see `stream_log`."""
    options = {
        "path": directory,
        "startingPosition": str(start),
        "subscriptions": str(versions),
        "gate": gate.to_option(),
        "maxEventsPerTrigger": str(max_events_per_trigger),
        "waitMilliseconds": str(round(wait_seconds * 1000)),
        "carry": "true" if carry else "false",
    }
    register(spark, SharedLogSource)
    return spark.readStream.format(SharedLogSource.name()).options(**options).load()


class SharedLogSource(DataSource):
    """Spark's `format("tidings-shared-log")`."""

    @classmethod
    def name(cls) -> str:
        return "tidings-shared-log"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LogStreamReader(_PageReading(self.options), schema)


class _PageReading(LogReading):
    """Reads pages whole, of the domains that a version has."""

    def schema(self) -> str:
        return SCHEMA

    def domains(self, version: int) -> Domains:
        assert self.subscriptions is not None
        return _domains(self.subscriptions, version)

    def read(self, part: PositionRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[Any, ...]] = []
        for page in self.pages(part):
            rows.append((part.version, part.start, part.end, *_fields(page)))
            if len(rows) == PAGES_A_BATCH:
                yield _batch(rows, schema)
                rows = []
        if rows:
            yield _batch(rows, schema)
        keep_what_is_there("read a log")


@lru_cache(8)
def _domains(versions: str, version: int) -> frozenset[str]:
    return frozenset(read_members(Path(versions) / f"{version}.json"))


def _fields(page: Page) -> tuple[Any, ...]:
    return tuple(getattr(page, name) for name in PAGE_FIELDS)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns: Any = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
