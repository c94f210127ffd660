"""A seed becomes a schedule: who joins, leaves, crashes, subscribes and publishes, and when.

The schedule is made beforehand, from the seed alone, so that a part of it can be played again: that is how a failure is
shrunk. Steps name nodes by their number; a step whose node is not there when its time comes is passed over.

    start ─► subscribe ─► churn, with more of everything ─► repair ─► probe: events that must reach everybody
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any, NamedTuple

from tidings.simulator.own_workload import own_workload
from tidings.simulator.workload import Pool, workload_of
from tidings.systems.overlay import Conditions
from tidings.systems.system_settings import Given

START_MS, SUBSCRIBE_MS, PROBE_MS = 1_000, 4_000, 8_000
RESTARTS = 0.4  # the share of crashed nodes that come back, under the same id


@dataclass(frozen=True)
class Scenario:
    """All that a simulation depends on. `arguments` gives it as the command line does."""

    system: str
    nodes: int = 8
    seed: int = 0
    churn: float = 0.5  # joins, leaves and crashes, by node, in all
    crashes: float = 0.5  # the share of churn that is crashes
    loss: float = 0.0
    splits: int = 0
    subscriptions: int = 8
    events: int = 8
    churn_ms: int = 15_000
    repair_ms: int = 20_000
    bug: str = ""
    domain: str = ""  # files of the user's own, in the place of the built-in workload
    filters: str = ""
    event_file: str = ""
    laws: bool = True  # whether the laws of the system are checked
    settings: Given = ()  # of the system
    keep: tuple[int, ...] | None = None  # only these steps of the schedule

    @property
    def arguments(self) -> list[str]:
        found = [self.system]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if field.name == "settings":
                found += [part for name, given in value for part in ("--set", f"{name}={given}")]
            elif value != field.default and isinstance(value, bool):
                found.append(f"--no-{field.name}")
            elif value != field.default:
                option = "--" + field.name.replace("_", "-")
                found += [option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
        return found

    @property
    def command(self) -> str:
        return shlex.join(["tidings", "simulate", *self.arguments])


def plan_from(arguments: list[str]) -> Scenario:
    """The plan that `Scenario.arguments` wrote; `ValueError` where it cannot have."""
    given: dict[str, Any] = {}
    known = {"set" if field.name == "settings" else field.name: field for field in fields(Scenario)[1:]}
    if "--no-laws" in arguments:
        given["laws"] = False
    arguments = [argument for argument in arguments if argument != "--no-laws"]
    if len(arguments) % 2 == 0:
        raise ValueError("a system, and then options with a value each, are what makes a simulation")
    for option, value in zip(arguments[1::2], arguments[2::2], strict=True):
        field = known.get(option.removeprefix("--").replace("-", "_"))
        if field is None:
            raise ValueError(f"there is no option {option}")
        if field.name == "settings":
            name, _, text = value.partition("=")
            given["settings"] = (*given.get("settings", ()), (name, text))
        elif field.name == "keep":
            given["keep"] = tuple(int(number) for number in value.split(",") if number)
        else:
            default: Any = field.default
            given[field.name] = type(default)(value)
    return Scenario(arguments[0], **given)


TROUBLES: dict[str, dict[str, float]] = {
    "churn": {"churn": 0.8},
    "joins and leaves": {"churn": 1.0, "crashes": 0.0},
    "loss": {"loss": 0.05, "churn": 0.3},
    "splits": {"splits": 2, "churn": 0.3},
    "calm": {"churn": 0.0, "repair_ms": 10_000},  # subscriptions may take 9 s to be in place
}


def troubled(system: str, seed: int, **sizes: Any) -> Scenario:
    """A plan whose kind of trouble the seed chooses: most often churn."""
    kinds = [*["churn"] * 4, *TROUBLES]
    return Scenario(system, seed=seed, **{**sizes, **TROUBLES[kinds[seed % len(kinds)]]})


class ScheduledStep(NamedTuple):
    at_ms: int
    kind: str  # join, leave, crash, restart, split, heal, subscribe, unsubscribe, update, publish, probe
    node: int
    subject: str = ""  # a subscription, an event
    value: str = ""  # a filter, an event's body, nodes

    def __str__(self) -> str:
        shown = " ".join(part for part in (self.subject, self.value) if part)
        return f"{self.at_ms:>7} ms  {self.kind:<11} node {self.node}  {shown}".rstrip()


class Timetable(NamedTuple):
    churn_ms: int  # from when to when nodes come and go
    calm_ms: int
    probe_ms: int
    end_ms: int


def timetable(plan: Scenario) -> Timetable:
    churn = START_MS + SUBSCRIBE_MS
    calm = churn + (plan.churn_ms if plan.churn or plan.splits or plan.loss else 0)
    probe = calm + plan.repair_ms
    return Timetable(churn, calm, probe, probe + PROBE_MS)


def conditions_of(plan: Scenario) -> Conditions:
    """Returns what a plan does to its nodes, as laws need to know it."""
    is_reliable = not plan.splits and not plan.loss
    return Conditions(crashes=plan.crashes > 0, is_reliable=is_reliable, calm_ms=timetable(plan).calm_ms)


def schedule(plan: Scenario) -> tuple[ScheduledStep, ...]:
    """The steps, in the order of time; with `keep`, those that are kept."""
    made = _Maker(plan).make()
    if plan.keep is None:
        return made
    return tuple(step for number, step in enumerate(made) if number in set(plan.keep))


def pool_of(plan: Scenario) -> Pool:
    """Returns what a plan's subscribers ask for and its publishers publish."""
    if not plan.domain and not plan.filters and not plan.event_file:
        return workload_of(plan.system)
    return own_workload(plan.system, plan.domain, plan.filters, plan.event_file)


class _Deck:
    """Items in any order: of the built-in ones any each time, of a user's each once before one comes again."""

    def __init__(self, items: Sequence[str], random: Random, *, own: bool) -> None:
        self._items = items
        self._random = random
        self._own = own
        self._left: list[str] = []

    def draw(self) -> str:
        if not self._own:
            return self._random.choice(self._items)
        if not self._left:
            self._left = self._random.sample(self._items, len(self._items))
        return self._left.pop()


class _Maker:
    def __init__(self, plan: Scenario) -> None:
        self.plan = plan
        self.random = Random(f"schedule {plan.seed}")
        self.times = timetable(plan)
        self.steps: list[ScheduledStep] = []
        pool = pool_of(plan)
        own = bool(plan.filters)
        self._filters = _Deck(pool.filters, self.random, own=own)
        self._events = _Deck(pool.events, self.random, own=own)
        self.holders: dict[str, int] = {}

    def make(self) -> tuple[ScheduledStep, ...]:
        plan, random, times = self.plan, self.random, self.times
        for number in range(plan.subscriptions):
            self._subscribe(number, random.randint(START_MS, times.churn_ms - 2_000))
        if times.calm_ms > times.churn_ms:
            self._churn()
        for number in range(plan.events):
            at = times.probe_ms + random.randint(0, 1_000)
            self._step(at, "probe", random.randrange(plan.nodes), f"p{number}", self._events.draw())
        return tuple(sorted(self.steps, key=lambda step: step.at_ms))

    def _churn(self) -> None:
        plan, random, times = self.plan, self.random, self.times
        count = round(plan.churn * plan.nodes)
        newcomer = plan.nodes
        for at in sorted(self._moment() for _ in range(count)):
            if random.random() < plan.crashes:
                crashed = random.randrange(newcomer)
                self._step(at, "crash", crashed)
                if random.random() < RESTARTS:  # some before others have noticed that they were away
                    self._step(min(at + random.randint(50, 6_000), times.calm_ms), "restart", crashed)
            elif random.random() < 0.3:
                self._step(at, "leave", random.randrange(newcomer))
            else:
                self._step(at, "join", newcomer)
                newcomer += 1
        for _ in range(plan.splits):
            at = self._moment()
            side = sorted(random.sample(range(plan.nodes), max(1, plan.nodes // 3)))
            self._step(at, "split", side[0], value=",".join(map(str, side)))
            self._step(min(at + random.randint(500, 3_000), times.calm_ms), "heal", side[0])
        for number in range(plan.events):
            body = self._events.draw()
            self._step(self._moment(), "publish", random.randrange(newcomer), f"e{number}", body)
        for number in range(plan.subscriptions, plan.subscriptions + plan.subscriptions // 4):
            self._subscribe(number, self._moment())
        for name in list(self.holders):
            chance = random.random()
            if chance < 0.15:
                self._step(self._moment(), "unsubscribe", self.holders[name], name)
            elif chance < 0.3:
                self._step(self._moment(), "update", self.holders[name], name, self._filters.draw())

    def _subscribe(self, number: int, at: int) -> None:
        name, node = f"s{number}", self.random.randrange(self.plan.nodes)
        self.holders[name] = node
        self._step(at, "subscribe", node, name, self._filters.draw())

    def _moment(self) -> int:
        return self.random.randint(self.times.churn_ms, self.times.calm_ms - 1)

    def _step(self, at_ms: int, kind: str, node: int, subject: str = "", value: Any = "") -> None:
        self.steps.append(ScheduledStep(at_ms, kind, node, subject, value))
