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
            row["workload"], f"{row['subscriptions']:,}", f"{round(row['events_per_core_second'], -2):,.0f}",
            f"{row['matches_per_event']:,}", *ratios, f"{row['bytes_per_subscription']:.0f}",
            f"{row['build_seconds']:.1f} s",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _same(row: dict[str, Any], other: dict[str, Any], engine: str) -> bool:
    return other["engine"] == engine and all(row[key] == other[key] for key in ("workload", "subscriptions"))


def _compiling_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| compiling | filters/s on one core |", "|---|---|"]
    return lines + [f"| {row['case']} | {round(row['filters_per_core_second'], -2):,} |" for row in rows]


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
    return "\n".join(lines) + "\n"


_MEMORY = {
    "gateway": "the gateway", "driver": "the driver's Python", "java": "Spark's Java", "workers": "Spark's workers",
}  # fmt: skip


def of_placements() -> str:
    if not (RESULTS / "placements.json").exists():
        return "`make bench-placements` measures them, in about half an hour, and writes a table here.\n"
    result = _result("placements")
    lines = [
        f"On {_machine(result)}; two executors of one core each. A placement that is slow was given fewer events, and",
        "so was SQL: rates compare. Keys and rows are of a subscription and of an event.",
        "",
    ]
    runs = [row for row in result["rows"] if row["part"] == "runs"]
    for workload in dict.fromkeys(row["workload"] for row in runs):
        mine = [row for row in runs if row["workload"] == workload]
        mine.sort(key=lambda row: -row["events_per_second"])
        lines += [
            f"| {workload}, {mine[0]['subscriptions']:,} subscriptions | events/s | of events | × SQL | keys stored "
            "| keys routed | rows shuffled | skew of rows | of work | met a match | verified | matching | workers |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
            *(f"| {_placement(row)} |" for row in mine),
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


def _placement(row: dict[str, Any]) -> str:
    name = f"auto: `{row['serves']}`" if row["way"] == "auto" else row["way"]
    told = [
        ("times_best_sql", ""), ("keys_a_subscription", ""), ("keys_routed_an_event", ""),
        ("rows_shuffled_an_event", ""), ("skew", ""), ("work_skew", ""), ("met_a_match", ""), ("verified_a_match", ""),
        ("matching_us_an_event", " µs"), ("workers_mib", " MiB"),
    ]  # fmt: skip
    cells = ["–" if row.get(key) is None else f"{row[key]:,}{unit}" for key, unit in told]
    return " | ".join([name, f"{row['events_per_second']:,.0f}", f"{row['events']:,}", *cells])


def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return result


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    cpu = machine["cpu"].replace("(R)", "")
    return f"{machine['cores']} cores of an {cpu}, {machine['memory_gib']} GiB, {result['date']}"


# Where figures stand, between the marks.
DOCUMENTS: dict[str, Callable[[], str]] = {
    "README.md": of_matching, "docs/service.md": of_service, "docs/placements.md": of_placements,
}  # fmt: skip


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
