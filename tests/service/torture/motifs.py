"""The short stories that a schedule is made of: each yields pauses in seconds and actions, as plain data.

A motif makes its own domains and subscriptions, or uses the domain that all motifs of its tenant share.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from tidings.systems.interface import systems

from .content import FORMS, ODD_NAMES, draw_filter, limit_filters
from .hostile import KINDS as HOSTILE

Action = dict[str, Any]
Step = tuple[float, Action]  # a pause, and what is done after it
Motif = Callable[[random.Random, "Names"], Iterator[Step]]

TENANTS = ("rough", "rude")
SHARED = "shared"  # a domain of each of them
MODES = ("pull", "pull", "sse", "sse-cursor", "sse-auto", "webhook")
TROUBLE = ("500", "closes", "redirects", "slow", "later", "endless body")
ATTACKS_AT_ONCE = 2
PROCESSES = ("gateway", "driver", "JVM", "worker", "supervisor")


class Names:
    """Names that no other motif has, and attacks in their turn."""

    def __init__(self, draw: random.Random, seed: int) -> None:
        self._draw = draw
        self._count = count()
        self._attacks = count(ATTACKS_AT_ONCE * seed)

    def domain(self) -> str:
        return f"d{next(self._count)}"

    def subscription(self) -> str:
        return f"s{next(self._count)}"

    def attack(self) -> str:
        """One after the other, going on from seed to seed: some seeds in a row have them all."""
        return HOSTILE[next(self._attacks) % len(HOSTILE)]

    def seed(self) -> int:
        return self._draw.randrange(1 << 30)


def put(tenant: str, domain: str, shape: str) -> Action:
    return {"do": "put", "tenant": tenant, "domain": domain, "shape": shape}


def subscribe(tenant: str, domain: str, id: str, filter: dict[str, Any], mode: str = "pull", **more: Any) -> Action:
    return {"do": "subscribe", "tenant": tenant, "domain": domain, "id": id, "filter": filter, "mode": mode, **more}


def publish(
    names: Names, tenant: str, domain: str, shape: str, *, form: str = "batch", count: int = 3, size: int = 0,
    then: str = "",
) -> Action:  # fmt: skip
    """`then` sends the last request once more, as it was ("repeat") or with other bodies ("conflict")."""
    action = {"do": "publish", "tenant": tenant, "domain": domain, "shape": shape, "form": form, "count": count}
    return action | {"size": size, "seed": names.seed()} | ({"then": then} if then else {})


def some(draw: random.Random, names: Names, tenant: str, domain: str, shape: str) -> Action:
    """A publish of any form and size, most of them small."""
    form = draw.choice(("feed", "xml")) if shape.startswith("xml") else draw.choice(FORMS)
    size = draw.choice((0, 0, 0, 1, 1000, 70_000, 1_000_000)) if not shape.startswith("xml") else draw.choice((0, 900))
    most = 3 if size > 100_000 else 40
    then = draw.choice(("", "", "repeat", "conflict"))
    return publish(names, tenant, domain, shape, form=form, count=draw.randint(1, most), size=size, then=then)


# ---------------------------------------------------------------------- what tenants do


def ordinary(draw: random.Random, names: Names) -> Iterator[Step]:
    """Subscriptions of every mode on the shared domain: made, edited, paused, resumed, deleted, under traffic."""
    tenant = draw.choice(TENANTS)
    yield 0.0, put(tenant, SHARED, "stock")
    ids = [names.subscription() for _ in range(4)]
    for id_ in ids:
        yield 0.1, subscribe(tenant, SHARED, id_, draw_filter(draw, "stock"), draw.choice(MODES))
    for _ in range(draw.randint(3, 8)):
        yield draw.uniform(0.1, 2.0), some(draw, names, tenant, SHARED, "stock")
        id_ = draw.choice(ids)
        change = draw.choice(("edit", "edit", "pause", "resume", "reader", "delete"))
        if change == "edit":
            yield 0.1, {"do": "edit", "tenant": tenant, "id": id_, "filter": draw_filter(draw, "stock")}
        elif change == "reader":
            yield 0.1, reader(draw, id_, tenant)
        else:
            yield 0.1, {"do": change, "tenant": tenant, "id": id_}
    for id_ in ids:
        yield 0.1, {"do": "resume", "tenant": tenant, "id": id_}


def reader(draw: random.Random, id: str, tenant: str) -> Action:
    """A reader that stalls; with `hang_up` it dies with what it has not read, and resumes elsewhere."""
    seconds = round(draw.uniform(0.5, 6.0), 2)
    return {"do": "stall", "tenant": tenant, "id": id, "seconds": seconds, "hang_up": draw.random() < 0.6}


def inferred(draw: random.Random, names: Names) -> Iterator[Step]:
    """Published first; then confirmed with an attribute more."""
    tenant, domain = draw.choice(TENANTS), names.domain()
    yield 0.0, publish(names, tenant, domain, "stock", count=20)
    yield 1.0, subscribe(tenant, domain, names.subscription(), draw_filter(draw, "stock"), draw.choice(MODES))
    yield 0.1, publish(names, tenant, domain, "stock", form=draw.choice(FORMS))
    yield draw.uniform(0.1, 5.0), put(tenant, domain, "venue")
    yield 0.1, subscribe(tenant, domain, names.subscription(), draw_filter(draw, "venue"), draw.choice(MODES))
    yield draw.uniform(0.1, 2.0), some(draw, names, tenant, domain, "venue")


def recreated(draw: random.Random, names: Names) -> Iterator[Step]:
    """A domain that is deleted and made again with other attributes."""
    tenant, domain, first = draw.choice(TENANTS), names.domain(), names.subscription()
    yield 0.0, put(tenant, domain, "stock")
    yield 0.1, subscribe(tenant, domain, first, draw_filter(draw, "stock"), draw.choice(MODES))
    if draw.random() < 0.7:
        yield 0.1, publish(names, tenant, domain, "stock", count=10)
    yield draw.uniform(0.1, 6.0), {"do": "delete", "tenant": tenant, "id": first}
    yield 0.1, {"do": "delete_domain", "tenant": tenant, "domain": domain}
    yield draw.uniform(0.0, 5.0), put(tenant, domain, "text")
    yield 0.1, subscribe(tenant, domain, names.subscription(), draw_filter(draw, "text"), draw.choice(MODES))
    yield draw.uniform(0.1, 5.0), publish(names, tenant, domain, "text", count=10)


def retyped(draw: random.Random, names: Names) -> Iterator[Step]:
    """An attribute's type is changed while events of the old type may wait: refused, or nothing is lost by it."""
    tenant, domain = draw.choice(TENANTS), names.domain()
    yield 0.0, put(tenant, domain, "stock")
    yield 0.1, subscribe(tenant, domain, names.subscription(), {"text": "TRUE", "predicate": ["true"]}, "pull")
    yield 0.5, publish(names, tenant, domain, "stock", count=10)
    yield draw.choice((0.0, 0.2, 8.0)), put(tenant, domain, "retyped")
    yield 0.5, publish(names, tenant, domain, "stock", count=3)


def placed(draw: random.Random, names: Names) -> Iterator[Step]:
    """A domain names its placement, so that it has its own stream; then another, and then none."""
    tenant, domain = draw.choice(TENANTS), names.domain()
    first, second = draw.sample(sorted(systems()), 2)
    yield 0.0, put(tenant, domain, "stock") | {"placement": first}
    for _ in range(3):
        yield 0.1, subscribe(tenant, domain, names.subscription(), draw_filter(draw, "stock"), "pull")
    for placement in (first, second, "auto"):
        yield 0.0, put(tenant, domain, "stock") | {"placement": placement}
        for _ in range(3):
            yield draw.uniform(0.5, 4.0), publish(names, tenant, domain, "stock", count=10)


def odd_names(draw: random.Random, names: Names) -> Iterator[Step]:
    """Attributes of names that the service, or Spark, may use itself."""
    tenant, domain, shape = draw.choice(TENANTS), names.domain(), f"odd:{draw.choice(ODD_NAMES)}"
    yield 0.0, put(tenant, domain, shape)
    for _ in range(2):
        yield 0.1, subscribe(tenant, domain, names.subscription(), draw_filter(draw, shape), draw.choice(MODES))
    yield 0.5, publish(names, tenant, domain, shape, count=10, form=draw.choice(("batch", "structured")))
    yield 3.0, publish(names, tenant, domain, shape, count=2)


def limit_filter(draw: random.Random, names: Names) -> Iterator[Step]:
    """Filters near what is taken, beside an ordinary one that must not suffer."""
    tenant, domain = draw.choice(TENANTS), names.domain()
    yield 0.0, put(tenant, domain, "text")
    yield 0.1, subscribe(tenant, domain, names.subscription(), draw_filter(draw, "text"), "pull")
    ids = [names.subscription() for _ in range(3)]
    for id_, filter_ in zip(ids, draw.sample(limit_filters(), 3), strict=True):
        yield 0.1, subscribe(tenant, domain, id_, filter_, draw.choice(MODES))
    yield 0.5, publish(names, tenant, domain, "text", count=20)
    yield 4.0, publish(names, tenant, domain, "text", count=5)
    if draw.random() < 0.5:
        yield 1.0, {"do": "delete", "tenant": tenant, "id": draw.choice(ids)}
        yield 1.0, publish(names, tenant, domain, "text", count=5)


def large_between(draw: random.Random, names: Names) -> Iterator[Step]:
    """A small event, another tenant's many large ones, a small one; then the first one's reader comes."""
    one, other = draw.sample(TENANTS, 2)
    domain, far, id_ = names.domain(), names.domain(), names.subscription()
    yield 0.0, put(one, domain, "stock")
    yield 0.0, put(other, far, "stock")
    yield 0.1, subscribe(one, domain, id_, {"text": "TRUE", "predicate": ["true"]}, "pull", away=True)
    yield 0.5, publish(names, one, domain, "stock", count=1)
    yield 0.5, publish(names, other, far, "stock", count=draw.randint(20, 45), size=1_000_000)
    yield 4.0, publish(names, one, domain, "stock", count=1)
    yield 8.0, {"do": "return", "tenant": one, "id": id_}


def dying_reader(draw: random.Random, names: Names) -> Iterator[Step]:
    """A stream of large events whose reader stalls, dies with unread data, and is another one then."""
    tenant, domain, id_ = draw.choice(TENANTS), names.domain(), names.subscription()
    yield 0.0, put(tenant, domain, "stock")
    mode = draw.choice(("sse-cursor", "sse-cursor", "sse-auto", "sse"))
    yield 0.1, subscribe(tenant, domain, id_, {"text": "TRUE", "predicate": ["true"]}, mode)
    yield 0.5, publish(names, tenant, domain, "stock", count=90, size=300_000)
    yield 5.0, {"do": "stall", "tenant": tenant, "id": id_, "seconds": 12.0, "hang_up": True}
    yield 0.1, publish(names, tenant, domain, "stock", count=130, size=300_000)
    yield 14.0, publish(names, tenant, domain, "stock", count=3)


def fuzzed(draw: random.Random, names: Names) -> Iterator[Step]:
    """A domain, filters and events of the fuzzers."""
    tenant, domain, shape = draw.choice(TENANTS), names.domain(), f"fuzz:{names.seed()}"
    yield 0.0, put(tenant, domain, shape)
    ids = [names.subscription() for _ in range(8)]
    for id_ in ids:
        yield 0.05, subscribe(tenant, domain, id_, draw_filter(draw, shape), draw.choice(MODES))
    for _ in range(3):
        yield (
            draw.uniform(0.2, 3.0),
            publish(
                names,
                tenant,
                domain,
                shape,
                form=draw.choice(("batch", "structured", "gzip")),
                count=draw.randint(1, 60),
            ),
        )
        yield 0.1, {"do": "edit", "tenant": tenant, "id": draw.choice(ids), "filter": draw_filter(draw, shape)}


def documents(draw: random.Random, names: Names) -> Iterator[Step]:
    """XML and feeds, with paths over them."""
    tenant, domain = draw.choice(TENANTS), names.domain()
    yield 0.0, put(tenant, domain, "xml")
    for _ in range(3):
        yield 0.1, subscribe(tenant, domain, names.subscription(), draw_filter(draw, "xml"), draw.choice(MODES))
    for _ in range(4):
        yield draw.uniform(0.1, 2.0), some(draw, names, tenant, domain, "xml")


def history(draw: random.Random, names: Names) -> Iterator[Step]:
    """Subscriptions that ask for the past: all of it, from a position, from a time."""
    tenant, domain = draw.choice(TENANTS), names.domain()
    yield 0.0, put(tenant, domain, "stock")
    yield 0.1, publish(names, tenant, domain, "stock", count=30)
    yield 3.0, publish(names, tenant, domain, "stock", count=5)
    for start in draw.sample(("earliest", "now", 0), 2):
        yield (
            0.5,
            subscribe(
                tenant, domain, names.subscription(), draw_filter(draw, "stock"), draw.choice(MODES), start=start
            ),
        )
    yield 0.5, publish(names, tenant, domain, "stock", count=10)


def expiring(draw: random.Random, names: Names) -> Iterator[Step]:
    """Subscriptions that end by themselves, under traffic."""
    tenant, id_ = draw.choice(TENANTS), names.subscription()
    yield 0.0, put(tenant, SHARED, "stock")
    seconds = round(draw.uniform(1.0, 5.0), 1)
    yield 0.1, subscribe(tenant, SHARED, id_, draw_filter(draw, "stock"), draw.choice(("pull", "sse")), expires=seconds)
    for _ in range(4):
        yield 1.5, publish(names, tenant, SHARED, "stock", count=5)
    yield 1.0, {"do": "expired", "tenant": tenant, "id": id_}


def receivers(draw: random.Random, names: Names) -> Iterator[Step]:
    """Webhooks whose receivers are slow, fail, ask to wait, or are gone."""
    tenant, domain = draw.choice(TENANTS), names.domain()
    yield 0.0, put(tenant, domain, "stock")
    ids = [names.subscription() for _ in range(3)]
    for id_ in ids:
        yield 0.1, subscribe(tenant, domain, id_, draw_filter(draw, "stock"), "webhook")
    for _ in range(3):
        id_ = draw.choice(ids)
        yield 0.5, {"do": "receiver", "tenant": tenant, "id": id_, "how": draw.choice(TROUBLE)}
        yield 0.5, publish(names, tenant, domain, "stock", count=10)
        yield draw.uniform(0.5, 4.0), {"do": "receiver", "tenant": tenant, "id": id_, "how": "well"}
    if draw.random() < 0.3:
        yield 0.5, {"do": "receiver", "tenant": tenant, "id": ids[0], "how": "410"}
        yield 0.1, publish(names, tenant, domain, "stock", count=10)


def hostile(draw: random.Random, names: Names) -> Iterator[Step]:
    """What a tenant may try on purpose: nobody else is to notice."""
    for _ in range(ATTACKS_AT_ONCE):
        yield draw.uniform(0.0, 3.0), {"do": "hostile", "tenant": draw.choice(TENANTS), "kind": names.attack()}


# ---------------------------------------------------------------------- what breaks


def quiet_domain(draw: random.Random, names: Names) -> Iterator[Step]:
    """A domain that has no event yet is restarted, and then gets its first."""
    tenant, domain = draw.choice(TENANTS), names.domain()
    yield 0.0, put(tenant, domain, "stock")
    yield 0.1, subscribe(tenant, domain, names.subscription(), {"text": "TRUE", "predicate": ["true"]}, "pull")
    yield draw.uniform(6.0, 15.0), {"do": "restart", "when_quiet": f"{tenant}.{domain}"}
    yield 1.0, publish(names, tenant, domain, "stock", count=3)


def restarted(draw: random.Random, names: Names) -> Iterator[Step]:
    yield draw.uniform(0.0, 3.0), {"do": draw.choice(("restart", "kill_all"))}


def killed(draw: random.Random, names: Names) -> Iterator[Step]:
    for _ in range(draw.randint(1, 2)):
        signal = draw.choice(("SIGKILL", "SIGKILL", "SIGTERM"))
        yield draw.uniform(0.0, 4.0), {"do": "kill", "process": draw.choice(PROCESSES), "signal": signal}


def full_disk(draw: random.Random, names: Names) -> Iterator[Step]:
    yield 0.0, {"do": "fill_disk", "seconds": round(draw.uniform(1.0, 5.0), 1)}


def clock_jump(draw: random.Random, names: Names) -> Iterator[Step]:
    """The clock is wrong for a while, by an hour or a day; what is published then, and after, is dated."""
    tenant, domain = draw.choice(TENANTS), names.domain()
    yield 0.0, put(tenant, domain, "stock")
    yield 0.1, {"do": "clock", "seconds": draw.choice((86_400, 3600, -3600))}
    yield 0.5, publish(names, tenant, domain, "stock", count=3)
    yield draw.uniform(1.0, 3.0), {"do": "clock", "seconds": 0}
    yield 1.0, publish(names, tenant, domain, "stock", count=3)
    yield (
        3.0,
        subscribe(tenant, domain, names.subscription(), {"text": "TRUE", "predicate": ["true"]}, "pull", start="now"),
    )
    yield 0.5, publish(names, tenant, domain, "stock", count=3)


def busy_restart(draw: random.Random, names: Names) -> Iterator[Step]:
    """More events than may wait are published and matched; then all starts again, and more come meanwhile."""
    tenant, domain = draw.choice(TENANTS), names.domain()
    yield 0.0, put(tenant, domain, "stock")
    yield 0.1, subscribe(tenant, domain, names.subscription(), {"text": "TRUE", "predicate": ["true"]})
    for _ in range(4):
        yield 1.0, publish(names, tenant, domain, "stock", count=1000)
    # While the service starts: it is not ready, and takes events as soon as the gateway listens.
    yield 8.0, publish(names, tenant, domain, "stock", count=3) | {"wait": 1.0}
    yield 0.0, draw.choice(({"do": "kill_all"}, {"do": "restart"}))


MOTIFS: dict[str, Motif] = {
    motif.__name__: motif
    for motif in (
        ordinary, inferred, recreated, retyped, placed, odd_names, limit_filter, large_between, dying_reader, fuzzed,
        documents, history, expiring, receivers, hostile, quiet_domain, restarted, killed, full_disk, clock_jump,
        busy_restart,
    )
}  # fmt: skip
BROKEN = frozenset(("quiet_domain", "restarted", "killed", "full_disk", "clock_jump", "busy_restart"))
