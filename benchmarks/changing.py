"""What do 10,000 changes a second cost matching?

Alerts with 1,000,000 subscriptions, batches of 1,000 events and of 10,000; between two batches come the changes
that fell due meanwhile, half of them new subscriptions of shapes known before, half removals. The
clock is the CPU time of the thread that matches and changes, as it would be on a machine that does
nothing else. All CPU time counts as cost: the changes themselves, slower matching, merging in the
background. In turn with it the same batches are matched by a matcher that nobody changes; the cost is the
median of what each two turns show. A merge with the large segment comes once in 250,000 additions, and is
not in it.

Expected: below 25 % of the events per core-second without changes. With larger batches more changes come at once, and
each costs less: between batches of 1,000 there are some sixty of each kind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import tidings
from benchmarks.options import Options
from tidings.testing import workloads

SUBSCRIPTIONS = 1_000_000
CHANGES_PER_SECOND = 10_000
SECONDS = 2.0  # of a turn: the machine's own swings are longer
KNOWN = 4_000  # subscriptions added before, so that shapes are known
BATCHES = (1_000, 10_000)
ROUNDS = 15  # together long enough for what is added to grow to a sixth of what was there


def run(options: Options) -> Iterator[dict[str, Any]]:
    """One row for each size of batches."""
    for batch in BATCHES:
        yield _row(options, batch)


def _row(options: Options, batch: int) -> dict[str, Any]:
    subscriptions = 20_000 if options.quick else SUBSCRIPTIONS
    seconds = 0.1 if options.quick else SECONDS
    spare = int(ROUNDS * seconds * CHANGES_PER_SECOND / 2) + KNOWN + max(BATCHES)
    workload = workloads.alerts(subscriptions=subscriptions + spare, events=2 * max(BATCHES))
    ids = np.arange(subscriptions + spare)
    table = pa.table({"id": ids, "filter": workload.filters})
    matcher, unchanged = (tidings.Matcher(table.slice(0, subscriptions), workload.domain, threads=1) for _ in range(2))
    for one in (matcher, unchanged):  # each chooses its engines by the first batch that it sees
        one.match(workload.events.slice(0, batch))
    changing = _Stream(matcher, workload.events, table, subscriptions, batch)
    still = _Stream(unchanged, workload.events, table, subscriptions, batch)
    changing.check()
    for _ in range(KNOWN // 200):
        changing.change(200)
    matcher.settle()
    rates: dict[str, list[float]] = {"unchanged": [], "changing": []}
    for _ in range(ROUNDS):
        rates["unchanged"].append(still.events_per_core_second(seconds, changing=False))
        rates["changing"].append(changing.events_per_core_second(seconds, changing=True))
    changing.check()
    without, under = (float(np.median(found)) for found in rates.values())
    costs = 1 - np.array(rates["changing"]) / np.array(rates["unchanged"])
    return {
        "workload": workload.name,
        "subscriptions": subscriptions,
        "batch": batch,
        "changes_per_second": CHANGES_PER_SECOND,
        "events_per_core_second_unchanged": round(without),
        "events_per_core_second_changing": round(under),
        "cost_percent": round(100 * float(np.median(costs)), 1),
        "cost_percent_quartiles": [round(100 * float(cost), 1) for cost in np.quantile(costs, (0.25, 0.75))],
        "changes": changing.changes,
        "seeds": f"{workloads.SUBSCRIPTION_SEED}, {workloads.EVENT_SEED}",
    }


class _Stream:
    """Batches of events, and a supply of changes: subscriptions are added in order, and the oldest removed."""

    def __init__(self, matcher: tidings.Matcher, events: Any, table: pa.Table, present: int, batch: int) -> None:
        self._matcher: Any = matcher
        self._batch = batch
        self._events = events
        self._table = table
        self._oldest, self._next = 0, present

    @property
    def changes(self) -> int:
        return 2 * self._oldest

    def events_per_core_second(self, seconds: float, *, changing: bool) -> float:
        matched, changed = 0, 0
        started, cpu_started = time.thread_time(), time.process_time()
        while (elapsed := time.thread_time() - started) < seconds:
            if changing:
                due = int(elapsed * CHANGES_PER_SECOND / 2) - changed
                self.change(due)
                changed += due
            self._matcher.match(self._events.slice(matched % len(self._events), self._batch))
            matched += self._batch
        return matched / (time.process_time() - cpu_started)

    def change(self, count: int) -> None:
        """So many additions and as many removals."""
        if count:
            self._matcher.add(self._table.slice(self._next, count))
            self._matcher.remove(self._table["id"].slice(self._oldest, count).to_pylist())
            self._next += count
            self._oldest += count

    def check(self) -> None:
        """A matcher made afresh of what is subscribed now finds the same."""
        events = self._events.slice(0, 50)
        fresh = tidings.Matcher(self._table.slice(self._oldest, self._next - self._oldest), self._matcher.domain)
        found, expected = (sorted(matcher.match(events).pairs()) for matcher in (self._matcher, fresh))
        assert found == expected, "the changed matcher finds something else than one made afresh"
