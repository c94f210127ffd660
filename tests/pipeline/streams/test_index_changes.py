"""A changed index matches as one that was compiled of the same subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tidings import Matcher
from tidings.errors import FilterError, SubscriptionError
from tidings.model.domain import Attribute, Domain

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings.pipeline.build.index_directory import (
    IndexDirectory,
    Layout,
    Manifest,
    ShardFile,
    checksum,
    describe_version,
)
from tidings.pipeline.build.table_reading import indexed
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.steps.index_version import PinnedVersions
from tidings.pipeline.steps.match_metrics import Measures
from tidings.pipeline.steps.match_tasks import MatchTask, match_rows
from tidings.pipeline.streams import index_changes as changes_module
from tidings.pipeline.streams.index_changes import IndexChanges, empty_index

DOMAIN = Domain("d", [Attribute("x", "bigint"), Attribute("word", "string")])
EVENTS = pa.table({"x": pa.array(range(50), pa.int64()), "word": pa.array([f"w{n % 5}" for n in range(50)])})


def compiled(path: Path, filters: dict[Any, str], shards: int = 2) -> IndexDirectory:
    """An index as `compile` leaves it, made without Spark."""
    directory = IndexDirectory(path)
    string = any(isinstance(id_, str) for id_ in filters)
    with directory.staged() as staged:
        files = []
        for shard in range(shards):
            rows = [(id_, text) for n, (id_, text) in enumerate(filters.items()) if n % shards == shard]
            if rows:
                table = pa.table({"id": [id_ for id_, _ in rows], "filter": [text for _, text in rows]})
                file = staged / f"tidings-base-{shard}.tidings"
                indexed(table, DOMAIN, None).save(file)
                files.append(ShardFile(shard, file.name, len(rows), file.stat().st_size, checksum(file)))
        manifest = Manifest(
            fingerprint="base",
            domain=DOMAIN.to_dict(),
            id_type="string" if string else "bigint",
            subscriptions=len(filters),
            rejected=0,
            elsewhere=0,
            reads=[["x"]],
            plan=None,
        )
        directory.publish(staged, manifest, "replicated", Layout("replicated", tuple(files)))
    return directory


def matched(directory: IndexDirectory, number: int, folder: Path) -> list[tuple[int, Any]]:
    """What a worker finds with a version, whose files lie in one folder as a query's feed has them."""
    from tidings.pipeline.streams.checkpoint import Checkpoint, QueryIdentity
    from tidings.pipeline.streams.version_files import VersionFeed

    checkpoint = Checkpoint(folder, QueryIdentity("s", "i", "k", "ids"))
    try:
        feed = VersionFeed(_Local(), directory, checkpoint, lambda manifest: None)  # type: ignore[arg-type]
        assert feed.current == number
        string = describe_version(directory, number).manifest.id_type == "string"
        names = (*EVENTS.column_names, "version")
        versions = PinnedVersions(str(checkpoint.versions), "key", "version")
        task = MatchTask(names, versions, string_ids=string)
        rows = EVENTS.append_column("version", pa.array([number] * len(EVENTS), pa.int64()))
        answered = list(match_rows(task, Measures(), iter(rows.combine_chunks().to_batches())))
    finally:
        checkpoint.release()
    lists = [ids for batch in answered for ids in batch.column("subscriptions").to_pylist()]
    return sorted((event, id_) for event, ids in enumerate(lists) for id_ in ids)


class _Local:
    class sparkContext:
        master = "local[2]"


def oracle(filters: dict[Any, str]) -> list[tuple[int, Any]]:
    return sorted(Matcher(filters, DOMAIN).match(EVENTS).pairs()) if filters else []


@pytest.fixture(params=[20_000, 12], ids=["kept apart", "folded"])
def folded_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(changes_module, "FOLDED_AT", request.param)
    return request.param


@pytest.mark.parametrize("string", [False, True])
def test_any_series_of_changes_matches_as_the_table_that_comes_of_it(
    tmp_path: Path, string: bool, folded_at: int
) -> None:
    random = Random(5)

    def identity(n: int) -> Any:
        return f"s{n}" if string else n

    filters = {identity(n): f"x > {n}" for n in range(20)}
    directory = compiled(tmp_path / "index", filters)
    changes = IndexChanges(directory.path)
    for step in range(12):
        put = {
            identity(random.randrange(40)): f"x % 7 = {random.randrange(7)} OR word = 'w{step % 5}'" for _ in range(3)
        }
        removable = sorted(filters.keys() - put.keys(), key=str)
        gone = random.sample(removable, min(2, len(removable)))
        version = changes.apply(upsert=put, remove=gone, fold=False)
        filters = {id_: text for id_, text in filters.items() if id_ not in gone} | put
        assert directory.current() == version
        _assert_current_is(directory, filters, tmp_path / "query")
        if step == 6:
            changes = IndexChanges(directory.path)  # another process goes on
        else:
            changes.fold()
            _assert_current_is(directory, filters, tmp_path / "query")
    folded = [path.parent.name for path in directory.path.glob("[0-9]*/replicated.json")]
    assert (len(folded) > 1) == (folded_at == 12)


def _assert_current_is(directory: IndexDirectory, filters: dict[Any, str], folder: Path) -> None:
    current = directory.current()
    assert current is not None
    assert directory.manifest(current).subscriptions == len(filters)
    assert ["word"] in directory.manifest(current).reads
    assert matched(directory, current, folder) == oracle(filters)


@pytest.mark.usefixtures("folded_at")
def test_everything_can_be_removed_and_put_in_again(tmp_path: Path) -> None:
    directory = compiled(tmp_path / "index", {"a": "x > 3", "b": "x < 3"})
    changes = IndexChanges(directory.path)
    assert matched(directory, changes.apply(remove=["a", "b"]), tmp_path / "query") == []
    assert matched(directory, changes.apply(upsert={"a": "x = 1"}), tmp_path / "query") == [(1, "a")]


def test_whatever_is_wrong_with_a_change_nothing_is_changed(tmp_path: Path) -> None:
    directory = compiled(tmp_path / "index", {"a": "x > 3"})
    changes = IndexChanges(directory.path)
    for change, error, message in (
        ({"upsert": [("b", "x >")]}, FilterError, "filter"),
        ({"upsert": [("b", "TRUE"), ("c", "prise > 3")]}, FilterError, "unknown attribute 'prise'"),
        ({"upsert": [(7, "TRUE")]}, SubscriptionError, "the ids of this index are string"),
        ({"remove": ["b"]}, SubscriptionError, "none with the id 'b' to remove"),
        ({"remove": [7]}, SubscriptionError, "the ids of this index are string, not 7"),
        ({"upsert": [("a", "TRUE")], "remove": ["a"]}, SubscriptionError, "to be put in and to be removed"),
    ):
        with pytest.raises(error, match=message):
            changes.apply(**change)  # type: ignore[arg-type]
    assert directory.current() == 1
    assert changes.apply(upsert=[("b", "x = 1")]) == 2
    assert matched(directory, 2, tmp_path / "query") == oracle({"a": "x > 3", "b": "x = 1"})


def test_two_writers_of_an_index_do_not_undo_each_other(tmp_path: Path) -> None:
    directory = compiled(tmp_path / "index", {"a": "x > 3"})
    first, second = IndexChanges(directory.path), IndexChanges(directory.path)
    first.apply(upsert={"b": "x = 1"})
    second.apply(upsert={"c": "x = 2"})
    version = first.apply(remove=["a"])
    assert matched(directory, version, tmp_path / "query") == oracle({"b": "x = 1", "c": "x = 2"})


def test_an_index_that_is_not_there_or_damaged_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match="has no version yet"):
        IndexChanges(tmp_path / "empty").apply(upsert={"a": "TRUE"})
    directory = compiled(tmp_path / "index", {"a": "x > 3"})
    IndexChanges(directory.path).apply(upsert={"b": "x = 1"})
    for file in directory.folder(2).glob("*.arrow"):
        file.write_bytes(b"spoilt")
    with pytest.raises(PipelineError, match="is damaged: its checksum"):
        IndexChanges(directory.path).apply(upsert={"c": "x = 1"})
    assert directory.current() == 2


def test_old_versions_that_hold_changes_alone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "VERSIONS_KEPT", 3)
    directory = compiled(tmp_path / "index", {"a": "x > 3"})
    changes = IndexChanges(directory.path)
    for number in range(6):
        changes.apply(upsert={"b": f"x = {number}"})
    assert sorted(int(path.name) for path in directory.path.iterdir() if path.name.isdecimal()) == [1, 5, 6, 7]


def test_an_index_begins_empty_and_its_versions_are_past_those_that_were(tmp_path: Path) -> None:
    directory = IndexDirectory(tmp_path / "index")
    first = empty_index(directory.path, DOMAIN, after=7)
    assert first == 8
    changes = IndexChanges(directory.path)
    assert changes.ids().to_pylist() == []
    assert matched(directory, first, tmp_path / "nothing") == []
    second = changes.apply(upsert=[(1, "x < 2"), (2, "word = 'w1' AND x < 5")])
    assert matched(directory, second, tmp_path / "two") == [(0, 1), (1, 1), (1, 2)]
    changes.apply(upsert=[(3, "x = 0")], remove=[1])
    assert sorted(IndexChanges(directory.path).ids().to_pylist()) == [2, 3]


def test_filters_are_read_in_a_domain_with_more_attributes_from_then_on(tmp_path: Path) -> None:
    directory = compiled(tmp_path / "index", {1: "x < 2", 2: "x = 7"})
    changes = IndexChanges(directory.path)
    changes.apply(upsert=[(3, "x = 1")])
    more = Domain("d", [*DOMAIN.attributes, Attribute("extra", "string")])
    with pytest.raises(FilterError, match="unknown attribute 'extra'"):
        changes.apply(upsert=[(4, "extra = 'yes'")])
    version = changes.apply(upsert=[(4, "extra = 'yes'")], domain=more)
    assert describe_version(directory, version).domain == more
    assert sorted(changes.ids().to_pylist()) == [1, 2, 3, 4]
    IndexChanges(directory.path).apply(upsert=[(5, "extra IS NULL")])  # whoever comes next goes on from there
    less = Domain("d", [Attribute("x", "bigint")])
    with pytest.raises(PipelineError, match=r"'word' of .* is missing or another"):
        changes.apply(domain=less)
