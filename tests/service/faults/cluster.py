"""A Spark cluster of its own on this machine: a master, and workers that come and are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark
from tests.waiting import LAST_RESORT_SECONDS

from tidings.pipeline.runtime.spark_session import java_environment

from .process import descendants, free_port

START_SECONDS = LAST_RESORT_SECONDS
_CLASS = "org.apache.spark.deploy"


class Cluster:
    """Processes of Spark's standalone cluster, each in a session of its own."""

    def __init__(self, folder: Path, *, cores: int, memory: str = "1g") -> None:
        self.url = f"spark://127.0.0.1:{free_port()}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self._folder, self._cores, self._memory = folder, cores, memory
        self._environment: Mapping[str, str] = {}
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, environment: Mapping[str, str]) -> None:
        """The master; `environment` is for the tasks that workers run."""
        home = str(Path(pyspark.__file__).parent)
        own = {"SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(self._folder / "work")}
        self._environment = {**os.environ, **environment, **java_environment(), **own}
        port = self.url.rpartition(":")[2]
        self._process("master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", str(free_port()))
        self._wait_for("I have been elected leader", "master.Master.log")

    def add_worker(self) -> None:
        """One more, with an executor of its own for whoever has an application."""
        place = ["--host", "127.0.0.1", "--webui-port", str(free_port())]
        size = ["--cores", str(self._cores), "--memory", self._memory]
        self.workers.append(self._process("worker.Worker", *place, *size, self.url))

    def kill_worker(self) -> None:
        """The one that has been there for longest, and its executor with it, as where a machine goes."""
        gone = self.workers.pop(0)
        for pid in [*descendants(gone.pid), gone.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        gone.wait()

    def stop(self) -> None:
        for process in self._all:
            for pid in [*descendants(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()

    def _process(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [str(Path(self._environment["SPARK_HOME"], "bin", "spark-class")), f"{_CLASS}.{name}", *arguments]
        with (self._folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(self._environment),
                start_new_session=True,
            )
        self._all.append(process)
        return process

    def _wait_for(self, words: str, name: str) -> None:
        until = time.monotonic() + START_SECONDS
        while words not in (said := (self._folder / name).read_text(errors="replace")):
            assert time.monotonic() < until, f"Spark's cluster did not start:\n{said[-3000:]}"
            time.sleep(0.1)


@contextlib.contextmanager
def cluster(folder: Path, environment: Mapping[str, str], *, workers: int = 1, cores: int = 3) -> Iterator[Cluster]:
    made = Cluster(folder, cores=cores)
    try:
        made.start(environment)
        for _ in range(workers):
            made.add_worker()
        yield made
    finally:
        made.stop()
