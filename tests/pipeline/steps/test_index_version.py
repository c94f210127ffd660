"""Shard files: small if there is little in them, shared by versions, and let go if memory is short."""

from __future__ import annotations

import errno
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidings.matching.matcher import Matcher
from tidings.matching.saving import matcher_file as storage
from tidings.pipeline.build.table_reading import indexed
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.steps import index_version
from tidings.pipeline.steps.index_version import OneVersion, ShardedVersion, VersionFiles
from tidings.testing.workloads import WORKLOADS


def test_the_file_of_a_small_shard_is_not_mostly_sampled_events(tmp_path: Path) -> None:
    workload = WORKLOADS["mixed"](20, 2_000)
    table = pa.table({"id": np.arange(20), "filter": workload.filters})
    indexed(table, workload.domain, workload.events).save(tmp_path / "shard")
    assert (tmp_path / "shard").stat().st_size < workload.events.nbytes / 2
    found = Matcher.load(tmp_path / "shard", threads=1).match(workload.events)
    assert list(found.pairs()) == list(Matcher(table, workload.domain).match(workload.events).pairs())


def held(names: list[str], kept: int | None = None) -> list[str]:
    """Loads files one by one, then says which are still loaded."""
    version = ShardedVersion(VersionFiles(dict(enumerate(names)), ()), None, shards_kept=kept)
    for name in names:
        assert index_version._load(version, name, (name,)) == name  # type: ignore[comparison-overlap]
    return [name for _, name, _ in index_version._loaded]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    made = [f"shard{n}" for n in range(5)]
    for name in made:
        (tmp_path / name).write_bytes(bytes(100))
    monkeypatch.setattr(index_version, "_loaded", OrderedDict())
    monkeypatch.setattr(index_version, "_versions", OrderedDict())
    monkeypatch.setattr(index_version.SparkFiles, "get", lambda name: str(tmp_path / name))
    monkeypatch.setattr(index_version.Matcher, "load", lambda path, *, threads: path.name)
    return made


def test_a_worker_short_of_memory_keeps_only_what_it_needs(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    room = index_version.SCRATCH_BYTES + 300
    monkeypatch.setattr(index_version, "_spare_bytes", lambda: room - 100 * len(index_version._loaded))
    assert [held(names[:count]) for count in range(1, 6)] == [names[:1], names[:2], names[:3], names[1:4], names[2:5]]
    version = ShardedVersion(VersionFiles(dict(enumerate(names)), ()), None)
    for name in names:
        index_version._load(version, name, names)
    assert {name for _, name, _ in index_version._loaded} == set(names)  # all that is needed together stays


def test_a_worker_that_serves_one_partition_after_the_other_keeps_the_last_shards(names: list[str]) -> None:
    assert held(names, kept=2) == names[3:]
    assert held(names) == names


def test_files_go_with_the_last_version_that_has_them(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_version, "VERSIONS_KEPT", 2)
    for first in range(3):
        files = VersionFiles({0: names[first], 1: names[first + 1]}, ())
        ((version, _),) = OneVersion(files).split(pa.RecordBatch.from_pydict({}))
        for name in files.names:
            index_version._load(version, name, files.names)
    assert [name for _, name, _ in index_version._loaded] == names[1:4]


def test_only_a_bound_that_spark_has_set_counts() -> None:
    assert index_version._spare_bytes() == float("inf")


def test_too_little_memory_raises_what_to_do() -> None:
    told = r"too little memory .* \(no room for 7 bytes\): give workers more"
    with pytest.raises(PipelineError, match=told), index_version.enough_memory():
        raise MemoryError("no room for 7 bytes")


def test_no_room_for_a_file_is_no_damage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workload = WORKLOADS["mixed"](20, 200)
    indexed(pa.table({"id": np.arange(20), "filter": workload.filters}), workload.domain, None).save(tmp_path / "shard")

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(storage.mmap, "mmap", no_room)
    with pytest.raises(MemoryError, match=r"no room in memory for '.*shard', [\d,]+ bytes"):
        Matcher.load(tmp_path / "shard")
