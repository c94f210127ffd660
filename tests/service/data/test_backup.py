"""A backup has what the service had at one moment; restored, it is a data directory that a service starts with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.cli import main
from tidings.service.data.backup import POSITIONS_SKIPPED, BackupError, back_up, restore
from tidings.service.data.check_data import check_data
from tidings.service.data.data_directory import DataDirectory
from tidings.service.data.private_files import tighten, too_open
from tidings.service.supervisor import ServicePlan, prepared
from tidings.store.catalogue import Catalogue
from tidings.store.formats import FormatError
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.deliveries import Deliveries
from tidings.store.mailboxes.notifications import Notifications

from ..filled_data import fill


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    made = DataDirectory(tmp_path / "data")
    fill(made)
    return made


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def cloud(n: int) -> dict[str, object]:
    return {"specversion": "1.0", "source": "s", "id": str(n), "type": "t", "data": {"price": float(n)}}


def test_a_restored_directory_has_what_the_other_had_and_is_sound(data: DataDirectory, tmp_path: Path) -> None:
    seen: list[str] = []
    made = back_up(data, tmp_path / "backup", lambda what, done, of: seen.append(what))
    assert (made.log_start, made.log_end) == (0, 10)
    assert "copying log/events.sqlite" in seen
    restored = DataDirectory(tmp_path / "elsewhere" / "data")
    assert restore(tmp_path / "backup", restored.path) == made
    files = restored.domain("default", "quotes")
    assert list(files.query.iterdir()) == []  # its stream begins after what its mailboxes have
    with prepared(ServicePlan(restored)) as new:
        assert not new
    assert check_data(restored).findings == []
    assert restored.read_token() == data.read_token()
    with Catalogue(restored.catalogue) as catalogue, Deliveries(restored.deliveries) as deliveries:
        (row,) = catalogue.filters_of("default", "quotes")
        assert deliveries.cursor(row.subscription_key) == 2
    with Notifications(files.mailboxes) as mailboxes:
        assert (mailboxes.positions_of(row.number), mailboxes.resume()) == ([2, 3], 10)
    assert too_open(tmp_path / "backup") == []
    assert too_open(restored.path) == []


def test_events_after_a_restore_get_positions_that_were_never_used(data: DataDirectory, tmp_path: Path) -> None:
    with Log(data.log) as log:
        log.append([cloud(1)], domain="default.quotes")
        back_up(data, tmp_path / "backup")  # while it is open, and goes on
        log.append([cloud(2)], domain="default.quotes")
    restore(tmp_path / "backup", tmp_path / "restored")
    with Log(tmp_path / "restored" / "log") as log:
        (first,) = log.append([cloud(2)], domain="default.quotes")
        assert first == 11 + POSITIONS_SKIPPED
        assert log.append([cloud(1), cloud(2)], domain="default.quotes") == [10, first]  # known by their names
        assert [event.position for event in map(log.event, (10, first))] == [10, first]
        assert sum(batch.num_rows for batch in log.read()) == 12
        assert log.advance(10, domain="default.quotes", events=2) == first + 1
        assert log.retain(from_position=first) == 11
    with Log(tmp_path / "restored" / "log") as log:
        assert log.append([cloud(3)], domain="default.quotes") == [first + 1]
    restored = DataDirectory(tmp_path / "restored")
    tighten(restored.path)
    assert check_data(restored).findings == []
    back_up(restored, tmp_path / "second")
    restore(tmp_path / "second", tmp_path / "again")
    with Log(tmp_path / "again" / "log") as log:
        assert log.append([cloud(4)], domain="default.quotes") == [11 + 2 * POSITIONS_SKIPPED + 2]


def test_an_existing_target_is_refused_and_left_as_it_is(data: DataDirectory, tmp_path: Path) -> None:
    before = files_of(data.path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("")
    with pytest.raises(BackupError, match="taken exists already; give a new or an empty directory"):
        back_up(data, tmp_path / "taken")
    back_up(data, tmp_path / "backup")
    with pytest.raises(BackupError, match="data exists already"):
        restore(tmp_path / "backup", data.path)
    (tmp_path / "empty").mkdir()
    restore(tmp_path / "backup", tmp_path / "empty")
    after = files_of(data.path)
    assert {name: after[name] for name in before} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "data", "empty", "taken"]


@pytest.mark.parametrize("name", ["log/events.sqlite", "catalogue.sqlite", "token", "format.json", "log/acknowledged"])
@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
def test_a_damaged_backup_is_refused_and_leaves_nothing(
    data: DataDirectory, tmp_path: Path, name: str, how: str
) -> None:
    back_up(data, tmp_path / "backup")
    path = tmp_path / "backup" / name
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if how == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises((BackupError, FormatError), match=r"damaged|cannot copy|format.json"):
        restore(tmp_path / "backup", tmp_path / "restored")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "data"]


@pytest.mark.parametrize("text", ["", "{}", '{"files": {"../../etc/passwd": {"bytes": 1, "sha256": ""}}}'])
def test_a_directory_that_is_not_a_backup_is_refused(data: DataDirectory, tmp_path: Path, text: str) -> None:
    back_up(data, tmp_path / "backup")
    (tmp_path / "backup" / "backup.json").write_text(text)
    with pytest.raises(BackupError, match="is not a backup"):
        restore(tmp_path / "backup", tmp_path / "restored")
    form = {"time": "", "log": {"start": 0, "end": 0}, "streams": [], "files": {"../x": {"bytes": 1, "sha256": ""}}}
    (tmp_path / "backup" / "backup.json").write_text(json.dumps(form))
    with pytest.raises(BackupError, match="a file outside of it"):
        restore(tmp_path / "backup", tmp_path / "restored")


def test_a_backup_of_another_format_is_refused(data: DataDirectory, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backup")
    form = json.loads((tmp_path / "backup" / "format.json").read_text())
    (tmp_path / "backup" / "format.json").write_text(json.dumps(form | {"mailboxes": 99}))
    with pytest.raises(FormatError, match="mailboxes 99 and not 3"):
        restore(tmp_path / "backup", tmp_path / "restored")


def test_a_source_that_is_damaged_is_named_and_leaves_nothing(data: DataDirectory, tmp_path: Path) -> None:
    data.deliveries.write_bytes(b"no database" * 1000)
    with pytest.raises(Exception, match=r"deliveries.sqlite: it is damaged .* check-data"):
        back_up(data, tmp_path / "backup")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_postgresql_and_kafka_are_refused_with_what_to_do(data: DataDirectory, tmp_path: Path) -> None:
    (data.log / "topic.json").write_text('{"url": "kafka://broker:9092/events"}')
    with pytest.raises(BackupError, match=r"are in Kafka, .* cp -a, and start the copy with the same --log"):
        back_up(data, tmp_path / "backup")
    (data.log / "topic.json").unlink()
    data.catalogue.unlink()
    with pytest.raises(BackupError, match=r"is in PostgreSQL, .* cp -a, and the database with pg_dump"):
        back_up(data, tmp_path / "backup")


def test_a_copy_of_a_stopped_directory_is_the_same_directory(data: DataDirectory, tmp_path: Path) -> None:
    """Which is what to do where a backup is refused."""
    shutil.copytree(data.path, tmp_path / "copy")
    assert check_data(DataDirectory(tmp_path / "copy")).findings == []


def test_the_commands_make_and_restore_a_backup(
    data: DataDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["backup", data.path, tmp_path / "backup"], ["restore", tmp_path / "backup", tmp_path / "new"]):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in command])
        assert not ended.value.code
    assert f"tidings serve --data {tmp_path / 'new'}` starts it" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["restore", str(tmp_path / "backup"), str(tmp_path / "new")])
    assert ended.value.code
    assert "new exists already" in capsys.readouterr().err
