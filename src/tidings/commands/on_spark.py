"""A Spark session for as long as one command takes, with a line that says how it goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status

from tidings import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def on_spark(master: str, name: str, console: Console) -> Iterator[tuple[SparkSession, Status]]:
    with console.status("starting Spark") as status:
        spark = pipeline.session(master, name=name)
        try:
            yield spark, status
        finally:
            spark.stop()
