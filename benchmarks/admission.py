"""What does a document cost a node of Sonnet by its header, beside filtering it, for one query and for many?

A node compares the header that came with a packet with the digests of those that it serves, and filters what these
admit. Compared are, on one core and in turns,

    header    the packet's digests as integers, and all queries compared with them in the kernel
    filters   the document read, and each query evaluated on it, as a node does for its own
    index     the document read, and all queries looked up in the shared index of paths

Expected: the header costs less than either at every number of queries; what it admits beyond what matches is
reported beside it. The kernel is checked against the law as it is written, first.

    python -m benchmarks.admission [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.record import write
from tidings.systems.sonnet.document_header import Header, admits, header_of, query_table
from tidings.systems.sonnet.path_digest import query_digest, to_bits
from tidings.testing.real_data import DataMissing
from tidings.testing.xml_workloads import XML_WORKLOADS
from tidings.xml.document_columns import read_documents
from tidings.xml.path_index import build_path_index
from tidings.xml.path_meaning import read_document
from tidings.xml.path_parser import parse_path

QUERIES = (1, 10, 100, 1_000, 10_000, 100_000)
FILTERED_MAX = 1_000  # queries that are evaluated one by one
DOCUMENTS = 20
REPEATS = 5
CHECKED = 200  # queries


def measure(name: str, count: int) -> dict[str, Any]:
    workload = XML_WORKLOADS[name](queries=count, documents=DOCUMENTS)
    paths = [parse_path(query) for query in workload.queries]
    digests = [query_digest(path) for path in paths]
    table, index = query_table([to_bits(digest) for digest in digests], "ranks"), build_path_index(workload.queries)
    headers = [header_of(read_document(document)) for document in workload.documents]
    admitted = sum(int(table.admitted(header).sum()) for header in headers)
    for header in headers:
        assert table.admitted(header)[:CHECKED].tolist() == [admits(header, digest) for digest in digests[:CHECKED]]

    def by_header() -> None:
        for header in headers:
            table.admitted(Header(header.entries, header.mask))

    def by_filters() -> None:
        for document in workload.documents:
            read = read_document(document)
            for path in paths:
                read.holds(path)

    def by_index() -> int:
        matched = 0
        for document in workload.documents:
            offsets, _ = index.match(read_documents([document], text=False))
            matched += int(offsets[-1])
        return matched

    matched = by_index()
    ways: dict[str, Callable[[], object]] = {"header": by_header, "index": by_index}
    if count <= FILTERED_MAX:
        ways["filters"] = by_filters
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(REPEATS):
        for way, run in ways.items():
            start = time.process_time_ns()
            run()
            times[way].append((time.process_time_ns() - start) / 1e3 / DOCUMENTS)
    medians = {way: statistics.median(taken) for way, taken in times.items()}
    ratios = {
        f"header_of_{way}": round(statistics.median(a / b for a, b in zip(times["header"], taken, strict=True)), 4)
        for way, taken in times.items()
        if way != "header"
    }
    row = {"workload": name, "queries": count, "documents": DOCUMENTS}
    row |= {f"{way}_us_a_document": round(taken, 1) for way, taken in medians.items()}
    return row | ratios | {"admitted_share": _share(admitted, count), "matched_share": _share(matched, count)}


def _share(pairs: int, queries: int) -> float:
    return round(pairs / (queries * DOCUMENTS), 4)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 1,000 queries, nothing written")
    options = parser.parse_args(arguments)
    rows = []
    for name in XML_WORKLOADS:
        for count in QUERIES[:4] if options.quick else QUERIES:
            try:
                row = measure(name, count)
            except DataMissing as missing:
                print(f"{name}: {missing}")
                break
            rows.append(row)
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if rows and not options.quick:
        question = (__doc__ or "").splitlines()[0]
        print(f"written to {write('admission', question, rows, same=('workload', 'queries'))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
