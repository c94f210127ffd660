"""Make a data source of ours known to a session, from any thread."""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

_one_at_a_time = threading.Lock()  # Spark looks whether a name is taken, and then takes it


def register(spark: SparkSession, source: type[DataSource]) -> None:
    with _one_at_a_time:
        spark.dataSource.register(source)
