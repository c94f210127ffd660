"""A View is changed where that makes micro-batches cheaper by the planner's estimate, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from tidings import Matcher
from tidings.filter.compile.compiler import compile_filters
from tidings.model.event import read_events
from tidings.testing.workloads import WORKLOADS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings.pipeline.build.index_directory import IndexDirectory
from tidings.pipeline.sinks.mailbox_groups import SimilarGroups, regroup
from tidings.pipeline.streams import view_change
from tidings.pipeline.streams.index_changes import IndexChanges, empty_index
from tidings.pipeline.streams.view_change import Question, asked_for, decide, followed, lay_out, made_for, weigh
from tidings.store.mailboxes.notifications import LOG, Notifications
from tidings.systems.bluedove.placement import View as SegmentView
from tidings.systems.interface import View, placement_named, view_from_dict
from tidings.systems.planner.planner import Division, Room
from tidings.systems.statistics import Statistics, statistics_of

BOXES = WORKLOADS["bluedove"](2_000, 2_000)
ROOM = Room(memory=1 << 30, cores=2, partitions=4)


@pytest.fixture(scope="module")
def statistics() -> Statistics:
    filters = compile_filters(BOXES.filters, BOXES.domain)
    return statistics_of(filters, read_events(BOXES.events, BOXES.domain))


def view_of(statistics: Statistics, placement: str = "bluedove", **more: Any) -> View:
    made: View = placement_named(placement).adapt(statistics, **{"partitions": 4, **more})
    return made


@pytest.mark.parametrize(
    ("in_force", "microseconds", "events_a_batch", "expected"),
    [
        # In force, what an event takes with all subscriptions, by the View in force and by another, events, outcome
        (False, {"replicated": 50, "new": 8}, 20_000, "new"),
        (False, {"replicated": 50, "new": 8}, 500, "as it is"),  # a micro-batch that is routed costs 40 ms more
        (False, {"replicated": 50, "new": 48}, 20_000, "as it is"),  # too little to be worth it
        (True, {"replicated": 50, "old": 20, "new": 8}, 20_000, "new"),
        (True, {"replicated": 50, "old": 9, "new": 8.5}, 20_000, "as it is"),
        (True, {"replicated": 50, "old": 20, "new": 8}, 100, "none"),
        (True, {"replicated": 5, "old": 20, "new": 8}, 20_000, "none"),
        (False, {"replicated": 5, "new": 8, "too large": "replicated"}, 1, "new"),  # it alone fits an executor
        (True, {"replicated": 5, "old": 8, "new": 9, "too large": "old"}, 1, "none"),
    ],
)
def test_a_view_is_changed_where_a_micro_batch_becomes_cheaper_by_a_tenth(
    statistics: Statistics,
    monkeypatch: pytest.MonkeyPatch,
    in_force: bool,
    microseconds: dict[str, Any],
    events_a_batch: int,
    expected: str,
) -> None:
    old, new = view_of(statistics, epoch=3), view_of(statistics, "digests")
    names = {id(old): "old", id(new): "new"}

    def estimated(views: list[View], *_: Any, **__: Any) -> list[Division]:
        found = []
        for view in views:
            name = names.get(id(view), "replicated")
            size = 2 * ROOM.memory if microseconds.get("too large") == name else 0.0
            found.append(Division(view.placement, (), 1000 * microseconds[name], size, {}))
        return found

    monkeypatch.setattr(view_change, "estimates", estimated)
    asked = Question(ROOM, events_a_batch, 400.0, epoch=4)
    found = weigh(new, old if in_force else None, statistics, asked)
    outcome = "as it is" if not found.pays else "none" if found.view is None else "new"
    assert outcome == expected, found.why
    if outcome == "new":
        assert found.view is not None
        assert (found.view.placement, found.view.epoch) == ("digests", 4)


def test_a_view_is_changed_where_executors_or_the_operator_ask_for_it(statistics: Statistics) -> None:
    named = Question(ROOM, 1, 400.0, "bluedove")
    first = weigh(asked_for(statistics, named), None, statistics, named)
    assert first.pays
    assert not weigh(asked_for(statistics, named), first.view, statistics, named).pays
    more = replace(named, room=replace(ROOM, partitions=8), made_for=4)
    grown = weigh(asked_for(statistics, more), first.view, statistics, more)
    assert grown.pays  # there are more executors
    assert grown.view.partitions > first.view.partitions  # type: ignore[union-attr]
    other = replace(named, placement="clusters")
    assert weigh(asked_for(statistics, other), first.view, statistics, other).pays
    none = replace(named, placement="replicated")
    assert weigh(asked_for(statistics, none), first.view, statistics, none).view is None
    lists = replace(named, placement="chord")
    assert weigh(asked_for(statistics, lists), first.view, statistics, lists).pays


@pytest.mark.long
@pytest.mark.spark
def test_the_files_of_a_view_hold_the_subscriptions_of_the_base(spark: SparkSession, tmp_path: Path) -> None:
    empty_index(tmp_path, BOXES.domain)
    changes = IndexChanges(tmp_path)
    changes.apply(upsert=pa.table({"id": np.arange(300), "filter": BOXES.filters[:300]}), fold=False)
    changes.fold(share=0.0, at_least=1)
    base = changes.base()
    table = spark.createDataFrame(base.rows)
    events = spark.createDataFrame(BOXES.events)
    found = decide(table, events, BOXES.domain, None, Question(ROOM, 1, 1.0, "bluedove", epoch=2))
    assert found.view is not None
    directory = IndexDirectory(tmp_path)
    name = lay_out(spark, base, found.view, directory, 4, BOXES.events)
    layout = directory.layout(base.number, name)
    assert made_for(name) == 4
    assert layout is not None
    assert view_from_dict(layout.view or {}).epoch == 2
    held = set[int]()
    for file in layout.files:
        matcher = Matcher.load(directory.folder(base.number) / file.name)
        held |= {id_ for table in matcher._version.tables() for id_ in table.ids.to_pylist()}
    assert held == set(range(300))


def test_groups_are_made_where_loads_are_large_and_left_where_they_are_small() -> None:
    matcher = Matcher(pa.table({"id": np.arange(2_000), "filter": BOXES.filters}), BOXES.domain)
    matches = matcher.match(BOXES.events)
    events, ids = np.asarray(matches.events), matches.ids
    made = SimilarGroups(pa.array(np.arange(2_000)), np.arange(0, 2_001, 250))
    with Notifications(":memory:", max_waiting=10_000) as store:
        assert not regroup(made, store, events, ids, events_a_load=1).pays
        found = regroup(made, store, events, ids, events_a_load=2_000)
        assert found.pays, found
        assert store.group(found.groups) == len(found.groups) == 8
        again = regroup(made, store, events, ids, events_a_load=2_000)
        assert not again.pays, again  # they are in force
        lists = pa.ListArray.from_arrays(pa.array(matches.offsets.astype(np.int32)), ids)
        table = pa.table({"position": np.arange(len(BOXES.events)), "subscriptions": lists})
        store.load([table], query="q", batch=0, version=1, reached={LOG: len(BOXES.events)})
        taken = store._ask("SELECT sum(length(data)) FROM pages")[0][0] / len(matches)
        assert taken < found.bytes < 1.5 * taken + 1  # as estimated, or less
        rows = regroup(made, store, events, ids, events_a_load=1)
        assert (rows.pays, rows.groups) == (True, [])  # loads have become so small that pages save nothing


def test_executors_that_are_added_divide_the_most_loaded_segments_and_leave_the_others(statistics: Statistics) -> None:
    before = view_of(statistics)
    assert followed(before, statistics, Question(ROOM, 1, 400.0, made_for=ROOM.partitions)) is None
    more = Question(replace(ROOM, partitions=ROOM.partitions + 2), 1, 400.0, epoch=5, made_for=ROOM.partitions)
    found = followed(before, statistics, more)
    assert found is not None
    assert found.partitions == before.partitions + 2
    assert isinstance(found, SegmentView)
    assert isinstance(before, SegmentView)
    for old, new in zip(before.edges, found.edges, strict=True):
        assert set(old.tolist()) < set(new.tolist())
    decision = weigh(found, before, statistics, more, follows=True)
    assert decision.pays
    assert decision.view is not None
    assert (decision.view.partitions, decision.view.epoch) == (before.partitions + 2, 5)


def test_a_partition_that_is_saturated_gives_half_of_its_segments_away(statistics: Statistics) -> None:
    before = view_of(statistics)
    busy, calm = ({shard: (1_000, 0, took)} for shard, took in ((2, 9_500_000_000), (2, 1_000_000_000)))
    asked = Question(ROOM, 1, 400.0, made_for=ROOM.partitions, counts=busy, seconds=10.0)
    found = followed(before, statistics, asked)
    assert found is not None
    assert found.partitions == before.partitions + 1
    assert weigh(found, before, statistics, asked, follows=True).pays
    assert followed(before, statistics, replace(asked, counts=calm)) is None


def test_a_view_of_another_kind_is_made_again(statistics: Statistics) -> None:
    more = Question(replace(ROOM, partitions=9), 1, 400.0, made_for=ROOM.partitions)
    assert followed(view_of(statistics, "digests"), statistics, more) is None
    assert followed(None, statistics, more) is None
    assert followed(view_of(statistics), statistics, replace(more, placement="digests")) is None
