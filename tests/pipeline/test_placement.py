"""What users may ask of placements is read, or refused with what there is."""

from __future__ import annotations

import pytest

from tidings.pipeline.placement import Wishes, checked_name, parse_bytes, partitions_for

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
    assert [partitions_for(Wishes(), cores) for cores in (1, 2, 16)] == [4, 4, 16]
    assert partitions_for(Wishes(segments=9), 2) == 9
