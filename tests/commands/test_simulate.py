"""`tidings simulate` as somebody meets it who has not used it before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tidings.cli import app, main
from tidings.errors import TidingsError
from tidings.systems.overlay import overlays

SMALL = ["--nodes", "5", "--subscriptions", "3", "--events", "2", "--churn", "0", "--repair-ms", "0"]


def tidings(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_the_help_names_every_system_and_every_bug() -> None:
    words = tidings("--help").output.replace(",", " ").split()
    assert not [system for system in overlays() if system not in words]
    assert not {bug for system in overlays().values() for bug in system.bugs} - set(words)


def test_a_simulation_is_summed_up() -> None:
    told = tidings("opchord", *SMALL)
    assert told.exit_code == 0, told.output
    assert "laws broken" in told.output
    assert "none" in told.output


@pytest.mark.parametrize("seeds", ["1", "2"])
def test_a_simulation_prints_what_it_cost(seeds: str) -> None:
    told = tidings("opchord", "--seeds", seeds, "--subscriptions", "20", *SMALL[:2], *SMALL[6:])
    for row in ("own work", "upkeep", "repeats", "bytes", "hops to", "latency, p50, p99", "load of nodes", "false pos"):
        (line,) = [line for line in told.output.splitlines() if row in line]
        assert any(character.isdigit() for character in line.split("│")[2])


def test_a_simulation_of_own_files_says_what_nodes_place_by(tmp_path: Path) -> None:
    domain, filters, events = tmp_path / "domain.toml", tmp_path / "filters.txt", tmp_path / "events.csv"
    domain.write_text('name = "d"\nattributes = [{name = "x", type = "double"}, {name = "all", type = "array<int>"}]')
    filters.write_text("x > 1\nx < 3\n")
    events.write_text("x\n1.5\n2.5\n9\n")
    own = ["--domain", str(domain), "--filters", str(filters), "--event-file", str(events)]
    told = tidings("opchord", *own, *SMALL)
    assert told.exit_code == 0, told.output
    assert "domain 'd': opchord places by x (4 quantiles); from a sample of 3 events" in told.stderr
    assert "warning: domain 'd': opchord does not place by 'all'" in told.stderr


def test_many_seeds_are_played_with_the_sizes_that_are_asked_for() -> None:
    told = tidings("opchord", "--seeds", "3", *SMALL)
    assert "3 simulations" in told.output
    (line,) = [line for line in told.output.splitlines() if "nodes at the end" in line]
    assert "15" in line


def test_a_failure_says_how_to_see_it_again_and_is_the_exit_status() -> None:
    told = tidings("opchord", "--bug", "counting", "--subscriptions", "3")
    assert told.exit_code == 1
    assert "Sound is broken" in told.stderr
    assert "tidings simulate opchord --subscriptions 3 --bug counting --keep" in told.stderr


def test_a_failure_in_another_process_is_told_alike() -> None:
    told = tidings("opchord", "--bug", "counting", "--subscriptions", "3", "--seeds", "2", "--jobs", "2")
    assert told.exit_code == 1
    assert "Sound is broken" in told.stderr


def test_the_manual_shows_the_way_of_a_document_as_it_is_told() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "overlays.md").read_text()
    command = "--churn 0 --subscriptions 14 --packet p1"
    assert f"$ tidings simulate sonnet {command}" in manual
    told = tidings("sonnet", *command.split()).stdout.splitlines()
    way = [line for line in told if line.startswith("event p1") or " ms  /" in line]
    assert len(way) > 5
    assert "\n".join(f"    {line.rstrip()}" for line in way) in manual


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "name a system to simulate, or --all of them"),
        (["opcord"], "did you mean 'opchord'?"),
        (["opchord", "--bug", "countin"], "did you mean 'counting'?"),
        (["clusters", "--bug", "counting"], "clusters has no bug 'counting'"),
        (["opchord", "--keep", "1;2"], "steps are numbers, with commas between them"),
        (["opchord", "--seeds", "2", "--trace", "x.jsonl"], "of one seed; leave out --seeds"),
        (["--replay", "nowhere.jsonl"], "no trace of a simulation"),
    ],
)
def test_what_cannot_be_simulated_is_told(
    arguments: list[str], complaint: str, monkeypatch: Any, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    told = tidings(*arguments)
    assert told.exit_code != 0
    text = str(told.exception) if isinstance(told.exception, TidingsError) else told.stderr
    assert complaint in " ".join(text.replace("│", " ").split())


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["simulate", *arguments])
    assert not exit.value.code


ONE = ["opchord", "--seed", "2", "--nodes", "6", "--subscriptions", "3", "--events", "2"]


def test_a_simulation_ends_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    run(*ONE)
    told = capsys.readouterr().out
    assert "laws broken" in told
    assert "none" in told


def test_a_trace_is_written_and_happens_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    run(*ONE, "--trace", str(trace))
    run("--replay", str(trace))
    assert "every one happened again" in capsys.readouterr().out
    lines = trace.read_text().splitlines()
    trace.write_text("\n".join([*lines[:40], lines[40].replace("[", "[ "), *lines[41:]]) + "\n")
    with pytest.raises(SystemExit):
        main(["simulate", "--replay", str(trace)])
    assert "line 41 of the trace differs" in capsys.readouterr().err


def test_a_planted_bug_is_told_with_the_command_that_plays_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["simulate", "opchord", "--bug", "counting", "--seed", "3"])
    assert exit.value.code == 1
    told = capsys.readouterr().err
    assert "Sound is broken" in told
    assert "tidings simulate opchord --seed 3 --bug counting --keep " in told


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["kord"], "did you mean 'chord'"),
        (["chord", "--bug", "countng"], "did you mean 'counting'"),
        (["chord", "--keep", "x"], "steps are numbers"),
        ([], "name a system"),
    ],
)
def test_wrong_arguments_are_refused_with_a_hint(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", *arguments])
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_many_seeds_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    run("digests", "--seeds", "2", "--mixed")
    assert "2 simulations" in capsys.readouterr().out
