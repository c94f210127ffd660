from __future__ import annotations

from pathlib import Path

import pytest

from tidings.cli import main


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
    [(["kord"], "did you mean 'chord'"), (["chord", "--bug", "countng"], "did you mean 'counting'"),
     (["chord", "--keep", "x"], "steps are numbers"), ([], "name a system")],
)  # fmt: skip
def test_what_cannot_be_simulated_is_told(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", *arguments])
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_many_seeds_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    run("digests", "--seeds", "2", "--mixed")
    assert "2 simulations" in capsys.readouterr().out
