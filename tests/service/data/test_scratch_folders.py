"""Temporary files of a driver are removed with it; those of one that was killed, by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidings.service.data.data_directory import DataDirectory
from tidings.service.data.scratch_folders import scratch

HELD = """
import sys, tempfile, time
from tidings.service.data.data_directory import DataDirectory
from tidings.service.data.scratch_folders import scratch
with scratch(DataDirectory(sys.argv[1])) as folder:
    tempfile.mkdtemp(prefix="spark-")
    (folder / "blockmgr-1").mkdir()
    (folder / "blockmgr-1" / "shuffle").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    made = DataDirectory(tmp_path / "data")
    made.make()
    return made


def held(data: DataDirectory) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", HELD, str(data.path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_temporary_files_are_in_the_data_directory_and_go_with_the_driver(data: DataDirectory) -> None:
    before = tempfile.gettempdir()
    with scratch(data) as folder:
        assert folder.parent == data.runs
        assert Path(tempfile.mkdtemp()).parent == folder
        assert os.environ["TMPDIR"] == str(folder)
    assert tempfile.gettempdir() == before
    assert list(data.runs.iterdir()) == []


def test_folders_of_a_killed_driver_are_removed_by_the_next_one(data: DataDirectory) -> None:
    killed, dead = held(data)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert (dead / "blockmgr-1" / "shuffle").exists()
    living, alive = held(data)
    try:
        with scratch(data) as mine:
            assert sorted(data.runs.iterdir()) == sorted([alive, mine])
            assert (alive / "blockmgr-1" / "shuffle").exists()
    finally:
        living.kill()
        living.wait()


LEFT = (
    "domains/ada.q/query.replaced-20260101T000000/offsets/1",
    "shared/query.replaced-20260101T000000/offsets/1",
    "shared/query/offsets/.7.0a1b.tmp",
    "domains/ada.q/index/.staged-x1/index.json",
    "domains/ada.q/index/.current.4711",
    "domains/ada.q/query/.tidings.json.4711",
    "domains/ada.q/query/offsets/.7.0a1b.tmp",
    "domains/ada.q/mailboxes.sqlite.staged/00ff.arrow",
    "jobs/.abc.json.00ff00ff",
    ".driver.json.00ff00ff",
)
KEPT = (
    "domains/ada.q/query/offsets/7",
    "shared/query/offsets/7",
    "shared/progress.sqlite",
    "domains/ada.q/query/offsets/.7.crc",
    "domains/ada.q/query/tidings.json",
    "domains/ada.q/index/current",
    "domains/ada.q/mailboxes.sqlite",
    "jobs/abc.json",
    "driver.json",
)


def test_what_a_killed_driver_was_writing_is_removed_and_nothing_else(data: DataDirectory) -> None:
    for name in (*LEFT, *KEPT):
        (data.path / name).parent.mkdir(parents=True, exist_ok=True)
        (data.path / name).write_text("{}")
    living, _ = held(data)
    try:  # which had removed it all when it began
        for name in LEFT:
            assert not (data.path / name).exists(), name
            (data.path / name).parent.mkdir(parents=True, exist_ok=True)
            (data.path / name).write_text("{}")
        with scratch(data):  # and may be writing it now
            for name in LEFT:
                assert (data.path / name).exists(), name
    finally:
        living.kill()
        living.wait()
    with scratch(data):
        assert [name for name in LEFT if (data.path / name).exists()] == []
        assert [name for name in KEPT if not (data.path / name).exists()] == []
    assert not (data.domains / "ada.q" / "query.replaced-20260101T000000").exists()
