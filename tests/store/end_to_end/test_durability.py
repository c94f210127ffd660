"""What is acknowledged stays: through kills, power cuts, full disks and failing ones."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.waiting import until

from tidings.store.log.log_errors import LogBusyError, LogError, LogFullError
from tidings.store.log.log_files import ask
from tidings.store.log.log_reader import LogReader
from tidings.store.log.log_writer import Log

WRITER = """
import json, sys, threading
from tidings.store.log.log_writer import Log

log = Log(sys.argv[1])
run = sys.argv[2]
lock = threading.Lock()

def publish(thread):
    n = 0
    while True:
        size = (n * 7 + thread) % 40
        events = [{"specversion": "1.0", "source": f"{run}/{thread}", "id": str(n + k), "type": "t",
                   "data": {"x": "y" * (n % 300)}} for k in range(size)]
        positions = log.append(events, domain="ab"[n % 2])
        with lock:
            print(json.dumps([[e["source"], e["id"], p] for e, p in zip(events, positions)]), flush=True)
        n += size

threads = [threading.Thread(target=publish, args=(k,)) for k in range(4)]
for thread in threads:
    thread.start()
"""


@pytest.mark.parametrize("runs", [2, pytest.param(40, marks=pytest.mark.long)])
def test_a_writer_killed_at_random_points_loses_nothing_acknowledged_and_repeats_nothing(
    tmp_path: Path, runs: int
) -> None:
    log, moments = tmp_path / "log", random.Random(5)
    acknowledged: dict[tuple[str, str], int] = {}
    for run in range(runs):
        answers = tmp_path / f"answers-{run}"
        with answers.open("wb") as output:
            writer = subprocess.Popen([sys.executable, "-c", WRITER, str(log), str(run)], stdout=output)
            enough = moments.randint(1, 5_000)
            until(lambda: answers.stat().st_size >= enough or writer.poll() is not None)  # noqa: B023
            assert writer.poll() is None
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        for line in answers.read_text().split("\n")[:-1]:  # the last may be cut short
            acknowledged |= {(source, id_): position for source, id_, position in json.loads(line)}
        with LogReader(log) as reader:  # recovers by itself, before any writer has
            table = [row for batch in reader.read() for row in batch.to_pylist()]
        assert [row["position"] for row in table] == list(range(len(table)))
        stored = {(row["source"], row["id"]): row["position"] for row in table}
        assert len(stored) == len(table)
        assert acknowledged.items() <= stored.items()
        for thread in range(4):  # a publisher's events are there in their order, up to some point
            mine = [int(row["id"]) for row in table if row["source"] == f"{run}/{thread}"]
            assert mine == list(range(len(mine)))
    with Log(log) as again:
        assert again.append([{"n": 1}], domain="c") == [len(table)]


def acknowledge_and_cut(log: Path, disk: Any, copies: Path, *, synchronous: str) -> list[tuple[int, int]]:
    """Append under the watched disk; after each answer, how many events were acknowledged and survive a power cut."""
    survived = []
    with Log(log) as written:
        ask(written._writer, f"PRAGMA synchronous = {synchronous}")
        ask(written._writer, "PRAGMA wal_autocheckpoint = 10")  # checkpoints in between, as in a long run
        for k in range(25):
            written.append([{"n": n, "x": "y" * 500 * k} for n in range(k % 4 + 1)], domain="d")
            with Log(disk.after_power_cut(log, copies / str(k))) as copy:
                survived.append((written.end, sum(batch.num_rows for batch in copy.read())))
    return survived


def test_what_was_acknowledged_survives_a_power_cut_that_drops_all_that_was_not_synced(
    tmp_path: Path, disk: Any
) -> None:
    survived = acknowledge_and_cut(tmp_path / "log", disk, tmp_path, synchronous="FULL")
    assert [there for _, there in survived] == [acknowledged for acknowledged, _ in survived]


def test_the_power_cut_would_show_if_appends_were_answered_before_the_sync(tmp_path: Path, disk: Any) -> None:
    with pytest.raises(LogError, match="acknowledged up to position"):
        acknowledge_and_cut(tmp_path / "log", disk, tmp_path, synchronous="OFF")


def test_appends_to_a_full_disk_are_refused_whole_and_go_on_when_there_is_room(tmp_path: Path, disk: Any) -> None:
    large = [{"n": n, "x": os.urandom(3000).hex()} for n in range(20)]
    with Log(tmp_path / "log") as log:
        assert log.append([{"n": 0}], domain="d") == [0]
        for room in (0, 100, 5000, 50_000):
            disk.full_after = room
            with pytest.raises(LogFullError, match=r"position 1: the disk is full; make room"):
                log.append(large, domain="d")
            assert log.end == 1
        disk.full_after = None
        assert log.append([{"n": 1}], domain="d") == [1]
        assert [event for batch in log.read() for event in batch["event"].to_pylist()] == ['{"n":0}', '{"n":1}']


def fill(log: Log) -> Iterator[int]:
    while True:
        yield log.append([{"x": os.urandom(2000).hex()} for _ in range(20)], domain="d")[-1] + 1


def test_a_small_file_system_that_fills_up_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        (tmp_path / "something else").write_bytes(b"x" * 8_000_000)
        count = 0
        with Log(tmp_path / "log") as log:
            with pytest.raises(LogFullError):
                for count in fill(log):  # noqa: B007
                    pass
            assert sum(batch.num_rows for batch in log.read()) == count > 0
            (tmp_path / "something else").unlink()
            assert log.append([{"n": 1}], domain="d") == [count]
        with Log(tmp_path / "log") as log:
            assert log.retain(from_position=count) == count
            assert log.append([{"n": 2}], domain="d") == [count + 1]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_after_a_failed_sync_nothing_more_is_acknowledged_until_the_log_is_opened_again(
    tmp_path: Path, disk: Any
) -> None:
    log = Log(tmp_path / "log")
    log.append([{"n": 0}], domain="d")
    disk.syncs_fail = True
    with pytest.raises(LogError, match="the disk failed while events from position 1 on were written"):
        log.append([{"n": 1}], domain="d")
    disk.syncs_fail = False
    with pytest.raises(LogError, match="opened again"):
        log.append([{"n": 2}], domain="d")
    log.close()
    with Log(tmp_path / "log") as log:
        assert log.append([{"n": 3}], domain="d")[0] in (1, 2)  # the second event's outcome was unknown


def test_a_log_that_another_process_keeps_locked_says_so_and_appends_nothing(tmp_path: Path) -> None:
    with Log(tmp_path / "log", busy_seconds=0.1) as log:
        log.append([{"n": 0}], domain="d")
        other = apsw.Connection(str(tmp_path / "log" / "events.sqlite"))
        ask(other, "BEGIN IMMEDIATE")
        with pytest.raises(LogBusyError, match="another process keeps the file locked; try again"):
            log.append([{"n": 1}], domain="d")
        assert log.end == 1  # it can be read meanwhile
        ask(other, "ROLLBACK")
        other.close()
        assert log.append([{"n": 1}], domain="d") == [1]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="needs a folder that this user cannot write to")
def test_a_log_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot make"):
        Log(tmp_path / "file" / "log")
