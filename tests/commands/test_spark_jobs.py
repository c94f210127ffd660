"""`tidings match`: files in, files out, an exit status that says how it went, and never half an output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tidings.cli import main
from tidings.pipeline import PipelineError
from tidings.pipeline.job_errors import brief
from tidings.pipeline.sources.table_files import output_format, rejects_path

EVENTS = [
    {"n": 1, "symbol": "OIL", "price": 8.5},
    {"n": 2, "symbol": "OIL", "price": 70.0},
    {"n": 3, "symbol": "GAS", "price": 3.0},
]
SUBSCRIPTIONS = [
    {"id": "cheap", "filter": "price < 10"},
    {"id": "dear, oil", "filter": "symbol = 'OIL' AND price > 50"},
]


class Ran(NamedTuple):
    status: int
    out: str
    err: str


Run: TypeAlias = Callable[..., Ran]


@pytest.fixture
def run(spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process, with the session that the tests share."""
    monkeypatch.setattr("tidings.pipeline.session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)

    def run_command(*arguments: object) -> Ran:
        status = 0
        try:
            main(["match", *map(str, arguments)])
        except SystemExit as stop:
            status = int(stop.code or 0)
        return Ran(status, *capsys.readouterr())

    return run_command


@pytest.fixture
def files(tmp_path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(EVENTS), tmp_path / "events.parquet")
    (tmp_path / "events.json").write_text(json.dumps(EVENTS))
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    (tmp_path / "events.csv").write_text("n,symbol,price\n1,OIL,8.5\n2,OIL,70.0\n3,GAS,3.0\n")
    pq.write_table(pa.Table.from_pylist(SUBSCRIPTIONS), tmp_path / "subs.parquet")
    (tmp_path / "subs.csv").write_text('id,filter\ncheap,price < 10\n"dear, oil","symbol = \'OIL\' AND price > 50"\n')
    (tmp_path / "bad.csv").write_text("id,filter\ncheap,price < 10\ntypo,prise < 10\n")
    (tmp_path / "empty.csv").write_text("id,filter\n")
    (tmp_path / "broken.jsonl").write_text('{"n": 1, "price": 2.5}\n{"n": \n')
    return tmp_path


@pytest.mark.spark
@pytest.mark.parametrize(
    ("events", "subscriptions"),
    [
        ("events.parquet", "subs.parquet"),
        ("events.json", "subs.csv"),
        ("events.jsonl", "subs.csv"),
        ("events.csv", "subs.csv"),
    ],
)
def test_every_format_gives_the_same_matches(run: Run, files: Path, events: str, subscriptions: str) -> None:
    ran = run(files / events, "--subscriptions", files / subscriptions, "--out", files / "out.parquet")
    assert ran.status == 0, ran.err
    rows = pq.read_table(files / "out.parquet").to_pylist()
    assert {row["n"]: row["subscriptions"] for row in rows} == {1: ["cheap"], 2: ["dear, oil"], 3: ["cheap"]}
    for line in ("events", "3", "matches", "events a second", "replicated", "out.parquet"):
        assert line in ran.err


@pytest.mark.spark
def test_pairs_are_written_a_row_for_each_match_and_as_json_where_the_name_says_so(run: Run, files: Path) -> None:
    ran = run(
        files / "events.csv", "--subscriptions", files / "subs.csv", "--out", files / "out.json", "--output", "pairs"
    )
    assert ran.status == 0, ran.err
    lines = [line for part in (files / "out.json").glob("part-*") for line in part.read_text().splitlines()]
    assert sorted((row["n"], row["subscription"]) for row in map(json.loads, lines)) == [
        (1, "cheap"),
        (2, "dear, oil"),
        (3, "cheap"),
    ]


@pytest.mark.spark
def test_rejects_are_written_beside_the_output_and_the_status_is_3(run: Run, files: Path) -> None:
    ran = run(files / "events.csv", "--subscriptions", files / "bad.csv", "--out", files / "out.parquet")
    assert ran.status == 3
    assert "rejected 'typo': unknown attribute 'prise'; did you mean 'price'? at column 1" in ran.err
    assert pq.read_table(files / "out.rejects.parquet").to_pylist() == [
        {"id": "typo", "reason": "unknown attribute 'prise'; did you mean 'price'?", "position": 1}
    ]
    assert len(pq.read_table(files / "out.parquet")) == 3


@pytest.mark.spark
@pytest.mark.parametrize(
    ("events", "subscriptions", "message"),
    [
        ("nowhere.parquet", "subs.csv", "nowhere.parquet"),
        ("events.csv", "nowhere", "nowhere: there is no such file"),
        ("events.csv", "events.csv", "subscription: there is no column 'id'"),
        ("events.csv", "empty.csv", "empty.csv has no subscriptions"),
        ("broken.jsonl", "subs.csv", "MALFORMED_RECORD"),
        ("events.xml", "subs.csv", "tables are read from .parquet, .json"),
    ],
)
def test_bad_input_is_told_in_a_line_and_leaves_nothing(
    run: Run, files: Path, events: str, subscriptions: str, message: str
) -> None:
    before = sorted(files.iterdir())
    ran = run(files / events, "--subscriptions", files / subscriptions, "--out", files / "out.parquet")
    assert ran.status == 1
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err.splitlines()) == 1
    assert sorted(files.iterdir()) == before


@pytest.mark.spark
def test_an_output_that_is_there_already_is_left_alone(run: Run, files: Path) -> None:
    (files / "out.parquet").mkdir()
    ran = run(files / "events.csv", "--subscriptions", files / "subs.csv", "--out", files / "out.parquet")
    assert ran.status == 1
    assert "out.parquet is there already; remove it, or write to another" in ran.err
    assert list((files / "out.parquet").iterdir()) == []


@pytest.mark.spark
def test_a_job_that_fails_in_the_middle_leaves_no_output(
    run: Run, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PipelineError("the disk is full")

    monkeypatch.setattr("tidings.pipeline.jobs.match_files.pairs", fail)
    before = sorted(files.iterdir())
    ran = run(
        files / "events.csv", "--subscriptions", files / "bad.csv", "--out", files / "out.parquet", "--output", "pairs"
    )
    assert (ran.status, ran.err) == (1, "the disk is full\n")
    assert sorted(files.iterdir()) == before


def test_a_name_of_no_known_format_is_a_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["match", "events.csv", "--subscriptions", "subs.csv", "--out", "out.xlsx"])
    assert stop.value.code == 2
    assert ".parquet, .json, .jsonl" in capsys.readouterr().err


def test_rejects_go_beside_the_output() -> None:
    assert rejects_path("out/matches.parquet") == "out/matches.rejects.parquet"
    assert rejects_path("s3a://bucket/matches.json/") == "s3a://bucket/matches.rejects.json"
    assert output_format("x.jsonl") == "json"


TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in match
tidings.errors.EventError: event: row 3: too old
"""


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("[PATH_NOT_FOUND] no file:/x.\nand more", "[PATH_NOT_FOUND] no file:/x."),
        ("Job aborted.\n  at x\nCaused by: IOException: No space\n at y", "IOException: No space"),
        (
            "An error occurred while calling o1.load.\n: x.SparkException: [MALFORMED] bad\n at y",
            "x.SparkException: [MALFORMED] bad",
        ),
        (TRACEBACK, "event: row 3: too old"),
        ("", "Spark failed without a message"),
    ],
)
def test_what_spark_says_is_told_by_its_cause(message: str, said: str) -> None:
    assert brief(message) == said
