"""The same answers on clusters whose executors share no directory, and while an executor is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
import pytest
from tests.waiting import LAST_RESORT_SECONDS, until

from tidings.pipeline.runtime.spark_session import java_environment

pytestmark = [pytest.mark.spark, pytest.mark.long]

SPARK_HOME = Path(pyspark.__file__).parent
JOB_SECONDS_MAX = 300
PLACEMENTS = ("replicated", "bluedove", "digests")  # no visit, one, several

# A driver of its own: the session of the other tests stays as it is. It writes what it found as JSON.
JOB = """
    import json, os, sys, time, urllib.request
    import numpy as np
    import pyarrow as pa
    from tidings import pipeline
    from tidings.matching.matcher import Matcher
    from tidings.testing.workloads import WORKLOADS

    master, mode = sys.argv[1:]
    config = {"spark.executor.memory": "512m", "spark.cores.max": "2", "spark.executor.cores": "1"}
    spark = pipeline.session(master, config=config | {"spark.ui.enabled": "true", "spark.ui.port": "0"})
    workload = WORKLOADS["mixed"](1_000, 2_000)
    table = pa.table({"id": np.arange(1_000), "filter": workload.filters})
    events = spark.createDataFrame(workload.events.append_column("n", pa.array(np.arange(2_000)))).repartition(8)
    index = pipeline.compile(spark.createDataFrame(table), domain=workload.domain, segments=4)
    expected = Matcher(table, workload.domain).match(workload.events)

    def slowly(batches):
        for batch in batches:
            time.sleep(1.0)
            yield batch

    def where(batches):
        import os
        from pyspark import SparkFiles
        for batch in batches:
            yield pa.RecordBatch.from_pylist([{"files": os.path.realpath(SparkFiles.getRootDirectory())}])

    report = {}
    for placement in ("replicated", "bluedove", "digests"):
        given = events.mapInArrow(slowly, events.schema) if mode == "killed" else events
        matched = pipeline.match(given, index, placement=placement)
        print("started", placement, flush=True)
        rows = matched.select("n", "subscriptions").toArrow().to_pylist()
        found = {row["n"]: sorted(row["subscriptions"]) for row in rows}
        report[placement] = {
            "rows": len(rows),
            "right": found == {n: sorted(expected.of(n)) for n in range(2_000)},
            "plan": matched._jdf.queryExecution().executedPlan().toString(),
        }
    places = spark.range(0, 8, 1, 8).mapInArrow(where, "files string").distinct()
    report["places"] = [row.files for row in places.collect()]
    address = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"

    def told(what):
        with urllib.request.urlopen(f"{address}/{what}") as answer:
            return json.load(answer)

    report["shuffled"] = []
    for stage in told("stages"):
        if stage["shuffleReadRecords"] >= 2_000 and stage["numTasks"] >= 4:
            (attempt,) = told(f"stages/{stage['stageId']}")
            tasks = {name: part["succeededTasks"] for name, part in attempt["executorSummary"].items()}
            report["shuffled"].append(tasks)
    report["executors"] = [one["id"] for one in told("allexecutors") if one["id"] != "driver"]
    print("report", json.dumps(report), flush=True)
    spark.stop()
"""


class Driver:
    """A job in a process of its own."""

    def __init__(self, master: str, mode: str, folder: Path) -> None:
        environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
        self.log = (folder / "driver.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(JOB), master, mode],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
        )

    def until(self, word: str) -> str:
        """The first line that begins with a word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        self.log.seek(0)
        raise AssertionError(f"the job ended without '{word}':\n{self.log.read()[-4000:]}")

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.until("report"))
        return found

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


def check_answers(report: dict[str, Any]) -> None:
    for placement in PLACEMENTS:
        assert report[placement]["rows"] == 2_000, "an event was lost or matched twice"
        assert report[placement]["right"]


def check_both_worked(report: dict[str, Any]) -> None:
    assert "shufflepartitionidpassthrough" in report["bluedove"]["plan"].lower()
    assert report["shuffled"], "no shuffle of the events"
    assert any(len(tasks) == 2 and min(tasks.values()) >= 1 for tasks in report["shuffled"]), report["shuffled"]
    assert len(report["places"]) == 2, "executors have their files in one directory"


def test_a_local_cluster_finds_what_the_matcher_finds(tmp_path: Path) -> None:
    with Driver("local-cluster[2,1,1024]", "whole", tmp_path) as driver:
        report = driver.report()
    check_answers(report)
    check_both_worked(report)


class Cluster(NamedTuple):
    url: str
    daemons: list[int]


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Cluster]:
    """A master and two workers, from the package that pip installed, each in a directory of its own."""
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    commands = [
        ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    ]
    for number in (1, 2):
        work = tmp_path / f"worker{number}"
        work.mkdir()
        commands.append(
            [
                "org.apache.spark.deploy.worker.Worker",
                "--host",
                "127.0.0.1",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                str(work),
                url,
            ]
        )
    started = []
    try:
        for number, command in enumerate(commands):
            scratch = tmp_path / f"scratch{number}"
            scratch.mkdir()
            environment = (
                os.environ | java_environment() | {"SPARK_LOCAL_DIRS": str(scratch), "SPARK_LOCAL_IP": "127.0.0.1"}
            )
            log = (tmp_path / f"daemon{number}.log").open("w")
            started.append(
                subprocess.Popen(
                    [str(SPARK_HOME / "bin" / "spark-class"), *command],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    cwd=scratch,
                )
            )
            _wait_for_port(port)
        yield Cluster(url, [process.pid for process in started])
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(LAST_RESORT_SECONDS)


def test_a_standalone_cluster_finds_what_the_matcher_finds(standalone: Cluster, tmp_path: Path) -> None:
    with Driver(standalone.url, "whole", tmp_path) as driver:
        report = driver.report()
    check_answers(report)
    check_both_worked(report)


def test_an_executor_that_is_killed_in_the_middle_loses_and_repeats_nothing(
    standalone: Cluster, tmp_path: Path
) -> None:
    with Driver(standalone.url, "killed", tmp_path) as driver:
        for placement in PLACEMENTS:
            assert driver.until("started") == placement
            time.sleep(2.5)  # into the middle: every batch takes a second or more
            os.kill(_an_executor(standalone), signal.SIGKILL)
        report = driver.report()
    check_answers(report)
    assert len(report["executors"]) > 2, "no executor took the place of one that was killed"


def _an_executor(cluster: Cluster) -> int:
    """The process of an executor that a worker of this cluster started."""
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) if command else 0
        except OSError:
            continue
        if parent in cluster.daemons and b"CoarseGrainedExecutorBackend" in command:
            return int(entry.name)
    raise AssertionError("no executor is running")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for_port(port: int) -> None:
    def listens() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    until(listens, f"nothing listens on port {port}")
