"""What do pages by groups save of the bytes and the time of writing notifications, and what do they cost to read?

The matches of a workload are loaded into a store in micro-batches: as rows, in groups of 256 drawn at random, and in
groups of 256 that are alike. All three are compared with the matches before anything is reported. Bytes are those
that the process hands to the system for writing, through the log of SQLite and its checkpoints.

Expected on `bluedove`, 40,000 subscriptions and 110 matches an event: a tenth of the bytes and several times the events
a second; groups that are alike beat random ones in bytes. On `alerts`, where an event has few matches and no two
subscriptions have many events in common, pages are worth little, and most stay rows. What a service would do by its own
estimate, from a sample of 2,000 events, is in `service_groups`: none where groups do not pay.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.record import write
from tidings.filter.compile.compiler import compile_filters
from tidings.matching.analysis.rectangle_forest import GROUP, groups_of
from tidings.matching.matcher import Matcher
from tidings.pipeline.sinks.mailbox_groups import SimilarGroups, regroup
from tidings.service.driver.domain_adaptation import SAMPLE
from tidings.store.mailboxes.notifications import LOG, MAX_WAITING, Notifications
from tidings.testing.workloads import WORKLOADS

QUESTION = __doc__.strip().splitlines()[0]
CASES = (("bluedove", 40_000, 20_000), ("mixed", 100_000, 4_000), ("alerts", 200_000, 4_000))
MICRO_BATCHES = (500, 2_000)
READ = 500  # mailboxes that are read, drawn at random


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delivery_groups", description=QUESTION)
    parser.add_argument("--quick", action="store_true", help="a look on few events; nothing is written")
    parser.add_argument("--workloads", default=",".join(name for name, _, _ in CASES))
    parsed = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for name, subscriptions, events in CASES:
        if name in parsed.workloads.split(","):
            for row in measure(name, subscriptions, events // 10 if parsed.quick else events):
                rows.append(row)
                print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if parsed.quick:
        print("too quick for figures: nothing is written")
    else:
        same = ("workload", "subscriptions", "batch", "way")
        print(f"written to {write('delivery_groups', QUESTION, rows, same=same)}")
    return 0


def measure(name: str, subscriptions: int, events: int) -> Iterator[dict[str, Any]]:
    workload = WORKLOADS[name](subscriptions, events)
    matcher = Matcher(pa.table({"id": np.arange(subscriptions), "filter": workload.filters}), workload.domain)
    matches = matcher.match(workload.events)
    offsets, ids = matches.offsets, np.asarray(matches.ids)
    start = time.perf_counter()
    alike = groups_of(compile_filters(workload.filters, workload.domain))
    grouping_seconds = time.perf_counter() - start
    order = np.random.default_rng(7).permutation(np.concatenate(alike))
    ways = {
        "rows": [],
        "random groups": [order[at : at + GROUP].tolist() for at in range(0, len(order), GROUP)],
        "groups": [group.tolist() for group in alike],
    }
    made = SimilarGroups(pa.array(np.concatenate(alike)), np.cumsum([0, *map(len, alike)]))
    for batch in MICRO_BATCHES:
        base: dict[str, Any] = {}
        service = _service(made, offsets, ids, events, batch)
        for way, groups in ways.items():
            row = _loaded(offsets, ids, events, batch, groups)
            base = base or row
            yield {
                "workload": name, "subscriptions": subscriptions, "events": events, "batch": batch, "way": way,
                "matches_per_event": round(len(ids) / events, 1), **row,
                "bytes_to_rows": round(row["bytes_per_notification"] / base["bytes_per_notification"], 3),
                "events_to_rows": round(row["events_per_second"] / base["events_per_second"], 2),
                "grouping_seconds": round(grouping_seconds, 1) if way == "groups" else 0.0,
                "service_groups": service if way == "groups" else 0, "seeds": "1, 2",
            }  # fmt: skip


def _service(made: SimilarGroups, offsets: Any, ids: Any, events: int, batch: int) -> int:
    """How many groups a service would make of these, whose micro-batches have so many events."""
    sampled = min(events, SAMPLE)
    at = np.repeat(np.arange(sampled), np.diff(offsets[: sampled + 1]))
    with Notifications(":memory:", max_waiting=MAX_WAITING) as store:
        found = regroup(made, store, at, pa.array(ids[: offsets[sampled]]), events_a_load=batch)
    return len(found.groups) if found.pays else 0


def _loaded(offsets: Any, ids: Any, events: int, batch: int, groups: list[list[int]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tidings-groups-") as folder:
        path = Path(folder) / "notifications"
        with Notifications(path, max_waiting=MAX_WAITING) as store:
            store.group(groups)
            store._connection.wal_checkpoint()
            empty, written = path.stat().st_size, _written()
            start = time.perf_counter()
            for number, first in enumerate(range(0, events, batch)):
                last = min(first + batch, events)
                lists = pa.ListArray.from_arrays(
                    pa.array((offsets[first : last + 1] - offsets[first]).astype(np.int32)),
                    pa.array(ids[offsets[first] : offsets[last]]),
                )
                table = pa.table({"position": np.arange(first, last), "subscriptions": lists})
                store.load([table], query="q", batch=number, version=1, reached={LOG: last - 1})
            seconds = time.perf_counter() - start
            store._connection.wal_checkpoint()
            taken, written = path.stat().st_size - empty, _written() - written
            paged = store._ask("SELECT coalesce(sum(notifications), 0) FROM pages")[0][0]
            read = _read(store, offsets, ids)
        return {
            "bytes_per_notification": round(taken / len(ids), 2),
            "written_per_notification": round(written / len(ids), 2),
            "in_pages": round(paged / len(ids), 3),
            "events_per_second": round(events / seconds),
            "read_ms": round(read, 3),
        }


def _read(store: Notifications, offsets: Any, ids: Any) -> float:
    """Milliseconds to read a mailbox, checked against the matches; of some that have any."""
    events = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    chosen = np.random.default_rng(3).choice(np.unique(ids), READ)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    seconds = 0.0
    for id_ in chosen.tolist():
        expected = np.sort(events[order[slice(*np.searchsorted(ordered, [id_, id_ + 1]))]]).tolist()
        start = time.perf_counter()
        found = store.positions_of(id_)
        seconds += time.perf_counter() - start
        assert found == expected
    return 1000 * seconds / len(chosen)


def _written() -> int:
    """Bytes that this process has handed to the system to write."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
