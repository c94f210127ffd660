"""How many documents a second does one core match against 100,000 paths, beside lxml with its paths compiled?

Paths have beginnings, values and ranges in common; a document is walked once for all of them. lxml evaluates
each path by itself, so its cost is the number of paths. The matcher is given documents as strings and gives matches;
lxml is given trees that are parsed already. Both are checked against each other first.

The placement `sonnet` divides the same paths among eight partitions, as it would on Spark: what share the largest has,
of all and of those at a token (`//`), what is held everywhere, to how many partitions a document goes, and with what
share of the paths it meets there. Expected: three partitions at most; with each path held once a document would go
nearly everywhere, as one does that matches half of all paths.

    python -m benchmarks.xml [--quick] [--queries 100000 1000000]
    python -m benchmarks.xml --divided
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
from lxml import etree

from benchmarks.meeting import met
from benchmarks.record import write
from tidings import Matcher
from tidings.filter.compile.compiler import compile_filters
from tidings.filter.xpath_dialect import DOMAIN, PathDialect
from tidings.systems import EVERYWHERE, place, placement_named, statistics_of
from tidings.systems.interface import positions_of
from tidings.systems.sharding import visits_of
from tidings.testing.real_data import DataMissing
from tidings.testing.xml_workloads import XML_WORKLOADS

DOCUMENTS = {100_000: 1_000, 1_000_000: 100}  # by queries, up to which: half a million matches a document add up
REPEATS = 5
PEER_DOCUMENTS = 3  # lxml takes the better part of a second for one
CHECKED = 20_000  # paths that are compared with lxml, pair by pair
PARTITIONS = 8
DIVIDED = 100_000  # paths that the placement divides
SAMPLE = 10_000  # paths by which they are divided


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.xml", description=__doc__)
    parser.add_argument("--queries", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--workloads", nargs="*", default=list(XML_WORKLOADS))
    parser.add_argument("--divided", action="store_true", help="only what the placement makes of 100,000 paths")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the paths, a hundred documents, nothing written"
    )
    options = parser.parse_args(arguments)
    if options.divided:
        return _divide(options.workloads)
    rows: list[dict[str, Any]] = []
    for name in options.workloads:
        for queries in options.queries:
            try:
                row = measure(
                    name, queries // (10 if options.quick else 1), 100 if options.quick else _documents(queries)
                )
            except DataMissing as missing:
                print(f"{name}: {missing}")
                break
            rows.append(row)
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if rows and not options.quick:
        question = (__doc__ or "").splitlines()[0]
        print(f"written to {write('xml', question, rows, same=('workload', 'queries'))}")
    return 0


def _documents(queries: int) -> int:
    return next((count for most, count in DOCUMENTS.items() if queries <= most), 10)


def measure(name: str, queries: int, documents: int) -> dict[str, Any]:
    workload = XML_WORKLOADS[name](queries=queries, documents=documents)
    column = pa.array([document.decode() for document in workload.documents])
    start = time.process_time()
    matcher = Matcher(workload.queries, dialect="xpath", threads=1)
    matches = matcher.match(column)  # the first one builds the index
    built = time.process_time() - start
    _check(workload.queries, workload.documents, matches)
    ours, theirs = [], []
    paths = [etree.XPath(query) for query in workload.queries] if queries <= 100_000 else []
    trees = [etree.fromstring(document).getroottree() for document in workload.documents[: PEER_DOCUMENTS * REPEATS]]
    for repeat in range(REPEATS):
        start = time.process_time()
        matches = matcher.match(column)
        ours.append((time.process_time() - start) / documents)
        if paths:
            start = time.process_time()
            for tree in trees[repeat * PEER_DOCUMENTS : (repeat + 1) * PEER_DOCUMENTS]:
                for path in paths:
                    bool(path(tree))
            theirs.append((time.process_time() - start) / PEER_DOCUMENTS)
    stats = matcher.stats()
    rate = 1 / statistics.median(ours)
    row = {
        "workload": name,
        "queries": queries,
        "distinct_queries": len(set(workload.queries)),
        "documents_per_core_second": round(rate),
        "spread": round((max(ours) - min(ours)) / statistics.median(ours), 2),
        "matches_per_document": round(len(matches) / documents, 1),
        "bytes_per_document": round(sum(map(len, workload.documents)) / documents),
        "build_cpu_s": round(built, 1),
        "index_bytes_per_query": round(stats.bytes / queries, 1),
    }
    if theirs:
        peer = 1 / statistics.median(theirs)
        row |= {"lxml_documents_per_core_second": round(peer, 3), "times_lxml": round(rate / peer)}
    return row


def _divide(workloads: list[str]) -> int:
    """Seeds are fixed, so that neither the machine nor its load matters: a file of its own, measured by itself."""
    rows: list[dict[str, Any]] = []
    for name in workloads:
        workload = XML_WORKLOADS[name](queries=DIVIDED, documents=DOCUMENTS[DIVIDED])
        column = pa.array([document.decode() for document in workload.documents])
        rows.append({"workload": name, "queries": DIVIDED} | divided(workload.queries, column))
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    question = "How does the placement `sonnet` divide paths, and how many partitions does a document visit?"
    print(f"written to {write('xml_placement', question, rows, same=('workload', 'queries'))}")
    return 0


def divided(queries: list[str], documents: Any) -> dict[str, Any]:
    """What the placement `sonnet` makes of the paths, by its law."""
    dialect = PathDialect({})
    texts = dialect.subscriptions(queries).filters
    filters, sample = compile_filters(texts, DOMAIN), compile_filters(texts.slice(0, SAMPLE), DOMAIN)
    events = dialect.events(documents)
    view = placement_named("sonnet").adapt(
        statistics_of(sample, events, subscriptions=filters.count), partitions=PARTITIONS
    )
    placed = place(filters, view)
    owners, tokens = view.owners(placed.keys), [not group.length for _, group in view.groups]
    held = owners != EVERYWHERE
    of_token = held.copy()
    of_token[held] = np.array(tokens)[positions_of(placed.keys[held]) // view.partitions]
    return {
        "sonnet_partitions": PARTITIONS,
        "sonnet_groups": len(view.groups),
        "sonnet_classes": view.visits,
        "sonnet_largest_share": _largest(owners[held], placed.subscriptions[held]),
        "sonnet_largest_share_of_tokens": _largest(owners[of_token], placed.subscriptions[of_token]),
        "sonnet_held_everywhere": round(int((~held).sum()) / filters.count, 3),
        "sonnet_partitions_a_document": round(len(visits_of(events, view)) / events.count, 2),
        "sonnet_met_of_all": round(met(view, placed, events)[0] / filters.count, 3),
    }


def _largest(owners: Any, subscriptions: Any) -> float | None:
    """The share of the subscriptions that the fullest partition has a copy of."""
    return round(float(np.bincount(owners).max() / len(np.unique(subscriptions))), 3) if len(owners) else None


def _check(queries: list[str], documents: list[bytes], matches: Any) -> None:
    checked = queries[:CHECKED]
    paths = [etree.XPath(query) for query in checked]
    for number, document in enumerate(documents[:3]):
        tree = etree.fromstring(document).getroottree()
        judged = {place for place, path in enumerate(paths) if path(tree)}
        found = {place for place in matches.of(number) if place < len(checked)}
        assert found == judged, f"document {number}: {sorted(found ^ judged)[:5]} are found by one of both alone"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
