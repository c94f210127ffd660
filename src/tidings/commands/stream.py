"""`tidings stream`: match events as they arrive, until it is stopped."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qsl

import typer
from rich.console import Console
from rich.status import Status as Line

from tidings import pipeline
from tidings.commands.inputs import DomainFile, Master, read_domain
from tidings.commands.spark_jobs import MatchOutput, Output
from tidings.errors import TidingsError
from tidings.model.domain import Domain
from tidings.pipeline.runtime.spark_session import STREAMING
from tidings.pipeline.sinks.stream_sinks import ConsoleSink, KafkaSink, ParquetSink, Sink, StoreSink
from tidings.pipeline.sources.feed_items import FeedEvents
from tidings.pipeline.sources.stream_sources import KAFKA_PACKAGE, FileEvents, KafkaEvents, LogEvents, Source
from tidings.pipeline.sources.table_files import read_frame
from tidings.pipeline.streams.stream_query import Status, Stream, Trigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES = "log:DIR, files:DIR, feeds:DIR or kafka:HOST:PORT/TOPIC"
SINKS = "parquet:DIR, store:FILE, kafka:HOST:PORT/TOPIC or console"
LOOK_SECONDS = 1.0  # between looks at the table of subscriptions
_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0}


class Usage(TidingsError):
    """The command is used wrongly."""


@dataclass(frozen=True)
class Request:
    """What to match, as the options name it."""

    source: str
    subscriptions: str
    sink: str
    checkpoint: str
    trigger: str
    output: Literal["ids", "pairs"]
    master: str
    domain: Domain | None = None
    recover: bool = False
    packages: str | None = None  # of Maven, for Spark


def stream(
    source: Annotated[
        str, typer.Option("--source", metavar="SOURCE", help="log:DIR, files:DIR, feeds:DIR or kafka:HOST:PORT/TOPIC.")
    ],
    subscriptions: Annotated[
        str,
        typer.Option(
            "--subscriptions", metavar="SUBS", help="A table with the columns id and filter, or a compiled index."
        ),
    ],
    sink: Annotated[
        str, typer.Option("--sink", metavar="SINK", help="parquet:DIR, store:FILE, kafka:HOST:PORT/TOPIC or console.")
    ],
    checkpoint: Annotated[str, typer.Option("--checkpoint", metavar="DIR", help="Where the query keeps its progress.")],
    trigger: Annotated[
        str, typer.Option("--trigger", metavar="TIME", help="Time between micro-batches; now ends when all is matched.")
    ] = "0.5s",
    domain: DomainFile = None,
    master: Master = "local[*]",
    output: Output = MatchOutput.ids,
    recover: Annotated[
        bool,
        typer.Option("--recover", help="Continue after the last position in the store, with a new checkpoint."),
    ] = False,
    packages: Annotated[
        str | None,
        typer.Option("--packages", metavar="MAVEN", help="Packages for Spark; by default Kafka's connector if needed."),
    ] = None,
) -> None:
    """Match events as they arrive, on Spark, until Ctrl-C.

    Started again, it continues where it stopped. Subscriptions may change meanwhile: the table is compiled
    again when its file changes, and versions that others publish in an index are used from the next micro-batch
    on.

    \b
      tidings stream --source log:data/log --domain flights.toml --subscriptions data/index \\
        --sink store:data/notifications.sqlite --checkpoint data/query
      tidings stream --source files:incoming/ --subscriptions subs.csv --sink parquet:matches --checkpoint query
    """
    chosen = None if domain is None else read_domain(domain)
    request = Request(source, subscriptions, sink, checkpoint, trigger, output.value, master, chosen, recover, packages)
    try:
        rejected = run(request, Console(stderr=True))
    except Usage as error:
        raise typer.BadParameter(str(error)) from None
    if rejected:
        raise typer.Exit(3)


def run(request: Request, console: Console) -> int:
    """Match until the source ends (`--trigger now`) or a signal comes; returns how many subscriptions were rejected."""
    events, sink = read_source(request.source, request.domain), read_sink(request.sink)
    trigger = read_trigger(request.trigger)
    packages = request.packages or (KAFKA_PACKAGE if "kafka:" in (request.source[:6], request.sink[:6]) else None)
    config = STREAMING if packages is None else STREAMING | {"spark.jars.packages": packages}
    with _status(console) as show:
        show("starting Spark")
        spark = pipeline.session(request.master, name="tidings stream", config=config)
        try:
            with _stop_signals() as stopped:
                show("compiling the subscriptions")
                table = _Table(request.subscriptions)
                given = table.path if table.is_index else read_frame(spark, table.path)
                with pipeline.stream(
                    events, given, sink, checkpoint=request.checkpoint, trigger=trigger, output=request.output,
                    domain=request.domain, recover=request.recover,
                ) as running:  # fmt: skip
                    started = time.monotonic()
                    _follow(spark, running, table, stopped, show)
                    status, seconds = running.status(), time.monotonic() - started
                    rejected = running.rejected
        finally:
            spark.stop()
    console.print(_summary(status, seconds, rejected), markup=False, highlight=False)
    return rejected


def _follow(spark: SparkSession, running: Stream, table: _Table, stopped: threading.Event, show: Any) -> None:
    looked = time.monotonic()
    while not stopped.is_set() and not running.wait(0.2):
        show(_line(running.status()))
        if not table.is_index and time.monotonic() - looked > LOOK_SECONDS:
            if table.has_changed():
                show("compiling the changed subscriptions")
                running.replace(read_frame(spark, table.path))
            looked = time.monotonic()


def _line(status: Status) -> str:
    parts = [
        f"version {status.version}",
        f"{status.events:,} events",
        f"{status.matches:,} matches",
        f"{status.events_per_second:,.0f} events/s",
        f"batch {status.batch_seconds:.2f} s",
    ]
    return " · ".join(parts + ([] if status.problem is None else [status.problem]))


def _summary(status: Status, seconds: float, rejected: int) -> str:
    lines = [
        f"{status.events:,} events in {status.batches:,} micro-batches, {status.matches:,} matches, {seconds:,.1f} s",
        f"stopped at version {status.version} of the subscriptions",
    ]
    lines += [f"{rejected:,} subscriptions are rejected"] if rejected else []
    return "\n".join(lines + ([] if status.problem is None else [status.problem]))


# ---------------------------------------------------------------------- sources and sinks by name


def read_source(text: str, domain: Domain | None) -> Source:
    kind, _, place = text.partition(":")
    if kind not in ("log", "files", "feeds", "kafka") or not place:
        raise Usage(f"--source {text}: events come from {SOURCES}")
    if kind == "files":
        return FileEvents(place)
    if kind == "feeds":
        return FeedEvents(place)
    if domain is None:
        raise Usage(f"--source {text}: give --domain FILE, which says what the events' attributes and types are")
    if kind == "log":
        return LogEvents(place, domain)
    options = _kafka(text, place)
    return KafkaEvents({"subscribe": options.pop("topic"), **options}, domain)


def read_sink(text: str) -> Sink:
    kind, _, place = text.partition(":")
    if text == "console":
        return ConsoleSink()
    if kind not in ("parquet", "store", "kafka") or not place:
        raise Usage(f"--sink {text}: matches go to {SINKS}")
    if kind == "kafka":
        return KafkaSink(_kafka(text, place))
    return ParquetSink(place) if kind == "parquet" else StoreSink(place)


def _kafka(text: str, place: str) -> dict[str, str]:
    """Options of Spark's connector, from HOST:PORT/TOPIC?option=value&…"""
    address, _, query = place.partition("?")
    servers, _, topic = address.rpartition("/")
    if not servers or not topic:
        raise Usage(
            f"{text}: Kafka is named as kafka:HOST:PORT/TOPIC, options after a ? as in ?startingOffsets=earliest"
        )
    return {"kafka.bootstrap.servers": servers, "topic": topic, **dict(parse_qsl(query, strict_parsing=bool(query)))}


def read_trigger(text: str) -> Trigger:
    """0.5s, 500ms, 2m, 0, or now."""
    if text == "now":
        return "now"
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|)", text.strip())
    if found is None:
        raise Usage(f"--trigger {text}: write a time such as 0.5s or 200ms, 0 for no wait, or now to end at the end")
    return float(found[1]) * _UNITS[found[2]]


class _Table:
    """The subscriptions: an index that others publish versions in, or a table that is compiled when it changes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_index = (Path(path) / "current").is_file()
        self._seen = self._state()

    def has_changed(self) -> bool:
        state = self._state()
        changed = state != self._seen and state == self._state()  # the writer is done
        if changed:
            self._seen = state
        return changed

    def _state(self) -> list[tuple[str, int, int]]:
        path = Path(self.path)
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [(file.name, file.stat()) for file in files if file.exists()]
        return [(name, stat.st_mtime_ns, stat.st_size) for name, stat in found]


# ---------------------------------------------------------------------- the terminal


@contextmanager
def _status(console: Console) -> Iterator[Any]:
    """A line that shows the progress; nothing if this is not a terminal."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with Line("", console=console) as line:
        yield line.update


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Set by Ctrl-C or SIGTERM."""
    stopped = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stopped.set()) for number in numbers]
    try:
        yield stopped
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
