"""Can one machine serve a thousand small domains: what memory do they take, and how soon are events delivered?

`tidings serve` with its defaults, with 1,000 domains of 10 subscriptions each, in all of them 100 events a second, each
to a domain chosen at random. 100 of the domains have one stream open, of a subscription that gets every event. The
clock of an event starts when its request is sent, and stops when the stream's socket has it. Memory is of the whole
tree of processes, as PSS.

Expected: 6 GiB at most, and p99 at most 2 s.

    python -m benchmarks.many_domains
    python -m benchmarks.many_domains --domains 100 --seconds 30 --dry
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop

from benchmarks.light_http import Connection, Stream
from benchmarks.record import write
from benchmarks.running_service import RunningService, serving
from tidings.model.domain import Attribute, Domain
from tidings.service.data.data_directory import DEFAULT_TENANT, DataDirectory
from tidings.store.catalogue import Catalogue, NewSubscription

DOMAINS, SUBSCRIPTIONS, STREAMS = 1_000, 10, 100
EVENTS_PER_SECOND = 100
WARM_UP_SECONDS, DRAIN_SECONDS = 20.0, 20.0
CONNECTIONS = 4
MEMORY_SECONDS = 5.0


@dataclass
class _Seen:
    called: dict[int, float] = field(default_factory=dict)  # when each event's request was sent, by position
    expected: list[int] = field(default_factory=list)  # positions that streams have to get
    told: list[tuple[int, float]] = field(default_factory=list)  # position, when
    memory_mib: list[dict[str, float]] = field(default_factory=list)


def _fill(data: DataDirectory, domains: int) -> None:
    attributes = [Attribute("price", "double"), Attribute("symbol", "string"), Attribute("note", "string")]
    with Catalogue(data.catalogue) as catalogue:
        made = []
        for number in range(domains):
            name = f"d{number}"
            catalogue.put_domain(DEFAULT_TENANT, name, Domain(name, attributes).to_json(), inferred=False)
            filters = ["price >= 0", *(f"price > {at} AND symbol = 's{at}'" for at in range(SUBSCRIPTIONS - 1))]
            new = (
                NewSubscription(DEFAULT_TENANT, name, text, id=f"{name}-{at}", delivery="sse")
                for at, text in enumerate(filters)
            )
            made += catalogue.create_many(new)
        catalogue.activate_many([row.filters[-1].number for row in made], 0)


async def _measured(service: RunningService, domains: int, seconds: float) -> _Seen:
    seen, chance, loop = _Seen(), random.Random(7), asyncio.get_running_loop()
    streamed = chance.sample(range(domains), min(STREAMS, domains))
    streams = []
    for number in streamed:
        asked = service.request("GET", f"/v1/subscriptions/d{number}-0/stream?ack=auto")
        told = lambda position, when: seen.told.append((position, when))  # noqa: E731
        _, stream = await loop.create_connection(
            lambda asked=asked, told=told: Stream(asked, told), "127.0.0.1", service.port
        )
        streams.append(stream)
    assert {await stream.begun for stream in streams} == {200}
    watching = asyncio.create_task(_watch(service, seen))
    began = time.time()
    numbers = iter(range(round((WARM_UP_SECONDS + seconds) * EVENTS_PER_SECOND)))
    chosen = set(streamed)

    async def publish() -> None:
        connection = await Connection.to("127.0.0.1", service.port)
        for number in numbers:
            due = began + number / EVENTS_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.time()))
            domain = chance.randrange(domains)
            event = {"price": chance.uniform(0, 20), "symbol": f"s{chance.randrange(10)}", "note": "n" * 50}
            path = f"/v1/domains/d{domain}/events"
            status, body = await connection.ask(service.request("POST", path, json.dumps(event).encode()))
            assert status == 200, body
            (position,) = json.loads(body)["positions"]
            seen.called[position] = due
            if domain in chosen:
                seen.expected.append(position)
        connection.close()

    await asyncio.gather(*(publish() for _ in range(CONNECTIONS)))
    until = time.time() + DRAIN_SECONDS
    while len(seen.told) < len(seen.expected) and time.time() < until:
        await asyncio.sleep(0.1)
    watching.cancel()
    for stream in streams:
        stream.close()
    return seen


async def _watch(service: RunningService, seen: _Seen) -> None:
    loop = asyncio.get_running_loop()
    while True:
        seen.memory_mib.append(await loop.run_in_executor(None, service.memory_mib))
        await asyncio.sleep(MEMORY_SECONDS)


def measure(domains: int, seconds: float) -> dict[str, Any]:
    began = time.time()
    with serving(lambda data: _fill(data, domains), "d0") as service:
        ready = time.time() - began
        seen = uvloop.run(_measured(service, domains, seconds))
    told = [position for position, _ in seen.told]
    assert sorted(told) == sorted(seen.expected), f"{len(seen.expected)} were to come, {len(set(told))} came"
    begin = min(seen.called.values()) + WARM_UP_SECONDS
    delays = np.array([when - seen.called[at] for at, when in seen.told if seen.called[at] >= begin])
    most = max(seen.memory_mib, key=lambda parts: sum(parts.values()))
    return {
        "domains": domains,
        "subscriptions_each": SUBSCRIPTIONS,
        "events_per_second": EVENTS_PER_SECOND,
        "seconds": seconds,
        "events": len(seen.called),
        "notifications_timed": len(delays),
        "missing_or_wrong": 0,
        "ready_s": round(ready, 1),
        "p50_s": round(float(np.percentile(delays, 50)), 3),
        "p99_s": round(float(np.percentile(delays, 99)), 3),
        "max_s": round(float(delays.max()), 3),
        "memory_mib": round(sum(most.values())),
        "memory_mib_by_part": {part: round(mib) for part, mib in most.items()},
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", type=int, default=DOMAINS)
    parser.add_argument("--seconds", type=float, default=120.0, help="after the warm-up")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    given = parser.parse_args()
    row = measure(given.domains, given.seconds)
    print(json.dumps(row))
    if not given.dry:
        write("many_domains", (__doc__ or "").splitlines()[0], [row], same=("domains",))


if __name__ == "__main__":
    main()
