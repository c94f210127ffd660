"""`match` on Spark answers what the matcher and the oracle answer: every placement, batch and stream, any schema."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings import pipeline
from tidings.errors import EventError
from tidings.matching.matcher import Matcher
from tidings.model.event import read_events
from tidings.pipeline import PipelineError
from tidings.pipeline.steps import match_tasks as worker
from tidings.systems.interface import placements
from tidings.testing.oracle import brute_force
from tidings.testing.random_cases import make_case
from tidings.testing.spark_judge import events_frame
from tidings.testing.workloads import WORKLOADS

pytestmark = pytest.mark.spark

PLACEMENTS = placements()
STREAMED = ("replicated", "bluedove", "digests")  # one visit at most, and several; the others take the same steps
SUBSCRIPTIONS, EVENTS = 1_500, 800


def by_number(matched: DataFrame) -> dict[int, list[Any]]:
    """The ids of each event by its number `n`; every event is there once."""
    rows = matched.select("n", "subscriptions").toArrow().to_pylist()
    assert len({row["n"] for row in rows}) == len(rows)
    return {row["n"]: sorted(row["subscriptions"]) for row in rows}


class Given:
    """A workload as Spark tables, and what its events match."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        workload = WORKLOADS[name](SUBSCRIPTIONS, EVENTS)
        table = pa.table({"id": np.arange(SUBSCRIPTIONS), "filter": workload.filters})
        self.subscriptions = spark.createDataFrame(table)
        numbered = workload.events.append_column("n", pa.array(np.arange(EVENTS)))
        self.events = spark.createDataFrame(numbered).repartition(3)
        self.index = pipeline.compile(self.subscriptions, domain=workload.domain, sample=workload.events, segments=5)
        found = Matcher(table, workload.domain).match(workload.events)
        self.expected = {event: sorted(found.of(event)) for event in range(EVENTS)}


@pytest.fixture(scope="module", params=["mixed", pytest.param("bluedove", marks=pytest.mark.long)])
def given(spark: SparkSession, request: pytest.FixtureRequest) -> Given:
    return Given(spark, request.param)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_finds_what_the_matcher_finds(given: Given, placement: Any) -> None:
    assert by_number(pipeline.match(given.events, given.index, placement=placement)) == given.expected


@pytest.mark.parametrize("placement", STREAMED)
def test_a_stream_finds_what_a_batch_finds(spark: SparkSession, given: Given, placement: Any, tmp_path: Path) -> None:
    given.events.write.parquet(str(tmp_path / "events"))
    stream = (
        spark.readStream.schema(given.events.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "events"))
    )
    matched = stream.transform(pipeline.match, subscriptions=given.index, placement=placement)
    query = (
        matched.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert len(query.recentProgress) == 3
    assert by_number(spark.read.parquet(str(tmp_path / "out"))) == given.expected


def test_pairs_and_counts_say_the_same_as_ids(given: Given) -> None:
    pairs = pipeline.match(given.events, given.index, output="pairs").select("n", "subscription").collect()
    assert sorted(map(tuple, pairs)) == [(n, id_) for n, ids in given.expected.items() for id_ in ids]
    counts = pipeline.match(given.events, given.index, output="counts").select("n", "matches").collect()
    assert {row.n: row.matches for row in counts} == {n: len(ids) for n, ids in given.expected.items()}


def test_events_keep_their_columns_and_ids_their_type(spark: SparkSession, given: Given) -> None:
    matched = pipeline.match(given.events, given.index)
    assert matched.schema.fields[:-1] == given.events.schema.fields
    assert matched.schema["subscriptions"].dataType.simpleString() == "array<bigint>"
    texts = given.subscriptions.select(F.concat(F.lit("s"), "id").alias("id"), "filter")
    matched = pipeline.match(given.events, texts)
    assert matched.schema["subscriptions"].dataType.simpleString() == "array<string>"
    assert by_number(matched) == {n: sorted(f"s{id_}" for id_ in ids) for n, ids in given.expected.items()}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
def test_generated_filters_over_every_type_match_as_the_oracle_says(spark: SparkSession, seed: int) -> None:
    case = make_case(Random(seed), events=15, filters=60)
    subscriptions = dict(case.readable())
    expected: dict[int, list[int]] = {event: [] for event in range(len(case.events))}
    for event, id_ in brute_force(subscriptions, case.events, case.domain):
        expected[event].append(id_)
    frame = events_frame(spark, read_events(case.events, case.domain))
    typed = [
        F.col(attribute.name).cast(str(attribute.type)).alias(attribute.path[0]) for attribute in case.domain.attributes
    ]
    events = frame.select(*typed, F.monotonically_increasing_id().alias("n"))  # of one partition: 0, 1, 2 …
    table = spark.createDataFrame(list(subscriptions.items()), "id bigint, filter string")
    index = pipeline.compile(table, domain=case.domain, segments=3)
    assert index.rejected == 0
    for placement in PLACEMENTS:
        assert by_number(pipeline.match(events, index, placement=placement)) == expected, placement


def test_output_is_divided_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = Matcher([(f"subscription {i}", f"x > {i}") for i in range(100)], {"x": "double"})
    batch = pa.RecordBatch.from_pydict({"x": [float(i) for i in range(100)]})
    found = [matcher.match(batch)]
    (whole,) = worker.answer(batch, found, counts=False, string_ids=True)
    monkeypatch.setattr(worker, "OUTPUT_BYTES", 2_000)
    divided = list(worker.answer(batch, found, counts=False, string_ids=True))
    assert len(divided) > 10
    assert pa.Table.from_batches(divided).to_pylist() == whole.to_pylist()


def test_an_event_that_does_not_fit_the_domain_has_null_in_place_of_matches(spark: SparkSession) -> None:
    events = spark.sql("SELECT 1 AS n, DATE'2020-01-01' AS day UNION ALL SELECT 2, make_date(12020, 1, 1)")
    subscriptions = spark.createDataFrame(
        [("all", "TRUE"), ("past", "day < DATE'2021-01-01'")], "id string, filter string"
    )
    found = {row.n: row.subscriptions for row in pipeline.match(events, subscriptions).drop("day").collect()}
    assert sorted(found[1]) == ["all", "past"]
    assert found[2] is None
    counted = pipeline.match(events, subscriptions, output="counts").drop("day")
    counts = {row.n: row.matches for row in counted.collect()}
    assert counts == {1: 2, 2: None}


def test_columns_that_no_filter_can_speak_of_are_carried_along(spark: SparkSession) -> None:
    events = spark.sql("SELECT 7 AS x, INTERVAL '1' DAY AS wait, map('k', 1) AS tags, named_struct('deep', 3) AS s")
    subscriptions = spark.createDataFrame(
        [("a", "x = 7 AND s.deep = 3"), ("b", "wait IS NULL")], "id string, filter string"
    )
    index = pipeline.compile(subscriptions, domain=events)
    (row,) = pipeline.match(events, index).collect()
    assert row.subscriptions == ["a"]
    assert row.tags == {"k": 1}
    assert index.rejects.first().reason.startswith("unknown attribute 'wait'")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("1 AS prize", "the events have no column 'price', which filters of the index read; did you mean 'prize'"),
        ("'1' AS price", "the column 'price' is string in the events and double in the index; cast it"),
    ],
)
def test_events_that_the_index_was_not_compiled_for_are_refused(
    spark: SparkSession, columns: str, message: str
) -> None:
    subscriptions = spark.createDataFrame([("a", "price > 4")], "id string, filter string")
    index = pipeline.compile(subscriptions, domain={"price": "double"})
    with pytest.raises(PipelineError, match=message):
        pipeline.match(spark.sql(f"SELECT {columns}"), index)


def test_wrong_calls_are_refused_before_anything_runs(spark: SparkSession) -> None:
    subscriptions = spark.createDataFrame([("a", "TRUE")], "id string, filter string")
    events = spark.range(1)
    with pytest.raises(ValueError, match="output is 'ids', 'pairs' or 'counts', not 'all'"):
        pipeline.match(events, subscriptions, output="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"placement is 'auto', 'bluedove', .* not 'ring'"):
        pipeline.match(events, subscriptions, placement="ring")
    with pytest.raises(EventError, match="have a column 'Subscriptions' already"):
        pipeline.match(events.withColumn("Subscriptions", F.lit(1)), subscriptions)
    with pytest.raises(EventError, match="events come as a DataFrame, not as list"):
        pipeline.match([{"id": 1}], subscriptions)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="needs an attribute"):
        pipeline.match(events, subscriptions, placement="bluedove")
