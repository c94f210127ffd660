"""Events are published from arguments, standard input and files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..client.fake_service import FakeService
from .conftest import Ran, Run


def test_an_event_is_published(run: Run, service: FakeService) -> None:
    assert run("publish", "quotes", '{"price": 8.40}') == Ran(0, "published 1 event at position 0\n", "")
    assert b'"price":8.40' in service.requests[-1].content, "as exact as it was written"
    ran = run("publish", "quotes", '{"price": 1}', "--id", "7", "--source", "/mine", "--type", "quote")
    assert ran.out == "published 1 event at position 1\n"
    event = service.log[-1][1]
    assert (event["id"], event["source"], event["type"]) == ("7", "/mine", "quote")


def test_events_are_published_from_input_and_from_files(run: Run, service: FakeService, tmp_path: Path) -> None:
    assert run("publish", "quotes", "-", input='{"price": 1}\n\n{"price": 2}\n').out == (
        "published 2 events at positions 0 to 1\n"
    )
    pq.write_table(pa.table({"price": [3.5, None], "symbol": ["A", "B"]}), tmp_path / "events.parquet")
    (tmp_path / "events.csv").write_text("price,symbol\n4,A\n5,B\n")
    (tmp_path / "events.jsonl").write_text('{"price": 6}\n{"price": 7}\n')
    (tmp_path / "events.json").write_text('[{"price": 8}]')
    for suffix in ("parquet", "csv", "jsonl", "json"):
        run("publish", "quotes", "--events", f"events.{suffix}", "--batch", "1", "--source", "/files")
    assert [event["data"] for _, event in service.log[2:]] == [
        {"price": 3.5, "symbol": "A"}, {"symbol": "B"}, {"price": 4, "symbol": "A"}, {"price": 5, "symbol": "B"},
        {"price": 6}, {"price": 7}, {"price": 8},
    ]  # fmt: skip
    assert {event["source"] for _, event in service.log[2:]} == {"/files"}
