"""A query's directory: who runs it, which query it is, and which version each of its batches is pinned to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidings.model.domain import Attribute, Domain

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings.pipeline.build.index_directory import IndexDirectory, Layout, Manifest, ShardFile, checksum
from tidings.pipeline.build.table_reading import indexed
from tidings.pipeline.job_errors import CheckpointError, PipelineError
from tidings.pipeline.streams.checkpoint import Checkpoint, QueryIdentity
from tidings.pipeline.streams.index_changes import IndexChanges
from tidings.pipeline.streams.version_files import VersionFeed
from tidings.store.formats import FormatError

IDENTITY = QueryIdentity("log:here", "index", "store:there", "ids")
DOMAIN = Domain("d", [Attribute("x", "bigint")])


def planned(checkpoint: Checkpoint, batch: int, offset: Any) -> None:
    """As Spark writes down what a batch will be."""
    (checkpoint.path / "metadata").write_text('{"id":"0"}')
    (checkpoint.path / "offsets").mkdir(exist_ok=True)
    (checkpoint.path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")


def done(checkpoint: Checkpoint, batch: int) -> None:
    (checkpoint.path / "commits").mkdir(exist_ok=True)
    (checkpoint.path / "commits" / str(batch)).write_text("v1\n{}")


def test_a_query_keeps_its_name_and_another_is_refused_once_anything_was_done(tmp_path: Path) -> None:
    first = Checkpoint(tmp_path / "query", IDENTITY)
    first.release()
    again = Checkpoint(tmp_path / "query", IDENTITY)
    assert again.query == first.query
    again.release()
    other = QueryIdentity("log:here", "index", "parquet:there", "ids")
    changed = Checkpoint(tmp_path / "query", other)  # nothing was done as the first
    assert changed.query != first.query
    planned(changed, 0, {"log": 3, "subscriptions": 1})
    changed.release()
    # Of a kind that `recover` goes on without: a service whose directory was moved has no other way.
    with pytest.raises(CheckpointError, match="whose sink is parquet:there and not store:there; give another"):
        Checkpoint(tmp_path / "query", IDENTITY)
    Checkpoint(tmp_path / "query", IDENTITY, recover=True).release()


def test_one_process_runs_a_query_at_a_time(tmp_path: Path) -> None:
    held = Checkpoint(tmp_path, IDENTITY)
    with pytest.raises(PipelineError, match="is in use"):
        Checkpoint(tmp_path, IDENTITY)
    held.release()
    Checkpoint(tmp_path, IDENTITY).release()


def test_a_batch_keeps_the_version_that_it_was_first_run_with(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, IDENTITY)
    assert checkpoint.version_of(7) is None
    assert checkpoint.pin(7, current=3) == 3
    assert checkpoint.pin(7, current=4) == 3
    assert checkpoint.pin(8, current=4) == 4
    planned(checkpoint, 9, {"log": 5, "subscriptions": 6})
    assert checkpoint.version_of(9) == 6
    planned(checkpoint, 10, {"logOffset": 3})  # of a source of Spark's own
    assert checkpoint.version_of(10) is None
    checkpoint.release()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("offsets/1", "v1\n"),
        ("offsets/1", ""),
        ("offsets/0", "nothing"),
        ("commits/0", "v1"),
        ("offsets/1", 'v1\n{}\n{"log": 5, "subs'),
        ("commits/0", "v1\n{"),
        ("metadata", ""),
        ("metadata", '{"id"'),
    ],
)
def test_a_file_of_sparks_that_was_cut_is_refused_by_name(tmp_path: Path, name: str, content: str) -> None:
    checkpoint = Checkpoint(tmp_path, IDENTITY)
    planned(checkpoint, 0, {"log": 3, "subscriptions": 1})
    done(checkpoint, 0)
    planned(checkpoint, 1, {"log": 5, "subscriptions": 1})
    checkpoint.check()
    (tmp_path / name).write_text(content)
    with pytest.raises(PipelineError, match=rf"{name} is damaged"):
        checkpoint.check()
    checkpoint.release()


def test_a_recovery_puts_the_old_directory_aside(tmp_path: Path) -> None:
    old = Checkpoint(tmp_path / "query", IDENTITY)
    old.release()
    new = Checkpoint(tmp_path / "query", IDENTITY, recover=True)
    assert new.query != old.query
    assert new.recovered
    new.release()
    assert Checkpoint(tmp_path / "query", IDENTITY).recovered
    assert len(list(tmp_path.glob("query.replaced-*"))) == 1


def test_a_recovery_that_is_cut_short_leaves_the_directory_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a domain has such a directory says that it has a stream of its own."""
    for moved in range(6):
        path = tmp_path / str(moved)
        old = Checkpoint(path, IDENTITY)
        planned(old, 0, {"log": 3, "subscriptions": 1})
        done(old, 0)
        old.release()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", renaming(moved))
            with pytest.raises(KeyboardInterrupt):
                Checkpoint(path, IDENTITY, recover=True)
        assert path.is_dir()
        again = Checkpoint(path, IDENTITY, recover=True)
        assert (again.recovered, again.last_planned, again.query != old.query) == (True, None, True)
        again.release()


def renaming(times: int) -> Any:
    """As a process that is killed after so many files were moved."""
    left = [times]
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return rename(path, target)

    return renamed


@pytest.mark.parametrize("recover", [False, True])
def test_a_directory_of_another_format_is_refused_by_name_and_left_as_it_is(tmp_path: Path, recover: bool) -> None:
    (tmp_path / "query").mkdir()
    form = {"format": 99, "query": "q", "recovered": False, **IDENTITY.__dict__}
    (tmp_path / "query" / "tidings.json").write_text(json.dumps(form))
    with pytest.raises(FormatError, match="query has format 99, and this is Tidings with format 1; use the version"):
        Checkpoint(tmp_path / "query", IDENTITY, recover=recover)
    assert [path.name for path in tmp_path.rglob("*")] == ["query", "tidings.json"]


class Local:
    """What a feed asks of a session."""

    class sparkContext:
        master = "local[2]"


def compiled(path: Path) -> IndexDirectory:
    directory = IndexDirectory(path)
    with directory.staged() as staged:
        file = staged / "tidings-base.tidings"
        indexed(pa.table({"id": ["a"], "filter": ["x > 1"]}), DOMAIN, None).save(file)
        manifest = Manifest("base", DOMAIN.to_dict(), "string", 1, 0, 0, [["x"]], {})
        files = (ShardFile(0, file.name, 1, file.stat().st_size, checksum(file)),)
        directory.publish(staged, manifest, "replicated", Layout("replicated", files))
    return directory


def test_a_query_has_its_versions_until_no_batch_can_need_them(tmp_path: Path) -> None:
    index = compiled(tmp_path / "index")
    changes = IndexChanges(index.path)
    checkpoint = Checkpoint(tmp_path / "query", IDENTITY)
    feed = VersionFeed(Local(), index, checkpoint, lambda manifest: None)  # type: ignore[arg-type]

    def held() -> list[int]:
        return sorted(int(path.stem) for path in checkpoint.versions.glob("*.json"))

    for version in (2, 3, 4):
        changes.apply(upsert={"b": f"x = {version}"})
        feed.look()
        assert feed.current == version
    assert held() == [1, 2, 3, 4]  # nothing is done yet
    planned(checkpoint, 0, {"log": 9, "subscriptions": 3})
    done(checkpoint, 0)
    changes.apply(remove=["b"])
    feed.look()
    assert held() == [3, 4, 5]
    names = {name for number in held() for name in described(checkpoint, number)}
    assert {path.name for path in checkpoint.versions.iterdir()} == names | {"current", "3.json", "4.json", "5.json"}
    checkpoint.release()


def described(checkpoint: Checkpoint, number: int) -> list[str]:
    form = json.loads((checkpoint.versions / f"{number}.json").read_text())
    return [*form["shards"], *form["changes"], *([form["overridden"]] if form["overridden"] else [])]


def test_an_index_that_goes_back_is_reported_and_one_older_than_the_query_refused(tmp_path: Path) -> None:
    index = compiled(tmp_path / "index")
    IndexChanges(index.path).apply(upsert={"b": "x = 1"})
    checkpoint = Checkpoint(tmp_path / "query", IDENTITY)
    feed = VersionFeed(Local(), index, checkpoint, lambda manifest: None)  # type: ignore[arg-type]
    (index.path / "current").write_text("1\n")
    feed.look()
    assert "has gone back to version 1" in (feed.problem or "")
    assert feed.current == 2
    with pytest.raises(PipelineError, match=r"the query has matched version 2 .* the current one in .* is 1"):
        VersionFeed(Local(), index, checkpoint, lambda manifest: None)  # type: ignore[arg-type]
    checkpoint.release()
