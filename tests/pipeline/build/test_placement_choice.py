"""What users may ask of placements is read, or refused with what there is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidings.pipeline.build.placement_choice import (
    PlacementOptions,
    checked_name,
    executor_memory,
    parse_bytes,
    partitions_for,
)

MB = 2**20


@pytest.mark.parametrize(
    ("text", "count"),
    [("512m", 512 * MB), ("2g", 2048 * MB), ("1.5GB", 1536 * MB), ("7", 7), ("64MiB", 64 * MB), (5, 5)],
)
def test_sizes_are_read_as_spark_writes_them(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="'much' is no size"):
        parse_bytes("much")


def test_a_placement_is_known_by_the_name_of_its_file_and_others_are_refused() -> None:
    assert checked_name("auto") == "auto"
    assert checked_name("clusters") == "clusters"
    with pytest.raises(
        ValueError, match=r"placement is 'auto', 'bluedove', .* not 'bluedive'; did you mean 'bluedove'"
    ):
        checked_name("bluedive")


def test_every_core_has_partitions_to_serve_and_none_is_most_of_the_index() -> None:
    assert [partitions_for(PlacementOptions(), cores) for cores in (1, 2, 16)] == [4, 4, 16]
    assert partitions_for(PlacementOptions(segments=9), 2) == 9


@pytest.mark.parametrize(
    ("configured", "room"),
    [
        ({"spark.executor.pyspark.memory": "2g"}, 98 * MB),  # what a worker may have, less what it takes anyway
        ({"spark.executor.pyspark.memory": "8g", "spark.executor.cores": "2"}, 2_146 * MB),  # each worker has its share
        ({"spark.executor.pyspark.memory": "1g"}, 0),
        ({"spark.executor.memoryOverhead": "2g", "spark.executor.cores": "2"}, 1_368 * MB),  # workers share pages
        ({"spark.executor.memory": "20g"}, 1_708 * MB),
        ({}, 96 * MB),  # of Spark's own least overhead a quarter
    ],
)
def test_an_executor_has_for_the_index_what_its_workers_leave(configured: dict[str, str], room: int) -> None:
    context = SimpleNamespace(master="spark://host:7077", getConf=lambda: configured)
    assert executor_memory(SimpleNamespace(sparkContext=context)) == room  # type: ignore[arg-type]
