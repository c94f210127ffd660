"""Jobs over the whole table and history give what one process would, and Views that find every match."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.waiting import LAST_RESORT_SECONDS

from tidings.errors import EventError
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.syntax.writer import literal_to_sql
from tidings.matching.matcher import Matcher
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.model.types import STRING
from tidings.pipeline import PipelineError
from tidings.pipeline.jobs.adaptation import (
    Adapted,
    adapt,
    merged_sketch,
    sketch_of,
)
from tidings.pipeline.jobs.adaptation_report import described, publish, published, write
from tidings.pipeline.sinks.mailbox_groups import group_mailboxes
from tidings.store.mailboxes.notifications import Notifications
from tidings.systems.interface import view_to_dict
from tidings.systems.meeting import meet
from tidings.systems.statistics import statistics_of
from tidings.testing import workloads

pytestmark = pytest.mark.spark

BOXES = workloads.bluedove(3000, 3000)
MIXED = workloads.mixed(2000, 500)
SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


def table(workload: workloads.Workload) -> pa.Table:
    return pa.table({"id": range(len(workload.filters)), "filter": workload.filters})


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Adapted:
    subscriptions = spark.createDataFrame(table(BOXES)).repartition(3)
    return adapt(subscriptions, spark.createDataFrame(BOXES.events).repartition(3), partitions=4)


def test_distributions_are_those_of_all_subscriptions_and_all_events(found: Adapted) -> None:
    filters = compile_filters(BOXES.filters, BOXES.domain)
    whole = statistics_of(filters, read_events(BOXES.events, BOXES.domain))
    assert found.statistics.subscriptions == 3000
    for which in ("values", "bounds"):
        ours, theirs = getattr(found.statistics, which), getattr(whole, which)
        assert set(ours) == set(theirs)
        for path, distribution in theirs.items():
            # A value that is there often has many ranks: the wanted one is among them, or near.
            ranks = [np.searchsorted(distribution.quantiles, ours[path].quantiles, side=side) for side in SIDES]
            low, high = (found / len(distribution.quantiles) for found in ranks)
            wanted = np.linspace(0, 1, len(low))
            assert (low - 0.01 <= wanted).all()
            assert (wanted <= high + 0.01).all()


def test_every_view_finds_every_match(found: Adapted, spark: SparkSession) -> None:
    for workload, adapted in ((BOXES, found), (MIXED, _adapted(spark))):
        assert {"chord", "opchord"} <= set(adapted.views)
        filters = compile_filters(workload.filters, workload.domain)
        events = workload.events.slice(0, 60)
        matched = Matcher(table(workload), workload.domain, threads=1).match(events)
        expected = sorted(zip(matched.events.tolist(), matched.slots.tolist(), strict=True))
        for view in adapted.views.values():
            assert meet(filters, read_events(events, workload.domain), view).pairs == expected, view.placement


def _adapted(spark: SparkSession) -> Adapted:
    return adapt(spark.createDataFrame(table(MIXED)), spark.createDataFrame(MIXED.events), partitions=3)


def test_views_are_published_with_the_next_epoch_when_they_say_something_else(found: Adapted, tmp_path: Path) -> None:
    names = write(found, tmp_path)
    assert "chord.view.json" in names
    assert "distributions.json" in names
    assert write(found, tmp_path) == ["distributions.json"]
    first = published("opchord", tmp_path)
    assert view_to_dict(first) == json.loads(json.dumps(view_to_dict(found.views["opchord"])))
    assert publish("opchord", found.views["chord"], tmp_path)
    assert published("opchord", tmp_path).epoch == first.epoch + 1
    (tmp_path / "opchord.view.json").write_text("{")
    with pytest.raises(PipelineError, match="is no View that can be read"):
        published("opchord", tmp_path)


def test_mailboxes_are_grouped_by_what_subscriptions_ask(spark: SparkSession, tmp_path: Path) -> None:
    made = group_mailboxes(spark.createDataFrame(table(BOXES)), BOXES.domain, tmp_path / "told", size=100)
    assert made == 30
    with Notifications(tmp_path / "told") as store:
        matched = Matcher(table(BOXES), BOXES.domain, threads=1).match(BOXES.events.slice(0, 400))
        lists = pa.ListArray.from_arrays(pa.array(matched.offsets.astype(np.int32)), matched.ids)
        rows = pa.table({"position": np.arange(400), "subscriptions": lists})
        assert store.load([rows], query="q", batch=0, version=1, reached={}) == len(matched)
        assert store._ask("SELECT count(*) FROM pages")[0][0] > 10
        assert sorted(store.pairs()) == sorted(matched.pairs())


def test_the_command_writes_views(tmp_path: Path) -> None:
    pq.write_table(table(MIXED), tmp_path / "subscriptions.parquet")
    pq.write_table(MIXED.events, tmp_path / "events.parquet")
    arguments = ["subscriptions.parquet", "--events", "events.parquet", "--out", "views", "--placement", "opchord"]
    ran = subprocess.run(
        [sys.executable, "-m", "tidings", "adapt", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LAST_RESORT_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    assert "opchord" in ran.stdout
    assert json.loads((tmp_path / "views" / "opchord.view.json").read_text())["placement"] == "opchord"


def test_wrong_use_is_described(spark: SparkSession) -> None:
    subscriptions = spark.createDataFrame(table(MIXED))
    with pytest.raises(EventError, match="needs a history of events, or a domain"):
        adapt(subscriptions)
    with pytest.raises(PipelineError, match="nothing to adapt to"):
        adapt(subscriptions.limit(0), domain=MIXED.domain)


def test_paths_over_xml_are_divided_by_prefix_and_the_report_says_how_evenly(spark: SparkSession) -> None:
    paths = [f"/rss/item[author = 'A{n % 9}']" for n in range(40)] + ["//isbn"] * 5
    texts = [f"xpath_boolean(body, {literal_to_sql(path, STRING)})" for path in paths]
    items = [f"<rss><item><author>A{n % 9}</author></item></rss>" for n in range(30)]
    subscriptions = spark.createDataFrame(pa.table({"id": range(len(texts)), "filter": texts}))
    events = spark.createDataFrame(pa.table({"body": [*items, *["<book><isbn/></book>"] * 10]}))
    found = adapt(subscriptions, events, domain=Domain("news", [Attribute("body", "string")]), names=["sonnet"])
    evenly = r"the largest partition has \d+%, and \d+% of those by token"
    assert re.fullmatch(
        rf"by \d beginnings of paths and \d tokens? in body; {evenly}", described(found.views["sonnet"])
    )
    other = adapt(spark.createDataFrame(table(MIXED).slice(0, 50)), domain=MIXED.domain, names=["sonnet"])
    assert described(other.views["sonnet"]) == "by no path over XML"


@pytest.mark.parametrize("name", ["uniform", "skewed", "few values"])
def test_quantiles_of_merged_parts_are_near_those_of_the_whole(name: str) -> None:
    rng = np.random.default_rng(4)
    whole = {
        "uniform": rng.integers(0, 10**12, 200_000),
        "skewed": (rng.pareto(1.1, 200_000) * 1000).astype(np.int64),
        "few values": rng.integers(0, 7, 200_000),
    }[name]
    parts = np.split(whole, [5, 5, 60_000, 61_000])
    found = merged_sketch([merged_sketch([sketch_of(part, nulls=3), sketch_of(part[:0])]) for part in parts])
    assert found.count == pytest.approx(len(whole))
    distribution = found.distribution(101)
    ordered = np.sort(whole)
    low = np.searchsorted(ordered, distribution.quantiles, side="left") / len(whole)
    high = np.searchsorted(ordered, distribution.quantiles, side="right") / len(whole)
    wanted = np.linspace(0, 1, len(distribution.quantiles))
    assert (low - 0.005 <= wanted).all()
    assert (wanted <= high + 0.005).all()
    assert distribution.nulls == pytest.approx(15 / (len(whole) + 15))
    assert name != "few values" or distribution.distinct == 7


def test_texts_have_sketches_too() -> None:
    words = np.empty(9000, object)
    words[:] = [f"w{i % 300:03d}".encode() for i in range(9000)]
    found = merged_sketch([sketch_of(words[:4500]), sketch_of(words[4500:])]).distribution(4)
    assert found.distinct == 300
    assert [place[:2] for place in found.quantiles] == [b"w0", b"w0", b"w1", b"w2"] or len(found.quantiles) == 4


def test_nothing_has_a_sketch() -> None:
    found = merged_sketch([sketch_of(np.empty(0, np.int64), nulls=4)])
    assert not found.distribution().is_known
    assert found.distribution().nulls == 1


@pytest.fixture(scope="module")
def clustered(spark: SparkSession) -> Adapted:
    table = pa.table({"id": range(3000), "filter": BOXES.filters})
    events = spark.createDataFrame(BOXES.events).repartition(3)
    return adapt(spark.createDataFrame(table).repartition(3), events, names=["clusters"], partitions=4)


def test_the_best_way_to_cluster_all_subscriptions_is_taken(clustered: Adapted) -> None:
    assert set(clustered.clustering) == {"sample", "boruvka", "kmeans", "merged"}
    assert all(quality.false_negatives == 0 for quality in clustered.clustering.values())
    chosen = clustered.views["clusters"]
    events = clustered.statistics.events
    assert events is not None
    assert chosen.mode == "strict"
    assert chosen.sizes.sum() > 0
