"""A seventh system is one new folder: whatever reads the records serves it, and nothing else is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidings
from tidings.model.domain import dump_domains
from tidings.simulator.workload import DOMAIN

NAME = "flooding"
LAST_RESORT_S = 300


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The package as it is, by links, with one folder more."""
    source, copy = Path(tidings.__file__).parent, tmp_path_factory.mktemp("seventh")
    _link(source, copy / "tidings", but="systems")
    _link(source / "systems", copy / "tidings" / "systems")
    (copy / "tidings" / "systems" / NAME).symlink_to(Path(__file__).parent / NAME)
    return os.environ | {"PYTHONPATH": str(copy)}


def _link(source: Path, folder: Path, but: str = "") -> None:
    folder.mkdir()
    for one in source.iterdir():
        if one.name not in ("__pycache__", but):
            (folder / one.name).symlink_to(one)


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LAST_RESORT_S)


def test_its_placement_is_held_to_the_laws_of_all(environment: dict[str, str]) -> None:
    code = f"from tidings.testing import check_placement; check_placement('{NAME}', cases=1); print('kept')"
    done = python(environment, "-c", code)
    assert done.stdout == "kept\n", done.stderr


def test_it_is_simulated_and_keeps_its_laws(environment: dict[str, str]) -> None:
    done = python(environment, "-m", "tidings", "simulate", NAME, "--seeds", "8", "--mixed")
    assert done.returncode == 0, done.stderr
    assert "8 simulations" in done.stdout


def test_its_planted_bug_is_found(environment: dict[str, str]) -> None:
    done = python(environment, "-m", "tidings", "simulate", NAME, "--seeds", "4", "--churn", "0", "--bug", "shy")
    assert done.returncode == 1
    assert "Complete is broken" in done.stderr


def test_the_help_names_it(environment: dict[str, str]) -> None:
    simulate = python(environment, "-m", "tidings", "simulate", "--help").stdout
    assert "every event to every node, for comparison" in simulate
    assert "shy" in simulate
    assert NAME in python(environment, "-m", "tidings", "node", "--help").stdout


def test_a_process_of_it_delivers_what_another_publishes(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "domain.toml").write_text(dump_domains([DOMAIN]))
    nodes = [_Process(environment, tmp_path)]
    nodes.append(_Process(environment, tmp_path, "--join", nodes[0].read("ready")))
    try:
        nodes[1].read("ready")
        nodes[0].write(subscribe="dear", filter="price > 8.30")
        nodes[0].read("active")
        nodes[1].write(publish={"price": 8.40}, id="e")
        assert nodes[0].read("delivered") == "dear"
    finally:
        for node in nodes:
            node.end()


class _Process:
    """A `tidings node` and the lines that it writes."""

    def __init__(self, environment: dict[str, str], folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "tidings", "node", "--system", NAME, "--pace", "0.2"]
        command += ["--domain", str(folder / "domain.toml"), *arguments]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def write(self, **request: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def read(self, kind: str) -> str:
        """Returns what the next line of this kind says."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            assert "error" not in said, said
            if kind in said:
                return str(said[kind])
        raise AssertionError(f"the node ended before it was {kind}")

    def end(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=LAST_RESORT_S)


MATCHED = """
from tidings import pipeline
from tidings.pipeline import session

spark = session("local[2]", name="seventh")
subscriptions = spark.createDataFrame([("dear", "price > 8.30"), ("cheap", "price < 2")], "id string, filter string")
events = spark.createDataFrame([(1, 8.4), (2, 1.0), (3, 5.0)], "event int, price double")
index = pipeline.compile(subscriptions, domain=events)
matched = pipeline.match(events, index, placement="flooding", output="pairs")
print("found", sorted((row.event, row.subscription) for row in matched.select("event", "subscription").collect()))
"""


@pytest.mark.spark
def test_events_are_matched_on_spark_by_its_placement(environment: dict[str, str]) -> None:
    done = python(environment, "-c", MATCHED)
    assert "found [(1, 'dear'), (2, 'cheap')]" in done.stdout, done.stderr
