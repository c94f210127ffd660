"""Messages of each system as nodes send them, and ways to forge them."""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Any

from tidings.simulator.run import Run
from tidings.simulator.scenario import Scenario
from tidings.systems.overlay import Law, ObservedWorld, overlay_named
from tidings.systems.protocols.effects import Id, Message
from tidings.systems.protocols.many_domains import codec_of
from tidings.systems.protocols.message_codec import parts_of, plain


class OnTheWire(Law):
    """A law: every message that a node has handled could have come from the wire. Keeps one of each kind."""

    def __init__(self, system: str) -> None:
        self.codec = codec_of(overlay_named(system))
        self.kinds: dict[str, Message] = {}

    def after(self, world: ObservedWorld, id: Id) -> None:
        if world.handled is None:
            return
        _, message = world.handled
        assert self.codec.decode(self.codec.encode(message)) == message
        node: Any = world.nodes[id]
        for part in parts_of(message):
            node.check(part, world.now_ms)
        self.kinds[" ".join(dict.fromkeys(type(part).__name__ for part in parts_of(message)))] = message


def played(system: str, seed: int = 3, **trouble: Any) -> tuple[OnTheWire, Run]:
    """A simulation, and what its nodes have said."""
    run = Run(Scenario(system, seed=seed, nodes=8, subscriptions=20, events=10, **trouble))
    checker = OnTheWire(system)
    run.world.laws = (*run.world.laws, checker)
    assert run.play().violation is None
    return checker, run


@lru_cache
def frames_of(system: str) -> tuple[Any, ...]:
    """A message of each kind, in JSON's own types."""
    return tuple(plain(message) for message in played(system, churn=0.3)[0].kinds.values())


def changed(random: Random, value: Any) -> Any:
    """The same JSON with one thing in it replaced by something of any type."""
    if isinstance(value, list) and value and random.random() < 0.9:
        at = random.randrange(len(value))
        return [*value[:at], changed(random, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and random.random() < 0.9:
        at = random.choice(list(value))
        return {name: changed(random, one) if name == at else one for name, one in value.items()}
    return random.choice([None, True, 0, -1, 1 << 70, 0.5, "", "x", [], {}, [[]], {"Inner": [1, []]}, 1e308])


def bent(random: Random, value: Any) -> Any:
    """The same JSON with something in it replaced by another of its type."""
    if isinstance(value, dict):
        return {name: bent(random, one) for name, one in value.items()}
    if isinstance(value, list) and value:
        at = random.randrange(len(value))
        if random.random() < 0.1:
            return [*value, value[at]] if random.random() < 0.5 else [*value[:at], *value[at + 1 :]]
        return [*value[:at], bent(random, value[at]), *value[at + 1 :]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice([0, 1, value + 1, value - 1, value ^ 2, -value, random.getrandbits(24), (1 << 63) - 1])
    if isinstance(value, float):
        return random.choice([0.0, -1.0, 1e200, value * 2])
    if isinstance(value, str):
        return random.choice(["", "x", value[:-1], value + value, "price > 3.0", '{"price": 2.0}'])
    return random.choice([None, 1, "x", []])
