"""A service with its tenants, publishers, readers and receivers, and what each action of a schedule does to it."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import queue
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx2
from tests.waiting import LAST_RESORT_SECONDS

from tidings.client import Client, ServiceError, UnreachableError

from ..faults import damage
from ..faults.process import NotStartedError
from ..faults.run import Run
from ..faults.workload import BUSY, PAUSE_SECONDS, Customer, Publisher, Puller, Streamer, Worker
from ..history.checker import Violation
from ..history.records import Change, ClockBehind, Fault, Writer, now
from .content import Post, attributes_of, posts
from .hostile import ATTACKS, Attacker
from .motifs import Action

STEADY = "steady"  # the tenant who behaves, and must not notice what others do
PUBLISH_SECONDS = 30.0  # that a request is tried again for, where the service is busy or down
LAST_SECONDS = 180.0  # the same for the last event of a domain: what waits before it has to be matched first
START_SECONDS = LAST_RESORT_SECONDS
FIRST_BATCH_SECONDS = 60.0
GATEWAY_BOUND, DRIVER_BOUND, RESTART_BOUND = 30.0, 90.0, 120.0
FOREIGN = 409  # a status that says that something else is there


class FullError(Exception):
    """A tenant has as many domains with a placement of their own as it may have."""


class Sender(Publisher):
    """Publishes to one domain what it is given to, in order."""

    def __init__(self, name: str, client: Client, writer: Writer, *, tenant: str, domain: str, http: httpx2.Client):
        super().__init__(name, client, writer, tenant=tenant)
        self.domain = domain
        self.waiting: queue.Queue[Action] = queue.Queue()
        self.idle = True
        self._http = http
        self._next = 0

    def work(self) -> None:
        try:
            action = self.waiting.get(timeout=0.2)
        except queue.Empty:
            self.idle = True
            return
        self.idle = False
        self.stopped.wait(action.get("wait", 0.0))
        draw = random.Random(action["seed"])
        for post in posts(
            draw, action["shape"], action["form"], action["count"], action["size"], self.source, self._next
        ):
            first, self._next = self._next, self._next + len(post.records)
            taken = self._send(post, first, action.get("patience", PUBLISH_SECONDS))
            if taken is not None and post.repeatable and action.get("then"):
                self._once_more(post, first, action["then"])

    def publish_one(self) -> None:
        """An event that has nothing but its name: every domain takes it."""
        self.idle = False
        self.waiting.put(
            {"shape": "empty", "form": "structured", "count": 1, "size": 0, "seed": 0, "patience": LAST_SECONDS}
        )

    def _send(self, post: Post, first: int, patience_seconds: float = PUBLISH_SECONDS) -> list[int] | None:
        until = now() + patience_seconds
        numbered = [(first + row, record) for row, record in enumerate(post.records)]
        return self.attempt(
            self.domain,
            numbered,
            lambda: self._post(post),
            repeatable=post.repeatable,
            final=lambda status: status not in BUSY or now() > until,
        )

    def _once_more(self, post: Post, first: int, how: str) -> None:
        """The same request again, which changes nothing; or another body under the same ids, which is refused."""
        if how == "conflict" and not post.kind.endswith("xml"):
            records = [{**record, "conflict": True} for record in post.records]
            body = post.body.replace(b'"data":{', b'"data":{"conflict":true,')
            if body == post.body:
                return
            self._send(Post(post.kind, body, records, post.headers, True), first)
        elif how == "repeat":
            self._send(post, first)

    def _post(self, post: Post) -> list[int]:
        try:
            answer = self._http.post(
                f"/v1/domains/{self.domain}/events",
                content=post.body,
                headers={"content-type": post.kind, **post.headers},
            )
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise UnreachableError(str(self._http.base_url), str(error), sent=False) from None
        except httpx2.HTTPError as error:
            raise UnreachableError(str(self._http.base_url), str(error), sent=True) from None
        if answer.status_code != 200:
            raise ServiceError(answer.status_code, answer.text[:300])
        positions: list[int] = answer.json()["positions"]
        return positions


class Tenant(Worker):
    """Does what a tenant is to do, one after the other, whatever the operator does meanwhile."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(f"tenant {name}")
        self.waiting: queue.Queue[Action] = queue.Queue()
        self.idle = True
        self._world = world

    def work(self) -> None:
        try:
            action = self.waiting.get(timeout=0.2)
        except queue.Empty:
            self.idle = True
            return
        self.idle = False
        try:
            self._world.carry_out(action)
        except (ServiceError, UnreachableError) as refused:
            self._world.refused(action, refused)


@dataclass
class World(Run):
    """A run whose faults and changes are those of a schedule."""

    tokens: dict[str, str] = field(default_factory=dict)
    clock: Path | None = None
    senders: dict[tuple[str, str], Sender] = field(default_factory=dict)
    tenants: dict[str, Tenant] = field(default_factory=dict)
    customers: list[Customer] = field(default_factory=list)
    readers: dict[str, Puller | Streamer] = field(default_factory=dict)
    expiries: dict[str, float] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    broken: list[Fault] = field(default_factory=list)
    disk: Path | None = None
    planted: bool = False  # a bug is
    attacks: list[tuple[str, Counter[tuple[str, int]]]] = field(default_factory=list)  # with what was answered
    failed: int = 0  # subscriptions that the service says have failed
    jumped: bool = False  # the clock has, at some time
    clock_set: float = 0.0  # when it was set last
    _https: dict[str, httpx2.Client] = field(default_factory=dict)
    _domains: set[tuple[str, str]] = field(default_factory=set)

    # -- carrying out ------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Hand an action to its tenant, or do it here where it is the operator's."""
        if "tenant" in action:
            self.tenants[action["tenant"]].waiting.put(action)
        else:
            self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        method: Callable[[Action], None] = getattr(self, f"_do_{action['do']}")
        method(action)

    def refused(self, action: Action, why: Exception) -> None:
        self.refusals.append(f"{action['do']} {action.get('id') or action.get('domain')}: {why}"[:300])

    @property
    def is_idle(self) -> bool:
        """Whether tenants and publishers have done all that they were given to do."""
        workers: list[Tenant | Sender] = [*self.tenants.values(), *self.senders.values()]
        return all(worker.idle and worker.waiting.empty() for worker in workers)

    # -- domains and events ------------------------------------------------------------------------

    def _do_put(self, action: Action) -> None:
        tenant, domain = action["tenant"], action["domain"]
        form = {"attributes": attributes_of(action["shape"])}
        named = {"placement": action["placement"]} if "placement" in action else {}
        try:
            self._patiently(lambda: self._put(tenant, domain, form | named))
        except FullError:  # so many domains may name one
            self._patiently(lambda: self._put(tenant, domain, form))
        self._domains.add((tenant, domain))

    def _put(self, tenant: str, domain: str, form: dict[str, Any]) -> None:
        """By hand: the client would refuse to read a domain that the service should not have taken."""
        try:
            answer = self.http(tenant).put(f"/v1/domains/{domain}", json=form)
        except httpx2.HTTPError as error:
            raise UnreachableError(self.served.url, str(error), sent=True) from None
        if answer.status_code == 429 and answer.json().get("limit") == "placements":
            raise FullError
        if answer.status_code not in (200, 201):
            raise ServiceError(answer.status_code, answer.text[:300])

    def _do_delete_domain(self, action: Action) -> None:
        tenant, domain = action["tenant"], action["domain"]
        sender = self.senders.get((tenant, domain))
        while sender is not None and not (sender.idle and sender.waiting.empty()):
            time.sleep(0.05)
        with self._missing_is_fine():
            self._patiently(lambda: self.clients[tenant].delete_domain(domain))
        self._domains.discard((tenant, domain))

    def _do_publish(self, action: Action) -> None:
        self.sender(action["tenant"], action["domain"]).waiting.put(action)

    def sender(self, tenant: str, domain: str) -> Sender:
        key = (tenant, domain)
        if key not in self.senders:
            name, client, http = f"{tenant}-{domain}", self.clients[tenant], self.http(tenant)
            sender = Sender(name, client, self.writer, tenant=tenant, domain=domain, http=http)
            self.senders[key] = sender
            self._domains.add(key)
            sender.start()
        return self.senders[key]

    def http(self, tenant: str) -> httpx2.Client:
        """A tenant's connections, for what the client does not send."""
        if tenant not in self._https:
            headers = {"authorization": f"Bearer {self.tokens[tenant]}"}
            self._https[tenant] = httpx2.Client(base_url=self.served.url, headers=headers, timeout=30, trust_env=False)
        return self._https[tenant]

    # -- subscriptions -----------------------------------------------------------------------------

    def _do_subscribe(self, action: Action) -> None:
        tenant, id_, mode, filter_ = action["tenant"], action["id"], action["mode"], action["filter"]
        options: dict[str, Any] = {"mode": mode.partition("-")[0]}
        if mode == "webhook":
            options["url"] = self.receiver.url(id_)
        match action.get("start", "latest"):
            case "now":
                options |= {"start": dt.datetime.now(dt.UTC), "since": now()}
            case "latest":
                pass
            case start:
                options["start"] = start
        if "expires" in action:
            options["expires"] = dt.timedelta(seconds=action["expires"])
            self.expiries[id_] = now() + action["expires"] - 1.0
        made = self.subscribers[tenant].create(
            filter_["predicate"], id=id_, text=filter_["text"], domain=action["domain"], **options
        )
        if mode == "webhook":
            if made.secret is None:  # the answer that had it was lost: nobody can tell whether posts are right
                self._do_delete({"tenant": tenant, "id": id_})
                return
            self.receiver.expect(id_, made.secret, tenant)
            return
        self.readers[id_] = self._reader(tenant, id_, mode, away=action.get("away", False))

    def _reader(self, tenant: str, id_: str, mode: str, *, away: bool = False) -> Puller | Streamer:
        client = self.clients[tenant]
        if mode == "pull":
            puller = Puller(id_, client, self.writer, tenant=tenant)
            if away:
                puller.let.clear()
            self.pullers.append(puller)
            puller.start()
            return puller
        resume: Literal["last", "cursor"] = "last" if mode == "sse" else "cursor"
        streamer = Streamer(id_, client, self.writer, tenant=tenant, resume=resume, auto=mode == "sse-auto")
        self.streamers.append(streamer)
        streamer.start()
        return streamer

    def _known(self, action: Action) -> bool:
        """Whether a subscription was made, and is not deleted."""
        return action["id"] in self.subscribers[action["tenant"]].made and action["id"] not in self.gone

    @property
    def gone(self) -> set[str]:
        return {one.subscription for one in self.writer.records if isinstance(one, Change) and one.action == "delete"}

    def _do_edit(self, action: Action) -> None:
        if self._known(action):
            filter_ = action["filter"]
            self.subscribers[action["tenant"]].change(action["id"], filter_["predicate"], filter_["text"])

    def _do_pause(self, action: Action) -> None:
        if self._known(action):
            self.subscribers[action["tenant"]].pause(action["id"])

    def _do_resume(self, action: Action) -> None:
        if self._known(action):
            self.subscribers[action["tenant"]].resume(action["id"])

    def _do_delete(self, action: Action) -> None:
        if self._known(action):
            self.subscribers[action["tenant"]].delete(action["id"])
            reader = self.readers.get(action["id"])
            if reader is not None:
                reader.stopped.set()

    def _do_expired(self, action: Action) -> None:
        """Wait until the service says that it is; with a clock that jumped that may have been at any time since."""
        tenant, id_ = action["tenant"], action["id"]
        if not self._known(action):
            return
        until = now() + 60
        while self._patiently(lambda: self.clients[tenant].subscription(id_)).state != "expired" and now() < until:
            time.sleep(0.2)
        changes = [one for one in self.writer.records if isinstance(one, Change) and one.subscription == id_]
        created = max(one.sent for one in changes if one.action == "create")  # tried again where the service was away
        self.subscribers[tenant].saw_expired(id_, created if self.jumped else max(created, self.expiries[id_]))

    # -- readers and receivers ---------------------------------------------------------------------

    def _do_stall(self, action: Action) -> None:
        reader = self.readers.get(action["id"])
        if isinstance(reader, Streamer):
            reader.stalls.append((action["seconds"], action["hang_up"]))
        elif reader is not None:
            reader.let.clear()
            timer = threading.Timer(action["seconds"], reader.let.set)
            timer.daemon = True
            timer.start()

    def _do_return(self, action: Action) -> None:
        reader = self.readers.get(action["id"])
        if isinstance(reader, Puller):
            reader.let.set()

    def _do_receiver(self, action: Action) -> None:
        id_, how = action["id"], action["how"]
        if how == "410":
            self.receiver.gone.add(id_)
        else:
            self.receiver.own[id_] = how

    def _do_hostile(self, action: Action) -> None:
        attacker = Attacker(self.served.port, self.tokens[action["tenant"]])
        threading.Thread(target=self._attack, args=(action["kind"], attacker), daemon=True).start()

    def _attack(self, kind: str, attacker: Attacker) -> None:
        with contextlib.suppress(OSError):
            ATTACKS[kind](attacker)
        self.attacks.append((kind, attacker.answers))
        self.wrong += [Violation("attack", f"{kind}: {useless}") for useless in attacker.useless()]

    # -- what the operator does, and what breaks ---------------------------------------------------

    @contextlib.contextmanager
    def _breaking(self, name: str, bound_seconds: float) -> Iterator[None]:
        began = now()
        yield
        self.broken.append(Fault(name, began, now(), bound_seconds, tenant=STEADY))

    def _do_restart(self, action: Action) -> None:
        if "when_quiet" in action:
            self._await_first_batch(action["when_quiet"])
        with self._breaking("stopped and started", RESTART_BOUND):
            status = self.served.stop() if self.served.runs else 0
            if status != 0:
                self.wrong.append(Violation("exit", f"SIGTERM ended the service with status {status}"))
            self._start()

    def _await_first_batch(self, key: str) -> None:
        """Until a stream that the domain has for itself has done its first batch, in which there may be no event."""
        query, until = self.served.data / "domains" / key / "query", now() + FIRST_BATCH_SECONDS
        while query.exists() and not any(query.glob("commits/[0-9]*")) and now() < until:
            time.sleep(PAUSE_SECONDS)

    def _do_kill_all(self, action: Action) -> None:
        with self._breaking("everything killed", RESTART_BOUND):
            self.served.kill()
            self._start()

    def _do_kill(self, action: Action) -> None:
        process, number = action["process"], signal.Signals[action.get("signal", "SIGKILL")]
        with self._breaking(f"{number.name} to {process}", GATEWAY_BOUND if process == "gateway" else DRIVER_BOUND):
            for pid in self.served.processes(process)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if process == "supervisor":
                self.served.kill()  # its children end by themselves, and may take their time
                self._start()

    def _start(self) -> None:
        """Start it, once more where what a kill has left is not gone yet."""
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                self.served.start()
                return
            except NotStartedError:
                self.served.kill()
                if time.monotonic() > until:
                    raise
                time.sleep(1.0)

    def _do_fill_disk(self, action: Action) -> None:
        if self.disk is None:
            return  # only a file system of its own may be filled
        with self._breaking("disk full", DRIVER_BOUND), damage.full_disk(self.disk):
            time.sleep(action["seconds"])

    def _do_clock(self, action: Action) -> None:
        assert self.clock is not None
        self.jumped = True
        with self._breaking(f"clock {action['seconds']:+} s", GATEWAY_BOUND):
            self._set_clock(action["seconds"])

    def _set_clock(self, seconds: float) -> None:
        assert self.clock is not None
        at, before = now(), float(self.clock.read_text())
        self.clock.write_text(str(seconds))
        if before < 0:
            self.writer.write(ClockBehind(self.clock_set, now()))
        self.clock_set = at

    # -- waiting -----------------------------------------------------------------------------------

    def _patiently(self, work: Callable[[], Any]) -> Any:
        """Until it is answered, or refused for good."""
        until = now() + 120.0
        while True:
            try:
                return work()
            except UnreachableError:
                pass
            except ServiceError as error:
                if error.status not in BUSY and error.status != 500:
                    raise
                if now() > until:
                    raise
            time.sleep(PAUSE_SECONDS)

    @contextlib.contextmanager
    def _missing_is_fine(self) -> Iterator[None]:
        try:
            yield
        except ServiceError as error:
            if error.status not in (404, FOREIGN):
                raise

    def whole_again(self) -> None:
        """Nothing is broken any more, and nobody is away: what is owed can come."""
        if self.clock is not None:
            self._set_clock(0)
        self.receiver.own.clear()
        for puller in self.pullers:
            puller.let.set()
        for streamer in self.streamers:
            streamer.stalls.clear()
        if not self.served.runs:
            self._start()
        self._repair_receivers()

    def _repair_receivers(self) -> None:
        """Change the delivery of what a receiver's 410 has disabled: all that waited is owed, and comes."""
        for tenant, subscriber in self.subscribers.items():
            for id_ in sorted(self.receiver.gone & subscriber.made.keys() - self.gone):
                client, url = self.clients[tenant], self.receiver.url(id_)
                self.receiver.gone.discard(id_)
                with self._missing_is_fine():
                    self._patiently(lambda client=client, id_=id_, url=url: client.change(id_, mode="webhook", url=url))

    def stop_workers(self) -> None:
        super().stop_workers()
        for worker in (*self.tenants.values(), *self.senders.values(), *self.customers):
            worker.stop()

    @property
    def domains(self) -> set[tuple[str, str]]:
        return set(self._domains)
