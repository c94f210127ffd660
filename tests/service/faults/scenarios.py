"""The faults, each a function that breaks something while publishers and subscribers are at work."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from ..history.checker import Violation
from ..history.judge import sql
from . import damage
from .process import NotStartedError
from .run import Result, Run, Size, finish, running
from .workload import DOMAIN, Publisher

GATEWAY_BOUND, DRIVER_BOUND, RESTART_BOUND = 20.0, 60.0, 90.0  # seconds
WEBHOOK_BOUND = 40.0  # an attempt has 15 seconds, and what failed once is tried again after 4 to 6
COSTLY, OVERLOAD_SECONDS = 250, 15.0
VIEW_BOUND = 180.0  # jobs that adapt, every few seconds here, have the same cores
OWN = ("--share-up-to", "0")  # every domain has a stream of its own
ADAPTING = ("--adapt-every", "10", "--placement", "bluedove", *OWN)
VIEW_SECONDS = 180.0  # that a View may take to be made, on a machine that does other things

Inject = Callable[[Run], None]


@dataclass(frozen=True)
class Scenario:
    name: str
    inject: Inject
    size: Size = field(default_factory=Size)
    master: str = "local[2]"
    options: tuple[str, ...] = ()  # of `tidings serve`
    small_disk_megabytes: int | None = None
    workers: int = 0  # of a Spark cluster of its own, in place of the master
    long: bool = False  # too long for the ordinary tests even in small


def gateway_killed(run: Run) -> None:
    """At four points of an append and a delivery; the process is held there, and killed while it is."""
    run.add_webhook([">", "price", 30])
    for point, name in (
        ("append-written", "gateway killed before an append is on the disk"),
        ("append-committed", "gateway killed when it is, and not noted yet"),
        ("append-durable", "gateway killed before an append is answered"),
        ("delivered", "gateway killed between delivery and acknowledgement"),
    ):
        with run.fault(name, bound_seconds=GATEWAY_BOUND):
            run.served.kill_at(point, "gateway")
        run.wait_for_recovery()


def driver_killed(run: Run) -> None:
    """At three points of a micro-batch, and while it starts again."""
    for point, name in (
        ("batch-planned", "driver killed when a batch is planned, and not noted yet"),
        ("batch-matched", "driver killed in the middle of a batch"),
        ("batch-loaded", "driver killed between the sink's commit and the checkpoint's"),
    ):
        with run.fault(name, bound_seconds=DRIVER_BOUND):
            run.served.kill_at(point, "driver")
        run.wait_for_recovery()
    with run.fault("driver killed while it starts", bound_seconds=DRIVER_BOUND):
        first = run.served.kill_child("driver")
        until = time.monotonic() + 30
        while run.served.pid_of("driver") in (None, first) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(3.0)
        run.served.kill_child("driver")
    run.wait_for_recovery()


def everything_killed(run: Run) -> None:
    with run.fault("everything killed", bound_seconds=RESTART_BOUND):
        run.served.kill()
    run.served.start()
    run.wait_for_recovery()


def log_tail_torn(run: Run) -> None:
    """What was never acknowledged is cut off without a word; nothing else is."""
    run.served.kill()
    with run.fault("log tail torn", bound_seconds=RESTART_BOUND):
        damage.tear_tail(run.served.data / "log")
    run.served.start()
    run.wait_for_recovery()


def log_bits_flipped(run: Run) -> None:
    """It is noticed, and the service does not serve a log that has lost what was acknowledged."""
    for publisher in run.publishers:
        publisher.let.clear()  # what was appended to a damaged log would be lost with it
    run.served.kill()
    log, copy = run.served.data / "log", run.folder / "log-copy"
    shutil.copytree(log, copy)
    with run.fault("log bits flipped, then restored", bound_seconds=RESTART_BOUND):
        damage.flip_bits(log)
        expect_refusal(run)
        run.served.kill()
        shutil.rmtree(log)
        shutil.copytree(copy, log)
    for publisher in run.publishers:
        publisher.let.set()
    run.served.start()
    run.wait_for_recovery()


def expect_refusal(run: Run) -> None:
    """A service that is started now says that it cannot serve, and does not."""
    try:
        run.served.start(wait=False)
        run.served.wait_until_ready(30.0)
    except NotStartedError as refused:
        run.notes.append("refused as it must: " + str(refused).strip().splitlines()[-1][:200])
    else:
        run.wrong.append(Violation("damage", "served with flipped bits: " + _health(run)))


def checkpoint_lost(run: Run) -> None:
    _checkpoint(run, "checkpoint lost", damage.lose_checkpoint)


def checkpoint_truncated(run: Run) -> None:
    _checkpoint(run, "checkpoint truncated", damage.truncate_checkpoint)


def _checkpoint(run: Run, name: str, break_: Callable[[Path], None]) -> None:
    """The stream goes on by itself from what the mailboxes have: the one that is shared, and then the domain's own."""
    for kind, options in (("shared by small domains", ()), ("of the domain alone", OWN)):
        with run.fault(f"{name}, {kind}", bound_seconds=RESTART_BOUND):
            run.served.kill()
            own = run.served.data / "domains" / run.key / "query"
            break_(own if own.exists() else run.served.data / "shared" / "query")
            run.served.start(*options)
        run.wait_for_recovery()


def disk_full(run: Run) -> None:
    """Nothing is acknowledged that is not on the disk; when there is room again, all goes on."""
    with damage.full_disk(run.served.data):
        time.sleep(6.0)
        with run.fault("disk full", bound_seconds=DRIVER_BOUND):
            pass
    run.wait_for_recovery()
    statuses = {status for publisher in run.publishers for status in publisher.refused}
    run.notes.append(f"publishers were answered {sorted(statuses)} meanwhile")


def stores_locked(run: Run) -> None:
    """The catalogue, the cursors and the mailboxes, each held by somebody else for longer than anybody waits for it."""
    data = run.served.data
    for store, seconds in (("catalogue", 8.0), ("deliveries", 33.0), (f"domains/{run.key}/mailboxes", 33.0)):
        path = data / f"{store}.sqlite"
        with run.fault(f"{path.name} locked for {seconds:g} s", bound_seconds=DRIVER_BOUND), damage.locked(path):
            time.sleep(seconds)
        run.wait_for_recovery()


def webhooks_misbehave(run: Run) -> None:
    """A receiver in trouble gets everything once it is out of it; one that says it is gone is left alone."""
    ids = [run.add_webhook(["=", "price", price]) for price in (7, 42)] + [run.add_webhook([">", "price", 90])]
    run.notes.append(f"{len(ids)} webhooks")
    time.sleep(2.0)
    for behaviour in ("500", "closes", "redirects", "slow", "endless body", "hangs"):
        with run.fault(f"webhook {behaviour}", bound_seconds=WEBHOOK_BOUND, channel="webhook"):
            run.receiver.behaviour = behaviour
            time.sleep(2.0)
            run.receiver.behaviour = "well"
        run.wait_for_recovery()
        # Until all that failed was tried again, lest it fails twice and waits for much longer.
        time.sleep(20.0 if behaviour == "hangs" else 6.0)
    leaving = run.add_webhook(["true"])
    with run.fault("webhook gone (410)", bound_seconds=WEBHOOK_BOUND, channel="webhook"):
        run.receiver.gone.add(leaving)
        run.wait_until(lambda: run.clients["default"].subscription(leaving).state == "disabled", 20.0)
        run.subscribers["default"].saw_disabled(leaving)
    run.wait_for_recovery()


def subscribers_reconnect(run: Run) -> None:
    run.add_streamer(["true"], hang_up_after=20)
    run.add_streamer(["in", "symbol", ["OIL", "TEA"]], hang_up_after=1)
    with run.fault("subscribers hang up", bound_seconds=GATEWAY_BOUND):
        time.sleep(4.0)
    run.wait_for_recovery()
    with run.fault("gateway killed under streams", bound_seconds=GATEWAY_BOUND):
        run.served.kill_child("gateway")
    run.wait_for_recovery()
    run.notes.append(f"{sum(streamer.connections for streamer in run.streamers)} connections")


def subscriptions_changed(run: Run) -> None:
    """Filters change in the middle of batches, subscriptions come, pause and go, and the driver is killed at it."""
    subscriber = run.subscribers["default"]
    ids = list(subscriber.made)
    with run.fault("subscriptions changed in the middle of a batch", bound_seconds=GATEWAY_BOUND):
        for number in range(4):
            with run.served.held_at("batch-matched"):
                subscriber.change(ids[number], run.size.predicates(run.draw))
                run.add_puller(run.size.predicates(run.draw))
                time.sleep(0.3)  # for the index to have them, while the batch has not
    run.wait_for_recovery()
    with run.fault("subscriptions changed, then driver killed in the middle of a batch", bound_seconds=DRIVER_BOUND):
        for number in range(40):
            subscriber.change(run.draw.choice(ids[:4]), run.size.predicates(run.draw))
            if number % 10 == 3:
                run.add_puller(run.size.predicates(run.draw))
            if number % 10 == 6:
                subscriber.pause(ids[5])
            if number % 10 == 8:
                subscriber.resume(ids[5])
        with run.served.held_at("batch-matched"):
            subscriber.change(ids[1], run.size.predicates(run.draw))
            subscriber.delete(ids[6])
            run.served.kill_child("driver")
        subscriber.change(ids[0], ["true"])
    run.wait_for_recovery()
    run.add_puller(["<", "price", 20], start="earliest")


def poison(run: Run) -> None:
    """What nobody should send: refused, or matched like anything else; others never notice."""
    events: list[Any] = [
        {"symbol": 7, "price": 1}, {"symbol": "OIL", "price": "many"}, {"price": 1.5}, {"price": 2**63},
        {"symbol": {"nested": "OIL"}}, [[]], ["OIL"], 7, None, {"specversion": "1.0", "data": {"price": 1}},
    ]  # fmt: skip
    with run.fault("poison events and filters", bound_seconds=GATEWAY_BOUND), httpx2.Client(trust_env=False) as http:
        token = {"authorization": f"Bearer {run.served.token_file.read_text().strip()}"}
        at = f"{run.served.url}/v1/domains/{DOMAIN}/events"
        for event in events:
            answer = http.post(at, json=event, headers=token)
            assert 400 <= answer.status_code < 500, (event, answer.status_code, answer.text)
        for body in (b"{", b'{"price": 1e400}', b'{"price": NaN}', b"\xff", b'{"a":' * 100 + b"1" + b"}" * 100):
            answer = http.post(at, content=body, headers={**token, "content-type": "application/json"})
            assert answer.status_code == 400, (body[:30], answer.status_code, answer.text)
        for filter_ in (
            "price >", "prise > 1", "price > 'x' OR", "java_method('a','b')", "(" * 300, "price = ''); --",
            "CAST(symbol AS INT) > 3",
        ):  # fmt: skip
            answer = http.post(
                f"{run.served.url}/v1/subscriptions", json={"domain": DOMAIN, "filter": filter_}, headers=token
            )
            assert answer.status_code in (400, 422), (filter_, answer.status_code, answer.text)
        never = ["not", ["true"]]
        for text in ("symbol RLIKE '(a+)+$'", "price / 0 = 1"):
            run.pull(run.subscribers["default"].create(never, text=text).id)
        many = ["or", *(["=", "price", number] for number in range(0, 100, 3))]
        run.pull(run.subscribers["default"].create(many, text=sql(many)).id)
        odd = [
            {"symbol": "OIL" * 100_000, "price": 1},
            {"symbol": "\u0000\u2028\U0001f6e2'); --", "price": -(2**63)},
            {"symbol": None, "price": None, "size": -0.0},
            {"price": 2**63 - 1, "size": 1e308, "more": {"a": [1]}},
            {},
        ]
        Publisher("odd", run.clients["default"], run.writer).publish(odd)
    run.wait_for_recovery()


def overload(run: Run) -> None:
    """Ten times as much as can be matched, for a while: what is too much is refused, and what is taken is delivered.

    Costly filters that match nothing bring matching down to about a thousand events a second.
    """
    for number in range(COSTLY):
        parts = (f"length(symbol) * price + size * {number} < -{part}" for part in range(1, 11))
        run.clients["default"].subscribe(DOMAIN, " OR ".join(parts))
    with run.fault("10× overload", bound_seconds=RESTART_BOUND):
        before = run.matched()
        crowd = [run.add_publisher(batch=1000, pause_seconds=0.0) for _ in range(6)]
        time.sleep(OVERLOAD_SECONDS)
        matched = run.matched() - before
        for publisher in crowd:
            publisher.stopped.set()
        for publisher in crowd:
            publisher.stop()
    run.wait_for_recovery()
    taken, refused = sum(publisher.acked for publisher in crowd), _refusals(crowd)
    run.notes.append(f"in {OVERLOAD_SECONDS:g} s {taken:,} events taken, {matched:,} matched; refused {refused}")
    assert refused.get(429), "nothing was too much: this is no overload"


def executor_killed(run: Run) -> None:
    with run.fault("executor killed", bound_seconds=DRIVER_BOUND):
        executors = run.served.executors()
        assert executors, "there are no executors to kill"
        os.kill(executors[0], signal.SIGKILL)
    run.wait_for_recovery()


def view_changed(run: Run) -> None:
    """The driver is killed at every step of a change from no View to one, and from one to another."""
    for point, name in (
        ("view-built", "driver killed when a View's files are there, and no version names it"),
        ("view-published", "driver killed when a version names a View, and no batch has it"),
        ("view-matched", "driver killed in the middle of a batch under a new View"),
    ):
        with run.fault(name, bound_seconds=VIEW_BOUND):
            run.served.kill_at(point, "driver")
        run.wait_for_recovery()
    run.wait_until(lambda: _view(run) == "bluedove", VIEW_SECONDS)
    run.served.stop()
    run.served.start("--placement", "digests", *OWN)
    with run.fault("driver killed from one View to the next", bound_seconds=VIEW_BOUND):
        run.served.kill_at("view-published", "driver")
    run.wait_for_recovery()
    run.wait_until(lambda: _view(run) == "digests", VIEW_SECONDS)


def executors_change(run: Run) -> None:
    """An executor joins, so that a View of more partitions is made, and another goes before that is in force; then the
    same while a batch is matched by it."""
    assert run.cluster is not None
    run.wait_until(lambda: bool(_epochs(run)) and 0 not in _epochs(run).values(), VIEW_SECONDS)
    before = _epochs(run)
    with run.fault("executor added and another killed before a new View is in force", bound_seconds=VIEW_BOUND):
        run.cluster.add_worker()
        with run.served.held_at("view-built"):
            run.cluster.kill_worker()
    run.wait_for_recovery()
    run.wait_until(lambda: _epochs(run) != before, VIEW_SECONDS)
    with run.fault("executor added and another killed in a batch under a View", bound_seconds=VIEW_BOUND):
        run.cluster.add_worker()
        with run.served.held_at("view-matched"):
            run.cluster.kill_worker()
    run.wait_for_recovery()
    run.notes.append(f"Views: {before}, then {_epochs(run)}")


FEW = Size(
    subscriptions=6, predicates=lambda draw: ["and", ["=", "price", draw.randint(0, 99)], ["=", "symbol", "OIL"]]
)

SCENARIOS = (
    Scenario("gateway killed", gateway_killed),
    Scenario("driver killed", driver_killed),
    Scenario("everything killed", everything_killed),
    Scenario("executor killed", executor_killed, master="local-cluster[2,1,1024]", long=True),
    Scenario("log tail torn", log_tail_torn),
    Scenario("log bits flipped", log_bits_flipped),
    Scenario("checkpoint lost", checkpoint_lost),
    Scenario("checkpoint truncated", checkpoint_truncated),
    Scenario("disk full", disk_full, small_disk_megabytes=256),
    Scenario("stores locked", stores_locked),
    Scenario("webhooks misbehave", webhooks_misbehave, long=True),
    Scenario("subscribers reconnect", subscribers_reconnect),
    Scenario("subscriptions changed", subscriptions_changed),
    Scenario("poison", poison),
    Scenario("overload", overload, size=FEW, long=True, options=("--max-lag", "20000")),
    # Jobs that adapt have the cores every few seconds here, so that the next delivery takes longer.
    Scenario("view changed", view_changed, options=ADAPTING, long=True),
    Scenario("executors change", executors_change, options=ADAPTING, workers=1, long=True),
)


def run_scenario(scenario: Scenario, folder: Path, *, timed: bool = True) -> Result:
    """Run one in a folder; `timed` judges seconds too."""
    if scenario.small_disk_megabytes is not None:
        with damage.small_disk(folder / "disk", scenario.small_disk_megabytes):
            return _run(scenario, folder, folder / "disk" / "data", timed)
    return _run(scenario, folder, folder / "data", timed)


def _run(scenario: Scenario, folder: Path, data: Path, timed: bool) -> Result:
    given = {"data": data, "master": scenario.master, "options": scenario.options, "workers": scenario.workers}
    with running(folder, scenario.size, **given) as run:  # type: ignore[arg-type]
        time.sleep(scenario.size.before_seconds)
        scenario.inject(run)
        time.sleep(scenario.size.after_seconds)
        return finish(run, scenario.name, timed=timed)


def skipped(scenario: Scenario) -> str | None:
    """Why a scenario cannot be run here."""
    if scenario.small_disk_megabytes is not None and not damage.can_mount():
        return "a small file system needs root"
    return None


def _view(run: Run) -> str | None:
    """The placement of the View in force, of the first tenant's domain."""
    domains = run.served.driver_status().get("domains")
    return domains.get(run.key, {}).get("view") if isinstance(domains, dict) else None


def _epochs(run: Run) -> dict[str, int]:
    """Of the Views in force, by domain; 0 where there is none."""
    domains = run.served.driver_status().get("domains")
    return {key: one.get("view_epoch", 0) for key, one in domains.items()} if isinstance(domains, dict) else {}


def _health(run: Run) -> str:
    try:
        return str(run.clients["default"].health().json)[:300]
    except Exception as error:
        return str(error)[:300]


def _refusals(publishers: list[Any]) -> dict[int, int]:
    found: dict[int, int] = {}
    for publisher in publishers:
        for status, count in publisher.refused.items():
            found[status] = found.get(status, 0) + count
    return found
