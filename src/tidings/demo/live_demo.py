"""The demo on Spark: the flights come through the log, and the subscriptions change while they are matched.

`run` publishes a month of flights in a fast motion, has a stream match them into a store of notifications, changes
subscriptions all the while, and shows what comes of it; it needs no server, and ends by itself.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tidings import pipeline
from tidings.demo.batch_demo import YOU
from tidings.demo.flights import in_a_line, load_flights
from tidings.demo.people import Wish, wishes
from tidings.model.domain import Domain
from tidings.model.event import read_events
from tidings.model.infer import infer_domain
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.notifications import LOG, Notifications
from tidings.systems.interface import REPLICATED

SECONDS = 25.0  # that the month takes
APPENDS_PER_SECOND = 20
CHANGES_PER_SECOND = 2
CHANGED = 25  # subscriptions, at a time: so many come, and as many go
WARM_UP = 100  # flights before the clock starts
SHOWN = 8  # subscribers in the table
LOOK_SECONDS = 0.02
SHOW_SECONDS = 0.25


@dataclass
class Progress:
    """What has happened so far; times are in seconds since 1970."""

    flights: pa.Table
    shown: list[Wish]  # of some who stay
    appended: list[tuple[float, int]] = field(default_factory=list)  # when an append was called, and its last position
    reached: list[tuple[float, int]] = field(default_factory=list)  # when the store was seen to have come to which
    changed: int = 0  # subscriptions that came or went
    version: int = 1
    matches: int = 0
    mailboxes: dict[str, list[int]] = field(
        default_factory=dict
    )  # of those who are shown: the flights they were told of
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def published(self) -> int:
        return self.appended[-1][1] + 1 if self.appended else 0

    @property
    def matched(self) -> int:
        return self.reached[-1][1] + 1 if self.reached else 0

    def latencies(self) -> Any:
        """Of every append whose flights are in the store."""
        if not self.reached or not self.appended:
            return np.empty(0)
        called, last = (np.array(column) for column in zip(*self.appended, strict=True))
        when, position = (np.array(column) for column in zip(*self.reached, strict=True))
        done = last <= position[-1]
        return when[np.searchsorted(position, last[done])] - called[done]


def run(
    console: Console, *, subscribers: int, seed: int, own_filter: str | None = None, seconds: float = SECONDS
) -> Progress:
    """Publish, match, change and show; then sum up."""
    flights = load_flights()
    domain = infer_domain(flights, name="flights")
    asked = wishes(flights, 2 * subscribers, seed)
    here, waiting = asked[:subscribers], asked[subscribers:]
    if own_filter is not None:
        here.insert(0, Wish(YOU, "own", own_filter))
    progress = Progress(flights, list({wish.purpose: wish for wish in reversed(here)}.values())[::-1][:SHOWN])
    _introduce(console, progress, subscribers)
    with tempfile.TemporaryDirectory(prefix="tidings-demo-") as name, _spark(console) as spark:
        folder = Path(name)
        with console.status(f"compiling {subscribers:,} subscriptions"):
            table = spark.createDataFrame(_table(here))
            pipeline.compile(table, folder / "index", domain=domain, placement=REPLICATED, sample=flights)
        with (
            Log(folder / "log") as log,
            pipeline.stream(
                pipeline.LogEvents(folder / "log", domain), folder / "index", pipeline.StoreSink(folder / "told"),
                checkpoint=folder / "query", trigger=0,
            ) as running,
            Notifications(folder / "told") as told,
        ):  # fmt: skip
            watcher = _Watcher(running, told, progress)
            with console.status("warming Spark up with the first flights"):
                _append(log, progress, domain, 0, WARM_UP)
                watcher.until(WARM_UP - 1)
            progress.appended.clear()
            progress.reached.clear()
            with ThreadPoolExecutor(2) as pool:
                others = [
                    pool.submit(_publish, log, progress, domain, seconds),
                    pool.submit(_change, folder / "index", progress, here, waiting, Random(seed)),
                ]
                try:
                    with Live(_picture(progress), console=console, refresh_per_second=5, transient=True) as live:
                        watcher.until(len(flights) - 1, others, lambda: live.update(_picture(progress)))
                finally:
                    progress.ended.set()
    _sum_up(console, progress, subscribers)
    return progress


# ---------------------------------------------------------------------- what goes on


@contextmanager
def _spark(console: Console) -> Iterator[Any]:
    with console.status("starting Spark"):
        spark = pipeline.session("local[2]", name="tidings demo")
    try:
        yield spark
    finally:
        spark.stop()


def _table(asked: list[Wish]) -> pa.Table:
    columns: dict[str, Any] = {"id": [wish.id for wish in asked], "filter": [wish.filter for wish in asked]}
    return pa.table(columns)


def _append(log: Log, progress: Progress, domain: Domain, start: int, count: int) -> None:
    events = read_events(progress.flights.slice(start, count), domain)
    called = time.time()
    progress.appended.append((called, log.append(events)[-1]))


def _publish(log: Log, progress: Progress, domain: Domain, seconds: float) -> None:
    """The month in so many seconds, evenly."""
    count = len(progress.flights)
    size = max(1, round((count - WARM_UP) / seconds / APPENDS_PER_SECOND))
    started = time.monotonic()
    for number, start in enumerate(range(WARM_UP, count, size)):
        if progress.ended.wait(max(0.0, started + number / APPENDS_PER_SECOND - time.monotonic())):
            return
        _append(log, progress, domain, start, min(size, count - start))


def _change(index: Path, progress: Progress, here: list[Wish], waiting: list[Wish], random: Random) -> None:
    """Some subscribe and as many leave, a few at a time; those who are shown stay."""
    changes = pipeline.IndexChanges(index)
    here = [wish for wish in here if wish not in progress.shown]
    while not progress.ended.wait(1 / CHANGES_PER_SECOND) and progress.published < len(progress.flights):
        coming = [waiting.pop(random.randrange(len(waiting))) for _ in range(min(CHANGED, len(waiting)))]
        going = [here.pop(random.randrange(len(here))) for _ in coming]
        changes.apply(upsert=_table(coming), remove=[wish.id for wish in going])
        here += coming
        waiting += going
        progress.changed += len(coming) + len(going)


class _Watcher:
    """Looks into the store, as whoever delivers would."""

    def __init__(self, running: pipeline.Stream, told: Notifications, progress: Progress) -> None:
        self._running = running
        self._told = told
        self._progress = progress

    def until(
        self, position: int, others: Sequence[Future[None]] = (), shown: Callable[[], None] = lambda: None
    ) -> None:
        """Until the query has come to a position; raises what has made it, or one of the others, fail."""
        progress, last, next_show = self._progress, -1, 0.0
        while last < position:
            now = time.time()
            found = self._told.reached(self._running.query_id).get(LOG, -1)
            if found > last:
                last = found
                progress.reached.append((now, found))
            if now > next_show:
                self._running.wait(0.001)
                for other in others:
                    if other.done():
                        other.result()
                self._look()
                shown()
                next_show = now + SHOW_SECONDS
            time.sleep(LOOK_SECONDS)
        self._look()

    def _look(self) -> None:
        status = self._running.status()
        self._progress.version, self._progress.matches = status.version, status.matches
        for wish in self._progress.shown:
            held = self._progress.mailboxes.setdefault(wish.id, [])
            held += self._told.positions_of(wish.id, after=held[-1] if held else -1)


# ---------------------------------------------------------------------- what is shown


def _introduce(console: Console, progress: Progress, subscribers: int) -> None:
    console.print(
        f"[bold]Tidings[/] on Spark: {len(progress.flights):,} flights of February 2013 from New York are appended to "
        f"a durable log,\nand matched in micro-batches against {subscribers:,} subscriptions, of which "
        f"{2 * CHANGED * CHANGES_PER_SECOND} change every second.\n",
        highlight=False,
    )


def _picture(progress: Progress) -> Group:
    latencies = progress.latencies()[-5 * APPENDS_PER_SECOND :]
    delay = f"{np.median(latencies):.2f} s" if len(latencies) else "…"
    head = (
        f"[bold]{progress.matched:,}[/] of {progress.published:,} published flights matched · "
        f"[bold]{progress.matches:,}[/] notifications · log to store {delay} · "
        f"subscriptions version {progress.version}, {progress.changed:,} changed"
    )
    table = Table(box=SIMPLE_HEAD, expand=True)
    table.add_column("subscriber", no_wrap=True)
    table.add_column("filter", ratio=3)
    table.add_column("told of", justify="right")
    table.add_column("last", ratio=2)
    for wish in progress.shown:
        held = progress.mailboxes.get(wish.id, [])
        last = in_a_line(progress.flights.slice(held[-1], 1).to_pylist()[0]) if held else ""
        table.add_row(escape(wish.subscriber.split("@")[0]), escape(wish.filter), f"{len(held):,}", escape(last))
    return Group(Text.from_markup(head), table)


def _sum_up(console: Console, progress: Progress, subscribers: int) -> None:
    latencies = progress.latencies()
    seconds = progress.reached[-1][0] - progress.appended[0][0]
    flights = progress.matched - WARM_UP
    console.print(_picture(progress).renderables[1])
    console.print(
        f"[bold]{flights:,} flights in {seconds:.1f} s: {flights / seconds:,.0f} flights/s[/], as fast as they were "
        f"published, against {subscribers:,} subscriptions\n"
        f"from the log to the store: half within [bold]{np.percentile(latencies, 50):.2f} s[/], "
        f"99 of 100 within [bold]{np.percentile(latencies, 99):.2f} s[/]\n"
        f"{progress.matches:,} notifications, each exactly once; {progress.changed:,} subscriptions came or went in "
        f"{progress.version - 1} changes, and none waited for a restart",
        highlight=False,
    )
