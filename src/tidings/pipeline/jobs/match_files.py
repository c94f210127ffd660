"""A whole job from files to files, in the steps that its user sees."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tidings.pipeline.build.compiled_index import Index, compile
from tidings.pipeline.job_errors import PipelineError, brief_errors
from tidings.pipeline.sources.table_files import output_format, outputs, read_frame, rejects_path
from tidings.pipeline.steps.match_step import match, pairs

REJECTS_READ = 100


class TaskCount(NamedTuple):
    completed: int
    total: int


class MatchJob:
    """Read events, compile subscriptions, match, write. Output appears whole or not at all."""

    def __init__(self, spark: SparkSession, out: str, output: Literal["ids", "pairs"]) -> None:
        self._spark = spark
        self._out = out
        self._output = output
        self._format = output_format(out)
        self.rejects_path = rejects_path(out)
        self._frame: DataFrame | None = None
        self._index: Index | None = None
        self.rejects: list[tuple[str | int | None, str, int | None]] = []  # the first of them
        self.events = self.matches = self.matched_events = self.rejected = self.subscriptions = 0

    @property
    def placement(self) -> str:
        assert self._index is not None
        return self._index.placement

    def read_events(self, path: str) -> None:
        self._frame = read_frame(self._spark, path)

    def compile(self, path: str) -> None:
        assert self._frame is not None
        with brief_errors():
            self._index = compile(read_frame(self._spark, path), domain=self._frame)
            self.subscriptions, self.rejected = self._index.subscriptions, self._index.rejected
            self.rejects = [tuple(row) for row in self._index.rejects.limit(REJECTS_READ).collect()]
        if not self.subscriptions + self.rejected:
            raise PipelineError(f"{path} has no subscriptions; there is nothing to match")

    def match(self) -> None:
        assert self._frame is not None
        assert self._index is not None
        seen = Observation()
        size = F.coalesce(F.size("subscriptions"), F.lit(0))
        matched = match(self._frame, self._index).observe(
            seen,
            F.count(F.lit(1)).alias("events"),
            F.sum(size).alias("matches"),
            F.count(F.when(size > 0, 1)).alias("matched"),
        )
        with outputs(self._spark, self._out, self.rejects_path) as beside:
            table = pairs(matched) if self._output == "pairs" else matched
            table.write.format(self._format).save(beside[self._out])
            if self.rejected:
                self._index.rejects.coalesce(1).write.format(self._format).save(beside[self.rejects_path])
        found: dict[str, Any] = seen.get
        self.events, self.matches, self.matched_events = (found[key] or 0 for key in ("events", "matches", "matched"))

    def tasks(self) -> TaskCount:
        """Of the stages that Spark is running now."""
        tracker = self._spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        return TaskCount(sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))
