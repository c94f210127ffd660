"""A table of subscriptions becomes a version of an index; what cannot be matched is told, and stops nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tidings import pipeline
from tidings.errors import SubscriptionError
from tidings.model.domain import Domain
from tidings.pipeline import PipelineError

pytestmark = pytest.mark.spark

DOMAIN = {"price": "double", "symbol": "string"}


def table(spark: SparkSession, rows: list[Any], schema: str = "id string, filter string") -> DataFrame:
    return spark.createDataFrame(rows, schema)


def matches(events: DataFrame, index: Any, **options: Any) -> list[list[Any]]:
    rows = pipeline.match(events, index, **options).orderBy("price").collect()
    return [sorted(row.subscriptions) for row in rows]


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1.0, "OIL"), (5.0, "GAS"), (9.0, "OIL")], "price double, symbol string")


@pytest.mark.parametrize("placement", ["replicated", "bluedove", "digests", "chord"])
def test_what_cannot_be_matched_is_rejected_with_id_reason_and_position(
    spark: SparkSession, events: DataFrame, placement: Any
) -> None:
    rows = [
        ("good", "price > 4"),
        ("typo", "price > 4 AND prise < 3"),
        ("twice", "price > 1"),
        ("twice", "price > 2"),
        (None, "price > 1"),
        ("", "price > 1"),
        ("none", None),
        ("garbage", "price >>> )("),
        ("all", "TRUE"),
        ("never", "price > 3 AND price < 2"),
    ]
    index = pipeline.compile(table(spark, rows), domain=DOMAIN, placement=placement)
    rejects = {(row.id, row.position): row.reason for row in index.rejects.collect()}
    assert {key[0] for key in rejects} == {"typo", "twice", None, "", "none", "garbage"}
    assert rejects["typo", 15] == "unknown attribute 'prise'; did you mean 'price'?"
    assert "more than once" in rejects["twice", None]
    assert "no filter" in rejects["none", None]
    assert (index.subscriptions, index.rejected) == (3, 7)
    assert matches(events, index, placement=placement) == [["all"], ["all", "good"], ["all", "good"]]


def test_a_percent_of_garbage_leaves_the_rest_as_it_was(spark: SparkSession) -> None:
    rows = [(i, f"price > {i}" if i % 100 else "price >") for i in range(2_000)]
    index = pipeline.compile(table(spark, rows, "id bigint, filter string"), domain=DOMAIN)
    assert index.rejects.count() == 20
    one = spark.createDataFrame([(1e6, "OIL")], "price double, symbol string")
    assert pipeline.match(one, index, output="counts").first().matches == 1_980  # type: ignore[union-attr]


def test_an_unchanged_table_keeps_its_version_and_a_changed_one_gets_the_next(
    spark: SparkSession, events: DataFrame, tmp_path: Path
) -> None:
    first = pipeline.compile(table(spark, [("a", "price > 4"), ("b", "price > 8")]), tmp_path, domain=DOMAIN)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    reordered = pipeline.compile(table(spark, [("b", "price > 8"), ("a", "price > 4")]), tmp_path, domain=DOMAIN)
    assert (first.version, reordered.version) == (1, 1)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == written
    changed = pipeline.compile(table(spark, [("a", "price > 4"), ("b", "price > 0")]), tmp_path, domain=DOMAIN)
    assert changed.version == 2
    assert matches(events, first) == [[], ["a"], ["a", "b"]], "the version before is still there"
    assert matches(events, changed) == [["b"], ["a", "b"], ["a", "b"]]


def test_the_same_rows_in_another_order_make_the_same_files_byte_by_byte(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(f"s{i}", f"price > {i % 7} AND symbol = 'S{i % 5}'") for i in range(50)]
    made = []
    for name, given in (("one", rows), ("other", rows[::-1])):
        pipeline.compile(table(spark, given).repartition(3), tmp_path / name, domain=DOMAIN)
        made.append([file.read_bytes() for file in (tmp_path / name / "1").glob("*.tidings")])
    assert made[0] == made[1]


def test_another_domain_is_another_version(spark: SparkSession, tmp_path: Path) -> None:
    rows = table(spark, [("a", "price > 4")])
    versions = [pipeline.compile(rows, tmp_path, domain={"price": type_}).version for type_ in ("double", "bigint")]
    assert versions == [1, 2]


def test_without_a_domain_the_first_events_give_it(spark: SparkSession, events: DataFrame) -> None:
    index = pipeline.compile(table(spark, [("a", "price > 4")]))
    with pytest.raises(PipelineError, match=r"compile\(…, domain=…\)"):
        _ = index.version
    assert matches(events, index) == [[], ["a"], ["a"]]
    assert index.domain.names == ["price", "symbol"]


def test_subscriptions_to_other_domains_are_left_out(spark: SparkSession, events: DataFrame) -> None:
    rows = [("a", "price > 4", "stocks"), ("b", "magnitude > 5", "quakes"), ("c", "price > 0", None)]
    subscriptions = table(spark, rows, "id string, filter string, domain string")
    domain = Domain("stocks", pipeline.domain_of(events).attributes)
    index = pipeline.compile(subscriptions, domain=domain)
    assert index.rejected == 0
    assert matches(events, index) == [["c"], ["a", "c"], ["a", "c"]]
    with pytest.raises(SubscriptionError, match="several domains"):
        pipeline.match(events, subscriptions)
    only = subscriptions.where("id != 'b'")
    assert matches(events, only) == [["c"], ["a", "c"], ["a", "c"]]


def test_a_table_without_rows_matches_nothing(spark: SparkSession, events: DataFrame) -> None:
    assert matches(events, table(spark, [])) == [[], [], []]


def test_a_damaged_shard_is_refused_by_name(spark: SparkSession, events: DataFrame, tmp_path: Path) -> None:
    rows = table(spark, [("damaged", "price > 4")])
    pipeline.compile(rows, tmp_path, domain=DOMAIN)
    (file,) = (tmp_path / "1").glob("*.tidings")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(PipelineError, match=f"{file.name} is damaged.*remove the directory"):
        pipeline.match(events, pipeline.compile(rows, tmp_path, domain=DOMAIN))
    shutil.rmtree(tmp_path / "1")
    again = pipeline.compile(rows, tmp_path, domain=DOMAIN)
    assert again.version == 2
    assert matches(events, again) == [[], ["damaged"], ["damaged"]]


def test_a_directory_of_another_file_system_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="no directory of the driver's own file system"):
        pipeline.compile(table(spark, []), "hdfs://host/index")


def test_explain_says_what_was_chosen_and_why(spark: SparkSession, events: DataFrame) -> None:
    index = pipeline.compile(table(spark, [("a", "price > 4")]), domain=events)
    pipeline.match(events, index)
    said = index.explain()
    assert "index version 1\n  1 subscriptions to 'events', 0 rejected" in said
    assert "filters read price" in said
    assert "chosen: replicated, cheaper" in said
    assert "class: 1 subscriptions under replicated" in said


def test_auto_divides_an_index_that_is_beyond_the_memory(spark: SparkSession, events: DataFrame) -> None:
    rows = [(f"s{i}", f"price >= {i} AND price < {i + 3}") for i in range(2_000)]
    roomy = pipeline.compile(table(spark, rows), domain=events)
    size = sum(file.stat().st_size for file in Path(roomy.directory).rglob("*.tidings"))
    tight = pipeline.compile(table(spark, rows), domain=events, memory=size * 2 // 3, segments=8)
    assert roomy.placement == "replicated"
    assert tight.placement != "replicated"
    assert "of an executor" in tight.explain()
    assert matches(events, tight) == matches(events, roomy)


@pytest.mark.parametrize(
    ("rows", "schema", "message"),
    [
        ([("a", "TRUE")], "name string, filter string", "there is no column 'id'"),
        ([("a", "TRUE")], "id string, fliter string", "there is no column 'filter'; did you mean 'fliter'"),
        ([(1.5, "TRUE")], "id double, filter string", "ids are texts or integers, and the column 'id' is double"),
        ([("a", 1)], "id string, filter int", "the column 'filter' is int, and has to be string"),
    ],
)
def test_a_table_that_is_none_of_subscriptions_is_refused(
    spark: SparkSession, rows: list[Any], schema: str, message: str
) -> None:
    with pytest.raises(SubscriptionError, match=message):
        pipeline.compile(table(spark, rows, schema))
