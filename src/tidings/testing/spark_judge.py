"""Spark as the judge: what Spark itself makes of the same filters over the same events.

Spark's ANSI mode raises where Tidings says NULL, and one error would end a whole batch. Each
filter is therefore wrapped in Catalyst's own `TryEval`, which gives NULL for an error, with
NULL itself replaced by another value; so errors and NULLs are distinguished pair by pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.errors import AnalysisException, ArithmeticException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.model.domain import Domain
from tidings.model.event import EventBatch, read_events
from tidings.pipeline.runtime.spark_session import session

FALSE, TRUE, NULL, RAISED, REFUSED = 0, 1, 2, 3, 4
_FILTERS_A_JOB = 100  # Spark compiles every filter; larger jobs make methods too large for the JVM to compile well

# Shared parts of filters would be evaluated outside the wrapper, and constants before the job.
_SETTINGS = {
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConstantFolding",
}
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@dataclass(frozen=True)
class Verdict:
    """What Spark says of every filter (row) on every event (column)."""

    outcomes: npt.NDArray[np.uint8]  # FALSE, TRUE, NULL, RAISED at run time, REFUSED with the whole filter
    refusals: dict[int, str]  # by filter: why Spark refused it

    @property
    def truth(self) -> npt.NDArray[np.bool_]:
        return np.equal(self.outcomes, TRUE)

    @property
    def raised(self) -> npt.NDArray[np.bool_]:
        return np.equal(self.outcomes, RAISED)


def local_session(cores: int = 2) -> SparkSession:
    """A quiet Spark of this process's own, in UTC and ANSI mode."""
    config = {"spark.sql.ansi.enabled": "true", "spark.sql.shuffle.partitions": str(cores)}
    return session(f"local[{cores}]", name="tidings-testing", config=config)


def spark_truth(
    spark: SparkSession, domain: Domain, events: Any, filters: Sequence[str], *, compiled: bool = True
) -> Verdict:
    """Let Spark evaluate every filter on every event, in any form that events have.

    `compiled` is how Spark runs queries; its interpreter, which it keeps for what is too large to
    compile, has the same semantics and judges several times as many filters a second.
    """
    batch = read_events(events, domain)
    outcomes = np.full((len(filters), batch.count), REFUSED, np.uint8)
    refusals: dict[int, str] = {}
    with _settings(spark, _SETTINGS if compiled else _SETTINGS | _INTERPRETED):
        frame = events_frame(spark, batch).cache()
        try:
            for first in range(0, len(filters), _FILTERS_A_JOB):
                numbers = range(first, min(first + _FILTERS_A_JOB, len(filters)))
                for found, number in _evaluate(spark, frame, filters, numbers, refusals):
                    outcomes[number] = found
        finally:
            frame.unpersist()
    return Verdict(outcomes, refusals)


def events_frame(spark: SparkSession, batch: EventBatch) -> DataFrame:
    """Events as a Spark frame in one partition, so that rows keep their order."""
    tree: dict[str, Any] = {}
    for path, column in batch.columns.items():
        inner = tree
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = column
    table = pa.table({name: _column(part) for name, part in tree.items()})
    return spark.createDataFrame(table).coalesce(1)


def _column(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return pa.StructArray.from_arrays([_column(inner) for inner in part.values()], names=list(part))


@contextmanager
def _settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def _evaluate(
    spark: SparkSession, frame: DataFrame, filters: Sequence[str], numbers: Sequence[int], refusals: dict[int, str]
) -> Iterator[tuple[npt.NDArray[np.uint8], int]]:
    """The outcomes of some filters; where Spark refuses them together, of each half apart."""
    try:
        columns = [_wrapped(spark, filters[number]).alias(f"f{number}") for number in numbers]
        table = frame.select(*columns).toArrow()
    except PySparkException as error:
        if len(numbers) == 1:
            # Errors of a run are caught by the wrapper, so an arithmetic one is of a literal with too many digits.
            if not isinstance(error, AnalysisException | ArithmeticException | ParseException):
                raise
            refusals[numbers[0]] = str(error).splitlines()[0] if str(error) else type(error).__name__
            return
        middle = len(numbers) // 2
        yield from _evaluate(spark, frame, filters, numbers[:middle], refusals)
        yield from _evaluate(spark, frame, filters, numbers[middle:], refusals)
        return
    for number, column in zip(numbers, table.columns, strict=True):
        outcomes = column.to_numpy()  # doubles, NaN for NULL, where there are NULLs
        yield np.where(np.isnan(outcomes), RAISED, outcomes).astype(np.uint8), number


def _wrapped(spark: SparkSession, text: str) -> Column:
    jvm = spark._jvm
    assert jvm is not None
    bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
    number = F.coalesce(F.expr(text).cast("boolean").cast("int"), F.lit(NULL))
    expression = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(bridge.expression(number._jc))
    return Column(bridge.column(expression))
