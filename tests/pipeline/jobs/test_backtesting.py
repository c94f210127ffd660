"""A backtest answers what asking every event one by one would: counts, rates, differences and samples."""

from __future__ import annotations

import datetime as dt
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from tests.waiting import LAST_RESORT_SECONDS

from tidings import pipeline
from tidings.cli import main
from tidings.errors import DomainError, EventError, FilterError, SubscriptionError
from tidings.model.event import read_events
from tidings.pipeline import PipelineError
from tidings.pipeline.build.event_schema import domain_of
from tidings.pipeline.jobs.backtesting import Backtest, Counts, backtest, filter_of
from tidings.pipeline.jobs.time_buckets import Bucket, microseconds, moment
from tidings.testing import brute_force
from tidings.testing import real_data as data
from tidings.testing.random_cases import make_case
from tidings.testing.spark_judge import events_frame

pytestmark = pytest.mark.spark

UTC = dt.UTC
HOUR = dt.timedelta(hours=1)
START = dt.datetime(2024, 3, 7, 9, tzinfo=UTC)


def quotes(count: int = 500) -> pa.Table:
    """Prices over some days; every 50th has no time."""
    random = Random(7)
    times = [None if i % 50 == 49 else START + HOUR * (i // 8) for i in range(count)]
    return pa.table(
        {
            "n": range(count),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "symbol": [random.choice(["OIL", "GAS", "TIN"]) for _ in range(count)],
            "price": [random.choice([None, 1.0, 4.0, 8.5, 9.0]) for _ in range(count)],
        }
    )


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(quotes()).repartition(2).cache()


def expected_kinds(events: Any, domain: Any, draft: str, existing: str | None) -> list[int]:
    """Of each event 1 where it matches the draft, plus 2 where it matches the existing one, by the oracle."""
    filters = {1: draft} | ({} if existing is None else {2: existing})
    kinds = Counter(dict.fromkeys(range(len(events)), 0))
    for event, kind in brute_force(filters, events, domain):
        kinds[event] += kind
    return [kinds[event] for event in range(len(events))]


def counted(kinds: list[int]) -> Counts:
    return Counts(len(kinds), kinds.count(1), kinds.count(2), kinds.count(3))


def counted_by_time(kinds: list[int], times: list[dt.datetime | None], bucket: str) -> dict[dt.datetime, Counts]:
    """Of the buckets that have events."""
    by_start: dict[dt.datetime, list[int]] = {}
    parsed = Bucket.parse(bucket)
    for kind, time in zip(kinds, times, strict=True):
        if time is not None:
            start = moment(int(parsed.starts(parsed.numbers(np.array([microseconds(time)])))[0]))
            by_start.setdefault(start, []).append(kind)
    return {start: counted(found) for start, found in by_start.items()}


def filled(result: Backtest) -> dict[dt.datetime, Counts]:
    return {start: counts for start, counts in result.rate if counts.events}


def printed(result: Backtest) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(result)
    return console.export_text()


FILTERS: list[tuple[str, str | None]] = [
    ("price > 4", None),
    ("price > 4", "price >= 8.5 OR symbol = 'TIN'"),
    ("TRUE", "price IS NULL"),
    ("price > 100", "price > 200"),
    ("time >= '2024-03-08' AND symbol LIKE '%I%'", "symbol IN ('OIL', 'GAS')"),
]


@pytest.mark.parametrize(("draft", "existing"), FILTERS)
def test_a_backtest_counts_what_the_oracle_counts(events: DataFrame, draft: str, existing: str | None) -> None:
    result = backtest(events, draft, against=existing, bucket="3h")
    table = quotes()
    kinds = expected_kinds(table, domain_of(events), draft, existing)
    assert result.counts == counted(kinds)
    assert result.timeless == 10
    assert (result.time, result.bucket) == ("time", "3h")
    assert filled(result) == counted_by_time(kinds, table["time"].to_pylist(), "3h")
    starts = [start for start, _ in result.rate]
    assert starts == [starts[0] + 3 * HOUR * i for i in range(len(starts))]
    for kind, name in enumerate(("only_draft", "only_existing", "both"), start=1):
        found = [event["n"] for event in result.samples[name]]
        assert len(found) == len(set(found)) == min(5, kinds.count(kind))
        assert {kinds[n] for n in found} <= {kind}
        rows = {row["n"]: row for row in table.to_pylist()}
        assert all(event == rows[event["n"]] for event in result.samples[name])


def test_the_result_does_not_depend_on_how_the_events_are_divided(events: DataFrame) -> None:
    results = [backtest(events.repartition(parts), "price > 4", against="price > 1") for parts in (1, 7)]
    assert results[0].rate == results[1].rate
    assert results[0].counts == results[1].counts


def test_samples_are_drawn_from_all_events_and_again_the_same_by_the_same_seed(events: DataFrame) -> None:
    one = events.coalesce(1)
    results = [backtest(one, "TRUE", samples=40, seed=seed).samples["only_draft"] for seed in (1, 1, 2)]
    drawn = [[event["n"] for event in samples] for samples in results]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 150 < sum(drawn[0]) / 40 < 350
    assert backtest(events, "TRUE", samples=0).samples == {"only_draft": (), "only_existing": (), "both": ()}
    assert len(backtest(events, "TRUE", samples=1000).samples["only_draft"]) == 500


@pytest.mark.parametrize("seed", range(2))
def test_generated_filters_over_every_type_count_as_the_oracle_says(spark: SparkSession, seed: int) -> None:
    case = make_case(Random(seed), events=40, filters=8)
    frame = events_frame(spark, read_events(case.events, case.domain))
    typed = frame.select(*(F.col(one.name).cast(str(one.type)).alias(one.path[0]) for one in case.domain.attributes))
    texts = [text for _, text in case.readable()][:4]
    for draft, existing in zip(texts[::2], texts[1::2], strict=False):
        result = backtest(typed, draft, against=existing)
        assert result.counts == counted(expected_kinds(case.events, domain_of(typed), draft, existing))


def load_or_skip(load: Callable[[], Any]) -> Any:
    try:
        return load()
    except data.DataMissing as missing:
        pytest.skip(str(missing))


def test_real_quotes_count_by_day_as_the_oracle_says(spark: SparkSession) -> None:
    table = load_or_skip(data.stocks).slice(0, 3_000)
    draft, existing = "symbol < 'F' AND close > open", "(high - low) / low > 0.03"
    result = backtest(spark.createDataFrame(table), draft, against=existing, bucket="1d")
    kinds = expected_kinds(table, domain_of(table.schema), draft, existing)
    midnight = dt.time(tzinfo=UTC)
    times: list[Any] = [dt.datetime.combine(day, midnight) for day in table["date"].to_pylist()]
    assert result.counts == counted(kinds)
    assert filled(result) == counted_by_time(kinds, times, "1d")


def test_real_earthquakes_count_by_nested_times_in_milliseconds_as_the_oracle_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    features = load_or_skip(data.earthquakes)[:800]
    path = tmp_path / "quakes.jsonl"
    path.write_text("\n".join(json.dumps(feature) for feature in features))
    events = spark.read.json(str(path))
    draft, existing = "properties.mag > 2.5", "properties.place ILIKE '%alaska%'"
    result = backtest(events, draft, against=existing, time="properties.time", time_unit="ms")
    kinds = expected_kinds([row.asDict(recursive=True) for row in events.collect()], domain_of(events), draft, existing)
    assert result.counts == counted(kinds)
    times: list[Any] = [moment(1000 * feature["properties"]["time"]) for feature in features]
    assert (result.first, result.last) == (min(times), max(times))
    assert filled(result) == counted_by_time(kinds, times, str(result.bucket))


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("time", None),
        ("to_date(time) AS time", None),
        ("CAST(time AS timestamp_ntz) AS time", None),
        ("date_format(time, \"yyyy-MM-dd'T'HH:mm:ss'Z'\") AS time", None),
        ("unix_seconds(time) AS time", "s"),
        ("unix_millis(time) AS time", "ms"),
        ("CAST(unix_seconds(time) AS int) AS time", "s"),
    ],
)
def test_a_time_is_read_from_every_type_that_can_say_one(events: DataFrame, column: str, unit: str | None) -> None:
    told = events.selectExpr("n", column)
    result = backtest(told, "n < 100", time="time", time_unit=unit, bucket="1d", samples=1)
    times = quotes()["time"].to_pylist()
    assert filled(result) == counted_by_time([int(n < 100) for n in range(500)], times, "1d")
    assert result.timeless == 10


def test_without_a_column_of_times_there_is_no_rate_and_with_two_one_has_to_be_named(events: DataFrame) -> None:
    none = backtest(events.drop("time"), "price > 4")
    assert (none.time, none.bucket, none.rate, none.counts.events) == (None, None, (), 500)
    two = events.withColumn("seen", F.col("time") + F.expr("INTERVAL 1 DAY"))
    assert backtest(two, "price > 4").time is None
    assert backtest(two, "price > 4", time="Seen").time == "seen"


def test_days_are_never_counted_by_hours(events: DataFrame) -> None:
    days = events.select("price", F.to_date("time").alias("day"))
    assert backtest(days, "price > 4").bucket == "1d"
    assert backtest(events, "price > 4").bucket == "1h"


def test_an_event_that_does_not_fit_matches_nothing_and_is_counted(spark: SparkSession) -> None:
    events = spark.sql("SELECT 1 AS n, DATE'2020-01-01' AS day UNION ALL SELECT 2, make_date(12020, 1, 1)")
    result = backtest(events, "day > DATE'2019-01-01'")
    assert (result.counts.events, result.counts.draft, result.unfit, result.timeless) == (2, 1, 1, 1)
    shown = backtest(events, "n > 0").samples["only_draft"]
    assert {str(event["day"]) for event in shown} == {"2020-01-01", "12020-01-01"}


def test_columns_that_no_filter_can_speak_of_are_in_the_samples(spark: SparkSession) -> None:
    events = spark.sql(
        "SELECT 7 AS x, INTERVAL '1' DAY AS wait, map('k', 1) AS tags, X'0aff' AS raw, DOUBLE('NaN') AS y"
    )
    result = backtest(events, "x = 7")
    (sample,) = result.samples["only_draft"]
    assert sample["wait"] == dt.timedelta(days=1)
    assert sample["tags"] == [("k", 1)]
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["samples"]["only_draft"] == [
        {"x": 7, "wait": "1 day, 0:00:00", "tags": [["k", 1]], "raw": "0aff", "y": "nan"}
    ]


def test_a_column_may_have_any_name(spark: SparkSession) -> None:
    events = spark.createDataFrame([(1, 2)], "`a.b` int, `c``d e` int")
    result = backtest(events, "`a.b` = 1 AND `c``d e` = 2")
    assert result.samples["only_draft"] == ({"a.b": 1, "c`d e": 2},)
    assert "`c``d e`" in printed(result)


# ---------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("draft", "options", "error", "message"),
    [
        ("prize > 4", {}, FilterError, "unknown attribute 'prize' at column 1; did you mean 'price'?"),
        ("price > 4", {"against": "price >"}, SubscriptionError, "the subscription to compare with cannot be read"),
        ("price > 4", {"time": "tyme"}, DomainError, "the events have no column 'tyme' .*; did you mean 'time'?"),
        ("price > 4", {"time": "price"}, DomainError, "the column 'price' is double, which is no time; take a column"),
        ("price > 4", {"time": "n"}, DomainError, "'n' is bigint, which is a time only with its unit since 1970"),
        ("price > 4", {"time": "symbol"}, EventError, "no event has a time in the column 'symbol': its texts are no"),
        ("price > 4", {"time": "time", "time_unit": "days"}, ValueError, "time_unit is 's', 'ms', 'us', not 'days'"),
        ("price > 4", {"bucket": "soon"}, ValueError, "a bucket is a number and a unit, such as .*, not 'soon'"),
        (
            "price > 4",
            {"bucket": "1s"},
            PipelineError,
            "a bucket of 1s divides the time from 2024-03-07 09:00:00.* "
            "into 223,201, and 10,000 are the most; give a longer one",
        ),
        ("price > 4", {"samples": 5000}, ValueError, "samples are 0 to 1,000 of each kind, not 5000"),
    ],
)
def test_errors_say_what_is_wrong_and_what_to_do(
    events: DataFrame, draft: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        backtest(events, draft, **options)


def test_a_table_without_events_is_refused(spark: SparkSession, events: DataFrame) -> None:
    for empty in (events.where("n < 0"), spark.createDataFrame([], events.schema)):
        with pytest.raises(PipelineError, match="the table has no events"):
            backtest(empty, "price > 4")


def test_a_stream_is_refused(spark: SparkSession) -> None:
    with pytest.raises(EventError, match="this DataFrame is streaming"):
        backtest(spark.readStream.format("rate").load(), "value > 4")
    with pytest.raises(EventError, match="events come as a DataFrame, not as list"):
        backtest([], "value > 4")  # type: ignore[arg-type]


def test_the_filter_of_a_subscription_is_found_by_its_id(spark: SparkSession) -> None:
    texts = spark.createDataFrame(
        [("oil", "price > 4"), ("tin", None), ("two", "x"), ("two", "y")], "id string, filter string"
    )
    assert filter_of(texts, "oil") == "price > 4"
    assert filter_of(spark.createDataFrame([(17, "price > 4")], "id bigint, filter string"), "17") == "price > 4"
    wrong = {
        "oli": "there is no subscription 'oli'; did you mean 'oil'",
        "tin": "has no filter",
        "two": "more than once",
    }
    for id_, message in wrong.items():
        with pytest.raises(SubscriptionError, match=message):
            filter_of(texts, id_)


# ---------------------------------------------------------------------- what people see


def test_the_report_shows_counts_rates_and_samples(events: DataFrame) -> None:
    text = printed(backtest(events, "price > 4", against="price > 8.5"))
    for part in ("events", "by time", "only in the draft", "per hour", "█", "samples in both", "timeless", "3h from"):
        assert part in text
    assert "samples only in the existing" not in text


def test_the_picture_is_a_picture(events: DataFrame, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    compared = backtest(events, "price > 4", against="price > 8.5")
    compared.picture(tmp_path / "compared.png")
    assert (tmp_path / "compared.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    image = imread(tmp_path / "compared.png")
    assert image.shape[0] > 400
    assert image.shape[1] > 800
    assert len({tuple(pixel) for pixel in image[::7, ::7].reshape(-1, image.shape[2]).tolist()}) > 4
    backtest(events, "price > 4").picture(tmp_path / "alone.svg")
    assert "<svg" in (tmp_path / "alone.svg").read_text()
    with pytest.raises(ValueError, match=r"rate.gif: pictures are drawn to .png, .svg, .pdf"):
        compared.picture("rate.gif")
    with pytest.raises(PipelineError, match=r"cannot write .*: No such file"):
        compared.picture(tmp_path / "nowhere" / "rate.png")
    with pytest.raises(PipelineError, match="there is no rate to draw"):
        backtest(events.drop("time"), "price > 4").picture(tmp_path / "none.png")


# ---------------------------------------------------------------------- the command


class Ran(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """The command in this process, with the tests' Spark, which it may not stop."""
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setenv("COLUMNS", "200")

    def run_command(*arguments: str) -> Ran:
        status = 0
        try:
            main(["backtest", *arguments])
        except SystemExit as stop:
            status = int(stop.code or 0)
        return Ran(status, *capsys.readouterr())

    return run_command


@pytest.fixture
def files(tmp_path: Path) -> Path:
    pq.write_table(quotes(), tmp_path / "quotes.parquet")
    (tmp_path / "subscriptions.csv").write_text('id,filter\nall,TRUE\nbig,price > 8.5\nbad,"prize > 4"\n')
    (tmp_path / "empty.jsonl").write_text("")
    return tmp_path


def test_the_command_compares_with_a_subscription_by_its_id(run: Callable[..., Ran], files: Path) -> None:
    quotes, subscriptions = str(files / "quotes.parquet"), str(files / "subscriptions.csv")
    ran = run("price > 4", "--events", quotes, "--subscriptions", subscriptions, "--against", "big", "--samples", "1")
    assert (ran.status, ran.err) == (0, "")
    assert "price > 8.5" in ran.out
    assert "samples in both" in ran.out
    same = run("price > 4", "--events", quotes, "--against", "price > 8.5", "--samples", "1")
    assert same.out == ran.out


def test_the_command_s_errors_say_what_and_where(run: Callable[..., Ran], files: Path) -> None:
    quotes, table = str(files / "quotes.parquet"), ("--subscriptions", str(files / "subscriptions.csv"))
    wrong: list[tuple[int, tuple[str, ...], str]] = [
        (1, ("price > 4 AND prise < 3", "--events", quotes), "unknown attribute 'prise' at column 15"),
        (1, ("price > 4", "--events", str(files / "none.parquet")), "none.parquet"),
        (1, ("price > 4", "--events", str(files / "empty.jsonl")), "unknown attribute 'price'"),
        (1, ("TRUE", "--events", str(files / "empty.jsonl")), "the table has no events"),
        (1, ("price > 4", "--events", quotes, "--time", "price"), "which is no time"),
        (1, ("price > 4", "--events", quotes, *table, "--against", "bug"), "did you mean 'big'"),
        (1, ("price > 4", "--events", quotes, *table, "--against", "bad"), "'prize' at column 1"),
        (2, ("price > 4", "--events", quotes, *table), "--subscriptions needs --against"),
        (2, ("price > 4", "--events", quotes, "--bucket", "soon"), "a bucket is a number and a unit"),
        (2, ("price > 4", "--events", quotes, "--picture", "rate.gif"), "pictures are drawn to"),
        (2, ("price > 4", "--events", quotes, "--time-unit", "ms"), "--time-unit is the unit of the column"),
        (2, ("price > 4", "--events", quotes, "--samples", "-1"), "--samples"),
        (2, ("price > 4",), "--events"),
    ]
    for status, arguments, message in wrong:
        ran = run(*arguments)
        assert (ran.status, ran.out) == (status, ""), arguments
        assert message in ran.err, arguments
        assert "Traceback" not in ran.err
    assert "price > 4 AND prise < 3\n                ^" in run("price > 4 AND prise < 3", "--events", quotes).err


@pytest.mark.long
def test_the_command_runs_on_its_own_and_draws(files: Path) -> None:
    arguments = ["price > 4", "--events", str(files / "quotes.parquet"), "--picture", str(files / "rate.png")]
    done = subprocess.run(
        [sys.executable, "-m", "tidings", "backtest", *arguments, "--master", "local[1]"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LAST_RESORT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "price > 4" in done.stdout
    assert (files / "rate.png").read_bytes().startswith(b"\x89PNG")
