"""Matches made-up events, so that the first real event waits neither for workers nor for kernels.

Kernels are compiled as they are called, once after an installation, and then loaded by every process that calls them.
"""

from __future__ import annotations

import logging
import tempfile
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidings.kernels.decorator import say_compiled
from tidings.matching.matcher import Matcher
from tidings.model.domain import Attribute, Domain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("tidings.pipeline")

_COLUMNS = (
    "n bigint, small int, price double, amount decimal(10,2), name string, open boolean, day date, at timestamp, "
    "document string"
)
_FILTERS = (
    "n > 5",
    "n BETWEEN 3 AND 7 OR n = 9",
    "small IN (1, 2, 3) AND price < 4.5",
    "amount >= 2.50 AND amount < 7",
    "name = 'a3' AND open",
    "name IN ('a1', 'a2') AND n > 2",
    "name LIKE 'a%' AND NOT open",
    "name LIKE '%3'",
    "day > DATE'2026-01-03' AND at < TIMESTAMP'2026-01-09 00:00:00'",
    "price > amount * 2",
    "name IS NULL OR n = small",
    "TRUE",
)
_PATHS = ("//item", "/feed/item/title", '//item[author = "Liu"]', "//item[@n > 3]/title", '/feed/*/title[. = "t4"]')
_BY_PATH = tuple(f"xpath_boolean(document, '{path}')" for path in _PATHS)


def match_numbers(spark: SparkSession) -> None:
    """Start Python workers and load the kernels most used."""
    try:
        _match(spark.range(0, 2_000, numPartitions=2).toDF("n"), _FILTERS[:2])
    except Exception as error:  # the streams report what is wrong, if anything is
        _log.debug("cannot warm up: %s", error)


def match_every_kind(spark: SparkSession) -> None:
    """Match values of every type and documents, by filters of every form: kernels are compiled as they are called."""
    try:
        events = spark.createDataFrame([_event(n) for n in range(200)], _COLUMNS).coalesce(1)
        _match(events.drop("document"), _FILTERS)
        _match(events, (*_FILTERS, *_BY_PATH))
    except Exception as error:
        _log.debug("cannot compile ahead: %s", error)
    else:
        say_compiled()


def match_here() -> None:
    """Match in this process, from an index in a file, as workers do: so all kernels that they need are loaded."""
    attributes = [Attribute(*column.split()) for column in _COLUMNS.split(", ")]
    events = [dict(zip((one.name for one in attributes), _event(n), strict=True)) for n in range(50)]
    for filters, count in ((_FILTERS, len(attributes) - 1), ((*_FILTERS, *_BY_PATH), len(attributes))):
        names = [one.name for one in attributes[:count]]
        with tempfile.TemporaryDirectory(prefix="tidings-warm-up-") as folder:
            path = Path(folder) / "index"
            Matcher(list(enumerate(filters)), Domain("made_up", attributes[:count]), threads=1).save(path)
            table = pa.Table.from_pylist([{name: event[name] for name in names} for event in events])
            Matcher.load(path, threads=1).match(table, on_error="reject")


def _match(events: DataFrame, filters: tuple[str, ...]) -> None:
    from tidings.pipeline.steps.match_step import match  # which imports Spark, and a worker need not

    subscriptions = events.sparkSession.createDataFrame(list(enumerate(filters)), "id bigint, filter string")
    match(events, subscriptions, output="counts").collect()


def _event(n: int) -> tuple[Any, ...]:
    day = n % 27 + 1
    document = f'<feed><item n="{n}"><title>t{n}</title><author>{"Liu" if n % 2 else "Wu"}</author></item></feed>'
    return (
        n,
        n % 7,
        n / 4 if n % 5 else None,
        Decimal(n) / 8,
        f"a{n % 9}" if n % 11 else None,
        n % 3 == 0,
        date(2026, 1, day),
        datetime(2026, 1, day, tzinfo=UTC),
        document,
    )
