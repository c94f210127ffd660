"""The same workload three ways: what the overlay delivers, what Spark matches, and what the oracle says are one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tidings.simulator.run import Run
from tidings.simulator.scenario import Plan
from tidings.simulator.workload import DOMAIN
from tidings.testing.oracle import brute_force

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.parametrize("system", ["chord", "opchord", "digests", "clusters", "bluedove"])
def test_overlay_spark_and_oracle_agree_also_after_churn(spark: SparkSession, system: str) -> None:
    from tidings import pipeline

    run = Run(Plan(system, nodes=10, seed=11, churn=0.8, subscriptions=24, events=20))
    outcome = run.play()
    assert outcome.violation is None, outcome.plan.command
    filters = {
        name: known.text
        for name, known in run.interested.items()
        if known.until_ms is None and known.node in run.world.nodes
    }
    probes = {id: json.loads(body) for id, (_, body, probe, _) in run.published.items() if probe}
    delivered = {(d.event, d.subscription) for d in run.world.deliveries if d.event in probes}

    names, records = list(probes), list(probes.values())
    oracle = {(names[event], name) for event, name in brute_force(filters, records, DOMAIN)}
    schema = ", ".join(f"{attribute.name} {attribute.type}" for attribute in DOMAIN.attributes)
    rows = [(*(record[one.name] for one in DOMAIN.attributes), id) for id, record in probes.items()]
    events = spark.createDataFrame(rows, f"{schema}, event string")
    subscriptions = spark.createDataFrame(list(filters.items()), "id string, filter string")
    index = pipeline.compile(subscriptions, domain=DOMAIN)
    matched = pipeline.match(events, index, placement=system, output="pairs", domain=DOMAIN)
    spark_says = {(row.event, row.subscription) for row in matched.select("event", "subscription").collect()}

    assert oracle
    assert delivered == oracle == spark_says
