"""The driver: a published event is in the mailboxes of earlier subscribers, whatever changes meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidings import Attribute, Domain
from tidings.model.event import read_events
from tidings.store.mailboxes.deliveries import Deliveries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tests.waiting import LAST_RESORT_SECONDS, until

from tidings.service.driver import domain_index as driver_index
from tidings.service.driver import stream_thread as driver_thread
from tidings.service.driver.gateway_jobs import Jobs
from tidings.service.driver.stream_assignment import leave_shared

from ..driver_world import MORE, World, context_of, reached, streaming

pytestmark = pytest.mark.spark


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "data")
    yield made
    made.close()


def test_a_domain_is_matched_while_its_subscriptions_and_its_attributes_change(
    spark: SparkSession, world: World
) -> None:
    dear = world.subscribe("price > 8 AND time = 'noon'", "dear")
    with streaming(spark, world) as stream:
        first = world.publish(7.0, 9.0)
        until(lambda: world.told(dear) == first[1:])
        # Subscribed and published at once: the stream is notified only now.
        cheap = world.subscribe("price < 2", "cheap")
        second = world.publish(1.0, 9.5)
        stream.tell(world.row)
        until(lambda: world.told(cheap) == second[:1])
        assert world.told(dear) == [first[1], second[1]]

        world.define(MORE)
        placed = world.subscribe("position = 7", "placed")
        third = world.publish(1.5, position=7)
        stream.tell(world.row)
        until(lambda: world.told(placed) == third)
        assert world.told(cheap) == [second[0], *third]

        world.catalogue.delete("ada", "cheap", world.log.end)
        fourth = world.publish(8.5, 0.5)
        stream.tell(world.row)
        until(lambda: reached(stream, world))
        assert world.told(dear) == [first[1], second[1], fourth[0]]
        status = stream.status()
        assert (status["state"], status["covers"]) == ("running", world.row.revision)
        until(lambda: stream.status()["events"] == 7)  # which Spark reports a little later

    with streaming(spark, world) as stream:  # once more, where it was
        with Deliveries(world.data.deliveries) as deliveries:
            deliveries.acknowledge(world.catalogue.get("ada", "dear").key, first[1])  # type: ignore[union-attr]
        fifth = world.publish(20.0)
        until(lambda: world.told(dear) == [second[1], fourth[0], *fifth])  # the first is pruned


def test_a_domain_without_events_survives_restarts(spark: SparkSession, world: World) -> None:
    dear = world.subscribe("price > 8", "dear")
    first_batch = world.files.query / "commits" / "0"  # of Spark's, without events
    for _ in range(2):
        with streaming(spark, world) as stream:
            until(first_batch.exists)
            assert stream.status()["problem"] is None
    first = world.publish(9.0)
    with streaming(spark, world) as stream:
        until(lambda: world.told(dear) == first)
        assert stream.status()["problem"] is None


def answered(jobs: Jobs, world: World, *ids: str) -> None:
    """Looks for jobs until these have answers: one of a tenant is done at a time."""

    def are_all() -> bool:
        jobs.look()
        return all(world.data.answer(id).exists() for id in ids)

    until(are_all)


def test_the_past_is_replayed_into_the_mailbox_and_backtested(spark: SparkSession, world: World) -> None:
    old = world.publish(1.0, 9.0, 10.0)
    number = world.subscribe("price > 8", "history", replay_from=0)
    jobs = Jobs(context_of(spark, world))
    (job,) = world.catalogue.open_jobs()
    jobs.look()
    until(world.data.answer(job.id).exists)
    assert json.loads(world.data.answer(job.id).read_text()) == {"done": True, "matches": 2, "misfits": {}}
    assert world.told(number) == old[1:]
    world.data.answer(job.id).unlink()  # as if the driver had died before it answered
    jobs.look()
    until(world.data.answer(job.id).exists)
    assert json.loads(world.data.answer(job.id).read_text()) == {"done": True, "matches": 2, "misfits": {}}
    assert world.told(number) == old[1:]
    world.catalogue.close_job(job.id)

    request = {"domain": "quotes", "filter": "price > 9.5", "against": "price > 8", "from": 0}
    asked = world.catalogue.add_job("backtest", "ada", request)
    wrong = world.catalogue.add_job("backtest", "ada", {"domain": "quotes", "filter": "prise > 1"})
    empty = world.catalogue.add_job("backtest", "ada", {**request, "from": world.log.end})
    answered(jobs, world, asked, wrong, empty)
    answer = json.loads(world.data.answer(asked).read_text())
    assert (answer["count"], answer["events"]) == (1, 3)
    assert sum(row["count"] for row in answer["rate"]) == 1
    assert [sample["position"] for sample in answer["samples"]] == [old[2]]
    assert answer["samples"][0]["event"] == {"price": 10.0, "time": "noon", "source": "s"}
    assert {name: answer["difference"][name] for name in ("existing", "only_draft", "only_existing", "both")} == {
        "existing": 2,
        "only_draft": 0,
        "only_existing": 1,
        "both": 1,
    }
    refused = json.loads(world.data.answer(wrong).read_text())
    assert (refused["done"], refused["kind"]) == (False, "request")
    assert "did you mean 'price'?" in refused["reason"]
    assert json.loads(world.data.answer(empty).read_text())["count"] == 0
    jobs.stop()


def test_replays_name_and_backtests_count_events_that_no_longer_fit_their_domain(
    spark: SparkSession, world: World
) -> None:
    old = world.publish(1.0, 9.0)
    world.define(Domain("quotes", [Attribute("price", "string"), Attribute("source", "string")]))
    new = world.log.append(read_events([{"price": "high", "source": "s"}], world.domain))
    number = world.subscribe("source = 's'", "history", replay_from=0)
    jobs = Jobs(context_of(spark, world))
    (job,) = world.catalogue.open_jobs()
    asked = world.catalogue.add_job("backtest", "ada", {"domain": "quotes", "filter": "source = 's'"})
    answered(jobs, world, job.id, asked)
    answer = json.loads(world.data.answer(job.id).read_text())
    assert (answer["matches"], sorted(answer["misfits"])) == (1, sorted(map(str, old)))
    assert "attribute 'price'" in answer["misfits"][str(old[0])]
    assert world.told(number) == new
    answer = json.loads(world.data.answer(asked).read_text())
    assert (answer["count"], answer["events"], answer["misfits"]) == (1, 1, 2)
    jobs.stop()


def test_a_lost_checkpoint_is_rebuilt_unless_unmatched_events_were_removed(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_thread, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(driver_index, "COMPILED_AT", 1)  # by a job of Spark, as where there are many
    dear, wrong = world.subscribe("price > 8", "dear"), world.subscribe("prise > 8", "wrong")
    first = world.publish(9.0)
    with streaming(spark, world) as stream:
        until(lambda: world.told(dear) == first)
        assert "unknown attribute 'prise'" in stream.status()["rejects"][str(wrong)]
    world.files.query.rename(world.files.query.with_name("lost"))
    second = world.publish(10.0)
    with streaming(spark, world) as stream:
        until(lambda: world.told(dear) == first + second)
        until(lambda: stream.status()["problem"] is None)
    world.files.query.rename(world.files.query.with_name("lost-again"))
    world.publish(11.0)
    world.log.retain(from_position=world.log.end)  # as an operator who ignores the streams would
    fourth = world.publish(12.0)
    with streaming(spark, world) as stream:
        until(lambda: stream.status()["state"] == "failed")
        assert "tidings serve --recover" in stream.status()["problem"]
    with streaming(spark, world, recover=True) as stream:
        until(lambda: world.told(dear) == first + second + fourth)
        until(lambda: stream.status()["problem"] is None)


def test_a_domain_that_left_the_shared_stream_needs_no_event_that_was_matched_there(
    spark: SparkSession, world: World
) -> None:
    dear = world.subscribe("price > 8", "dear")
    world.publish(1.0)  # which the shared stream has matched with no filter
    leave_shared(world.files, world.log.end)
    world.log.retain(from_position=world.log.end)
    with streaming(spark, world) as stream:  # by a driver that was started after a crash
        second = world.publish(9.0)
        until(lambda: world.told(dear) == second)
        assert stream.status()["problem"] is None


@pytest.mark.long
def test_a_driver_that_is_killed_and_started_again_loses_and_repeats_nothing(world: World) -> None:
    """The process itself: killed in the middle of its work, started again, and ended by SIGTERM."""
    dear = world.subscribe("price > 8", "dear")
    published: list[int] = []
    for round_ in range(3):
        process = start_driver(world)
        try:
            for _ in range(20):
                published.extend(world.publish(*([9.0] * 10)))
            if round_ < 2:
                until(lambda: len(world.told(dear)) > len(published) - 150)
                os.kill(process.pid, signal.SIGKILL)
            else:
                until(lambda: world.told(dear) == published)
                process.send_signal(signal.SIGTERM)
            status = process.wait(LAST_RESORT_SECONDS)
        finally:
            with_group_killed(process)
    assert status == 0
    told = json.loads(world.data.driver_status.read_text())
    assert (told["state"], told["pid"]) == ("stopped", process.pid)


def start_driver(world: World, *options: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "tidings.service.driver.driver_process",
        str(world.data.path),
        "--master",
        "local[2]",
        *options,
    ]
    return subprocess.Popen(command, start_new_session=True)


def with_group_killed(process: subprocess.Popen[bytes]) -> None:
    """As the supervisor does: the JVM of a driver that is gone must not go on."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
