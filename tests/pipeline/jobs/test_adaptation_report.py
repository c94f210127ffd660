from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from rich.console import Console

from tidings.filter.compile.compiler import compile_filters
from tidings.model.domain import Attribute, Domain
from tidings.pipeline.jobs.adaptation import Adapted
from tidings.pipeline.jobs.adaptation_report import report
from tidings.systems.interface import placement_named
from tidings.systems.statistics import Statistics, statistics_of

PLANE = Domain("plane", [Attribute("x", "int"), Attribute("y", "int")])


def reported(statistics: Statistics, partitions: int) -> str:
    view = placement_named("bluedove").adapt(statistics, partitions=partitions)
    console = Console(width=200)
    with console.capture() as capture:
        console.print(report(Adapted(statistics, {"bluedove": view}, partitions=partitions)))
    return capture.get()


def test_the_report_says_why_there_are_not_as_many_partitions_as_asked_for() -> None:
    few = statistics_of(compile_filters([f"x = {number % 3} AND y > 0" for number in range(30)], PLANE))
    assert "partitions, not 20: what it divides by" in reported(few, 20)
    many = statistics_of(compile_filters([f"x = {number} AND y < {number}" for number in range(300)], PLANE))
    assert "not 20" not in reported(many, 20)
