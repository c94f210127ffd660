"""Domains are described by attributes, files and events."""

from __future__ import annotations

from pathlib import Path

from ..client.fake_service import FakeService
from .conftest import Run


def test_a_domain_is_put_by_attributes_by_a_file_and_by_events(run: Run, service: FakeService, tmp_path: Path) -> None:
    assert "price" in run("domain", "put", "quotes", "-a", "symbol:string", "-a", "price:decimal(10,2)").out
    assert service.domains["quotes"]["attributes"] == [
        {"name": "symbol", "type": "string"},
        {"name": "price", "type": "decimal(10,2)"},
    ]
    (tmp_path / "stocks.toml").write_text('name = "stocks"\nattributes = [{ name = "at", type = "timestamp" }]\n')
    run("domain", "put", "elsewhere", "stocks.toml")
    assert service.domains["elsewhere"]["attributes"] == [{"name": "at", "type": "timestamp"}]
    (tmp_path / "events.jsonl").write_text('{"price": 6}\n{"price": 7.5}\n')
    run("domain", "put", "seen", "--events", "events.jsonl")
    assert [one["name"] for one in service.domains["seen"]["attributes"]] == ["price"]
    listed = run("domain", "list").out
    assert all(name in listed for name in ("quotes", "elsewhere", "seen"))
    assert 'name = "quotes"' in run("domain", "show", "quotes", "--toml").out
