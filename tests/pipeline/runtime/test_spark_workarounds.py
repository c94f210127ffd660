"""Files that executors are brought, until they are taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidings.pipeline.runtime.spark_workarounds import withdraw

pytestmark = pytest.mark.spark


def test_a_file_that_is_withdrawn_is_brought_to_nobody_and_can_be_added_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    context = spark.sparkContext

    def listed() -> set[str]:
        return {url.rsplit("/", 1)[-1] for url in context.listFiles if "withdrawn" in url or "stays" in url}

    for name in ("withdrawn", "stays"):
        (tmp_path / name).write_text(name)
        context.addFile(str(tmp_path / name))
    assert listed() == {"withdrawn", "stays"}
    assert withdraw(context, {"withdrawn", "unheard of"})
    assert listed() == {"stays"}
    context.addFile(str(tmp_path / "withdrawn"))
    assert listed() == {"withdrawn", "stays"}
    assert withdraw(context, {"withdrawn", "stays"})
    assert listed() == set()
