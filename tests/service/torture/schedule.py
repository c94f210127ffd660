"""A seed ─► a list of timed actions, as plain data: printed, cut short, carried out.

    0 s          ALONE_SECONDS                 a third of what is left                        the end
    │ alone        │ beside                      │ broken                                       │
      the steady      others do whatever they      the same, while processes are killed,
      tenant only     may; nothing is broken       the disk is full, the clock jumps

A schedule is many motifs, each a short story of its own, begun at random and so mixed with each other.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .motifs import BROKEN, MOTIFS, Action, Names

ALONE_SECONDS = 30.0
WARM_UP_SECONDS = 10.0  # of these, in which the service is slow as after every start: nothing is compared with them
QUIET_SHARE = 0.3  # of schedules, in which the service is restarted before anybody has published anything
BESIDE_SHARE = 0.4  # of what is left after that
A_MOTIF_EVERY_SECONDS = 5.0
ATTACK = "hostile"  # the motif of what is done on purpose
RETENTIONS: tuple[tuple[str, ...], ...] = ((), ("--retain", "2mb"), ("--retain", "30s"))
PLACEMENTS: tuple[tuple[str, ...], ...] = (
    (),
    ("--adapt-every", "15"),
    ("--adapt-every", "10", "--placement", "bluedove"),
)


# As usual, or so that domains move between the shared stream and their own all the time.
SHARINGS: tuple[dict[str, float], ...] = ({}, {"subscriptions": 4, "events_per_second": 10, "quiet_seconds": 5})


@dataclass(frozen=True)
class Schedule:
    seed: int
    seconds: float
    actions: list[Action]
    options: tuple[str, ...] = ()  # of `tidings serve`
    alone_seconds: float = 0.0  # 0: nothing is judged that speaks of seconds
    beside_seconds: float = 0.0
    motifs: dict[str, int] = field(default_factory=dict)  # how often each is in it
    sharing: dict[str, float] = field(default_factory=dict)  # up to where domains share a stream, if not as usual
    before: list[Action] = field(default_factory=list)  # when nobody has published anything yet

    @property
    def retains(self) -> bool:
        return "--retain" in self.options

    def until(self, count: int | None) -> Schedule:
        """Only the first actions."""
        return self if count is None else replace(self, actions=self.actions[:count])

    def faster(self, times: float) -> Schedule:
        """The same actions with shorter pauses between them."""
        before, actions = (
            [{**action, "at": round(action["at"] / times, 2)} for action in part]
            for part in (self.before, self.actions)
        )
        return replace(self, seconds=self.seconds / times, before=before, actions=actions)

    def lines(self) -> list[str]:
        numbered = [*((0, action) for action in self.before), *enumerate(self.actions, start=1)]
        return [f"{number:4} {action['at']:7.2f} s  {action['do']:<12} {_shown(action)}" for number, action in numbered]


def _shown(action: Action) -> str:
    rest = {name: value for name, value in action.items() if name not in ("at", "do", "motif")}
    text = json.dumps(rest, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"


def generate(
    seed: int, seconds: float, *, only: Sequence[str] = (), without: Sequence[str] = (), timed: bool = True,
    options: tuple[str, ...] | None = None, quiet: bool | None = None,
) -> Schedule:  # fmt: skip
    """The schedule of a seed; `only` these motifs, each once and from the start, is for a bug that is known.

    Where it is `quiet` at first, which chance decides by default, there is a restart before the first event.
    """
    draw = random.Random(seed)
    names = Names(draw, seed)
    chosen = draw.choice(RETENTIONS) + draw.choice(PLACEMENTS) if options is None else options
    alone = ALONE_SECONDS if timed else 0.0
    beside = (seconds - alone) * BESIDE_SHARE if timed else 0.0
    begun: list[tuple[float, str]] = []
    if only:
        begun = [(alone + 0.1 * number, name) for number, name in enumerate(only)]
    else:
        every = [name for name in MOTIFS if name not in without]
        harmless = [name for name in every if name not in BROKEN]
        # Every motif once in an order of chance before any is twice: short runs have most of them.
        for among, start, end in ((harmless, alone, alone + beside), (every, alone + beside, seconds)):
            count = max(1, round((end - start) / A_MOTIF_EVERY_SECONDS)) if end > start else 0
            order = [name for _ in range(1 + count // len(among)) for name in draw.sample(among, len(among))][:count]
            if timed and among is harmless and ATTACK in among and ATTACK not in order:
                order[-1] = ATTACK  # what others may do to the steady tenant is judged in this part
            begun += [(draw.uniform(start, start + 0.8 * (end - start)), name) for name in order]
    actions = _timed(sorted(begun), draw, names)
    if quiet is None:
        quiet = not only and "quiet_domain" not in without and draw.random() < QUIET_SHARE
    counts = {name: sum(one == name for _, one in begun) for name in MOTIFS}
    motifs = {name: count for name, count in counts.items() if count}
    before = _timed([(0.0, "quiet_domain")], draw, names) if quiet else []
    sharing = draw.choice(SHARINGS) if options is None else {}
    return Schedule(seed, seconds, actions, chosen, alone, beside, motifs, sharing, before)


def _timed(begun: list[tuple[float, str]], draw: random.Random, names: Names) -> list[Action]:
    """The actions of motifs that begin at these moments, in the order of their times."""
    actions: list[Action] = []
    for start, name in begun:
        at = start
        for pause, action in MOTIFS[name](draw, names):
            at += pause
            actions.append({"at": round(at, 2), "motif": name, **action})
    return sorted(actions, key=lambda action: float(action["at"]))


def quiet_at_first(schedule: Schedule) -> Schedule:
    """All of its actions when nobody has published anything yet."""
    return replace(schedule, before=schedule.actions, actions=[])


def kinds(schedule: Schedule) -> dict[str, int]:
    found: dict[str, Any] = {}
    for action in (*schedule.before, *schedule.actions):
        found[action["do"]] = found.get(action["do"], 0) + 1
    return dict(sorted(found.items()))
