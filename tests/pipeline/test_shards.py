"""Shard files: small where there is little in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from tidings.matching.matcher import Matcher
from tidings.pipeline.shards import indexed
from tidings.testing.workloads import WORKLOADS


def test_the_file_of_a_small_shard_is_not_mostly_the_events_that_its_index_was_chosen_by(tmp_path: Path) -> None:
    workload = WORKLOADS["mixed"](20, 2_000)
    table = pa.table({"id": np.arange(20), "filter": workload.filters})
    indexed(table, workload.domain, workload.events).save(tmp_path / "shard")
    assert (tmp_path / "shard").stat().st_size < workload.events.nbytes / 2
    found = Matcher.load(tmp_path / "shard", threads=1).match(workload.events)
    assert list(found.pairs()) == list(Matcher(table, workload.domain).match(workload.events).pairs())
