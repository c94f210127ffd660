"""Plays a plan: no law is broken, and deliveries are what the judge demands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from time import perf_counter
from typing import Any

from tidings.simulator.judge import Interested, Judge, Publication
from tidings.simulator.measures import RunMeasures
from tidings.simulator.scenario import Scenario, ScheduledStep, conditions_of, pool_of, schedule, timetable
from tidings.simulator.trace import Trace
from tidings.simulator.world import Network, World
from tidings.systems.overlay import LOSSLESS, MemoryLog, Start, Violation, overlay_named
from tidings.systems.protocols.content import ExactChecks
from tidings.systems.protocols.effects import Event, Id, PubSubNode
from tidings.systems.system_settings import SettingError
from tidings.systems.view_notes import ViewNotes, notes_of


@dataclass
class RunOutcome:
    """What came of a plan."""

    plan: Scenario
    violation: Violation | None
    messages: int
    deliveries: int
    matches: int  # of events and subscriptions that were there when they were published
    owed: int  # of those: deliveries that had to be
    delivered: int  # of those owed
    false_negatives: int  # matches whose event the system dropped, by its design
    nodes: int
    seconds: float
    virtual_ms: int
    measures: RunMeasures | None = None


class Run:
    """A world, driven through the steps of a schedule."""

    def __init__(self, plan: Scenario, *, trace: Trace | None = None, measured: bool = False) -> None:
        self.plan = plan
        named = overlay_named(plan.system).with_settings(plan.settings)
        self.workload = pool_of(plan)
        self.random = Random(f"world {plan.seed}")
        network = Network(self.random, loss=0.0)
        self._laws = named.laws(conditions_of(plan))
        self.world = World(self.random, network, laws=self._laws if plan.laws else ())
        self.world.trace = trace
        self.world.measures = RunMeasures() if measured else None
        self.world.grow = self._grow
        self.times = timetable(plan)
        self._overlay = named.overlay
        ids = _different_ids(plan, named.overlay.simulated.id_bits)
        self._id_of = dict(enumerate(ids))  # by the numbers that steps name
        self._settings = named.settings(simulated=True, node_id=self._id_named)
        self._ground = _ground_of(named.name, (plan.domain, plan.filters, plan.event_file), self._settings)
        self._bug = named.bug(plan.bug)
        # Events published during churn arrive as well, where nodes keep them over a crash.
        lossless = "log" in named.system.abilities and getattr(self._settings, "log", True)
        promise = LOSSLESS if lossless else self._overlay.promise(self._settings)
        self.judge = Judge(self.world, self.workload, promise)
        self._crashed: set[Id] = set()
        self._grown = 0  # nodes that others have asked for
        self._logs: dict[Id, MemoryLog] = {}  # which outlive a crash

    def _id_named(self, text: str) -> Id:
        """Returns the id of the node that has this number."""
        if not text.isdecimal() or int(text) >= self.plan.nodes:
            raise SettingError(f"'{text}' names no node; in a simulation they are numbered 0 to {self.plan.nodes - 1}")
        return self._id_of[int(text)]

    def play(self, progress: Callable[[int, int], None] | None = None) -> RunOutcome:
        begun = perf_counter()
        checks = replace(self._checks)
        violation = None
        try:
            self._start()
            for step in schedule(self.plan):
                self.world.at(step.at_ms, lambda step=step: self._do(step))  # type: ignore[misc]
            end = self.times.end_ms
            for until in range(1_000, end + 1_000, 1_000):
                self.world.run(min(until, end))
                if progress is not None:
                    progress(min(until, end), end)
            self.judge.judge()
            for law in self.world.laws:
                law.at_rest(self.world)
        except Violation as found:
            violation = found
            if self.world.trace is not None:
                self.world.trace.note(found.now_ms, "violation", found.law, found.what)
        self._finish_measures(checks)
        return RunOutcome(
            self.plan, violation, self.world.messages, len(self.world.deliveries), *self.judge.count(),
            len(self.world.nodes), perf_counter() - begun, self.world.now_ms, self.world.measures,
        )  # fmt: skip

    @property
    def _checks(self) -> ExactChecks:
        """The exact checks of all simulations that share the ground."""
        found: ExactChecks = getattr(self._ground, "content", self._ground).checks
        return found

    def _finish_measures(self, before: ExactChecks) -> None:
        measures = self.world.measures
        if measures is None:
            return
        measures.finish(list(self.world.nodes))
        measures.latencies_ms = [at - self.judge.published[event].at_ms for at, _, _, event in self.world.deliveries]
        measures.checks = self._checks.made - before.made
        measures.rejected = self._checks.rejected - before.rejected

    def _start(self) -> None:
        first = [self._make(self._id_of[number]) for number in range(self.plan.nodes)]
        self._overlay.seat(first)
        for node in first:
            self.world.add(node)
        if self.plan.loss:
            self.world.at(self.times.churn_ms, self._lose)
            self.world.at(self.times.calm_ms, lambda: setattr(self.world.network, "loss", 0.0))
        self.world.at(self.times.calm_ms, self.world.network.heal)

    def _lose(self) -> None:
        self.world.network.loss = self.plan.loss
        self.judge.trouble("cut", until_ms=self.times.calm_ms)

    # Steps

    def _do(self, step: ScheduledStep) -> None:
        id = self._id_of[step.node]
        world, now = self.world, self.world.now_ms
        present = id in world.nodes
        match step.kind:
            case "join":
                if not present and id not in world.gone:
                    self._join(id)
            case "restart":
                if not present and id in self._crashed:
                    self._crashed.discard(id)
                    self._join(id)
            case "crash" | "leave":
                least = self._overlay.least(self._settings)
                if id in world.ready and len(world.ready) > least and self._may_fail(id):
                    self._take_from(id, crashes=step.kind == "crash")
            case "split":
                sides = [self._id_of[int(number)] for number in step.value.split(",")]
                world.network.split(sides, [other for other in world.nodes if other not in sides])
                self.judge.trouble("cut", until_ms=self.times.calm_ms)
            case "heal":
                world.network.heal()
            case "subscribe" | "update":
                if id in world.ready and (step.kind == "subscribe" or self.judge.is_live(step.subject)):
                    self._subscribe(id, step)
            case "unsubscribe":
                if id in world.ready and self.judge.is_live(step.subject):
                    self.judge.interested[step.subject].until_ms = now
                    world.active.pop(step.subject, None)
                    world.do(id, world.nodes[id].unsubscribe(step.subject, now))  # type: ignore[attr-defined]
            case "publish" | "probe":
                self._publish(id, step)

    def _join(self, id: Id) -> None:
        contact = self.random.choice(sorted(self.world.ready))
        self.judge.trouble("join", id)
        self.world.add(self._make(id), contact)

    def _grow(self) -> None:
        """One more node joins, as nodes ask for it: there may be twice as many of them as at first."""
        if self._grown < self.plan.nodes and self.world.ready:
            self._grown += 1
            id = self._id_of[len(self._id_of) - self._grown]
            self.world.at(self.world.now_ms, lambda: self._join(id))

    def _make(self, id: Id) -> PubSubNode:
        """Returns a node that is new, or one that crashed: then with the log that it had."""
        kind = self._overlay.node if self._bug is None else self._bug.node
        log = self._logs.setdefault(id, MemoryLog())
        made: PubSubNode = self._overlay.make(kind, Start(id, self.random, self._ground, self._settings, log))
        return made

    def _may_fail(self, id: Id) -> bool:
        careless = self._bug is not None and self._bug.careless
        return careless or all(law.may_fail(self.world, id) for law in self._laws)

    def _take_from(self, id: Id, *, crashes: bool) -> None:
        """A node goes, and with it the subscriptions of its clients."""
        self.judge.trouble("crash" if crashes else "leave", id)
        for known in self.judge.interested.values():
            if known.node == id and known.until_ms is None:
                known.until_ms = self.world.now_ms
        if crashes:
            self._crashed.add(id)
            self.world.crash(id)
        else:
            self.world.stop(id, self.world.nodes[id].leave(self.world.now_ms))  # type: ignore[attr-defined]

    def _subscribe(self, id: Id, step: ScheduledStep) -> None:
        now = self.world.now_ms
        known = self.judge.interested.setdefault(step.subject, Interested(id, []))
        known.texts.append((now, step.value))
        self.world.active.pop(step.subject, None)
        self.world.do(id, self.world.nodes[id].subscribe(step.subject, step.value, now))  # type: ignore[attr-defined]

    def _publish(self, id: Id, step: ScheduledStep) -> None:
        """Through the node that is meant, or another where it is gone: a probe is always published."""
        world = self.world
        if id not in world.ready:
            if step.kind == "publish":
                return
            id = sorted(world.ready)[step.node % len(world.ready)]
        self.judge.published[step.subject] = Publication(world.now_ms, step.value, step.kind == "probe", id)
        world.do(id, world.nodes[id].publish(Event(step.subject, step.value), world.now_ms))  # type: ignore[attr-defined]


def _different_ids(plan: Scenario, bits: int) -> Iterable[Id]:
    random = Random(f"ids {plan.seed}")
    different: dict[Id, None] = {}
    while len(different) < 4 * plan.nodes + 16:
        different[random.getrandbits(bits)] = None
    return different


@lru_cache(maxsize=16)
def _ground_of(system: str, files: tuple[str, str, str], settings: Any) -> Any:
    """Returns what the nodes of all simulations of a system share: thousands of them read each text once."""
    domain, filters, event_file = files
    plan = Scenario(system, domain=domain, filters=filters, event_file=event_file)
    return overlay_named(system).overlay.ground(pool_of(plan).content, settings)


def placement_notes(plan: Scenario) -> ViewNotes | None:
    """Returns what the nodes of a plan place by; None of documents, which are placed by their paths."""
    if overlay_named(plan.system).system.needs == "documents":
        return None
    run = Run(plan)
    return notes_of(run._ground.view, run.workload.content.statistics)


def play(plan: Scenario, *, trace: Trace | None = None, measured: bool = False) -> RunOutcome:
    return Run(plan, trace=trace, measured=measured).play()


MAX_RUNS = 120


def shrink(plan: Scenario, violation: Violation, *, max_runs: int = MAX_RUNS) -> tuple[Scenario, Violation]:
    """The plan with only those steps that the failure seems to need, and how it fails; so many further runs at most."""
    runs = 0

    def fails(keep: list[int]) -> bool:
        nonlocal runs, violation
        runs += 1
        found = play(replace(plan, keep=tuple(keep))).violation
        if found is None or found.law != violation.law:
            return False
        violation = found
        return True

    kept = list(plan.keep) if plan.keep is not None else list(range(len(schedule(plan))))
    size = max(1, len(kept) // 2)
    while runs < max_runs:
        removed = False
        at = 0
        while at < len(kept) and runs < max_runs:
            fewer = kept[:at] + kept[at + size :]
            if fails(fewer):
                kept, removed = fewer, True
            else:
                at += size
        if not removed and size == 1:
            break
        size = size if removed and size == 1 else max(1, size // 2)
    return replace(plan, keep=tuple(kept)), violation


def explain(plan: Scenario, violation: Violation) -> str:
    """What failed, the command that replays it, and the schedule that was left of it."""
    steps: tuple[ScheduledStep, ...] = schedule(plan)
    lines = [f"{violation.law} is broken: {violation.what}", "", f"  {plan.command}", ""]
    return "\n".join([*lines, *(f"  {step}" for step in steps)])
