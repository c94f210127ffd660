"""A service that is backed up while it is used goes on elsewhere, from that moment, and keeps every promise."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")
pytest.importorskip("fastapi", reason="pip install 'tidings[service]'")

from tidings.service.data.backup import POSITIONS_SKIPPED, read_manifest
from tidings.service.data.private_files import too_open

from ..faults.process import Served
from ..faults.run import KeptWriter, Run, Size, running
from ..faults.workload import Subscriber, client_of
from ..history.history import History
from ..history.invariants import INVARIANTS, i1_everything_that_matches_is_delivered
from ..history.records import Ack, Change, Delivery, LogEnds, Logged, Publish, Record, now

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc"),
]


def tidings(*words: object) -> str:
    command = [sys.executable, "-m", "tidings", *map(str, words)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LAST_RESORT_SECONDS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def acked(records: Iterable[Record]) -> int:
    return sum(1 for one in records if isinstance(one, Publish) and one.outcome == "acked")


@contextlib.contextmanager
def going_on(before: Run, data: Path) -> Iterator[Run]:
    """The restored service, with the same subscribers at work, and publishers of its own."""
    served = Served(data)
    writer = KeptWriter(data.with_name("second.jsonl"))
    with contextlib.ExitStack() as opened:
        opened.callback(writer.close)
        opened.callback(served.kill)
        served.start()
        tokens = {  # those of the first service are good for the second
            name: client._http.headers["Authorization"].removeprefix("Bearer ")
            for name, client in before.clients.items()
        }
        clients = {name: opened.enter_context(client_of(served.url, token)) for name, token in tokens.items()}
        subscribers = {
            name: Subscriber(client, writer, name, dict(before.subscribers[name].made))
            for name, client in clients.items()
        }
        run = Run(before.folder, served, before.size, writer, clients, subscribers, before.receiver)
        opened.callback(run.stop_workers)
        for tenant, subscriber in subscribers.items():
            for id_ in subscriber.made:
                run.pull(id_, tenant)
            run.add_puller(["true"], tenant)
            run.add_publisher(tenant, seed=2)
        yield run


def one_history(first: Iterable[Record], second: Iterable[Record], *, began: float, end: int) -> list[Record]:
    """What the restored service is to be judged by.

    Of the first service, what the backup has: events before the log's end in it, what was delivered of them, and what
    was acknowledged before the backup began. Of the second, all, as if its log had no gap.
    """
    kept: list[Record] = []
    for one in first:
        match one:
            case Publish(position=position) if position is None or position < end:
                kept.append(one)
            case Delivery(position=position) if position < end:
                kept.append(one)
            case Ack(answered=answered) if answered is not None and answered < began:
                kept.append(one)
            case Change():
                kept.append(one)
    return kept + [without_gap(one, end) for one in second]


def without_gap(one: Record, end: int) -> Record:
    moved: dict[str, Any] = {
        name: value - POSITIONS_SKIPPED
        for name in ("position", "filter_from", "end")
        if isinstance(value := getattr(one, name, None), int) and value >= end
    }
    if isinstance(one, Publish):
        moved["publisher"] = f"second {one.publisher}"  # which is not the first of that name
    return dataclasses.replace(one, **moved)


def wait_until_all_is_delivered(first: list[Record], run: Run, began: float, end: int) -> None:
    def owed() -> str | None:
        history = History(one_history(first, list(run.writer.records), began=began, end=end))
        return next(i1_everything_that_matches_is_delivered(history), None)

    until(lambda: owed() is None)


def test_a_service_backed_up_while_it_is_used_goes_on_elsewhere_and_keeps_every_promise(tmp_path: Path) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored" / "data"
    with running(tmp_path / "first", Size(subscriptions=6, publishers=2, batch=5, pause_seconds=0.05)) as run:
        assert too_open(run.served.data) == []  # Spark's own files among them
        assert "as far as that can be seen while it is served" in tidings("check-data", run.served.data)
        began = now()
        tidings("backup", run.served.data, backup)
        published = acked(run.writer.records)
        run.wait_until(lambda: acked(run.writer.records) > published + 50)
        run.stop_workers()
        run.served.kill()
        first = list(run.writer.records)
        end = read_manifest(backup)[0].log_end
        lost = [one for one in first if isinstance(one, Publish) and one.position is not None and one.position >= end]
        assert lost, "nothing was published after the backup"
        assert [one for one in lost if one.answered is not None and one.answered < began] == []

        assert list((run.served.data / "runs").iterdir()), "a driver that is killed leaves its temporary files"
        tidings("restore", backup, restored)
        assert f"{restored} is sound" in tidings("check-data", restored)
        with going_on(run, restored) as second:
            second.wait_until(lambda: acked(second.writer.records) > 50)
            for publisher in second.publishers:
                publisher.stop()
            wait_until_all_is_delivered(first, second, began, end)
            second.stop_workers()
            assert second.served.stop() == 0
            second.write_log()
        records = one_history(first, second.writer.records, began=began, end=end)
    assert too_open(restored) == []
    assert list((restored / "runs").iterdir()) == []
    assert f"{restored} is sound" in tidings("check-data", restored)
    assert any(isinstance(one, Logged) for one in records)
    assert any(isinstance(one, LogEnds) for one in records)
    history = History(records)
    broken = [f"{name}: {line}" for name, law in INVARIANTS.items() for line in law(history) if name <= "I6"]
    assert not broken, "\n".join(broken[:20])
