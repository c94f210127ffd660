"""`tidings stream` says what it was given wrongly, matches, and follows a table that changes."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from tests.waiting import until

from tidings import cli
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.notifications import Notifications

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings.commands import stream as command
from tidings.commands.stream import Request, Usage, read_sink, read_source, read_trigger
from tidings.pipeline.sinks.stream_sinks import ConsoleSink, KafkaSink, ParquetSink, StoreSink
from tidings.pipeline.sources.feed_items import FeedEvents
from tidings.pipeline.sources.stream_sources import FileEvents, KafkaEvents, LogEvents

pytestmark = pytest.mark.spark

DOMAIN = Domain("d", [Attribute("x", "bigint")])
KAFKA = {"kafka.bootstrap.servers": "one:9092,two:9092"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log:data/log", LogEvents("data/log", DOMAIN)),
        ("files:in", FileEvents("in")),
        ("feeds:in", FeedEvents("in")),
        ("kafka:one:9092,two:9092/t", KafkaEvents(KAFKA | {"subscribe": "t"}, DOMAIN)),
        (
            "kafka:one:9092,two:9092/t?startingOffsets=earliest&kafka.security.protocol=SSL",
            KafkaEvents(
                KAFKA | {"subscribe": "t", "startingOffsets": "earliest", "kafka.security.protocol": "SSL"}, DOMAIN
            ),
        ),
    ],
)
def test_a_source_is_read_from_its_kind_and_place(text: str, expected: Any) -> None:
    assert read_source(text, DOMAIN) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("console", ConsoleSink()),
        ("parquet:out", ParquetSink("out")),
        ("store:told.sqlite", StoreSink("told.sqlite")),
        ("kafka:one:9092,two:9092/t", KafkaSink(KAFKA | {"topic": "t"})),
    ],
)
def test_a_sink_is_read_from_its_kind_and_place(text: str, expected: Any) -> None:
    assert read_sink(text) == expected


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("0.5s", 0.5), ("200ms", 0.2), ("2", 2), ("1.5m", 90), ("now", "now")]
)
def test_a_trigger_is_a_time_or_now(text: str, seconds: float | str) -> None:
    assert read_trigger(text) == seconds


@pytest.mark.parametrize("text", ["soon", "-1s", "1h", "", "1 2"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="write a time such as"):
        read_trigger(text)


@pytest.mark.parametrize("text", ["data/log", "log:", "mail:x", "kafka:host", "kafka:/t"])
def test_what_is_no_source_or_sink_is_refused(text: str) -> None:
    with pytest.raises(Usage):
        read_source(text, DOMAIN)
    with pytest.raises(Usage):
        read_sink(text)


def test_the_log_needs_a_domain() -> None:
    with pytest.raises(Usage, match="give --domain FILE"):
        read_source("log:data/log", None)


def test_wrong_use_ends_with_status_2_and_wrong_input_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = ["--subscriptions", "s", "--sink", "console", "--checkpoint", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        cli.main(["stream", "--source", "nothing", *given])
    assert ended.value.code == 2
    assert "events come from log:DIR" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        cli.main(["stream", "--source", "log:x", "--domain", str(tmp_path / "none.toml"), *given])
    assert ended.value.code == 1


def test_a_table_that_changes_is_compiled_again_while_the_query_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.pipeline, "session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None, raising=False)
    stopped = threading.Event()
    monkeypatch.setattr(command, "_stop_signals", lambda: _Given(stopped))
    table, told = tmp_path / "subs.csv", tmp_path / "told.sqlite"
    table.write_text("id,filter\nall,TRUE\nbad,x >\n")
    request = Request(
        f"log:{tmp_path / 'log'}", str(table), f"store:{told}", str(tmp_path / "query"), "0.1s", "ids", "", DOMAIN
    )
    written = io.StringIO()
    answers: list[int] = []
    with Log(tmp_path / "log") as log:
        log.append(read_events([{"x": 0}, {"x": 1}], DOMAIN))
        running = threading.Thread(
            target=lambda: answers.append(command.run(request, Console(file=written, width=200)))
        )
        running.start()
        try:
            until(lambda: told.exists() and _count(told) == 2)
            table.write_text("id,filter\nmany,x >= 0\nfew,x = 2\n")
            until(lambda: (tmp_path / "query" / "subscriptions" / "current").read_text() == "2\n")
            log.append(read_events([{"x": 2}], DOMAIN))
            until(lambda: _count(told) == 4)
        finally:
            stopped.set()
            running.join()
    assert answers == [0]
    with Notifications(told) as store:
        assert sorted(store.pairs()) == [(0, "all"), (1, "all"), (2, "few"), (2, "many")]
    assert " events in " in written.getvalue()
    assert "stopped at version 2" in written.getvalue()


class _Given:
    """A signal that comes from the test."""

    def __init__(self, told: threading.Event) -> None:
        self._told = told

    def __enter__(self) -> threading.Event:
        return self._told

    def __exit__(self, *_: object) -> None:
        pass


def _count(path: Path) -> int:
    with Notifications(path) as store:
        return len(store)
