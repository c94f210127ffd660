"""Paths over a column of XML on Spark: what the matcher says, in batch and in a stream, and what Spark itself says."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from lxml import etree
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings import Attribute, Domain, Matcher, pipeline
from tidings.filter.syntax.writer import literal_to_sql
from tidings.model.types import STRING
from tidings.testing.random_data import make_document, make_path
from tidings.testing.xml_workloads import dtd

pytestmark = pytest.mark.spark

NEWS = Domain("news", [Attribute("n", "bigint"), Attribute("lang", "string"), Attribute("body", "string")])
DOCUMENTS, PATHS = 60, 90


def plain_paths(random: Random, count: int) -> list[str]:
    """Without prefixes: Spark's XPath knows no namespaces."""
    made: list[str] = []
    while len(made) < count:
        path = make_path(random)
        if "p:" not in path:
            made.append(path)
    return made


@pytest.fixture(scope="module")
def documents() -> list[str]:
    random = Random(11)
    return [make_document(random).replace("p:", "").replace(' xmlns:p="urn:p"', "") for _ in range(DOCUMENTS * 3)]


def test_spark_says_of_every_pair_what_the_matcher_says(spark: SparkSession, documents: list[str]) -> None:
    paths = plain_paths(Random(3), PATHS)
    texts = [text for text in documents if _is_well_formed(text)][:DOCUMENTS]
    frame = spark.createDataFrame(pa.table({"n": range(len(texts)), "body": texts}))
    columns = [
        F.expr(f"xpath_boolean(body, {literal_to_sql(path, STRING)})").alias(f"q{i}") for i, path in enumerate(paths)
    ]
    judged = {(row["n"], i) for row in frame.select("n", *columns).collect() for i in range(len(paths)) if row[f"q{i}"]}
    assert set(Matcher(paths, dialect="xpath").match(texts).pairs()) == judged
    assert len(judged) > 200


def _is_well_formed(text: str) -> bool:
    return not Matcher(["/a"], dialect="xpath").match([text], on_error="reject").rejects


@pytest.mark.parametrize("placement", ["auto", "sonnet"])
def test_batch_and_stream_match_paths_over_a_column(
    spark: SparkSession, documents: list[str], tmp_path: Path, placement: str
) -> None:
    paths = plain_paths(Random(5), PATHS)
    filters = {
        i: f"xpath_boolean(body, {literal_to_sql(path, STRING)})" + (" AND lang = 'en'" if i % 3 else "")
        for i, path in enumerate(paths)
    }
    events = pa.table(
        {
            "n": range(DOCUMENTS),
            "lang": ["en", "de"] * (DOCUMENTS // 2),
            "body": [*documents[: DOCUMENTS - 2], "<a>", None],
        }
    )
    found = Matcher(filters, NEWS).match(events)
    expected = {n: sorted(found.of(n)) for n in range(DOCUMENTS)}
    assert len(found) > 100
    frame = spark.createDataFrame(events).repartition(2)
    subscriptions = spark.createDataFrame(pa.table({"id": list(filters), "filter": list(filters.values())}))
    index = pipeline.compile(subscriptions, domain=NEWS, sample=events)
    batch = pipeline.match(frame, index, placement=placement).select("n", "subscriptions").collect()
    assert {row["n"]: sorted(row["subscriptions"]) for row in batch} == expected
    frame.write.parquet(str(tmp_path / "events"))
    stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "events"))
    query = (
        pipeline.match(stream, index, placement=placement)
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    streamed = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row["n"]: sorted(row["subscriptions"]) for row in streamed} == expected


def test_sonnet_finds_what_lxml_finds_and_documents_go_where_their_groups_are(spark: SparkSession) -> None:
    workload = dtd(queries=600, documents=80)
    trees = [etree.fromstring(document).getroottree() for document in workload.documents]
    judged = {
        (n, i)
        for i, query in enumerate(map(etree.XPath, workload.queries))
        for n, tree in enumerate(trees)
        if query(tree)
    }
    texts = [f"xpath_boolean(body, {literal_to_sql(query, STRING)})" for query in workload.queries]
    events = pa.table({"n": range(80), "lang": ["en"] * 80, "body": [one.decode() for one in workload.documents]})
    subscriptions = spark.createDataFrame(pa.table({"id": range(600), "filter": texts}))
    index = pipeline.compile(subscriptions, domain=NEWS, sample=events)
    frame = spark.createDataFrame(events).repartition(2)
    pairs = pipeline.match(frame, index, placement="sonnet", output="pairs").select("n", "subscription").collect()
    assert sorted((row["n"], row["subscription"]) for row in pairs) == sorted(judged)
    assert len(judged) > 300
