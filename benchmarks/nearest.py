"""How long does it take to find the filters that an event came nearest to?

Expected: at most five seconds of one core for a million filters, for a person who asks. The limit is a pass over the
texts that finds shapes and literals, and another that takes the literals out; predicates are then compared as arrays.
Beside it the plain way, which parses and explains every filter, on a few of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from benchmarks.options import Options
from tidings.filter.syntax.parser import parse_filter
from tidings.matching.explain.explanation import Explanation, explain
from tidings.matching.matcher import Matcher
from tidings.model.event import read_record
from tidings.testing import workloads

EVENTS = 5
LIMIT = 5
EXPLAINED = 2_000  # filters, for the plain way

SHOWN = ("workload", "subscriptions", "seconds", "spread", "microseconds_a_filter", "plainly_microseconds_a_filter")


def run(options: Options) -> Iterator[dict[str, Any]]:
    """Rows by workload and number of filters, each checked against the plain way before it is timed."""
    for name in options.workloads:
        for size in options.sizes:
            yield _row(name, size)


def _row(name: str, size: int) -> dict[str, Any]:
    workload = workloads.WORKLOADS[name](subscriptions=size, events=EVENTS)
    events = workload.events.to_pylist()
    few = workload.filters[:EXPLAINED]
    matcher = _matcher(few, workload.domain)
    started = time.process_time()
    plainly = [_plainly(few, workload.domain, event) for event in events[:1]]
    plain_seconds = time.process_time() - started
    assert plainly == [matcher.nearest(event, LIMIT) for event in events[:1]]
    matcher = _matcher(workload.filters, workload.domain)
    times = []
    for event in events:
        started = time.process_time()
        matcher.nearest(event, LIMIT)
        times.append(time.process_time() - started)
    seconds = statistics.median(times)
    return {
        "workload": name,
        "subscriptions": size,
        "seconds": round(seconds, 2),
        "spread": round((max(times) - min(times)) / seconds, 2),
        "microseconds_a_filter": round(seconds / size * 1e6, 1),
        "plainly_microseconds_a_filter": round(plain_seconds / len(few) * 1e6, 1),
        "seeds": [workloads.SUBSCRIPTION_SEED, workloads.EVENT_SEED],
    }


def _matcher(filters: Any, domain: Any) -> Matcher:
    return Matcher(pa.table({"id": pa.array(range(len(filters)), pa.int64()), "filter": filters}), domain, threads=1)


def _plainly(filters: Any, domain: Any, event: dict[str, Any]) -> list[Explanation]:
    record = read_record(event, domain)
    explained = [
        explain(parse_filter(text, domain), record, subscription=row, text=text)
        for row, text in enumerate(filters.to_pylist())
    ]
    misses = [one for one in explained if not one.matches]
    return sorted(misses, key=lambda miss: (miss.failing, miss.distance, miss.subscription))[:LIMIT]
