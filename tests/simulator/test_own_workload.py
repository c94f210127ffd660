"""A user's own domain, filters and events are simulated from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidings.errors import TidingsError
from tidings.simulator.run import Run, placement_notes, play
from tidings.simulator.scenario import Scenario, plan_from, schedule

DOMAIN = """
name = "stocks"
attributes = [
    {name = "symbol", type = "string"},
    {name = "price", type = "decimal(10,2)", min = "0.00", max = "20.00"},
    {name = "day", type = "date", min = "2026-01-01", max = "2026-12-31"},
]
"""
FILTERS = ["symbol = 'A'", "price < 5", "price >= 10 AND symbol = 'B'", "day >= DATE '2026-06-01'"]
EVENTS = [
    {"symbol": symbol, "price": price, "day": day}
    for symbol, price, day in zip("ABCAB", (1.5, 12, 3, 19.99, 11), ("2026-01-05", "2026-07-01") * 3, strict=False)
]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    domain, filters, events = tmp_path / "domain.toml", tmp_path / "filters.txt", tmp_path / "events.jsonl"
    domain.write_text(DOMAIN)
    filters.write_text("\n".join(FILTERS) + "\n\n")
    events.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    return {"domain": str(domain), "filters": str(filters), "event_file": str(events)}


@pytest.mark.parametrize("system", ["chord", "opchord", "digests", "digests-home", "clusters", "bluedove"])
def test_every_system_delivers_events_of_a_file_to_filters_of_another(system: str, files: dict[str, str]) -> None:
    outcome = play(Scenario(system, subscriptions=4, events=5, churn=0.25, **files))
    assert outcome.violation is None
    assert outcome.deliveries > 0


def test_subscriptions_and_events_are_samples_of_the_files(files: dict[str, str]) -> None:
    steps = schedule(Scenario("opchord", subscriptions=4, events=5, churn=0, **files))
    assert sorted(step.value for step in steps if step.kind == "subscribe") == sorted(FILTERS)
    bodies = [json.loads(step.value) for step in steps if step.kind == "probe"]
    assert sorted(bodies, key=str) == sorted(EVENTS, key=str)


def test_the_command_of_a_simulation_names_its_files(files: dict[str, str]) -> None:
    plan = Scenario("opchord", **files)
    assert plan_from(plan.arguments) == plan
    assert f"--event-file {files['event_file']}" in plan.command


def test_nodes_place_by_the_events_of_the_file(files: dict[str, str]) -> None:
    notes = placement_notes(Scenario("opchord", **files))
    assert notes is not None
    assert notes.chosen.endswith("from a sample of 5 events")


def test_filters_and_events_come_from_tables_as_well(files: dict[str, str], tmp_path: Path) -> None:
    filters, events = tmp_path / "filters.parquet", tmp_path / "events.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "filter": FILTERS[:2]}), filters)
    pq.write_table(pa.Table.from_pylist([{"symbol": "A", "price": 1.5}]), events)
    pool = Run(Scenario("opchord", **{**files, "filters": str(filters), "event_file": str(events)})).workload
    assert list(pool.filters) == FILTERS[:2]
    assert list(pool.events) == ['{"symbol":"A","price":1.5}']


def test_documents_come_from_a_folder_or_from_lines(tmp_path: Path) -> None:
    paths, folder, lines = tmp_path / "paths.txt", tmp_path / "feeds", tmp_path / "feeds.jsonl"
    documents = ["<rss><item>1</item></rss>", "<rss><item>2</item></rss>"]
    paths.write_text("/rss/item\n//item[. = '2']\n")
    folder.mkdir()
    for number, document in enumerate(documents):
        (folder / f"{number}.xml").write_text(document)
    lines.write_text("".join(json.dumps(document) + "\n" for document in documents))
    for events in (folder, lines):
        plan = Scenario("sonnet", filters=str(paths), event_file=str(events), churn=0, subscriptions=2, events=2)
        assert list(Run(plan).workload.events) == [json.dumps(document) for document in documents]
        outcome = play(plan)
        assert outcome.violation is None
        assert outcome.deliveries == 3


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"domain": ""}, "takes --domain, --filters and --event-file"),
        ({"filters": "nowhere.txt"}, "cannot read nowhere.txt"),
        ({"filters": "prise < 2"}, "did you mean 'price'?"),
        ({"filters": ""}, "takes --domain, --filters and --event-file"),
        ({"event_file": {"price": "dear"}}, "events.jsonl: event: row 0, attribute 'price'"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(
    change: dict[str, Any], complaint: str, files: dict[str, str], tmp_path: Path
) -> None:
    for name, value in change.items():
        if value in ("", "nowhere.txt"):
            files[name] = value
        else:
            Path(files[name]).write_text(value if isinstance(value, str) else json.dumps(value) + "\n")
    with pytest.raises(TidingsError) as refused:
        Run(Scenario("opchord", **files))
    assert complaint in str(refused.value)
