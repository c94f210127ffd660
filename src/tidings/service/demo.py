"""`tidings serve --demo`: a month of real flights through the whole service, and who is told of what.

Everything goes over HTTP, as it would from elsewhere: the domain, a few thousand subscriptions, the flights, and what
is delivered. A thread of its own, beside the one that watches over the processes; it ends when it is told to.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tidings.client import Client, Retries, ServiceError
from tidings.demo.flights import in_a_line, load_flights
from tidings.demo.people import Wish, wishes
from tidings.errors import TidingsError
from tidings.model.infer import infer_domain

DOMAIN = "flights"
SUBSCRIBERS = 3000
SEED = 2013
SUBSCRIBING = 8  # threads
FLIGHTS_A_SECOND = 200
REQUESTS_A_SECOND = 10
SHOWN = 8  # subscribers in the table
PULL_SECONDS = 1.0  # that a subscriber waits for something
SHOW_SECONDS = 0.25
RETRY_SECONDS = 20.0  # that the gateway may be away, as where it crashed and is started again
STOP_SECONDS = 5.0
DELAYS_KEPT = 2_000


@dataclass
class Progress:
    """What has happened so far."""

    flights: pa.Table
    shown: list[Wish]
    subscribed: int = 0
    published: int = 0
    sent: dict[int, float] = field(default_factory=dict)  # when the flights of late were sent, by position
    told: dict[str, int] = field(default_factory=dict)  # how many, by the id of a wish that is shown
    last: dict[str, str] = field(default_factory=dict)
    delays: deque[float] = field(default_factory=lambda: deque(maxlen=DELAYS_KEPT))
    problem: str | None = None

    def delay(self) -> str:
        if not self.delays:
            return "…"
        return f"half within {np.median(list(self.delays)):.2f} s"


class Demo:
    """The demo against a service that is there; `start` and `stop` are for whoever runs that."""

    def __init__(self, url: str, token: str, console: Console, *, subscribers: int = SUBSCRIBERS) -> None:
        self._console = console
        self._client = Client(url, token=token, retries=Retries(for_seconds=RETRY_SECONDS))
        self._flights = load_flights()
        asked = wishes(self._flights, subscribers, SEED)
        self._wishes = asked
        shown = list({wish.purpose: wish for wish in reversed(asked)}.values())[::-1][:SHOWN]
        self.progress = Progress(self._flights, shown)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidings-demo", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._client.close()

    def _run(self) -> None:
        with self._told():
            self._client.put_domain(DOMAIN, infer_domain(self._flights, name=DOMAIN))
            with self._console.status("subscribing") as line:
                self._subscribe(lambda text: line.update(text))
            with ThreadPoolExecutor(SHOWN + 1) as pool, Live(self._picture(), console=self._console) as live:
                tasks = [
                    pool.submit(self._publish),
                    *(pool.submit(self._receive, wish) for wish in self.progress.shown),
                ]
                while not self._stopped.wait(SHOW_SECONDS) and not any(task.done() for task in tasks):
                    live.update(self._picture())
                self._stopped.set()
                live.update(self._picture())
            for task in tasks:
                task.result()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except TidingsError as error:
            if not self._stopped.is_set():  # else it is the service that ends
                self.progress.problem = str(error)
                self._console.print(f"the demo has ended: {error}", markup=False, highlight=False)

    # ------------------------------------------------------------------ what goes on

    def _subscribe(self, show: Callable[[str], None]) -> None:
        with ThreadPoolExecutor(SUBSCRIBING) as pool:
            for done, _ in enumerate(pool.map(self._subscribe_one, self._wishes), start=1):
                self.progress.subscribed = done
                if done % 100 == 0:
                    show(f"subscribing: {done:,} of {len(self._wishes):,}")

    def _subscribe_one(self, wish: Wish) -> None:
        if self._stopped.is_set():
            return
        try:
            self._client.subscribe(DOMAIN, wish.filter, id=id_of(wish), labels={"purpose": wish.purpose})
        except ServiceError as error:
            if error.status != 409:  # it is there from an earlier run
                raise

    def _publish(self) -> None:
        """The month, again and again, at an even pace."""
        size = FLIGHTS_A_SECOND // REQUESTS_A_SECOND
        due = time.monotonic()
        while not self._stopped.is_set():
            for start in range(0, len(self._flights), size):
                if self._stopped.wait(max(0.0, due - time.monotonic())):
                    return
                due = max(due + 1 / REQUESTS_A_SECOND, time.monotonic() - 1)
                flights = self._flights.slice(start, size).to_pylist()
                called = time.monotonic()
                positions = self._client.publish_many(DOMAIN, flights)
                self.progress.sent.update(dict.fromkeys(positions, called))
                self.progress.published += len(positions)
                for position in list(self.progress.sent)[: -10 * FLIGHTS_A_SECOND]:
                    del self.progress.sent[position]

    def _receive(self, wish: Wish) -> None:
        id_ = id_of(wish)
        while not self._stopped.is_set():
            pulled = self._client.pull(id_, limit=100, wait=PULL_SECONDS)
            now = time.monotonic()
            for notification in pulled.notifications:
                sent = self.progress.sent.get(notification.position)
                if sent is not None:
                    self.progress.delays.append(now - sent)
            if pulled.cursor is not None and pulled.notifications:
                self.progress.told[id_] = self.progress.told.get(id_, 0) + len(pulled.notifications)
                self.progress.last[id_] = _line(pulled.notifications[-1].event)
                self._client.ack(id_, pulled.cursor)

    # ------------------------------------------------------------------ what is shown

    def _picture(self) -> Group:
        progress = self.progress
        head = (
            f"[bold]{progress.published:,}[/] flights published against {progress.subscribed:,} subscriptions · "
            f"publish to delivery: {progress.delay()} · Ctrl-C ends it"
        )
        table = Table(box=SIMPLE_HEAD, expand=True)
        table.add_column("subscription", no_wrap=True)
        table.add_column("filter", ratio=3)
        table.add_column("told of", justify="right")
        table.add_column("last", ratio=2)
        for wish in progress.shown:
            id_ = id_of(wish)
            told, last = progress.told.get(id_, 0), progress.last.get(id_, "")
            table.add_row(escape(id_), escape(wish.filter), f"{told:,}", escape(last))
        return Group(Text.from_markup(head), table)


def id_of(wish: Wish) -> str:
    """A subscription's id; a slash would need quoting in addresses."""
    return wish.id.replace("/", "-")


def _line(event: dict[str, Any]) -> str:
    data = event["data"] if "specversion" in event else event
    return in_a_line({**data, "departure": datetime.fromisoformat(str(data["departure"]))})
