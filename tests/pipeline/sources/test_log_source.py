"""The log as a source of Spark: the same rows as the log's own reader, pinned to a version of the subscriptions."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import LAST_RESORT_SECONDS

from tidings.errors import DomainError, TidingsError
from tidings.model.domain import RESERVED_PREFIX, Attribute, Domain, path_text
from tidings.model.event import read_events
from tidings.model.infer import infer_domain
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.notifications import Notifications

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from tidings import pipeline
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.jobs.backtesting import match_past
from tidings.pipeline.sinks.stream_sinks import StoreSink
from tidings.pipeline.sources.log_source import LogSource, read_log, stream_log
from tidings.pipeline.sources.stream_sources import LogEvents

pytestmark = pytest.mark.spark

STOCKS = Domain(
    "stocks",
    [
        Attribute(name, type_)
        for name, type_ in {
            "symbol": "string",
            "price": "double",
            "fee": "decimal(10,2)",
            "at": "timestamp",
            "local": "timestamp_ntz",
            "day": "date",
            "volume": "bigint",
            "small": "tinyint",
            "open": "boolean",
            "venue.city": "string",
            "`a b`": "int",
            "tags": "array<string>",
            "raw": "binary",
            "ratio": "float",
        }.items()
    ],
)


def stock(k: int) -> dict[str, Any]:
    return {
        "symbol": f"S{k}",
        "price": k + 0.5,
        "fee": "8.40",
        "at": "2024-05-01T12:00:00+02:00",
        "local": "2024-05-01T12:00:00",
        "day": "2024-05-01",
        "volume": 2**53 + k,
        "small": k % 100,
        "open": k % 2 == 0,
        "venue": {"city": "Zürich"},
        "a b": k,
        "tags": ["a", None],
        "raw": "AAEC",
        "ratio": 0.5,
    }


def batch(start: int, end: int) -> Any:
    return read_events([stock(k) for k in range(start, end)], STOCKS)


def make_version(directory: Path, version: int) -> None:
    directory.mkdir(exist_ok=True)
    (directory / ".next").write_text(f"{version}\n")
    (directory / ".next").replace(directory / "current")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 stocks in a page with columns, 3 without, and other domains between."""
    directory = tmp_path_factory.mktemp("source") / "log"
    with Log(directory) as log:
        log.append([{"n": 1}, {"n": 2}], domain="other")
        log.append(batch(0, 200))
        event = {"specversion": "1.0", "source": "/s", "id": "1", "type": "t", "data": {"x": Decimal("8.40")}}
        log.append([event], domain="other")
        log.append(batch(200, 203))
    return directory


def test_a_batch_has_the_attributes_of_the_domain_with_position_and_time(spark: SparkSession, written: Path) -> None:
    frame = read_log(spark, written, domain=STOCKS)
    assert frame.dtypes[:5] == [
        ("position", "bigint"),
        ("time", "timestamp"),
        ("subscriptions_version", "bigint"),
        ("symbol", "string"),
        ("price", "double"),
    ]
    assert dict(frame.dtypes)["venue"] == "struct<city:string>"
    rows = frame.orderBy("position").collect()
    assert [row.position for row in rows] == [*range(2, 202), *range(203, 206)]
    for k in (7, 201):
        row = rows[k].asDict(recursive=True)
        assert (row["symbol"], row["price"], row["fee"], row["volume"]) == (
            f"S{k}",
            k + 0.5,
            Decimal("8.40"),
            2**53 + k,
        )
        assert (row["day"], row["local"]) == (dt.date(2024, 5, 1), dt.datetime(2024, 5, 1, 12))
        assert (row["venue"], row["a b"], row["tags"], row["raw"]) == ({"city": "Zürich"}, k, ["a", None], b"\0\1\2")
        assert row["subscriptions_version"] == 0
    assert frame.where("at = TIMESTAMP '2024-05-01 10:00:00'").count() == 203


def test_without_a_domain_the_events_come_whole(spark: SparkSession, written: Path) -> None:
    frame = read_log(spark, written)
    assert frame.columns[3:] == ["domain", "source", "id", "type", "event"]
    assert frame.count() == 206
    (row,) = frame.where("source = '/s'").collect()
    assert (row.position, row.domain, row.id, row.type) == (202, "other", "1", "t")
    assert json.loads(row.event)["data"] == {"x": 8.4}
    assert '"x":8.40' in row.event
    named = read_log(spark, written, domain="other").orderBy("position").collect()
    assert [named_row.position for named_row in named] == [0, 1, 202]


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("size", [1000, 30])
def test_however_it_is_divided_among_tasks_every_event_is_read_once(
    spark: SparkSession, written: Path, size: int, carry: bool
) -> None:
    spark.dataSource.register(LogSource)
    options = {"path": str(written), "domain": STOCKS.to_json(), "eventsPerPartition": str(size), "carry": str(carry)}
    frame = spark.read.format("tidings-log").options(**options).load()
    assert frame.rdd.getNumPartitions() == -(-203 // size)
    assert sorted(row.position for row in frame.select("position").collect()) == [*range(2, 202), *range(203, 206)]


def test_a_part_is_read_by_positions_or_times(spark: SparkSession, written: Path) -> None:
    def positions(**place: Any) -> list[int]:
        return sorted(row.position for row in read_log(spark, written, domain=STOCKS, **place).collect())

    assert positions(start=100, end=104) == [100, 101, 102, 103]
    assert positions(start=204) == [204, 205]
    assert positions(start=10, end=10) == []
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    assert positions(start=later) == []
    assert len(positions(end=later)) == 203


def test_an_attribute_named_as_a_column_of_the_log_is_refused_and_a_prefix_helps(
    spark: SparkSession, tmp_path: Path
) -> None:
    domain = Domain("d", [Attribute("Time", "string"), Attribute("position", "int")])
    with Log(tmp_path / "log") as log:
        log.append([{"Time": "noon", "position": 5}], domain="d")
    with pytest.raises(Exception, match="'Time' has the name of a column of the log"):
        read_log(spark, tmp_path / "log", domain=domain)
    (row,) = read_log(spark, tmp_path / "log", domain=domain, prefix="log_").collect()
    assert (row.log_position, row.Time, row.position) == (0, "noon", 5)


def test_events_that_do_not_fit_fail_the_query_or_are_listed(spark: SparkSession, tmp_path: Path) -> None:
    domain = Domain("d", [Attribute("n", "int")])
    with Log(tmp_path / "log") as log:
        log.append([{"n": 1}, {"n": "two"}], domain="d")
    with pytest.raises(Exception, match="position 1 of the log"):
        read_log(spark, tmp_path / "log", domain=domain).collect()
    rows = read_log(spark, tmp_path / "log", domain=domain, on_error="reject").orderBy("position").collect()
    assert [(row.n, row.rejected is None) for row in rows] == [(1, True), (None, False)]
    assert "attribute 'n'" in rows[1].rejected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'path' is missing"),
        ({"path": "/nowhere"}, "there is none in /nowhere"),
        ({"path": "LOG", "pathh": "x"}, "unknown option 'pathh'; did you mean 'path'"),
        ({"path": "LOG", "eventsPerPartition": "0"}, "at least 1"),
        ({"path": "LOG", "onError": "ignore"}, "raise or reject"),
        ({"path": "LOG", "startingPosition": "soon"}, "'soon' is no position"),
        ({"path": "LOG", "startingPosition": "300"}, "the log ends at 206"),
        ({"path": "LOG", "subscriptions": "/nowhere"}, "has no version yet"),
        ({"path": "LOG", "domain": '{"name": "d"'}, "not JSON"),
    ],
)
def test_options_that_make_no_sense_are_refused(written: Path, options: dict[str, str], message: str) -> None:
    source = LogSource({key: str(written) if value == "LOG" else value for key, value in options.items()})
    with pytest.raises(TidingsError, match=message):
        source.reader(StructType.fromDDL(source.schema())).partitions()


def test_spark_shows_what_the_source_says(spark: SparkSession, written: Path) -> None:
    spark.dataSource.register(LogSource)
    with pytest.raises(Exception, match="unknown option 'prefixes'; did you mean 'prefix'"):
        spark.read.format("tidings-log").options(path=str(written), prefixes="x").load()


class TestOffsets:
    """What the stream's reader answers, asked directly."""

    @staticmethod
    def reader(log: Path, subscriptions: Path, **options: str) -> Any:
        make_version(subscriptions, 1)
        source = LogSource({"path": str(log), "subscriptions": str(subscriptions), **options})
        return source.streamReader(None)  # type: ignore[arg-type]

    def test_an_offset_has_the_version_that_was_current_when_the_events_were_seen(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            log.append([{"n": 1}] * 10, domain="d")
            reader = self.reader(tmp_path / "log", tmp_path / "index")
            first = reader.initialOffset()
            assert first == {"log": 0, "subscriptions": 1}
            make_version(tmp_path / "index", 2)
            second = reader.latestOffset(first, ReadMaxRows(4))
            assert second == {"log": 4, "subscriptions": 2}
            make_version(tmp_path / "index", 3)
            third = reader.latestOffset(second, ReadAllAvailable())
            assert third == {"log": 10, "subscriptions": 3}
            make_version(tmp_path / "index", 4)
            assert reader.latestOffset(third, ReadAllAvailable()) == third  # a new version alone is no batch
            assert reader.reportLatestOffset() == {"log": 10, "subscriptions": 4}
            parts = reader.partitions(first, second)
            assert [(part.start, part.end, part.version) for part in parts] == [(0, 4, 2)]

    def test_others_events_make_no_batch_and_are_not_counted_against_the_limit(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            log.append([{"n": 1}] * 10, domain="other")
            reader = self.reader(tmp_path / "log", tmp_path / "index", domain="mine", maxEventsPerTrigger="2")
            limit = reader.getDefaultReadLimit()
            start = reader.initialOffset()
            for _ in range(3):
                assert reader.latestOffset(start, limit) == start
                log.append([{"n": 1}] * 10, domain="other")
            log.append([{"n": 1}] * 3, domain="mine")
            log.append([{"n": 1}], domain="other")
            start = reader.latestOffset(start, limit)
            assert start["log"] == 42
            start = reader.latestOffset(start, limit)
            assert start["log"] == 43
            assert reader.latestOffset(start, limit) == start

    def test_what_is_available_now_ends_where_the_log_ended_then(self, tmp_path: Path) -> None:
        with Log(tmp_path / "log") as log:
            log.append([{"n": 1}] * 10, domain="d")
            reader = self.reader(tmp_path / "log", tmp_path / "index")
            reader.prepareForTriggerAvailableNow()
            log.append([{"n": 1}] * 10, domain="d")
            reached = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
            assert reached["log"] == 10
            assert reader.latestOffset(reached, ReadAllAvailable()) == reached

    @pytest.mark.parametrize(
        ("start", "message"),
        [({"log": 11, "subscriptions": 1}, "ends at 10"), ({"log": 1, "subscriptions": 2}, "current one is 1")],
    )
    def test_a_log_or_an_index_older_than_the_checkpoint_is_refused(
        self, tmp_path: Path, start: dict[str, int], message: str
    ) -> None:
        with Log(tmp_path / "log") as log:
            log.append([{"n": 1}] * 10, domain="d")
            reader = self.reader(tmp_path / "log", tmp_path / "index")
            with pytest.raises(PipelineError, match=message):
                reader.latestOffset(start, ReadAllAvailable())

    def test_a_new_log_in_the_place_of_an_old_one_is_opened_again(self, tmp_path: Path) -> None:
        for count in (1, 2):
            with Log(tmp_path / "log") as log:
                log.append([{"n": 1}] * count, domain="d")
                reader = self.reader(tmp_path / "log", tmp_path / "index", startingPosition="latest")
                assert reader.initialOffset()["log"] == count
            shutil.rmtree(tmp_path / "log")


Sink = list[tuple[int, list[tuple[int, int]]]]


def run(frame: DataFrame, checkpoint: Path, sink: Callable[[Any, int], None]) -> None:
    """Take what is available, and stop."""
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()


def collector(batches: Sink) -> Callable[[Any, int], None]:
    def keep(frame: DataFrame, number: int) -> None:
        rows = frame.select("position", "subscriptions_version").orderBy("position").collect()
        batches.append((number, [(row.position, row.subscriptions_version) for row in rows]))

    return keep


def test_a_stream_reads_each_event_once_in_batches_of_the_size_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    make_version(tmp_path / "index", 1)
    batches: Sink = []
    with Log(tmp_path / "log") as log:
        log.append(batch(0, 25))
        log.append([{"n": 1}], domain="other")
        frame = stream_log(
            spark, tmp_path / "log", domain=STOCKS, subscriptions=tmp_path / "index", max_events_per_trigger=10
        )
        assert frame.isStreaming
        run(frame, tmp_path / "checkpoint", collector(batches))
        assert [len(rows) for _, rows in batches] == [10, 10, 5]
        make_version(tmp_path / "index", 2)
        log.append(batch(25, 28))
        run(frame, tmp_path / "checkpoint", collector(batches))
    expected = [(k, 1) for k in range(25)] + [(k, 2) for k in range(26, 29)]
    assert [row for _, rows in batches for row in rows] == expected


def test_a_batch_that_failed_is_run_again_with_the_same_events_and_the_same_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    make_version(tmp_path / "index", 7)
    batches: Sink = []
    keep = collector(batches)

    def fail_after(frame: DataFrame, number: int) -> None:
        keep(frame, number)
        raise RuntimeError("the sink is gone")

    with Log(tmp_path / "log") as log:
        log.append(batch(0, 20))
        frame = stream_log(spark, tmp_path / "log", domain=STOCKS, subscriptions=tmp_path / "index")
        with pytest.raises(StreamingQueryException, match="the sink is gone"):
            run(frame, tmp_path / "checkpoint", fail_after)
        offsets = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()
        assert json.loads(offsets[-1]) == {"log": 20, "subscriptions": 7}
        make_version(tmp_path / "index", 8)
        log.append(batch(20, 25))
        run(frame, tmp_path / "checkpoint", keep)
    first, again, after = batches
    assert again == first == (0, [(k, 7) for k in range(20)])
    assert after == (1, [(k, 8) for k in range(20, 25)])


def test_a_stream_whose_events_were_removed_before_it_read_them_fails_and_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches: Sink = []
    with Log(tmp_path / "log") as log:
        log.append(batch(0, 20))
        log.append(batch(20, 40))
        frame = stream_log(spark, tmp_path / "log", domain=STOCKS, start=5)
        log.retain(from_position=20)
        with pytest.raises(StreamingQueryException, match="positions 5 to 19 were removed by retention"):
            run(frame, tmp_path / "checkpoint", collector(batches))
    assert batches == []


def test_names_that_clash_are_a_fault_of_the_domain() -> None:
    domain = Domain("d", [Attribute("position", "int")])
    with pytest.raises(DomainError, match="prefix='log_'"):
        LogSource({"path": "x", "domain": domain.to_json()}).schema()


def test_attributes_may_have_any_names_but_those_of_tidings_own(spark: SparkSession, tmp_path: Path) -> None:
    """As the service reads them: with a prefix for the columns that are not attributes."""
    names = (
        "position",
        "time",
        "subscriptions_version",
        "subscriptions",
        "source",
        "rejected",
        "Position",
        "a",
        "A",
        "k",
        "\u212a",
        "p0",
        "c0",
        "a.b",
        "a`b",
        " ",
        "select",
        "é",
        "e\u0301",
        "_metadata",
    )
    event = {name: number for number, name in enumerate(names)} | {"s": {"a": 1, "A": 2, "_tidings_position": 3}}
    domain = infer_domain([event], "any")
    values = [*range(len(names)), 1, 2, 3]
    filters = [f"{path_text(path)} = {value}" for path, value in zip(domain.leaves, values, strict=True)]
    world = tmp_path / "index", tmp_path / "store"
    with Log(tmp_path / "log") as log:
        log.append(read_events([event, {}], domain))
        table = spark.createDataFrame([(str(k), text) for k, text in enumerate(filters)], "id string, filter string")
        pipeline.compile(table, world[0], domain=domain, placement="replicated")
        source = LogEvents(tmp_path / "log", domain, prefix=RESERVED_PREFIX)
        with pipeline.stream(
            source, world[0], StoreSink(world[1]), checkpoint=tmp_path / "checkpoint", trigger="now", partitions=2
        ) as running:
            assert running.wait(LAST_RESORT_SECONDS)
        with Notifications(world[1]) as store:
            assert sorted(store.pairs()) == sorted((0, str(k)) for k in range(len(filters)))
        events = read_log(spark, tmp_path / "log", domain=domain, on_error="reject", prefix=RESERVED_PREFIX)
        both = " AND ".join(filters)
        assert match_past(events, both, domain, prefix=RESERVED_PREFIX).matched.tolist() == [0]
        tested = pipeline.backtest(events, both, time=f"{RESERVED_PREFIX}time")
    assert (tested.counts.draft, tested.counts.events) == (1, 2)
