"""A schedule from start to end: serve, act, settle, stop, read the log, check."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.waiting import LAST_RESORT_SECONDS

from tidings.client import ServiceError
from tidings.store.catalogue import Catalogue

from ..faults import damage
from ..faults.process import Served
from ..faults.run import LIMITS, KeptWriter, Size
from ..faults.webhook import Receiver
from ..faults.workload import ATTRIBUTES, DOMAIN, Customer, Publisher, Subscriber, client_of
from ..history.checker import Report, Violation, check_files
from ..history.history import History
from ..history.invariants import delivery_seconds, percentile
from ..history.records import DeadFor, Delivery, Fault, Limit, LogEnds, Phase, now
from . import meaning
from .motifs import TENANTS, Action
from .schedule import WARM_UP_SECONDS, Schedule, kinds
from .world import RESTART_BOUND, STEADY, Tenant, World

assert meaning.interpreted  # the checker's judge knows filters by their texts
HOOKS = Path(__file__).parent / "hooks"
WEBHOOKS = {
    "backoff_seconds": [0.5, 1, 2, 4] + [5] * 30,
    "probe_seconds": 2.0,
    "max_retry_after_seconds": 5.0,
}
DISK_MEGABYTES = 1500
FIRST_SECONDS = IDLE_SECONDS = SETTLE_SECONDS = LAST_RESORT_SECONDS
MAX_LAG = 2000


@dataclass(frozen=True)
class Outcome:
    """What came of a schedule."""

    schedule: Schedule
    report: Report
    seconds: float
    notes: list[str]
    records: Path
    refusals: list[str]
    dead_letters: int = 0
    failed: int = 0  # subscriptions that were set aside
    attacks: dict[str, dict[str, int]] = field(default_factory=dict)  # how often each status was answered
    p99_alone_seconds: float | None = None
    p99_beside_seconds: float | None = None

    def row(self) -> dict[str, Any]:
        return {
            "seed": self.schedule.seed,
            "seconds": round(self.seconds),
            "options": " ".join(self.schedule.options),
            "sharing": self.schedule.sharing,
            "actions": kinds(self.schedule),
            "motifs": self.schedule.motifs,
            "events": sum(self.report.outcomes.values()),
            "acknowledged": self.report.outcomes["acked"],
            "notifications": self.report.deliveries,
            "dead_letters": self.dead_letters,
            "failed": self.failed,
            "attacks": self.attacks,
            "violations": len(self.report.violations),
            "refused_requests": len(self.refusals),
            "faults": len(self.report.recoveries),
            "slowest_recovery_seconds": round(max((s or 0 for s in self.report.recoveries.values()), default=0), 1),
            "p99_alone_seconds": _rounded(self.p99_alone_seconds),
            "p99_beside_seconds": _rounded(self.p99_beside_seconds),
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None or seconds != seconds else round(seconds, 2)


def torture(
    schedule: Schedule, folder: Path, *, planted: str | None = None, settle_seconds: float = SETTLE_SECONDS
) -> Outcome:
    """Carry a schedule out in a folder, which keeps the histories, the data and what the service said."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedule.txt").write_text("\n".join(schedule.lines()) + "\n")
    began = time.monotonic()
    with _world(schedule, folder, planted) as world:
        _act(world, schedule)
        _settle(world, settle_seconds)
        if planted is None:
            world.writer.write(DeadFor(expected_reasons(schedule)))
        report = _finish(world, schedule)
        history = History(world.writer.records)
        return Outcome(
            schedule, report, time.monotonic() - began, world.notes, world.writer.path, world.refusals,
            len({(one.subscription, one.position) for one in history.dead}), world.failed, _answers(world),
            percentile(delivery_seconds(history, STEADY, "alone"), 0.99) if schedule.alone_seconds else None,
            percentile(delivery_seconds(history, STEADY, "beside"), 0.99) if schedule.alone_seconds else None,
        )  # fmt: skip


def _answers(world: World) -> dict[str, dict[str, int]]:
    """Of each attack that is done, how often each status was answered; 0: no answer."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, answers in world.attacks:
        for (_, status), count in answers.items():
            found[kind][str(status)] += count
    return {kind: dict(sorted(statuses.items())) for kind, statuses in sorted(found.items())}


@contextlib.contextmanager
def _world(schedule: Schedule, folder: Path, planted: str | None) -> Iterator[World]:
    clock = folder / "clock"
    clock.write_text("0")
    settings = {
        "tidings.service.gateway.gateway_settings": {"WebhookSettings": WEBHOOKS, "Settings": {"retain_seconds": 2.0}},
        "tidings.service.driver.stream_assignment": {"Sharing": schedule.sharing},
    }
    environment = {"TIDINGS_CLOCK": str(clock), "TIDINGS_TORTURE_SETTINGS": json.dumps(settings)}
    hooks = [HOOKS / "clock.py", HOOKS / "settings.py"]
    if planted is not None:
        environment["TIDINGS_PLANTED"] = planted
        hooks.append(HOOKS / "planted.py")
    with contextlib.ExitStack() as opened:
        disk: Path | None = None
        if any(action["do"] == "fill_disk" for action in schedule.actions) and damage.can_mount():
            disk = folder / "disk"
            opened.enter_context(damage.small_disk(disk, DISK_MEGABYTES))
        options = ("--max-lag", str(MAX_LAG), *schedule.options)
        served = Served((disk or folder) / "data", options=options, hooks=hooks, environment=environment)
        served.output = folder / "data.log"
        writer = KeptWriter(folder / "history.jsonl")
        opened.callback(writer.close)
        opened.callback(served.kill)
        served.start()
        with Catalogue(served.data / "catalogue.sqlite") as catalogue:
            tokens = {name: catalogue.create_token(name) for name in (STEADY, *TENANTS)}
        clients = {
            name: opened.enter_context(client_of(served.url, token, timeout=30)) for name, token in tokens.items()
        }
        receiver = Receiver(writer)
        opened.callback(receiver.close)
        subscribers = {name: Subscriber(client, writer, name) for name, client in clients.items()}
        world = World(
            folder, served, Size(), writer, clients, subscribers, receiver, tokens=tokens, clock=clock, disk=disk,
            planted=planted is not None,
        )  # fmt: skip
        opened.callback(_stop, world)
        for name in TENANTS:
            world.tenants[name] = Tenant(name, world)
            world.tenants[name].start()
        stopped = threading.Event()
        sampler = threading.Thread(target=world.sample, args=(stopped,), daemon=True)
        opened.callback(sampler.join)
        opened.callback(stopped.set)
        writer.write(*(Limit(what, largest) for what, largest in LIMITS.items()))
        sampler.start()
        yield world


def _stop(world: World) -> None:
    with contextlib.suppress(AssertionError):
        world.stop_workers()


def _act(world: World, schedule: Schedule) -> None:
    """Carry out every action when its time has come, or as soon after as can be."""
    _carry_out(world, schedule.before)
    _begin(world)
    start = time.monotonic()
    _carry_out(world, schedule.actions)
    time.sleep(max(0.0, start + min(schedule.seconds, _last(schedule)) - time.monotonic()))
    if schedule.alone_seconds:
        alone, beside = start + schedule.alone_seconds, start + schedule.alone_seconds + schedule.beside_seconds
        first = min((fault.began for fault in world.broken if fault.began > start), default=beside)
        world.writer.write(
            Phase("alone", STEADY, start + WARM_UP_SECONDS, alone), Phase("beside", STEADY, alone, min(beside, first))
        )


def _carry_out(world: World, actions: Sequence[Action]) -> None:
    start = time.monotonic()
    for action in actions:
        time.sleep(max(0.0, start + action["at"] - time.monotonic()))
        world.act(action)


def _begin(world: World) -> None:
    """Have the steady tenant publish and subscribe, and wait until it gets something."""
    client = world.clients[STEADY]
    client.put_domain(DOMAIN, ATTRIBUTES)
    for predicate in (["true"], [">", "price", 50], ["in", "symbol", ["OIL", "TEA"]]):
        world.add_puller(predicate, STEADY)
    publisher = Publisher(STEADY, client, world.writer, tenant=STEADY, batch=2, pause_seconds=0.3)
    world.publishers.append(publisher)
    publisher.start()
    world.customers.append(Customer(client, world.writer, tenant=STEADY))
    world.customers[-1].start()
    until = time.monotonic() + FIRST_SECONDS
    while not any(isinstance(one, Delivery) and one.tenant == STEADY for one in world.writer.records):
        if time.monotonic() > until:
            world.notes.append(f"the steady tenant got nothing within {FIRST_SECONDS:g} s")
            return
        time.sleep(0.2)


def _last(schedule: Schedule) -> float:
    return max((float(action["at"]) for action in schedule.actions), default=0.0)


def _settle(world: World, seconds: float) -> None:
    """Nothing is broken, everybody reads, and each domain takes one event more, which is delivered."""
    world.whole_again()
    until = time.monotonic() + IDLE_SECONDS
    while not world.is_idle and time.monotonic() < until:
        time.sleep(0.2)
    if not world.is_idle:
        world.notes.append(f"tenants were not done after {IDLE_SECONDS:g} s")
    _write_faults(world)
    ended = now()
    for tenant, domain in sorted(world.domains):
        _witness(world, tenant, domain, ended)
    _see_states(world)
    world.drain(seconds)


def _write_faults(world: World) -> None:
    world.faults += judged_faults(world.broken)
    world.writer.write(*world.faults)


def judged_faults(broken: Sequence[Fault]) -> list[Fault]:
    """Faults of which nothing else broke before recovery was due; others count as part of the next.

    Recovery from several is due when it was due from each of them: a clock that is set right while the service starts
    does not make it start sooner.
    """
    judged: list[Fault] = []
    due = 0.0  # recovery from this fault and from those before it that count as part of it
    for number, fault in enumerate(broken):
        due = max(due, fault.over + fault.bound_seconds)
        if number + 1 == len(broken) or broken[number + 1].began > due:
            named = f"{number + 1}: {fault.name}"
            judged.append(replace(fault, name=named, bound_seconds=due - fault.over, tenant=STEADY))
    return judged


def _witness(world: World, tenant: str, domain: str, since: float) -> None:
    """A subscription to everything, and one event: a domain that is there takes and delivers it."""
    sender = world.sender(tenant, domain)
    id_ = f"witness-{tenant}-{domain}"
    try:
        world.carry_out(
            {"do": "subscribe", "tenant": tenant, "domain": domain, "id": id_, "mode": "pull",
             "filter": {"text": "TRUE", "predicate": ["true"]}}
        )  # fmt: skip
    except ServiceError as error:
        if error.status == 404:
            return  # it was deleted, or never made
        world.notes.append(f"{tenant}.{domain} takes no subscription: {error}")
    sender.publish_one()
    world.writer.write(Fault(f"the end, in {tenant}.{domain}", since, since, RESTART_BOUND, None, tenant, domain))


def _see_states(world: World) -> None:
    """Write down what the service says of subscriptions that it delivers no more."""
    for tenant, subscriber in world.subscribers.items():
        for id_ in subscriber.made.keys() - world.gone:
            with contextlib.suppress(ServiceError):
                seen = world.clients[tenant].subscription(id_)
                if seen.state not in ("active", "expired", "paused"):
                    world.notes.append(f"subscription {id_} is {seen.state}")
                if seen.state == "failed":
                    world.failed += 1
                    if not world.planted:  # a planted bug may be one that the service is to live with
                        subscriber.saw_failed(id_, str(seen.json.get("failed")))


def expected_reasons(schedule: Schedule) -> list[str]:
    """How the reasons begin for which dead letters may come of a schedule; nothing else may be one.

    Readers come back, receivers are well again before the last attempt, and no mailbox gets full: what is dead all the
    same was given up wrongly.
    """
    reasons = ["the event was removed from the log"] if schedule.retains else []
    if any(action["motif"] == "retyped" for action in schedule.actions):
        reasons.append("the event could not be matched")
    return reasons


def _finish(world: World, schedule: Schedule) -> Report:
    """Stop the service as a user does, read the log, and check everything."""
    health = world.clients[STEADY].health().json
    if health["status"] != "ok":
        world.wrong.append(Violation("health", f"when nothing is broken any more it is {health}"[:500]))
    world.stop_workers()
    world.stop_service()
    world.write_log()
    if schedule.retains:
        ends = [one for one in world.writer.records if isinstance(one, LogEnds)]
        world.writer.write(*(LogEnds(one.start, one.end, retained=True) for one in ends))
    report = check_files([world.writer.path], timed=bool(schedule.alone_seconds))
    report.violations.extend(world.wrong)
    if report.violations and world.disk is not None:  # which is a file system that goes with this run
        shutil.copytree(world.served.data, world.folder / "data", ignore_dangling_symlinks=True)
    return report
