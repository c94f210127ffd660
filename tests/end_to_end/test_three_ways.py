"""The same workload three ways: what the overlay delivers, what Spark matches, and what the oracle says are one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tidings.filter.syntax.writer import literal_to_sql
from tidings.filter.xpath_dialect import DOMAIN as DOCUMENTS
from tidings.model.domain import Domain
from tidings.model.types import STRING
from tidings.simulator.run import Run
from tidings.simulator.scenario import Scenario
from tidings.simulator.workload import DOMAIN, feeds
from tidings.testing.oracle import brute_force

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.parametrize("system", ["chord", "opchord", "digests", "clusters", "bluedove"])
def test_overlay_spark_and_oracle_agree_also_after_churn(spark: SparkSession, system: str) -> None:
    filters, probes, delivered = _played(Scenario(system, nodes=10, seed=11, churn=0.8, subscriptions=24, events=20))
    names, records = list(probes), list(probes.values())
    oracle = {(names[event], name) for event, name in brute_force(filters, records, DOMAIN)}
    assert oracle
    assert delivered == oracle == _spark_says(spark, system, filters, probes, DOMAIN)


@pytest.mark.spark
@pytest.mark.parametrize("system", ["sonnet", "sonnet-hashes"])
def test_sonnet_spark_and_lxml_agree_also_after_churn(spark: SparkSession, system: str) -> None:
    paths, documents, delivered = _played(Scenario(system, nodes=8, seed=11, churn=0.8, subscriptions=24, events=20))
    oracle = {
        (id, name)
        for id, document in documents.items()
        for name, path in paths.items()
        if feeds().matches(path, json.dumps(document))
    }
    assert oracle
    filters = {name: f"xpath_boolean(document, {literal_to_sql(path, STRING)})" for name, path in paths.items()}
    records = {id: {"document": document} for id, document in documents.items()}
    assert delivered == oracle == _spark_says(spark, "sonnet", filters, records, DOCUMENTS)


def _played(plan: Scenario) -> tuple[dict[str, str], dict[str, Any], set[tuple[str, str]]]:
    """What is subscribed at the end, the events that were published then, and who of those had which."""
    run = Run(plan)
    outcome = run.play()
    assert outcome.violation is None, outcome.plan.command
    filters = {
        name: known.text
        for name, known in run.judge.interested.items()
        if known.until_ms is None and known.node in run.world.nodes
    }
    probes = {id: json.loads(one.body) for id, one in run.judge.published.items() if one.is_probe}
    return filters, probes, {(d.event, d.subscription) for d in run.world.deliveries if d.event in probes}


def _spark_says(
    spark: SparkSession, placement: str, filters: dict[str, str], probes: dict[str, Any], domain: Domain
) -> set[tuple[str, str]]:
    from tidings import pipeline

    schema = ", ".join(f"{attribute.name} {attribute.type}" for attribute in domain.attributes)
    rows = [(*(record[one.name] for one in domain.attributes), id) for id, record in probes.items()]
    events = spark.createDataFrame(rows, f"{schema}, event string")
    subscriptions = spark.createDataFrame(list(filters.items()), "id string, filter string")
    index = pipeline.compile(subscriptions, domain=domain)
    matched = pipeline.match(events, index, placement=placement, output="pairs", domain=domain)
    return {(row.event, row.subscription) for row in matched.select("event", "subscription").collect()}
