"""`check-data` finds what is damaged, names it, and says what to do; a directory that is sound it calls so."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.cli import main
from tidings.service.data.check_data import Report, check_data
from tidings.service.data.data_directory import DataDirectory
from tidings.service.data.private_files import tighten
from tidings.service.supervisor import ServicePlan, prepared
from tidings.store.log.log_writer import Log

from ..filled_data import fill


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    made = DataDirectory(tmp_path / "data")
    fill(made)
    return made


def found(report: Report) -> str:
    return "\n".join(map(str, report.findings))


def test_a_sound_directory_is_called_so_part_by_part(data: DataDirectory) -> None:
    seen: list[str] = []
    report = check_data(data, progress=lambda what, done, of: seen.append(what))
    assert found(report) == ""
    assert not report.running
    assert [line.split(":")[0] for line in report.sound] == [
        "mailboxes of default.quotes", "progress of the shared stream", "deliveries", "catalogue", "log",
        "index of default.quotes", "checkpoint of default.quotes", "checkpoint of the shared stream",
    ]  # fmt: skip
    assert "reading the log" in seen


def execute(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as file:
        file.execute(statement)
    file.close()


def flip(path: Path, marker: bytes) -> None:
    """Change a byte of what follows a marker."""
    content = bytearray(path.read_bytes())
    at = content.index(marker) + len(marker)
    content[at] ^= 0xFF
    path.write_bytes(content)


def overwrite_page(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xa5" * 4096
    path.write_bytes(content)


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


INDEX = "domains/default.quotes/index"
QUERY = "domains/default.quotes/query"
BOXES = "domains/default.quotes/mailboxes.sqlite"
Break = Callable[[Path], object]
DAMAGE: dict[str, tuple[str, Break, str]] = {
    "an event was changed": (
        "log/events.sqlite", lambda path: flip(path, b'{"price":2.0}\n{"price":'),
        "positions 4 to 5 are lost: the checksum is wrong.* give them up",
    ),
    "a page of events is gone": (
        "log/events.sqlite", lambda path: execute(path, "DELETE FROM pages WHERE first = 4"),
        "positions 4 to 5 are lost: .*the page is gone",
    ),
    "the log ends before what was acknowledged": (
        "log/events.sqlite", lambda path: execute(path, "DELETE FROM pages WHERE first = 8"),
        "positions 8 to 9 are lost: the tail of the file is damaged",
    ),
    "a page of the log's file was overwritten": ("log/events.sqlite", overwrite_page, "restore a backup"),
    "the log is of an old copy": (
        "log", lambda path: [execute(path / "events.sqlite", "DELETE FROM pages WHERE first >= 4"),
                             (path / "acknowledged").unlink()],
        "has position 9, and the log ends at 4; .* newer than another",
    ),
    "the catalogue was overwritten": ("catalogue.sqlite", overwrite_page, "restore a backup"),
    "the catalogue is no database": ("catalogue.sqlite", lambda path: path.write_bytes(b"x" * 9000), "not a database"),
    "a subscription lost its domain": (
        "catalogue.sqlite", lambda path: execute(path, "DELETE FROM domains"), "refers to a missing one of domains",
    ),
    "the catalogue is of an old copy": (
        "catalogue.sqlite", lambda path: execute(path, "UPDATE sqlite_sequence SET seq = 0"),
        r"has filter 1, and the catalogue has given 0[\s\S]*has subscription 1, and the catalogue has given 0 keys",
    ),
    "a filter begins behind the log": (
        "catalogue.sqlite", lambda path: execute(path, "UPDATE filters SET valid_from = 99"),
        "begins or ends at position 99, and the log ends at 10",
    ),
    "the token is of another": ("token", text("tok\n"), "not in the catalogue"),
    "deliveries were overwritten": ("deliveries.sqlite", overwrite_page, "restore a backup"),
    "deliveries are of a later time": (
        "deliveries.sqlite", lambda path: execute(path, "UPDATE cursors SET position = 77"),
        "deliveries.sqlite: has position 77, and the log ends at 10",
    ),
    "mailboxes were overwritten": (BOXES, overwrite_page, "mailboxes.sqlite: .*restore a backup"),
    "mailboxes are of a later time": (
        BOXES, lambda path: execute(path, "UPDATE reached SET position = 1000"), "has position 1,000, and the log ends",
    ),
    "the catalogue is gone": ("catalogue.sqlite", Path.unlink, "the catalogue is missing; if it is in PostgreSQL"),
    "the log is gone": ("log/events.sqlite", Path.unlink, "the log is missing; restore a backup"),
    "deliveries are gone": ("deliveries.sqlite", Path.unlink, "cursors and dead letters .* are missing"),
    "mailboxes are gone": (
        "domains/default.quotes", lambda path: [(path / "query").mkdir(exist_ok=True),
                                                (path / "mailboxes.sqlite").unlink()],
        "the mailboxes are missing",
    ),
    "what a stream leaves out is no JSON": (
        "domains/default.quotes/aside.json", text("{"), "leaves out cannot be read",
    ),
    "what a stream leaves out is something else": (
        "domains/default.quotes/aside.json", text('{"filters": []}'), "leaves out cannot be read",
    ),
    "an index names no version": (f"{INDEX}/current", text("x"), "compiled again"),
    "a file of an index was changed": (
        f"{INDEX}/2", lambda path: next(path.glob("*.tidings")).write_bytes(b"x"), "checksum.*remove",
    ),
    "a file of an index is gone": (f"{INDEX}/2/index.json", Path.unlink, "cannot read.*compiled again"),
    "the checkpoint's name is gone": (f"{QUERY}/tidings.json", Path.unlink, "tidings.json: cannot be read"),
    "the checkpoint's name was cut": (f"{QUERY}/tidings.json", text("{"), "is not JSON"),
    "an offset was cut": (f"{QUERY}/offsets/0", text("v1\n{}"), "is cut short; start the service: the stream"),
    "an offset is empty": (f"{QUERY}/offsets/0", text(""), "offsets/0: is empty"),
    "an offset makes no sense": (f"{QUERY}/offsets/0", text("v1\n{}\n[]"), "cannot be read"),
    "an offset is behind the log": (
        f"{QUERY}/offsets/0", text('v1\n{}\n{"log": 99, "subscriptions": 1}'), "at position 99",
    ),
    "a commit is empty": (f"{QUERY}/commits/0", text(""), "commits/0: is empty"),
    "the offsets are gone": (f"{QUERY}/offsets/0", Path.unlink, "batch 0 is done, and -1 is the last"),
    "the checkpoint is of a later time": (
        QUERY, lambda path: [(path / "offsets" / "7").write_text('v1\n{}\n{"log": 10, "subscriptions": 1}'),
                             (path / "commits" / "7").write_text("v1\n{}")],
        "come to batch 7, and the mailboxes to 0",
    ),
    "the mailboxes are of another stream": (
        BOXES, lambda path: execute(path, "UPDATE batches SET batch = 5"), "come to batch 0, and the mailboxes have 5",
    ),
    "the shared progress was overwritten": (
        "shared/progress.sqlite", overwrite_page, "progress.sqlite: .*restore a backup",
    ),
    "the shared progress is of a later time": (
        "shared/progress.sqlite", lambda path: execute(path, "UPDATE resume SET position = 12"), "has position 11, and",
    ),
    "a shared offset is empty": ("shared/query/offsets/0", text(""), "shared/query/offsets/0: is empty"),
    "the shared progress is of another stream": (
        "shared/progress.sqlite", lambda path: execute(path, "UPDATE batches SET batch = 5"),
        "come to batch 0, and the mailboxes have 5",
    ),
    "an answer was cut": ("jobs/a.json", text('{"done"'), "a.json: is not JSON.*remove it"),
    "others can read a file": ("token", lambda path: path.chmod(0o644), "1 files, such as this one, can be read"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_named_with_what_to_do(data: DataDirectory, damage: str) -> None:
    name, break_, told = DAMAGE[damage]
    break_(data.path / name)
    report = check_data(data)
    assert re.search(told, found(report)), found(report)


def test_the_command_exits_with_1_if_anything_is_wrong(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["check-data", str(data.path)])
        return int(ended.value.code or 0), capsys.readouterr().out

    status, out = run()
    assert (status, out.splitlines()[-1]) == (0, f"{data.path} is sound")
    data.deliveries.write_bytes(b"nothing" * 1000)
    status, out = run()
    assert status == 1
    assert f"WRONG     {data.deliveries}: cannot be read" in out


def test_a_directory_of_something_else_or_of_another_format_is_refused(
    tmp_path: Path, data: DataDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, told in ((tmp_path / "nothing", "is not a data directory"), (tmp_path, "has files and no format.json")):
        with pytest.raises(SystemExit) as ended:
            main(["check-data", str(place)])
        assert ended.value.code
        assert told in capsys.readouterr().err
    (data.path / "format.json").write_text('{"data directory": 7}')
    with pytest.raises(SystemExit):
        main(["check-data", str(data.path)])
    assert "data directory 7 and not 1" in capsys.readouterr().err


def test_a_running_service_is_only_read_and_unchecked_parts_are_listed(data: DataDirectory) -> None:
    with prepared(ServicePlan(data)), Log(data.log) as log:
        log.append([{"price": 1.0}], domain="default.quotes")
        before = {
            path: path.read_bytes() for path in data.path.rglob("*") if path.is_file() and path.suffix == ".sqlite"
        }
        report = check_data(data)
        assert found(report) == ""
        assert report.running
        assert any("checkpoints agree with mailboxes and log" in line for line in report.unchecked)
        assert {path: path.read_bytes() for path in before} == before
        log.append([{"price": 1.0}], domain="default.quotes")


def test_a_stream_that_plans_further_while_it_is_looked_at_is_not_called_damage(data: DataDirectory) -> None:
    further = 'v1\n{}\n{"log": 11, "subscriptions": 1}'

    def progress(what: str, done: int, of: int) -> None:
        if what == "reading the index of default.quotes":  # the log was read before
            (data.path / QUERY / "offsets" / "1").write_text(further)
            (data.shared.query / "offsets" / "1").write_text(further)

    with prepared(ServicePlan(data)):
        tighten(data.path)
        assert "position 11" not in found(check_data(data, progress=progress))
    assert "is at position 11, and the log ends at 10" in found(check_data(data))


def test_what_is_half_done_after_a_crash_is_recovered_and_not_called_damage(data: DataDirectory) -> None:
    writer = apsw.Connection(str(data.deliveries))
    writer.execute("INSERT INTO cursors VALUES (9, 1, 99)")  # committed, and only in the write-ahead log
    (data.path / "copy").mkdir()
    for suffix in ("", "-wal"):
        (data.path / "copy" / f"deliveries.sqlite{suffix}").write_bytes(Path(f"{data.deliveries}{suffix}").read_bytes())
    writer.close()
    for suffix in ("", "-wal"):
        Path(f"{data.deliveries}{suffix}").write_bytes((data.path / "copy" / f"deliveries.sqlite{suffix}").read_bytes())
    tighten(data.path)
    assert "has subscription 9" in found(check_data(data))


def test_a_catalogue_in_postgresql_is_checked_if_its_url_is_given(data: DataDirectory) -> None:
    elsewhere = data.path.with_name("catalogue.sqlite")
    data.catalogue.rename(elsewhere)  # by its place alone: which database it is the catalogue's own tests look after
    assert "give --catalogue postgresql://" in found(check_data(data))
    report = check_data(data, catalogue=str(elsewhere))
    assert not report.unchecked
    execute(elsewhere, "UPDATE filters SET valid_from = 99")
    assert "begins or ends at position 99" in found(check_data(data, catalogue=str(elsewhere)))
