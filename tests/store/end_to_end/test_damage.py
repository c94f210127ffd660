"""Damage is named, never passed over: a checksum on everything, and every position accounted for."""

from __future__ import annotations

import logging
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.store.log.log_errors import LogCorruptError, LogError, LogRangeError
from tidings.store.log.log_files import ask
from tidings.store.log.log_reader import LogReader
from tidings.store.log.log_repair import repair
from tidings.store.log.log_writer import Log

DOMAIN = Domain("d", [Attribute("n", "int")])


def make_log(directory: Path) -> Path:
    """Five pages of 20 events each, written to the file itself."""
    with Log(directory) as log:
        for page in range(5):
            log.append(read_events([{"n": page * 20 + n, "text": f"text {n} " * 5} for n in range(20)], DOMAIN))
    return directory


def positions(log: LogReader, start: int | None = None, end: int | None = None) -> list[int]:
    return [n for batch in log.read(start, end) for n in batch["position"].to_pylist()]


def change(directory: Path, sql: str) -> None:
    connection = apsw.Connection(str(directory / "events.sqlite"))
    ask(connection, sql)
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [
        "count = 19", "domain = 'e'", "time = time + 1", "length = length - 1", "checksum = checksum + 1",
        "events = zeroblob(length(events))", "events = substr(events, 2)", "attributes = zeroblob(200)",
        "attributes = NULL", "keys = zeroblob(12)",
    ],
)  # fmt: skip
def test_a_change_in_any_field_of_a_page_is_an_error_that_names_its_position(tmp_path: Path, damage: str) -> None:
    log = make_log(tmp_path / "log")
    change(log, f"UPDATE pages SET {damage} WHERE first = 40")
    with LogReader(log) as reader:
        assert positions(reader, 0, 40) == list(range(40))
        with pytest.raises(LogCorruptError, match="40") as error:
            positions(reader)
        assert error.value.position == 40
        if "count" not in damage:
            assert positions(reader, 60, 100) == list(range(60, 100))


@pytest.mark.parametrize(("gone", "first", "last"), [(0, 0, 19), (40, 40, 59)])
def test_a_page_that_is_gone_is_missed(tmp_path: Path, gone: int, first: int, last: int) -> None:
    log = make_log(tmp_path / "log")
    change(log, f"DELETE FROM pages WHERE first = {gone}")
    with LogReader(log) as reader, pytest.raises(LogCorruptError, match=f"positions {first} to {last} are missing"):
        positions(reader)


def test_a_flipped_bit_anywhere_is_an_error_or_harmless_but_never_other_events(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log")
    file = log / "events.sqlite"
    sound = file.read_bytes()
    bits = random.Random(3)
    refused = 0
    for _ in range(120):
        place = bits.randrange(len(sound))
        flipped = bytearray(sound)
        flipped[place] ^= 1 << bits.randrange(8)
        file.write_bytes(flipped)
        try:
            with LogReader(log) as reader:
                texts = [text for batch in reader.read() for text in batch["event"].to_pylist()]
            assert len(texts) == 100
            assert all(f'"n":{n},' in text for n, text in enumerate(texts))
        except LogError:
            refused += 1
    assert refused > 10  # the others are in bytes that nothing uses


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log whose events are all in the write-ahead log, of a writer that was killed."""
    directory = tmp_path_factory.mktemp("killed") / "log"
    code = """
import os, signal, sys
from tidings.store.log.log_writer import Log
log = Log(sys.argv[1])
for page in range(5):
    log.append([{"n": page * 20 + n, "text": f"text {n} " * 40} for n in range(20)], domain="d")
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code, str(directory)], check=False)
    assert ended.returncode == -signal.SIGKILL
    return directory


@pytest.fixture
def torn(killed: Path, tmp_path: Path) -> Path:
    """A copy of it, without what SQLite knew of it in memory."""
    shutil.copytree(killed, tmp_path / "log")
    (tmp_path / "log" / "events.sqlite-shm").unlink()
    return tmp_path / "log"


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
class TestTail:
    def test_a_tail_cut_anywhere_is_an_error_that_names_the_first_position_lost(
        self, torn: Path, tmp_path: Path
    ) -> None:
        wal = (torn / "events.sqlite-wal").read_bytes()
        ends = set()
        for cut in [*range(len(wal) - 1, 0, -2501), 0]:
            copy = tmp_path / "copy"
            shutil.copytree(torn, copy)
            (copy / "events.sqlite-wal").write_bytes(wal[:cut])
            with pytest.raises(LogError) as error:
                Log(copy)
            if isinstance(error.value, LogCorruptError):
                assert "was acknowledged up to position 99" in str(error.value)
                ends.add(error.value.position)
            else:
                assert "something else" in str(error.value)  # the very first transaction is gone
            shutil.rmtree(copy)
        assert ends == {0, 20, 40, 60, 80}

    def test_a_flipped_byte_in_the_tail_is_an_error_for_reader_and_writer(
        self, torn: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        wal = bytearray((torn / "events.sqlite-wal").read_bytes())
        wal[-100] ^= 4
        (torn / "events.sqlite-wal").write_bytes(wal)
        with LogReader(torn) as reader, pytest.raises(LogCorruptError, match="99, and ends at 79"):
            _ = reader.end
        with pytest.raises(LogCorruptError, match="99, and ends at 79"):
            Log(torn)
        assert "never acknowledged" not in caplog.text  # it was

    def test_an_append_that_was_never_finished_is_cut_off_aloud(
        self, torn: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        file = torn / "events.sqlite-wal"
        wal = file.read_bytes()
        frame = 24 + int.from_bytes(wal[8:12], "big")
        file.write_bytes(wal + wal[-frame:-100])  # of the same run of the file, and incomplete
        with caplog.at_level(logging.WARNING), Log(torn) as again:
            assert positions(again) == list(range(100))
            assert again.append([{"n": 100}], domain="d") == [100]
        assert f"{frame - 100} bytes of an append that was never acknowledged were cut off" in caplog.text

    def test_positions_given_up_are_passed_over_and_never_used_again(self, torn: Path) -> None:
        file = torn / "events.sqlite-wal"
        file.write_bytes(file.read_bytes()[:-100])
        (lost,) = repair(torn)
        assert (lost.first, lost.last) == (80, 99)
        with Log(torn) as again:
            assert again.append([{"n": 100}], domain="d") == [100]
            assert positions(again) == [*range(80), 100]
            with pytest.raises(LogRangeError, match="position 85 was lost"):
                again.event(85)
        assert repair(torn) == []


def test_an_old_copy_beside_a_newer_mark_is_refused(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log")
    shutil.copy(log / "events.sqlite", tmp_path / "old")
    with Log(log) as newer:
        newer.append([{"n": 100}], domain="d")
    shutil.copy(tmp_path / "old", log / "events.sqlite")
    with pytest.raises(LogCorruptError, match="an old copy was restored"):
        Log(log)


@pytest.mark.parametrize("mark", [b"", b"short", b"\xff" * 12])
def test_a_mark_that_is_gone_or_damaged_is_no_obstacle(tmp_path: Path, mark: bytes) -> None:
    log = make_log(tmp_path / "log")
    (log / "acknowledged").write_bytes(mark)
    with Log(log) as again:
        assert again.append([{"n": 100}], domain="d") == [100]


def test_a_repair_gives_up_damaged_pages_alone(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log")
    change(log, "UPDATE pages SET checksum = 0 WHERE first IN (20, 80)")
    change(log, "DELETE FROM pages WHERE first = 40")
    assert [(lost.first, lost.last) for lost in repair(log)] == [(20, 59), (80, 99)]
    with Log(log) as again:
        assert positions(again) == [*range(20), *range(60, 80)]
        assert again.append([{"n": 100}], domain="d") == [100]
        assert positions(again, 30) == [*range(60, 80), 100]
        again.retain(from_position=60)
        assert positions(again) == [*range(60, 80), 100]
    assert repair(log) == []


def test_a_file_that_sqlite_cannot_read_asks_for_a_copy(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log")
    file = log / "events.sqlite"
    content = bytearray(file.read_bytes())
    content[4096 : 4096 + 64] = b"\xff" * 64
    file.write_bytes(content)
    with pytest.raises(LogCorruptError, match="restore a copy"):
        repair(log)
    with LogReader(log) as reader, pytest.raises(LogCorruptError, match="restore a copy"):
        positions(reader)


def test_a_damaged_identity_is_found_when_the_log_is_opened(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append([{"specversion": "1.0", "source": "/a", "id": "1", "type": "t"}], domain="d")
    change(tmp_path / "log", "UPDATE pages SET keys = zeroblob(length(keys))")
    with pytest.raises(LogCorruptError, match="identities of the events from position 0"):
        Log(tmp_path / "log")
