"""Matches made-up events on Spark, so that the first real event waits neither for workers nor for kernels."""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidings import pipeline
from tidings.kernels.decorator import say_compiled

_log = logging.getLogger("tidings.driver")

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
        paths = tuple(f"xpath_boolean(document, '{path}')" for path in _PATHS)
        _match(events, (*_FILTERS, *paths))
    except Exception as error:
        _log.debug("cannot compile ahead: %s", error)
    else:
        say_compiled()


def _match(events: DataFrame, filters: tuple[str, ...]) -> None:
    rows = list(enumerate(filters))
    subscriptions = events.sparkSession.createDataFrame(rows, "id bigint, filter string")
    pipeline.match(events, subscriptions, output="counts").collect()


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
