"""What Spark has no call for: a few lines each, used wherever the pipeline meets Spark."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Collection
from functools import cache

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

log = logging.getLogger("tidings.pipeline")

_registering = threading.Lock()  # Spark checks whether a name is taken, and then takes it


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source with a session, from any thread."""
    with _registering:
        spark.dataSource.register(source)


def activate(spark: SparkSession) -> SparkSession:
    """Make a session the active one of this thread too: Spark looks a Python writer up in the thread's session only."""
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
    return spark


def numbered(frame: DataFrame) -> DataFrame:
    """Name columns `_0`, `_1`, …: PySpark looks columns of `mapInArrow` up by name, and fails on dots and quotes."""
    return frame.toDF(*(f"_{number}" for number in range(len(frame.columns))))


def is_local(spark: SparkSession) -> bool:
    """Whether tasks run on the driver's machine, and so see its disk."""
    master = spark.sparkContext.master or ""
    return master == "local" or master.startswith("local[")


@cache
def freeze_garbage(kind: str) -> None:
    """Leave what is in memory now out of later garbage collections; call it after a task, the first of a kind counts.

    Spark's Python workers collect garbage after every task, among all that they have ever imported: with numba, Arrow
    and Spark that takes a tenth of a second, more than a small task itself.
    """
    gc.collect()
    gc.freeze()


def withdraw(context: SparkContext, names: Collection[str]) -> bool:
    """Stop sending files of these names to executors; returns False if that fails, and the files have to stay.

    An executor that joins later is sent every file that was ever added, and runs no task if one of them is missing.
    Spark has no call to take a file back, so this removes it from what `addFile` wrote.
    """
    gone = [url for url in context.listFiles if url.rsplit("/", 1)[-1] in names]
    try:
        sessions = context._jsc.sc().addedFiles().values().iterator()
        while sessions.hasNext():
            added = sessions.next()
            for url in gone:
                added.remove(url)
    except Py4JError as error:  # another Spark has other internals
        log.warning("files that are not needed any more are kept: %s", error)
        return False
    return True
