"""Where a stream's matches go: a store of notifications, Parquet files, Kafka, or the console.

A sink is written to in one of two ways. Where the source pins versions in its offsets, Spark's own
streaming writers do it, and know a micro-batch that they have written before. Where it does not, each
micro-batch is written as a table, and here is what makes writing it twice the same as once.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidings.errors import EventError
from tidings.pipeline.job_errors import CheckpointError, PipelineError
from tidings.pipeline.runtime.spark_workarounds import register
from tidings.pipeline.sinks.store_sink import NotificationsSink, prepare_staging
from tidings.pipeline.sources.stream_sources import VERSION, kafka_errors
from tidings.pipeline.streams.checkpoint import Checkpoint
from tidings.store.mailboxes.notifications import Notifications
from tidings.store.mailboxes.shared_progress import SharedProgress

_OWNER = "_tidings.json"  # Spark's readers do not see what begins so


class Sink(Protocol):
    """Takes events with their matches."""

    def describe(self) -> str:
        """What a user would call it; the same after a restart."""

    def prepare(self, matched: DataFrame, checkpoint: Checkpoint) -> None:
        """Refuse, before anything is written, what cannot go well."""

    def stream(self, matched: DataFrame, checkpoint: Checkpoint) -> DataStreamWriter:
        """Have Spark write the micro-batches."""

    def batch(self, matched: DataFrame, number: int, checkpoint: Checkpoint) -> None:
        """Write one micro-batch, the same one perhaps for a second time."""


@dataclass(frozen=True)
class StoreSink:
    """A store of notifications in a file of SQLite: (position, subscription), each exactly once.

    The events need a column `position`, and where positions are not the log's a column `source`.
    """

    path: str | os.PathLike[str]

    def describe(self) -> str:
        return f"store:{Path(self.path).absolute()}"

    def prepare(self, matched: DataFrame, checkpoint: Checkpoint) -> None:
        types = {field.name: field.dataType for field in matched.schema.fields}
        if not isinstance(types.get("position"), T.LongType):
            raise EventError(
                "the store of notifications needs to know each event's place: a column 'position' of type bigint, as "
                "those from the log and from Kafka have"
            )
        if not isinstance(types.get("subscriptions"), T.ArrayType):
            raise PipelineError("the store of notifications takes the output 'ids'")
        Path(self.path).absolute().parent.mkdir(parents=True, exist_ok=True)
        with Notifications(self.path) as store:
            _compare(store, checkpoint)
        prepare_staging(self.path, checkpoint.query)
        register(matched.sparkSession, NotificationsSink)

    def stream(self, matched: DataFrame, checkpoint: Checkpoint) -> DataStreamWriter:
        return self._shaped(matched).writeStream.format(NotificationsSink.name()).options(**self._options(checkpoint))

    def batch(self, matched: DataFrame, number: int, checkpoint: Checkpoint) -> None:
        writer = self._shaped(matched).write.format(NotificationsSink.name()).mode("append")
        writer.options(**self._options(checkpoint), batch=number).save()

    def resume(self) -> int:
        """The log's position after the last one that any query has come to."""
        if not Path(self.path).exists():
            return 0
        with Notifications(self.path) as store:
            return store.resume()

    def _options(self, checkpoint: Checkpoint) -> dict[str, str]:
        return {"path": str(Path(self.path).absolute()), "query": checkpoint.query}

    def _shaped(self, matched: DataFrame) -> DataFrame:
        wanted = [name for name in ("source", "position", VERSION, "subscriptions") if name in matched.columns]
        return matched.select(*wanted)


def _compare(store: Notifications, checkpoint: Checkpoint) -> None:
    """Raises CheckpointError unless the store and the query belong together."""
    loaded = store.last_batch(checkpoint.query)
    problem = _disagreement(loaded, checkpoint)
    others = [query for query in store.queries() if query != checkpoint.query]
    if loaded is None and checkpoint.last_committed is None and others and not checkpoint.recovered:
        problem = "another query has written to it, and this one is new"
    if problem is not None:
        raise CheckpointError(
            f"sink: {store.path} does not belong to {checkpoint.path}: {problem}; give those that belong together, or "
            "recover: go on, with a new checkpoint, after the last position that the store knows"
        )


def _disagreement(loaded: int | None, checkpoint: Checkpoint) -> str | None:
    """Returns how the last batch that was loaded and the checkpoint disagree; None if they do not.

    What was loaded may be one batch ahead: Spark writes down only afterwards that a batch is done.
    """
    done, planned = checkpoint.last_committed, checkpoint.last_planned
    if loaded is not None and (planned is None or loaded > planned):
        return f"it has batch {loaded}, and the checkpoint has come to {planned}: the checkpoint is an old copy"
    if done is not None and (loaded is None or loaded < done):
        return f"it has come to batch {loaded}, and the checkpoint to {done}: the store is an old copy, or another"
    return None


@dataclass(frozen=True)
class SharedSink:
    """The mailboxes of many domains, for a stream that they share."""

    folder: Path  # has one for each domain, by its key
    progress: Path

    def describe(self) -> str:
        return f"mailboxes:{self.folder.absolute()}"

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError if the checkpoint is of another time than what was loaded."""
        with SharedProgress(self.progress) as progress:
            problem = _disagreement(progress.last_batch(checkpoint.query), checkpoint)
        if problem is not None:
            raise CheckpointError(f"sink: {self.progress} does not belong to {checkpoint.path}: {problem}")
        prepare_staging(self.progress, checkpoint.query)

    def stream(self, matched: DataFrame, checkpoint: Checkpoint) -> DataStreamWriter:
        options = {"path": str(self.folder.absolute()), "progress": str(self.progress.absolute())}
        register(matched.sparkSession, NotificationsSink)
        return matched.writeStream.format(NotificationsSink.name()).options(**options, query=checkpoint.query)


@dataclass(frozen=True)
class ParquetSink:
    """Parquet files in a directory: the events with their matches."""

    path: str | os.PathLike[str]

    def describe(self) -> str:
        return f"parquet:{Path(self.path).absolute()}"

    def prepare(self, matched: DataFrame, checkpoint: Checkpoint) -> None:
        folder = Path(self.path).absolute()
        owner = folder / _OWNER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = json.loads(owner.read_text()).get("query") if owner.exists() else None
            if any(path != owner for path in folder.iterdir()):
                if found == checkpoint.query:
                    return
                whose = "files of something else in it" if found is None else "the matches of another query in it"
                raise PipelineError(f"sink: {folder} has {whose}; give that query's checkpoint, or an empty directory")
            if checkpoint.last_committed is not None:
                raise PipelineError(
                    f"sink: {folder} is empty, and the query has written {checkpoint.last_committed + 1} batches to "
                    "it: restore it, or start with a new checkpoint"
                )
            owner.write_text(json.dumps({"query": checkpoint.query}) + "\n")
        except OSError as error:
            raise PipelineError(f"sink: cannot write to {folder}: {error.strerror}; give another directory") from error

    def stream(self, matched: DataFrame, checkpoint: Checkpoint) -> DataStreamWriter:
        return matched.writeStream.format("parquet").option("path", str(Path(self.path).absolute()))

    def batch(self, matched: DataFrame, number: int, checkpoint: Checkpoint) -> None:
        """A directory for the batch, renamed when complete: written again, it takes the place of the first."""
        folder = Path(self.path).absolute()
        unfinished, finished = folder / f"_unfinished-{number}", folder / f"batch={number}"
        matched.write.mode("overwrite").parquet(str(unfinished))
        if finished.exists():
            shutil.rmtree(finished)
        unfinished.rename(finished)


@dataclass(frozen=True)
class KafkaSink:
    """A topic of Kafka: each row as a JSON value, its position as the key.

    Kafka may get a row twice after a crash; who reads dedupes on position and subscription. `options`
    go to Spark's connector as they are: `kafka.bootstrap.servers`, `topic`, …
    """

    options: Mapping[str, str]

    def describe(self) -> str:
        return f"kafka:{self.options.get('kafka.bootstrap.servers', '')}/{self.options.get('topic', '')}"

    def prepare(self, matched: DataFrame, checkpoint: Checkpoint) -> None:
        with kafka_errors():  # which looks the connector up
            matched.sparkSession.readStream.format("kafka").options(**self.options, subscribe="any").load()
        for option in ("kafka.bootstrap.servers", "topic"):
            if option not in self.options:
                raise PipelineError(f"sink: Kafka needs the option '{option}'")

    def stream(self, matched: DataFrame, checkpoint: Checkpoint) -> DataStreamWriter:
        return self._shaped(matched).writeStream.format("kafka").options(**self.options)

    def batch(self, matched: DataFrame, number: int, checkpoint: Checkpoint) -> None:
        self._shaped(matched).write.format("kafka").options(**self.options).save()

    def _shaped(self, matched: DataFrame) -> DataFrame:
        columns = [F.col(f"`{name.replace('`', '``')}`") for name in matched.columns]
        place = [name for name in ("source", "position") if name in matched.columns]
        key = F.concat_ws("/", *place) if place else F.lit(None).cast("string")
        return matched.select(key.alias("key"), F.to_json(F.struct(*columns)).alias("value"))


@dataclass(frozen=True)
class ConsoleSink:
    """The console: the first rows of each micro-batch that have a match."""

    rows: int = 20

    def describe(self) -> str:
        return "console"

    def prepare(self, matched: DataFrame, checkpoint: Checkpoint) -> None:
        pass

    def stream(self, matched: DataFrame, checkpoint: Checkpoint) -> DataStreamWriter:
        return matched.writeStream.foreachBatch(lambda frame, number: self.batch(frame, number, checkpoint))

    def batch(self, matched: DataFrame, number: int, checkpoint: Checkpoint) -> None:
        wanted = matched.where(F.size("subscriptions") > 0) if "subscriptions" in matched.columns else matched
        for (row,) in wanted.limit(self.rows).select(F.to_json(F.struct("*"))).collect():
            print(row, flush=True)


def as_sink(sink: Sink | str | os.PathLike[str]) -> Sink:
    """A sink as given; a path is a directory of Parquet files."""
    return ParquetSink(sink) if isinstance(sink, str | os.PathLike) else sink
