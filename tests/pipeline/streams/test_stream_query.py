"""Streams answer what a batch answers, each match once, while subscriptions change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.notifications import Notifications

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tests.waiting import LAST_RESORT_SECONDS, until

from tidings import pipeline
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.sinks.stream_sinks import ConsoleSink, ParquetSink, StoreSink
from tidings.pipeline.sources.log_source import read_log
from tidings.pipeline.sources.stream_sources import FileEvents, LogEvents
from tidings.pipeline.streams.index_changes import IndexChanges
from tidings.pipeline.streams.stream_query import Stream, stream

pytestmark = pytest.mark.spark

DOMAIN = Domain("readings", [Attribute("n", "bigint"), Attribute("room", "string"), Attribute("heat", "double")])
FILTERS = [
    ("warm", "heat > 20"),
    ("cold", "heat <= 5"),
    ("hall", "room = 'hall'"),
    ("hall or cold", "room = 'hall' OR heat <= 5"),
    ("even", "n % 2 = 0"),
    ("none", "heat > 1000"),
]


def reading(n: int) -> dict[str, Any]:
    return {"n": n, "room": ("hall", "attic", "cellar")[n % 3], "heat": float(n * 7 % 31)}


def append(log: Log, start: int, end: int) -> None:
    log.append(read_events([reading(n) for n in range(start, end)], DOMAIN))


def expected(start: int, end: int, filters: list[tuple[str, str]] = FILTERS) -> set[tuple[int, str | int]]:
    """By the matcher alone."""
    from tidings import Matcher

    found = Matcher(filters, DOMAIN).match([reading(n) for n in range(start, end)]).pairs()
    return {(start + event, id_) for event, id_ in found}


class World:
    """A log, an index, a store and a checkpoint in a directory of their own."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.log, self.index, self.checkpoint = path / "log", path / "index", path / "checkpoint"
        self.store = path / "notifications.sqlite"
        self.compile(FILTERS)

    def compile(self, filters: list[tuple[str, str]]) -> pipeline.Index:
        table = self.spark.createDataFrame(filters, "id string, filter string")
        return pipeline.compile(table, self.index, domain=DOMAIN, placement="replicated")

    def start(self, sink: Any = None, **options: Any) -> Stream:
        options = {"trigger": "now", "checkpoint": self.checkpoint} | options
        return stream(LogEvents(self.log, DOMAIN), self.index, sink or StoreSink(self.store), **options)

    def run(self, sink: Any = None, **options: Any) -> None:
        """Match what is there, and end."""
        with self.start(sink, **options) as running:
            assert running.wait(LAST_RESORT_SECONDS)

    def notified(self) -> set[tuple[int, str | int]]:
        with Notifications(self.store) as store:
            found = list(store.pairs())
        assert len(found) == len(set(found))
        return set(found)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path)


def test_a_stream_from_the_log_to_the_store_finds_what_a_batch_finds(world: World) -> None:
    with Log(world.log) as log:
        append(log, 0, 200)
        world.run()
        assert world.notified() == expected(0, 200)
        append(log, 200, 250)
        world.run()  # goes on where it was
    events = read_log(world.spark, world.log, domain=DOMAIN)
    batch = pipeline.match(events, world.compile(FILTERS), output="pairs").select("position", "subscription").collect()
    assert world.notified() == {(row.position, row.subscription) for row in batch} == expected(0, 250)


def test_changed_subscriptions_count_from_the_next_micro_batch_on(world: World) -> None:
    changes = IndexChanges(world.index)
    with Log(world.log) as log, world.start(trigger=0.1) as running:

        def publish(start: int, end: int) -> None:
            append(log, start, end)
            until(lambda: running.wait(0.01) or reached(world, running) == end - 1)

        publish(0, 40)
        version = changes.apply(upsert=[("attic", "room = 'attic'"), ("warm", "heat > 25")], remove=["even"])
        until(lambda: running.status().version == version)
        publish(40, 80)
        world.compile([("all", "TRUE")])  # compiled anew, beside the running query
        until(lambda: running.status().version == version + 1)
        publish(80, 100)
        assert running.status().problem is None
    changed = [pair for pair in FILTERS if pair[0] not in ("warm", "even")]
    changed += [("attic", "room = 'attic'"), ("warm", "heat > 25")]
    assert world.notified() == (expected(0, 40) | expected(40, 80, changed) | expected(80, 100, [("all", "TRUE")]))
    with Notifications(world.store) as store:
        versions = [batch.version for batch in store.batches(running.query_id)]
    assert sorted(set(versions)) == [1, 2, 3]
    assert versions == sorted(versions)


def reached(world: World, running: Stream) -> int:
    with Notifications(world.store) as store:
        return store.reached(running.query_id).get("", -1)


def test_a_batch_that_is_run_again_meets_the_same_subscriptions_as_the_first_time(world: World) -> None:
    with Log(world.log) as log:
        append(log, 0, 60)
        world.run()
        append(log, 60, 100)
        world.run()
    before = world.notified()
    for commit in (world.checkpoint / "commits").glob("*1*"):
        commit.unlink()  # as if the process had died before Spark wrote down that the second batch is done
    world.compile([("all", "TRUE")])
    world.run()
    assert world.notified() == before == expected(0, 100)
    with Notifications(world.store) as store:
        (query,) = store.queries()
        assert [batch.version for batch in store.batches(query)] == [1, 1]


def test_a_stream_of_files_finds_what_a_batch_finds_and_pins_its_versions(world: World) -> None:
    schema = "n bigint, room string, heat double"
    events, out = world.path / "events", world.path / "matches"

    def put(start: int, end: int) -> None:
        rows = [tuple(reading(n).values()) for n in range(start, end)]
        world.spark.createDataFrame(rows, schema).coalesce(1).write.mode("append").json(str(events))

    def run() -> None:
        with stream(
            FileEvents(str(events)), world.index, ParquetSink(out), checkpoint=world.checkpoint, trigger="now"
        ) as s:
            assert s.wait(LAST_RESORT_SECONDS)

    put(0, 50)
    run()
    world.compile([("all", "TRUE")])
    put(50, 70)
    run()
    found = world.spark.read.parquet(str(out)).collect()
    assert {(row.n, id_) for row in found for id_ in row.subscriptions} == (
        expected(0, 50) | expected(50, 70, [("all", "TRUE")])
    )
    assert {row.subscriptions_version for row in found} == {1, 2}
    assert [path.read_text() for path in sorted((world.checkpoint / "pins").glob("[0-9]*"))] == ["1\n", "2\n"]
    for commit in (world.checkpoint / "commits").glob("*1*"):
        commit.unlink()
    world.compile(FILTERS)
    run()
    again = world.spark.read.parquet(str(out)).collect()
    assert sorted(map(str, again)) == sorted(map(str, found))


def test_parquet_from_the_log_has_the_events_and_an_event_that_does_not_fit_has_null(world: World) -> None:
    with Log(world.log) as log:
        append(log, 0, 30)
        log.append([{"n": "many", "room": "hall", "heat": 0.0}], domain=DOMAIN.name)
        append(log, 31, 40)
    world.run(ParquetSink(world.path / "out"))
    with pytest.raises(PipelineError, match="has the matches of another query in it"):
        world.start(ParquetSink(world.path / "out"), checkpoint=world.path / "another")
    with pytest.raises(PipelineError, match="has files of something else in it"):
        world.start(ParquetSink(world.log), checkpoint=world.path / "another")
    rows = world.spark.read.parquet(str(world.path / "out")).collect()
    assert {(row.position, id_) for row in rows for id_ in row.subscriptions or []} == expected(0, 30) | expected(
        31, 40
    )
    assert [row.position for row in rows if row.subscriptions is None] == [30]
    assert {row.room for row in rows if row.position != 30} == {"hall", "attic", "cellar"}


def test_pairs_have_a_row_for_each_match_and_the_console_prints_what_somebody_gets(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with Log(world.log) as log:
        append(log, 0, 20)
    world.run(ParquetSink(world.path / "out"), output="pairs")
    rows = world.spark.read.parquet(str(world.path / "out")).collect()
    assert {(row.position, row.subscription) for row in rows} == expected(0, 20)
    world.run(ConsoleSink(rows=3), checkpoint=world.path / "another")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert '"subscriptions":["' in printed[0]


def test_a_table_is_compiled_into_the_checkpoint_and_can_be_replaced(world: World) -> None:
    table = world.spark.createDataFrame([*FILTERS, ("bad", "heat >")], "id string, filter string")
    with Log(world.log) as log:
        append(log, 0, 20)
        with stream(
            LogEvents(world.log, DOMAIN), table, StoreSink(world.store), checkpoint=world.checkpoint, trigger=0.1
        ) as running:
            running.finish()
            assert running.rejected == 1
            assert running.replace(table.where("id = 'warm'")) == 2
            append(log, 20, 30)
            running.finish()
            status = running.status()
    assert world.notified() == expected(0, 20) | expected(20, 30, FILTERS[:1])
    assert (status.version, status.events) == (2, 30)
    assert status.matches == len(world.notified())


# ---------------------------------------------------------------------- what cannot go well


def test_what_cannot_be_is_refused_before_anything_is_written(world: World, spark: SparkSession) -> None:
    with Log(world.log) as log:
        append(log, 0, 10)
    (world.path / "file").write_text("no directory")
    with pytest.raises(PipelineError, match=r"checkpoint: cannot write to .*file/query.*give a directory"):
        world.start(checkpoint=world.path / "file" / "query")
    with pytest.raises(PipelineError, match=r"index: .*nowhere has no version yet"):
        stream(
            LogEvents(world.log, DOMAIN), world.path / "nowhere", StoreSink(world.store), checkpoint=world.checkpoint
        )
    with pytest.raises(PipelineError, match="no column 'heat', which filters of the index read"):
        stream(
            spark.readStream.format("rate").load(),
            world.index,
            ParquetSink(world.path / "out"),
            checkpoint=world.path / "rate",
        )
    with pytest.raises(ValueError, match="a streaming DataFrame, and this one is a batch"):
        stream(spark.range(3), world.index, "out", checkpoint=world.checkpoint)
    with pytest.raises(ValueError, match="LogEvents, FileEvents, KafkaEvents or a streaming DataFrame, not str"):
        stream("log", world.index, "out", checkpoint=world.checkpoint)  # type: ignore[arg-type]
    shard = next(world.index.glob("1/*.tidings"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(PipelineError, match="is damaged: its checksum"):
        world.start()
    assert not world.store.exists()
    assert not (world.path / "out").exists()
    assert not (world.checkpoint / "offsets").exists()


def test_a_version_that_cannot_be_used_is_reported_and_the_last_one_serves(world: World) -> None:
    with Log(world.log) as log, world.start(trigger=0.1) as running:
        append(log, 0, 10)
        running.finish()
        version = IndexChanges(world.index).apply(upsert=[("late", "TRUE")])
        world.compile([("all", "TRUE")])
        until(lambda: running.status().version == version + 1)
        other = world.spark.createDataFrame([(1, "heat > 1")], "id bigint, filter string")
        pipeline.compile(other, world.index, domain=DOMAIN, placement="replicated")
        until(lambda: running.status().problem is not None)
        assert "its ids are bigint, and the query was started with string" in (running.status().problem or "")
        append(log, 10, 20)
        running.finish()
        assert running.status().version == version + 1
    assert world.notified() == expected(0, 10) | expected(10, 20, [("all", "TRUE")])


def test_a_checkpoint_belongs_to_one_query_and_one_process_and_its_store(world: World) -> None:
    with Log(world.log) as log:
        append(log, 0, 10)
    with world.start(trigger=1.0) as running:
        with pytest.raises(PipelineError, match=r"checkpoint: .* is in use: another process runs this query"):
            world.start()
        running.finish()
    with pytest.raises(PipelineError, match=r"of another query, whose sink is store:.* and not parquet:"):
        world.start(ParquetSink(world.path / "out"))
    with pytest.raises(PipelineError, match="of another query, whose output is ids and not pairs"):
        world.start(output="pairs")
    assert not (world.path / "out").exists()
    with pytest.raises(PipelineError, match=r"another query has written to it, and this one is new; .* recover"):
        world.start(checkpoint=world.path / "new")
    for file in list(world.path.glob("notifications.sqlite*")):
        file.rename(world.path / f"moved-{file.name}")
    with pytest.raises(PipelineError, match="it has come to batch None, and the checkpoint to 0"):
        world.start()
    for file in list(world.path.glob("moved-*")):
        file.replace(world.path / file.name.removeprefix("moved-"))
    foreign = world.path / "foreign"
    (foreign / "offsets").mkdir(parents=True)
    with pytest.raises(PipelineError, match="of a query that is none of Tidings'"):
        world.start(checkpoint=foreign)
    (world.checkpoint / "offsets" / "0").write_text("v1\n")
    for checksum in (world.checkpoint / "offsets").glob(".0.crc"):
        checksum.unlink()
    with pytest.raises(PipelineError, match=r"checkpoint: .* is damaged"), world.start() as running:
        running.wait(LAST_RESORT_SECONDS)


def test_recovery_goes_on_after_the_last_position_that_the_store_knows(world: World) -> None:
    with Log(world.log) as log:
        append(log, 0, 30)
        world.run()
        world.checkpoint.rename(world.path / "lost")
        world.compile([("all", "TRUE")])
        append(log, 30, 50)
        world.run(recover=True)
        world.run()
    assert world.notified() == expected(0, 30) | expected(30, 50, [("all", "TRUE")])
    with pytest.raises(PipelineError, match="recover needs the log as the source"):
        world.start(ParquetSink(world.path / "out"), recover=True)
