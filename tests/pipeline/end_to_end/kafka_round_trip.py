"""Events through Kafka and back, in a process of its own: a session has to start with the connector's jars.

    python kafka_round_trip.py '{"way": "match", "address": …, "config": …, "schema": …, "subscriptions": …, …}'

Prints, as JSON, what arrived in the topic of matches.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings import pipeline

SECONDS_MAX = 120


def main(given: dict[str, Any]) -> None:
    spark = pipeline.session("local[2]", config={**given["config"], "spark.sql.shuffle.partitions": "2"})
    try:
        subscriptions = spark.createDataFrame(given["subscriptions"], "id bigint, filter string")
        index = pipeline.compile(subscriptions, f"{given['folder']}/index", domain=given["schema"])
        for part in given["parts"]:  # with each the query starts again, from its checkpoint
            produce(spark, given["address"], given["events"], part)
            if given["way"] == "match":
                match_topic(spark, given, index)
            else:
                stream_topic(given, index)
        found = read_back(spark, given["address"], given["matches"])
    finally:
        spark.stop()
    print(json.dumps(found))


def produce(spark: SparkSession, address: str, topic: str, events: list[dict[str, Any]]) -> None:
    rows = spark.createDataFrame([(json.dumps(event),) for event in events], "value string")
    rows.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", topic).save()


def match_topic(spark: SparkSession, given: dict[str, Any], index: pipeline.Index) -> None:
    """`match` between Spark's own reader and writer."""
    schema = ", ".join(f"{name} {type_}" for name, type_ in given["schema"].items())
    read = spark.readStream.format("kafka").options(**reading(given)).load()
    events = read.select(F.from_json(F.col("value").cast("string"), schema).alias("event")).select("event.*")
    matched = events.transform(pipeline.match, subscriptions=index)
    query = (
        matched.select(F.to_json(F.struct("n", "subscriptions")).alias("value"))
        .writeStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": given["address"], "topic": given["matches"]})
        .option("checkpointLocation", f"{given['folder']}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS_MAX)


def stream_topic(given: dict[str, Any], index: pipeline.Index) -> None:
    """`stream` from Kafka to Kafka."""
    source = pipeline.KafkaEvents(reading(given), pipeline.domain_of(given["schema"]))
    sink = pipeline.KafkaSink({"kafka.bootstrap.servers": given["address"], "topic": given["matches"]})
    checkpoint = f"{given['folder']}/checkpoint"
    with pipeline.stream(source, index, sink, checkpoint=checkpoint, trigger="now") as stream:
        assert stream.wait(SECONDS_MAX)


def reading(given: dict[str, Any]) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": given["address"],
        "subscribe": given["events"],
        "startingOffsets": "earliest",
    }


def read_back(spark: SparkSession, address: str, topic: str) -> list[dict[str, Any]]:
    options = {"kafka.bootstrap.servers": address, "subscribe": topic}
    rows: DataFrame = spark.read.format("kafka").options(**options).load()
    return [json.loads(row.value) for row in rows.select(F.col("value").cast("string")).collect()]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
