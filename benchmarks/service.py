"""How fast does the service take events, how soon does it deliver them, and does its memory stay as it is?

`tidings serve` as anybody starts it, on this machine, and the client that loads it on the same cores: what the
client takes, the service lacks. Every figure is over HTTP, with a token, and an answer to a publisher
means that its events are on the disk.

publishing   alerts, as fast as it goes: one event a request over 64 connections, and 1,000 a request over 4; plain
             and as CloudEvents, which are deduplicated; to the gateway alone, and to the whole service, which
             matches them against 100,000 subscriptions meanwhile
delivery     alerts with 100,000 subscriptions, about 4 matches an event, 500 events a second for five minutes, ten a
             request; 1,000 of the subscriptions have a stream open. The clock of an event starts when its request is
             sent, and stops when the stream's socket has it. What the streams got is compared with what a
             `Matcher` says that they have to get. Memory is looked at every five seconds.

Expected: 20,000 events a second in batches and 1,500 one by one; p50 at most 0.6 s and p99 at most 1.5 s; memory flat.

    python -m benchmarks.service
    python -m benchmarks.service --parts delivery --seconds 60
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop

from benchmarks.light_http import Connection, Stream, as_fast_as_possible
from benchmarks.processes import cpu_seconds_of
from benchmarks.record import write
from benchmarks.running_service import RunningService, running
from tidings.matching.matcher import Matcher
from tidings.testing import workloads

PARTS = ("publishing", "delivery")
SUBSCRIPTIONS = 100_000
PUBLISH_SECONDS = 8.0
ONE, MANY = 64, 4  # connections, for requests of one event and of many
EVENTS_A_BATCH = 1_000
EVENTS_PER_SECOND, EVENTS_A_REQUEST = 500, 10
STREAMS = 1_000
WARM_UP_SECONDS = 20.0
DRAIN_SECONDS = 30.0
MEMORY_SECONDS = 5.0
PERCENTILES = (50, 99)


# ---------------------------------------------------------------------- publishing


def publishing(subscriptions: int, seconds: float) -> Iterator[dict[str, Any]]:
    workload = workloads.alerts(subscriptions=subscriptions, events=10_000)
    events = workload.events.to_pylist()
    for alone in (True, False):
        with running(workload, gateway_alone=alone) as service:
            for name, bodies, size, connections, media_type in _bodies(events, seconds):
                requests = [service.publish(body, media_type) for body in bodies]
                uvloop.run(_loaded(service, requests[: len(requests) // 20], connections, seconds))  # warm
                before = cpu_seconds_of(service.process.pid)
                sent = uvloop.run(_loaded(service, requests[len(requests) // 20 :], connections, seconds))
                assert not sent.refused, sent.last_refusal
                count = len(sent.took) * size
                took_ms = np.array(sent.took) * 1e3
                yield {
                    "part": "publishing",
                    "to": "the gateway alone" if alone else "the whole service",
                    "what": name,
                    "subscriptions": subscriptions,
                    "connections": connections,
                    "events": count,
                    "events_per_second": round(count / sent.seconds),
                    "service_cpu_us_an_event": round((cpu_seconds_of(service.process.pid) - before) / count * 1e6, 1),
                    "answer_p50_ms": round(float(np.percentile(took_ms, 50)), 1),
                    "answer_p99_ms": round(float(np.percentile(took_ms, 99)), 1),
                }


def _bodies(events: list[dict[str, Any]], seconds: float) -> Iterator[tuple[str, list[bytes], int, int, str]]:
    """Bodies of requests, more than can be sent in the time; no CloudEvent is there twice."""
    plain = [json.dumps(event).encode() for event in events]
    batches = [plain[at : at + EVENTS_A_BATCH] for at in range(0, len(plain), EVENTS_A_BATCH)]
    count, many = round(seconds * 8_000), round(seconds * 100)
    yield "one event a request", [plain[i % len(plain)] for i in range(count)], 1, ONE, "application/json"
    yield (
        f"{EVENTS_A_BATCH:,} a request",
        [b"[" + b",".join(batches[i % len(batches)]) + b"]" for i in range(many)],
        EVENTS_A_BATCH,
        MANY,
        "application/json",
    )
    stamp = time.time_ns()

    def cloud_event(number: int) -> bytes:
        head = f'{{"specversion":"1.0","id":"{stamp}-{number}","source":"/bench","type":"alert","data":'
        return head.encode() + plain[number % len(plain)] + b"}"

    yield (
        "one CloudEvent a request",
        [cloud_event(i) for i in range(count)],
        1,
        ONE,
        "application/cloudevents+json",
    )
    numbers = range(count, count + many * EVENTS_A_BATCH, EVENTS_A_BATCH)
    yield (
        f"{EVENTS_A_BATCH:,} CloudEvents a request",
        [b"[" + b",".join(map(cloud_event, range(first, first + EVENTS_A_BATCH))) + b"]" for first in numbers],
        EVENTS_A_BATCH,
        MANY,
        "application/cloudevents-batch+json",
    )


async def _loaded(service: RunningService, requests: list[bytes], connections: int, seconds: float) -> Any:
    return await as_fast_as_possible("127.0.0.1", service.port, requests, connections, seconds)


# ---------------------------------------------------------------------- delivery


@dataclass
class _Seen:
    """What publisher and streams have noted; times are of one clock."""

    began: float = 0.0
    called: list[float] = field(default_factory=list)  # when the request of each event was sent, by position
    told: list[tuple[int, int, float]] = field(default_factory=list)  # stream, position, when
    memory: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    late: int = 0  # requests that were sent later than they were due


def delivery(subscriptions: int, seconds: float) -> Iterator[dict[str, Any]]:
    workload = workloads.alerts(subscriptions=subscriptions, events=10_000)
    chosen = np.random.default_rng(5).choice(subscriptions, min(STREAMS, subscriptions), replace=False)
    with running(workload) as service:
        seen = uvloop.run(_delivered(service, workload, [int(number) for number in chosen], seconds))
    matches = Matcher(dict(enumerate(workload.filters.to_pylist())), workload.domain).match(workload.events).pairs()
    streams = {int(number): stream for stream, number in enumerate(chosen)}
    wanted: dict[int, list[int]] = {}
    for event, subscription in matches:
        if int(subscription) in streams:
            wanted.setdefault(event, []).append(streams[int(subscription)])
    count = workload.events.num_rows
    expected = {
        (stream, position) for position in range(len(seen.called)) for stream in wanted.get(position % count, ())
    }
    got = [(stream, position) for stream, position, _ in seen.told]
    assert len(got) == len(set(got)), "a stream that never broke was told something twice"
    assert set(got) == expected, (
        f"{len(expected - set(got))} notifications are missing, {len(set(got) - expected)} wrong"
    )
    begin = seen.began + WARM_UP_SECONDS
    delays = np.array([when - seen.called[at] for _, at, when in seen.told if seen.called[at] >= begin])
    memory = [(when - begin, parts) for when, parts in seen.memory if when >= begin]
    row: dict[str, Any] = {
        "part": "delivery",
        "subscriptions": subscriptions,
        "streams": len(chosen),
        "seconds": seconds,
        "events_per_second": EVENTS_PER_SECOND,
        "events": len(seen.called),
        "matches_an_event": round(len(matches) / count, 2),
        "requests_late": seen.late,
        "notifications_timed": len(delays),
        "missing_or_wrong": 0,
        **{f"p{percent}_s": round(float(np.percentile(delays, percent)), 3) for percent in PERCENTILES},
        "max_s": round(float(delays.max()), 3),
    }
    for part in memory[0][1]:
        row[f"{part}_mib_first"], row[f"{part}_mib_last"] = round(memory[0][1][part]), round(memory[-1][1][part])
    row["memory_mib"] = [[round(at), *(round(mib) for mib in parts.values())] for at, parts in memory]
    row["memory_of"] = ["second", *memory[0][1]]
    yield row


async def _delivered(service: RunningService, workload: Any, chosen: list[int], seconds: float) -> _Seen:
    seen = _Seen()
    loop = asyncio.get_running_loop()
    streams = []
    for at, number in enumerate(chosen):
        asked = service.request("GET", f"/v1/subscriptions/s{number}/stream?ack=auto")

        def told(position: int, when: float, at: int = at) -> None:
            seen.told.append((at, position, when))

        _, stream = await loop.create_connection(
            lambda asked=asked, told=told: Stream(asked, told), "127.0.0.1", service.port
        )
        streams.append(stream)
    assert {await stream.begun for stream in streams} == {200}
    events = [json.dumps(event).encode() for event in workload.events.to_pylist()]
    parts = [events[at : at + EVENTS_A_REQUEST] for at in range(0, len(events), EVENTS_A_REQUEST)]
    requests = [service.publish(b"[" + b",".join(part) + b"]") for part in parts]
    watching = asyncio.create_task(_watch(service, seen))
    seen.began = time.time()
    await _paced(service, requests, round((WARM_UP_SECONDS + seconds) * EVENTS_PER_SECOND / EVENTS_A_REQUEST), seen)
    await asyncio.sleep(DRAIN_SECONDS)
    watching.cancel()
    assert not any(stream.ended for stream in streams), "a stream has ended"
    for stream in streams:
        stream.close()
    return seen


async def _paced(service: RunningService, requests: list[bytes], count: int, seen: _Seen) -> None:
    """Send requests when they are due, one after the other: the next may wait, and its clock has begun."""
    connection = await Connection.to("127.0.0.1", service.port)
    pause = EVENTS_A_REQUEST / EVENTS_PER_SECOND
    for number in range(count):
        due = seen.began + number * pause
        wait = due - time.time()
        if wait > 0:
            await asyncio.sleep(wait)
        seen.late += wait < -pause
        called = min(due, time.time()) if wait <= 0 else time.time()
        status, body = await connection.ask(requests[number % len(requests)])
        assert status == 200, body
        positions = json.loads(body)["positions"]
        assert positions[0] == len(seen.called), "somebody else publishes"
        seen.called += [called] * len(positions)
    connection.close()


async def _watch(service: RunningService, seen: _Seen) -> None:
    loop = asyncio.get_running_loop()
    while True:
        seen.memory.append((time.time(), await loop.run_in_executor(None, service.memory_mib)))
        await asyncio.sleep(MEMORY_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=300.0, help="of delivery, after the warm-up")
    parser.add_argument("--subscriptions", type=int, default=SUBSCRIPTIONS)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for part in given.parts.split(","):
        measured = publishing(given.subscriptions, PUBLISH_SECONDS) if part == "publishing" else None
        for row in measured or delivery(given.subscriptions, given.seconds):
            rows.append(row)
            shown = {name: value for name, value in row.items() if name != "memory_mib"}
            print(json.dumps(shown), f"load {os.getloadavg()[0]:.1f}", flush=True)
    if not given.dry:
        write("service", (__doc__ or "").splitlines()[0], rows, same=("part",))


if __name__ == "__main__":
    main()
