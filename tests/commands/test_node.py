"""`tidings node` says what it places by before it takes requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidings.cli import app
from tidings.errors import DomainError

DOMAIN = """
name = "stocks"
attributes = [{name = "price", type = "double"}, {name = "note", type = "string"}]
"""
LAST_RESORT_S = 60


@pytest.fixture
def domain(tmp_path: Path) -> str:
    file = tmp_path / "stocks.toml"
    file.write_text(DOMAIN)
    return str(file)


def test_a_node_says_what_it_places_by_and_warns_of_what_it_cannot_key(domain: str, tmp_path: Path) -> None:
    sample = tmp_path / "events.jsonl"
    sample.write_text("".join(json.dumps({"price": number / 10}) + "\n" for number in range(200)))
    command = [sys.executable, "-m", "tidings", "node", "--system", "clusters", "--domain", domain]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--sample", str(sample)], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as node:
        assert node.stdout is not None
        assert "ready" in node.stdout.readline()
        os.kill(node.pid, signal.SIGTERM)
        _, said = node.communicate(timeout=LAST_RESORT_S)
    first, second = said.splitlines()[:2]
    assert first.endswith("clusters places by price (16 cells); from a sample of 200 events")
    assert "warning: domain 'stocks': clusters does not place by 'note', which has no allowed values" in second


def test_a_domain_that_cannot_be_placed_by_is_refused_with_what_to_declare(tmp_path: Path) -> None:
    bare = tmp_path / "bare.toml"
    bare.write_text('name = "bare"\nattributes = [{name = "price", type = "double"}]')
    refused = CliRunner().invoke(app, ["node", "--system", "opchord", "--domain", str(bare)])
    assert isinstance(refused.exception, DomainError)
    assert "'price' has no ends: declare a min and a max, or give a sample" in str(refused.exception)
