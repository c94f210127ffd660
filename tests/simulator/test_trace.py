"""Traces: what is documented is what is written, and a trace that is played again happens again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tidings.cli import app
from tidings.simulator.run import Run
from tidings.simulator.scenario import Scenario, plan_from
from tidings.simulator.trace import Trace, TraceError
from tidings.systems.overlay import overlays

# As docs/overlays.md has it: how many values follow the time and the kind.
DOCUMENTED = {
    "message": 3, "undelivered": 3, "timer": 2, "join": 1, "crash": 1, "ready": 1, "active": 2, "deliver": 3,
    "lost": 2, "grow": 1, "violation": 2,
}  # fmt: skip


def tidings(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    told = tidings("opchord", "--seed", "3", "--churn", "0.6", "--subscriptions", "3", "--events", "2",
                   "--loss", "0.02", "--churn-ms", "4000", "--trace", str(path))  # fmt: skip
    assert told.exit_code == 0, told.output
    return path


def test_every_line_of_a_trace_is_of_a_documented_kind(trace: Path) -> None:
    first, *lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert first["trace"] == 1
    assert plan_from(first["arguments"]) == Scenario(
        "opchord", seed=3, churn=0.6, subscriptions=3, events=2, loss=0.02, churn_ms=4_000
    )
    times = [time for time, *_ in lines]
    assert times == sorted(times)
    assert {"message", "timer", "join", "ready", "active"} <= {kind for _, kind, *_ in lines} <= DOCUMENTED.keys()
    assert all(len(about) == DOCUMENTED[kind] for _, kind, *about in lines)
    named = [line[4] for line in lines if line[1] in ("message", "undelivered")]
    assert all(isinstance(message, dict) and len(message) == 1 for message in named)


def test_a_trace_that_is_played_again_happens_again(trace: Path) -> None:
    told = tidings("--replay", str(trace))
    assert told.exit_code == 0
    assert "every one happened again" in told.output


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda lines: [*lines[:50], lines[50].replace(lines[50].split(",")[0], "[1"), *lines[51:]], "line 51"),
        (lambda lines: [*lines, lines[-1]], "goes on after"),
        (lambda lines: lines[:60], "line 61"),
        (lambda lines: ['{"trace": 9, "arguments": []}', *lines[1:]], "format 9"),
        (lambda lines: ['{"trace": 1, "arguments": ["opchord", "--sead", "3"]}', *lines[1:]], "--sead"),
        (lambda lines: ["nonsense"], "no trace"),
    ],
)
def test_a_trace_that_does_not_happen_again_says_where(trace: Path, change: Any, complaint: str) -> None:
    trace.write_text("\n".join(change(trace.read_text().splitlines())) + "\n")
    told = tidings("--replay", str(trace))
    assert isinstance(told.exception, TraceError)
    assert complaint in str(told.exception)


@pytest.mark.parametrize("system", overlays())
def test_the_same_seed_gives_the_same_trace(system: str) -> None:
    digests = []
    for _ in range(2):
        trace = Trace()
        Run(
            Scenario(system, seed=5, nodes=5, subscriptions=3, events=2, churn_ms=4_000, repair_ms=1_000), trace=trace
        ).play()
        assert trace.lines > 100
        digests.append(trace.digest)
    assert digests[0] == digests[1]
