"""The demo on Spark ends by itself, having told the subscribers who stay exactly what the matcher says."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from tidings import Matcher
from tidings.demo.flights import load_flights
from tidings.model.infer import infer_domain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_the_demo_tells_everyone_who_stays_of_every_flight_they_want(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidings.demo import live_demo as live

    monkeypatch.setattr("tidings.pipeline.runtime.spark_session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    written = io.StringIO()
    progress = live.run(
        Console(file=written, width=120), subscribers=300, seed=2013, own_filter="dest = 'HNL'", seconds=5
    )
    flights = load_flights()
    assert progress.matched == flights.num_rows
    assert progress.changed > 0
    matcher = Matcher([(wish.id, wish.filter) for wish in progress.shown], infer_domain(flights, name="flights"))
    wanted: dict[str, list[int]] = {wish.id: [] for wish in progress.shown}
    for position, id_ in matcher.match(flights).pairs():
        wanted[str(id_)].append(position)
    assert progress.mailboxes == wanted
    assert progress.shown[0].filter == "dest = 'HNL'"
    assert "flights/s" in written.getvalue()
    assert "99 of 100 within" in written.getvalue()
