"""Publishers and subscribers that write down everything they send and get, whatever happens to the service."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import httpx2

from tidings.client import Client, Notification, Retries, ServiceError, SubscriptionState, UnreachableError
from tidings.client.responses import notification_of
from tidings.client.server_sent import ServerSentParser

from ..history.judge import Predicate, sql
from ..history.records import Ack, Change, Delivery, Opened, Outcome, Publish, Unserved, Writer, now

DOMAIN = "quotes"
ATTRIBUTES = [
    {"name": "symbol", "type": "string"},
    {"name": "price", "type": "bigint"},
    {"name": "size", "type": "double"},
]
SYMBOLS = ("OIL", "GAS", "TEA", "TIN")
PAUSE_SECONDS = 0.2  # before trying again
RESUME_SECONDS = 180.0
BUSY = frozenset((408, 425, 429, 502, 503, 504))  # statuses after which the same request may be taken
WRITTEN_CHARACTERS = 1000  # of `pad`, which makes events large: past this a digest stands for it
_MARK = re.compile(r'k="([^"|]*)\|([^"]*)"')  # on the root of a document: its source and id


def outcome_of(error: Exception) -> Outcome:
    """What a failed request did: nothing where it was refused or never sent, else nobody knows."""
    match error:
        case UnreachableError(sent=sent):
            return "unknown" if sent else "refused"
        case ServiceError(status=status):
            return "refused" if status < 500 or status == 503 else "unknown"
    raise error


def draw_event(draw: random.Random) -> dict[str, Any]:
    event: dict[str, Any] = {"symbol": draw.choice(SYMBOLS), "price": draw.randint(0, 99)}
    if draw.random() < 0.9:
        event["size"] = draw.randint(0, 1000) / 4
    return event


def draw_predicate(draw: random.Random) -> Predicate:
    price = [draw.choice([">", "<=", "="]), "price", draw.randint(0, 99)]
    size = [draw.choice([">=", "<"]), "size", draw.randint(0, 1000) / 4]
    symbol = ["in", "symbol", draw.sample(SYMBOLS, 2)]
    return draw.choice(
        [
            ["true"],
            price,
            symbol,
            ["and", price, symbol],
            ["or", ["not", size], price],
            ["or", ["null", "size"], symbol],
        ]
    )


def identified(event: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """An event's source, id and record as they are written down.

    A CloudEvent says its own. Others are known by a mark in their record, `k`, or on the root of their document.
    """
    record = event["data"] if "specversion" in event else event
    document = record.get("document")
    mark = None if not isinstance(document, str) else _MARK.search(document)
    if mark is not None:
        return mark[1], mark[2], record
    if "specversion" in event:
        return event["source"], event["id"], compact(record)
    source, _, id_ = str(record.get("k", "")).partition("|")
    return source, id_, compact(record)


def compact(record: dict[str, Any]) -> dict[str, Any]:
    """A record whose long `pad` is a digest: no filter looks at it, and histories are kept in memory."""
    pad = record.get("pad")
    if not isinstance(pad, str) or len(pad) <= WRITTEN_CHARACTERS:
        return record
    return {**record, "pad": f"{len(pad)} {hashlib.sha256(pad.encode()).hexdigest()}"}


class Worker:
    """A thread that does one thing over and over until it is told to stop."""

    def __init__(self, name: str) -> None:
        self.stopped = threading.Event()
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopped.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{self._thread.name} does not stop"
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        try:
            while not self.stopped.is_set():
                self.work()
        except BaseException as error:
            self.failed = error

    def work(self) -> None:
        raise NotImplementedError


class Publisher(Worker):
    """Publishes batches one after the other; each is tried until it is answered, so that its order is known."""

    def __init__(
        self, name: str, client: Client, writer: Writer, *, tenant: str = "default", batch: int = 10,
        pause_seconds: float = 0.02, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self.name, self.tenant = name, tenant
        self.acked = 0
        self.refused: dict[int, int] = {}  # answers by status
        self.batch, self.pause_seconds = batch, pause_seconds
        self._client, self._writer = client, writer
        self.source = f"/{name}/{uuid.uuid4().hex[:8]}"
        self._sequence = itertools.count()
        self._draw = random.Random(f"{name} {seed}")
        self.let = threading.Event()  # cleared, it sends nothing new and tries nothing again
        self.let.set()

    def work(self) -> None:
        self.publish([draw_event(self._draw) for _ in range(self._draw.randint(1, self.batch))])
        self.stopped.wait(self.pause_seconds)

    def publish(self, records: list[dict[str, Any]]) -> list[int] | None:
        """Until it is answered; None where it was given up because everything ends."""
        numbered = [(next(self._sequence), record) for record in records]
        events = [
            {"specversion": "1.0", "type": "quote", "source": self.source, "id": str(number), "data": record}
            for number, record in numbered
        ]
        return self.attempt(DOMAIN, numbered, lambda: self._client.publish_many(DOMAIN, events))

    def attempt(
        self, domain: str, numbered: list[tuple[int, dict[str, Any]]], send: Callable[[], list[int]], *,
        repeatable: bool = True, final: Callable[[int], bool] = lambda _: False,
    ) -> list[int] | None:  # fmt: skip
        """Send events until they are answered, and write every attempt down.

        What is not repeatable, because it has no ids, is given up after an answer that was lost; whatever is refused
        with a final status is too.
        """
        while True:
            while not self.let.wait(0.1) and not self.stopped.is_set():
                pass
            sent = now()
            positions: list[int] | None = None
            over, reason = False, ""
            try:
                positions = send()
                outcome: Outcome = "acked"
            except (ServiceError, UnreachableError) as error:
                outcome, reason = outcome_of(error), str(error)[:200]
                over = outcome == "unknown" and not repeatable
                if isinstance(error, ServiceError):
                    self.refused[error.status] = self.refused.get(error.status, 0) + 1
                    over = over or final(error.status)
            ended = now()
            self._writer.write(
                *(
                    Publish(
                        self.name, number, self.tenant, domain, self.source, str(number), record, sent,
                        None if outcome == "unknown" else ended, outcome, None if positions is None else positions[at],
                        reason, None if outcome == "acked" else ended,
                    )
                    for at, (number, record) in enumerate(numbered)
                )
            )  # fmt: skip
            if positions is not None:
                self.acked += len(positions)
                return positions
            if over or self.stopped.wait(PAUSE_SECONDS):
                return None


class Puller(Worker):
    """Pulls and acknowledges."""

    def __init__(self, subscription: str, client: Client, writer: Writer, *, tenant: str = "default") -> None:
        super().__init__(f"pull {subscription}")
        self.subscription, self.tenant = subscription, tenant
        self.let = threading.Event()  # cleared, it stays away
        self.let.set()
        self.found_nothing = 0.0  # when the last request that found nothing was sent
        self._client, self._writer = client, writer

    def work(self) -> None:
        if not self.let.wait(PAUSE_SECONDS):
            return
        asked = now()
        try:
            pulled = self._client.pull(self.subscription, limit=500, wait=1.0)
        except (ServiceError, UnreachableError) as error:
            if isinstance(error, ServiceError) and error.status == 404:
                self.stopped.set()  # it was deleted
            self._writer.write(Unserved(self.tenant, "pull", asked, now(), str(error)[:200]))
            self.stopped.wait(PAUSE_SECONDS)
            return
        received, request = now(), uuid.uuid4().hex
        if not pulled.notifications:
            self.found_nothing = asked
            return
        self._writer.write(
            *(
                Delivery(
                    self.subscription, self.tenant, "pull", request, asked, received, one.position,
                    *identified(one.event),
                )
                for one in pulled.notifications
            )
        )  # fmt: skip
        sent = now()
        try:
            self._client.ack(self.subscription, str(pulled.cursor))
            outcome: Outcome = "acked"
        except (ServiceError, UnreachableError) as error:
            outcome = outcome_of(error)
            self._writer.write(Unserved(self.tenant, "ack", sent, now(), str(error)[:200]))
        answered = None if outcome == "unknown" else now()
        self._writer.write(Ack(self.subscription, pulled.notifications[-1].position, sent, answered, outcome))


class Streamer(Worker):
    """Reads a stream; hangs up after so many notifications, or when it is told to, and goes on after what it has.

    It acknowledges what it has dealt with, and resumes after the last that it has read (`resume="last"`) or where the
    service says (`resume="cursor"`), as another reader would. With `auto` it says nothing, and what is lost behind the
    socket when it hangs up is lost.
    """

    def __init__(
        self, subscription: str, client: Client, writer: Writer, *, hang_up_after: int | None = None,
        tenant: str = "default", resume: Literal["last", "cursor"] = "last", auto: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(f"stream {subscription}")
        self.subscription, self.tenant = subscription, tenant
        self.connections = 0
        self.stalls: list[tuple[float, bool]] = []  # how long to read nothing, and whether to hang up after that
        self._hang_up_after = hang_up_after
        self._resume, self._auto = resume, auto
        self._last = ""
        self._client, self._writer = client, writer

    def work(self) -> None:
        asked, request = now(), uuid.uuid4().hex
        self.connections += 1
        channel: Literal["sse", "auto"] = "auto" if self._auto else "sse"
        if self._auto:
            self._writer.write(Opened(self.subscription, request, asked))
        with contextlib.closing(self._open()) as arriving:
            try:
                for number, one in enumerate(arriving, start=1):
                    self._writer.write(
                        Delivery(
                            self.subscription, self.tenant, channel, request, asked, now(), one.position,
                            *identified(one.event),
                        )
                    )  # fmt: skip
                    self._last = str(one.position)
                    if self.stopped.is_set() or self._stalled() or number == self._hang_up_after:
                        return
            except (ServiceError, UnreachableError, httpx2.HTTPError) as error:
                if isinstance(error, ServiceError) and error.status == 404:
                    self.stopped.set()  # it was deleted
                self.stopped.wait(PAUSE_SECONDS)

    def _open(self) -> Generator[Notification, None, None]:
        if self._auto:
            return unacknowledged(self._client, self.subscription)
        last = self._last if self._resume == "last" else ""
        return cast("Generator[Notification, None, None]", self._client.stream(self.subscription, last_event_id=last))

    def _stalled(self) -> bool:
        """Read nothing for a while, where that is asked for; whether to hang up then."""
        if not self.stalls:
            return False
        seconds, hang_up = self.stalls.pop(0)
        self.stopped.wait(seconds)
        return hang_up

    def stop(self) -> None:
        """A stream on which nothing happens cannot be asked to end; the thread ends with the process."""
        self.stopped.set()
        if self.failed is not None:
            raise self.failed


def unacknowledged(client: Client, subscription: str) -> Generator[Notification, None, None]:
    """A stream as curl has it."""
    path = f"/v1/subscriptions/{subscription}/stream?ack=auto"
    parser = ServerSentParser()
    with client._http.stream("GET", path, timeout=httpx2.Timeout(10.0, read=60.0)) as answer:
        if answer.status_code != 200:
            raise ServiceError(answer.status_code, "no stream")
        for piece in answer.iter_bytes():
            for sent in parser.feed(piece):
                if sent.event in ("message", "notification"):
                    yield notification_of(json.loads(sent.data))


class Customer(Worker):
    """Makes the requests of a tenant who subscribes, looks, changes its mind and leaves; none of it matches anything.

    What is not served is written down.
    """

    def __init__(self, client: Client, writer: Writer, *, tenant: str, pause_seconds: float = 1.0) -> None:
        super().__init__(f"customer {tenant}")
        self.tenant, self.pause_seconds = tenant, pause_seconds
        self._client, self._writer = client, writer
        self._count = itertools.count()

    def work(self) -> None:
        client, id_ = self._client, f"{self.tenant}-customer-{next(self._count)}"
        requests: dict[str, Callable[[], object]] = {
            "subscribe": lambda: client.subscribe(DOMAIN, "price < -1", id=id_),
            "look": lambda: client.subscription(id_),
            "change": lambda: client.change(id_, filter="price < -2"),
            "delete": lambda: client.delete(id_),
        }
        for what, request in requests.items():
            sent = now()
            try:
                request()
            except (ServiceError, UnreachableError) as error:
                self._writer.write(Unserved(self.tenant, what, sent, now(), str(error)[:200]))
                break
        self.stopped.wait(self.pause_seconds)


@dataclass
class Subscriber:
    """Creates and changes subscriptions, and writes down what it was told."""

    client: Client
    writer: Writer
    tenant: str = "default"
    made: dict[str, str] = field(default_factory=dict)  # id → domain

    def create(
        self, predicate: Predicate, *, id: str | None = None, text: str | None = None, domain: str = DOMAIN,
        since: float | None = None, **options: Any,
    ) -> SubscriptionState:  # fmt: skip
        """Until it is answered: a subscription that may or may not be there is of no use.

        `text` is a filter that means the predicate, where it is not that which `sql` writes.
        """
        id_ = id or f"s-{uuid.uuid4().hex[:12]}"
        filter_ = sql(predicate) if text is None else text
        first: float | None = None
        while True:
            sent = now()
            first = sent if first is None else first
            try:
                made = self.client.subscribe(domain, filter_, id=id_, **options)
            except (ServiceError, UnreachableError) as error:
                if isinstance(error, ServiceError) and error.status == 409:
                    made = self.client.subscription(id_)
                    sent = first  # an attempt whose answer was lost has made it
                elif isinstance(error, ServiceError) and error.status not in BUSY and error.status != 500:
                    raise
                else:
                    time.sleep(PAUSE_SECONDS)
                    continue
            replay = made.json.get("start")
            self.writer.write(
                Change(
                    "create", id_, self.tenant, domain, sent, now(), "acked", filter_, predicate,
                    filter_from=made.filter_from, replay_from=replay["position"] if isinstance(replay, dict) else None,
                    since=since,
                )
            )  # fmt: skip
            self.made[id_] = domain
            return made

    def change(self, id: str, predicate: Predicate, text: str | None = None) -> None:
        filter_ = sql(predicate) if text is None else text
        self._record("change", id, lambda: self.client.change(id, filter=filter_), predicate, filter_)

    def pause(self, id: str) -> None:
        self._record("pause", id, lambda: self.client.pause(id))

    def resume(self, id: str) -> None:
        """Until it is answered, so that all that waited comes."""
        until = now() + RESUME_SECONDS
        while not self._record("resume", id, lambda: self.client.resume(id)) and now() < until:
            time.sleep(PAUSE_SECONDS)

    def delete(self, id: str) -> None:
        self._record("delete", id, lambda: self.client.delete(id))

    def saw_disabled(self, id: str) -> None:
        """The service has given a subscription up, and says so."""
        self.writer.write(Change("disable", id, self.tenant, self.made[id], now(), now(), "acked"))

    def saw_failed(self, id: str, reason: str) -> None:
        """The service has set a subscription aside, and says why."""
        self.writer.write(Change("fail", id, self.tenant, self.made[id], now(), now(), "acked", filter=reason))

    def saw_expired(self, id: str, since: float) -> None:
        """Its time has come, at some moment since then."""
        self.writer.write(Change("expire", id, self.tenant, self.made[id], since, now(), "acked"))

    def _record(
        self,
        action: Any,
        id: str,
        work: Callable[[], SubscriptionState | None],
        predicate: Predicate | None = None,
        filter: str | None = None,
    ) -> bool:
        sent = now()
        answer: SubscriptionState | None = None
        try:
            answer = work()
            outcome: Outcome = "acked"
        except (ServiceError, UnreachableError) as error:
            outcome = outcome_of(error)
        self.writer.write(
            Change(
                action, id, self.tenant, self.made[id], sent, None if outcome == "unknown" else now(), outcome, filter,
                predicate, filter_from=None if answer is None or predicate is None else answer.filter_from,
            )
        )  # fmt: skip
        return outcome == "acked"


@contextlib.contextmanager
def client_of(url: str, token: str, *, timeout: float = 15.0) -> Iterator[Client]:
    """One that tries once: trying again is the workload's, which writes every attempt down."""
    with Client(url, token=token, timeout=timeout, retries=Retries(for_seconds=0)) as client:
        yield client
