"""Placements on Spark: a real shuffle by the explicit partitioner, the load that the law predicts, plans explained."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings import pipeline
from tidings.matching.matcher import Matcher
from tidings.model.event import read_events
from tidings.pipeline import PipelineError
from tidings.pipeline.steps.combine_step import CombineTask, combine
from tidings.pipeline.steps.index_version import OneVersion, VersionFiles
from tidings.pipeline.steps.route_step import RouteTask, routed_once, routed_to_each, send
from tidings.systems import View, view_from_dict
from tidings.systems.interface import CountsLists, placements
from tidings.systems.sharding import visits_of
from tidings.testing.workloads import WORKLOADS, Workload

pytestmark = pytest.mark.spark

SUBSCRIPTIONS, EVENTS = 1_000, 600
ROUTED = tuple(name for name in placements() if name != "replicated")


class Given:
    def __init__(self, spark: SparkSession) -> None:
        self.workload: Workload = WORKLOADS["mixed"](SUBSCRIPTIONS, EVENTS)
        self.table = pa.table({"id": np.arange(SUBSCRIPTIONS), "filter": self.workload.filters})
        numbered = self.workload.events.append_column("n", pa.array(np.arange(EVENTS)))
        self.events: DataFrame = spark.createDataFrame(numbered).repartition(2)
        self.index = pipeline.compile(
            spark.createDataFrame(self.table), domain=self.workload.domain, sample=self.workload.events
        )

    def view(self, placement: str) -> View:
        _, layout = self.index.compiled_for(self.events.schema, None, placement)
        assert layout.view is not None
        return view_from_dict(layout.view)


@pytest.fixture(scope="module")
def given(spark: SparkSession) -> Given:
    return Given(spark)


def plan_of(frame: DataFrame) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


def test_replicated_does_not_shuffle(spark: SparkSession, given: Given) -> None:
    events = spark.createDataFrame(given.events.limit(10).toArrow())
    assert "Exchange" not in plan_of(pipeline.match(events, given.index, placement="replicated"))


@pytest.mark.parametrize("placement", ROUTED)
def test_events_are_shuffled_once_and_again_if_visits_are_combined(
    spark: SparkSession, given: Given, placement: str
) -> None:
    events = spark.createDataFrame(given.events.limit(10).toArrow())
    plan = plan_of(pipeline.match(events, given.index, placement=placement))
    view = given.view(placement)
    shuffles = 1 if not isinstance(view, CountsLists) and view.visits <= 1 else 2
    assert plan.count("Exchange") == shuffles
    assert plan.lower().count("shufflepartitionidpassthrough") == shuffles


@pytest.mark.parametrize("placement", ROUTED)
def test_the_load_of_every_partition_is_the_one_that_the_law_predicts(given: Given, placement: str) -> None:
    view = given.view(placement)
    visits = visits_of(read_events(given.workload.events, given.workload.domain), view)
    domain = given.workload.domain
    if view.visits <= 1:
        routed = routed_once(given.events, view, domain)
    else:
        routed = routed_to_each(given.events, route_task(given, view, given.events.columns))
    counted = routed.groupBy(F.spark_partition_id().alias("p")).count().collect()
    assert {row.p: row["count"] for row in counted} == Counter(visits.partitions.tolist())


def test_the_index_explains_classes_sizes_reasons_and_costs_expected_and_measured(
    spark: SparkSession, given: Given
) -> None:
    pipeline.match(given.events, given.index, placement="replicated", output="counts").collect()
    said = given.index.explain()
    for part in ("class: ", " subscriptions under ", "chosen: ", "µs an event", "measured: replicated: 600 events"):
        assert part in said


def test_a_plan_of_several_classes_finds_what_the_matcher_finds_and_measures_each(
    spark: SparkSession, given: Given, tmp_path: Path
) -> None:
    found = Matcher(given.table, given.workload.domain).match(given.workload.events)
    rows = pipeline.match(given.events, given.index, placement="planned").select("n", "subscriptions").collect()
    assert {row.n: sorted(row.subscriptions) for row in rows} == {n: sorted(found.of(n)) for n in range(EVENTS)}
    said = given.index.explain()
    assert "measured: replicated: " in said
    assert "measured: digests: " in said


def test_pairs_and_counts_of_every_placement_say_the_same(given: Given) -> None:
    found = Matcher(given.table, given.workload.domain).match(given.workload.events)
    wanted = sorted(found.pairs())
    for placement in ("digests", "chord"):
        pairs = pipeline.match(given.events, given.index, placement=placement, output="pairs")
        assert sorted((row.n, row.subscription) for row in pairs.select("n", "subscription").collect()) == wanted
        counts = pipeline.match(given.events, given.index, placement=placement, output="counts").select("n", "matches")
        assert {row.n: row.matches for row in counts.collect()} == {n: len(found.of(n)) for n in range(EVENTS)}


def test_a_view_is_in_the_layout_and_a_later_process_routes_by_it(given: Given) -> None:
    path = Path(given.index.directory) / str(given.index.version) / "digests.json"
    given.view("digests")
    form = json.loads(path.read_text())["view"]
    assert form["placement"] == "digests"
    assert view_from_dict(form).partitions == given.view("digests").partitions


# ---------------------------------------------------------------------- visits, without Spark's help


def route_task(given: Given, view: View, names: list[str], reads: tuple[str, ...] = ()) -> RouteTask:
    version = OneVersion(VersionFiles({}, reads, view=view, domain=given.workload.domain))
    return RouteTask(tuple(names), version, view.partitions, reads, combined=True)


def sent(given: Given, view: View) -> pa.RecordBatch:
    events = given.workload.events.combine_chunks().to_batches()[0]
    (batch,) = send(route_task(given, view, events.schema.names, ("c0",)), iter([events]))
    return batch


def combined(given: Given, batch: pa.RecordBatch, reads: bool = False) -> list[dict[str, Any]]:
    """Visits that each found their own number of matches."""
    found = pa.array([1] * len(batch), pa.int64())
    with_found = pa.RecordBatch.from_arrays([*batch.columns, found], names=[*batch.schema.names, "matches"])
    names = tuple(given.workload.events.column_names)
    task = CombineTask(names, reads=names if reads else (), counts=True)
    return pa.Table.from_batches(list(combine(task, iter([with_found])))).to_pylist()


def test_visits_are_put_together_to_the_events_as_they_were(given: Given) -> None:
    view = given.view("digests")
    visits = sent(given, view)
    assert len(visits) > EVENTS
    rows = combined(given, visits.take(pa.array(np.random.default_rng(0).permutation(len(visits)))))
    assert sum(row["matches"] for row in rows) == len(visits)
    for row in rows:
        del row["matches"]
    assert sorted(map(repr, rows)) == sorted(map(repr, given.workload.events.to_pylist()))


def test_a_visit_that_is_missing_is_an_error(given: Given) -> None:
    visits = sent(given, given.view("digests"))
    with pytest.raises(PipelineError, match=r"visits of an event .* are missing"):
        combined(given, visits.slice(1))


def test_equal_events_each_have_their_matches_and_colliding_ones_their_own(given: Given) -> None:
    """As if all hashes were the same, of events that make as many visits."""
    events = given.workload.events.slice(0, 100)
    events = pa.concat_tables([events, events.slice(0, 10)]).combine_chunks()
    names = events.column_names
    (visits,) = send(route_task(given, given.view("digests"), names, tuple(names)), iter(events.to_batches()))
    struct: Any = visits.column(visits.num_columns - 1)
    fields = {struct.type.field(i).name: struct.field(i) for i in range(struct.type.num_fields)}
    counts = np.asarray(fields["visits"])
    often = int(np.bincount(counts).argmax())
    fields["event"] = pa.array(np.zeros(len(visits), np.int64))
    forged = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    batch = visits.set_column(visits.num_columns - 1, visits.schema.names[-1], forged)
    rows = combined(given, batch.take(np.flatnonzero(counts == often)), reads=True)
    assert {row.pop("matches") for row in rows} == {often}
    numbers = np.repeat(np.arange(len(events)), counts[np.asarray(fields["first"])])
    wanted = events.take(np.unique(numbers[counts == often])).to_pylist()
    assert sorted(map(repr, rows)) == sorted(map(repr, wanted))
