"""`tidings serve --demo`: a month of real flights through a running service, while subscriptions come and go.

Everything goes over HTTP, as it would from another machine: the domain, a few thousand subscriptions, the flights and
what is delivered. Runs in a thread of its own until it is stopped.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tidings.client import Client, ServiceError
from tidings.demo.flights import in_a_line, load_flights
from tidings.demo.people import FlightFilter, flight_filters
from tidings.errors import TidingsError
from tidings.model.infer import infer_domain

DOMAIN = "flights"
SUBSCRIBERS = 3000
SEED = 2013
SUBSCRIBING = 8  # threads
FLIGHTS_PER_SECOND = 200
REQUESTS_PER_SECOND = 10
CHANGES_PER_SECOND = 2  # of each, one subscription comes and one goes
SHOWN = 8  # subscriptions in the table, which stay
PULL_SECONDS = 1.0
SHOW_SECONDS = 0.25
STOP_SECONDS = 5.0
SENT_KEPT = 10 * FLIGHTS_PER_SECOND
DELAYS_KEPT = 2_000


@dataclass
class Progress:
    """What has happened so far."""

    shown: list[FlightFilter]
    subscribed: int = 0
    changed: int = 0
    positions: list[int] = field(default_factory=list)  # of the flights, in the order of their publication
    sent: dict[int, float] = field(default_factory=dict)  # when the most recent flights were sent, by position
    received: dict[str, list[int]] = field(default_factory=dict)  # positions, by the id of a shown subscription
    last: dict[str, str] = field(default_factory=dict)
    delays: deque[float] = field(default_factory=lambda: deque(maxlen=DELAYS_KEPT))
    problem: str | None = None

    def delay(self) -> str:
        if not self.delays:
            return "…"
        half, most = np.percentile(list(self.delays), [50, 99])
        return f"half within {half:.2f} s, 99 of 100 within {most:.2f} s"


class LiveDemo:
    """The demo against a running service. `client` is closed when the demo is stopped."""

    def __init__(self, client: Client, console: Console, *, subscribers: int = SUBSCRIBERS) -> None:
        self._client = client
        self._console = console
        self._flights = load_flights()
        self._interests = flight_filters(self._flights, subscribers, SEED)
        shown = list({one.purpose: one for one in reversed(self._interests)}.values())[::-1][:SHOWN]
        self.progress = Progress(shown)
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
        with self._reporting():
            self._client.put_domain(DOMAIN, infer_domain(self._flights, name=DOMAIN))
            self._subscribe_all()
            with ThreadPoolExecutor(SHOWN + 2) as pool, Live(self._picture(), console=self._console) as live:
                tasks = [
                    pool.submit(self._publish),
                    pool.submit(self._change),
                    *(pool.submit(self._receive, one) for one in self.progress.shown),
                ]
                while not self._stopped.wait(SHOW_SECONDS) and not any(task.done() for task in tasks):
                    live.update(self._picture())
                self._stopped.set()
                live.update(self._picture())
            for task in tasks:
                task.result()

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except TidingsError as error:
            if not self._stopped.is_set():  # else the service itself is stopping
                self.progress.problem = str(error)
                self._console.print(f"the demo has ended: {error}", markup=False, highlight=False)

    # ------------------------------------------------------------------ publishers and subscribers

    def _subscribe_all(self) -> None:
        with self._console.status("subscribing") as line, ThreadPoolExecutor(SUBSCRIBING) as pool:
            for done, _ in enumerate(pool.map(self._subscribe, self._interests), start=1):
                self.progress.subscribed = done
                if done % 100 == 0:
                    line.update(f"subscribing: {done:,} of {len(self._interests):,}")

    def _subscribe(self, one: FlightFilter) -> None:
        if self._stopped.is_set():
            return
        try:
            self._client.subscribe(DOMAIN, one.filter, id=id_of(one), labels={"purpose": one.purpose})
        except ServiceError as error:
            if error.status != 409:  # it exists since an earlier run
                raise

    def _publish(self) -> None:
        """Publish the month again and again, at an even pace."""
        size = FLIGHTS_PER_SECOND // REQUESTS_PER_SECOND
        due = time.monotonic()
        while not self._stopped.is_set():
            for start in range(0, len(self._flights), size):
                if self._stopped.wait(max(0.0, due - time.monotonic())):
                    return
                due = max(due + 1 / REQUESTS_PER_SECOND, time.monotonic() - 1)
                called = time.monotonic()
                positions = self._client.publish_many(DOMAIN, self._flights.slice(start, size).to_pylist())
                self.progress.positions += positions
                self.progress.sent.update(dict.fromkeys(positions, called))
                for position in list(self.progress.sent)[:-SENT_KEPT]:
                    del self.progress.sent[position]

    def _change(self) -> None:
        """Delete a subscription and create it again, one after the other; those that are shown stay."""
        random = Random(SEED)
        changing = [one for one in self._interests if one not in self.progress.shown]
        while changing and not self._stopped.wait(1 / CHANGES_PER_SECOND):
            one = random.choice(changing)
            self._client.delete(id_of(one))
            self._subscribe(one)
            self.progress.changed += 1

    def _receive(self, one: FlightFilter) -> None:
        id_ = id_of(one)
        received = self.progress.received.setdefault(id_, [])
        while not self._stopped.is_set():
            pulled = self._client.pull(id_, limit=100, wait=PULL_SECONDS)
            now = time.monotonic()
            for notification in pulled.notifications:
                received.append(notification.position)
                if (sent := self.progress.sent.get(notification.position)) is not None:
                    self.progress.delays.append(now - sent)
            if pulled.cursor is not None and pulled.notifications:
                self.progress.last[id_] = _line(pulled.notifications[-1].data)
                self._client.ack(id_, pulled.cursor)

    # ------------------------------------------------------------------ the table

    def _picture(self) -> Group:
        progress = self.progress
        head = (
            f"[bold]{len(progress.positions):,}[/] flights published against {progress.subscribed:,} subscriptions, "
            f"{progress.changed:,} of them changed · publish to delivery: {progress.delay()} · Ctrl-C ends it"
        )
        table = Table(box=SIMPLE_HEAD, expand=True)
        table.add_column("subscription", no_wrap=True)
        table.add_column("filter", ratio=3)
        table.add_column("received", justify="right")
        table.add_column("last", ratio=2)
        for one in progress.shown:
            id_ = id_of(one)
            received, last = len(progress.received.get(id_, ())), progress.last.get(id_, "")
            table.add_row(escape(id_), escape(one.filter), f"{received:,}", escape(last))
        return Group(Text.from_markup(head), table)


def id_of(one: FlightFilter) -> str:
    """The subscription's id; a slash would have to be quoted in URLs."""
    return one.id.replace("/", "-")


def _line(data: dict[str, Any]) -> str:
    return in_a_line({**data, "departure": datetime.fromisoformat(str(data["departure"]))})
