"""A system as a network: how its nodes are made, which laws they keep, and which bugs can be planted in them.

A folder of `tidings.systems` whose system runs as nodes has these files, beside `placement.py`:

    node.py       OVERLAY: the class of its nodes, and what they are made from
    messages.py   MESSAGES: what nodes say to each other
    laws.py       laws(conditions): what must hold while it runs
    bugs.py       bugs(variant): nodes that are wrong in one point, each with the law that finds it

Whatever drives the nodes is a `ObservedWorld` to the laws: the simulator is one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from random import Random
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from tidings.errors import TidingsError, did_you_mean
from tidings.systems.interface import System, systems
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Deliver, Effects, Event, Id, Message, Node, PubSubNode
from tidings.systems.protocols.ring_ids import ADDRESS_BITS
from tidings.systems.system_settings import Given, changed, no_node, setting_named


class UnknownSystem(TidingsError):
    """Unknown system or bug name."""


# ---------------------------------------------------------------------- nodes


class PublicationLog(Protocol):
    """The events that a node has published and not seen done. It outlives the node."""

    def append(self, event: Event) -> None: ...

    def settle(self, event: str) -> None: ...

    def pending(self) -> list[Event]: ...


class MemoryLog:
    """A log for simulations: the caller keeps it when the node crashes."""

    def __init__(self) -> None:
        self._pending: dict[str, Event] = {}

    def append(self, event: Event) -> None:
        self._pending[event.id] = event

    def settle(self, event: str) -> None:
        self._pending.pop(event, None)

    def pending(self) -> list[Event]:
        return list(self._pending.values())


class NodeSettings(Protocol):
    """The settings of a node: a named tuple."""

    @property
    def id_bits(self) -> int:
        """How long the ids of nodes are."""
        ...


N = TypeVar("N", bound=PubSubNode)
G = TypeVar("G")
S = TypeVar("S", bound=NodeSettings)


@dataclass(frozen=True)
class Start(Generic[G, S]):
    """What a node is made from."""

    id: Id
    random: Random
    ground: G  # what all nodes of a network share: the placement's View, asked about one filter or event at a time
    settings: S
    log: PublicationLog = field(default_factory=MemoryLog)
    clock: Callable[[], float] | None = None  # of a process, in seconds: nodes may measure what they do by it


REPAIR_MS = 12_000  # of what a crash breaks, in the slowest of the protocols
REACH_MS = 3_000  # in which an event has reached everybody, if nothing happens


@dataclass(frozen=True)
class Promise:
    """Which events a system owes that are published while nodes come and go.

    After a join, a leave and a crash events may be lost for so long, and for REACH_MS before; 0: none is lost by it.
    Where messages are lost or the network is split, those are owed that are published `cut_ms` after it is over. An
    event whose publisher goes is not owed, unless it outlives publishers: then when the publisher is back.
    """

    join_ms: int = REPAIR_MS
    leave_ms: int = REPAIR_MS
    crash_ms: int = REPAIR_MS
    cut_ms: int = REPAIR_MS
    crashes: int = 1  # that it takes, within `crash_ms`, to lose an event
    outlives_publishers: bool = False

    def covers(self, at_ms: int, troubles: Iterable[tuple[str, int, int]]) -> bool:
        """Returns whether an event published at this time is owed, given what happened, from when to when."""
        lost_ms = {"join": self.join_ms, "leave": self.leave_ms, "crash": self.crash_ms, "cut": self.cut_ms}
        near = [
            kind for kind, begin, end in troubles if lost_ms[kind] and begin - REACH_MS <= at_ms <= end + lost_ms[kind]
        ]
        return near.count("crash") < self.crashes and all(kind == "crash" for kind in near)


LOSSLESS = Promise(0, 0, 0, 0, outlives_publishers=True)  # of systems that keep what is published until it is delivered


class EventPath(Protocol):
    """The path of one event through a network: it reads the trace of a run."""

    def message(self, now_ms: int, sender: Id, to: Id, message: Message) -> None: ...

    def note(self, now_ms: int, what: str, *about: Any) -> None: ...

    def tree(self) -> Iterator[str]:
        """Lines of text: each node below the one that it got the event from."""
        ...

    def picture(self) -> str:
        """An SVG picture."""
        ...


@dataclass(frozen=True)
class Overlay(Generic[N, G, S]):
    """The nodes of a system, and what they are made from."""

    node: type[N]
    make: Callable[[type[N], Start[G, S]], N]  # of this class, or of a subclass with a bug
    ground: Callable[[Content, S], G]
    seat: Callable[[Sequence[N]], None]  # puts the first nodes of a simulation in their places
    messages: tuple[type, ...]
    settings: S  # of a process
    simulated: S  # of a simulation: nodes meet trouble soon
    wire_bits: int = ADDRESS_BITS  # of the ids in messages
    host_of: Callable[[Id], Id] = lambda id: id  # the node that an id in a message belongs to
    least: Callable[[S], int] = lambda settings: 3  # nodes that a simulation leaves running
    promise: Callable[[S], Promise] = lambda settings: Promise()
    event_path: Callable[[str, ObservedWorld], EventPath] | None = None


AnyOverlay = Overlay[Any, Any, Any]


# ---------------------------------------------------------------------- laws


class Violation(AssertionError):
    """A law is broken: which, when, and by what."""

    def __init__(self, law: str, what: str, now_ms: int) -> None:
        self.law, self.what, self.now_ms = law, what, now_ms
        super().__init__(law, what, now_ms)  # all of them, so that it can come from another process

    def __str__(self) -> str:
        return f"{self.law}: {self.what} (at {self.now_ms} ms)"


class DeliveryRecord(NamedTuple):
    at_ms: int
    node: Id
    subscription: str
    event: str


class ObservedWorld(Protocol):
    """What laws see of a network."""

    @property
    def now_ms(self) -> int: ...

    @property
    def nodes(self) -> Mapping[Id, Node]: ...

    @property
    def ready(self) -> Mapping[Id, int]:
        """Nodes that have joined, and since when."""
        ...

    @property
    def active(self) -> Mapping[str, int]:
        """Subscriptions in place, and since when."""
        ...

    @property
    def deliveries(self) -> Sequence[DeliveryRecord]: ...

    @property
    def handled(self) -> tuple[Id, Message] | None:
        """The message that the node has just handled, and its sender; None after a timer or a call."""
        ...


class Conditions(NamedTuple):
    """What a run does to its nodes."""

    variant: str = ""  # of the system
    crashes: bool = True
    is_reliable: bool = True  # messages arrive: none is lost, and the network is not split
    calm_ms: int = 0  # when churn, loss and splits are over


class Law:
    """A law: `Violation` is raised where it is broken."""

    def after(self, world: ObservedWorld, id: Id) -> None:
        """Checks it after every message, timer and refusal that a node has handled."""

    def at_rest(self, world: ObservedWorld) -> None:
        """Checks it when all is quiet."""

    def may_fail(self, world: ObservedWorld, id: Id) -> bool:
        """Returns whether a node may fail now: what the law assumes of failures."""
        return True


class AtRest(Law):
    """A law that holds when all is quiet, and not before."""

    def __init__(self, check: Callable[[ObservedWorld], None]) -> None:
        self._check = check

    def at_rest(self, world: ObservedWorld) -> None:
        self._check(world)


NEVER = 1 << 60


class Repair:
    """Flaws that are allowed while they are being repaired, each with the time since when, and the limit.

    Nodes that repair themselves are wrong for a while after others came, went or crashed: a law that says "never" of
    such a flaw would be broken by every crash, and one that looks only at the end would not see a repair that takes too
    long, or that works only because of another one. So each flaw has a clock of its own, from when it is first seen
    until it is gone, and a limit that follows from the protocol's periods.
    """

    def __init__(self, law: str, within_ms: int) -> None:
        self._law = law
        self._within_ms = within_ms
        self._since: dict[Hashable, int] = {}
        self._what: Mapping[Hashable, str] = {}
        self._oldest_ms = NEVER

    def found(self, world: ObservedWorld, flaws: Mapping[Hashable, str]) -> None:
        """Takes these for all flaws that there are now."""
        since = self._since
        self._since = {flaw: since.get(flaw, world.now_ms) for flaw in flaws}
        self._what = flaws
        self._oldest_ms = min(self._since.values(), default=NEVER)
        self.unchanged(world)

    def unchanged(self, world: ObservedWorld) -> None:
        """Takes the flaws to be the same: nothing has happened that could repair one or make another."""
        self.judge(world, self._within_ms)

    def judge(self, world: ObservedWorld, within_ms: int) -> None:
        """Raises `Violation` for a flaw that is older than this."""
        if world.now_ms - self._oldest_ms <= within_ms:
            return
        oldest = min(self._since, key=lambda flaw: self._since[flaw])
        raise Violation(self._law, f"{self._what[oldest]}, since {self._oldest_ms} ms", world.now_ms)


CALM = {"churn": 0.0, "repair_ms": 1_000}  # the trouble of a simulation in which nothing happens


def muted(node: type[N]) -> type[N]:
    """Returns nodes that do everything but deliver: a bug for any system, which only the judge can find."""

    def silent(method: Callable[..., Effects]) -> Callable[..., Effects]:
        def act(*given: Any) -> Effects:
            return [effect for effect in method(*given) if not isinstance(effect, Deliver)]

        return act

    acts = ("on_message", "on_timer", "on_undelivered", "subscribe", "publish")
    return type(f"Mute{node.__name__}", (node,), {name: silent(getattr(node, name)) for name in acts})


class Bug(NamedTuple):
    """Nodes that are wrong in one point, the law that finds it, and the trouble of a simulation that provokes it."""

    node: type[PubSubNode]
    law: str
    trouble: Mapping[str, float] = {}
    careless: bool = False  # whether nodes fail though laws assume that they do not


# ---------------------------------------------------------------------- by name


@dataclass(frozen=True)
class NamedOverlay:
    """A system that runs as nodes, or a variant of one, with the settings that a user gave."""

    system: System
    variant: str = ""
    given: Given = ()

    @property
    def name(self) -> str:
        return f"{self.system.name}-{self.variant}" if self.variant else self.system.name

    @property
    def help(self) -> str:
        return self.system.variants[self.variant].help if self.variant else self.system.help

    @cached_property
    def overlay(self) -> AnyOverlay:
        return cast(AnyOverlay, self._module("node").OVERLAY)

    def with_settings(self, given: Given) -> NamedOverlay:
        """Returns the same system with these settings: a variant of it, where they are the variant's."""
        values = self._read(given, lambda node: 0)  # a value that cannot be is refused before there is a node
        variant = next(
            (name for name, one in self.system.variants.items() if one.settings.items() <= values.items()),
            "" if set(values) & set(self._variant_settings) else self.variant,
        )
        return NamedOverlay(self.system, variant, given)

    @property
    def _variant_settings(self) -> Mapping[str, Any]:
        return self.system.variants[self.variant].settings if self.variant else {}

    def settings(self, *, simulated: bool = False, node_id: Callable[[str], Id] = no_node, **changes: Any) -> Any:
        """Returns the settings of its nodes; `node_id` returns the id of a node that a setting names."""
        defaults: Any = self.overlay.simulated if simulated else self.overlay.settings
        return changed(defaults, {**self._variant_settings, **self._read(self.given, node_id), **changes})

    def _read(self, given: Given, node_id: Callable[[str], Id]) -> dict[str, Any]:
        """The values of settings, by the fields that they name."""
        named = [(setting_named(self.system.settings, name, self.name), text) for name, text in given]
        return {setting.field: setting.read(text, node_id) for setting, text in named}

    def laws(self, conditions: Conditions) -> list[Law]:
        """Returns the laws that hold under these conditions."""
        return cast(list[Law], self._module("laws").laws(conditions._replace(variant=self.variant)))

    @cached_property
    def bugs(self) -> Mapping[str, Bug]:
        """The bugs that can be planted, by name."""
        return cast(Mapping[str, Bug], self._module("bugs").bugs(self.variant))

    def bug(self, name: str) -> Bug | None:
        """Returns the bug of this name; None for no name."""
        if name and name not in self.bugs:
            raise UnknownSystem(f"{self.name} has no bug '{name}' to plant; {did_you_mean(name, self.bugs)}")
        return self.bugs.get(name)

    def _module(self, name: str) -> Any:
        return import_module(f"{self.system.package}.{name}")


def overlays() -> dict[str, NamedOverlay]:
    """Returns every system that runs as nodes, and every variant of one, by name."""
    running = [system for system in systems().values() if system.runs_as_nodes]
    found = [NamedOverlay(system, variant) for system in running for variant in ("", *system.variants)]
    return {one.name: one for one in found}


def overlay_named(name: str) -> NamedOverlay:
    """Returns the system, or the variant of one, of this name."""
    known = overlays()
    if name not in known:
        raise UnknownSystem(f"there is no system '{name}' that runs as nodes; {did_you_mean(name, known)}")
    return known[name]


def seat_members(nodes: Sequence[Any]) -> None:
    """Seats nodes that all take their place by knowing the ids of all."""
    members = sorted(node.id for node in nodes)
    for node in nodes:
        node.seat(members)
