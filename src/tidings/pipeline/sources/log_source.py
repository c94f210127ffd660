"""The log as a source of Spark, for batch and stream.

    events = read_log(spark, "data/log", domain=flights)                       # what is there now
    events = stream_log(spark, "data/log", domain=flights, subscriptions="data/index")

Rows have `position`, `time` (of the append), `subscriptions_version`, and the domain's attributes; without
a domain `domain`, `source`, `id`, `type`, and `event`, the JSON as published.

With `pages`, rows are the log's pages as they were appended, of all domains in the version of the subscriptions.
Domains have attributes of their own, so their events fit no common schema: the task that matches decodes them.

A stream's offset is {"log": position, "subscriptions": version}. Spark writes it down before a batch
runs, so that a batch that is run again, after whatever crash, is the same events against the same version.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidings.errors import DomainError, did_you_mean
from tidings.model.domain import Domain
from tidings.model.types import DataType, quote_name, struct
from tidings.pipeline.build.index_directory import IndexDirectory
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.runtime.spark_workarounds import freeze_garbage, register
from tidings.pipeline.sources.version_gate import Ends, Gate
from tidings.store.log.log_files import EVENTS
from tidings.store.log.log_reader import Domains, LogReader
from tidings.store.log.page import Page, attribute_columns, nested, raw_batches
from tidings.store.log.topic_pages import PlacedPage, fetched, shared_topic

EVENTS_A_PARTITION = 20_000
LOOK_SECONDS = 0.004  # between looks at the log
_PLACE = ("position", "time", "subscriptions_version")
_RAW = ("domain", "source", "id", "type", "event")
_OPTIONS = {
    name.lower(): name
    for name in (
        *("path", "domain", "subscriptions", "startingPosition", "endingPosition", "maxEventsPerTrigger"),
        *("eventsPerPartition", "onError", "prefix", "carry", "gate", "waitMilliseconds", "pages"),
    )
}

PAGES_A_BATCH = 1_000
PAGE_FIELDS = ("first", "count", "domain", "time", "checksum", "length", "keys", "events", "attributes")
_PAGE_TYPES = ("BIGINT", "BIGINT", "STRING", "BIGINT", "BIGINT", "BIGINT", "BINARY", "BINARY", "BINARY")
# A page may reach beyond the range that is read: only the positions [start, end) of it count.
_PAGES = ", ".join(
    ["subscriptions_version BIGINT", "start BIGINT", "end BIGINT"]
    + [f"{name} {type_}" for name, type_ in zip(PAGE_FIELDS, _PAGE_TYPES, strict=True)]
)


def read_log(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    *,
    domain: Domain | str | None = None,
    start: int | dt.datetime | None = None,
    end: int | dt.datetime | None = None,
    subscriptions: str | os.PathLike[str] | None = None,
    on_error: Literal["raise", "reject"] = "raise",
    prefix: str = "",
    carry: bool = False,
) -> DataFrame:
    """The events of positions [start, end), or of times, as a DataFrame.

    `domain` is a domain, whose attributes become columns, or the name of one, whose events are
    wanted whole. `on_error="reject"` adds a column `rejected`, which says why an event does not fit
    the domain. `prefix` goes before the names of the columns that are not attributes. With `carry`
    the driver reads the log, and executors need not see its disk; of a log in a topic it reads where the
    events are, and executors read them there.
    """
    given = {"startingPosition": _written(start), "endingPosition": _written(end)}
    options = given | _options(directory, domain, subscriptions, on_error, prefix, carry)
    register(spark, LogSource)
    return spark.read.format(LogSource.name()).options(**_present(options)).load()


def stream_log(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    *,
    domain: Domain | str | None = None,
    start: int | dt.datetime | Literal["earliest", "latest"] = "earliest",
    subscriptions: str | os.PathLike[str] | None = None,
    max_events_per_trigger: int | None = None,
    on_error: Literal["raise", "reject"] = "raise",
    prefix: str = "",
    carry: bool = False,
    gate: Gate | None = None,
    wait_seconds: float = 0.0,
    pages: bool = False,
) -> DataFrame:
    """The events as they come, as a streaming DataFrame: see `read_log`.

    `start` counts for a new query; one with a checkpoint goes on where it was. `subscriptions` is the
    directory of an index, whose current version each micro-batch is given; `gate` holds events back until that
    version covers the catalogue as it was when they were appended. If there is nothing to plan, the source looks
    again for as long as `wait_seconds`, which is far cheaper than to have Spark ask again. With `pages`, rows are
    pages of the domains in the version.
    """
    given = {
        "startingPosition": _written(start),
        "maxEventsPerTrigger": _written(max_events_per_trigger),
        "gate": None if gate is None else gate.to_option(),
        "waitMilliseconds": _written(round(wait_seconds * 1000) or None),
        "pages": "true" if pages else None,
    }
    options = given | _options(directory, domain, subscriptions, on_error, prefix, carry)
    register(spark, LogSource)
    return spark.readStream.format(LogSource.name()).options(**_present(options)).load()


def _options(
    directory: object, domain: Domain | str | None, subscriptions: object, on_error: str, prefix: str, carry: bool
) -> dict[str, str | None]:
    # Absolute, since workers of Python are where the first of them was started, whatever has become of the driver.
    return {
        "path": os.path.abspath(str(directory)),
        "domain": domain.to_json() if isinstance(domain, Domain) else domain,
        "subscriptions": None if subscriptions is None else os.path.abspath(str(subscriptions)),
        "onError": on_error,
        "prefix": prefix or None,
        "carry": "true" if carry else None,
    }


def _present(options: dict[str, str | None]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _written(place: int | str | dt.datetime | None) -> str | None:
    if isinstance(place, dt.datetime):
        return place.isoformat()
    return None if place is None else str(place)


class LogSource(DataSource):
    """Spark's `format("tidings-log")`; its options are the parameters of `read_log` and `stream_log`."""

    @classmethod
    def name(cls) -> str:
        return "tidings-log"

    def schema(self) -> str:
        return self._reading().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogBatchReader(self._reading(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LogStreamReader(self._reading(), schema)

    def _reading(self) -> LogReading:
        pages = _choice(self.options, "pages", "false", "true") == "true"
        return PageReading(self.options) if pages else LogReading(self.options)


class LogReading:
    """What the options ask for, checked."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        for key in options:
            if key.lower() not in _OPTIONS:
                raise PipelineError(f"log: unknown option '{key}'; {did_you_mean(key, _OPTIONS.values())}")
        if "path" not in options:
            raise PipelineError("log: the option 'path' is missing: the directory of the log")
        self.path = os.path.abspath(options["path"].removeprefix("file:"))
        domain = options.get("domain")
        self.domain = Domain.from_json(domain) if domain and domain.lstrip().startswith("{") else None
        self.domain_name = self.domain.name if self.domain else domain
        self.subscriptions = options.get("subscriptions")
        self.prefix = options.get("prefix", "")
        self.starting = options.get("startingPosition", "earliest")
        self.ending = options.get("endingPosition", "latest")
        self.max_events = _count(options, "maxEventsPerTrigger", None)
        self.events_a_partition = _count(options, "eventsPerPartition", EVENTS_A_PARTITION) or EVENTS_A_PARTITION
        self.carry = _choice(options, "carry", "false", "true") == "true"
        self.reject = _choice(options, "onError", "raise", "reject") == "reject"
        self.gate = Gate.from_option(options["gate"]) if "gate" in options else None
        self.wait_seconds = (_count(options, "waitMilliseconds", None) or 0) / 1000

    def schema(self) -> str:
        place = [f"{name} {type_}" for name, type_ in zip(self._own(), ("BIGINT", "TIMESTAMP", "BIGINT"), strict=True)]
        if self.domain is None:
            return ", ".join(place + [f"{name} STRING" for name in _RAW])
        attributes = nested(self.domain.leaves.items())
        own = {name.lower() for name in [*self._own(), f"{self.prefix}rejected"][: 4 if self.reject else 3]}
        for name in attributes:
            if name.lower() in own:
                raise DomainError(
                    f"domain '{self.domain.name}': the attribute '{name}' has the name of a column of the log; "
                    "read with a prefix for the latter, such as prefix='log_'"
                )
        place += [f"{quote_name(name)} {type_of(node)}" for name, node in attributes.items()]
        return ", ".join(place + ([f"{self.prefix}rejected STRING"] if self.reject else []))

    def _own(self) -> list[str]:
        return [f"{self.prefix}{name}" for name in _PLACE]

    def log(self) -> LogReader:
        return _open(self.path)

    def version(self) -> int:
        """The current version of the subscriptions; 0 if the events meet none."""
        if self.subscriptions is None:
            return 0
        version = IndexDirectory(self.subscriptions).current()
        if version is None:
            raise PipelineError(
                f"log: the index {self.subscriptions} has no version yet; compile subscriptions before the query starts"
            )
        return version

    def position(self, text: str) -> int:
        """The position that an option means: a number, a time, or a word."""
        log = self.log()
        if text in ("earliest", "latest"):
            return log.start if text == "earliest" else log.end
        if text.isdecimal():
            return int(text)
        try:
            time = dt.datetime.fromisoformat(text)
        except ValueError:
            raise PipelineError(
                f"log: '{text}' is no position; write a number, a time such as 2024-05-01T12:00:00Z, earliest or latest"
            ) from None
        return log.position_at(time if time.tzinfo else time.replace(tzinfo=dt.UTC))

    def domains(self, version: int) -> Domains:
        """The domains whose events meet a version of the subscriptions."""
        return self.domain_name

    def partitions(self, start: int, end: int, version: int) -> list[PositionRange]:
        """Ranges of positions with not too many events of the domains, one task each."""
        log, domains = self.log(), self.domains(version)
        ranges = []
        while start < end:
            last = log.advance(start, domain=domains, events=self.events_a_partition, end=end)
            if last == start:
                break
            ranges.append(PositionRange(start, last, version, *self._carried(log, start, last, domains)))
            start = last
        return ranges

    def _carried(
        self, log: LogReader, start: int, end: int, domains: Domains
    ) -> tuple[list[Page] | None, _Places | None]:
        """What a task needs that does not see the log's disk: the pages, or where in a topic it finds them."""
        if not self.carry:
            return None, None
        if log.place is not None:
            return None, _Places(log.place, log.placed(start, end, domain=domains))
        return list(log.pages(start, end, domain=domains)), None

    def pages(self, part: PositionRange) -> Iterator[Page]:
        """The pages of a range, wherever a task finds them."""
        if part.places is not None:
            return part.places.pages()
        if part.pages is not None:
            return iter(part.pages)
        return self.log().pages(part.start, part.end, domain=self.domains(part.version))

    def read(self, part: PositionRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for columns in self._columns(self.pages(part), part):
            count = len(columns[0])
            version = pa.array([part.version], pa.int64()).take(pa.array([0] * count, pa.int64()))
            columns.insert(2, version)
            fitting = zip(columns, schema, strict=True)
            yield pa.RecordBatch.from_arrays(
                [column if column.type == field.type else column.cast(field.type) for column, field in fitting],
                schema=schema,
            )
        freeze_garbage("read a log")

    def _columns(self, pages: Iterator[Page], part: PositionRange) -> Iterator[list[Any]]:
        if self.domain is None:
            for batch in raw_batches(pages, part.start, part.end):
                yield list(batch.columns)
            return
        on_error: Literal["raise", "reject"] = "reject" if self.reject else "raise"
        for read in attribute_columns(pages, self.domain, part.start, part.end, on_error=on_error):
            yield [read.position, read.time, *read.attributes.columns, *([read.rejected] if self.reject else [])]


class PageReading(LogReading):
    """Reads whole pages, of the domains that a version of the subscriptions has."""

    def schema(self) -> str:
        return _PAGES

    def domains(self, version: int) -> Domains:
        assert self.subscriptions is not None
        return _members(self.subscriptions, version)

    def read(self, part: PositionRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        given = self.pages(part)
        while pages := list(islice(given, PAGES_A_BATCH)):
            rows = [(part.version, part.start, part.end, *attrgetter(*PAGE_FIELDS)(page)) for page in pages]
            columns: Any = zip(zip(*rows, strict=True), schema, strict=True)
            yield pa.RecordBatch.from_arrays([pa.array(column, field.type) for column, field in columns], schema=schema)
        freeze_garbage("read a log")


def read_members(path: Path) -> dict[str, str]:
    """Reads the file of each domain in a version of a stream that many share, by the domain's key."""
    members: dict[str, str] = json.loads(path.read_text())["members"]
    return members


@lru_cache(8)
def _members(versions: str, version: int) -> frozenset[str]:
    return frozenset(read_members(Path(versions) / f"{version}.json"))


@dataclass(frozen=True)
class _Places:
    """Pages in a topic, read there by the task that needs them."""

    url: str
    placed: list[PlacedPage]

    def pages(self) -> Iterator[Page]:
        for page in fetched(shared_topic(self.url), self.placed):
            page.verify()
            yield page


@dataclass
class PositionRange(InputPartition):
    """Positions [start, end), and the version of the subscriptions that they meet."""

    start: int
    end: int
    version: int
    pages: list[Page] | None  # where they travel with the task,
    places: _Places | None  # or only where they are


@dataclass(frozen=True)
class _Passed:
    """Events before this position may meet this version of the subscriptions, or a later one."""

    end: int
    version: int


class LogBatchReader(DataSourceReader):
    def __init__(self, reading: LogReading, schema: StructType) -> None:
        self._reading = reading
        self._schema = schema

    def partitions(self) -> list[PositionRange]:
        reading = self._reading
        start, end = reading.position(reading.starting), reading.position(reading.ending)
        log = reading.log()
        if start > end or end > log.end:
            raise PipelineError(f"log: positions {start} to {end} were asked for, and the log ends at {log.end}")
        return reading.partitions(start, end, reading.version())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, PositionRange):
            return iter(())  # Spark's way of saying that there are none
        return self._reading.read(partition, to_arrow_schema(self._schema, timezone="UTC"))


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, reading: LogReading, schema: StructType) -> None:
        self._reading = reading
        self._schema = schema
        self._last: int | None = None  # where a query that takes what is available now ends
        self._without = (0, 0, 0)  # positions that are known to have no event of the domains of a version
        self._ends = Ends()
        self._open: _Passed | None = None  # as far as the gate has been open

    def initialOffset(self) -> dict[str, int]:
        return {"log": self._reading.position(self._reading.starting), "subscriptions": self._reading.version()}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._reading.max_events
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._reading.log().end

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        until = time.monotonic() + (self._reading.wait_seconds if self._last is None else 0.0)
        while True:
            planned = self._planned(start, limit)
            if planned is not None or time.monotonic() >= until:
                return planned or start
            time.sleep(LOOK_SECONDS)

    def _planned(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int] | None:
        """Where the next micro-batch ends; None if there is none to run yet."""
        log = self._reading.log()
        end = log.end
        if start["log"] > end:
            raise PipelineError(
                f"log: the query has read up to position {start['log']}, and the log {self._reading.path} ends at "
                f"{end}: it is another, or an old copy; restore the right one, or start with a new checkpoint"
            )
        last = end if self._last is None else min(end, self._last)
        version = self._reading.version()
        begin, until, of_version = self._without
        is_known = begin <= start["log"] and of_version == version
        first = max(start["log"], until) if is_known else start["log"]
        if first >= last:
            return None
        if log.advance(first, domain=self._reading.domains(version), events=1, end=last) == first:
            # Only events of other domains: no batch for them, and they are not looked at again.
            self._without = (start["log"], last, version)
            return None
        passed = self._passed(last)
        pinned = self._reading.version()  # after the gate, which asks for this one or a later
        if pinned < start["subscriptions"]:
            raise PipelineError(
                f"log: the query has matched version {start['subscriptions']} of the subscriptions, and the current "
                f"one is {pinned}: the index is another, or an old copy; restore it, or start with a new checkpoint"
            )
        if passed is None or passed.version > pinned:
            return None
        if pinned != version:  # which may be of other domains
            first = start["log"]
        events = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = log.advance(first, domain=self._reading.domains(pinned), events=events, end=passed.end)
        return None if reached <= first else {"log": reached, "subscriptions": pinned}

    def _passed(self, end: int) -> _Passed | None:
        """How far the events may be taken that end here: a gate lets those through that the subscriptions cover."""
        gate = self._reading.gate
        if gate is None:
            return _Passed(end, 0)
        revision = gate.revision()  # after the end was read: what was answered before an event is in it
        if revision is None:
            return None
        self._ends.note(end, revision)
        covers = gate.covered()
        if (found := self._ends.covered(covers.revision)) is not None:
            self._open = _Passed(found, covers.version)
        return self._open

    def reportLatestOffset(self) -> dict[str, int]:
        return {"log": self._reading.log().end, "subscriptions": self._reading.version()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[PositionRange]:
        return self._reading.partitions(start["log"], end["log"], end["subscriptions"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PositionRange)
        return self._reading.read(partition, to_arrow_schema(self._schema, timezone="UTC"))


_opened: dict[str, tuple[tuple[int, int], LogReader]] = {}


def _open(path: str) -> LogReader:
    """The log, opened once in each process: Spark's workers live across micro-batches."""
    try:
        found = os.stat(os.path.join(path, EVENTS))
        file = (found.st_dev, found.st_ino)
    except FileNotFoundError:
        raise PipelineError(
            f"log: there is none in {path} on this machine; where executors do not share the driver's disk, read with "
            "carry=True, or take Kafka"
        ) from None
    known = _opened.get(path)
    if known is not None and known[0] == file:
        return known[1]
    reader = LogReader(path)
    _opened[path] = (file, reader)
    return reader


def type_of(node: Any) -> DataType:
    """Returns the type of an attribute, or of a tree of them by name."""
    if isinstance(node, DataType):
        return node
    return struct(*((name, type_of(inner)) for name, inner in node.items()))


def _count(options: MutableMapping[str, str], name: str, default: int | None) -> int | None:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise PipelineError(f"log: the option '{name}' is a number of at least 1, not '{text}'")
    return int(text)


def _choice(options: MutableMapping[str, str], name: str, *words: str) -> str:
    word = options.get(name, words[0]).lower()
    if word not in words:
        raise PipelineError(f"log: the option '{name}' is {' or '.join(words)}, not '{word}'")
    return word
