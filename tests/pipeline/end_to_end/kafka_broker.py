"""A real Kafka for a test: one broker in KRaft mode on loopback, its jars and Spark's connector from Maven's registry.

Jars are resolved by the Ivy that PySpark ships, into the cache that Spark uses for its own packages:
the first time downloads some 50 MB, later ones look them up.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pyspark

from tidings.pipeline.runtime.spark_session import java_environment
from tidings.pipeline.sources.stream_sources import KAFKA_PACKAGE

KAFKA = "org.apache.kafka:kafka_2.13:4.3.1"

# Where the registry has no connector of this Spark yet: the newest older one, seen to work with it, with what it needs.
OLDER_CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)

_CLUSTER = "dGlkaW5ncy1vbmUtbm9kZQ"  # any 16 bytes, in the form of base64
_CACHE = Path.home() / ".ivy2.5.2" / "cache"
_RESOLVE_SECONDS_MAX = 300
_START_SECONDS_MAX = 90
_STOP_SECONDS_MAX = 10


class Unavailable(Exception):
    """There is no Kafka to be had here: why, and what to do."""


def resolve(package: str, *, transitive: bool = True) -> list[str]:
    """The jars of a package `group:artifact:version`, with all that it needs."""
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    with tempfile.TemporaryDirectory(prefix="tidings-ivy-") as folder:
        found = Path(folder, "jars")
        command = [_java(), "-jar", str(ivy), "-error", "-cache", str(_CACHE), "-dependency", *package.split(":")]
        command += ["-confs", "default", "-cachepath", str(found), *([] if transitive else ["-notransitive"])]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_RESOLVE_SECONDS_MAX, cwd=folder
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{package} did not arrive in {_RESOLVE_SECONDS_MAX} s; is Maven Central slow?") from None
        if done.returncode or not found.exists():
            said = next((line.strip() for line in done.stdout.splitlines() if "not found" in line), "Ivy failed")
            raise Unavailable(
                f"{package} is not to be had ({said}): the test needs Maven Central, or its jars in {_CACHE}"
            )
        return found.read_text().strip().split(os.pathsep)


def connector() -> dict[str, str]:
    """The settings of a session that has Spark's connector for Kafka: its package, or the jars of an older one."""
    try:
        resolve(KAFKA_PACKAGE)
    except Unavailable:
        return {"spark.jars": ",".join(resolve(package, transitive=False)[0] for package in OLDER_CONNECTOR)}
    return {"spark.jars.packages": KAFKA_PACKAGE}


class Broker:
    """A broker that lives as long as the `with` block; its files go with it."""

    def __init__(self) -> None:
        self._jars = os.pathsep.join(resolve(KAFKA))

    def __enter__(self) -> Broker:
        self._folder = Path(tempfile.mkdtemp(prefix="tidings-kafka-"))
        try:
            clients, controllers = _free_ports()
            self.address = f"127.0.0.1:{clients}"
            settings = self._folder / "server.properties"
            settings.write_text(_settings(clients, controllers, self._folder / "data"))
            self._process = self._run("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings))
            if self._process.wait(_START_SECONDS_MAX):
                raise AssertionError(f"the broker's storage cannot be made:\n{self._said()}")
            self._process = self._run("kafka.Kafka", str(settings))
            self._await(clients)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    @property
    def process_id(self) -> int:
        return self._process.pid

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self._folder / "log", "ab") as log:
            command = [_java(), "-Xmx256m", f"-Djava.io.tmpdir={self._folder}", "-cp", self._jars, *arguments]
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def _await(self, port: int) -> None:
        until = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < until and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the broker did not start in {_START_SECONDS_MAX} s:\n{self._said()}")

    def _said(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-2000:]

    def _remove(self) -> None:
        process = getattr(self, "_process", None)
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _settings(clients: int, controllers: int, data: Path) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{controllers}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{clients}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controllers}",
        "log.dirs": str(data),
        "num.partitions": "2",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _java() -> str:
    home = java_environment().get("JAVA_HOME") or os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    assert java is not None
    return java
