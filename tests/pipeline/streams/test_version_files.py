"""A stream whose events are routed finds what one finds whose are not, from one View to the next, each match once."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidings import Matcher
from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events

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
from tidings.pipeline.steps.counted_lists import list_rows
from tidings.pipeline.steps.counted_stream import count_visits, look_up_visits
from tidings.pipeline.steps.index_version import NOTHING, Aside, PinnedVersions
from tidings.pipeline.steps.match_metrics import Measures
from tidings.pipeline.steps.match_tasks import VISIT, MatchTask, match_visits
from tidings.pipeline.steps.route_step import RouteTask, send
from tidings.pipeline.streams.checkpoint import Checkpoint, QueryIdentity
from tidings.pipeline.streams.index_changes import IndexChanges
from tidings.pipeline.streams.version_files import VersionFeed
from tidings.systems.interface import CountsLists, View, place, placement_named, view_to_dict
from tidings.systems.sharding import shards_of
from tidings.systems.statistics import statistics_of

DOMAIN = Domain("d", [Attribute("x", "bigint"), Attribute("word", "string")])
COUNT = 60
EVENTS = pa.table(
    {
        "x": pa.array([None if n == 7 else n * 7 % 50 for n in range(COUNT)], pa.int64()),
        "word": pa.array([f"w{n % 5}" for n in range(COUNT)]),
    }
)
PARTITIONS = 4


def filters(count: int = 40) -> dict[int, str]:
    texts = ("x > {0}", "x BETWEEN {0} AND {0} + 9", "word = 'w{1}' AND x < {0}", "x = {0} OR word = 'w{1}'")
    return {n: texts[n % 4].format(n, n % 5) for n in range(count)}


class _Local:
    class sparkContext:
        master = "local[2]"


class World:
    """An index, and a query's directory that follows it, without Spark."""

    def __init__(self, path: Path) -> None:
        self.directory = IndexDirectory(path / "index")
        self.filters = filters()
        with self.directory.staged() as staged:
            table = pa.table({"id": list(self.filters), "filter": list(self.filters.values())})
            file = _saved(staged / "tidings-base-0.tidings", table, 0)
            manifest = Manifest("base", DOMAIN.to_dict(), "bigint", len(table), 0, 0, [["x"], ["word"]], None)
            self.directory.publish(staged, manifest, "replicated", Layout("replicated", (file,)))
        self.changes = IndexChanges(self.directory.path)
        self.checkpoint = Checkpoint(path / "query", QueryIdentity("s", "i", "k", "ids"))
        self.feed = VersionFeed(_Local(), self.directory, self.checkpoint, lambda manifest: None)  # type: ignore[arg-type]

    def view(self, placement: str, partitions: int = PARTITIONS) -> View:
        table = compile_filters(pa.array(self.filters.values()), DOMAIN)
        made: View = placement_named(placement).adapt(
            statistics_of(table, read_events(EVENTS, DOMAIN)), partitions=partitions
        )
        return made

    def lay_out(self, view: View, name: str) -> None:
        """As `view_change.lay_out` does on Spark."""
        base = self.changes.base()
        table = compile_filters(base.rows["filter"].combine_chunks(), DOMAIN)
        if isinstance(view, CountsLists):
            copies, shards = list_rows(base.rows, table, view, 0)
        else:
            placed = place(table, view)
            shards, subscriptions = np.unique(np.stack([shards_of(placed.keys, view), placed.subscriptions]), axis=1)
            copies = base.rows.take(pa.array(subscriptions))
        with self.directory.staged() as staged:
            files = []
            for shard in np.unique(shards).tolist():
                rows = copies.filter(pa.array(shards == shard)).combine_chunks()
                files.append(_saved(staged / f"tidings-{name}-{shard}.tidings", rows, shard))
            layout = Layout(view.placement, tuple(files), view_to_dict(view))
            self.directory.add_layout(staged, base.number, name, layout)

    def matched(
        self, version: int, partitions: int = PARTITIONS, *, lists: bool = False, aside: Aside = NOTHING
    ) -> list[tuple[int, int]]:
        """What the tasks of a routed stream find, a batch of each partition at a time; every pair that was found."""
        names = ("position", "x", "word", "version")
        versions = PinnedVersions(str(self.checkpoint.versions), "key", "version", aside, lists)
        task = MatchTask(names, versions, string_ids=False, keeps=("position", "version"))
        rows = EVENTS.add_column(0, "position", pa.array(range(COUNT), pa.int64()))
        rows = rows.append_column("version", pa.array([version] * COUNT, pa.int64()))
        sent = pa.Table.from_batches(
            send(RouteTask(names, versions, partitions), iter(rows.combine_chunks().to_batches()))
        )
        where = np.asarray(sent[VISIT].combine_chunks().field("partition"))
        assert where.max() < partitions
        step = look_up_visits if lists else match_visits
        batches = [batch for mine in _divided(sent, where) for batch in step(task, Measures(), iter(mine))]
        if lists:
            seen = pa.Table.from_batches(batches)
            positions = np.asarray(seen.column(0))
            batches = [
                batch
                for mine in _divided(seen, positions % partitions)
                for batch in count_visits(task, Measures(), iter(mine))
            ]
        pairs = [
            (position, id_)
            for batch in batches
            for position, ids in zip(batch["position"].to_pylist(), batch["subscriptions"].to_pylist(), strict=True)
            for id_ in ids
        ]
        return sorted(pairs)

    def expected(self) -> list[tuple[int, int]]:
        return sorted(Matcher(self.filters, DOMAIN).match(EVENTS).pairs())  # type: ignore[arg-type]


def _divided(rows: pa.Table, partition: Any) -> list[list[pa.RecordBatch]]:
    """The rows of each partition, in several batches."""
    numbers = np.unique(partition)
    return [rows.filter(pa.array(partition == number)).combine_chunks().to_batches(7) for number in numbers]


def _saved(path: Path, rows: pa.Table, shard: int) -> ShardFile:
    if len(rows.column_names) > 2:  # a list
        with pa.ipc.new_file(str(path), rows.schema) as writer:
            writer.write_table(rows)
    else:
        indexed(rows, DOMAIN, None).save(path)
    return ShardFile(shard, path.name, len(rows), path.stat().st_size, checksum(path))


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    yield made
    made.checkpoint.release()


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("placement", ["bluedove", "digests", "clusters", "planned", "replicated", "chord", "opchord"])
def test_every_match_is_found_once_under_any_view_and_while_subscriptions_change(
    world: World, placement: str, lists: bool
) -> None:
    """A stream that counts lists serves Views without them, and one that does not has no View where there are some."""
    matched = partial(world.matched, lists=lists)
    without = world.feed.current
    assert matched(without) == world.expected()  # no View yet: matched whole, wherever
    base = world.changes.base()
    world.lay_out(world.view(placement), "placed-one")
    one = world.changes.place(base.number, "placed-one")
    assert one is not None
    world.feed.look()
    assert matched(one) == matched(without) == world.expected()
    assert matched(one, partitions=3) == world.expected()  # as where there are fewer than the View has
    assert matched(one, aside=Aside(frozenset({3, 4}))) == [pair for pair in world.expected() if pair[1] not in (3, 4)]

    before = world.expected()
    world.changes.apply(upsert=[(100, "x < 9"), (3, "word = 'w1'")], remove=[5, 17])
    world.filters |= {100: "x < 9", 3: "word = 'w1'"}
    del world.filters[5], world.filters[17]
    world.feed.look()
    assert matched(world.feed.current) == world.expected()
    assert matched(one) == before  # a batch that is run again has the subscriptions that it had

    world.lay_out(world.view("digests", partitions=2), "placed-two")
    assert world.changes.place(base.number, "placed-two") is not None
    world.feed.look()
    assert matched(world.feed.current) == world.expected()
    assert matched(one) == before  # and the View


def test_lists_are_looked_up_and_not_all_subscriptions(world: World) -> None:
    world.lay_out(world.view("opchord"), "placed-one")
    version = world.changes.place(world.changes.base().number, "placed-one")
    assert version is not None
    world.feed.look()
    versions = PinnedVersions(str(world.checkpoint.versions), "key", "version", lists=True)
    assert isinstance(versions.version(version).view, CountsLists)
    assert replace(versions, lists=False).version(version).view is None


def test_a_view_of_a_base_that_is_no_more_is_not_put_into_force(world: World) -> None:
    base = world.changes.base()
    world.lay_out(world.view("bluedove"), "placed-one")
    world.changes.apply(upsert=[(100, "x < 9")], fold=False)
    world.changes.fold(at_least=1, share=0.0)
    assert world.changes.place(base.number, "placed-one") is None
    assert describe_version(world.directory, world.directory.current() or 0).placed is None


def test_a_version_whose_view_was_removed_is_matched_whole(world: World) -> None:
    base = world.changes.base()
    world.lay_out(world.view("bluedove"), "placed-one")
    version = world.changes.place(base.number, "placed-one")
    for path in world.directory.folder(base.number).glob("*placed-one*"):
        path.unlink()
    world.feed.look()
    assert world.feed.current == version
    assert world.matched(world.feed.current) == world.expected()


def test_the_files_of_the_old_view_go_when_no_batch_can_need_them_any_more(world: World) -> None:
    base = world.changes.base()
    for number, name in enumerate(("placed-one", "placed-two")):
        world.lay_out(world.view("bluedove", partitions=2 + number), name)
        world.changes.place(base.number, name)
        world.feed.look()
    assert (world.checkpoint.versions / "placed-one.json").exists()
    for folder, lines in (
        ("offsets", ["v1", "{}", json.dumps({"subscriptions": world.feed.current})]),
        ("commits", []),
    ):
        (world.checkpoint.path / folder).mkdir()
        (world.checkpoint.path / folder / "0").write_text("\n".join(lines))
    world.changes.apply(upsert=[(100, "x < 9")])
    world.feed.look()
    left = {path.name for path in world.checkpoint.versions.iterdir()}
    assert not {name for name in left if "placed-one" in name}
    assert "placed-two.json" in left


def test_a_snapshot_matches_as_the_index_did_when_it_was_taken(world: World) -> None:
    world.changes.apply(upsert=[(100, "x < 9"), (3, "word = 'w1'")], remove=[5])
    snapshot = world.changes.snapshot()
    world.filters |= {100: "x < 9", 3: "word = 'w1'"}
    del world.filters[5]
    rows, ids = snapshot.match(EVENTS)
    assert sorted(zip(rows.tolist(), ids.to_pylist(), strict=True)) == world.expected()
    assert dict(zip(snapshot.rows["id"].to_pylist(), snapshot.rows["filter"].to_pylist(), strict=True)) == world.filters


def test_a_query_that_starts_again_brings_the_files_of_its_views_to_executors(world: World) -> None:
    base = world.changes.base()
    world.lay_out(world.view("bluedove"), "placed-one")
    world.changes.place(base.number, "placed-one")
    world.feed.look()
    brought: list[str] = []

    class Remote:
        class sparkContext:
            master = "spark://elsewhere"
            addFile = brought.append

    VersionFeed(Remote(), world.directory, world.checkpoint, lambda manifest: None)  # type: ignore[arg-type]
    names = {Path(path).name for path in brought}
    assert "placed-one.json" in names
    assert {name for name in names if name.startswith("tidings-placed-one-")}
    assert len(names) == len(brought)
