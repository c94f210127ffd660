"""How many events a second does BlueDove sustain by each forwarding policy, and beside P2P and full replication?

The paper's workload in small: 20 matchers and 2 dispatchers; four dimensions of 1,000, subscriptions 250 wide around
hot spots at 0, 333, 667 and 1,000 (σ = 250), events anywhere; segments of equal width. A matcher takes a time for an
event that grows with the subscriptions it compares it with. Every node is simulated, message by message. Measured are

    saturation   the most events a second that queues do not keep growing with
    load         the deviation of the matchers' busy time, in units of the mean, slightly below that
    conviction   seconds from a crash to the first node that convicts the crashed one, and to the last
    upkeep       bytes a second and matcher, at rest

Expected, by the paper: adaptive 1.1 times response time, 1.2 times subscriptions and 3.5 times random; 4.2 times P2P;
load 0.14 (P2P 0.82); a crash without effect after 17.5 s; 2.9 KB and 20 bytes a dispatcher. The paper counts one copy
of a subscription in a dimension. It is stored by every segment that it overlaps, six here, so that full replication,
67 times slower there, is about 11 times slower.

    python -m benchmarks.bluedove [--quick] [PART …]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from statistics import mean, pstdev
from typing import Any

from benchmarks.record import write
from tidings.filter.normal.value_sets import ordinal
from tidings.model.domain import Attribute, Domain
from tidings.model.types import DOUBLE
from tidings.simulator.trace import Trace
from tidings.simulator.world import Network, World
from tidings.systems.bluedove.dispatcher_node import BlueDoveSettings
from tidings.systems.bluedove.forwarding import Policy
from tidings.systems.bluedove.node import BlueDoveNode
from tidings.systems.bluedove.placement import undivided
from tidings.systems.bluedove.segment_node import MatcherSettings
from tidings.systems.bluedove.segment_table import BEGINNING, Dimensions, Edge, HashedLine
from tidings.systems.protocols.content import Content
from tidings.systems.protocols.effects import Event, Id
from tidings.systems.protocols.many_domains import InDomain
from tidings.systems.protocols.message_codec import plain
from tidings.systems.protocols.ring_ids import ADDRESS_BITS, hashed

HOT_SPOTS = (0, 333, 667, 1_000)
SPREAD, WIDTH, LENGTH = 250, 250, 1_000


TEXTS = 400  # filters that differ
BODIES = 3_000  # events that differ


def service_ms(subscriptions: int) -> float:
    return 8 + 2 * subscriptions


@cache
def _ground(dimensions: int) -> Dimensions:
    """What is shared by the nodes of all networks, so that every text is read once."""
    domain = Domain("plane", [Attribute(f"d{number}", "double") for number in range(4)])
    return Dimensions(undivided(tuple((f"d{number}",) for number in range(dimensions))), Content(domain))


@cache
def _everywhere() -> HashedLine:
    return HashedLine(_ground(1).content)


def _address(number: int) -> str:
    return f"10.0.0.{number + 10}:7000"


@cache
def _bodies() -> tuple[str, ...]:
    random = Random(5)
    return tuple(json.dumps({f"d{d}": round(random.uniform(0, LENGTH), 2) for d in range(4)}) for _ in range(BODIES))


class QueueingNode(BlueDoveNode):
    """It takes its time for an event, and finds no match: who is notified does not matter here."""

    busy_ms = 0.0

    def _matches(self, event: Event, dimension: int) -> set[tuple[str, Id]]:
        self.busy_ms += service_ms(len(self.sets[dimension]))
        return set()


@dataclass(frozen=True)
class Setup:
    """A network of the paper's kind, in small."""

    policy: Policy = "adaptive"
    matchers: int = 20
    dispatchers: int = 2
    dimensions: int = 4
    replicated: bool = False
    subscriptions: int = 400
    seed: int = 1
    settings: dict[str, Any] = field(default_factory=dict)


class Laboratory:
    """The network, with its subscriptions in place."""

    def __init__(self, setup: Setup) -> None:
        self.random = Random(setup.seed)
        self.world = World(self.random, Network(self.random, latency_ms=(1, 3)))
        dimensions = _everywhere() if setup.replicated else _ground(setup.dimensions)
        matcher = MatcherSettings(service_ms=service_ms)
        settings = BlueDoveSettings(matcher, setup.policy, patience_ms=600_000, **setup.settings)
        roles = [("matcher",)] * setup.matchers + [("dispatcher",)] * setup.dispatchers
        ids = sorted(hashed(_address(number), ADDRESS_BITS) for number in range(len(roles)))
        self.nodes = [
            QueueingNode(id, self.random, dimensions, settings, roles=own) for id, own in zip(ids, roles, strict=True)
        ]
        edges = dimensions.divided(setup.matchers) if setup.replicated else _equal_segments(setup)
        for node in self.nodes:
            node.seat(self.nodes)
            node.seat_segments([edge._replace(owner=ids[edge.owner]) for edge in edges])
            self.world.add(node)
        self.matchers, self.dispatchers = self.nodes[: setup.matchers], self.nodes[setup.matchers :]
        self._subscribe(setup)
        self.world.run(2_000)

    def _subscribe(self, setup: Setup) -> None:
        random = Random(f"subscriptions {setup.seed}")
        texts = [
            " AND ".join(_range(random, f"d{d}", spot) for d, spot in enumerate(HOT_SPOTS))
            for _ in range(min(setup.subscriptions, TEXTS))
        ]
        for number in range(setup.subscriptions):
            node = self.random.choice(self.dispatchers)
            self.world.do(node.id, node.subscribe(f"s{number}", texts[number % TEXTS], self.world.now_ms))

    def publish(self, rate: float, seconds: float) -> None:
        """Events at random times, so many a second on average, through any dispatcher."""
        begin, published = self.world.now_ms, 0
        at = float(begin)
        while at < begin + seconds * 1_000:
            at += self.random.expovariate(rate / 1_000)
            self.world.run(round(at))
            node = self.random.choice(self.dispatchers)
            event = Event(f"e{self.world.now_ms}-{published}", self.random.choice(_bodies()))
            published += 1
            self.world.do(node.id, node.publish(event, self.world.now_ms))

    def waits_s(self) -> list[float]:
        """For each matcher, how long an event that comes now waits."""
        return [
            sum(len(queue) * service_ms(len(held)) for queue, held in zip(node.queues, node.sets, strict=True)) / 1_000
            for node in self.matchers
        ]


def _equal_segments(setup: Setup) -> list[Edge]:
    width = LENGTH / setup.matchers
    lows = [BEGINNING, *(int(ordinal(width * number, DOUBLE)) for number in range(1, setup.matchers))]
    owners = range(setup.matchers)
    return [
        Edge(dimension, low, 0, owner, True, False)
        for dimension in range(setup.dimensions)
        for low, owner in zip(lows, owners, strict=True)
    ]


def _range(random: Random, name: str, spot: float) -> str:
    middle = -1.0
    while not 0 <= middle <= LENGTH:
        middle = random.gauss(spot, SPREAD)
    return f"{name} >= {middle - WIDTH / 2:.2f} AND {name} < {middle + WIDTH / 2:.2f}"


def is_sustained(setup: Setup, rate: float, seconds: float) -> bool:
    """Whether no matcher's queue keeps growing: one that gets 5 % more than it can match makes events wait so long."""
    laboratory = Laboratory(setup)
    for _ in range(4):
        laboratory.publish(rate, seconds / 4)
        if max(laboratory.waits_s()) > 1 + 0.05 * seconds:
            return False
    return True


def saturation_rate(setup: Setup, *, guess: float, seconds: float = 60, precision: float = 0.03) -> float:
    """The most events a second that are sustained, by halving between what is and what is not."""
    low, high = 0.0, guess
    while is_sustained(setup, high, seconds):
        low, high = high, 1.5 * high
    while high - low > precision * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_sustained(setup, middle, seconds) else (low, middle)
    return low


def load_deviation(setup: Setup, rate: float, seconds: float = 60) -> float:
    """The deviation of what matchers had to do, in units of the mean, at 90 % of what they sustain."""
    laboratory = Laboratory(setup)
    laboratory.publish(0.9 * rate, seconds)
    busy = [node.busy_ms for node in laboratory.matchers]
    return pstdev(busy) / mean(busy)


# ---------------------------------------------------------------------- upkeep


class FrameBytes(Trace):
    """Counts the bytes of the frames that messages are sent in, as processes send them."""

    def __init__(self, nodes: Sequence[BlueDoveNode]) -> None:
        super().__init__(lambda line: None)
        self.bytes: Counter[str] = Counter()
        self._addresses = {node.id: _address(number) for number, node in enumerate(nodes)}

    def message(self, now_ms: int, sender: Id, to: Id, message: Any) -> None:
        written = plain(InDomain("plane-0123abcd", message))
        book = {str(id): self._addresses[id] for id in (sender, *_numbers(written)) if id in self._addresses}
        body = json.dumps({"from": sender, "book": book, "message": written}, separators=(",", ":"))
        self.bytes[type(message).__name__] += 4 + len(body)

    def timer(self, now_ms: int, node: Id, tag: Any) -> None:
        """Takes no bytes."""

    def note(self, now_ms: int, what: str, *about: Any) -> None:
        """Takes none either."""


def _numbers(written: Any) -> Iterator[int]:
    if isinstance(written, int):
        yield written
    elif isinstance(written, list | dict):
        for item in written.values() if isinstance(written, dict) else written:
            yield from _numbers(item)


def upkeep(setup: Setup, *, settle_s: float = 60, seconds: float = 120) -> Counter[str]:
    """Bytes a second for each matcher when nothing happens, by the kind of message."""
    laboratory = Laboratory(setup)
    laboratory.world.run(laboratory.world.now_ms + round(settle_s * 1_000))
    counted = laboratory.world.trace = FrameBytes(laboratory.nodes)
    laboratory.world.run(laboratory.world.now_ms + round(seconds * 1_000))
    return Counter({kind: round(bytes_ / seconds / setup.matchers) for kind, bytes_ in counted.bytes.items()})


def convictions(setup: Setup, *, warm_s: float = 90) -> tuple[float, float]:
    """Seconds from the crash of a matcher to the first node that convicts it, and to the last."""
    laboratory = Laboratory(setup)
    world, lost = laboratory.world, laboratory.matchers[0].id
    world.run(round(warm_s * 1_000))
    world.crash(lost)
    left = [node for node in laboratory.nodes if node.id != lost]
    times: dict[Id, int] = {}
    while len(times) < len(left):
        world.run(world.now_ms + 100)
        times |= {node.id: world.now_ms for node in left if lost in node.convicts and node.id not in times}
    first, last = min(times.values()), max(times.values())
    return first / 1_000 - warm_s, last / 1_000 - warm_s


# ---------------------------------------------------------------------- rows

WAYS: dict[str, Setup] = {
    "adaptive": Setup("adaptive"),
    "response time": Setup("response time"),
    "subscriptions": Setup("subscriptions"),
    "random": Setup("random"),
    "P2P": Setup(dimensions=1),
    "full replication": Setup(replicated=True),
}
UPKEEP, CONVICTION = "upkeep", "conviction"
GUESSES = {"P2P": 60.0, "full replication": 20.0, "random": 70.0}


def measured(part: str, *, quick: bool) -> dict[str, Any]:
    """Returns the row of a way to forward, of the upkeep, or of convictions."""
    if part == UPKEEP:
        setup = Setup(subscriptions=200 if quick else 40_000)
        found = upkeep(setup)
        kinds = dict(found.most_common())
        return {"subscriptions": setup.subscriptions, "bytes_per_second": found.total(), "kinds": kinds}
    if part == CONVICTION:
        seeds = 10 if quick else 100
        times = [convictions(Setup(subscriptions=0, matchers=18, seed=seed)) for seed in range(seeds)]
        first, last = (round(mean(column), 1) for column in zip(*times, strict=True))
        return {"first_s": first, "last_s": last, "seeds": seeds}
    rate = saturation_rate(WAYS[part], guess=GUESSES.get(part, 220.0))
    return {"events_per_second": round(rate, 1), "load": round(load_deviation(WAYS[part], rate), 2)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bluedove", description=__doc__)
    parts = [*WAYS, UPKEEP, CONVICTION]
    parser.add_argument("--quick", action="store_true", help="fewer seeds and subscriptions, and nothing is written")
    parser.add_argument("parts", nargs="*", default=parts, choices=parts, metavar="PART", help=f"of {', '.join(parts)}")
    given = parser.parse_args(arguments)
    rows = []
    for part in given.parts:
        row = {"what": part} | measured(part, quick=given.quick)
        rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if not given.quick:
        write("bluedove", (__doc__ or "").splitlines()[0], rows, same=("what",))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
