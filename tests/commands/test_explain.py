"""An explanation is of an event, of a file, or of an event in a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.commands.inputs import FilterTextError

from ..client.fake_service import FakeService
from .conftest import Run


def test_explain_reads_an_event_or_a_file(run: Run, tmp_path: Path) -> None:
    ran = run("explain", "origin = 'JFK' AND delay > 60", '{"origin": "JFK", "delay": 45}')
    assert ran.out.startswith("✗ does not match: 1 predicate short\n")
    (tmp_path / "events.jsonl").write_text("".join(f'{{"price": {price}}}\n' for price in (1, 9, 5, 2)))
    ran = run("explain", "price > 4", "--events", "events.jsonl", "--limit", "3")
    assert ran.out.startswith("2 of 4 events match\n")
    assert [line for line in ran.out.splitlines() if line.startswith("row")] == [
        "row 1: ✓ matches",
        "row 2: ✓ matches",
        "row 3: ✗ does not match: 1 predicate short",
    ]
    with pytest.raises(FilterTextError, match="prise"):
        run("explain", "prise > 4", "--events", "events.jsonl")


def test_explain_asks_a_service_about_a_filter_and_about_a_position(run: Run, service: FakeService) -> None:
    url = ("--url", "http://127.0.0.1:8080")
    assert run("explain", "price > 4", '{"price": 1.10}', "--domain", "quotes", *url).out == "? NULL\n"
    assert service.requests[-1].content.endswith(b'"event":{"price":1.10}}')
    told = run("explain", "--position", "12", *url).out
    assert "matches 1 subscription\n  ✓ a\n" in told
    assert "nearly\n  ✗ b: price is 1: 2 below 3\n" in told
