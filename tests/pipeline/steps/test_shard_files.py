"""Shard files: small where there is little in them, and let go where memory is short."""

from __future__ import annotations

import errno
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidings.matching.matcher import Matcher
from tidings.matching.saving import matcher_file as storage
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.steps import shard_files as shards
from tidings.pipeline.steps.shard_files import indexed
from tidings.testing.workloads import WORKLOADS


def test_the_file_of_a_small_shard_is_not_mostly_the_events_that_its_index_was_chosen_by(tmp_path: Path) -> None:
    workload = WORKLOADS["mixed"](20, 2_000)
    table = pa.table({"id": np.arange(20), "filter": workload.filters})
    indexed(table, workload.domain, workload.events).save(tmp_path / "shard")
    assert (tmp_path / "shard").stat().st_size < workload.events.nbytes / 2
    found = Matcher.load(tmp_path / "shard", threads=1).match(workload.events)
    assert list(found.pairs()) == list(Matcher(table, workload.domain).match(workload.events).pairs())


def test_a_worker_short_of_memory_keeps_only_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [f"shard{n}" for n in range(5)]
    for name in names:
        (tmp_path / name).write_bytes(bytes(100))
    monkeypatch.setattr(shards, "_loaded", OrderedDict())
    monkeypatch.setattr(shards.SparkFiles, "get", lambda name: str(tmp_path / name))
    monkeypatch.setattr(shards.Matcher, "load", lambda path, *, threads: path.name)
    room = shards.SCRATCH_BYTES + 300
    monkeypatch.setattr(shards, "_spare_bytes", lambda: room - 100 * len(shards._loaded))
    held = []
    for name in names:
        assert shards.load_shards([name], kept=16) == [name]
        held.append(list(shards._loaded))
    assert held == [names[:1], names[:2], names[:3], names[1:4], names[2:5]]
    assert shards.load_shards(names, kept=16) == names  # all that is needed stays, whatever there is room for


def test_only_a_bound_that_spark_has_set_counts() -> None:
    assert shards._spare_bytes() == float("inf")


def test_too_little_memory_is_told_with_what_to_do() -> None:
    told = r"too little memory .* \(no room for 7 bytes\): give workers more"
    with pytest.raises(PipelineError, match=told), shards.enough_memory():
        raise MemoryError("no room for 7 bytes")


def test_no_room_for_a_file_is_no_damage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workload = WORKLOADS["mixed"](20, 200)
    indexed(pa.table({"id": np.arange(20), "filter": workload.filters}), workload.domain, None).save(tmp_path / "shard")

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(storage.mmap, "mmap", no_room)
    with pytest.raises(MemoryError, match=r"no room in memory for '.*shard', [\d,]+ bytes"):
        Matcher.load(tmp_path / "shard")
