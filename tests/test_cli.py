"""The command prints what it found, or what is wrong and where, and never shows a traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidings
from tidings.cli import COMMANDS, LazyCommand, main
from tidings.commands.inputs import point_at


class Ran(NamedTuple):
    status: int
    out: str
    err: str


Run: TypeAlias = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> Ran:
        status = 0
        try:
            main(list(arguments))
        except SystemExit as stop:
            status = int(stop.code or 0)
        return Ran(status, *capsys.readouterr())

    return run_command


@pytest.fixture
def stocks(tmp_path: Path) -> str:
    path = tmp_path / "stocks.toml"
    path.write_text(
        'name = "stocks"\n'
        'attributes = [{ name = "exchange", type = "string" }, { name = "price", type = "decimal(10,2)" }]\n'
    )
    return str(path)


@pytest.mark.parametrize("command", [(), ("demo",), ("explain",), ("check",)])
def test_help_teaches_with_examples(run: Run, command: tuple[str, ...]) -> None:
    ran = run(*command, "--help")
    assert ran.status == 0
    assert " ".join(("  tidings", *command)) in ran.out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_each_command_s_help(name: str) -> None:
    target, line = COMMANDS[name]
    help_ = LazyCommand(name, target, line).loaded.help
    assert help_.splitlines()[0] == line
    assert len(line) < 60, "longer lines are cut in the list"


def test_completion_knows_the_commands_without_importing_them() -> None:
    words = {"_TIDINGS_COMPLETE": "complete_bash", "COMP_WORDS": "tidings su", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "tidings"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **words})
    assert done.stdout.split() == ["subscribe", "subscriptions"]


def test_the_version_is_the_package_s(run: Run) -> None:
    assert run("--version") == Ran(0, f"tidings {tidings.__version__}\n", "")


def test_python_m_tidings_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tidings", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tidings {tidings.__version__}\n"


def test_explain_takes_the_types_from_the_event_and_says_why(run: Run) -> None:
    ran = run("explain", "origin = 'JFK' AND delay > 60", '{"origin": "JFK", "delay": 45}')
    assert ran.status == 0
    assert ran.out.splitlines() == [
        "✗ does not match: 1 predicate short",
        "  ✗ all of",
        "    ✓ origin = 'JFK'                 origin is 'JFK'",
        "    ✗ delay > 60                     delay is 45: 15 below 60",
    ]


def test_explain_takes_the_types_from_a_domain(run: Run, stocks: str) -> None:
    ran = run("explain", "price > 8.30", '{"exchange": "NYSE", "price": 8.40}', "--domain", stocks)
    assert ran.status == 0
    assert ran.out.splitlines()[0] == "✓ matches"


def test_explain_reads_the_event_from_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"delay": 75}')))
    assert run("explain", "delay > 60", "-").out.startswith("✓ matches")


def test_check_shows_how_a_filter_is_read(run: Run, stocks: str) -> None:
    ran = run("check", "exchange = 'NYSE' AND price BETWEEN 8.3 AND 8.7", "--domain", stocks)
    assert ran.status == 0
    assert ran.out.startswith("✓ a filter over the domain 'stocks'\n")
    assert "exchange = 'NYSE' AND price >= 8.30 AND price <= 8.70" in ran.out
    assert "normal form" in ran.out


def test_check_without_a_domain_is_over_the_flights_of_the_demo(run: Run) -> None:
    assert run("check", "dep_delay > 60 AND dest LIKE 'B%'").status == 0


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json", "jsonl"])
def test_check_takes_the_types_from_events(run: Run, tmp_path: Path, suffix: str) -> None:
    rows = [{"place": "Alaska", "magnitude": 5.1}, {"place": "Chile", "magnitude": 4.2}]
    path = tmp_path / f"quakes.{suffix}"
    match suffix:
        case "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case "csv":
            path.write_text("place,magnitude\nAlaska,5.1\nChile,4.2\n")
        case "json":
            path.write_text(json.dumps(rows))
        case "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = run("check", "magnitude > 5 AND place = 'Alaska'", "--events", str(path))
    assert ran.status == 0, ran.err
    assert "'quakes'" in ran.out


def test_a_bad_filter_is_one_line_and_a_caret_under_the_column(run: Run, stocks: str) -> None:
    ran = run("check", "exchange = 'NYSE' AND prise > 8", "--domain", stocks)
    assert ran == Ran(
        1,
        "",
        "filter: unknown attribute 'prise' at column 23; did you mean 'price'?\n"
        "  exchange = 'NYSE' AND prise > 8\n"
        "                        ^\n",
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("explain", "a = ", '{"a": 1}'), "filter: "),
        (("explain", "a = 1", "{"), "event: malformed JSON"),
        (("explain", "a = 1", "[1]"), "event: "),
        (("explain", "a = 1", '[{"a": 1}, {"a": 2}]'), "event: explain takes one event, and there are 2"),
        (("explain", "a = 1", '{"a": 1, "a": 2}'), "event: the key"),
        (("explain", "a = 1", '{"a": 1}', "--domain", "absent.toml"), "domain: cannot read"),
        (("check", "a = 1", "--events", "absent.parquet"), "event: cannot read absent.parquet"),
        (("demo", "--filter", "java_method('x') = 1"), "filter: "),
        (("demo", "--filter", "dest = 'HNL'); --"), "filter: "),
    ],
)
def test_an_error_of_the_user_is_one_line_without_a_traceback(
    run: Run, arguments: tuple[str, ...], complaint: str
) -> None:
    ran = run(*arguments)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(complaint)
    assert len([line for line in ran.err.splitlines() if not line.startswith("  ")]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("chekc", "a = 1"),
        ("check",),
        ("explain", "a = 1"),
        ("check", "a = 1", "--domain", "a.toml", "--events", "b.csv"),
        ("check", "a = 1", "--events", "b.xlsx"),
        ("demo", "--subscribers", "0"),
    ],
)
def test_wrong_usage_has_status_2(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert ran.status == 2
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("text", "column", "shown"),
    [
        ("a = 1", 1, ["  a = 1", "  ^"]),
        ("a = ", 5, ["  a = ", "      ^"]),
        ("a = 1\nAND b = 2", 11, ["  AND b = 2", "      ^"]),
        ("ä = '日本' AND x", 14, ["  ä = '日本' AND x", "                 ^"]),
        ("a\t= \x1b[31m", 3, ["  a·= ·[31m", "    ^"]),
        ("x" * 200, 100, ["  …" + "x" * 120 + "…", "  " + " " * 61 + "^"]),
    ],
)
def test_the_caret_stands_under_the_column(text: str, column: int, shown: list[str]) -> None:
    assert point_at(text, column).split("\n") == shown
