"""A scenario from start to end: serve, work, break, wait, stop, read the log, check."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import LAST_RESORT_SECONDS, until

from tidings.client import Client
from tidings.store.catalogue import Catalogue
from tidings.store.log.log_errors import LogError
from tidings.store.log.log_reader import LogReader

from ..history.checker import Report, Violation, check_files
from ..history.history import History
from ..history.invariants import i1_everything_that_matches_is_delivered
from ..history.judge import Predicate
from ..history.records import Dead, Delivery, Fault, Limit, LogEnds, Logged, Publish, Record, Sample, Writer, now
from .cluster import Cluster, cluster
from .process import Served
from .webhook import Receiver
from .workload import (
    ATTRIBUTES,
    DOMAIN,
    Publisher,
    Puller,
    Streamer,
    Subscriber,
    client_of,
    draw_predicate,
    identified,
)

OTHER = "other"  # the second tenant
LIMITS = {"gateway": 900e6, "driver": 1.5e9, "JVM": 3.5e9, "workers": 4e9}


@dataclass(frozen=True)
class Size:
    """How much goes on while something is broken."""

    subscriptions: int = 12  # of the first tenant, and a third as many of the second
    publishers: int = 2
    batch: int = 10
    pause_seconds: float = 0.2
    before_seconds: float = 1.0
    after_seconds: float = 1.0
    predicates: Callable[[random.Random], Predicate] = draw_predicate


@dataclass
class KeptWriter(Writer):
    """Has what it wrote at hand, for those who wait for something to be in it."""

    records: list[Record] = field(default_factory=list, repr=False)

    def write(self, *records: Record) -> None:
        super().write(*records)
        self.records += records


@dataclass
class Run:
    """A service with publishers and subscribers at work."""

    folder: Path
    served: Served
    size: Size
    writer: KeptWriter
    clients: dict[str, Client]
    subscribers: dict[str, Subscriber]
    receiver: Receiver
    cluster: Cluster | None = None
    publishers: list[Publisher] = field(default_factory=list)
    pullers: list[Puller] = field(default_factory=list)
    streamers: list[Streamer] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: list[Violation] = field(default_factory=list)  # beside what the history says
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def key(self) -> str:
        return f"default.{DOMAIN}"

    def add_puller(self, predicate: Predicate, tenant: str = "default", **options: object) -> str:
        made = self.subscribers[tenant].create(predicate, **options)
        self.pull(made.id, tenant)
        return made.id

    def pull(self, id_: str, tenant: str = "default") -> None:
        puller = Puller(id_, self.clients[tenant], self.writer, tenant=tenant)
        self.pullers.append(puller)
        puller.start()

    def add_streamer(self, predicate: Predicate, hang_up_after: int | None = None) -> str:
        made = self.subscribers["default"].create(predicate, mode="sse")
        streamer = Streamer(made.id, self.clients["default"], self.writer, hang_up_after=hang_up_after)
        self.streamers.append(streamer)
        streamer.start()
        return made.id

    def add_webhook(self, predicate: Predicate) -> str:
        id_ = f"hook-{self.draw.getrandbits(40):x}"
        made = self.subscribers["default"].create(predicate, id=id_, mode="webhook", url=self.receiver.url(id_))
        assert made.secret is not None
        self.receiver.expect(id_, made.secret)
        return id_

    def add_publisher(self, tenant: str = "default", **options: object) -> Publisher:
        name = f"p{len(self.publishers)}"
        given = {"batch": self.size.batch, "pause_seconds": self.size.pause_seconds, **options}
        publisher = Publisher(name, self.clients[tenant], self.writer, tenant=tenant, **given)  # type: ignore[arg-type]
        self.publishers.append(publisher)
        publisher.start()
        return publisher

    @contextlib.contextmanager
    def fault(self, name: str, *, bound_seconds: float, channel: str | None = None) -> Iterator[None]:
        """What happens inside is the fault; from its end on, recovery is due."""
        began = now()
        yield
        fault = Fault(name, began, now(), bound_seconds, channel)
        self.faults.append(fault)
        self.writer.write(fault)

    def wait_for_recovery(self) -> None:
        """Until each tenant has got something that was sent after the last fault; the checker says whether in time."""
        fault = self.faults[-1]
        until = time.monotonic() + max(2 * fault.bound_seconds, LAST_RESORT_SECONDS)
        since: set[tuple[str, str]] = set()  # sources and ids of events that were sent after the fault
        seen = 0
        missing = set(self.clients if fault.channel is None else ["default"])
        while missing and time.monotonic() < until:
            fresh = self.writer.records[seen:]
            seen += len(fresh)
            since |= {(one.source, one.id) for one in fresh if isinstance(one, Publish) and one.sent >= fault.over}
            missing -= {
                one.tenant
                for one in fresh
                if isinstance(one, Delivery) and (one.source, one.id) in since and fault.channel in (None, one.channel)
            }
            time.sleep(0.2)

    def wait_until(self, holds: Callable[[], bool], seconds: float = LAST_RESORT_SECONDS) -> None:
        until = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < until, f"it did not come about within {seconds:g} s:\n{self.served.said()}"
            time.sleep(0.1)

    def warm_up(self) -> None:
        """Until each tenant has got something: before that there is nothing under way to break."""

        def all_got_something() -> bool:
            return {one.tenant for one in self.writer.records if isinstance(one, Delivery)} >= self.clients.keys()

        until(all_got_something, lambda: f"a tenant got nothing:\n{self.served.said()}")

    def stop_workers(self) -> None:
        for worker in (*self.publishers, *self.pullers, *self.streamers):
            worker.stop()

    def drain(self, seconds: float = LAST_RESORT_SECONDS) -> None:
        """Until every event that has to be delivered is, or it is given up; publishers have stopped."""
        for publisher in self.publishers:
            publisher.stop()
        until = time.monotonic() + seconds
        last = max((one.position or 0 for one in self.writer.records if isinstance(one, Publish)), default=0)
        while time.monotonic() < until and min(self._reached(), default=0) <= last:
            time.sleep(0.2)
        matched = now()
        while time.monotonic() < until and any(one.found_nothing < matched for one in self.live_pullers()):
            time.sleep(0.2)
        while True:
            self._write_dead_letters()
            owed = i1_everything_that_matches_is_delivered(History(self.writer.records))
            if next(owed, None) is None or time.monotonic() > until:
                return
            time.sleep(2.0)

    def live_pullers(self) -> list[Puller]:
        return [puller for puller in self.pullers if not puller.stopped.is_set()]

    def _reached(self) -> list[int]:
        """How far each domain was matched."""
        domains = self.served.driver_status().get("domains")
        return [one["reached"] for one in domains.values()] if isinstance(domains, dict) else []

    def matched(self) -> int:
        """How many events the driver has matched since it began."""
        domains = self.served.driver_status().get("domains")
        return sum(one["events"] for one in domains.values()) if isinstance(domains, dict) else 0

    def _write_dead_letters(self) -> None:
        for tenant, subscriber in self.subscribers.items():
            for id_ in subscriber.made:
                with contextlib.suppress(Exception):  # a service that is down has none to show; a deleted one neither
                    for letter in self.clients[tenant].dead_letters(id_):
                        self.writer.write(Dead(id_, letter.position, letter.reason))

    def stop_service(self) -> None:
        """Stop it as a user does: it ends well, and whatever was posted to receivers had a right signature."""
        status = self.served.stop()
        if status != 0:
            self.wrong.append(Violation("exit", f"the service ended with status {status}: {self.served.said(500)}"))
        self.wrong += [Violation("signature", bad) for bad in self.receiver.bad_signatures[:3]]

    def write_log(self) -> None:
        """What the log has, once the service is down. What cannot be read is written down as not intact."""
        with LogReader(self.served.data / "log") as log:
            try:
                start, end = log.start, log.end
                for batch in log.read(start, end):
                    self.writer.write(*(_logged(row) for row in batch.to_pylist()))
            except LogError as error:
                self.notes.append(str(error))
                self.writer.write(Logged(getattr(error, "position", None) or 0, "", "", "", "", {}, intact=False))
                return
        self.writer.write(LogEnds(start, end))

    def sample(self, stopped: threading.Event) -> None:
        while not stopped.wait(1.0):
            with contextlib.suppress(AssertionError):
                self.writer.write(*(Sample(what, size, now()) for what, size in self.served.memory().items()))


def _logged(row: dict[str, object]) -> Logged:
    tenant, _, domain = str(row["domain"]).partition(".")
    position = row["position"]
    assert isinstance(position, int)
    return Logged(position, tenant, domain, *identified(json.loads(str(row["event"]))))


@dataclass(frozen=True)
class Result:
    name: str
    report: Report
    faults: list[Fault]
    notes: list[str]
    records: Path


@contextlib.contextmanager
def running(
    folder: Path,
    size: Size,
    *,
    data: Path | None = None,
    master: str = "local[2]",
    options: Sequence[str] = (),
    workers: int = 0,
) -> Iterator[Run]:
    """A service with publishers and subscribers at work, in a folder of its own; with workers, on a cluster of them."""
    folder.mkdir(parents=True, exist_ok=True)
    served = Served(data or folder / "data", master=master, options=options)
    writer = KeptWriter(folder / "history.jsonl")
    stopped = threading.Event()
    with contextlib.ExitStack() as opened:
        opened.callback(writer.close)
        spark = None
        if workers:
            spark = opened.enter_context(cluster(folder / "cluster", served.environment, workers=workers))
            served.master = spark.url
        opened.callback(served.kill)
        served.start()
        with Catalogue(served.data / "catalogue.sqlite") as catalogue:
            tokens = {"default": served.token_file.read_text().strip(), OTHER: catalogue.create_token(OTHER)}
        clients = {name: opened.enter_context(client_of(served.url, token)) for name, token in tokens.items()}
        receiver = Receiver(writer)
        opened.callback(receiver.close)
        subscribers = {name: Subscriber(client, writer, name) for name, client in clients.items()}
        run = Run(folder, served, size, writer, clients, subscribers, receiver, spark)
        opened.callback(run.stop_workers)
        for client in clients.values():
            client.put_domain(DOMAIN, ATTRIBUTES)
        for tenant, count in (("default", size.subscriptions), (OTHER, size.subscriptions // 3)):
            for _ in range(count):
                run.add_puller(size.predicates(run.draw), tenant)
        for tenant in ("default",) * size.publishers + (OTHER,):
            run.add_publisher(tenant)
        sampler = threading.Thread(target=run.sample, args=(stopped,), daemon=True)
        opened.callback(sampler.join)
        opened.callback(stopped.set)
        writer.write(*(Limit(what, largest) for what, largest in LIMITS.items()))
        sampler.start()
        run.warm_up()
        yield run


def finish(run: Run, name: str, *, timed: bool = True) -> Result:
    """Deliver the rest, stop the service as a user does, read the log, and check everything; `timed`: seconds too."""
    run.drain()
    run.stop_workers()
    run.stop_service()
    run.write_log()
    report = check_files([run.writer.path], timed=timed)
    report.violations.extend(run.wrong)
    return Result(name, report, run.faults, run.notes, run.writer.path)
