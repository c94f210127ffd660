"""The figures in the README and the manual, written from the result files: `python -m benchmarks.figures`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->"


def of_matching() -> str:
    compiling, matching = _result("compiling"), _result("matching")
    lines = [
        f"On {_machine(matching)}, load {matching['machine']['load']} with the measurement itself; "
        "the spread is in the result files.",
        "",
        *_matching_table(matching["rows"]),
        "",
        "Events are Arrow columns as a user has them; the ratios are of CPU time in the same run. DuckDB and Polars",
        "are given one join for each class of filters, the best that was found for them, and DuckDB also the one join",
        "that one would write first. Times are of building the index from compiled filters.",
        "",
        *_compiling_table(compiling["rows"]),
    ]
    return "\n".join(lines) + "\n"


def _matching_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| workload | subscriptions | events/s on one core | matches an event | × numpy | × DuckDB "
        "| × DuckDB, one join | × Polars | bytes a subscription | built in |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["engine"] != "tidings":
            continue
        ratios = [
            next((f"{other['tidings_times_faster']:,.0f}" for other in rows if _same(row, other, peer)), "–")
            for peer in ("numpy", "duckdb", "duckdb one join", "polars")
        ]
        cells = [
            row["workload"],
            f"{row['subscriptions']:,}",
            f"{round(row['events_per_core_second'], -2):,.0f}",
            f"{row['matches_per_event']:,}",
            *ratios,
            f"{row['bytes_per_subscription']:.0f}",
            f"{row['build_seconds']:.1f} s",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _same(row: dict[str, Any], other: dict[str, Any], engine: str) -> bool:
    return other["engine"] == engine and all(row[key] == other[key] for key in ("workload", "subscriptions"))


def _compiling_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| compiling | filters/s on one core |", "|---|---|"]
    return lines + [f"| {row['case']} | {round(row['filters_per_core_second'], -2):,} |" for row in rows]


def of_spark() -> str:
    result, latency = _result("spark_matching"), _result("spark_latency")
    rows = result["rows"]
    lines = [
        f"On {_machine(result)}; `local[2]` where nothing else is said, from Parquet to Spark's `noop`. Memory is of",
        "all processes together: driver, JVM, Python workers.",
        "",
        "| workload | subscriptions | | events/s | a CPU second | memory | compiled in |",
        "|---|---|---|---|---|---|---|",
    ]
    shown = [row for part in ("bars", "sql", "ten-million") for row in rows if row["part"] == part]
    for row in shown:
        compiled = f"{row['compile_seconds']:,.0f} s" if "compile_seconds" in row else "–"
        cells = [
            row["workload"], f"{row['subscriptions']:,}", row["way"], f"{row['events_per_second']:,}",
            f"{row['events_per_cpu_second']:,.0f}", f"{row['peak_mib']:,} MiB", compiled,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    (ours,) = (row for row in rows if "times_best_sql" in row)
    lines += [
        "",
        f"In CPU seconds, in one run, `match` is {ours['times_best_sql']:,} times as fast as the best SQL.",
        "",
        "![Events a CPU second by subscriptions, for two placements](pictures/spark-by-subscriptions.png)",
        "![Events a second on one core and on two](pictures/spark-by-cores.png)",
    ]
    beyond = [row for row in rows if row["part"] == "beyond"]
    if beyond:
        lines += [
            "",
            f"Two executors whose workers may have {beyond[0]['worker_mib']:,} MiB of addresses each, and an index of "
            f"{beyond[0]['subscriptions']:,} {beyond[0]['workload']} subscriptions, whose ranges are "
            f"{beyond[0]['width']} wide:",
            "",
            "| placement | events/s |",
            "|---|---|",
            *(f"| {_beyond(row)} |" for row in sorted(beyond, key=lambda row: "failed" not in row)),
        ]
    (stream,) = (row for row in latency["rows"] if row["seconds"] >= 600)
    lines += [
        "",
        f"A stream of {stream['events_per_second']:,} alerts a second from the log to the store, with "
        f"{stream['subscriptions']:,} subscriptions, for {stream['seconds']:.0f} s: half within "
        f"{stream['p50_s']:.2f} s, 99 % within {stream['p99_s']:.2f} s; changed subscriptions in use after "
        f"{stream['changes_seen_max_s']:.1f} s at most; memory {stream['memory_mib_first']:,} MiB at first and "
        f"{stream['memory_mib_last']:,} MiB at the end.",
    ]
    return "\n".join(lines) + "\n"


def _beyond(row: dict[str, Any]) -> str:
    name = row["way"].split()[0]
    if "failed" in row:
        return f"{name} | refused: no room in memory"
    return (
        f"{name}, which is {row['chosen']} | {row['events_per_second']:,}"
        if "chosen" in row
        else (f"{name} | {row['events_per_second']:,}")
    )


def of_service() -> str:
    result = _result("service")
    publishing = [row for row in result["rows"] if row["part"] == "publishing"]
    (delivery,) = (row for row in result["rows"] if row["part"] == "delivery")
    lines = [
        f"On {_machine(result)}, with the client that loads the service on the same cores.",
        "",
        "| published, durable, as fast as it goes | events/s, the gateway alone | events/s, while Spark matches them "
        f"against {delivery['subscriptions']:,} subscriptions |",
        "|---|---|---|",
    ]
    for what in dict.fromkeys(row["what"] for row in publishing):
        rates = [f"{round(row['events_per_second'], -2):,}" for row in publishing if row["what"] == what]
        lines.append(f"| {what} | {' | '.join(rates)} |")
    lines += [
        "",
        f"| {delivery['events_per_second']} events/s for {delivery['seconds']:.0f} s, {delivery['subscriptions']:,} "
        f"subscriptions, {delivery['matches_an_event']} matches an event, {delivery['streams']:,} open streams | |",
        "|---|---|",
        f"| from the publisher's request to the subscriber's socket | p50 {delivery['p50_s']:.2f} s, p99 "
        f"{delivery['p99_s']:.2f} s, the longest {delivery['max_s']:.2f} s, of {delivery['notifications_timed']:,} |",
        f"| notifications missing, wrong or twice | {delivery['missing_or_wrong']} |",
    ]
    for part, called in _MEMORY.items():
        first, last = delivery[f"{part}_mib_first"], delivery[f"{part}_mib_last"]
        lines.append(f"| memory of {called}, after the warm-up and at the end | {first:,} MiB, {last:,} MiB |")
    return "\n".join([*lines, *_of_many_domains()]) + "\n"


def _of_many_domains() -> list[str]:
    result = _result("many_domains")
    (row,) = result["rows"]
    return [
        "",
        f"| {row['domains']:,} domains of {row['subscriptions_each']} subscriptions, {row['events_per_second']} "
        f"events/s over all of them, on {_machine(result)} | |",
        "|---|---|",
        f"| from the publisher's request to the subscriber's socket | p50 {row['p50_s']:.2f} s, p99 "
        f"{row['p99_s']:.2f} s, the longest {row['max_s']:.2f} s, of {row['notifications_timed']:,} |",
        f"| notifications missing, wrong or twice | {row['missing_or_wrong']} |",
        f"| memory of all processes | {row['memory_mib']:,} MiB |",
    ]


_MEMORY = {
    "gateway": "the gateway",
    "driver": "the driver's Python",
    "java": "Spark's Java",
    "workers": "Spark's workers",
}


def of_placements() -> str:
    result = _result("placements")
    lines = [
        f"On {_machine(result)}; two executors of one core each. A placement that is slow was given fewer events, and",
        "so was SQL: rates compare. Keys and rows are of a subscription and of an event.",
        "",
        "![Events a second of each placement, beside SQL](pictures/placements-speed.png)",
        "![What placements store, send and compare](pictures/placements-costs.png)",
        "",
    ]
    runs = [row for row in result["rows"] if row["part"] == "runs"]
    for workload in dict.fromkeys(row["workload"] for row in runs):
        mine = [row for row in runs if row["workload"] == workload]
        mine.sort(key=lambda row: -row["events_per_second"])
        sql = max((row["events_per_second"] for row in mine if row["way"].startswith("SQL")), default=None)
        lines += [
            f"| {workload}, {mine[0]['subscriptions']:,} subscriptions | events/s | of events | × SQL | keys stored "
            "| keys routed | rows shuffled | skew of rows | of work | met a match | verified | matching | workers |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
            *(f"| {_placement(row, sql)} |" for row in mine),
            "",
        ]
    turns = [row for row in result["rows"] if row["part"] == "planner" and row["way"] == "auto"]
    if turns:
        lines += [
            "| in turn, the least time of each | `auto` takes, of the best single placement's time |",
            "|---|---|",
        ]
        lines += [f"| {row['workload']} | {row['times_best_single']:.2f} |" for row in turns]
        lines.append("")
    free = [row for row in result["rows"] if row["part"] == "free" and row["workload"] == "mixed"]
    if free:
        lines += ["| mixed, if sending cost nothing | matching an event, measured | expected |", "|---|---|---|"]
        lines += [
            f"| {row['way']} | {row['matching_us_an_event']} µs | {row['expected_matching_us']} µs |" for row in free
        ]
        lines.append("")
    return "\n".join(lines)


def _placement(row: dict[str, Any], sql: float | None) -> str:
    name = f"auto: `{row['serves']}`" if row["way"] == "auto" else row["way"]
    ratio = "–" if sql is None else f"{row['events_per_second'] / sql:,.1f}"
    told = [
        ("keys_a_subscription", ""), ("keys_routed_an_event", ""),
        ("rows_shuffled_an_event", ""), ("skew", ""), ("work_skew", ""), ("met_a_match", ""), ("verified_a_match", ""),
        ("matching_us_an_event", " µs"), ("workers_mib", " MiB"),
    ]  # fmt: skip
    cells = ["–" if row.get(key) is None else f"{row[key]:,}{unit}" for key, unit in told]
    return " | ".join([name, f"{row['events_per_second']:,.0f}", f"{row['events']:,}", ratio, *cells])


def of_sonnet() -> str:
    """The smallest and the largest networks; the picture has those between."""
    result = _result("sonnet")
    rows = result["rows"]
    ends = {edge(row["nodes"] for row in rows) for edge in (min, max)}
    lines = [
        f"Seeds, documents and queries are fixed, so that the machine does not matter; {result['date']}.",
        "",
        "| documents | hosts | way | messages a document | repeats | false, of what filters get "
        "| false, of pairs that do not match | the most loaded host, by the mean |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: (row["workload"], row["nodes"])):
        if row["nodes"] in ends:
            shares = f"{row['false_of_received']:.0%} | {row['false_of_not_matching']:.1%}"
            repeats = f"{row['repeats_per_document']:,.1f}" if "repeats_per_document" in row else "–"
            counts = f"{row['messages_per_document']:,.0f} | {repeats} | {shares} | {row['load_most_by_mean']:,.0f}"
            lines.append(f"| {row['workload']} | {row['nodes']:,} | {row['way']} | {counts} |")
    return "\n".join(lines) + "\n"


def of_xml() -> str:
    result = _result("xml")
    lines = [
        f"On {_machine(result)}; documents are given as strings, lxml has them parsed, with its paths compiled.",
        "",
        "| workload | paths | documents/s on one core | matches a document | × lxml | bytes a path | built in |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        cells = [
            row["workload"],
            f"{row['queries']:,}",
            f"{row['documents_per_core_second']:,}",
            f"{row['matches_per_document']:,.0f}",
            f"{row['times_lxml']:,}" if "times_lxml" in row else "–",
            f"{row['index_bytes_per_query']:.0f}",
            f"{row['build_cpu_s']:.0f} s",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    divided = _result("xml_placement")["rows"]
    if divided:
        lines += [
            "",
            f"| `sonnet`, {divided[0]['sonnet_partitions']} partitions | groups | the largest partition has "
            "| of those at a token | held everywhere | a document goes to | and meets, of all paths |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
    for row in divided:
        shares = [row[f"sonnet_{name}"] for name in ("largest_share", "largest_share_of_tokens", "held_everywhere")]
        cells = [
            f"{row['workload']}, {row['queries']:,} paths",
            f"{row['sonnet_groups']:,}",
            *("–" if share is None else f"{share:.0%}" for share in shares),
            f"{row['sonnet_partitions_a_document']} partitions",
            f"{row['sonnet_met_of_all']:.0%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return result


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    cpu = machine["cpu"].replace("(R)", "")
    return f"{machine['cores']} cores of an {cpu}, {machine['memory_gib']} GiB, {result['date']}"


# Where figures stand, between the marks.
DOCUMENTS: dict[str, Callable[[], str]] = {
    "README.md": of_matching,
    "docs/pipeline.md": of_spark,
    "docs/service.md": of_service,
    "docs/placements.md": of_placements,
    "docs/overlays.md": of_sonnet,
    "docs/xml.md": of_xml,
}


def with_figures(name: str) -> str:
    """A document with the figures of the result files."""
    before, rest = (ROOT / name).read_text().split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{DOCUMENTS[name]()}{END}{after}"


def main() -> None:
    for name in DOCUMENTS:
        (ROOT / name).write_text(with_figures(name))


if __name__ == "__main__":
    main()
