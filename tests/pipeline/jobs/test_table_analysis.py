"""An analysis over Spark says what one process says of the whole table, and counts what the oracle counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from tests.waiting import LAST_RESORT_SECONDS

from tidings import pipeline
from tidings.cli import main
from tidings.errors import EventError, SubscriptionError
from tidings.filter.compile.compiler import compile_filters
from tidings.matching.analysis.implications import covering
from tidings.pipeline.jobs.table_analysis import Analysis, analyse
from tidings.testing import brute_force, workloads

pytestmark = pytest.mark.spark

SUBSCRIPTIONS = 1200
EVENTS = 60
MIXED = workloads.mixed(SUBSCRIPTIONS, EVENTS)
OWNERS = [None if i % 97 == 0 else f"user {i % 13}" for i in range(SUBSCRIPTIONS)]
EXTRA = ["n0 > 5 AND n0 < 4", "TRUE", MIXED.filters[7].as_py(), "n0 >"]


def table() -> pa.Table:
    filters = [*MIXED.filters.to_pylist(), *EXTRA]
    return pa.table(
        {"id": range(len(filters)), "filter": filters, "subscriber": [*OWNERS, "user 1", "user 2", "user 7", "user 3"]}
    )


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Analysis:
    subscriptions = spark.createDataFrame(table()).repartition(3)
    return analyse(subscriptions, events=spark.createDataFrame(MIXED.events), sample=EVENTS)


def related(found: Analysis, relation: str) -> dict[int, int | None]:
    rows = found.relations().filter(pa.array(np.asarray(found.relations()["relation"]) == relation))
    return dict(zip(rows["id"].to_pylist(), rows["other"].to_pylist(), strict=True))


def test_relations_are_those_that_one_process_finds_in_the_whole_table(found: Analysis) -> None:
    filters = table()["filter"].to_pylist()[:-1]
    alone = covering(compile_filters(filters, found.table.domain))
    assert set(related(found, "covered")) == set(alone.covered.tolist())
    assert set(related(found, "never")) == {SUBSCRIPTIONS}
    assert set(related(found, "always")) == {SUBSCRIPTIONS + 1}
    classes = {frozenset(np.flatnonzero(alone.first == first).tolist()) for first in alone.first[alone.equivalent]}
    told: dict[int, set[int]] = {}
    for one, first in related(found, "equivalent").items():
        assert first is not None
        told.setdefault(first, {first}).add(one)
    assert {frozenset(one) for one in told.values()} == classes
    assert {7, SUBSCRIPTIONS + 2} in [set(one) for one in told.values()]
    assert found.counts["rejected"] == 1


def test_redundant_are_those_that_another_of_the_same_subscriber_covers_or_repeats(found: Analysis) -> None:
    owners = table()["subscriber"].to_pylist()
    redundant = related(found, "redundant")
    assert all(owners[one] == owners[other] is not None for one, other in redundant.items() if other is not None)
    assert ({7, SUBSCRIPTIONS + 2} & set(redundant)) or owners[7] != owners[SUBSCRIPTIONS + 2]
    repeated = related(found, "equivalent")
    assert set(redundant) <= {*related(found, "covered"), *repeated, *filter(None, repeated.values()), 0}


def test_costs_by_subscriber_are_the_matches_that_the_oracle_counts(found: Analysis) -> None:
    owners = table()["subscriber"].to_pylist()
    filters = dict(enumerate(table()["filter"].to_pylist()[:-1]))
    matched = Counter(owners[id_] for _, id_ in brute_force(filters, MIXED.events, found.table.domain))
    assert found.costs is not None
    counted = dict(zip(found.costs.names.to_pylist(), (found.costs.matches * EVENTS).round().tolist(), strict=True))
    assert {name: count for name, count in counted.items() if count} == dict(matched)
    assert found.costs.shares.sum() == pytest.approx(1)
    assert (np.diff(found.costs.ns) <= 0).all()


def test_without_events_the_filters_own_constants_stand_for_them(spark: SparkSession) -> None:
    subscriptions = spark.createDataFrame(table().drop_columns(["subscriber"]))
    found = analyse(subscriptions, domain=MIXED.domain)
    assert (found.events, found.costs, found.redundant) == (0, None, None)
    assert found.counts["covered"] > 0
    assert {one.path for one in found.dimensions} == {crowd.path for crowd in found.crowds}


def test_the_report_names_what_was_found(found: Analysis) -> None:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(found)
    text = console.export_text()
    for word in ("covered", "equivalent", "the most crowded values", "how to place them", "what each subscriber costs"):
        assert word in text


def test_tables_and_pictures_are_written(found: Analysis, tmp_path: Path) -> None:
    names = found.write(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)
    assert {"cells.png", "plane.png", "costs.png"} < set(names)
    said = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert said["counts"] == found.counts
    assert pq.read_table(tmp_path / "out" / "relations.parquet").equals(found.relations())
    assert pa.csv.read_csv(tmp_path / "out" / "cells.csv").num_rows > 100
    assert pq.read_table(tmp_path / "out" / "costs.parquet").num_rows == 14


def test_the_command_prints_the_report_and_writes_the_files(tmp_path: Path) -> None:
    pq.write_table(table().slice(0, 400), tmp_path / "subscriptions.parquet")
    pq.write_table(MIXED.events, tmp_path / "events.parquet")
    arguments = ["subscriptions.parquet", "--events", "events.parquet", "--out", "out", "--sample", "100"]
    # In a process of its own: the command stops its Spark.
    ran = subprocess.run(
        [sys.executable, "-m", "tidings", "analyse", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LAST_RESORT_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    assert "the most crowded values" in ran.stdout
    assert json.loads((tmp_path / "out" / "analysis.json").read_text())["counts"]["subscriptions"] == 400


def test_the_command_asks_for_types(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["analyse", "subscriptions.parquet"])
    assert ended.value.code == 2
    assert "--events or --domain" in capsys.readouterr().err


def test_wrong_use_raises_what_to_do(spark: SparkSession) -> None:
    subscriptions = spark.createDataFrame(table().slice(0, 20))
    with pytest.raises(EventError, match="needs events, or a domain"):
        analyse(subscriptions)
    with pytest.raises(SubscriptionError, match="no column 'subscribr' of subscribers; did you mean 'subscriber'"):
        analyse(subscriptions, domain=MIXED.domain, subscriber="subscribr")
    empty = spark.createDataFrame(MIXED.events).limit(0)
    with pytest.raises(pipeline.PipelineError, match="the table of events is empty"):
        analyse(subscriptions, events=empty)
    with pytest.raises(pipeline.PipelineError, match="nothing to analyse"):
        analyse(subscriptions.limit(0), domain=MIXED.domain)
