"""A query whose process is killed, again and again, in the end has told everyone exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

from tidings import Matcher
from tidings.model.domain import Attribute, Domain
from tidings.model.event import read_events
from tidings.store.log.log_writer import Log
from tidings.store.mailboxes.notifications import Notifications

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings import pipeline
from tidings.pipeline.streams.index_changes import IndexChanges

pytestmark = [pytest.mark.spark, pytest.mark.long]

DOMAIN = Domain("readings", [Attribute("n", "bigint"), Attribute("heat", "double")])
KILLS = 3


def reading(n: int) -> dict[str, Any]:
    return {"n": n, "heat": float(n * 7 % 31)}


class Changing:
    """Events and subscriptions that keep coming, whoever reads them or does not."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.index = path / "index"
        self.log = Log(path / "log")
        self.events = 0
        filters = {"v1": "TRUE"} | {f"s{n}": f"heat > {n}" for n in range(20)}
        table = spark.createDataFrame(list(filters.items()), "id string, filter string")
        pipeline.compile(table, self.index, domain=DOMAIN, placement="replicated")
        self.versions = {1: filters}
        self._changes = IndexChanges(self.index)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()
        self.log.close()

    def _run(self) -> None:
        """A version has a subscription of its own to everything: who was told tells which version it was."""
        random = Random(1)
        while not self._done.wait(0.05):
            batch = read_events([reading(n) for n in range(self.events, self.events + 20)], DOMAIN)
            self.log.append(batch)
            self.events += 20
            if self.events % 100 == 0:
                last = max(self.versions)
                put = {f"v{last + 1}": "TRUE", f"s{random.randrange(20)}": f"heat < {random.randrange(30)}"}
                version = self._changes.apply(upsert=put, remove=[f"v{last}"])
                self.versions[version] = {
                    id_: text for id_, text in self.versions[last].items() if id_ != f"v{last}"
                } | put

    def check(self, told: list[tuple[int, str]]) -> None:
        """Everyone once, of every event, by the subscriptions of one version, and versions in order."""
        assert [pair for pair, count in Counter(told).items() if count > 1] == []
        by_event = defaultdict(set)
        for position, id_ in told:
            by_event[position].add(id_)
        assert sorted(by_event) == list(range(self.events))
        matchers = {number: Matcher(filters, DOMAIN) for number, filters in self.versions.items()}
        versions = []
        for position in range(self.events):
            (marker,) = (id_ for id_ in by_event[position] if id_.startswith("v"))
            version = int(marker[1:])
            versions.append(version)
            assert by_event[position] == set(matchers[version].match([reading(position)]).of(0)), position
        assert versions == sorted(versions)
        assert len(set(versions)) > 1


@contextmanager
def command(path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`tidings stream` in a process of its own, which is gone in the end."""
    (path / "domain.toml").write_text(DOMAIN.to_toml())
    options = {
        "--source": f"log:{path / 'log'}",
        "--subscriptions": str(path / "index"),
        "--domain": str(path / "domain.toml"),
        "--checkpoint": str(path / "checkpoint"),
        "--master": "local[1]",
    }
    given = [word for pair in options.items() for word in pair]
    process = subprocess.Popen(
        [sys.executable, "-m", "tidings", "stream", *given, *arguments], stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Python and Java at once; the workers follow."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def batches(path: Path) -> int:
    folder = path / "checkpoint" / "commits"
    return len([name for name in os.listdir(folder) if name.isdecimal()]) if folder.exists() else 0


def wait_for_batches(process: subprocess.Popen[bytes], path: Path, count: int) -> None:
    def done() -> bool:
        assert process.poll() is None, process.stderr.read()  # type: ignore[union-attr]
        return batches(path) >= count

    until(done)


@pytest.mark.parametrize("kind", ["store", "parquet"])
def test_a_query_that_is_killed_notifies_everyone_exactly_once(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    changing = Changing(spark, tmp_path)
    sink = ("--sink", f"{kind}:{tmp_path / 'out'}")
    random = Random(3)
    try:
        for _ in range(KILLS):
            done = batches(tmp_path)
            with command(tmp_path, *sink, "--trigger", "0") as process:
                wait_for_batches(process, tmp_path, done + 3)
                time.sleep(random.random())  # so that it is killed at any moment of a batch
                kill(process)
    finally:
        changing.stop()
    with command(tmp_path, *sink, "--trigger", "now") as process:
        assert process.wait(LAST_RESORT_SECONDS) == 0, process.stderr.read()  # type: ignore[union-attr]
    changing.check(told(kind, tmp_path / "out", spark))


def told(kind: str, out: Path, spark: SparkSession) -> list[tuple[int, str]]:
    if kind == "store":
        with Notifications(out) as store:
            return [(position, str(id_)) for position, id_ in store.pairs()]
    rows = spark.read.parquet(str(out)).collect()
    assert all(f"v{row.subscriptions_version}" in row.subscriptions for row in rows)
    return [(row.position, id_) for row in rows for id_ in row.subscriptions]


def test_sigterm_ends_a_query_cleanly_and_it_goes_on_later(spark: SparkSession, tmp_path: Path) -> None:
    changing = Changing(spark, tmp_path)
    sink = ("--sink", f"store:{tmp_path / 'out'}")
    try:
        with command(tmp_path, *sink, "--trigger", "0.1s") as process:
            wait_for_batches(process, tmp_path, 2)
            process.terminate()
            assert process.wait(LAST_RESORT_SECONDS) == 0
            assert b"events in" in process.stderr.read()  # type: ignore[union-attr]
    finally:
        changing.stop()
    with command(tmp_path, *sink, "--trigger", "now") as process:
        assert process.wait(LAST_RESORT_SECONDS) == 0
    changing.check(told("store", tmp_path / "out", spark))
