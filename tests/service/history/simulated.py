"""Histories of a service that keeps its promises, drawn from a seed, and ways to break them one at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from .judge import Predicate, holds, sql
from .records import Ack, Change, Dead, Delivery, Fault, Limit, LogEnds, Logged, Outcome, Publish, Record, Sample

TENANTS = ("a", "b")
DOMAIN = "quotes"
SYMBOLS = ("OIL", "GAS", "TEA")

_R = TypeVar("_R", bound=Record)
Corruption = Callable[[list[Record], random.Random], list[Record] | None]  # None: this history has no place for it


@dataclass
class _Subscription:
    id: str
    tenant: str
    filters: list[tuple[Predicate, int, int | None]]  # from where to where
    cursor: int = -1
    paused: bool = False
    deleted: bool = False


@dataclass
class SimulatedService:
    """Does what the service promises, on a clock of its own, and writes down what others would see of it."""

    draw: random.Random
    records: list[Record] = field(default_factory=list)
    log: list[tuple[str, str, str, dict[str, Any]]] = field(default_factory=list)  # tenant, source, id, data
    subscriptions: list[_Subscription] = field(default_factory=list)
    clock: float = 0.0
    sequences: dict[str, int] = field(default_factory=dict)
    requests: int = 0

    def tick(self) -> float:
        self.clock += self.draw.uniform(0.001, 0.1)
        return self.clock

    def publish(self) -> None:
        publisher = self.draw.choice(["p1", "p2", "p3"])
        tenant = TENANTS[publisher == "p3"]
        sequence = self.sequences[publisher] = self.sequences.get(publisher, -1) + 1
        data = {"symbol": self.draw.choice(SYMBOLS), "price": self.draw.choice([None, *range(10)])}
        first = Publish(publisher, sequence, tenant, DOMAIN, f"/{publisher}", str(sequence), data, 0, None, "unknown")
        match self.draw.choices(["acked", "retried", "refused", "lost", "landed"], [12, 3, 1, 1, 1])[0]:
            case "acked":
                self.attempt(first, "acked")
            case "retried":
                for _ in range(self.draw.randint(1, 3)):
                    self.attempt(first, self.draw.choice(["unknown", "refused"]), self.draw.random() < 0.5)
                self.attempt(first, "acked")
            case "refused":
                self.attempt(first, "refused")
            case "lost":
                self.attempt(first, "unknown")
            case "landed":
                self.attempt(first, "unknown", landed=True)

    def attempt(self, event: Publish, outcome: Outcome, landed: bool = False) -> None:
        sent = self.tick()
        name = (event.tenant, event.source, event.id, event.event)
        lands = outcome == "acked" or (landed and outcome == "unknown")
        if lands and name not in self.log:
            self.log.append(name)
        position = self.log.index(name) if outcome == "acked" else None
        answered = None if outcome == "unknown" else self.tick()
        self.records.append(replace(event, sent=sent, answered=answered, outcome=outcome, position=position))

    def create(self) -> None:
        tenant = self.draw.choice(TENANTS)
        replay = self.draw.random() < 0.2
        sent = self.tick()
        predicate, end = self.predicate(), len(self.log)
        new = _Subscription(f"s{len(self.subscriptions)}", tenant, [(predicate, 0 if replay else end, None)])
        self.subscriptions.append(new)
        self.records.append(
            Change(
                "create",
                new.id,
                tenant,
                DOMAIN,
                sent,
                self.tick(),
                "acked",
                sql(predicate),
                predicate,
                filter_from=end,
                replay_from=0 if replay else None,
            )
        )

    def change(self) -> None:
        one = self.any_live()
        if one is None:
            return
        sent = self.tick()
        action = self.draw.choice(["change", "pause", "resume", "delete"])
        predicate, end = self.predicate(), len(self.log)
        if action == "change" or action == "delete":
            last, start, _ = one.filters[-1]
            one.filters[-1] = (last, start, end)
        change = Change(action, one.id, one.tenant, DOMAIN, sent, None, "acked")  # type: ignore[arg-type]
        match action:
            case "change":
                one.filters.append((predicate, end, None))
                change = replace(change, filter=sql(predicate), predicate=predicate, filter_from=end)
            case "pause" | "resume":
                one.paused = action == "pause"
            case "delete":
                one.deleted = True
        self.records.append(replace(change, answered=self.tick()))

    def pull(self, one: _Subscription | None = None, limit: int | None = None) -> int:
        one = one or self.any_live()
        if one is None or one.paused:
            return 0
        asked = self.tick()
        limit = self.draw.randint(1, 10) if limit is None else limit
        found = [position for position in range(one.cursor + 1, len(self.log)) if self.wanted(one, position)][:limit]
        self.requests += 1
        received = self.tick()
        for position in found:
            _, source, id_, data = self.log[position]
            if (position + int(one.id[1:])) % 31 == 0:  # the same whenever it is tried
                self.records.append(Dead(one.id, position, "the subscriber answered 500 for three days"))
            else:
                self.records.append(
                    Delivery(
                        one.id, one.tenant, "pull", f"r{self.requests}", asked, received, position, source, id_, data
                    )
                )
        if found and self.draw.random() < 0.8:  # else the same comes again
            one.cursor = found[-1]
            self.records.append(Ack(one.id, one.cursor, self.tick(), self.tick(), "acked"))
        return len(found)

    def wanted(self, one: _Subscription, position: int) -> bool:
        tenant, _, _, data = self.log[position]
        return tenant == one.tenant and any(
            start <= position < (len(self.log) if end is None else end) and holds(predicate, data)
            for predicate, start, end in one.filters
        )

    def any_live(self) -> _Subscription | None:
        live = [one for one in self.subscriptions if not one.deleted]
        return self.draw.choice(live) if live else None

    def predicate(self) -> Predicate:
        price = ["<=" if self.draw.random() < 0.5 else ">", "price", self.draw.randint(0, 9)]
        symbol = ["in", "symbol", self.draw.sample(SYMBOLS, 2)]
        return self.draw.choice([["true"], price, symbol, ["and", price, symbol], ["or", ["not", price], symbol]])

    def finish(self) -> list[Record]:
        """Deliver what waits, and write down the log, a fault that was survived, and the memory."""
        over = self.tick()
        self.records.append(Fault("nothing much", over - 0.0005, over, bound_seconds=1000.0))
        last = Publish("p0", 0, "a", DOMAIN, "/p0", "last", {"symbol": "OIL", "price": 1}, 0, None, "unknown")
        self.create()
        self.subscriptions[-1].tenant = "a"
        self.records[-1] = replace(self.records[-1], tenant="a", predicate=["true"], filter="TRUE")  # type: ignore[call-arg]
        self.subscriptions[-1].filters = [(["true"], self.subscriptions[-1].filters[0][1], None)]
        self.attempt(last, "acked")
        self.attempt(replace(last, sequence=1, id="laster"), "acked")
        for one in self.subscriptions:
            while not one.deleted and not one.paused and self.pull(one, limit=10):
                pass
        self.records += [
            Logged(position, tenant, DOMAIN, source, id_, data)
            for position, (tenant, source, id_, data) in enumerate(self.log)
        ]
        self.records += [LogEnds(0, len(self.log)), Limit("memory of the gateway", 400e6)]
        self.records += [Sample("memory of the gateway", 100e6 + number, number) for number in range(3)]
        return self.records


def valid_history(seed: int, steps: int = 120) -> list[Record]:
    """What a service that keeps its promises leaves behind."""
    service = SimulatedService(random.Random(seed))
    ways = [service.publish, service.create, service.change, service.pull]
    for way in service.draw.choices(ways, [10, 1, 1, 3], k=steps):
        way()
    return service.finish()


# ---------------------------------------------------------------------- one promise broken


def _without(records: list[Record], gone: Callable[[Record], bool]) -> list[Record]:
    return [record for record in records if not gone(record)]


def _some(records: list[Record], kind: type[_R], draw: random.Random, fits: Callable[[_R], bool]) -> _R | None:
    fitting = [record for record in records if isinstance(record, kind) and fits(record)]
    return draw.choice(fitting) if fitting else None


def _replaced(records: list[Record], old: Record, new: Record) -> list[Record]:
    return [new if record is old else record for record in records]


def lose_a_delivery(records: list[Record], draw: random.Random) -> list[Record] | None:
    """Of an event that was acked, to a subscription that is there to the end."""
    gone = {one.subscription for one in records if isinstance(one, Change) and one.action in ("delete", "pause")}
    acked = {one.position for one in records if isinstance(one, Publish) and one.outcome == "acked"}
    lost = _some(records, Delivery, draw, lambda one: one.subscription not in gone and one.position in acked)
    if lost is None:
        return None
    place = (lost.subscription, lost.position)
    return _without(records, lambda one: isinstance(one, Delivery | Dead) and (one.subscription, one.position) == place)


def deliver_to_another_tenant(records: list[Record], draw: random.Random) -> list[Record] | None:
    one = _some(records, Delivery, draw, lambda one: True)
    return None if one is None else _replaced(records, one, replace(one, tenant="b" if one.tenant == "a" else "a"))


def deliver_what_does_not_match(records: list[Record], draw: random.Random) -> list[Record] | None:
    """To a subscription whose filter was never changed."""
    changed = {one.subscription for one in records if isinstance(one, Change) and one.action != "create"}
    created = _some(records, Change, draw, lambda one: one.subscription not in changed and one.action == "create")
    if created is None:
        return None
    predicate = created.predicate or []
    event = _some(
        records,
        Publish,
        draw,
        lambda one: one.outcome == "acked" and one.tenant == created.tenant and not holds(predicate, one.event),
    )
    if event is None or event.position is None:
        return None
    wrong = Delivery(
        created.subscription,
        created.tenant,
        "pull",
        "wrong",
        1e6,
        1e6,
        event.position,
        event.source,
        event.id,
        event.event,
    )
    return [*records, wrong]


def swap_two_deliveries(records: list[Record], draw: random.Random) -> list[Record] | None:
    """Two first deliveries of one publisher's events to one subscription."""
    first: dict[tuple[str, int], Delivery] = {}
    again: set[tuple[str, int]] = set()
    acked = {(one.source, one.id) for one in records if isinstance(one, Publish) and one.outcome == "acked"}
    for one in records:
        if isinstance(one, Delivery) and (one.source, one.id) in acked:
            place = (one.subscription, one.position)
            again |= {place} if place in first else set()
            first.setdefault(place, one)
    once = [one for place, one in first.items() if place not in again]
    pairs = [
        (one, other)
        for one in once
        for other in once
        if (one.subscription, one.source) == (other.subscription, other.source) and one.received < other.received
    ]
    if not pairs:
        return None
    one, other = draw.choice(pairs)
    swapped = replace(one, received=other.received + 1e-6), replace(other, received=one.received)
    return _replaced(_replaced(records, one, swapped[0]), other, swapped[1])


def lose_a_position(records: list[Record], draw: random.Random) -> list[Record] | None:
    one = _some(records, Logged, draw, lambda one: True)
    return None if one is None else _without(records, lambda other: other is one)


def flip_a_bit(records: list[Record], draw: random.Random) -> list[Record] | None:
    one = _some(records, Logged, draw, lambda one: True)
    return None if one is None else _replaced(records, one, replace(one, intact=False))


def repeat_within_an_answer(records: list[Record], draw: random.Random) -> list[Record] | None:
    one = _some(records, Delivery, draw, lambda one: True)
    return None if one is None else [*records, replace(one)]


def deliver_again_after_the_ack(records: list[Record], draw: random.Random) -> list[Record] | None:
    ack = _some(records, Ack, draw, lambda one: True)
    if ack is None or ack.answered is None:
        return None
    acked = ack.answered
    one = _some(
        records, Delivery, draw, lambda one: one.subscription == ack.subscription and one.position <= ack.position
    )
    if one is None:
        return None
    return [*records, replace(one, request="again", asked=acked + 1e-6, received=acked + 2e-6)]


def land_twice(records: list[Record], draw: random.Random) -> list[Record] | None:
    """An event whose first answer was lost is in the log a second time, at its end."""
    unknown = {(one.source, one.id) for one in records if isinstance(one, Publish) and one.outcome == "unknown"}
    one = _some(records, Logged, draw, lambda one: (one.source, one.id) in unknown)
    if one is None:
        return None
    end = max(other.end for other in records if isinstance(other, LogEnds))
    return [
        *_without(records, lambda other: isinstance(other, LogEnds)),
        replace(one, position=end),
        LogEnds(0, end + 1),
    ]


def never_recover(records: list[Record], draw: random.Random) -> list[Record] | None:
    bound = draw.uniform(1e-9, 1e-6)
    return [replace(one, bound_seconds=bound) if isinstance(one, Fault) else one for one in records]


def swell(records: list[Record], draw: random.Random) -> list[Record] | None:
    one = _some(records, Sample, draw, lambda one: True)
    return None if one is None else _replaced(records, one, replace(one, size=draw.uniform(401e6, 9e9)))


def begin_too_late(records: list[Record], draw: random.Random) -> list[Record] | None:
    """A creation is answered with a position behind an event that was sent after the answer."""
    created = _some(
        records, Change, draw,
        lambda one: one.filter_from is not None and any(
            isinstance(event, Publish) and event.outcome == "acked" and event.sent > (one.answered or 0)
            for event in records
        ),
    )  # fmt: skip
    if created is None:
        return None
    late = max(one.position or 0 for one in records if isinstance(one, Publish)) + 1
    return _replaced(records, created, replace(created, filter_from=late))


CORRUPTIONS: dict[str, tuple[Corruption, ...]] = {
    "I1": (lose_a_delivery, begin_too_late),
    "I2": (deliver_to_another_tenant, deliver_what_does_not_match),
    "I3": (swap_two_deliveries,),
    "I4": (lose_a_position, flip_a_bit),
    "I5": (repeat_within_an_answer, deliver_again_after_the_ack),
    "I6": (land_twice,),
    "I7": (never_recover,),
    "I8": (swell,),
}
